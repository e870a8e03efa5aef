"""What evictions answer and what replaces an evicted Pod, on the embedded cluster as on a real control plane."""

from __future__ import annotations

import pytest
from clusters.embedded import Cluster, eviction, is_ready
from clusters.embedded.manifests import budget, container, pod, pod_spec, replicated, workload
from support import ask

pytestmark = pytest.mark.both

ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}
VIEWER = [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"]}]
EVICTOR = [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods/eviction"]}]
WRONG = "00000000-0000-0000-0000-000000000000"
DRY_RUN = {"deleteOptions": {"dryRun": ["All"]}}
SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


@pytest.fixture
def evicting(cluster: Cluster) -> Cluster:
    """A cluster with a namespace whose Pods get no sidecar."""
    cluster.namespace("evict")
    return cluster


def post(
    cluster, name: str, body: dict | None = None, query: str = "", kubeconfig: str = ""
) -> dict:
    """What an eviction answers."""
    given = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/evict/pods/{name}/eviction{query}"
    answer = ask(cluster, "POST", path, {**given, **(body or {})}, kubeconfig=kubeconfig)
    assert answer.body["code"] == answer.status
    assert "Retry-After" not in answer.headers
    return answer.body


def failure(code: int, reason: str | None, message: str, **details: object) -> dict:
    """A Status as API servers answer it."""
    found = {**SUCCESS, "status": "Failure", "message": message, "code": code}
    return found | {k: v for k, v in (("reason", reason), ("details", details)) if v}


def wrong_uid(name: str, uid: str) -> dict:
    message = (
        f'Operation cannot be fulfilled on Pod "{name}": the UID in the precondition ({WRONG}) does '
        f"not match the UID in record ({uid}). The object might have been deleted and then recreated"
    )
    return failure(409, "Conflict", message, name=name, kind="Pod")


def over_budget(name: str, what: str) -> dict:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {name} {what}"}
    return failure(429, "TooManyRequests", message, causes=[cause])


def uid_of(cluster, name: str) -> str:
    return cluster.get("Pod", "evict", name)["metadata"]["uid"]


def with_uid(uid: str) -> dict:
    return {"deleteOptions": {"preconditions": {"uid": uid}}}


def test_answers_without_a_budget(evicting):
    evicting.create("evict", pod("bare"))
    evicting.settle()
    uid = uid_of(evicting, "bare")
    assert post(evicting, "bare", query="?dryRun=All") == SUCCESS
    assert post(evicting, "bare", DRY_RUN) == SUCCESS
    for query in ("", "?dryRun=All"):
        assert post(evicting, "bare", with_uid(WRONG), query) == wrong_uid("bare", uid)
    assert uid_of(evicting, "bare") == uid
    gone = failure(404, "NotFound", 'pods "gone" not found', name="gone", kind="pods")
    assert post(evicting, "gone") == gone
    another = post(evicting, "bare", {"metadata": {"name": "another"}})
    message = "name in URL does not match name in Eviction object"
    assert another == failure(400, "BadRequest", message)
    elsewhere = post(evicting, "bare", {"metadata": {"name": "bare", "namespace": "default"}})
    message = (
        "the namespace of the provided object does not match the namespace sent on the request"
    )
    assert elsewhere == failure(400, "BadRequest", message)


def test_its_permission_is_to_create_evictions(evicting):
    evicting.create("evict", pod("bare"))
    evicting.settle()
    message = (
        'pods "bare" is forbidden: User "viewer" cannot create resource "pods/eviction" in API group '
        '"" in the namespace "evict"'
    )
    refused = post(evicting, "bare", kubeconfig=evicting.kubeconfig_of("viewer", VIEWER))
    assert refused == failure(403, "Forbidden", message, name="bare", kind="pods")
    evicting.kubelet.gone_after = 60
    evictor = evicting.kubeconfig_of("evictor", EVICTOR)
    uid = uid_of(evicting, "bare")
    assert post(evicting, "bare", with_uid(uid), kubeconfig=evictor) == SUCCESS
    left = evicting.get("Pod", "evict", "bare")
    assert {"deletionTimestamp", "deletionGracePeriodSeconds"} <= left["metadata"].keys()
    (target,) = [c for c in left["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    assert target["message"] == "Eviction API: evicting"
    assert post(evicting, "bare", with_uid(uid)) == SUCCESS  # terminating already


def test_a_budget_is_asked_before_the_uid(evicting):
    evicting.create("evict", replicated("ReplicaSet", "web", replicas=3))
    evicting.create("evict", budget("web", minAvailable=3))
    evicting.settle()
    evicting.wait_for(lambda: status_of(evicting, "web")["currentHealthy"] == 3)
    first, second, _ = (p["metadata"]["name"] for p in evicting.pods("evict"))
    refused = over_budget("web", "needs 3 healthy pods and has 3 currently")
    assert post(evicting, first) == refused
    assert post(evicting, first, query="?dryRun=All") == refused
    assert post(evicting, first, with_uid(WRONG)) == refused
    evicting.change("PodDisruptionBudget", "evict", "web", {"spec": {"minAvailable": 2}})
    evicting.wait_for(lambda: status_of(evicting, "web")["disruptionsAllowed"])
    for _ in range(2):  # a dry run takes nothing from the budget
        assert post(evicting, first, query="?dryRun=All") == SUCCESS
    evicting.kubelet.ready_after = 60
    assert post(evicting, first) == SUCCESS
    evicting.wait_for(lambda: status_of(evicting, "web")["currentHealthy"] == 2)
    refused = over_budget("web", "needs 2 healthy pods and has 2 currently")
    assert post(evicting, second) == refused


def test_a_wrong_uid_costs_budget(evicting):
    evicting.create("evict", replicated("ReplicaSet", "web", replicas=3))
    evicting.create("evict", budget("web", minAvailable=2))
    evicting.settle()
    evicting.wait_for(lambda: status_of(evicting, "web")["disruptionsAllowed"] == 1)
    first, second, _ = (p["metadata"]["name"] for p in evicting.pods("evict"))
    assert post(evicting, first, with_uid(WRONG)) == wrong_uid(first, uid_of(evicting, first))
    status = status_of(evicting, "web")
    assert (status["disruptionsAllowed"], [*status["disruptedPods"]]) == (0, [first])
    assert post(evicting, second)["code"] == 429


def status_of(cluster, name: str) -> dict:
    """The status of a budget; zeros until its controller has seen it."""
    zeros = dict.fromkeys(("currentHealthy", "disruptionsAllowed", "expectedPods"), 0)
    return zeros | cluster.get("PodDisruptionBudget", "evict", name).get("status", {})


def test_a_pod_with_two_budgets_cannot_be_evicted(evicting):
    evicting.create("evict", replicated("ReplicaSet", "two", replicas=2))
    for name in ("one", "other"):
        evicting.create("evict", budget(name, app="two", minAvailable=0))
    evicting.settle()
    two = evicting.pods("evict", "two")[0]["metadata"]["name"]
    message = (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
        "support."
    )
    assert post(evicting, two) == failure(500, None, message)
    assert post(evicting, two, query="?dryRun=All") == failure(500, None, message)


@pytest.mark.since("1.35", "the cause names no numbers of healthy Pods where they are not why")
def test_a_budget_of_pods_without_a_scale_allows_nothing(evicting):
    evicting.create("evict", pod("bare"))
    evicting.create("evict", budget("bare", maxUnavailable=1))
    evicting.settle()
    evicting.wait_for(lambda: status_of(evicting, "bare").get("conditions"))
    refused = over_budget("bare", "does not allow evicting pods currently")
    assert post(evicting, "bare") == refused


@pytest.mark.embedded("the moment before a controller has seen a budget")
def test_a_new_budget_is_to_be_asked_again(evicting):
    evicting.create("evict", pod("mixed"))
    evicting.settle()
    with evicting.store.lock:
        evicting.create("evict", budget("mixed", minAvailable=1))
        found = evicting.get("Pod", "evict", "mixed")
        with pytest.raises(eviction.Refused) as refused:
            eviction.evict(
                evicting.store, lambda _: None, found, {"metadata": {"name": "mixed"}}, False
            )
    wanted = over_budget("mixed", "is still being processed by the server.")["details"]
    assert refused.value.details == {**wanted, "retryAfterSeconds": 10}
    assert refused.value.retry_after == 10


@pytest.mark.parametrize(
    ("image", "policy", "least", "code"),
    [
        ("app-crashing:1", None, 1, 429),
        ("app-crashing:1", "AlwaysAllow", 1, 201),
        ("app-broken:1", None, 1, 201),  # Pending: no budget is asked
        ("app-crashing:1", None, 2, 201),  # two of three are healthy, which is enough
    ],
)
def test_unready_pods(evicting, image, policy, least, code):
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
    evicting.wait_for(lambda: status_of(evicting, "sick")["expectedPods"] == 2 * least - 1)
    evicting.wait_for(lambda: status_of(evicting, "sick")["currentHealthy"] == 2 * (least - 1))
    (sick,) = evicting.pods("evict", "sick")
    assert post(evicting, sick["metadata"]["name"])["code"] == code


def evict_and_wait(cluster, name: str, app: str) -> None:
    before, uid = len(cluster.pods("evict", app)), uid_of(cluster, name)
    assert post(cluster, name) == SUCCESS

    def is_back() -> bool:
        found = cluster.store.list("pods", "evict")
        return (
            uid not in {p["metadata"]["uid"] for p in found}
            and len(list(filter(is_ready, cluster.pods("evict", app)))) == before
        )

    cluster.wait_for(is_back)


def images(cluster, app: str) -> list[str]:
    """The tags of the images of its Pods, by their names."""
    found = sorted(cluster.pods("evict", app), key=lambda p: p["metadata"]["name"])
    return [p["spec"]["containers"][0]["image"].rpartition(":")[2] for p in found]


def new_image(cluster, kind: str, name: str, tag: str = "2") -> None:
    template = {"spec": {"containers": [{"name": "app", "image": f"app:{tag}"}]}}
    cluster.change(kind, "evict", name, {"spec": {"template": template}})
    cluster.settle()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("StatefulSet", {**ON_DELETE, "replicas": 3}),
        ("DaemonSet", ON_DELETE),
        ("ReplicaSet", {"replicas": 2}),
        ("ReplicationController", {"replicas": 2}),
    ],
)
def test_a_pending_template_comes_with_the_next_pod(evicting, kind, fields):
    spec = pod_spec(container("app", "app:1"))
    make = workload if "Set" in kind and kind != "ReplicaSet" else replicated
    evicting.create("evict", make(kind, "x", spec, **fields))
    evicting.settle()
    new_image(evicting, kind, "x")
    assert set(images(evicting, "x")) == {"1"}
    evict_and_wait(evicting, evicting.pods("evict", "x")[1]["metadata"]["name"], "x")
    assert images(evicting, "x").count("2") == 1


@pytest.mark.since("1.37", "an OnDelete StatefulSet whose Pods are all new has one revision")
def test_the_status_of_an_on_delete_stateful_set(evicting):
    spec = pod_spec(container("app", "app:1"))
    evicting.create("evict", workload("StatefulSet", "x", spec, replicas=3, **ON_DELETE))
    evicting.settle()

    def has(current: int, updated: int, *, one_revision: bool = False) -> bool:
        found = evicting.get("StatefulSet", "evict", "x")["status"]
        counts = {
            "replicas": 3,
            "readyReplicas": 3,
            "availableReplicas": 3,
            "currentReplicas": current,
            "updatedReplicas": updated,
            "collisionCount": 0,
        }
        numbers = {key: value for key, value in found.items() if isinstance(value, int)}
        del numbers["observedGeneration"]
        return (
            numbers == {key: value for key, value in counts.items() if value or "Count" in key}
            and (found["currentRevision"] == found["updateRevision"]) == one_revision
        )

    evicting.wait_for(lambda: has(3, 3, one_revision=True))
    new_image(evicting, "StatefulSet", "x")
    evicting.wait_for(lambda: has(3, 0))
    evict_and_wait(evicting, "x-1", "x")
    evicting.wait_for(lambda: has(2, 1))
    for name in ("x-0", "x-2"):
        evict_and_wait(evicting, name, "x")
    # Before 1.37, currentRevision stays the old one, and currentReplicas is absent
    evicting.wait_for(lambda: has(3, 3, one_revision=True))


def test_a_partition_rolls_back_what_is_below_it(evicting):
    def strategy(partition: int) -> dict:
        return {"updateStrategy": {"rollingUpdate": {"partition": partition}}}

    found = workload("StatefulSet", "x", pod_spec(container("app", "app:1")), replicas=3)
    found["spec"] |= strategy(2)
    evicting.create("evict", found)
    evicting.settle()
    new_image(evicting, "StatefulSet", "x")
    evicting.wait_for(lambda: images(evicting, "x") == ["1", "1", "2"])
    evict_and_wait(evicting, "x-0", "x")
    assert images(evicting, "x") == ["1", "1", "2"]
    evicting.change("StatefulSet", "evict", "x", {"spec": strategy(5)})
    evicting.settle()
    evict_and_wait(evicting, "x-2", "x")
    assert images(evicting, "x") == ["1", "1", "1"]


def test_controller_revisions_are_ordered_by_their_number(evicting):
    """One that is used again is the newest by its number, and the oldest by when it was made."""
    spec = pod_spec(container("app", "app:1"))
    evicting.create("evict", workload("DaemonSet", "x", spec, **ON_DELETE))
    evicting.settle()

    def revisions() -> list[tuple[int, str]]:
        found = evicting.store.list("controllerrevisions", "evict")
        return sorted((r["revision"], r["metadata"]["name"]) for r in found)

    ((_, first),) = revisions()
    labels = evicting.pods("evict", "x")[0]["metadata"]["labels"]
    assert first == f"x-{labels['controller-revision-hash']}"
    new_image(evicting, "DaemonSet", "x")
    second = revisions()[-1][1]
    assert second != first
    new_image(evicting, "DaemonSet", "x", "1")
    assert evicting.wait_for(lambda: revisions() == [(2, second), (3, first)])


def test_an_ordered_stateful_set_waits_for_lower_ordinals(evicting):
    evicting.create("evict", workload("StatefulSet", "x", replicas=3, **ON_DELETE))
    evicting.settle()
    evicting.kubelet.set_ready("evict", "x-0", False)
    assert post(evicting, "x-2") == SUCCESS
    evicting.wait_for(lambda: len(evicting.store.list("pods", "evict")) == 2)
    evicting.settle()
    assert len(evicting.store.list("pods", "evict")) == 2
    evicting.kubelet.set_ready("evict", "x-0", True)
    assert evicting.wait_for(lambda: len(evicting.pods("evict", "x")) == 3)


@pytest.mark.parametrize(
    ("kind", "count"), [("StatefulSet", "readyReplicas"), ("DaemonSet", "numberReady")]
)
def test_nothing_is_missing_by_the_status_while_a_pod_terminates(evicting, kind, count):
    evicting.create(
        "evict", workload(kind, "x", **({} if kind == "DaemonSet" else {"replicas": 2}))
    )
    evicting.settle()
    evicting.kubelet.gone_after = 60
    before = len(evicting.pods("evict", "x"))
    assert post(evicting, evicting.pods("evict", "x")[-1]["metadata"]["name"]) == SUCCESS
    evicting.settle()
    assert len(evicting.pods("evict", "x")) == before - 1
    assert evicting.get(kind, "evict", "x")["status"][count] == before


@pytest.mark.since("1.35", "terminatingReplicas (DeploymentReplicaSetTerminatingReplicas)")
def test_a_replica_set_replaces_a_pod_that_terminates(evicting):
    evicting.create("evict", replicated("ReplicaSet", "x", replicas=2))
    evicting.settle()
    evicting.kubelet.gone_after = 60
    assert post(evicting, evicting.pods("evict", "x")[-1]["metadata"]["name"]) == SUCCESS

    def counts() -> tuple:
        status = evicting.get("ReplicaSet", "evict", "x")["status"]
        return status.get("readyReplicas"), status["terminatingReplicas"]

    assert evicting.wait_for(lambda: counts() == (2, 1))


@pytest.mark.parametrize(
    ("kind", "told", "has_conditions"),
    [
        ("ReplicaSet", "Error creating: pods ", True),
        pytest.param(
            "StatefulSet",
            "Create Pod x-0 in StatefulSet x failed error: pods ",
            False,
            marks=pytest.mark.since("1.35", "a capital letter in events of StatefulSets"),
        ),
        ("DaemonSet", "Error creating: pods ", False),
    ],
)
def test_a_replacement_that_is_refused(evicting, kind, told, has_conditions):
    make = replicated if kind == "ReplicaSet" else workload
    evicting.create("evict", make(kind, "x"))
    evicting.settle()
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    evicting.change("Namespace", "", "evict", {"metadata": {"labels": enforced}})
    assert post(evicting, evicting.pods("evict", "x")[0]["metadata"]["name"]) == SUCCESS

    def refusals() -> list[dict]:
        found = evicting.store.list("events", "evict")
        return [event for event in found if event["reason"] == "FailedCreate"]

    first = evicting.wait_for(refusals)[0]
    assert first["message"].partition('"')[0] == told
    if has_conditions:
        evicting.wait_for(lambda: "conditions" in evicting.get(kind, "evict", "x")["status"])
    else:
        assert "conditions" not in evicting.get(kind, "evict", "x")["status"]
