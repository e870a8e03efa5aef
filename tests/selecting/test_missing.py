"""--include-missing: Pods that should have the sidecar but do not."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import BOTH, CONFIRM, NO_CUTOFF, TEXT, options_of, sidecar_table, verdicts
from texts import NEW_HAVE_NONE, NO_PODS_WITH, WITHOUT_SIDECAR

pytestmark = pytest.mark.both

MISSING = ("--only-drifted", "--include-missing")
IMAGE = "docker.io/istio/proxyv2:1.26.2"


@pytest.fixture
def late(cluster):
    """Workloads of all kinds in a namespace that was labeled later, and one in a namespace that was not."""
    cluster.namespace("late")
    cluster.namespace("plain")
    cluster.create("late", workload("Deployment", "web", replicas=3))
    cluster.create("late", workload("StatefulSet", "db", replicas=2))
    cluster.create("late", workload("DaemonSet", "agent"))
    cluster.create("plain", workload("Deployment", "plain"))
    cluster.create("shop", workload("Deployment", "cart"))
    cluster.settle()
    cluster.turn_on_injection("late")
    return cluster


def test_without_it_they_are_not_found(late, run):
    ended = run(late, "--only-drifted", *BOTH)
    assert verdicts(ended) == {"shop/cart": "up_to_date"}
    assert ended.summary["verdicts"] == {"up_to_date": 1}


def test_those_that_would_get_it_are_in_the_plan_and_the_others_are_not(late, run):
    ended = run(late, *MISSING, *BOTH)
    names = ["late/web", "late/db", "late/agent"]
    others = {"shop/cart": "up_to_date", "plain/plain": "not_injected"}
    assert verdicts(ended) == dict.fromkeys(names, "missing") | others
    assert sorted(ended.planned) == sorted(names)
    assert ended.summary["verdicts"] == {"missing": 3, "up_to_date": 1, "not_injected": 1}
    assert (ended.code, ended.skipped) == (0, {})
    (plan,) = [r for r in ended.of("plan") if r["name"] == "web"]
    assert (plan["pods"]["old"], plan["pods"]["total"], plan["sidecars"]) == (3, 3, [])
    (drift,) = [r for r in ended.of("drift") if r["name"] == "web"]
    (difference,) = drift["differences"]
    assert (difference["path"], difference["current"]) == (["istio-proxy"], None)
    assert difference["expected"]["image"] == IMAGE


@pytest.mark.embedded("columns are as wide as its own namespaces")
def test_text_shows_them_like_drift(late, run):
    text = run(late, *MISSING, *BOTH, TEXT).stdout
    head, _, table = text.partition("#  ")
    assert head.endswith(
        "new ones:\n  a  3 workloads:\n     would be added: istio-proxy 1.26.2\n\n"
    )
    row = "late       deployment/web   3     3    <none>   "
    assert row in table
    assert "\nTo roll out: 3 workloads with 8 Pods, 8 of them old.\n" in text
    assert sidecar_table(run(late, *MISSING, *BOTH, TEXT)) == [
        "istio-proxy 1.26.2 1 1 0 0",
        "istio-proxy <none> 8 0 8 0",
    ]
    assert "plain" not in text


@pytest.mark.parametrize("options", [(), BOTH])
def test_they_are_rolled_out_and_a_second_run_finds_nothing(late, run, options):
    ended = run(late, *MISSING, *options, CONFIRM, "--parallel-rollouts=3")
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert ended.code == 0
    assert ended.summary["pods"]["ready"] == (8 if options else 3)
    again = run(late, *MISSING, *options)
    left = set() if options else {"late/agent", "late/db"}
    assert {name for name, verdict in verdicts(again).items() if verdict == "missing"} == left
    assert verdicts(again)["late/web"] == "up_to_date"
    assert again.summary["verdicts"]["not_injected"] == 1


def test_they_count_for_fail_on_drift(late, run):
    assert run(late, *MISSING, "--fail-on-drift").code == 1
    pattern = "--sidecar-container-name=istio-prox?"  # it need not exist, but then nothing is known
    audit = run(late, *MISSING, "--fail-on-drift", "-n=plain", pattern)
    assert (audit.code, audit.summary["failed"]) == (1, {"nothing_checked": 1})
    assert run(late, *MISSING, "-n=plain", CONFIRM, pattern).code == 0
    assert run(late, *MISSING, "-n=plain").code == 3


def test_a_workload_with_and_without_is_one_row(late, run):
    late.delete("Pod", "late", late.pods("late", "web")[0]["metadata"]["name"])
    late.settle()
    ended = run(late, *MISSING)
    skipped = {"late/agent": "missing", "late/db": "missing", "plain/plain": "not_injected"}
    assert verdicts(ended) == skipped | {"late/web": "drifted", "shop/cart": "up_to_date"}
    (plan,) = ended.of("plan")
    assert (plan["pods"]["old"], plan["pods"]["total"]) == (2, 3)
    assert [s["image"] for s in plan["sidecars"]] == [IMAGE]
    done = run(late, *MISSING, CONFIRM)
    assert done.outcomes == {"late/web": "succeeded"}
    after = skipped | {"late/web": "up_to_date", "shop/cart": "up_to_date"}
    assert verdicts(run(late, *MISSING)) == after


def test_changed_configuration_is_no_difference_of_a_pod_without_the_sidecar(late, run):
    mount = {"name": "settings", "mountPath": "/etc/proxy"}
    late.injector.container["volumeMounts"] = [mount]
    late.injector.also = {"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]}
    late.create("late", {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {}})
    for found in late.store.list("pods"):
        late.backdate(found, 3600)
    (drift,) = run(late, *MISSING, "--include-config", "-n=late", "deploy/web").of("drift")
    assert [d["path"] for d in drift["differences"]] == [["istio-proxy"]]


@pytest.mark.parametrize("name", ["opentelemetry-auto-instrumentation-java", "istio-proxy"])
def test_an_init_container_that_is_missing(late, run, name):
    late.injector.container = container(name, "registry.example/agent:2.1")
    late.injector.init = True
    given = f"--sidecar-container-name={name}"
    text = run(late, *MISSING, given, TEXT, "-n=late").stdout
    assert f"  would be added: {name} 2.1 (init)\n" in text
    assert run(late, *MISSING, given, CONFIRM, "-n=late").outcomes == {"late/web": "succeeded"}
    assert run(late, *MISSING, given, "-n=late").planned == []


def test_nobody_has_it_yet(late, run):
    ended = run(late, *MISSING, "-n=late", TEXT)
    assert "\n  a  3 workloads:\n     would be added: istio-proxy 1.26.2\n" in ended.stdout
    assert "WARNING" not in ended.stderr
    ended = run(late, *MISSING, "-n=plain", TEXT)
    assert f"{NO_PODS_WITH}istio-proxy (1 checked)" in ended.stderr


def test_pods_that_no_controller_replaces_are_not_mentioned(late, run):
    late.create("plain", pod("shell"))
    late.create(
        "plain", pod("backup-x", pod_spec(restartPolicy="OnFailure"), ("batch/v1", "Job", "backup"))
    )
    late.create("plain", pod("static", owner=("v1", "Node", "node-1")))
    late.settle()
    late.turn_on_injection("plain")
    ended = run(late, *MISSING, "-n=plain")
    assert (ended.planned, ended.skipped) == (["plain/plain"], {})


def test_one_that_cannot_be_restarted_is_skipped_only_if_it_should_have_it(late, run):
    for namespace, name in (("late", "web"), ("plain", "plain")):
        late.change("Deployment", namespace, name, {"spec": {"paused": True}})
    ended = run(late, *MISSING)
    assert ended.skipped == {
        "Deployment late/web": "wrong_method",
        "DaemonSet late/agent": "kind_not_selected",
        "StatefulSet late/db": "kind_not_selected",
    }
    assert {reason.partition(", but ")[0] for reason in ended.reasons.values()} == {"missing"}
    assert ended.summary["verdicts"] == {"up_to_date": 1, "not_injected": 1, "missing": 3}


def test_a_namespace_that_opted_out_is_left_alone(late, run):
    annotations = {"metadata": {"annotations": {"example.com/x": "never"}}}
    late.change("Namespace", "", "late", annotations)
    ended = run(late, *MISSING, "--exclude-annotation=example.com/x=never")
    assert ended.planned == []
    assert set(ended.skipped.values()) == {"excluded"}
    assert "Deployment late/web" in ended.skipped


def test_rejected_and_unknown_as_for_drift(late, run):
    late.injector.state = "denies"
    names = ("late/agent", "late/db", "late/web", "shop/cart")
    ended = run(late, *MISSING)
    others = {"plain/plain": "not_injected"}
    assert verdicts(ended) == dict.fromkeys(names, "rejected") | others
    late.injector.state = "fails"
    ended = run(late, *MISSING, CONFIRM)
    assert verdicts(ended) == dict.fromkeys(names, "unknown") | others
    assert ended.code == 3
    assert run(late, *MISSING, "--fail-on-drift").code == 1


def test_the_sidecar_must_be_there_afterwards(late, run):
    late.injector.state = "ignored"
    late.create("late", workload("Deployment", "zoo", replicas=4))
    late.settle()
    late.injector.state = "works"
    late.injector.breaks_after = 1
    ended = run(late, *MISSING, CONFIRM, "-n=late")
    assert ended.outcomes == {"late/web": "lost_sidecar", "late/zoo": "not_started"}
    (message, reason) = [r["message"] for r in ended.of("result")]
    assert message.endswith("new Pods without sidecar istio-proxy; check the injector")
    assert reason.startswith(f"new Pods of Deployment late/web{NEW_HAVE_NONE}")
    assert ended.code == 1


def test_it_is_checked_right_before_the_patch(late, start):
    held = late.fault(
        method="GET",
        path="late/deployments/web",
        user_agent="sidecar-rollout",
        release=threading.Event(),
    )
    running = start(late, *MISSING, CONFIRM, "-n=late")
    assert held.reached.wait(20)
    late.injector.state = "ignored"
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"late/web": "failed"}
    (result,) = ended.of("result")
    assert result["message"].startswith(f"{WITHOUT_SIDECAR} istio-proxy;")


def test_evicted_ones_get_it_too(late, run):
    late.injector.state = "ignored"
    late.create("late", replicated("ReplicaSet", "lone", replicas=2))
    late.settle()
    late.injector.state = "works"
    ended = run(late, *MISSING, "--evict", "rs/lone", CONFIRM)
    assert verdicts(ended) == {"late/lone": "missing"}
    assert ended.outcomes == {"late/lone": "succeeded"}
    assert all(len(p["spec"]["containers"]) == 2 for p in late.pods("late", "lone"))


def test_it_needs_only_drifted(run):
    ended = run(None, TEXT, "--include-missing")
    assert ended.code == 2
    assert ended.stderr.startswith("error: --include-missing requires --only-drifted\n")


def test_one_dry_run_for_each_workload(late, run):
    run(late, *MISSING, *BOTH)
    created = [r for r in late.server.requests if r.method == "POST" and r.path.endswith("/pods")]
    assert len(created) == 5 + 3  # and again for each that differs


def test_pods_of_one_owner_keep_one_sample(tool, late):
    options = options_of(tool, *MISSING, sidecars=["istio-proxy"], cutoff=NO_CUTOFF)
    owners, _ = tool.read_pods(late.pods("late"), options)
    assert sorted(len(found.pods) for found in owners) == [2, 3, 3]
    assert all(tool.unpacked(found.sample)["metadata"]["name"] for found in owners)


def test_pods_of_custom_resources_are_no_candidates(late, run):
    """Their template cannot be read: nobody could say whether they should have it."""
    late.create("plain", pod("pg-1", owner=("postgresql.cnpg.io/v1", "Cluster", "pg")))
    late.settle()
    pattern = "--sidecar-container-name=istio-prox?"
    ended = run(late, *MISSING, "--evict", "--fail-on-drift", "-n=plain", pattern)
    assert (ended.code, ended.summary["verdicts"]) == (1, {"not_injected": 1})
    assert ended.summary["failed"] == {"nothing_checked": 1}
