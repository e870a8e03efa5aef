"""Break the script in meaningful ways, one at a time, and list what no test notices.

    .venv/bin/python tests/mutations.py             # all: about 12 minutes on 2 cores
    .venv/bin/python tests/mutations.py evict       # those with this word in their name
    .venv/bin/python tests/mutations.py evict --control-plane  # on a real control plane, where the tests run on both
    .venv/bin/python tests/mutations.py --list

Each mutation is made in a copy of the repository, and only the tests that are specified for it run. It survives if they
pass. Exit code 0: none survived, 1: at least one did, 2: one no longer fits the script.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parent.parent
SCRIPT = "sidecar-rollout.py"


class Mutation(NamedTuple):
    name: str
    tests: str  # files in a folder of tests/, without test_ and .py
    old: str  # occurs once in the script
    new: str


MUTATIONS = (
    # Looks, and the first one alone
    Mutation(
        "looks: an application's own problems end the waiting",
        "looks",
        "        if matches(name, options.sidecars)\n    }",
        "        if name\n    }",
    ),
    Mutation(
        "looks: what the cache says is final",
        "looks",
        "self.reason = self.look(CACHED) and self.look({})",
        "self.reason = self.look(CACHED)",
    ),
    Mutation(
        "looks: a paused rollout is waited for",
        "looks",
        "        if is_paused(obj):\n            return PAUSED\n",
        "",
    ),
    Mutation(
        "looks: a sidecar that does not start is waited for",
        "looks",
        'return DID_NOT_START if any(map(self.is_stuck, new)) else ""',
        'return ""',
    ),
    Mutation(
        "looks: a sidecar that did not start is not rechecked",
        "looks",
        "(TIMEOUT_TEXT, DEADLINE_TEXT, DID_NOT_START)",
        "(TIMEOUT_TEXT, DEADLINE_TEXT)",
    ),
    Mutation(
        "first: all begin at once",
        "looks",
        "return self.workers if self.rollout.proven.is_set() else 1",
        "return self.workers",
    ),
    Mutation(
        "first: one that does not start stops nothing",
        "looks",
        "is_first = stuck and not self.proven.is_set() and not workload.unhealthy_reason",
        "is_first = False",
    ),
    Mutation(
        "first: one that does not start stops all, whatever others have shown",
        "looks",
        "is_first = stuck and not self.proven.is_set() and not workload.unhealthy_reason",
        "is_first = stuck and not workload.unhealthy_reason",
    ),
    # Limits
    Mutation(
        "limits: one more rollout at a time",
        "scheduler",
        "while waiting and len(self.in_progress) < self.slots:",
        "while waiting and len(self.in_progress) <= self.slots:",
    ),
    Mutation(
        "limits: --parallel-rollouts as a percentage is rounded up",
        "canary",
        "workers = max(min(int(options.parallel_rollouts.of(total)), plan.selected), 1)",
        "workers = max(min(math.ceil(options.parallel_rollouts.of(total)), plan.selected), 1)",
    ),
    Mutation(
        "limits: --max-rollouts as a percentage is rounded down",
        "canary",
        "selected=min(math.ceil(options.max_rollouts.of(len(planned))), len(planned))",
        "selected=min(int(options.max_rollouts.of(len(planned))), len(planned))",
    ),
    Mutation(
        "limits: one failure more than --max-failures",
        "failure_limits scheduler",
        "self.failures >= limit",
        "self.failures > limit",
    ),
    Mutation(
        "limits: six failures in a row",
        "scheduler failure_limits",
        "TOO_MANY_IN_A_ROW = 5",
        "TOO_MANY_IN_A_ROW = 6",
    ),
    Mutation(
        "limits: workloads that were unhealthy before count as failures",
        "failure_limits",
        "return self.outcome in FAILURES and not self.workload.unhealthy_reason",
        "return self.outcome in FAILURES",
    ),
    Mutation(
        "limits: --max-duration reached too late",
        "windows",
        "report.began + (options.max_duration or math.inf)",
        "report.began + 100 * (options.max_duration or math.inf)",
    ),
    Mutation(
        "limits: a closed gate does not hold rollouts",
        "gate",
        "return time.monotonic() < self.valid_until and not self.reason",
        "return True",
    ),
    Mutation(
        "limits: workloads that become unhealthy later do not count as failures",
        "scheduler",
        "        if set(timestamps_of(obj)) - ",
        "        workload.unhealthy_reason = shortage_of(workload.ref, obj)\n        if set(timestamps_of(obj)) - ",
    ),
    # Rollouts of earlier runs
    Mutation(
        "attach: a template that somebody changed since is waited for",
        "attach",
        '    return max(changes, default=("", False))[1]\n',
        "    return True\n",
    ),
    Mutation(
        "attach: new Pods that are outdated by now are waited for",
        "attach",
        "    wrong = {*workload.lacking, *workload.drifted_pods}\n",
        "    wrong = set(workload.lacking)\n",
    ),
    Mutation(
        "attach: a sidecar that is stuck is waited for",
        "attach",
        "        pod.stuck or not pod.sidecars or pod.name in wrong\n",
        "        not pod.sidecars or pod.name in wrong\n",
    ),
    Mutation(
        "attach: a StatefulSet that waits for a Pod that is stuck is waited for",
        "attach",
        "    is_wrong |= is_degraded(workload) and any(pod.stuck for pod in workload.pods)",
        "    pass",
    ),
    Mutation(
        "attach: it is restarted again",
        "attach",
        "    Method.ATTACH: Rollout.attach,\n",
        "    Method.ATTACH: Rollout.restart,\n",
    ),
    Mutation(
        "attach: it does not count as a failure",
        "attach",
        '        workload.unhealthy_reason = ""  # what is not ready is so because of this rollout\n',
        "",
    ),
    Mutation(
        "attach: the template is not looked at again",
        "attach",
        "        if set(timestamps_of(obj)) != set(workload.stamps) or not is_unchanged(obj):\n",
        "        if False:\n",
    ),
    Mutation(
        "attach: its new Pods count as old ones",
        "attach",
        "        workload.old_pods = tuple(name for name in workload.old_pods if name in old)\n",
        "        pass\n",
    ),
    Mutation(
        "attach: only what still has old Pods is waited for",
        "attach",
        "    return stamp if is_ours and why_unfinished(workload, options) else",
        "    return stamp if is_ours and why_incomplete(workload) else",
    ),
    # Order
    Mutation(
        "order: the state does not count",
        "order",
        "rank = (workload.state.value, ",
        'rank = ("", ',
    ),
    Mutation(
        "order: most Pods first",
        "order",
        "key=lambda workload: (workload.total_pods, workload.ref)",
        "key=lambda workload: (-workload.total_pods, workload.ref)",
    ),
    Mutation(
        "order: namespaces do not alternate",
        "order",
        "        turns[rank] += 1\n",
        "",
    ),
    # Selection
    Mutation(
        "selection: Pods created after the cutoff are included",
        "selecting",
        "or (pod.created < cutoff and (pod.sidecars or options.include_missing))",
        "or pod.sidecars or options.include_missing",
    ),
    Mutation(
        "selection: the first owner reference counts",
        "selecting",
        'if reference.get("controller"):',
        "if True:",
    ),
    Mutation(
        "selection: terminating Pods count",
        "selecting",
        'return has_ended(pod) or bool(dig(pod, "metadata.deletionTimestamp"))',
        "return has_ended(pod)",
    ),
    Mutation(
        "selection: an included namespace cannot be excluded",
        "selecting",
        'return matches(namespace, included or ["*"]) and not matches(namespace, excluded)',
        'return matches(namespace, included or ["*"])',
    ),
    Mutation(
        "selection: a namespace cannot opt out",
        "opt_out",
        "is_excluded = has_any(unwanted, annotations_of(workload.namespace))",
        "is_excluded = False",
    ),
    Mutation(
        "selection: paused Deployments are restarted",
        "selecting",
        "is_stopped = is_paused(workload.obj)\n    if",
        "is_stopped = False\n    if",
    ),
    Mutation(
        "selection: all workloads are named",
        "named_workloads",
        'return "" if is_named(workload.ref, options) else "not selected by TYPE/NAME or --plan"',
        'return ""',
    ),
    Mutation(
        "selection: -A does not select all namespaces",
        "plugin",
        "    if given.all_namespaces:\n        given.include_namespace = []\n",
        "",
    ),
    # Comparison
    Mutation(
        "comparison: volumes behind mounts do not count",
        "only_drifted",
        '"volumes": {volume["name"]: normal_volume(volume) for volume in volumes},',
        '"volumes": {},',
    ),
    Mutation(
        "comparison: resources that were changed in place are drift",
        "differences",
        'is_resized = path[0] in resized and path[1:2] == ("resources",)',
        "is_resized = False",
    ),
    Mutation(
        "comparison: a variable that is different in each new Pod is no drift if others lack it",
        "changing_values",
        "values = [None if value is None else GENERATED for value in values]",
        "continue",
    ),
    Mutation(
        "numbers: Pods of a custom resource count only with the sidecar",
        "numbers",
        ' or "." in owner.group:',
        ":",
    ),
    Mutation(
        "numbers: a rollout that timed out is counted as it was then",
        "numbers",
        "if earlier.attempt and is_unfinished(error):",
        "if False:",
    ),
    Mutation(
        "lost sidecar: a command is printed that cannot replace Pods of a custom resource",
        "lost_sidecars",
        "[ref for ref in sorted(lost) if has_template(ref) == wanted]",
        "[ref for ref in sorted(lost) if wanted]",
    ),
    Mutation(
        "signals: one in the end of an object shows a traceback",
        "interrupting",
        "error.exc_type is Interrupted or show(error)",
        "show(error)",
    ),
    Mutation(
        "comparison: changed configuration is no drift",
        "configuration",
        "older = [pod for pod in pods if pod.created < changed and pod.sidecars]",
        "older: list[LivePod] = []",
    ),
    Mutation(
        "comparison: every error of a dry run is a rejection",
        "verdicts",
        "return Verdict.REJECTED if is_denied or is_invalid else Verdict.UNKNOWN",
        "return Verdict.REJECTED",
    ),
    Mutation(
        "comparison: sidecars are removed without --allow-removal",
        "removal",
        "return not (has_view and missing_sidecars(workload, unpacked(workload.view), options))",
        "return True",
    ),
    Mutation(
        "comparison: workloads that would not get the sidecar are missing it",
        "missing",
        "Verdict.UP_TO_DATE if workload.sidecars else Verdict.NOT_INJECTED",
        "Verdict.UP_TO_DATE if workload.sidecars else Verdict.MISSING",
    ),
    # Writes
    Mutation(
        "writes: a patch does not include the resourceVersion",
        "concurrent_runs",
        '            "metadata": {"resourceVersion": version},\n',
        "",
    ),
    Mutation(
        "writes: what another run has restarted is restarted again",
        "concurrent_runs",
        "        if set(timestamps_of(obj)) - set(workload.stamps):\n",
        "        if False:\n",
    ),
    Mutation(
        "writes: no dry run decides right before the patch",
        "check_before_rollout",
        '        self.require_possible(workload, expected, "patched")\n',
        "",
    ),
    # Verification
    Mutation(
        "verification: old Pods do not matter",
        "verification",
        "        old = list(filter(attempt.is_old, pods))\n",
        "        old: list[Json] = []\n",
    ),
    Mutation(
        "verification: a lost sidecar does not stop the run",
        "lost_sidecars",
        '        stop_reason = f"new Pods of {workload.ref} have no {snapshot.missed}"\n',
        '        stop_reason = ""\n',
    ),
    Mutation(
        "verification: Pods that still differ are a success",
        "drifted_rollouts",
        "                differences = differences_of(workload, new, self.options)\n",
        "                differences = ()\n",
    ),
    Mutation(
        "verification: rollouts that timed out are not rechecked",
        "rolling_out",
        "        if news.attempt and not task.earlier:\n",
        "        if False:\n",
    ),
    Mutation(
        "verification: an API server that is away fails the rollout",
        "rolling_out",
        'outcome, message, stop_reason = Outcome.TIMED_OUT, error, ""',
        'outcome, message, stop_reason = Outcome.FAILED, error, ""',
    ),
    Mutation(
        "verification: a crash during the soak is a success",
        "soak",
        "                    restart = restart_of(before.get(uid, {}), pod)\n",
        '                    restart = ""\n',
    ),
    Mutation(
        "verification: an API server that stays away prolongs the soak",
        "soak",
        "            were_unready, unready = unready, set()\n",
        "            were_unready = unready\n",
    ),
    # Signals
    Mutation(
        "signals: the first one stops waiting",
        "interrupting",
        "        return len(self.received) > 1\n",
        "        return len(self.received) > 0\n",
    ),
    Mutation(
        "signals: the second one is ignored",
        "interrupting",
        "        return len(self.received) > 1\n",
        "        return False\n",
    ),
    Mutation(
        "signals: Ctrl-C reaches kubectl",
        "interrupting",
        "start_new_session=True,",
        "start_new_session=False,",
    ),
    # Eviction
    Mutation(
        "evict: the UID is no precondition",
        "evicting_one_at_a_time",
        '            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},\n',
        "",
    ),
    Mutation(
        "evict: ready Pods first",
        "evicting_one_at_a_time",
        "return is_ready(pod), number if is_upwards else -number, name_of(pod)",
        "return not is_ready(pod), number if is_upwards else -number, name_of(pod)",
    ),
    Mutation(
        "evict: the replacement need not be ready",
        "evicting evicting_one_at_a_time",
        '        return f"waiting for {waiting[0]}" if waiting else ""\n\n    def give_up',
        '        return ""\n\n    def give_up',
    ),
    Mutation(
        "evict: a budget that allows nothing is a failure",
        "evicting_answers",
        "            if error.status == 429:\n                cause",
        "            if error.status == 0:\n                cause",
    ),
    Mutation(
        "evict: a pending template is rolled out",
        "evicting_pending",
        'if is_pending and workload.method is Method.EVICT else ""',
        'if False else ""',
    ),
    Mutation(
        "evict: a spec that was changed is taken for the Pods' own",
        "evicting_pending",
        'is_pending = dig(obj, "metadata.generation") != 1',
        "is_pending = False",
    ),
    Mutation(
        "evict: the revisions in the status are compared",
        "evicting_pending",
        "is_pending = updated < live or not is_observed(obj)",
        'is_pending = dig(obj, "status.currentRevision") != dig(obj, "status.updateRevision")',
    ),
    Mutation(
        "evict: a signal does not stop between two Pods",
        "evicting_stops",
        "        if self.signals.reason_to_stop():\n            raise UnsuccessfulError(",
        "        if False:\n            raise UnsuccessfulError(",
    ),
    Mutation(
        "evict: one that took place despite its answer is not waited for",
        "evicting_answers",
        "                if self.cluster.pod(pod):  # else it was evicted all the same\n",
        "                if True:\n",
    ),
    # In place
    Mutation(
        "in place: the old image is not restored",
        "in_place image_changes",
        "            self.cluster.change_images(pod, old)\n",
        "            pass\n",
    ),
    Mutation(
        "in place: a ready Pod does not wait for the others",
        "in_place image_changes",
        "        return super().obstacle(pod)\n",
        '        return ""\n',
    ),
    Mutation(
        "in place: a container need not be restarted",
        "image_changes",
        '        and status.get("containerID") != old.get(status["name"])\n',
        "",
    ),
    Mutation(
        "in place: other differences are ignored",
        "in_place",
        'difference.path[1:] == ("image",) and today[difference.path[0]]["position"] != INIT',
        "True",
    ),
    # Secrets
    Mutation(
        "secrets: values of settings are shown",
        "secrets",
        "        return REDACTED\n    if not isinstance",
        "        return value\n    if not isinstance",
    ),
    # Exit
    Mutation(
        "exit: the last worker frees the connections",
        "exiting",
        "        KEPT.append(cluster)\n",
        "",
    ),
    Mutation(
        "exit codes: a failed rollout is a success",
        "rolling_out",
        "if result.is_failure or result.stop_reason:",
        "if result.stop_reason:",
    ),
    Mutation(
        "exit codes: what was unhealthy before is a failure",
        "exit_codes failure_limits",
        "if result.is_failure or result.stop_reason:",
        "if outcome in FAILURES or result.stop_reason:",
    ),
    Mutation(
        "exit codes: drift is a success for an audit",
        "fail_on_drift",
        '"not up to date": left * self.options.fail_on_drift,',
        '"not up to date": left * (not self.options.fail_on_drift),',
    ),
    # Who, why, what
    Mutation(
        "annotations: nobody says who it was",
        "who_and_why",
        '"by": self.cluster.connection.user,',
        '"by": "",',
    ),
    Mutation(
        "annotations: the reason has values",
        "who_and_why",
        "    parts = [*dict.fromkeys(images), *[count_of(others, more)] * bool(others)]\n",
        "    parts = list(map(difference_text, workload.differences))\n",
    ),
    Mutation(
        "Events: they are recorded without the option",
        "who_and_why",
        "if self.options.record_events and workload.is_begun and",
        "if workload.is_begun and",
    ),
    Mutation(
        "Events: of what was skipped, too",
        "who_and_why",
        "if self.options.record_events and workload.is_begun and",
        "if self.options.record_events and",
    ),
    Mutation(
        "downtime: --skip-downtime skips nothing",
        "downtime",
        "is_skipped = options.skip_downtime and may_all_be_away(workload, options)",
        "is_skipped = False",
    ),
    # Plan files
    Mutation(
        "--plan: a file without records selects everything",
        "plan_file",
        "if options.plan is not None and ref not in options.plan:",
        "if options.plan and ref not in options.plan:",
    ),
    Mutation(
        "--plan: another object is rolled out",
        "plan_file",
        'is_same = not planned or planned.uid == dig(workload.obj, "metadata.uid")',
        "is_same = True",
    ),
    Mutation(
        "--plan: another sidecar is rolled out",
        "plan_file",
        'is_same = not planned or planned.revision in ("", revision_of(workload))',
        "is_same = True",
    ),
    Mutation(
        "--plan: what is rejected by now needs no rollout",
        "plan_file",
        "elif ref not in known and having[ref] in NEED_NO_ROLLOUT:",
        "elif ref not in known:",
    ),
    Mutation(
        "--plan: the order is that of a plan without it",
        "plan_file",
        "    planned.sort(key=lambda workload: places.get(workload.ref, 0))\n",
        "",
    ),
    Mutation(
        "--plan: the cutoff is now",
        "plan_file",
        "return self.plan[ref].cutoff if self.plan and ref in self.plan else self.cutoff",
        "return self.cutoff",
    ),
    Mutation(
        "totals: Pods of up-to-date workloads have no sidecar in their template",
        "census",
        "workload.in_template = share(frozenset(map(as_sidecar, found_there)))",
        "workload.in_template = frozenset()",
    ),
    # Errors before the plan
    Mutation(
        "errors: a token of a credential plugin is shown",
        "starting",
        "        hint = re.sub(OPAQUE_TOKEN, REDACTED, hint)\n",
        "",
    ),
    Mutation(
        "errors: what the plugin said is not told",
        "starting",
        "said = lines[: texts.index(text)] if text else []",
        "said: list[str] = []",
    ),
    Mutation(
        "errors: a kubectl that cannot wait for a time is found after the first patch",
        "starting",
        'if "--timeout" not in help:',
        'if "Usage" not in help:',
    ),
    Mutation(
        "errors: the skew of kubectl is not told",
        "starting",
        "abs(int(versions[0][1]) - int(versions[1][1])) > 1:",
        "abs(int(versions[0][1]) - int(versions[1][1])) > 9:",
    ),
    Mutation(
        "errors: a name that does not exist is no failure",
        "named_workloads",
        "    return sum(found.values())\n",
        "    return 0\n",
    ),
    # The census
    Mutation(
        "census: an audit passes with Pods that were not checked",
        "census",
        "if left and left not in NOT_AUDITED:",
        'if left and left not in (*NOT_AUDITED, "static Pod"):',
    ),
    Mutation(
        "census: it is not taken again after a run",
        "census",
        "            count_again(cluster, report, signals)\n",
        "",
    ),
    Mutation(
        "census: other kinds are not compared",
        "census",
        "rules = OWNER_RULES if options.only_drifted else (*OWNER_RULES, kind_not_selected)",
        "rules = (*OWNER_RULES, kind_not_selected)",
    ),
    # What is seen
    Mutation(
        "verified: what could not be verified is a success",
        "verified_outcomes",
        "return Result(workload, Outcome.INCOMPLETE, message), []",
        "return Result(workload, Outcome.SUCCEEDED, message), []",
    ),
    Mutation(
        "verified: missing Pods are no problem",
        "verified_outcomes",
        '        "missing": (snapshot.missing, ""),\n',
        "",
    ),
    Mutation(
        "verified: unready Pods are no problem",
        "verified_outcomes",
        '        "not ready": (len(unready), pod_problem(unready[0]) if unready else ""),\n',
        "",
    ),
    Mutation(
        "verified: Pods that an autoscaler adds must be ready",
        "verified_outcomes",
        "judged = [pod for pod in snapshot.pods if created_at(pod) <= since]",
        "judged = snapshot.pods",
    ),
    Mutation(
        "verified: --allow-removal allows every removal",
        "verified_outcomes",
        "names, removed if options.allow_removal",
        "names, wanted if options.allow_removal",
    ),
    # Pods that lack the sidecar beside Pods that have it
    Mutation(
        "lacking: the cutoff excludes them",
        "half_damaged",
        "            pod.name in workload.lacking\n            or (",
        "            pod.name in workload.lacking\n            and (",
    ),
    Mutation(
        "lacking: a dry run without the sidecar is enough",
        "half_damaged",
        "        if error or names - unpacked(workload.view).keys():\n",
        "        if error:\n",
    ),
    # No harm
    Mutation(
        "harm: a degraded StatefulSet is restarted",
        "degraded",
        "if is_degraded(workload) and workload.method is Method.RESTART:",
        "if False:",
    ),
    Mutation(
        "harm: an incomplete rollout is restarted",
        "concurrent_runs",
        "    incomplete_rollout,\n",
        "",
    ),
    Mutation(
        "harm: a rollout that is stuck because of the sidecar is left alone",
        "concurrent_runs",
        "    is_repair = any(pod.stuck or (pod.name in lost and not pod.is_ready) for pod in workload.pods)\n",
        "    is_repair = False\n",
    ),
    # Clocks, credentials and waits
    Mutation(
        "clocks: the local clock dates the patch",
        "verification",
        '        if entry.get("manager") == FIELD_MANAGER and entry.get("time")\n',
        "        if False\n",
    ),
    Mutation(
        "clocks: that of the API server does not count",
        "requests selecting",
        "if self.clock else time.time()",
        "if False else time.time()",
    ),
    Mutation(
        "clocks: a token is kept for a day",
        "credentials",
        "                self.valid_until = time.monotonic() + 30\n",
        "                self.valid_until = time.monotonic() + 86_400\n",
    ),
    Mutation(
        "evict: the wait for a budget counts against the timeout",
        "image_changes",
        "        self.wait_for_batch()\n",
        "        self.wait_for_batch()\n        if time.monotonic() > deadline:\n            self.give_up('')\n",
    ),
    Mutation(
        "selection: scaled to zero counts as without Pods",
        "without_pods",
        "desired > current == 0",
        "current == 0",
    ),
    # Images that cannot be pulled, and rollouts that are not complete
    Mutation(
        "in place: the next workload gets an image that cannot be pulled",
        "in_place",
        "                    self.rollout.not_pulled.add((self.workload.ref.namespace, image))\n",
        "                    pass\n",
    ),
    Mutation(
        "exit codes: an own rollout that is not complete is a success",
        "concurrent_runs",
        "reason = why_incomplete(workload) if workload.oldest_pod",
        "reason = '' if workload.oldest_pod",
    ),
    Mutation(
        "exit codes: an own rollout that its sidecar blocks is a success",
        "concurrent_runs",
        "reason = why_incomplete(workload) if workload.oldest_pod",
        "reason = incomplete_rollout(workload, options) if workload.oldest_pod",
    ),
    Mutation(
        "reruns: a sidecar that got stuck after the cutoff is not repaired",
        "concurrent_runs",
        "is_repair = any(pod.stuck or",
        "is_repair = any(pod.stuck and pod.created < options.cutoff or",
    ),
    Mutation(
        "soak: Pods that came meanwhile are not verified",
        "soak",
        "        result, _ = self.judge(workload, attempt, tell, cause, since)\n",
        "",
    ),
    # Injectors that never give the same twice
    Mutation(
        "changing values: any change is ignored",
        "changing_values",
        "        if not {path, path[:1]} & always or not CONSTANT",
        "        if not CONSTANT",
    ),
    Mutation(
        "changing values: changing images are ignored",
        "changing_values",
        "& always or not CONSTANT.isdisjoint(path[1:2])\n",
        "& always\n",
    ),
    Mutation(
        "exit codes: that of the last signal",
        "interrupting",
        "return 128 + self.received[0] if self.received else 0",
        "return 128 + self.received[-1] if self.received else 0",
    ),
    Mutation(
        "exit codes: a run that cannot start exits with 1",
        "starting",
        '        print_error("%s (nothing was changed)", error)\n        return 3\n',
        '        print_error("%s (nothing was changed)", error)\n        return 1\n',
    ),
    # Names that lead elsewhere, and protections
    Mutation(
        "harm: any name in an owner reference is a path",
        "owner_references",
        '    if ref.name in (".", "..") or re.search("[/%]", ref.name):\n        return ""\n',
        "",
    ),
    Mutation(
        "harm: paths are not quoted",
        "owner_references",
        "configuration.host + urllib.parse.quote(path)",
        "configuration.host + path",
    ),
    Mutation(
        "harm: a typo in an excluded namespace is a warning",
        "mistyped_names",
        "if options.confirm and is_exact and meant and is_absent(cluster, pattern):",
        "if False:",
    ),
    Mutation(
        "harm: a namespace that exists is a typo",
        "mistyped_names",
        "and meant and is_absent(cluster, pattern):",
        "and meant:",
    ),
    Mutation(
        "harm: operators of a shell are words of a gate",
        "gate",
        '    if any(re.fullmatch("[&|;<>]+|.*;", word) for word in words):',
        "    if False:",
    ),
    Mutation(
        "harm: containers of a SidecarSet are changed in place",
        "in_place_managed",
        "isinstance(listed, list) and any(name in listed for name in names)",
        "False",
    ),
    Mutation(
        "harm: only the example Pod is looked at before a change in place",
        "in_place_managed",
        "        reason = why_not_in_place(pod, [*images])\n",
        '        reason = ""\n',
    ),
    Mutation(
        "evict: a custom resource needs as many Pods as it has",
        "evicting_meanwhile",
        "            self.retry_after = 0.0\n",
        "            self.retry_after = 0.0\n            self.workload.total_pods = len(self.pods)\n",
    ),
    Mutation(
        "evict: one Pod more than --max-unavailable",
        "max_unavailable",
        "        if len(unavailable) < self.limit:\n",
        "        if len(unavailable) <= self.limit:\n",
    ),
    Mutation(
        "evict: what was unavailable from the start is waited for",
        "max_unavailable",
        "        if len(stays) < self.limit:\n",
        "        if True:\n",
    ),
    Mutation(
        "evict: an OrderedReady StatefulSet loses several Pods at once",
        "max_unavailable",
        "return 1 if self.is_ordered else evicted_at_once(method, self.wanted, self.options)",
        "return evicted_at_once(method, self.wanted, self.options)",
    ),
    Mutation(
        "evict: what is in the batch is available",
        "max_unavailable",
        "if is_terminating(pod) or uid_of(pod) in map(uid_of, self.batch):",
        "if is_terminating(pod):",
    ),
    Mutation(
        "downtime: maxUnavailable is rounded up",
        "downtime",
        'away = int(away.rstrip("%")) * wanted // 100',
        'away = -(-int(away.rstrip("%")) * wanted // 100)',
    ),
    Mutation(
        "downtime: both may be 0",
        "downtime",
        "return max(away, int(not has_surge)) >= wanted",
        "return away >= wanted",
    ),
    Mutation(
        "order: downtime says nothing",
        "order downtime",
        "is_late = workload.downtime and workload.state is State.SERVING",
        "is_late = False",
    ),
    Mutation(
        "rules: what is not ready without its sidecar is left",
        "lost_sidecars",
        "pod.stuck or (pod.name in lost and not pod.is_ready) for",
        "pod.stuck for",
    ),
    Mutation(
        "rules: whatever is not ready is repaired",
        "lost_sidecars",
        "pod.stuck or (pod.name in lost and not pod.is_ready) for",
        "not pod.is_ready for",
    ),
    # The command that replaces Pods after a lost sidecar
    Mutation(
        "recovery: a restart waits for a broken Pod",
        "lost_sidecars",
        '        if any(ref.kind == "StatefulSet" for ref in lost):',
        "        if False:",
    ),
    Mutation(
        "recovery: TYPE/NAMEs and namespaces of the run are kept",
        "lost_sidecars",
        'dropped += ["", "--include-namespace", "--all-namespaces", "--max-rollouts", "--in-place"]',
        "pass",
    ),
    Mutation(
        "recovery: the cutoff is kept",
        "lost_sidecars",
        'dropped += ["--only-started-before", "--skip-unhealthy", "--only-drifted"]',
        "pass",
    ),
    Mutation(
        "recovery: Pods without the sidecar are not selected",
        "lost_sidecars",
        '"--only-drifted", "--include-missing", *dict',
        "*dict",
    ),
    Mutation(
        "recovery: one command for all namespaces",
        "lost_sidecars",
        'settings = {"--include-namespace": lost[0].namespace, "--context": context}',
        'settings = {"--context": context}',
    ),
    # Writes without an answer
    Mutation(
        "patch: a repetition is not recognized",
        "lost_answers",
        "            if stamp in template_annotations(obj).values():\n                return patched_at(obj, stamp)\n            spec",
        "            spec",
    ),
    Mutation(
        "patch: one that was answered with 500 is not recognized",
        "lost_answers",
        "                if error.status in (0, 404) or error.status >= 500:",
        "                if error.status in (0, 404):",
    ),
    Mutation(
        "patch: others start after one without an answer",
        "lost_answers",
        "raise UnsuccessfulError(Outcome.FAILED, text, str(error)) from error",
        "raise UnsuccessfulError(Outcome.FAILED, text) from error",
    ),
    Mutation(
        "patch: conflicts do not pause",
        "lost_answers",
        "                    self.signals.wait(min(pause, 1.0), self.signals.reason_to_stop)\n",
        "",
    ),
    Mutation(
        "verification: a recreated workload is the same",
        "lost_answers",
        '            if uid and dig(workload.obj, "metadata.uid") not in (uid, {}):',
        "            if False:",
    ),
    Mutation(
        "verification: another container of a pattern is as good",
        "several_injectors lost_sidecars",
        "    return sorted(wanted.difference(names, removed",
        "    wanted = {n for n in wanted if not any(fnmatch.filter(names, p) for p in options.sidecars if fnmatch.fnmatchcase(n, p))}\n    return sorted(wanted.difference(names, removed",
    ),
    # Counts
    Mutation(
        "numbers: Pods that drift after the plan are up to date",
        "numbers",
        "if workload.verdict in (Verdict.UP_TO_DATE, Verdict.DRIFTED, Verdict.MISSING):",
        "if workload.verdict in (Verdict.DRIFTED, Verdict.MISSING):",
    ),
    Mutation(
        "numbers: what a success leaves is not said",
        "numbers census",
        'workload.left = "drifted" if outcome in SUCCESSES else outcome.value',
        'workload.left = "excluded" if outcome in SUCCESSES else outcome.value',
    ),
    Mutation(
        "numbers: surge Pods are counted",
        "numbers",
        "counted = old[: max(wanted - kept - len(new), 0)]",
        "counted = old",
    ),
    Mutation(
        "numbers: what was begun counts as planned",
        "numbers lost_answers",
        "        if result.counts or not workload.is_begun:",
        "        if True:",
    ),
    Mutation(
        "numbers: Pods that the plan does not replace are in the plan",
        "numbers",
        '"drifted" if left == "in the plan" and name not in replaced else left, names',
        "left, names",
    ),
    Mutation(
        "numbers: all containers of a drifted Pod are in the plan",
        "several_injectors",
        'reason = left if sidecar.name in names and not is_fixed else ""',
        'reason = left if not is_fixed else ""',
    ),
    Mutation(
        "numbers: Pods that the options do not select are left",
        "numbers census",
        "if left and left not in NOT_AUDITED:",
        "if left:",
    ),
    Mutation(
        "numbers: --include-annotation does not exclude from the count",
        "census exit_codes",
        '    not_included: "excluded",\n',
        "",
    ),
    Mutation(
        "exit codes: a Pod that runs to completion fails an audit",
        "census",
        "        if pod.ends and left not in NOT_AUDITED:",
        "        if False:",
    ),
    Mutation(
        "exit codes: an earlier rollout is not looked at again",
        "earlier_rollouts",
        "    return [*owners.values()], [skip for skip in unfinished if skip.reason]",
        "    return [*owners.values()], [Skip(w.ref, why) for w, why in plan.unfinished.items()]",
    ),
    Mutation(
        "exit codes: a new Pod that does not run is forgotten",
        "earlier_rollouts",
        "    if reason or not unready or last < options.cutoff",
        "    if True or last < options.cutoff",
    ),
    Mutation(
        "exit codes: a rollout of before the cutoff counts",
        "earlier_rollouts",
        "or last < options.cutoff_of(workload.ref).isoformat()[:19]:",
        "or not last:",
    ),
    # Answers of an injector
    Mutation(
        "changing values: what one tells is true of all",
        "answers_by_pod changing_values",
        "for group in groups if group[0].ignored for workload in group[1:]",
        "for group in groups if False for workload in group[1:]",
    ),
    Mutation(
        "changing values: the same Pod is the example twice",
        "answers_by_pod",
        "    error = ask_today(cluster, options, again, other)\n",
        "    error = ask_today(cluster, options, again)\n",
    ),
    Mutation(
        "changing values: an error of the second dry run is ignored",
        "answers_by_pod",
        "    error = ask_today(cluster, options, again, other)\n    if error:\n        return error\n",
        "    ask_today(cluster, options, again, other)\n",
    ),
    Mutation(
        "changing values: a path that differs only in the second answer is ignored",
        "changing_values",
        "    always &= {difference.path for difference in workload.differences}\n",
        "",
    ),
    # Others
    Mutation(
        "selection: a namespace that terminates does not matter",
        "opt_out changed_meanwhile verdicts check_before_rollout",
        'is_terminating = deleted or "NamespaceTerminating" in workload.causes',
        "is_terminating = False",
    ),
    Mutation(
        "selection: an owner that may not be read is an error",
        "evicting_permissions permissions census",
        "        absent = (404,) if is_workload(ref) else (403, 404)\n",
        "        absent = (404,)\n",
    ),
    Mutation(
        "half damaged: Pods that lack the sidecar are not replaced whatever their age",
        "half_damaged",
        "            pod.name in workload.lacking\n            or (pod.created",
        "            False\n            or (pod.created",
    ),
    Mutation(
        "half damaged: what new Pods would not get is lacking",
        "half_damaged",
        "        if error or names - unpacked(workload.view).keys():",
        "        if error:",
    ),
    Mutation(
        "half damaged: Pods of custom resources lack it, too",
        "half_damaged",
        "        and all(map(has_template, workload.owners))\n",
        "",
    ),
    Mutation(
        "verification: a custom resource may have fewer Pods in the end",
        "scheduler",
        "        wanted = workload.total_pods  # of an owner that states no number, as before\n        if has_template(workload.ref):",
        "        wanted = 0\n        if has_template(workload.ref):",
    ),
    Mutation(
        "in place: the Pod need not be ready",
        "image_changes",
        "    return (is_ready(pod) or not is_ready(before)) and restarted",
        "    return restarted",
    ),
    Mutation(
        "signals: workers may not report after the second signal",
        "scheduler interrupting in_place evicting_stops",
        "    GRACE = 2.0",
        "    GRACE = 0.0",
    ),
    Mutation(
        "signals: a recheck that is abandoned is interrupted",
        "scheduler interrupting",
        "        if task.earlier:\n            return task.earlier\n",
        "",
    ),
    Mutation(
        "ask: what ended while a question was open is handled later",
        "confirm_each scheduler",
        "                while not self.events.empty():  # what ended meanwhile\n                    self.handle_event(POLL)\n",
        "",
    ),
    Mutation(
        "limits: rechecks count as failures again",
        "scheduler failure_limits",
        "        if not task.earlier:\n            self.count(news)\n",
        "        self.count(news)\n",
    ),
    Mutation(
        "waiting: a kubectl that keeps failing is run forever",
        "scheduler",
        "            if attempts > RETRIES or is_paused(workload.obj):",
        "            if is_paused(workload.obj):",
    ),
    Mutation(
        "requests: they have no deadline",
        "requests",
        "or time.monotonic() + pause >= deadline:",
        "or False:",
    ),
    Mutation(
        "soak: an interrupted one is a success",
        "soak",
        "            outcome = Outcome.INCOMPLETE\n            duration",
        "            outcome = Outcome.SUCCEEDED\n            duration",
    ),
    Mutation(
        "soak: it hides a lost sidecar",
        "soak",
        "        if result.outcome not in (Outcome.SUCCEEDED, Outcome.INCOMPLETE):\n            outcome = result.outcome\n",
        "",
    ),
    Mutation(
        "soak: it goes on as long as a Pod is unready",
        "soak",
        "        while left > 0:\n",
        "        while left > 0 or unready:\n",
    ),
)


def mutated(text: str, mutation: Mutation) -> str:
    """Return the script with a mutation. ValueError if it does not fit the script."""
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.name}: its text occurs {count} times in {SCRIPT}, not once")
    return text.replace(mutation.old, mutation.new)


def run_tests(folder: Path, names: str, *more: str) -> bool:
    """Return whether the tests pass in a folder."""
    found = [path for name in names.split() for path in TOP.glob(f"tests/*/test_{name}.py")]
    files = [str(path.relative_to(TOP)) for path in found]
    options = ["-q", "-x", "-n", "2", "-p", "no:cacheprovider", "--timeout=60", *more]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if ended.returncode and " failed" not in ended.stdout:
        raise RuntimeError(f"pytest {' '.join(files)}: {ended.stdout}{ended.stderr}")
    return ended.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("word", nargs="?", default="", help="only mutations with this in the name")
    parser.add_argument("--control-plane", action="store_true", help="on a real control plane")
    parser.add_argument("--list", action="store_true", help="show the names and the tests")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.word in mutation.name]
    if options.list:
        print("\n".join(f"{mutation.name}  ({mutation.tests})" for mutation in chosen))
        return 0
    text = (TOP / SCRIPT).read_text()
    try:
        texts = [mutated(text, mutation) for mutation in chosen]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    where = ["--control-plane"] if options.control_plane else []
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name) / "copy"
        ignored = shutil.ignore_patterns(".venv", ".git", ".hypothesis", "__pycache__")
        shutil.copytree(TOP, folder, ignore=ignored)
        for mutation, changed in zip(chosen, texts, strict=True):
            (folder / SCRIPT).write_text(changed)
            began = time.monotonic()
            has_survived = run_tests(folder, mutation.tests, *where)
            survivors += [mutation.name] if has_survived else []
            word = "SURVIVED" if has_survived else "killed  "
            print(f"{word}  {time.monotonic() - began:4.0f}s  {mutation.name}", flush=True)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutations killed.")
    print("".join(f"  survived: {name}\n" for name in survivors), end="")
    return int(bool(survivors))


if __name__ == "__main__":
    raise SystemExit(main())
