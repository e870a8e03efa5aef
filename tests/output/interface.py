"""The names that scripts may rely on, as the tool prints and parses them: tests/output/interface.json.

PYTHONPATH=tests .venv/bin/python tests/output/interface.py >tests/output/interface.json

Options and exit codes are those of --help, fields of records and annotations those of runs, and what a plan file needs is
what --plan refuses to miss. Values of fields are those that docs/reference.md promises; a run must print no others.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clusters.embedded import EmbeddedCluster
from clusters.embedded.manifests import pod, workload
from support import AT_ONCE, CONFIRM, DRIFTED, SCRIPT, TOP, Finished, Running, command, upgrade

REFERENCE = (TOP / "docs" / "reference.md").read_text()
# Fields that are maps: their keys are codes, labels or images
MAPS = {"labels", "outcomes", "verdicts", "left", "not_up_to_date", "failed", "others", "not_asked"}


def run(kubeconfig: str, *options: str) -> Finished:
    words, environment = command(kubeconfig, *options)
    return Running([words[0], AT_ONCE, *words[2:]], environment).finish()


def options_and_exit_codes() -> tuple[dict[str, str], list[int]]:
    """Each option with its value, as --help names it, and the exit codes there."""
    words = [sys.executable, str(SCRIPT), "--help"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    text, _, codes = shown.partition("Exit codes:")
    found = {}
    for line in re.findall(r"(?m)^  (TYPE/NAME|--?[a-zA-Z-]+.*?)(?:  .*)?$", text):
        value = "".join(re.findall(r" ([A-Z][^ ,]*)$", line))  # Python 3.13 shows it only once
        found |= dict.fromkeys(re.findall(r"^TYPE/NAME|(?<!\S)--?[a-zA-Z-]+", line), value)
    return found, sorted(map(int, re.findall(r"(?m)^  \d(?=  )|\b\d{3}\b", codes)))


def paths_in(value: object, path: str = "") -> Iterator[str]:
    """The fields inside of a record, such as `pods.old` and `sidecars[].name`."""
    if isinstance(value, list):
        for one in value or [""]:
            yield from paths_in(one, f"{path}[]")
    elif isinstance(value, dict) and path.rpartition(".")[2] not in MAPS:
        for key, inner in value.items():
            yield from paths_in(inner, f"{path}.{key}" if path else key)
    else:
        yield path


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def between(start: str, end: str) -> str:
    return REFERENCE.partition(start)[2].partition(end)[0]


def values() -> dict[str, list[str]]:
    """What the reference says that a field may have: in its row, or in a list."""
    found = {
        field: names_in(" ".join(re.findall(rf"(?m)^\|[^|]*\| `{field}` \|(.*)", REFERENCE)))
        for field in ("verdict", "method", "state", "failed", "code")
    }
    found["outcome"] = names_in(between("- **Outcomes**", "- **Exit codes**"))
    found["code"] |= names_in("".join(re.findall(r"(?m)^  \| `\w+`", REFERENCE)))
    found["code"] |= names_in(between("- **Codes**", "| code |")) - {"code", "left", "leftovers"}
    found["method"].discard("plan")  # as in `plan`
    return {field: sorted(names) for field, names in sorted(found.items())}


def interface() -> dict:
    """All names, by what they are of."""
    options, exit_codes = options_and_exit_codes()
    records: list[dict] = []
    log: list[dict] = []
    with EmbeddedCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.namespace("shop", inject=True)
        for name in ("api", "web"):
            cluster.create("shop", workload("Deployment", name, replicas=2))
        cluster.create("shop", workload("StatefulSet", "db"))
        cluster.create("shop", pod("bare"))
        cluster.create("shop", {"kind": "Prometheus", "metadata": {"name": "main"}, "spec": {}})
        cluster.create("shop", workload("Deployment", "owned"))
        cluster.settle()
        kept = {"keeps": "kubectl.kubernetes.io/"}
        cluster.operate("Deployment", "shop", "owned", ("Prometheus", "main"), **kept)
        upgrade(cluster)

        def said(*more: str) -> list[dict]:
            ended = run(cluster.kubeconfig, *more)
            log.extend(map(json.loads, ended.stderr.splitlines()))
            records.extend(ended.records)
            return ended.records

        dry = said(DRIFTED, "-L=app", "deployment/*")
        said("--expect-image=*:9", "-L=app")
        said("--include-namespace=nowhere")
        (planned, *_) = [record for record in dry if record["record"] == "plan"]
        needed = []
        for field in planned:
            path = Path(folder, "plan.jsonl")
            path.write_text(json.dumps({k: v for k, v in planned.items() if k != field}))
            ended = run(cluster.kubeconfig, DRIFTED, f"--plan={path}")
            needed += [field] * (ended.code == 2 or not ended.of("plan"))
        said(DRIFTED, CONFIRM, "-L=app")
        annotations: set[str] = set()
        for name in ("web", "owned"):
            metadata = cluster.get("Deployment", "shop", name)["spec"]["template"]["metadata"]
            annotations |= {
                key.replace("sidecarRollout", "PREFIX") for key in metadata["annotations"]
            }
    fields: dict[str, set[str]] = {}
    for record in records:
        fields.setdefault(record["record"], set()).update(paths_in(record))
    for line in log:
        fields.setdefault("log", set()).update(paths_in(line))
    found = values()
    for record in records:
        for field in found.keys() & record.keys():
            printed = record[field]
            given = printed.keys() if isinstance(printed, dict) else {printed} - {""}
            assert given <= set(found[field]), f"{field}: {given} is not in docs/reference.md"
    return {
        "annotations": sorted(annotations),
        "exit codes": exit_codes,
        "options": dict(sorted(options.items())),
        "fields that --plan needs": sorted(needed),
        "fields": {record: sorted(paths) for record, paths in sorted(fields.items())},
        "values": found,
    }


if __name__ == "__main__":
    print(json.dumps(interface(), indent=2))
