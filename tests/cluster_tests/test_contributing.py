"""CONTRIBUTING names what exists, and what its table says is all that the script needs."""

from __future__ import annotations

import re
import subprocess

import pytest
from clusters.embedded.manifests import workload
from support import SCRIPT, TOP, Finished, command

TEXT = (TOP / ".github" / "CONTRIBUTING.md").read_text()
TABLE = TEXT.partition("## Where things go")[2].partition("##")[0]
NAMES = sorted(set(re.findall(r"`([A-Za-z_.]+)`", TABLE)))
SOURCES = [
    SCRIPT,
    TOP / "tests" / "output" / "records.py",
    *(TOP / "tests" / "histories").glob("*.py"),
]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_in_the_table_exists(name):
    if "/" in name or name.endswith((".yaml", ".py")):
        assert [*TOP.glob(f"**/{name}")]
    elif name != "apps":  # an API group
        part = name.rpartition(".")[2]
        pattern = rf"\b(class|def) {part}\b|^ *{part}\b.*=|^ +{part}: "
        found = [path for path in SOURCES if re.search(pattern, path.read_text(), re.MULTILINE)]
        assert found, name


# What a contributor writes, each before a line of the script: the places are those of the table
ADDED = {
    "an option": (
        '        Option(\n            "--skip-downtime"',
        '        Option("--skip-single", "Skip workloads with one Pod"),\n',
    ),
    "an option's field": ("    skip_downtime: bool\n", "    skip_single: bool\n"),
    "a reason to skip": (
        '@rule(answer="no_answer", place=4)\ndef rejected',
        """@rule()
def single_pod(draft: Replacement, options: Options) -> str:
    \"\"\"Has one Pod, with `--skip-single`.\"\"\"
    return "has one Pod" if options.skip_single and draft.total_pods == 1 else ""


""",
    ),
    "a field of the record `plan`": (
        "                downtime=workload.downtime,\n",
        "                is_single=workload.total_pods == 1,\n",
    ),
}


def test_the_script_needs_no_more_than_the_table_says(cluster, tmp_path):
    text = SCRIPT.read_text()
    for what, (place, line) in ADDED.items():
        assert what in TABLE or what == "an option's field"
        assert text.count(place) == 1, what
        text = text.replace(place, line + place)
    script = tmp_path / "with_additions.py"  # a name that coverage does not count
    script.write_text(text)
    cluster.create("shop", workload("Deployment", "one", replicas=1))
    cluster.create("shop", workload("Deployment", "two", replicas=2))
    cluster.settle()

    def run(*options: str) -> Finished:
        words, environment = command(cluster.kubeconfig, *options)
        words[1] = str(script)
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        return Finished(0, ended.stdout, ended.stderr)

    single = {r["name"]: r["is_single"] for r in run().of("plan")}
    assert single == {"one": True, "two": False}
    ended = run("--skip-single")
    assert [r["name"] for r in ended.of("plan")] == ["two"]
    assert [(r["name"], r["code"]) for r in ended.of("skip")] == [("one", "single_pod")]
    assert "Skip workloads with one Pod" in run("--help").stdout
