"""What a change of a live Pod's image answers, and what it leads to, on the embedded cluster as on a real control plane.

The kubelet of both is the same stand-in; test_kubelet_of_the_cluster.py holds it to a real one.
"""

from __future__ import annotations

import subprocess

import pytest
from clusters.embedded import admission, is_ready
from clusters.embedded.manifests import container, native, pod, pod_spec, workload
from clusters.embedded.server import STRATEGIC
from support import KUBECTL, Answer, ask

pytestmark = pytest.mark.both

REGISTRY = "registry.example"
OLD, NEW = f"{REGISTRY}/mesh-proxy:1.0.0", f"{REGISTRY}/mesh-proxy:1.1.0"
BROKEN, NEVER_READY = f"{REGISTRY}/mesh-proxy-broken:2", f"{REGISTRY}/mesh-proxy-neverready:3"
READY = ("running", None, True)
# Containers of a Pod may not change otherwise
IMAGES_ONLY = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions "
    "to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it "
    "was previously negative)"
)


@pytest.fixture
def web(cluster):
    """A Pod with two containers."""
    cluster.namespace("inplace")
    spec = pod_spec(
        container("app", f"{REGISTRY}/app:1", env=[{"name": "A", "value": "1"}]),
        container("mesh-proxy", OLD, env=[{"name": "PROXY_LOG_LEVEL", "value": "warn"}]),
    )
    cluster.create("inplace", pod("web", spec))
    cluster.settle()
    return cluster


def patch(
    cluster, body: object, name: str = "web", query: str = "", kubeconfig: str = ""
) -> Answer:
    path = f"/api/v1/namespaces/inplace/pods/{name}{query}"
    return ask(cluster, "PATCH", path, body, kubeconfig=kubeconfig, content_type=STRATEGIC)


def to(image: str | None, name: str = "mesh-proxy", key: str = "containers", **more) -> dict:
    """The patch that gives a container an image."""
    return {"spec": {key: [{"name": name, "image": image, **more}]}}


def native_to(image: str, name: str = "mesh-proxy") -> dict:
    return to(image, name, "initContainers")


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
    answer = patch(web, {"metadata": {"uid": before["metadata"]["uid"]}, **to(NEW)})
    assert (answer.status, answer.body["metadata"]["generation"]) == (200, 2)
    steps = watch(web, until=lambda now: now[3] == NEW and now[2])
    assert steps[0] == (*READY, OLD, None, True, "Running")
    assert steps[-1] == (*READY, NEW, "Completed", True, "Running")
    found = web.get("Pod", "inplace", "web")
    for name, restarts in (("app", 0), ("mesh-proxy", 1)):
        old, new = (
            next(c for c in each["status"]["containerStatuses"] if c["name"] == name)
            for each in (before, found)
        )
        assert new["restartCount"] == restarts
        assert (new["containerID"] == old["containerID"]) is (name == "app")
    assert found["status"]["observedGeneration"] == 2


def test_the_generation_is_observed_before_anything_happens(web):
    """It does not tell whether the container was restarted."""
    web.kubelet.step = 60
    patch(web, to(NEW))
    web.wait_for(lambda: web.get("Pod", "inplace", "web")["status"]["observedGeneration"] == 2)
    assert look(web.get("Pod", "inplace", "web")) == (*READY, OLD, None, True, "Running")


def test_an_image_that_cannot_be_pulled_leaves_the_container_dead(web):
    slowly(web)
    patch(web, to(BROKEN))
    steps = watch(web, until=lambda now: now[1] == "ImagePullBackOff")
    assert steps[-1] == ("waiting", "ImagePullBackOff", False, OLD, "Completed", False, "Running")
    assert steps[-2][1] == "ErrImagePull"
    statuses = web.get("Pod", "inplace", "web")["status"]["containerStatuses"]
    assert statuses[1]["restartCount"] == 0
    patch(web, to(OLD))
    assert watch(web, until=lambda now: now[2])[-1][:3] == READY


def test_one_that_crashes_and_one_that_never_gets_ready(web):
    patch(web, to("x/crashing:3"))
    last = watch(web, until=lambda now: now[0] == "waiting")[-1]
    wanted = ("waiting", "CrashLoopBackOff", False, "x/crashing:3", "Error", False, "Running")
    assert last == wanted
    patch(web, to(NEVER_READY))
    last = watch(web, until=lambda now: "neverready" in now[3])[-1]
    assert (last[:4], last[5:]) == (("running", None, False, NEVER_READY), (False, "Running"))


ENVIRONMENT = [{"name": "PROXY_LOG_LEVEL", "value": "debug"}]
ANNOTATED = {"metadata": {"annotations": {"x": "y"}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (to(NEW, "mesh-prox"), "spec.containers: Forbidden: pod updates may not add or remove"),
        (to(NEW, env=ENVIRONMENT), IMAGES_ONLY),
        ({**ANNOTATED, **to(NEW, resources={"limits": {"cpu": "2"}})}, IMAGES_ONLY),
        (to(""), "spec.containers[1].image: Required value"),
        (to(None), "spec.containers[1].image: Required value"),
        (
            to(f" {NEW}"),
            f'spec.containers[1].image: Invalid value: " {NEW}": must not have leading',
        ),
    ],
)
def test_other_changes_are_refused(web, change, message):
    answer = patch(web, change)
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    first, *more = answer.body["message"].split("\n")
    assert first.startswith(f'Pod "web" is invalid: {message}')
    assert bool(more) is (message == IMAGES_ONLY)  # what would change
    assert images(web.get("Pod", "inplace", "web")) == [f"{REGISTRY}/app:1", OLD]


def test_a_wrong_uid_and_an_old_version_are_refused(web):
    old = web.get("Pod", "inplace", "web")["metadata"]["resourceVersion"]
    web.change("Pod", "inplace", "web", {"metadata": {"labels": {"x": "y"}}})
    conflict = patch(web, {"metadata": {"resourceVersion": old}, **to(NEW)})
    assert (conflict.status, conflict.body["reason"]) == (409, "Conflict")
    another = patch(web, {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}, **to(NEW)})
    assert (another.status, another.body["reason"]) == (422, "Invalid")
    assert images(web.get("Pod", "inplace", "web"))[1] == OLD


def test_the_same_image_again_changes_nothing(web):
    before = web.get("Pod", "inplace", "web")
    answer = patch(web, to(OLD))
    assert answer.status == 200
    assert answer.body["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_dry_run_stores_nothing(web):
    answer = patch(web, to(NEW), query="?dryRun=All")
    assert (answer.status, images(answer.body)[1]) == (200, NEW)
    assert images(web.get("Pod", "inplace", "web"))[1] == OLD


def test_the_order_of_two_containers_matters(web):
    both = [{"name": "app", "image": "a:2"}, {"name": "mesh-proxy", "image": NEW}]
    assert patch(web, {"spec": {"containers": both}}, query="?dryRun=All").status == 200
    answer = patch(web, {"spec": {"containers": both[::-1]}}, query="?dryRun=All")
    assert answer.status == 422
    assert answer.body["message"].startswith(f'Pod "web" is invalid: {IMAGES_ONLY}')


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
    assert patch(web, native_to(NEW), name="native").status == 200
    steps = watch(web, "native", until=lambda now: now[3] == NEW and now[2])
    assert steps[-1] == (*READY, NEW, "Completed", True, "Running")
    setup = native_to(f"{REGISTRY}/setup:2", "setup")
    assert patch(web, setup, name="native").status == 200
    web.wait_for(lambda: web.get("Pod", "inplace", "native")["status"]["observedGeneration"] == 3)
    assert look(web.get("Pod", "inplace", "native"), "setup")[3] == f"{REGISTRY}/setup:1"


def test_a_kubelet_before_native_sidecars_does_nothing(web):
    a_native_pod(web, "native-old", "node-3")
    before = look(web.get("Pod", "inplace", "native-old"))
    assert patch(web, native_to(NEW), name="native-old").status == 200
    web.wait_for(
        lambda: web.get("Pod", "inplace", "native-old")["status"]["observedGeneration"] == 2
    )
    found = web.get("Pod", "inplace", "native-old")
    assert look(found) == before == (*READY, OLD, None, True, "Running")
    assert found["spec"]["initContainers"][1]["image"] == NEW


@pytest.mark.parametrize("code", [0, 137])
def test_a_native_sidecar_that_ended_well_shows_no_pull_error(web, code):
    a_native_pod(web, "native-broken", "node-1")
    web.kubelet.exit_code = code
    patch(web, native_to(BROKEN), name="native-broken")
    ended = "terminated" if code == 0 else "waiting"
    last = watch(
        web, "native-broken", until=lambda now: now[0] == ended and now[1] != "ErrImagePull"
    )[-1]
    if code == 0:
        assert last == ("terminated", "Completed", False, OLD, None, False, "Running")
    else:
        assert last[1] == "ImagePullBackOff"


def test_pod_security_is_checked(web):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    web.change("Namespace", "", "inplace", {"metadata": {"labels": labels}})
    answer = patch(web, to(NEW))
    assert (answer.status, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"].startswith(
        'pods "web" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation'
    )
    assert images(web.get("Pod", "inplace", "web"))[1] == OLD


@pytest.mark.embedded("a policy for images")
def test_a_policy_is_checked_and_in_a_dry_run_too(web):
    def deny(found: dict) -> None:
        message = (
            "pods \"web\" is forbidden: ValidatingAdmissionPolicy 'no-image-change' with binding "
            "'no-image-change' denied request: images of running Pods must not be changed"
        )
        raise admission.Refused(422, "Invalid", message)

    web.server.image_policy = deny
    for query in ("", "?dryRun=All"):
        answer = patch(web, to(NEW), query=query)
        assert (answer.status, "denied request" in answer.body["message"]) == (422, True)
    assert images(web.get("Pod", "inplace", "web"))[1] == OLD


def test_the_permission_is_patch_pods(web):
    rules = [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]
    answer = patch(web, {}, kubeconfig=web.kubeconfig_of("viewer", rules))
    assert answer.status == 403
    assert 'User "viewer" cannot patch resource "pods"' in answer.body["message"]


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
    name = web.translate("inplace")
    words = ["set", "image", "pod/web", f"mesh-proxy={NEW}", "-n", name]
    ended = subprocess.run(
        [KUBECTL, "--kubeconfig", web.kubeconfig, *words], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, "pod/web image updated\n"), ended.stderr
    assert images(web.get("Pod", "inplace", "web"))[1] == NEW
