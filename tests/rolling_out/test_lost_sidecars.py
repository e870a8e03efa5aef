"""New Pods without the sidecar: the run stops, and the same command repairs them."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from clusters.embedded.manifests import container, pod_spec, replicated, workload
from support import (
    CONFIRM,
    DRIFTED,
    TEXT,
    a_restart,
    a_rollout,
    counts,
    make_old,
    messages,
    patched,
    printed_command,
    upgrade,
    within,
)
from texts import NEW_HAVE_NONE, NO_NEW_ROLLOUTS, UPDATED_AND_READY

pytestmark = pytest.mark.both


@pytest.mark.parametrize("options", [[], [DRIFTED], ["--max-failures=7"]])
def test_a_new_pod_without_the_sidecar_stops_the_run(drifted_fleet, run, options):
    drifted_fleet.injector.breaks_after = 3
    ended = run(drifted_fleet, CONFIRM, *options)
    later = dict.fromkeys([f"shop/{name}" for name in "cdefg"], "not_started")
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "lost_sidecar"} | later
    assert patched(drifted_fleet) == ["a", "b"]
    assert ended.code == 1
    healthy = "check the injector"
    assert messages(ended)["b"] == f"1 of 2 new Pods without sidecar istio-proxy; {healthy}"
    reason = f"new Pods of Deployment shop/b{NEW_HAVE_NONE} istio-proxy"
    assert {messages(ended)[name] for name in "cdefg"} == {reason}
    assert f"{reason}: {NO_NEW_ROLLOUTS}" in ended.stderr
    assert ended.summary["pods"] == counts(3, 3, 3, lost=1)


def names_of(cluster, app: str) -> list[list[str]]:
    return [[c["name"] for c in p["spec"]["containers"]] for p in cluster.pods("shop", app)]


def notes_of(cluster, name: str, kind: str = "Deployment") -> dict:
    return cluster.get(kind, "shop", name)["spec"]["template"]["metadata"]["annotations"]


def heal(cluster) -> None:
    cluster.injector.breaks_after, cluster.injector.state = None, "works"


def codes(ended) -> dict[str, str]:
    return {r["name"]: r["code"] for r in ended.of("skip")}


@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_the_same_command_repairs_and_resumes(drifted_fleet, run, options):
    """Whatever the cutoff: the Pods that lost their sidecar are newer."""
    drifted_fleet.injector.breaks_after = 3
    shown = run(drifted_fleet, TEXT, CONFIRM, *options).stdout
    reason = f"new Pods of Deployment shop/b{NEW_HAVE_NONE} istio-proxy"
    assert f"\nnot started:\n  {reason}:\n    Deployment shop/c" in shown
    assert f"\nPods: 3 of 4{UPDATED_AND_READY} (1 lost).\n" in shown
    *_, title, command, failed = shown.splitlines()
    assert title == (f"New Pods of Deployment shop/b{NEW_HAVE_NONE}. Repair the injector, and run:")
    assert failed == "Failed: 1 lost sidecar (shop/b)."
    assert "--include-missing" not in command
    heal(drifted_fleet)
    done = run(drifted_fleet, *printed_command(command)[2:], "--log-format=json")
    assert done.outcomes == {f"shop/{name}": "succeeded" for name in "bcdefg"}
    assert names_of(drifted_fleet, "b") == [["app", "istio-proxy"]] * 2


def test_the_annotation_has_what_the_dry_run_returned(cluster, run):
    """Ordinary init containers are marked: another one may take their place."""
    cluster.injector.also = {"initContainers": [container("istio-init", "x:1")]}
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    names = "--sidecar-container-name=istio-*"
    assert run(cluster, CONFIRM, names).code == 0
    assert notes_of(cluster, "web")["sidecarRollout.rollout.sidecars"] == (
        "istio-init (init), istio-proxy"
    )


@pytest.fixture
def lost(cluster, run):
    """Deployment web, of which a restart by the tool has lost the sidecar of all Pods."""
    cluster.create("shop", workload("Deployment", "web", replicas=1))
    make_old(cluster)
    upgrade(cluster)
    cluster.injector.breaks_after = 0
    assert run(cluster, CONFIRM, DRIFTED).outcomes == {"shop/web": "lost_sidecar"}
    assert names_of(cluster, "web") == [["app"]]
    return cluster


def test_what_is_lost_is_lost_whatever_the_prefix_of_its_annotation(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=1))
    cluster.settle()
    cluster.injector.breaks_after = 0
    prefix = "--annotation-prefix=team"
    assert run(cluster, CONFIRM, prefix).outcomes == {"shop/web": "lost_sidecar"}
    heal(cluster)
    long_ago = "--only-started-before=2020-01-01"
    assert run(cluster, long_ago, prefix).planned == ["shop/web"]
    assert run(cluster, long_ago, CONFIRM).outcomes == {"shop/web": "succeeded"}


@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_one_of_which_no_pod_has_it_is_repaired_and_counted(lost, run, options):
    heal(lost)
    (row,) = run(lost, *options, "--only-started-before=2020-01-01").of("plan")
    assert (row["name"], row["pods"]["old"]) == ("web", 1)
    audit = run(lost, DRIFTED, "--fail-on-drift")
    assert (audit.code, sum(audit.summary["not_up_to_date"].values())) == (1, 1)
    assert run(lost, *options, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert names_of(lost, "web") == [["app", "istio-proxy"]]


def test_while_the_injector_is_broken_it_is_not_restarted_again(lost, run):
    ended = run(lost, DRIFTED, CONFIRM)
    assert (ended.code, codes(ended)) == (1, {"web": "lost_sidecar"})
    assert ended.summary["failed"] == {"lost_sidecar": 1}
    assert ended.skipped == {"Deployment shop/web": "lost_sidecar"}
    assert "1 of 1 Pod lost istio-proxy, " in ended.reasons["Deployment shop/web"]
    assert patched(lost) == ["web"]
    audit = run(lost, DRIFTED, "--fail-on-drift")
    assert (audit.code, audit.summary["not_up_to_date"]["lost_sidecar"]) == (1, 1)
    assert run(lost, DRIFTED).code == 0
    without = run(lost, CONFIRM)  # the worker's dry run finds it
    assert (without.code, without.outcomes) == (1, {"shop/web": "skipped"})
    assert without.summary["failed"] == {"lost_sidecar": 1}
    assert patched(lost) == ["web"]


def test_what_lost_its_sidecar_is_repaired_although_it_is_unhealthy(lost, run):
    heal(lost)
    (pod,) = lost.pods("shop", "web")
    lost.kubelet.set_ready("shop", pod["metadata"]["name"], False)
    ended = run(lost, DRIFTED, CONFIRM, "--skip-unhealthy")
    assert ended.outcomes == {"shop/web": "succeeded"}


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "works"])
def test_opt_outs_and_selection_come_first(lost, run, broken):
    """What a person leaves out is neither repaired nor counted; of a kind, it is counted."""
    if not broken:
        heal(lost)
    lost.change("Deployment", "shop", "web", {"metadata": {"annotations": {"team/no": "1"}}})
    for options, code in (
        (["--exclude-annotation=team/no"], 0),
        (["--exclude-deployment", "--evict"], 1),
    ):
        ended = run(lost, DRIFTED, CONFIRM, *options)
        assert (ended.code, ended.planned) == (code, [])
    audit = run(lost, DRIFTED, "--fail-on-drift", "--exclude-annotation=team/no")
    assert (audit.summary["failed"], audit.summary["leftovers"]) == ({"nothing_checked": 1}, [])


def test_a_rollout_of_another_sidecar_that_loses_this_one_is_a_failure(cluster, run):
    """The dry run had not returned it, which alone decides nothing: policies may leave out dry runs."""
    cluster.injector.also = {"containers": [container("vault-agent", "vault:1")]}
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.injector.container = cluster.injector.also.pop("containers")[0]
    vault = "--sidecar-container-name=vault-agent"
    said = run(cluster, DRIFTED, vault).summary["injector"]
    assert said == "no dry run returned istio-proxy, which 2 Pods have; check the injector"
    lost = run(cluster, CONFIRM, vault)
    assert (lost.code, lost.outcomes) == (1, {"shop/web": "lost_sidecar"})
    assert messages(lost)["web"].startswith("2 of 2 new Pods without sidecar istio-proxy;")
    assert "--sidecar-container-name=istio-proxy" in lost.summary["command"]
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, codes(ended)) == (1, {"web": "lost_sidecar"})


def test_one_that_was_removed_on_purpose_is_not_lost(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.injector.state = "ignored"
    assert run(cluster, CONFIRM, DRIFTED, "--allow-removal").outcomes == {"shop/web": "succeeded"}
    assert notes_of(cluster, "web")["sidecarRollout.rollout.sidecars"] == ""
    ended = run(cluster, CONFIRM, DRIFTED, "--sidecar-container-name=istio-*")
    assert (ended.code, ended.planned, ended.skipped) == (0, [], {})


def scaled(cluster) -> None:
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 5}}, "kubectl-create")


def restarted(cluster) -> None:
    """As by on-call, with kubectl, while the injector is still down."""
    template = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
    cluster.change("Deployment", "shop", "web", {"spec": {"template": template}}, "kubectl")


def released(cluster) -> None:
    spec = {"containers": [{"name": "app", "image": "app:2"}]}
    cluster.change("Deployment", "shop", "web", {"spec": {"template": {"spec": spec}}})


@pytest.mark.parametrize("change", [scaled, restarted, released])
def test_lost_is_lost_until_it_is_there_again(lost, run, change):
    """Whoever has changed what since: the annotation came with the template."""
    change(lost)
    lost.settle()
    count = len(lost.pods("shop", "web"))
    ended = run(lost, DRIFTED, CONFIRM)
    assert (ended.code, ended.skipped) == (1, {"Deployment shop/web": "lost_sidecar"})
    audit = run(lost, DRIFTED, "--fail-on-drift")
    assert (audit.code, audit.summary["not_up_to_date"]) == (1, {"lost_sidecar": count})
    heal(lost)
    assert run(lost, DRIFTED, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert names_of(lost, "web") == [["app", "istio-proxy"]] * count
    assert run(lost, DRIFTED, "--fail-on-drift").code == 0


def test_injection_that_was_turned_off_after_our_rollout_is_named_until_the_annotation_goes(
    cluster, run
):
    """That is the price of knowing what was lost whoever has restarted it."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    assert run(cluster, CONFIRM).outcomes == {"shop/web": "succeeded"}
    cluster.injector.state = "ignored"
    released(cluster)
    cluster.wait_for(lambda: names_of(cluster, "web") == [["app"]] * 2)
    cluster.settle()
    ended = run(cluster, CONFIRM, DRIFTED, "--sidecar-container-name=istio-*")
    assert (ended.code, ended.skipped) == (1, {"Deployment shop/web": "lost_sidecar"})
    annotation = {"sidecarRollout.rollout.sidecars": None}
    template = {"metadata": {"annotations": annotation}}
    cluster.change("Deployment", "shop", "web", {"spec": {"template": template}})
    cluster.settle()
    ended = run(cluster, CONFIRM, DRIFTED, "--sidecar-container-name=istio-*")
    assert (ended.code, ended.planned, ended.skipped) == (0, [], {})


def test_beside_a_pod_that_lost_it_the_others_are_not_up_to_date(cluster, run):
    """While the injector is down, they would lose it, too."""
    cluster.create("shop", workload("Deployment", "web", replicas=4))
    cluster.settle()
    upgrade(cluster)
    cluster.injector.breaks_after = 0
    cluster.kubelet.ready_after = 600  # so that old Pods stay
    assert run(cluster, CONFIRM, DRIFTED, "--timeout=6s").code == 1
    cluster.injector.breaks_after, cluster.injector.state = None, "ignored"
    ended = run(cluster, DRIFTED)
    left = Counter()
    for row in ended.summary["sidecars"]:
        left.update(row["left"])
        assert row["up_to_date"] == 0
    assert left["losing_sidecar"] >= 3
    assert left["losing_sidecar"] + left["lost_sidecar"] == len(cluster.pods("shop", "web"))


def test_an_init_container_whose_place_another_one_takes_is_not_lost(cluster, run):
    """With Istio CNI, istio-validation takes the place of istio-init."""
    cluster.injector.also = {"initContainers": [container("istio-init", "x:1")]}
    cluster.create("shop", workload("Deployment", "web", replicas=1))
    cluster.settle()
    names = "--sidecar-container-name=istio-*"
    assert run(cluster, CONFIRM, names).code == 0
    cluster.injector.also = {"initContainers": [container("istio-validation", "x:1")]}
    (pod,) = cluster.pods("shop")
    cluster.delete("Pod", "shop", pod["metadata"]["name"])
    cluster.wait_for(lambda: "istio-validation" in str(cluster.pods("shop")))
    cluster.settle()
    assert run(cluster, DRIFTED, names).planned == []
    assert run(cluster, names, "--only-started-before=2020-01-01").planned == []


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_an_application_that_needs_its_sidecar_is_repaired(cluster, run, kind):
    """Its rollout is not complete, and cannot be without the sidecar."""
    spec = pod_spec(container("app", "needs-proxy:1"))
    parallel = {"podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}
    cluster.create("shop", workload(kind, "web", spec, replicas=3, **parallel))
    make_old(cluster)
    cluster.injector.breaks_after = 0
    options = ["--include-statefulset", "--evict", DRIFTED]
    upgrade(cluster)
    lost = run(cluster, TEXT, CONFIRM, *options, within(cluster, 3)).stdout
    assert "1 lost sidecar" in lost
    again = run(cluster, CONFIRM, *options, within(cluster, 3))  # nothing would be better
    assert (again.code, codes(again)) == (1, {"web": "lost_sidecar"})
    heal(cluster)
    (command,) = [line for line in lost.splitlines() if "sidecar-rollout.py" in line][:1]
    done = run(cluster, *printed_command(command)[2:], "--log-format=json")
    assert done.outcomes == {"shop/web": "succeeded"}, done.skipped
    assert run(cluster, *options).planned == []


def test_an_ordered_statefulset_that_lost_it_needs_evictions(cluster, run):
    """Its controller never replaces its broken Pod on a restart. The printed command has --evict."""
    spec = pod_spec(container("app", "needs-proxy:1"))
    cluster.create("shop", workload("StatefulSet", "db", spec, replicas=2))
    make_old(cluster)
    upgrade(cluster)
    cluster.injector.breaks_after = 0
    options = ["--include-statefulset", DRIFTED]
    shown = run(cluster, TEXT, CONFIRM, *options, within(cluster, 2)).stdout
    heal(cluster)
    ended = run(cluster, CONFIRM, *options, within(cluster, 2))
    assert (codes(ended), ended.planned) == ({"db": "degraded"}, [])
    assert "use --evict" in ended.reasons["StatefulSet shop/db"]
    dry = run(cluster, TEXT, *options).stdout
    for text in (shown, dry):
        (command,) = [line for line in text.splitlines() if "sidecar-rollout.py" in line]
        assert "--evict" in command.split()
    done = run(cluster, *printed_command(command)[2:], "--log-format=json")
    assert done.outcomes == {"shop/db": "succeeded"}, done.stderr
    assert names_of(cluster, "db") == [["app", "istio-proxy"]] * 2


def test_a_bad_release_is_not_repaired(cluster, run):
    """Its new Pods are not ready for another reason than their sidecar."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    change = {"containers": [{"name": "app", "image": "neverready:1"}]}
    cluster.kubelet.ready_after = 600
    cluster.change("Deployment", "shop", "web", {"spec": {"template": {"spec": change}}})
    cluster.wait_for(lambda: len(cluster.pods("shop")) > 2)
    ended = run(cluster, CONFIRM)
    assert ended.outcomes == {}
    assert ended.skipped["Deployment shop/web"] == "incomplete_rollout"


def test_a_failed_rollout_whose_pods_have_no_sidecar_stops_the_run(drifted_fleet, run):
    drifted_fleet.injector.breaks_after = 0
    drifted_fleet.kubelet.ready_after = 60
    ended = run(drifted_fleet, CONFIRM, within(drifted_fleet, 1), "--max-failures=7")
    assert ended.outcomes["shop/a"] == "lost_sidecar"
    assert patched(drifted_fleet) == ["a"]
    assert f"new Pods of Deployment shop/a{NEW_HAVE_NONE}" in messages(ended)["b"]


def test_with_allow_removal_it_goes_on(drifted_fleet, run):
    drifted_fleet.injector.state = "ignored"
    ended = run(drifted_fleet, CONFIRM, DRIFTED, "--allow-removal")
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})
    assert ended.summary["pods"]["lost"] == 0


def test_pods_that_were_scaled_down_are_not_lost(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=4))
    cluster.settle()
    held = cluster.fault(path=r"pods\?.*labelSelector=app%3Dweb", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 1}})
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 1)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert ended.summary["pods"]["lost"] == 0


@pytest.mark.embedded("a custom resource that owns Pods")
def test_evicted_pods_keep_no_annotation(cluster, run):
    """So the printed command has what finds them."""
    cluster.create("shop", replicated("CloneSet", "clones", replicas=2))
    cluster.settle()
    cluster.injector.breaks_after = 0
    shown = run(cluster, TEXT, CONFIRM, "--evict").stdout
    *_, title, command, _ = shown.splitlines()
    assert title.startswith(f"New Pods of CloneSet shop/clones{NEW_HAVE_NONE}.")
    assert {"--only-drifted", "--include-missing"} <= set(command.split())


def test_pods_with_the_same_containers_are_asked_about_once(tool):
    """What a Pod must have depends on all Pods of its workload: of 5,000, that would be quadratic."""
    names = [["app", "istio-proxy"], ["app"], ["app", "istio-proxy"], ["app"]]
    pods = [
        {"metadata": {"name": f"web-{n}", "uid": f"{n}"}, "spec": pod_spec(*map(container, found))}
        for n, found in enumerate(names)
    ]
    rollout = a_rollout(tool, None, sidecars=["istio-proxy"])
    work = a_restart(tool, rollout, must=frozenset(["istio-proxy"]))
    assert [sorted(work.lost_in(pod)) for pod in pods] == [[], ["istio-proxy"]] * 2
    assert len(work.lost) == 2
