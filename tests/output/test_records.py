"""Fields of JSON records keep their names: the whole list, and the table of it in docs/."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import pod, pod_spec, workload
from records import RECORDS, table
from support import CONFIRM, DRIFTED, TOP, upgrade

SUBJECT = {"kind", "namespace", "name", "group"}


@pytest.fixture
def records(cluster, run) -> list[dict]:
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", pod("shell", pod_spec(), None))
    cluster.settle()
    upgrade(cluster)
    return run(cluster, DRIFTED, CONFIRM).records


def test_each_record_has_just_these_fields(records):
    assert {record["record"] for record in records} == RECORDS.keys()
    for record in records:
        subject = SUBJECT if record["record"] != "summary" else set()
        assert record.keys() == {"record", *subject, *RECORDS[record["record"]]}, record["record"]


def test_the_reference_has_them():
    lines = set((TOP / "docs" / "reference.md").read_text().splitlines())
    missing = [line for line in table() if line not in lines]
    assert not missing, (
        "replace the table of docs/reference.md by what tests/output/records.py prints"
    )
