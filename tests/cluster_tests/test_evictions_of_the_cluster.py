"""The embedded cluster's evictions, held to a real API server's (recorded/evict.json, evict-owners.json)."""

from __future__ import annotations

import json

import pytest
import urllib3
from clusters.embedded import EmbeddedCluster, eviction
from clusters.embedded.manifests import budget, container, pod, pod_spec, replicated, workload
from support import numbered

ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}
VIEWER = [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"]}]
EVICTOR = [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods/eviction"]}]


@pytest.fixture
def evicting():
    """A cluster without sidecars whose Pods take a moment to end."""
    with EmbeddedCluster() as cluster:
        cluster.namespace("evict")
        cluster.pool = urllib3.PoolManager(ca_cert_data=cluster.authority)
        yield cluster
        cluster.pool.clear()


def post(cluster, name: str, body: dict | None = None, query: str = "", token: str = "admin-token"):
    """What an eviction answers: status, headers, body."""
    given = {"metadata": {"name": name}, **(body or {})}
    answer = cluster.pool.request(
        "POST",
        f"{cluster.url}/api/v1/namespaces/evict/pods/{name}/eviction{query}",
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        body=json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", **given}),
    )
    return answer.status, answer.headers, answer.json()


def same(answer: tuple, number: int, *texts: tuple[str, str]) -> bool:
    """Whether an answer is the recorded one, with names replaced."""
    wanted = numbered("evict")[number]["response"]
    text = json.dumps(wanted["body"])
    for old, new in texts:
        text = text.replace(old, new)
    status, headers, body = answer
    assert (status, body) == (wanted["status"], json.loads(text))
    assert headers.get("Retry-After") == wanted["headers"].get("Retry-After")
    return True


def uid_of(cluster, name: str) -> str:
    return cluster.get("Pod", "evict", name)["metadata"]["uid"]


def with_uid(uid: str) -> dict:
    return {"deleteOptions": {"preconditions": {"uid": uid}}}


def test_answers_without_a_budget(evicting):
    for name in ("bare-0", "bare-1"):
        evicting.create("evict", pod(name))
    evicting.settle()
    uid, wrong = uid_of(evicting, "bare-1"), "00000000-0000-0000-0000-000000000000"
    recorded_uid = "b78108a5-3aeb-46b6-9e46-37971f7fa54f"
    assert same(post(evicting, "bare-1", query="?dryRun=All"), 3)
    assert same(post(evicting, "bare-1", {"deleteOptions": {"dryRun": ["All"]}}), 4)
    assert same(post(evicting, "bare-1", with_uid(wrong)), 7, (recorded_uid, uid))
    assert same(post(evicting, "bare-1", with_uid(wrong), "?dryRun=All"), 8, (recorded_uid, uid))
    assert uid_of(evicting, "bare-1") == uid
    assert same(post(evicting, "gone-0"), 14)
    assert same(post(evicting, "bare-1", {"metadata": {"name": "bare-5"}}), 15)
    elsewhere = {"metadata": {"name": "bare-1", "namespace": "default"}}
    assert same(post(evicting, "bare-1", elsewhere), 16)
    evicting.kubeconfig_of("viewer", VIEWER)
    refused = post(evicting, "bare-1", token="token-of-viewer")
    assert same(refused, 28, ("bare-5", "bare-1"))
    evicting.kubeconfig_of("evictor", EVICTOR)
    evicting.kubelet.gone_after = 60
    assert same(post(evicting, "bare-1", with_uid(uid), token="token-of-evictor"), 59)
    left = evicting.get("Pod", "evict", "bare-1")
    recorded = numbered("evict")[2]["response"]["body"]
    assert {"deletionTimestamp", "deletionGracePeriodSeconds"} <= left["metadata"].keys()
    wanted, found = recorded["status"]["conditions"][-1], left["status"]["conditions"][-1]
    del wanted["lastTransitionTime"], found["lastTransitionTime"]
    wanted.pop("observedGeneration", None)
    assert found == wanted
    assert same(post(evicting, "bare-1", with_uid(uid)), 21)  # terminating already


def test_a_budget_is_asked_before_the_uid(evicting):
    evicting.create("evict", replicated("ReplicaSet", "web", replicas=3))
    evicting.create("evict", budget("web", minAvailable=3))
    evicting.settle()
    first, second, third = (p["metadata"]["name"] for p in evicting.pods("evict"))
    assert same(post(evicting, first), 32)
    assert same(post(evicting, first, query="?dryRun=All"), 33)
    assert same(post(evicting, first, with_uid("wrong")), 34)
    evicting.change("PodDisruptionBudget", "evict", "web", {"spec": {"minAvailable": 2}})
    evicting.wait_for(lambda: status_of(evicting, "web")["disruptionsAllowed"])
    for _ in range(2):  # a dry run takes nothing from the budget
        assert same(post(evicting, first, query="?dryRun=All"), 38)
    evicting.kubelet.ready_after = 60
    assert same(post(evicting, first), 40)
    evicting.wait_for(lambda: status_of(evicting, "web")["currentHealthy"] == 2)
    assert same(post(evicting, second), 41)


def test_a_wrong_uid_costs_budget(evicting):
    evicting.create("evict", replicated("ReplicaSet", "web", replicas=3))
    evicting.create("evict", budget("web", minAvailable=2))
    evicting.settle()
    first, second, _ = (p["metadata"]["name"] for p in evicting.pods("evict"))
    assert (
        post(evicting, first, with_uid("wrong"))[0] == numbered("evict")[44]["response"]["status"]
    )
    status, recorded = (
        status_of(evicting, "web"),
        numbered("evict")[45]["response"]["body"]["status"],
    )
    assert status.keys() == recorded.keys()
    assert (status["disruptionsAllowed"], [*status["disruptedPods"]]) == (0, [first])
    assert post(evicting, second)[0] == numbered("evict")[46]["response"]["status"]


def status_of(cluster, name: str) -> dict:
    return cluster.get("PodDisruptionBudget", "evict", name)["status"]


def test_budgets_that_refuse_for_other_reasons(evicting):
    evicting.create("evict", replicated("ReplicaSet", "two", replicas=2))
    for name in ("one", "other"):
        evicting.create("evict", budget(name, app="two", minAvailable=0))
    evicting.create("evict", pod("bare"))
    evicting.create("evict", budget("bare", maxUnavailable=1))
    evicting.create("evict", pod("mixed"))
    evicting.settle()
    two = next(iter(evicting.pods("evict", "two")))["metadata"]["name"]
    assert same(post(evicting, two), 47)
    assert same(post(evicting, two, query="?dryRun=All"), 48)
    assert same(post(evicting, "bare"), 54)
    with evicting.store.lock:  # before its controller sees it
        evicting.create("evict", budget("mixed", minAvailable=1))
        pod_now = evicting.get("Pod", "evict", "mixed")
        with pytest.raises(eviction.Refused) as refused:
            eviction.evict(
                evicting.store, lambda _: None, pod_now, {"metadata": {"name": "mixed"}}, False
            )
    recorded = numbered("evict")[63]["response"]
    assert refused.value.details == recorded["body"]["details"]
    assert str(refused.value.retry_after) == recorded["headers"]["Retry-After"]


@pytest.mark.parametrize(
    ("image", "policy", "least", "number"),
    [
        ("app-crashing:1", None, 1, 50),
        ("app-crashing:1", "AlwaysAllow", 1, 51),
        ("app-broken:1", None, 1, 52),  # Pending: no budget is asked
        ("app-crashing:1", None, 2, 62),  # two of three are healthy, which is enough
    ],
)
def test_unready_pods(evicting, image, policy, least, number):
    evicting.create("evict", replicated("ReplicaSet", "sick", pod_spec(container("app", image))))
    more = {"unhealthyPodEvictionPolicy": policy} if policy else {}
    if least == 2:
        evicting.create("evict", replicated("ReplicaSet", "well", replicas=2))
    found = budget("sick", minAvailable=least, **more)
    found["spec"]["selector"] = (
        {"matchLabels": {}} if least == 2 else {"matchLabels": {"app": "sick"}}
    )
    evicting.create("evict", found)
    evicting.settle()
    evicting.wait_for(lambda: status_of(evicting, "sick")["expectedPods"])
    (sick,) = evicting.pods("evict", "sick")
    assert (
        post(evicting, sick["metadata"]["name"])[0]
        == numbered("evict")[number]["response"]["status"]
    )


def evict_and_wait(cluster, name: str, app: str) -> None:
    before, uid = len(cluster.pods("evict", app)), uid_of(cluster, name)
    assert post(cluster, name)[0] == 201

    def is_back() -> bool:
        found = cluster.store.list("pods", "evict")
        return (
            uid not in {p["metadata"]["uid"] for p in found}
            and len([p for p in cluster.pods("evict", app) if ready(p)]) == before
        )

    cluster.wait_for(is_back)


def ready(found: dict) -> bool:
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in found["status"].get("conditions", ())
    )


def images(cluster, app: str) -> list[str]:
    found = cluster.pods("evict", app)
    return [p["spec"]["containers"][0]["image"].rpartition(":")[2] for p in found]


def recorded_images(number: int) -> list[str]:
    found = numbered("evict-owners")[number]["response"]["body"]
    found = found.get("items", [found])
    return [p["spec"]["containers"][0]["image"].rpartition(":")[2] for p in found]


def new_image(cluster, kind: str, name: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:2"}]}}}}
    cluster.change(kind, "evict", name, patch)
    cluster.settle()


@pytest.mark.parametrize(
    ("kind", "fields", "number"),
    [
        ("StatefulSet", {**ON_DELETE, "replicas": 3}, 12),
        ("DaemonSet", ON_DELETE, 47),
        ("ReplicaSet", {"replicas": 2}, 71),
        ("ReplicationController", {"replicas": 2}, 80),
    ],
)
def test_a_pending_template_comes_with_the_next_pod(evicting, kind, fields, number):
    spec = pod_spec(container("app", "app:1"))
    make = workload if "Set" in kind and kind != "ReplicaSet" else replicated
    evicting.create("evict", make(kind, "x", spec, **fields))
    evicting.settle()
    new_image(evicting, kind, "x")
    assert set(images(evicting, "x")) == {"1"}
    evict_and_wait(evicting, evicting.pods("evict", "x")[1]["metadata"]["name"], "x")
    assert images(evicting, "x").count("2") == recorded_images(number).count("2") == 1


def test_the_status_of_an_on_delete_stateful_set(evicting):
    evicting.create(
        "evict",
        workload("StatefulSet", "x", pod_spec(container("app", "app:1")), replicas=3, **ON_DELETE),
    )
    evicting.settle()

    def agrees_with(number: int) -> bool:
        wanted = numbered("evict-owners")[number]["response"]["body"]["status"]
        found = evicting.get("StatefulSet", "evict", "x")["status"]
        counts = {key: value for key, value in wanted.items() if isinstance(value, int)}
        revisions = wanted["currentRevision"] == wanted["updateRevision"]
        return (
            counts == {key: value for key, value in found.items() if isinstance(value, int)}
            and (found["currentRevision"] == found["updateRevision"]) == revisions
        )

    evicting.wait_for(
        lambda: evicting.get("StatefulSet", "evict", "x")["status"]["readyReplicas"] == 3
    )
    assert evicting.get("StatefulSet", "evict", "x")["status"].keys() == (
        numbered("evict-owners")[6]["response"]["body"]["status"].keys()
    )
    new_image(evicting, "StatefulSet", "x")
    evicting.wait_for(lambda: agrees_with(8))
    evict_and_wait(evicting, "x-1", "x")
    evicting.wait_for(lambda: agrees_with(13))
    for name in ("x-0", "x-2"):
        evict_and_wait(evicting, name, "x")
    evicting.wait_for(lambda: agrees_with(16))  # currentRevision stays


def test_a_partition_rolls_back_what_is_below_it(evicting):
    partition = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}
    evicting.create(
        "evict",
        workload("StatefulSet", "x", pod_spec(container("app", "app:1")), replicas=3, **partition),
    )
    evicting.settle()
    new_image(evicting, "StatefulSet", "x")
    evicting.wait_for(lambda: images(evicting, "x") == recorded_images(25) == ["1", "1", "2"])
    evict_and_wait(evicting, "x-0", "x")
    assert images(evicting, "x")[0] == recorded_images(27)[0] == "1"
    evicting.change(
        "StatefulSet",
        "evict",
        "x",
        {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 5}}}},
    )
    evicting.settle()
    evict_and_wait(evicting, "x-2", "x")
    assert images(evicting, "x")[2] == recorded_images(34)[-1] == "1"


def test_controller_revisions_are_ordered_by_their_number(evicting):
    evicting.create(
        "evict", workload("DaemonSet", "x", pod_spec(container("app", "app:1")), **ON_DELETE)
    )
    evicting.settle()

    def revisions() -> list[tuple[int, str]]:
        found = evicting.store.list("controllerrevisions", "evict")
        return sorted((r["revision"], r["metadata"]["name"]) for r in found)

    ((_, first),) = revisions()
    assert (
        first
        == f"x-{evicting.pods('evict', 'x')[0]['metadata']['labels']['controller-revision-hash']}"
    )
    new_image(evicting, "DaemonSet", "x")
    second = revisions()[-1][1]
    back = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}}}}
    evicting.change("DaemonSet", "evict", "x", back)
    evicting.settle()
    assert evicting.wait_for(lambda: revisions() == [(2, second), (3, first)])
    recorded = numbered("evict-owners")[126]["response"]["body"]["items"]
    newest = max(recorded, key=lambda r: r["revision"])
    assert newest["metadata"]["creationTimestamp"] < min(
        r["metadata"]["creationTimestamp"] for r in recorded if r is not newest
    )


def test_an_ordered_stateful_set_waits_for_lower_ordinals(evicting):
    evicting.create("evict", workload("StatefulSet", "x", replicas=3, **ON_DELETE))
    evicting.settle()
    set_ready(evicting, "x-0", False)
    assert post(evicting, "x-2")[0] == 201
    evicting.wait_for(lambda: len(evicting.store.list("pods", "evict")) == 2)
    evicting.settle()
    recorded = numbered("evict-owners")[98]["response"]["body"]["items"]
    assert len(evicting.store.list("pods", "evict")) == len(recorded) == 2
    set_ready(evicting, "x-0", True)
    assert evicting.wait_for(lambda: len(evicting.pods("evict", "x")) == 3)


def set_ready(cluster, name: str, is_ready: bool) -> None:
    with cluster.store.lock:
        found = cluster.get("Pod", "evict", name)
        conditions = [
            {**c, "status": str(is_ready)} if c["type"] == "Ready" else c
            for c in found["status"]["conditions"]
        ]
        cluster.store.change("pods", found, status={**found["status"], "conditions": conditions})


@pytest.mark.parametrize(
    ("kind", "number", "count"),
    [
        ("ReplicaSet", 119, None),
        ("StatefulSet", 120, "readyReplicas"),
        ("DaemonSet", 121, "numberReady"),
    ],
)
def test_counts_while_a_pod_terminates(evicting, kind, number, count):
    make = replicated if kind == "ReplicaSet" else workload
    evicting.create("evict", make(kind, "x", **({} if kind == "DaemonSet" else {"replicas": 2})))
    evicting.settle()
    evicting.kubelet.gone_after = 60
    before = len(evicting.pods("evict", "x"))
    assert post(evicting, evicting.pods("evict", "x")[-1]["metadata"]["name"])[0] == 201
    wanted = numbered("evict-owners")[number]["response"]["body"]["status"]
    if count:  # the status says that nothing is missing
        evicting.settle()
        assert len(evicting.pods("evict", "x")) == before - 1
        assert evicting.get(kind, "evict", "x")["status"][count] == before
        assert wanted[count] == max(v for v in wanted.values() if isinstance(v, int) and v < 10)
    else:  # its replacement is ready already

        def counts() -> tuple:
            status = evicting.get(kind, "evict", "x")["status"]
            return status.get("readyReplicas"), status["terminatingReplicas"]

        assert evicting.wait_for(lambda: counts() == (2, 1))
        assert wanted["terminatingReplicas"] == 1


@pytest.mark.parametrize(
    ("kind", "number"), [("ReplicaSet", 103), ("StatefulSet", 107), ("DaemonSet", 111)]
)
def test_a_replacement_that_is_refused(evicting, kind, number):
    make = replicated if kind == "ReplicaSet" else workload
    evicting.create("evict", make(kind, "x"))
    evicting.settle()
    evicting.change(
        "Namespace",
        "",
        "evict",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    assert post(evicting, evicting.pods("evict", "x")[0]["metadata"]["name"])[0] == 201
    events = evicting.wait_for(lambda: evicting.store.list("events", "evict"))
    recorded = numbered("evict-owners")[number + 1]["response"]["body"]["items"][0]
    for name in ("rs", "ss", "ds"):
        recorded["message"] = (
            recorded["message"].replace(f"{name}-", "x-").replace(f" {name} ", " x ")
        )
    told = events[0]["message"].partition('"')[0]
    assert told == recorded["message"].partition('"')[0]
    status = evicting.get(kind, "evict", "x")["status"]
    assert ("conditions" in status) == (
        "conditions" in numbered("evict-owners")[number]["response"]["body"]["status"]
    )
