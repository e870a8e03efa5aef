"""The embedded cluster's answers to changes of a live Pod's image, held to tests/clusters/recorded/in-place.json."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess

import pytest
from clusters.embedded import ADMIN, admission, is_ready
from clusters.embedded.manifests import container, native, pod, pod_spec, workload
from support import KUBECTL, in_place_answer, numbered

OLD, NEW = "registry.example/mesh-proxy:1.0.0", "registry.example/mesh-proxy:1.1.0"


def request_of(index: int) -> dict:
    return numbered("in-place")[index]["request"]["body"]


@pytest.fixture
def web(cluster):
    """A Pod with the containers of the recorded one."""
    cluster.namespace("inplace")
    spec = pod_spec(
        container("app", "registry.example/app:1", env=[{"name": "A", "value": "1"}]),
        container("mesh-proxy", OLD, env=[{"name": "PROXY_LOG_LEVEL", "value": "warn"}]),
    )
    cluster.create("inplace", pod("web", spec))
    cluster.settle()
    return cluster


def patch(cluster, body: object, name: str = "web", query: str = "") -> tuple[int, dict]:
    context = ssl.create_default_context(cadata=cluster.authority)
    connection = http.client.HTTPSConnection("127.0.0.1", cluster.port, context=context)
    headers = {
        "Content-Type": "application/strategic-merge-patch+json",
        "Authorization": f"Bearer {ADMIN}",
    }
    path = f"/api/v1/namespaces/inplace/pods/{name}{query}"
    connection.request("PATCH", path, json.dumps(body), headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def images(body: dict, key: str = "containers") -> list[str]:
    return [found["image"] for found in body["spec"][key]]


def look(found: dict, name: str = "mesh-proxy") -> tuple:
    """What tells how far a change of a container's image is."""
    status = found["status"]
    statuses = status["containerStatuses"] + status.get("initContainerStatuses", [])
    (container,) = [each for each in statuses if each["name"] == name]
    (state, inner) = next(iter(container["state"].items()))
    ended = container["lastState"].get("terminated", {})
    return (
        state,
        inner.get("reason"),
        container["ready"],
        container["image"],
        ended.get("reason"),
        is_ready(found),
        status["phase"],
    )


def watch(cluster, name: str = "web", until=None) -> list[tuple]:
    """The steps of a change, one after the other, to its end."""
    seen: list[tuple] = []

    def step() -> bool:
        now = look(cluster.get("Pod", "inplace", name))
        if now not in seen:
            seen.append(now)
        return until(now)

    cluster.wait_for(step)
    return seen


def slowly(cluster) -> None:
    cluster.kubelet.step = 0.2


def test_a_new_image_is_killed_pulled_and_started(web):
    slowly(web)
    before = web.get("Pod", "inplace", "web")
    uid = before["metadata"]["uid"]
    change = {"metadata": {"uid": uid}, **{"spec": request_of(2)["spec"]}}
    status, body = patch(web, change)
    assert (status, body["metadata"]["generation"]) == (200, 2)
    steps = watch(web, until=lambda now: now[3] == NEW and now[2])
    assert (steps[0], steps[-1]) == (look(in_place_answer(3)), look(in_place_answer(15)))
    found = web.get("Pod", "inplace", "web")
    for name in ("app", "mesh-proxy"):
        old, new, recorded = (
            next(c for c in each["status"]["containerStatuses"] if c["name"] == name)
            for each in (before, found, in_place_answer(15))
        )
        assert new["restartCount"] == recorded["restartCount"]
        assert (new["containerID"] == old["containerID"]) is (name == "app")
    assert found["status"]["observedGeneration"] == 2


def test_the_generation_is_observed_before_anything_happens(web):
    """As in exchange 6: it does not tell whether the container was restarted."""
    web.kubelet.step = 60
    patch(web, {"spec": request_of(2)["spec"]})
    web.wait_for(lambda: web.get("Pod", "inplace", "web")["status"]["observedGeneration"] == 2)
    assert look(web.get("Pod", "inplace", "web")) == look(in_place_answer(6))


def test_an_image_that_cannot_be_pulled_leaves_the_container_dead(web):
    slowly(web)
    patch(web, {"spec": request_of(71)["spec"]})
    steps = watch(web, until=lambda now: now[1] == "ImagePullBackOff")
    assert steps[-1] == look(in_place_answer(76))
    assert steps[-2][1] == "ErrImagePull"
    statuses = web.get("Pod", "inplace", "web")["status"]["containerStatuses"]
    assert statuses[1]["restartCount"] == 0
    patch(web, {"spec": {"containers": [{"name": "mesh-proxy", "image": OLD}]}})
    last = watch(web, until=lambda now: now[2])[-1]
    assert last[:3] == look(in_place_answer(82))[:3]


def test_one_that_crashes_and_one_that_never_gets_ready(web):
    crashing = {"spec": {"containers": [{"name": "mesh-proxy", "image": "x/crashing:3"}]}}
    patch(web, crashing)
    last = watch(web, until=lambda now: now[0] == "waiting")[-1]
    assert (last[:3], last[4:]) == (look(in_place_answer(88))[:3], look(in_place_answer(88))[4:])
    patch(web, {"spec": request_of(94)["spec"]})
    last = watch(web, until=lambda now: "neverready" in now[3])[-1]
    assert (last[:4], last[5:]) == (look(in_place_answer(98))[:4], look(in_place_answer(98))[5:])


@pytest.mark.parametrize("index", [23, 25, 29, 30, 32, 39])
def test_other_changes_are_refused_in_the_same_words(web, index):
    status, body = patch(web, request_of(index))
    recorded = numbered("in-place")[index]["response"]

    def words(message: str) -> str:
        return message.replace("web-7f697fd8bb-2j8kt", "web").replace("web-7f697fd8bb-hdztp", "web")

    assert (status, body["reason"]) == (recorded["status"], recorded["body"]["reason"])
    message = words(recorded["body"]["message"]).split("\n")[0]
    assert body["message"].split("\n")[0] == message
    assert ("\n" in body["message"]) is ("\n" in recorded["body"]["message"])
    assert images(web.get("Pod", "inplace", "web")) == ["registry.example/app:1", OLD]


def test_a_wrong_uid_and_an_old_version_are_refused(web):
    for index in (19, 20):
        status, body = patch(web, request_of(index))
        assert status == numbered("in-place")[index]["response"]["status"]
        assert body["reason"] == in_place_answer(index)["reason"]


def test_the_same_image_again_changes_nothing(web):
    before = web.get("Pod", "inplace", "web")
    status, body = patch(web, {"spec": {"containers": [{"name": "mesh-proxy", "image": OLD}]}})
    assert status == numbered("in-place")[21]["response"]["status"] == 200
    assert body["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_dry_run_stores_nothing(web):
    status, body = patch(web, {"spec": request_of(2)["spec"]}, query="?dryRun=All")
    assert (status, images(body)[1]) == (200, NEW)
    assert images(web.get("Pod", "inplace", "web"))[1] == OLD


def test_the_order_of_two_containers_matters(web):
    both = [{"name": "app", "image": "a:2"}, {"name": "mesh-proxy", "image": NEW}]
    assert patch(web, {"spec": {"containers": both}}, query="?dryRun=All")[0] == 200
    status, body = patch(web, {"spec": {"containers": both[::-1]}}, query="?dryRun=All")
    assert status == numbered("in-place")[133]["response"]["status"] == 422
    assert body["message"].split(": ")[1:3] == in_place_answer(133)["message"].split(": ")[1:3]


def a_native_pod(cluster, name: str, node: str) -> None:
    spec = pod_spec(
        container("web", "registry.example/app:1"),
        init=(container("setup", "registry.example/setup:1"), native("mesh-proxy", OLD)),
        nodeName=node,
    )
    cluster.create("inplace", pod(name, spec))
    cluster.settle()


def test_a_native_sidecar_is_restarted_and_an_init_container_is_not(web):
    a_native_pod(web, "native", "node-1")
    assert patch(web, request_of(57), name="native")[0] == 200
    steps = watch(web, "native", until=lambda now: now[3] == NEW and now[2])
    assert steps[-1] == look(in_place_answer(62))
    setup = {"spec": {"initContainers": [{"name": "setup", "image": "registry.example/setup:2"}]}}
    assert patch(web, setup, name="native")[0] == 200
    web.wait_for(lambda: web.get("Pod", "inplace", "native")["status"]["observedGeneration"] == 3)
    assert look(web.get("Pod", "inplace", "native"), "setup")[3] == "registry.example/setup:1"


def test_a_kubelet_before_native_sidecars_does_nothing(web):
    a_native_pod(web, "native-old", "node-3")
    before = look(web.get("Pod", "inplace", "native-old"))
    assert patch(web, request_of(68), name="native-old")[0] == 200
    web.wait_for(
        lambda: web.get("Pod", "inplace", "native-old")["status"]["observedGeneration"] == 2
    )
    found = web.get("Pod", "inplace", "native-old")
    assert look(found) == before == look(in_place_answer(70))
    assert found["spec"]["initContainers"][1]["image"] == NEW


@pytest.mark.parametrize("code", [0, 137])
def test_a_native_sidecar_that_ended_well_shows_no_pull_error(web, code):
    a_native_pod(web, "native-broken", "node-1")
    web.kubelet.exit_code = code
    patch(web, request_of(106), name="native-broken")
    ended = "terminated" if code == 0 else "waiting"
    last = watch(
        web, "native-broken", until=lambda now: now[0] == ended and now[1] != "ErrImagePull"
    )[-1]
    if code == 0:
        assert last == look(in_place_answer(109))
    else:
        assert last[1] == "ImagePullBackOff"


def test_pod_security_is_checked_and_so_are_policies(web):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    web.change("Namespace", "", "inplace", {"metadata": {"labels": labels}})
    status, body = patch(web, {"spec": request_of(120)["spec"]})
    assert (status, body["reason"]) == (403, in_place_answer(120)["reason"])
    assert body["message"].startswith(
        'pods "web" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation'
    )
    web.change("Namespace", "", "inplace", {"metadata": {"labels": {next(iter(labels)): None}}})

    def deny(found: dict) -> None:
        message = in_place_answer(121)["message"].replace("web-7f697fd8bb-hdztp", "web")
        raise admission.Refused(422, "Invalid", message)

    web.server.image_policy = deny
    for query in ("", "?dryRun=All"):
        status, body = patch(web, {"spec": request_of(121)["spec"]}, query=query)
        assert (status, "denied request" in body["message"]) == (422, True)
    assert images(web.get("Pod", "inplace", "web"))[1] == OLD


def test_the_permission_is_patch_pods(web):
    rules = [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]
    web.kubeconfig_of("viewer", rules)
    context = ssl.create_default_context(cadata=web.authority)
    connection = http.client.HTTPSConnection("127.0.0.1", web.port, context=context)
    headers = {
        "Content-Type": "application/strategic-merge-patch+json",
        "Authorization": "Bearer token-of-viewer",
    }
    connection.request("PATCH", "/api/v1/namespaces/inplace/pods/web", "{}", headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert answer["code"] == numbered("in-place")[118]["response"]["status"] == 403
    assert 'User "viewer" cannot patch resource "pods"' in answer["message"]
    assert 'User "viewer" cannot patch resource "pods"' in in_place_answer(118)["message"]


def test_owners_leave_a_patched_pod_alone(cluster):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    name = cluster.pods("shop")[0]["metadata"]["name"]
    before = {p["metadata"]["uid"] for p in cluster.pods("shop")}
    change = {"spec": {"containers": [{"name": "istio-proxy", "image": "x:2"}]}}
    cluster.change("Pod", "shop", name, change)
    cluster.wait_for(
        lambda: any(
            s["image"] == "x:2" and s["ready"]
            for s in cluster.get("Pod", "shop", name)["status"]["containerStatuses"]
        )
    )
    assert {p["metadata"]["uid"] for p in cluster.pods("shop")} == before


def test_kubectl_sets_an_image(web):
    words = ["set", "image", "pod/web", "mesh-proxy=registry.example/mesh-proxy:2", "-n", "inplace"]
    ended = subprocess.run(
        [KUBECTL, "--kubeconfig", web.kubeconfig, *words], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, "pod/web image updated\n"), ended.stderr
    assert images(web.get("Pod", "inplace", "web"))[1] == "registry.example/mesh-proxy:2"
