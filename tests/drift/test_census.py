"""What runs now, over all Pods, whoever owns them."""

from __future__ import annotations

import signal
import threading

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import BOTH, CONFIRM, DRIFTED, NEW, TEXT, sidecar_table, upgrade

pytestmark = pytest.mark.both

OLD = "docker.io/istio/proxyv2:1.26.2"
PROXY = container("istio-proxy", OLD)
AUDIT = (DRIFTED, "--fail-on-drift")


@pytest.fixture
def company(cluster):
    """Workloads of all kinds, and Pods of other owners, with an old sidecar; well is up to date."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.create("shop", replicated("ReplicaSet", "lone"))
    cluster.create_job("shop", "backup", pod_spec())
    node = ("v1", "Node", "node-1")
    cluster.create("shop", pod("static", pod_spec(container("app"), PROXY), node))
    cluster.settle()
    cluster.injector.container["image"] = NEW
    cluster.create("shop", workload("Deployment", "well", replicas=3))
    cluster.settle()
    return cluster


def test_what_runs_now_and_why_it_is_not_up_to_date(company, run):
    ended = run(company, DRIFTED, TEXT)
    assert sidecar_table(ended) == [
        "istio-proxy 1.26.2 7 0 2 5 (3 kind not selected, 1 running to completion, 1 static Pod)",
        "istio-proxy 1.27.0 3 3 0 0",
    ]
    sidecars = run(company, DRIFTED).summary["sidecars"]
    left = {"kind_not_selected": 3, "static_pod": 1, "running_to_completion": 1}
    proxy = {"name": "istio-proxy"}
    assert sidecars == [
        {**proxy, "image": OLD, "pods": 7, "up_to_date": 0, "old": 2, "left": left},
        {**proxy, "image": NEW, "pods": 3, "up_to_date": 3, "old": 0, "left": {}},
    ]


def test_without_a_comparison_it_is_versions_alone(company, run):
    table = sidecar_table(run(company, TEXT))
    assert table == ["istio-proxy 1.26.2 7", "istio-proxy 1.27.0 3"]


def test_after_a_run_it_says_what_is_left(company, run):
    ended = run(company, DRIFTED, CONFIRM, TEXT, "--include-statefulset")
    assert ended.code == 0  # the rest was not selected
    assert sidecar_table(ended) == [
        "istio-proxy 1.26.2 3 0 0 3 (1 kind not selected, 1 running to completion, 1 static Pod)",
        "istio-proxy 1.27.0 7 7 0 0",
    ]
    left = run(company, DRIFTED, "--include-statefulset").summary["leftovers"]
    codes = {pod["workload"]["name"]: pod["code"] for pod in left}
    assert codes["lone"] == "kind_not_selected"


def test_what_failed_is_named_by_its_outcome(company, run):
    company.fault(method="PATCH", path="deployments/web", status=422, body={"message": "no"})
    ended = run(company, DRIFTED, CONFIRM)
    old = ended.summary["sidecars"][0]["left"]
    assert old == {"failed": 2, "kind_not_selected": 3, "static_pod": 1, "running_to_completion": 1}
    left = [(r["code"], r["workload"]["kind"]) for r in ended.summary["leftovers"]]
    assert ("failed", "Deployment") in left
    assert ("static_pod", "Node") in left or ("static_pod", "Pod") in left
    assert len(left) == 6


def test_each_version_has_its_row(cluster, run):
    for number in range(7):
        cluster.injector.container["image"] = f"istio/proxyv2:1.{number}"
        cluster.create("shop", workload("Deployment", f"w{number}"))
        cluster.settle()
    assert sidecar_table(run(cluster, TEXT)) == [f"istio-proxy 1.{n} 1" for n in range(7)]


def test_pods_outside_the_selection_do_not_count(company, run):
    """Those that a name leaves out were read with the others, and stand in the table."""
    company.namespace("other", inject=True)
    company.create("other", workload("Deployment", "web"))
    company.settle()
    assert sidecar_table(run(company, TEXT, "-n=other")) == ["istio-proxy 1.27.0 1"]
    web = ["istio-proxy 1.26.2 2 0 2 0"]
    assert sidecar_table(run(company, TEXT, DRIFTED, "-n=shop", "-l=app=web")) == web
    assert sidecar_table(run(company, TEXT, DRIFTED, "-n=shop", "deploy/web")) == [
        "istio-proxy 1.26.2 7 0 2 5 (5 not named)",
        "istio-proxy 1.27.0 3 0 0 3 (3 not named)",
    ]


@pytest.mark.embedded("there are namespaces of other tests")
def test_pods_in_excluded_namespaces_do_not_count(company, run):
    excluded = run(company, "-n=*", "--exclude-namespace=shop", DRIFTED)
    assert excluded.summary["sidecars"] == []
    assert excluded.summary["namespaces"] == ["*"]


def test_every_owner_is_compared(company, run):
    ended = run(company, DRIFTED)
    assert ended.planned == ["shop/web"]
    names = [p["metadata"]["name"] for p in company.pods("shop")]
    (backup,) = [name for name in names if name.startswith("backup")]
    assert ended.skipped == {
        "StatefulSet shop/db": "kind_not_selected",
        "ReplicaSet shop/lone": "kind_not_selected",
        f"Pod shop/{backup}": "running_to_completion",
        "Pod shop/static": "static_pod",
    }


def test_an_audit_fails_for_whatever_is_not_up_to_date(company, run):
    ended = run(company, *AUDIT, TEXT)
    assert ended.code == 1
    reasons = "3 kind not selected, 2 drifted, 1 static Pod"
    assert ended.stdout.splitlines()[-1] == f"Failed: 6 not up to date ({reasons})."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-n=monitoring"], "4 not up to date (3 kind not selected, 1 without controller)"),
        (
            ["-n=monitoring", "--exclude-annotation=team/debug=true"],
            "3 not up to date (3 kind not selected)",
        ),
        (
            ["-n=monitoring", "deploy/debu*"],
            "no Pod was checked (no Pods of deployment/debu* have istio-proxy)",
        ),
        (
            ["-n=monitoring", "-l=app=none"],
            "no Pod was checked (no Pod has a container named istio-proxy; "
            "no Pods that match the selector in namespace monitoring)",
        ),
    ],
)
def test_an_audit_fails_closed(cluster, run, options, said):
    cluster.namespace("monitoring", inject=True)
    cluster.create("monitoring", workload("DaemonSet", "node-exporter"))
    debug = pod("debug", pod_spec(container("app"), PROXY))
    debug["metadata"]["annotations"] = {"team/debug": "true"}
    cluster.create("monitoring", debug)
    cluster.settle()
    cluster.injector.container["image"] = NEW
    ended = run(cluster, *AUDIT, TEXT, *options)
    assert (ended.code, ended.stdout.splitlines()[-1]) == (1, f"Failed: {said}.")


def test_kinds_that_may_not_be_read_are_not_checked(company, run):
    everything = {"verbs": ["*"], "apiGroups": ["*"]}
    rules = [
        {**everything, "resources": ["pods", "deployments", "replicasets", "namespaces"]},
        {**everything, "resources": ["endpointslices"]},
    ]
    ended = run(company.kubeconfig_of("team", rules), *AUDIT, TEXT, "-n=shop")
    assert ended.code == 1
    assert "StatefulSet shop/db" in ended.stdout
    assert (
        ended.stdout.splitlines()[-1]
        == "Failed: 6 not up to date (2 drifted, 2 gone, 1 kind not selected, 1 static Pod)."
    )


@pytest.mark.embedded("its garbage collector removes Pods of a Job that does not exist")
@pytest.mark.parametrize(
    "owner", [None, ("batch/v1", "Job", "x"), ("kubeflow.org/v1", "TFJob", "x")]
)
@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_only_pods_of_jobs_are_excused(cluster, run, owner, policy):
    """Virtual machines, notebooks and steps of a workflow may run for months."""
    cluster.create("shop", workload("Deployment", "web"))
    spec = pod_spec(container("app"), PROXY)
    cluster.create("shop", pod("ends", {**spec, "restartPolicy": policy}, owner))
    cluster.settle()
    ended = run(cluster, *AUDIT, TEXT)
    is_job = bool(owner) and owner[1] == "Job"
    why = "running to completion" if is_job else "restartPolicy not Always"
    expected = [f"istio-proxy 1.26.2 2 1 0 1 (1 {why})"]
    assert (ended.code, sidecar_table(ended)) == (int(not is_job), expected)


def test_pods_beside_one_that_is_not_restarted_are_not_checked_either(cluster, run):
    for name, policy in (("a", "Always"), ("b", "Never"), ("c", "Never")):
        spec = pod_spec(container("app"), PROXY, restartPolicy=policy)
        cluster.create("shop", pod(name, spec, ("kubeflow.org/v1", "TFJob", "train")))
    cluster.settle()
    ended = run(cluster, *AUDIT, TEXT)
    assert (ended.code, ended.stdout.splitlines()[-1]) == (
        1,
        "Failed: 3 not up to date (3 restartPolicy not Always).",
    )
    assert sidecar_table(ended)[0].endswith(" 0 0 3 (3 restartPolicy not Always)")


def test_pods_of_jobs_are_as_they_should_be(cluster, run):
    cluster.create_job("shop", "backup", pod_spec())
    cluster.settle()
    cluster.injector.container["image"] = NEW
    audit = run(cluster, *AUDIT)
    assert (audit.code, audit.summary["failed"]) == (1, {"nothing_checked": 1})
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    assert run(cluster, *AUDIT).code == 0


@pytest.mark.embedded("deletes something between two requests")
def test_pods_that_lose_their_owner_meanwhile_have_no_controller(cluster, run):
    """Nobody knows what they should be like."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", replicated("ReplicaSet", "left", replicas=2))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 60)
    upgrade(cluster)

    def after(request, code, content) -> None:
        if request.method == "PATCH" and cluster.get("ReplicaSet", "shop", "left"):
            cluster.delete("ReplicaSet", "shop", "left", orphan=True)

    cluster.server.after = after
    ended = run(cluster, CONFIRM, DRIFTED)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert [found["code"] for found in ended.summary["leftovers"]] == ["without_controller"] * 2


def test_it_is_left_out_if_pods_cannot_be_listed_again(company, start):
    held = company.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(company, CONFIRM, RETRIES="2")
    assert held.reached.wait(20)
    company.fault(path=r"/api/v1/pods\?", status=403, body={"message": "no"}, times=99)
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.summary["failed"]) == (1, {"pods_not_listed": 1})
    assert (ended.summary["sidecars"], ended.summary["leftovers"]) == (None, None)
    assert "cannot list Pods again, to count their sidecars: 403 no" in ended.stderr


def test_a_run_whose_pods_cannot_be_listed_again_fails(company, start):
    """The API server is not available: nobody knows what runs now."""
    held = company.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(company, CONFIRM, RETRIES="2")
    assert held.reached.wait(20)
    company.fault(path=r"/api/v1/pods\?", status=401, body={"message": "no"}, times=99)
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.summary["failed"]) == (1, {"pods_not_listed": 1})


def test_the_second_signal_ends_a_list_of_pods_that_hangs(company, start):
    patched = company.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(company, CONFIRM)
    assert patched.reached.wait(20)
    held = company.fault(path=r"/api/v1/pods\?", release=threading.Event())
    patched.release.set()
    assert held.reached.wait(20)
    running.signal(signal.SIGINT)
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=5)
    held.release.set()
    assert (ended.code, ended.summary["sidecars"]) == (130, None)
    assert ended.outcomes["shop/web"] == "succeeded"
    assert "nothing was changed" not in ended.stderr


def test_of_several_containers_a_pod_stands_in_the_row_of_its_first(cluster, run):
    cluster.injector.also = {"containers": [container("agent", "agent:7")]}
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    names = ("--sidecar-container-name=istio-proxy", "--sidecar-container-name=agent")
    ended = run(cluster, TEXT, *names, *BOTH)
    assert sidecar_table(ended) == ["agent 7 2"]
    assert [row["pods"] for row in run(cluster, *names).summary["sidecars"]] == [2]


def test_what_an_annotation_does_not_include_is_excluded(company, run):
    ended = run(
        company,
        *AUDIT,
        TEXT,
        "--include-annotation=team/roll=out",
        "-n=shop",
        "-l=app in (web,well)",
    )
    assert (ended.code, ended.stdout.splitlines()[-1]) == (1, "Failed: no Pod was checked.")
    assert sidecar_table(ended) == [
        "istio-proxy 1.26.2 2 0 0 2 (2 not included)",
        "istio-proxy 1.27.0 3 0 0 3 (3 not included)",
    ]


def test_a_sidecar_that_stands_in_the_template_is_up_to_date(cluster, run):
    """A restart never changes it, and people look for it after a CVE."""
    cluster.namespace("legacy")
    own = pod_spec(containers=[container("app"), container("istio-proxy", OLD)])
    cluster.create("legacy", workload("Deployment", "fax", own, replicas=2))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster, DRIFTED, TEXT)
    assert sidecar_table(ended) == ["istio-proxy 1.26.2 3 3 0 0"]


@pytest.mark.parametrize(
    "image",
    ["docker.io/istio/proxyv2:1.99.0", None],
    ids=["another version", "rolled back"],
)
def test_what_the_plan_did_not_show_is_left_and_named(cluster, start, image):
    """The injector is upgraded again, or rolled back, between the plan and the rollout."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    before = cluster.injector.container["image"]
    upgrade(cluster)
    held = cluster.fault(method="GET", path="/deployments/web$", release=threading.Event())
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    cluster.injector.container["image"] = image or before
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "skipped"})
    assert [pod["code"] for pod in ended.summary["leftovers"]] == ["another_sidecar"]


def test_a_run_of_one_workload_shows_what_its_last_list_saw(cluster, run):
    for name in ("canary", "web"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM, TEXT, "deployment/canary")
    assert (ended.code, sidecar_table(ended)) == (
        0,
        ["istio-proxy 1.26.2 1 0 0 1 (1 not named)", "istio-proxy 1.27.0 1 1 0 0"],
    )


def test_pods_of_a_workload_that_came_during_the_run_are_unknown(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    upgrade(cluster)
    held = cluster.fault(method="PATCH", path="/deployments/", release=threading.Event())
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    cluster.create("shop", workload("Deployment", "late", pod_spec(container("app"), PROXY)))
    cluster.settle()
    held.release.set()
    ended = running.finish()
    (left,) = ended.summary["leftovers"]
    assert (ended.code, left["code"], left["name"].startswith("late-")) == (0, "unknown", True)
