"""Nothing is taken while another replica of the same thing lacks Pods."""

from __future__ import annotations

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import container, pod_spec, service, workload
from support import CONFIRM, DRIFTED, NEW, make_old, messages, upgrade

GO = [CONFIRM, DRIFTED, "--include-statefulset", "--timeout=4s"]
CODE = "replica_not_ready"
STORES = ("store-1", "store-2", "store-3")


def member(name: str, kind: str = "StatefulSet", spec: dict | None = None, **fields) -> dict:
    found = workload(kind, name, spec, **fields)
    found["spec"]["template"]["metadata"]["labels"]["part-of"] = "store"
    return found


def store(cluster, *names: str, kind: str = "StatefulSet", **fields) -> None:
    """A database of which each member is a workload, behind one Service."""
    for name in names:
        cluster.create("shop", member(name, kind, **fields))
    cluster.create("shop", service("store", **{"part-of": "store"}))
    make_old(cluster)
    upgrade(cluster)


def never_ready(cluster, *names: str) -> None:
    """From now on, Pods of these workloads start and are never ready."""
    start = cluster.kubelet.start

    def start_pod(namespace: str, name: str) -> None:
        start(namespace, name)
        with cluster.store.lock:
            if name.startswith(names) and cluster.store.get("pods", namespace, name):
                cluster.kubelet.set_ready(namespace, name, False)

    cluster.kubelet.start = start_pod


def make_unready(cluster, name: str) -> None:
    for found in cluster.pods("shop", name):
        cluster.kubelet.set_ready("shop", found["metadata"]["name"], False)


def ready(cluster) -> int:
    return sum(map(is_ready, cluster.pods("shop")))


def skipped(ended) -> dict[str, str]:
    return {r["name"]: r["code"] for r in ended.of("skip")}


@pytest.mark.parametrize("options", [[], ["--parallel-rollouts=5"]], ids=["", "parallel"])
@pytest.mark.parametrize("size", [1, 3])
def test_the_second_waits_for_the_first_and_others_go_on(cluster, run, options, size):
    """One that does not come back; of three zones with three Pods each, one may be degraded."""
    store(cluster, *STORES, replicas=size)
    cluster.create("shop", workload("Deployment", "web"))
    make_old(cluster)
    cluster.injector.container["image"] = NEW
    never_ready(cluster, "store-1")
    ended = run(cluster, *GO, *options)
    assert (
        ended.outcomes.items()
        >= {
            "shop/store-1": "timed_out",
            "shop/store-2": "skipped",
            "shop/store-3": "skipped",
        }.items()
    )
    assert (ended.code, ended.summary["failed"]) == (1, {"timed_out": 1})
    assert (
        f"StatefulSet shop/store-1 has {size - 1} of {size} available: store-1-"
        in messages(ended)["store-2"]
    )
    again = run(cluster, *GO)
    assert {name: code for name, code in skipped(again).items() if code == CODE} == {
        "store-2": CODE,
        "store-3": CODE,
    }
    assert ready(cluster) >= 3 * size - 1


def test_one_that_is_down_before_the_run_goes_alone(cluster, run):
    """None of its Pods is ready, so nothing is taken. Then the others go."""
    store(cluster, *STORES, podManagementPolicy="Parallel")
    make_unready(cluster, "store-3")
    plan = run(cluster, DRIFTED, "--include-statefulset")
    assert (plan.planned, skipped(plan)) == (["shop/store-3"], {"store-1": CODE, "store-2": CODE})
    assert run(cluster, *GO).outcomes == {"shop/store-3": "succeeded"}
    assert set(run(cluster, *GO).outcomes.values()) == {"succeeded"}


def test_two_that_are_both_down_do_not_wait_for_each_other(cluster, run):
    store(cluster, "store-1", "store-2", podManagementPolicy="Parallel")
    make_unready(cluster, "store-1")
    make_unready(cluster, "store-2")
    assert set(run(cluster, *GO).outcomes.values()) == {"succeeded"}


def test_a_pod_that_was_never_created_is_in_no_endpoint_slice(cluster, run):
    """Of a replica, whatever its sidecar; the Service publishes addresses that are not ready."""
    cluster.create(
        "shop", member("store-2", spec=pod_spec(container("app"), serviceAccountName="gone"))
    )
    headless = service("store", **{"part-of": "store"})
    headless["spec"]["publishNotReadyAddresses"] = True
    cluster.create("shop", headless)
    cluster.create("shop", member("store-1"))
    cluster.wait_for(lambda: ready(cluster) == 1)
    upgrade(cluster)
    plan = run(cluster, DRIFTED, "--include-statefulset")
    assert (plan.planned, skipped(plan)) == ([], {"store-1": CODE})


OTHERS = {
    "containers": lambda: workload("StatefulSet", "other", pod_spec(container("cache"))),
    "kind": lambda: member("other", "Deployment", spec=pod_spec(container("app"))),
    "Service": lambda: workload("StatefulSet", "other"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_merely_shares_a_service_is_no_replica(cluster, run, other):
    store(cluster, "store-1", "store-2")
    if other != "Service":
        everything = service("everything")
        everything["spec"]["selector"] = {}
        cluster.create("shop", everything)
    found = OTHERS[other]()
    if other == "containers":
        found["spec"]["template"]["metadata"]["labels"]["part-of"] = "store"
    cluster.create("shop", found)
    make_old(cluster)
    make_unready(cluster, "other")
    plan = run(cluster, DRIFTED, "--include-statefulset", "statefulset/store-*")
    assert (plan.planned, skipped(plan)) == (["shop/store-1", "shop/store-2"], {})


def test_a_deployment_that_keeps_pods_may_go_beside_a_broken_canary(cluster, run):
    store(cluster, "web", "canary", kind="Deployment", replicas=2)
    make_unready(cluster, "canary")
    assert run(cluster, CONFIRM, DRIFTED, "deployment/web").outcomes == {"shop/web": "succeeded"}


@pytest.mark.parametrize("option", ["--evict", "--in-place"])
def test_so_it_may_where_its_pods_are_taken_one_by_one(cluster, run, option):
    store(cluster, "web", "canary", kind="Deployment", replicas=2)
    if option == "--evict":
        cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    make_unready(cluster, "canary")
    ended = run(cluster, CONFIRM, DRIFTED, option, "--timeout=4s", "deployment/web")
    assert ended.outcomes == {"shop/web": "succeeded"}


def test_a_deployment_with_downtime_waits(cluster, run):
    store(cluster, "web", "other", kind="Deployment", strategy={"type": "Recreate"})
    make_unready(cluster, "other")
    plan = run(cluster, DRIFTED, "deployment/web")
    assert (plan.planned, skipped(plan)) == ([], {"web": CODE})


def test_an_eviction_asks_before_each_ready_pod(cluster, run):
    """It waits; its unready Pods go first."""
    on_delete = {"updateStrategy": {"type": "OnDelete"}, "podManagementPolicy": "Parallel"}
    store(cluster, "store-1", "store-2", replicas=2, **on_delete)
    make_unready(cluster, "store-2")
    (found, *_) = cluster.pods("shop", "store-1")
    cluster.kubelet.set_ready("shop", found["metadata"]["name"], False)
    ended = run(cluster, *GO, "--evict", "statefulset/store-1")
    assert ended.outcomes == {"shop/store-1": "timed_out"}
    assert (
        "waiting for a replica: StatefulSet shop/store-2 has 0 of 2 available"
        in messages(ended)["store-1"]
    )
    images = [c["image"] for p in cluster.pods("shop", "store-1") for c in p["spec"]["containers"]]
    assert images.count(NEW) == 1


def test_without_permission_for_services_endpoint_slices_tell(cluster, run):
    store(cluster, "store-1", "store-2")
    make_unready(cluster, "store-2")
    verbs = ["get", "list", "watch", "patch", "create"]
    resources = [
        "pods",
        "endpointslices",
        "statefulsets",
        "deployments",
        "replicasets",
        "namespaces",
    ]
    rules = [{"verbs": verbs, "apiGroups": ["*"], "resources": resources}]
    plan = run(
        cluster.kubeconfig_of("somebody", rules), DRIFTED, "--include-statefulset", "sts/store-1"
    )
    assert (plan.code, plan.planned, skipped(plan)) == (0, [], {"store-1": CODE})


def test_a_service_and_nothing_else_costs_no_request_more(cluster, run):
    """Only where there is a replica, its kind is listed again, right before the write."""
    cluster.create("shop", workload("StatefulSet", "alone"))
    cluster.create("shop", service("alone"))
    make_old(cluster)
    upgrade(cluster)
    ended = run(cluster, *GO)
    assert ended.outcomes == {"shop/alone": "succeeded"}
    lists = [
        request.path.rpartition("/")[2]
        for request in cluster.server.requests
        if request.method == "GET" and "fieldSelector" not in request.query  # that is kubectl
    ]
    assert (lists.count("statefulsets"), lists.count("services")) == (1, 0)


# Overload is no answer


def lose(cluster, count: int) -> list[int]:
    """Let so many dry runs pass without the sidecar, as a slow injector does; return their number."""
    inject, asked = cluster.injector.inject, [0]

    def injected(found: dict) -> None:
        asked[0] += 1
        if asked[0] > count:
            inject(found)

    cluster.injector.inject = injected
    return asked


def test_what_would_lose_its_sidecar_is_asked_once_more(cluster, run):
    for name in "abc":
        cluster.create("shop", workload("Deployment", name))
    make_old(cluster)
    upgrade(cluster)
    lose(cluster, 6)
    ended = run(cluster, DRIFTED)
    assert ended.planned == ["shop/a", "shop/b", "shop/c"]
    assert "the injector did not answer 3 of 3 dry runs at once" in ended.stderr


def test_of_an_injector_that_is_down_sixteen_are_asked(cluster, run):
    for number in range(20):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    make_old(cluster)
    asked = lose(cluster, 999)
    ended = run(cluster, DRIFTED)
    assert (ended.planned, asked) == ([], [20 + 20 + 16])
    assert "at once" not in ended.stderr


def test_what_is_asked_again_may_have_another_configuration(cluster, run):
    """Its first answer had no sidecar, and so no ConfigMap."""
    cluster.injector.container |= {"envFrom": [{"configMapRef": {"name": "mesh"}}]}
    cluster.create("shop", {"kind": "ConfigMap", "metadata": {"name": "mesh"}})
    cluster.create("shop", workload("Deployment", "web"))
    make_old(cluster)
    upgrade(cluster)
    lose(cluster, 2)
    ended = run(cluster, DRIFTED, "--include-config")
    assert (ended.code, ended.planned) == (0, ["shop/web"])


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_one_that_may_stop_all_its_pods_at_once_is_a_replica_too(cluster, run, kind):
    field = "strategy" if kind == "Deployment" else "updateStrategy"
    rolling = {"maxUnavailable": "100%", "maxSurge": 0}
    fields = {field: {"type": "RollingUpdate", "rollingUpdate": rolling}}
    if kind == "Deployment":
        fields["replicas"] = 2
    store(cluster, "store-1", "store-2", kind=kind, **fields)
    never_ready(cluster, "store-1")
    ended = run(cluster, *GO, "--include-daemonset", "--max-failures=9")
    if len(cluster.pods("shop")) > 2:  # a DaemonSet of one node has no downtime
        assert ended.outcomes == {"shop/store-1": "timed_out", "shop/store-2": "skipped"}
    assert "shop/store-1" in ended.outcomes


def test_a_pod_that_terminates_is_missing(cluster, run):
    """Although its controller counts it as available while it is ready."""
    store(cluster, "store-1", "store-2")
    cluster.kubelet.gone_after = 30
    (found,) = cluster.pods("shop", "store-1")
    cluster.delete("Pod", "shop", found["metadata"]["name"])
    ended = run(cluster, *GO, "statefulset/store-2")
    assert ended.outcomes.get("shop/store-2", "skipped") == "skipped"
    assert skipped(ended).get("store-2", CODE) == CODE
