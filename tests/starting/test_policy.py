"""deploy/policy.yaml on a real control plane: what the tokens of the CronJobs can do, and what they cannot."""

from __future__ import annotations

import fcntl
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3
from clusters.control_plane.api import path_of
from clusters.embedded.manifests import container, pod_spec, replicated, workload
from clusters.embedded.server import STRATEGIC
from support import (
    CONFIRM,
    DRIFTED,
    KUBECTL,
    NEW,
    TOP,
    arguments,
    documents,
    upgrade,
)

pytestmark = pytest.mark.real

ACCOUNTS = "sidecar-rollout"
PATCH = ("patch", "--type=strategic", "-p")


@pytest.fixture
def kubectl(shared) -> Callable[..., subprocess.CompletedProcess]:
    """kubectl(*arguments, token=...): how the real kubectl ends, as an administrator or with a token."""
    admin = str(shared.folder / "kubeconfig")

    def run(*words: str, token: str = "", stdin: str | None = None) -> subprocess.CompletedProcess:
        who = ["--kubeconfig", admin]
        if token:
            server = ["--server", shared.api.url, "--insecure-skip-tls-verify"]
            who = ["--kubeconfig=/dev/null", *server, "--token", token]
        return subprocess.run(
            [KUBECTL, *who, *words], cwd=TOP, input=stdin, capture_output=True, text=True
        )

    return run


@pytest.fixture
def applied(kubectl, shared) -> Iterator[None]:
    """The manifests as the README applies them, with bindings for evictions and changes in place.

    Policies are of the whole cluster, which several processes of tests share: one test at a time.
    """
    with (shared.folder / "policy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = kubectl("apply", "-k", "deploy")
        assert done.returncode == 0, done.stderr
        for name in ("evict", "in-place"):
            role = f"sidecar-rollout-{name}"
            account = f"--serviceaccount={ACCOUNTS}:sidecar-rollout"
            kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)
        yield


@pytest.fixture
def token(applied, kubectl) -> Callable[[str], str]:
    def create(account: str) -> str:
        return kubectl("create", "token", account, "--namespace", ACCOUNTS).stdout.strip()

    return create


@pytest.fixture
def guarded(applied, cluster, kubectl, token):
    """Workloads of each kind with an outdated sidecar, and policies that act."""
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        cluster.create("shop", workload(kind, f"a-{kind.lower()}"))
    cluster.settle()
    # The API server reads of policies in the background.
    pod = json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "evil"},
            "spec": pod_spec(),
        }
    )
    place = ("--namespace", cluster.names.real("shop"))
    own = token("sidecar-rollout")

    def is_pod_denied() -> bool:
        tried = kubectl("create", "-f", "-", *place, token=own, stdin=pod)
        kubectl("delete", "pod", "evil", "--ignore-not-found", "--wait=false", *place)
        return "denied request" in tried.stderr

    numbers = itertools.count()

    def is_label_denied() -> bool:
        patch = json.dumps({"metadata": {"labels": {"number": str(next(numbers))}}})
        tried = kubectl(*PATCH, patch, "deployment/a-deployment", *place, token=own)
        return "denied request" in tried.stderr

    cluster.wait_for(is_pod_denied)
    cluster.wait_for(is_label_denied)
    return cluster


def template(part: dict) -> dict:
    return {"spec": {"template": part}}


ANNOTATION = {"sidecarRollout.rollout.timestamp": "x"}
RESTART = template({"metadata": {"annotations": ANNOTATION}})
HOST = {"name": "host", "hostPath": {"path": "/"}}
ATTACKS = {
    "an image": template({"spec": {"containers": [{"name": "app", "image": "evil"}]}}),
    "a container": template({"spec": {"containers": [{"name": "x", "image": "evil"}]}}),
    "a volume": template({"spec": {"volumes": [HOST]}}),
    "another ServiceAccount": template({"spec": {"serviceAccountName": "admin"}}),
    "a label of the template": template({"metadata": {"labels": {"a": "b"}}}),
    "an annotation as good as code": template(
        {"metadata": {"annotations": {"sidecar.istio.io/proxyImage": "evil"}}}
    ),
    "a name that only looks like ours": template(
        {"metadata": {"annotations": {"x.rollout.timestamp.evil": "x"}}}
    ),
    "replicas": {"spec": {"replicas": 0}},
    "a setting of the rollout": {"spec": {"minReadySeconds": 9}},
    "a label": {"metadata": {"labels": {"a": "b"}}},
    "an annotation of the workload": {"metadata": {"annotations": ANNOTATION}},
    "a finalizer": {"metadata": {"finalizers": ["a/b"]}},
    "an owner": {
        "metadata": {
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}]
        }
    },
}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_of_a_workload_only_the_annotations_of_a_rollout_may_change(guarded, kubectl, token, kind):
    name = f"{kind.lower()}/a-{kind.lower()}"
    place = ("--namespace", guarded.names.real("shop"))
    own = token("sidecar-rollout")

    def attack(item: tuple[str, dict]) -> tuple[str, str]:
        tried = kubectl(*PATCH, json.dumps(item[1]), name, *place, token=own)
        return item[0], tried.stderr or tried.stdout

    attacks = {
        what: patch for what, patch in ATTACKS.items() if kind != "DaemonSet" or what != "replicas"
    }
    with ThreadPoolExecutor(4) as pool:
        answers = dict(pool.map(attack, attacks.items()))
    assert [
        what for what, text in answers.items() if "denied request: sidecar-rollout" not in text
    ] == []
    done = kubectl(*PATCH, json.dumps(RESTART), name, *place, token=own)
    assert (done.returncode, done.stderr) == (0, "")
    removed = template({"metadata": {"annotations": {next(iter(ANNOTATION)): None}}})
    tried = kubectl(*PATCH, json.dumps(removed), name, *place, token=own)
    assert "and may remove none" in tried.stderr
    restarted = template({"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "x"}}})
    assert kubectl(*PATCH, json.dumps(restarted), name, *place, token=own).returncode == 0


@pytest.mark.parametrize("account", ["sidecar-rollout", "sidecar-rollout-audit"])
def test_pods_are_created_only_in_dry_runs(guarded, kubectl, token, account):
    evil = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "evil", "namespace": "kube-system"},
        "spec": {
            "hostPID": True,
            "containers": [container("x", "x", securityContext={"privileged": True})],
        },
    }
    own = token(account)
    tried = kubectl("create", "-f", "-", token=own, stdin=json.dumps(evil))
    assert "denied request: sidecar-rollout may create Pods only in a dry run" in tried.stderr
    dry = kubectl("create", "-f", "-", "--dry-run=server", token=own, stdin=json.dumps(evil))
    assert (dry.returncode, dry.stdout) == (0, "pod/evil created (server dry run)\n")


def test_of_a_pod_only_the_images_of_the_listed_containers_may_change(guarded, shared, token):
    (found,) = [p for p in guarded.pods("shop") if "a-deployment" in p["metadata"]["name"]]
    path = path_of("pods", guarded.names.real("shop"), found["metadata"]["name"])
    headers = {"Authorization": f"Bearer {token('sidecar-rollout')}", "Content-Type": STRATEGIC}
    pool = urllib3.PoolManager(ca_cert_data=shared.api.authority)

    def patch(body: dict) -> dict:  # kubectl would get the Pod first, which the token may not
        url = f"{shared.api.url}{path}"
        return pool.request("PATCH", url, body=json.dumps(body), headers=headers).json()

    def image(of: str) -> dict:
        return {"spec": {"containers": [{"name": of, "image": "other"}]}}

    numbers = itertools.count()
    label = {"metadata": {"labels": {"number": ""}}}

    def is_label_denied() -> bool:
        label["metadata"]["labels"]["number"] = str(next(numbers))
        return "denied request" in patch(label).get("message", "")

    guarded.wait_for(is_label_denied)
    for body in (
        image("app"),
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"tolerations": [*found["spec"]["tolerations"], {"operator": "Exists"}]}},
    ):
        assert "denied request: sidecar-rollout" in patch(body)["message"], body
    assert patch(image("istio-proxy"))["kind"] == "Pod"


def test_a_token_of_another_namespace_is_not_meant(guarded, kubectl):
    """People and their tools go on as before."""
    place = ("--namespace", guarded.names.real("shop"))
    done = kubectl(*PATCH, json.dumps(ATTACKS["an image"]), "deployment/a-deployment", *place)
    assert done.returncode == 0


def test_nothing_is_restarted_in_the_namespaces_that_the_cron_job_leaves_out(
    kubectl, token, applied
):
    """Whoever has its token cannot restart the cluster's own workloads either."""
    own = token("sidecar-rollout")
    deployment = workload("Deployment", "victim")
    restart = {"spec": {"template": {"metadata": {"annotations": {"x.rollout.timestamp": "now"}}}}}
    place = ("--namespace", "kube-system")
    assert kubectl("apply", "-f", "-", *place, stdin=json.dumps(deployment)).returncode == 0
    try:
        tried = kubectl(*PATCH, json.dumps(restart), "deployment/victim", *place, token=own)
        said = "sidecar-rollout may not restart anything in this namespace"
        assert (tried.returncode, said in tried.stderr) == (1, True), tried.stderr
    finally:
        kubectl("delete", "deployment/victim", *place, "--wait=false")


def test_without_the_policies_the_attacks_succeed(guarded, kubectl, token):
    """So it is the policies that deny them."""
    kubectl("delete", "-f", "deploy/policy.yaml")
    place = ("--namespace", guarded.names.real("shop"))
    own = token("sidecar-rollout")
    try:
        for what, body in ATTACKS.items():
            name = "deployment/a-deployment"

            def is_done(body=body, name=name) -> bool:
                return kubectl(*PATCH, json.dumps(body), name, *place, token=own).returncode == 0

            if what != "an owner":  # which the garbage collector would act on
                guarded.wait_for(is_done)
    finally:
        assert kubectl("apply", "-f", "deploy/policy.yaml").returncode == 0


def kubeconfig_with(guarded, token: str) -> str:
    return guarded.write_kubeconfig("config-of-job", {"token": token})


def test_the_jobs_of_both_cron_jobs_run_with_their_tokens(guarded, kubectl, token, run):
    """The Job's controller creates its Pod; the tool is run with the arguments of that Pod, as there is no kubelet."""
    upgrade(guarded)
    codes = {}
    for name in ("sidecar-rollout-audit", "sidecar-rollout"):
        job = f"first-{name}"
        place = ("--namespace", ACCOUNTS)
        created = kubectl("create", "job", f"--from=cronjob/{name}", job, *place)
        assert created.returncode == 0, created.stderr
        pods = ("get", "pods", *place, "-l", f"job-name={job}", "-o", "json")
        guarded.wait_for(lambda pods=pods: json.loads(kubectl(*pods).stdout)["items"])
        (pod,) = json.loads(kubectl(*pods).stdout)["items"]
        kubectl("delete", "job", job, *place, "--wait=false")
        assert pod["spec"]["serviceAccountName"] == name
        words = [word for word in pod["spec"]["containers"][0]["args"] if word != "--soak=1m"]
        found = kubeconfig_with(guarded, token(name))
        codes[name] = run(found, *words, f"--include-namespace={guarded.names.real('shop')}")
    audit, rollout = codes["sidecar-rollout-audit"], codes["sidecar-rollout"]
    assert (audit.code, len(audit.planned)) == (1, 3), audit.stderr
    # A StatefulSet of one Pod is away while it is restarted.
    assert rollout.outcomes == {"shop/a-daemonset": "succeeded", "shop/a-deployment": "succeeded"}
    assert rollout.code == 0


def test_evictions_and_changes_in_place_work(guarded, kubectl, token, run):
    guarded.create("shop", replicated("ReplicaSet", "lone"))
    guarded.settle()
    upgrade(guarded)
    found = kubeconfig_with(guarded, token("sidecar-rollout"))
    here = f"--include-namespace={guarded.names.real('shop')}"
    ended = run(found, here, DRIFTED, CONFIRM, "--in-place", "deployment/*")
    assert ended.outcomes == {"shop/a-deployment": "succeeded"}, ended.stderr
    assert {r["method"] for r in ended.of("plan")} == {"in_place"}
    ended = run(found, here, DRIFTED, CONFIRM, "--evict", "rs/lone")
    assert ended.outcomes == {"shop/lone": "succeeded"}, ended.stderr
    images = {
        c["image"]
        for p in guarded.pods("shop")
        for c in p["spec"]["containers"]
        if c["name"] == "istio-proxy" and p["metadata"]["name"].startswith(("lone", "a-deployment"))
    }
    assert images == {NEW}


def test_the_policies_name_what_the_manifests_have():
    names = {d["metadata"]["name"] for d in documents("policy.yaml")}
    assert names == {
        f"sidecar-rollout-{what}" for what in ("pods", "workloads", "images", "namespaces")
    }
    assert arguments("cronjob.yaml")[0] == "--sidecar-container-name=istio-proxy"
