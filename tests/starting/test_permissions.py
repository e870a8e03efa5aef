"""deploy/rbac.yaml: each role suffices for what it promises, and no rule is too much."""

from __future__ import annotations

import re

import pytest
from clusters.embedded import EmbeddedCluster
from clusters.embedded.manifests import pod_spec, replicated, service, workload
from support import BOTH, CONFIRM, DEPLOY, arguments, documents, restarted_by_us


def rules_of(*names: str, kind: str = "ClusterRole") -> list[dict]:
    files = [*documents("rbac.yaml"), *documents("team.yaml")]
    by_name = {d["metadata"]["name"]: d for d in files if d["kind"] == kind}
    return [rule for name in names for rule in by_name[name]["rules"]]


PLAN = ("sidecar-rollout-plan",)


ROLLOUT = (*PLAN, "sidecar-rollout")


DRIFT = (*ROLLOUT, "sidecar-rollout-drift")


QUESTION = (*DRIFT, "sidecar-rollout-question")


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("cronjob.yaml", DRIFT),
        ("audit.yaml", [role for role in DRIFT if role != "sidecar-rollout"]),
    ],
)
def test_the_service_accounts_are_bound_to_the_roles_they_need_and_nobody_else_to_any(name, roles):
    """An audit may restart nothing."""
    (job,) = documents(name)
    account = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = [d for d in documents("rbac.yaml") if d["kind"].endswith("Binding")]
    assert [
        d["roleRef"]["name"] for d in bindings if account in [s["name"] for s in d["subjects"]]
    ] == list(roles)
    assert {s["name"] for d in bindings for s in d["subjects"]} == {
        "sidecar-rollout",
        "sidecar-rollout-audit",
    }


def test_the_audits_roles_suffice_for_it(guarded, run):
    kubeconfig = guarded.kubeconfig_of("audit", rules_of(*PLAN, "sidecar-rollout-drift"))
    ended = run(kubeconfig, *arguments("audit.yaml"))
    assert ended.code == 1
    verdicts = sorted(r["verdict"] for r in ended.of("drift"))
    assert verdicts == ["drifted"] * 4


def test_each_rule_has_a_comment_on_why():
    text = (DEPLOY / "rbac.yaml").read_text() + (DEPLOY / "team.yaml").read_text()
    assert text.count("\n  - apiGroups") == len(re.findall(r"\n  # .*\n  - apiGroups", text))


@pytest.fixture
def guarded(tool, cluster):
    """A cluster with a bit of everything that a right is for."""
    volume = {"name": "config", "configMap": {"name": "config"}}
    secret = {"name": "certs", "secret": {"secretName": "certs"}}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("config", "certs")]
    cluster.injector.container = {
        "name": "istio-proxy",
        "image": "istio/proxyv2:1",
        "volumeMounts": mounts,
    }
    cluster.injector.also = {"volumes": [volume, secret]}
    cluster.create("shop", {"kind": "ConfigMap", "metadata": {"name": "config"}})
    cluster.create("shop", {"kind": "Secret", "metadata": {"name": "certs"}})
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        cluster.create("shop", workload(kind, kind.lower()))
    cluster.create("shop", service("deployment"))
    for name in ("member", "member-without-pods"):  # replicas: only a Service tells
        member = workload("StatefulSet", name)
        member["spec"]["template"]["metadata"]["labels"]["part-of"] = "store"
        if name != "member":
            member["spec"]["template"]["spec"]["serviceAccountName"] = "gone"
        cluster.create("shop", member)
    cluster.create("shop", service("store", **{"part-of": "store"}))
    spec = pod_spec(serviceAccountName="gone")
    cluster.create("shop", workload("StatefulSet", "broken", spec))
    cluster.wait_for(
        lambda: "updateRevision" in cluster.get("StatefulSet", "shop", "broken").get("status", {})
    )
    restarted_by_us(tool, cluster, "StatefulSet", "broken")
    cluster.wait_for(lambda: cluster.store.list("events", "shop"))
    cluster.wait_for(
        lambda: all(
            cluster.get(kind, "shop", kind.lower())["status"].get(count)
            for kind, count in (
                ("Deployment", "availableReplicas"),
                ("StatefulSet", "availableReplicas"),
                ("DaemonSet", "numberAvailable"),
            )
        )
    )
    cluster.wait_for(lambda: cluster.get("EndpointSlice", "shop", "deployment-slice")["endpoints"])
    cluster.injector.container["image"] = "istio/proxyv2:2"
    return cluster


OPT_OUT = "--exclude-annotation=example.com/restart=never"


def what_works(cluster: EmbeddedCluster, run, rules: list[dict], *only: str) -> dict[str, object]:
    """What a user with these rules gets done, by what was tried."""
    kubeconfig = cluster.kubeconfig_of("somebody", rules)
    plan = run(kubeconfig, *BOTH, OPT_OUT, *only)
    drift = run(kubeconfig, *BOTH, "--only-drifted", *only)
    question = run(kubeconfig, "--expect-image=*:2", *only)
    done = run(kubeconfig, *BOTH, CONFIRM, *only, KUBE_FEATURE_WatchListClient="false")
    return {
        "plan": sorted((r["name"], r["state"]) for r in plan.of("plan"))
        if plan.code == 0
        else plan.code,
        "broken": ": no Pods: " in plan.reasons.get("StatefulSet shop/broken", ""),
        "drift": sorted(r["verdict"] for r in drift.of("drift")) if drift.code == 0 else drift.code,
        "question": question.code,
        "rollout": done.summary["outcomes"] if done.code != 3 else 3,
    }


PLANNED = [("daemonset", "no_service"), ("deployment", "serving"), ("statefulset", "no_service")]


EVERYTHING = {
    "plan": PLANNED,
    "broken": True,
    "drift": ["drifted"] * 4,
    "question": 1,  # the answer is no
    "rollout": {"succeeded": 3},
}


def test_what_each_role_promises_works_and_no_more(guarded, run):
    found = what_works(guarded, run, rules_of(*PLAN))
    assert found == {"plan": PLANNED, "broken": True, "drift": 3, "question": 3, "rollout": 3}
    found = what_works(guarded, run, rules_of(*ROLLOUT))
    assert found == {
        "plan": PLANNED,
        "broken": True,
        "drift": 3,
        "question": 3,
        "rollout": {"succeeded": 3},
    }


def test_the_drift_role_may_do_all_but_ask(guarded, run):
    found = what_works(guarded, run, rules_of(*DRIFT))
    assert found == EVERYTHING | {"question": 3}


def test_the_role_for_questions_may_ask(guarded, run):
    assert what_works(guarded, run, rules_of(*QUESTION)) == EVERYTHING


VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def allowed(cluster: EmbeddedCluster, rules: list[dict]) -> set[str]:
    cluster.kubeconfig_of("somebody", rules)
    groups = {
        "": (
            "pods",
            "pods/exec",
            "pods/eviction",
            "replicationcontrollers",
            "secrets",
            "configmaps",
            "namespaces",
            "nodes",
            "services",
            "serviceaccounts",
            "events",
        ),
        "apps": (
            "deployments",
            "statefulsets",
            "daemonsets",
            "replicasets",
            "deployments/scale",
            "controllerrevisions",
        ),
        "batch": ("cronjobs", "jobs"),
        "discovery.k8s.io": ("endpointslices",),
        "rbac.authorization.k8s.io": ("clusterroles", "roles"),
    }
    return {
        f"{verb} {resource}"
        for group, resources in groups.items()
        for resource in resources
        for verb in VERBS
        if cluster.server.may("somebody", verb, group, resource, "shop")
    }


def test_everything_else_is_forbidden(cluster):
    workloads = ("deployments", "statefulsets", "daemonsets")
    plan = {
        "list pods",
        "get replicasets",
        "list endpointslices",
        "list services",
        "get namespaces",
    }
    plan |= {f"{verb} {resource}" for verb in ("get", "list") for resource in workloads}
    assert allowed(cluster, rules_of(*PLAN)) == plan
    rollout = plan | {f"{verb} {resource}" for verb in ("patch", "watch") for resource in workloads}
    rollout |= {"list events"}
    assert allowed(cluster, rules_of(*ROLLOUT)) == rollout
    drift = rollout | {"create pods", "get replicationcontrollers"}
    assert allowed(cluster, rules_of(*DRIFT)) == drift
    owners = ("replicasets", "replicationcontrollers", "controllerrevisions")
    ask = {f"list {r}" for r in ("cronjobs", "jobs", *owners)}
    assert allowed(cluster, rules_of("sidecar-rollout-question")) == ask
    team = allowed(cluster, rules_of("sidecar-rollout-team", kind="Role"))
    assert team == drift | ask
    evict = {"create pods/eviction"}
    assert allowed(cluster, rules_of("sidecar-rollout-evict")) == evict
    assert allowed(cluster, rules_of("sidecar-rollout-in-place")) == {"patch pods"}


# They name a reason, and are for kinds that are not selected; other tests miss them.
OPTIONAL = (("events", "list"), ("replicationcontrollers", "get"))
REQUIRED = [
    n
    for n, rule in enumerate(rules_of(*QUESTION))
    if (rule["resources"][0], rule["verbs"][0]) not in OPTIONAL
]


@pytest.mark.parametrize("number", REQUIRED)
def test_without_any_one_rule_something_does_not_work(guarded, run, number):
    rules = rules_of(*QUESTION)
    del rules[number]
    found = what_works(guarded, run, rules)
    assert found != EVERYTHING


def test_a_team_rolls_out_its_own_namespace_and_no_other(guarded, run):
    rules = [
        {**rule, "namespace": "shop"} for rule in rules_of("sidecar-rollout-team", kind="Role")
    ]
    kubeconfig = guarded.kubeconfig_of("team", rules)
    ended = run(kubeconfig, *BOTH, "--only-drifted", CONFIRM, "--include-namespace=shop", OPT_OUT)
    assert ended.summary["outcomes"] == {"succeeded": 3}
    assert run(kubeconfig, "--include-namespace=default").code == 3
    assert run(kubeconfig).code == 3


EVICT = (*DRIFT, "sidecar-rollout-evict")


@pytest.fixture
def without_rollouts(cluster):
    """Owners of each sort that has no rollout."""
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("DaemonSet", "on-delete", **on_delete))
    for kind in ("ReplicaSet", "ReplicationController"):
        cluster.create("shop", replicated(kind, kind.lower()))
    cluster.settle()
    return cluster


def test_the_evict_role_suffices_for_evictions(without_rollouts, run):
    kubeconfig = without_rollouts.kubeconfig_of("somebody", rules_of(*EVICT))
    ended = run(kubeconfig, *BOTH, CONFIRM, "--evict")
    assert ended.summary["outcomes"] == {"succeeded": 3}


@pytest.mark.parametrize("number", range(len(rules_of("sidecar-rollout-evict"))))
def test_without_any_rule_of_the_evict_role_nothing_is_evicted(without_rollouts, run, number):
    rules = rules_of("sidecar-rollout-evict")
    del rules[number]
    kubeconfig = without_rollouts.kubeconfig_of("somebody", rules_of(*DRIFT) + rules)
    assert run(kubeconfig, *BOTH, CONFIRM, "--evict").code == 3


def test_the_role_for_changes_in_place_suffices(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.26.3"
    given = ("--only-drifted", "--in-place", CONFIRM)
    assert run(cluster.kubeconfig_of("a", rules_of(*DRIFT)), *given).code == 3
    kubeconfig = cluster.kubeconfig_of("b", rules_of(*DRIFT, "sidecar-rollout-in-place"))
    ended = run(kubeconfig, *given)
    assert (ended.of("plan")[0]["method"], ended.summary["outcomes"]) == (
        "in_place",
        {"succeeded": 1},
    )
