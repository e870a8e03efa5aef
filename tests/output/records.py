"""The JSON records of the tool and their fields: one list, from which docs/reference.md has its table.

python tests/output/records.py   # prints the table
"""

from __future__ import annotations

WORKLOAD = {
    "kind, namespace, name, group": "the workload, or the Pod if it has none",
    "labels": "those of `--label-columns`, or of its namespace; absent without it",
}
RECORDS = {
    "drift": {
        "verdict": "`up_to_date`, `drifted`, `missing`, `not_injected`, `rejected` or `unknown`",
        "differences": "each with `path`, `current` and `expected`",
        "ignored": "paths of what is different in each new Pod",
        "message": "why it is rejected or unknown",
    },
    "plan": {
        "position": "in rollout order, from 1",
        "selected": "false: left by `--max-rollouts`",
        "uid": "of the workload",
        "started_before": "only Pods created before it are old; null: whatever their age",
        "sidecar_hash": "of what new Pods would get (with `--only-drifted`), as in the annotation `*.rollout.revision`",
        "template_hash": "of its Pod template, without what restarts set: whose change it is",
        "pods": "`total`, `replaced` (column PODS), `old` (column OLD)",
        "sidecars": "that run: `name`, `image`, `native`, `init`",
        "oldest_pod": "when it was created",
        "method": "`restart`, `evict` or `in_place`",
        "state": "`no_service`, `serving` or `unhealthy`",
        "unhealthy_reason": "empty: it is healthy",
        "downtime": "whether all its Pods may be unavailable at once",
        "services": "of which a Pod is an endpoint; null: may not be read",
        "controlled_by": "its owner, such as a Prometheus",
        "differences": "as in `drift`",
    },
    "skip": {
        "code": "see Codes above",
        "message": "text for people",
        "of_an_earlier_run": "whether its rollout was never complete, which makes the exit code of `--confirm` 1",
    },
    "result": {
        "outcome": "see above",
        "code": "of a workload that was skipped by a rule; of one that was not started: `max_rollouts`, `max_failures`, `max_duration`, `gate`, `interrupted`, `namespace_stopped` (its namespace named a cause for which others may fail, too), or `stopped` for another reason",
        "method": "as in `plan`",
        "time": "when it ended",
        "seconds": "how long it took",
        "message": "text for people",
        "command": "of a failure or an interruption: the words of the command that says more; else empty",
        "pods": "`wanted` (to replace or change), `updated`, `ready` (of these), `lost` (without the sidecar), `not_created`; success is `ready` = `wanted`; null: not verified",
        "unhealthy_before": "as `unhealthy_reason` in `plan`",
        "sidecar_hash": "that of the plan, if its Pods have what was planned; else empty",
    },
    "summary": {
        "version": "of the tool",
        "context": "of the kubeconfig",
        "user": "who ran it",
        "server": "the API server",
        "dry_run": "true without `--confirm`",
        "started_before": "the cutoff; null: none",
        "outcomes": "numbers of workloads by outcome",
        "verdicts": "numbers of workloads by verdict",
        "pods": "sums over the results; `wanted` includes Pods that were not verified",
        "sidecars": "the table of sidecars; null: Pods could not be listed at the end. `name`, `image`, `pods`, `up_to_date`, `old`, and `left` by code",
        "leftovers": "the same of Pods that are not up to date, without those of the plan: `namespace`, `name`, `workload`, `code`, `message`, `sidecars`, `labels`; with `--plan` also those that were not compared. With `--expect-image` and `--expect-annotation` those that are not as expected, and in `found` what they have",
        "planned": "number of workloads; 0 for a question",
        "not_injected": "number of workloads without the sidecar that would not get it (`--include-missing`)",
        "not_up_to_date": "what `--fail-on-drift` counts: Pods by code, and workloads `without_pods`",
        "seconds": "of the run",
        "command": "the words of the command that is printed first; empty: none",
        "commands": "those of all that are printed",
        "gate": "`open`, or `closed:` and why; null without `--gate`, or if it did not run",
        "namespaces": "those of `--include-namespace`; null: all",
        "injector": "what is wrong with it: no dry run returned a sidecar; empty: nothing",
        "expected": "the answer to `--expect-image` and `--expect-annotation`: `patterns`, `yes`, `pods` that count, `others` (numbers of Pods by what they have), how many of these are `terminating`; workloads that were `asked`, that `would_differ`, that gave `no_answer`; `not_asked` by sort, and `reasons` for a no; else null",
        "exit_code": "of the run",
        "failed": "what makes it 1, with numbers: outcomes (`lost_sidecar`, `failed`, `timed_out`, `incomplete`, `still_drifted`, and `not_started` if something is wrong with the cluster), `of_an_earlier_run`, `not_injected`, `not_applied`, `not_up_to_date`, `injector_down`, `nothing_checked`, `not_as_expected` (reasons for a no), `pods_not_listed`, `output_not_written`",
    },
}


def table() -> list[str]:
    """The lines of the table."""
    lines = ["| record | field | meaning |", "| --- | --- | --- |"]
    for record, fields in {"all but `summary`": WORKLOAD, **RECORDS}.items():
        for field, meaning in fields.items():
            lines.append(f"| {record} | `{field}` | {meaning} |")
            record = ""
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
