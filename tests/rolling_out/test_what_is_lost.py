"""What is lost: the list of Pods that is read last decides, whatever became of their workload."""

from __future__ import annotations

import json
import threading

import pytest
from clusters.embedded.admission import Refused
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import CONFIRM, DRIFTED, NEW, TEXT, make_old, printed_command, upgrade

LONG_AGO = "--only-started-before=2020-01-01"
AUDIT = "--fail-on-drift"
OFF = {"sidecar.istio.io/inject": "false"}


def codes(ended) -> dict[str, str]:
    return {r["name"]: r["code"] for r in ended.of("skip")}


def containers(cluster, app: str) -> list[list[str]]:
    return [[c["name"] for c in p["spec"]["containers"]] for p in cluster.pods("shop", app)]


def drifted(cluster, *names: str, **fields) -> None:
    for name in names:
        cluster.create("shop", workload("Deployment", name, **fields))
    make_old(cluster)
    upgrade(cluster)


def lose(cluster, run, *words: str) -> None:
    """Let a rollout of this command lose the sidecar of all Pods, and repair the injector."""
    cluster.injector.breaks_after = 0
    assert run(cluster, CONFIRM, *words, "--timeout=20s").code == 1
    cluster.injector.breaks_after, cluster.injector.state = None, "works"
    cluster.settle()


def release(cluster, name: str, **labels: str) -> None:
    spec = {"containers": [{"name": "app", "image": "app:2"}]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    cluster.change("Deployment", "shop", name, {"spec": {"template": template}}, "team")
    cluster.settle()


def replace_pods(cluster, app: str) -> None:
    """As by a drain, while the injector is down for a moment."""
    cluster.injector.state = "ignored"
    before = {found["metadata"]["uid"] for found in cluster.pods("shop", app)}
    for found in cluster.pods("shop", app):
        cluster.delete("Pod", "shop", found["metadata"]["name"])

    def are_new() -> bool:
        now = {found["metadata"]["uid"] for found in cluster.pods("shop", app)}
        return len(now) == len(before) and not now & before

    cluster.wait_for(are_new)
    cluster.settle()
    cluster.injector.state = "works"


@pytest.mark.both
@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_a_pod_that_lost_it_after_its_rollout_had_succeeded(cluster, start, run, options):
    drifted(cluster, "aa", "bb", replicas=2)
    held = cluster.fault(method="PATCH", path="deployments/bb", release=threading.Event())
    running = start(cluster, CONFIRM, *options)
    assert held.reached.wait(20)
    replace_pods(cluster, "aa")
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/aa": "succeeded", "shop/bb": "succeeded"}
    assert (ended.code, ended.summary["failed"]) == (1, {"lost_sidecar": 1})
    assert [(r["workload"]["name"], r["code"]) for r in ended.summary["leftovers"]] == [
        ("aa", "lost_sidecar")
    ] * 2
    (lost,) = [r for r in ended.summary["sidecars"] if not r["image"]]
    assert lost["left"] == {"lost_sidecar": 2}
    again = run(cluster, CONFIRM, *options, LONG_AGO)
    assert (again.code, again.outcomes) == (0, {"shop/aa": "succeeded"})


def test_a_pod_that_lost_it_in_another_run(cluster, start, run):
    drifted(cluster, "web", replicas=2)
    held = cluster.fault(method="GET", path="/deployments/web$", release=threading.Event())
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(30)
    lose(cluster, run, DRIFTED)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert (ended.code, ended.summary["failed"]) == (1, {"lost_sidecar": 1})


def pause(cluster, run) -> list[str]:
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    return []


def refuse(error: Refused):
    def change(cluster, run) -> list[str]:
        was = cluster.injector.inject

        def inject(found: dict) -> None:
            if "web-" in found["metadata"].get("generateName", ""):
                raise error
            was(found)

        cluster.injector.inject = inject
        return []

    return change


def skip_downtime(cluster, run) -> list[str]:
    return ["--skip-downtime"]


def select_others(cluster, run) -> list[str]:
    return ["--exclude-deployment", "--include-statefulset"]


WAYS = {
    "paused": pause,
    "rejected": refuse(Refused(403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity')),
    "unknown": refuse(
        Refused(500, "InternalError", "Internal error occurred: failed calling webhook: no")
    ),
    "downtime": skip_downtime,
    "kind": select_others,
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_keeps_it_from_being_rolled_out(cluster, run, way):
    drifted(cluster, "web", strategy={"type": "Recreate"})
    lose(cluster, run, DRIFTED)
    options = WAYS[way](cluster, run)
    ended = run(cluster, DRIFTED, CONFIRM, *options)
    assert (ended.code, ended.outcomes) == (1, {})
    assert ended.summary["failed"] == {"lost_sidecar": 1}
    last = run(cluster, DRIFTED, CONFIRM, *options, TEXT).stdout.splitlines()[-1]
    assert last == "Failed: 1 lost sidecar (shop/web)."
    left_out = run(
        cluster, DRIFTED, CONFIRM, *options, "--exclude-annotation=a", "deployment/other*"
    )
    assert left_out.code == 0


def test_what_is_broken_is_repaired_first_and_what_a_wave_leaves_is_counted(cluster, run):
    drifted(cluster, "y", "z")
    lose(cluster, run, DRIFTED, "deployment/y")
    lose(cluster, run, DRIFTED, "deployment/z")
    cluster.create("shop", workload("Deployment", "a"))
    make_old(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    assert run(cluster, DRIFTED).planned == ["shop/y", "shop/z", "shop/a"]
    ended = run(cluster, DRIFTED, CONFIRM, "--max-rollouts=1")
    assert ended.outcomes["shop/y"] == "succeeded"
    assert (ended.code, ended.summary["failed"]) == (1, {"lost_sidecar": 1})
    assert run(cluster, DRIFTED, CONFIRM, "--max-rollouts=1").code == 0


def test_a_restart_without_an_answer_notes_what_pods_have(cluster, run):
    """The webhook supports no dry run, and its new Pods come without the sidecar."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.state = "no-dry-run"
    was, cluster.injector.inject = cluster.injector.inject, lambda found: None
    lost = run(cluster, CONFIRM)
    assert (lost.code, lost.outcomes) == (1, {"shop/web": "lost_sidecar"})
    cluster.injector.inject, cluster.injector.state = was, "works"
    ended = run(cluster, CONFIRM, LONG_AGO)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert containers(cluster, "web") == [["app", "istio-proxy"]]


def test_a_rollout_of_another_sidecar_forgets_nothing(cluster, run):
    cluster.injector.also = {"containers": [container("vault-agent", "vault:1")]}
    drifted(cluster, "web")
    was = cluster.injector.inject

    def inject(found: dict) -> None:
        was(found)
        rows = found["spec"]["containers"]
        found["spec"]["containers"] = [row for row in rows if row["name"] != "istio-proxy"]

    cluster.injector.inject = inject
    assert run(cluster, CONFIRM).outcomes == {"shop/web": "failed"}  # by its dry run
    cluster.injector.state, cluster.injector.inject = "no-dry-run", inject
    assert run(cluster, CONFIRM).outcomes == {"shop/web": "lost_sidecar"}
    cluster.injector.state = "works"
    vault = "--sidecar-container-name=vault-agent"
    cluster.injector.also = {"containers": [container("vault-agent", "vault:2")]}
    assert run(cluster, CONFIRM, DRIFTED, vault).outcomes == {"shop/web": "succeeded"}
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, codes(ended)) == (1, {"web": "lost_sidecar"})
    cluster.injector.inject = was
    assert run(cluster, CONFIRM, DRIFTED).outcomes == {"shop/web": "succeeded"}


def test_allow_removal_is_about_what_new_pods_lack(cluster, run):
    drifted(cluster, "web")
    lose(cluster, run, DRIFTED)
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    left = run(cluster, DRIFTED, CONFIRM, "--allow-removal")
    assert (left.code, left.summary["failed"]) == (1, {"lost_sidecar": 1})
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": False}})
    cluster.settle()
    ended = run(cluster, DRIFTED, CONFIRM, "--allow-removal")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert containers(cluster, "web") == [["app", "istio-proxy"]]


def test_a_removal_on_purpose_ends_what_any_prefix_noted(cluster, run):
    drifted(cluster, "web")
    assert run(cluster, CONFIRM, DRIFTED, "--annotation-prefix=other").code == 0
    cluster.injector.state = "ignored"
    removed = run(cluster, CONFIRM, DRIFTED, "--allow-removal")
    assert (removed.code, removed.outcomes) == (0, {"shop/web": "succeeded"})
    pattern = "--sidecar-container-name=istio-*"
    for prefix in ("sidecarRollout", "other"):
        ended = run(cluster, CONFIRM, DRIFTED, pattern, f"--annotation-prefix={prefix}")
        assert (ended.code, ended.skipped) == (0, {})


def test_a_custom_resource_of_which_no_pod_has_it_anymore(cluster, start):
    """A kind that this command only evicts, and another workload in the plan."""
    clones = replicated("CloneSet", "clones", replicas=2)
    cluster.create("shop", {**clones, "apiVersion": "apps.kruise.io/v1alpha1"})
    drifted(cluster, "web")
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    replace_pods(cluster, "clones")
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert (ended.code, ended.summary["failed"]) == (1, {"lost_sidecar": 1})


@pytest.mark.both
@pytest.mark.parametrize(
    "names", [["istio-*"], ["istio-proxy", "istio-init"]], ids=["pattern", "exact"]
)
def test_the_proxy_is_no_replacement_of_an_init_container(cluster, start, names):
    cluster.injector.also = {"initContainers": [container("istio-init", "x:1")]}
    drifted(cluster, "web")
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED, *(f"--sidecar-container-name={n}" for n in names))
    assert held.reached.wait(20)
    cluster.injector.also = {}
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "lost_sidecar"})
    assert ended.of("result")[0]["message"].startswith("1 of 1 new Pod without sidecar istio-init;")


@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
@pytest.mark.parametrize("works", [True, False], ids=["works", "down"])
def test_a_team_that_turns_injection_off_is_no_failure_if_the_injector_works(
    cluster, run, options, works
):
    """For another workload of its namespace. Else nobody knows whose choice that was."""
    drifted(cluster, "web", "other")
    assert run(cluster, CONFIRM, DRIFTED).code == 0
    was = cluster.injector.inject

    def inject(found: dict) -> None:
        if found["metadata"].get("labels", {}).get("mesh") != "no" and works:
            was(found)

    cluster.injector.inject = inject
    release(cluster, "web", mesh="no")
    cluster.wait_for(lambda: containers(cluster, "web") == [["app"]])
    cluster.settle()
    ended = run(cluster, CONFIRM, *options)
    assert ended.code == (0 if works else 1)
    (left,) = [r for r in ended.summary["leftovers"] if r["code"] == "lost_sidecar"]
    assert left["workload"]["name"] == "web"
    audit = run(cluster, DRIFTED, AUDIT)
    assert (audit.code, audit.summary["not_up_to_date"]["lost_sidecar"]) == (1, 1)


def test_a_release_in_the_middle_of_a_run_is_the_teams_own(cluster, start):
    """What the plan had seen counts only for Pods of a template that nobody has changed since."""
    cluster.create("shop", workload("StatefulSet", "db"))
    drifted(cluster, "web")
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    cluster.injector.state = "ignored"
    template = {"metadata": {"annotations": {"a": "b"}}}
    cluster.change("StatefulSet", "shop", "db", {"spec": {"template": template}}, "team")
    cluster.wait_for(lambda: containers(cluster, "db") == [["app"]])
    cluster.settle()
    cluster.injector.state = "works"
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert (ended.code, ended.summary["failed"]) == (0, {})


def test_evicted_pods_are_repaired_by_name_in_a_namespace_at_a_time(cluster, run, tmp_path):
    """Their labels may be gone with the sidecar, and other workloads without it are left alone."""
    cluster.namespace("other", inject=True)
    for namespace in ("shop", "other"):
        cluster.create(namespace, replicated("ReplicaSet", "lone", replicas=1))
    cluster.create("shop", workload("Deployment", "plain"))
    cluster.settle()
    cluster.injector.breaks_after = 0
    given = ["--evict", "rs/*", "-l", "app=lone", "--exclude-namespace=else*"]
    shown = run(cluster, CONFIRM, *given)
    assert set(shown.outcomes.values()) == {"lost_sidecar", "not_started"}
    replace_pods(cluster, "plain")
    cluster.injector.breaks_after, cluster.injector.state = None, "works"
    first, *others = shown.summary["commands"]
    assert (first, others[0]) == (shown.summary["command"], others[-1])  # to resume, and to repair
    words = others[0]
    assert {"--include-missing", "--only-drifted", "--evict", "--exclude-namespace=else*"} <= set(
        words
    )
    (name,) = [word for word in words if word.startswith("replicaset/")]
    (namespace,) = [word for word in words if word.startswith("--include-namespace=")]
    assert (name, namespace) == (
        "replicaset/lone",
        f"--include-namespace={shown.of('result')[0]['namespace']}",
    )
    assert not {"-l", "app=lone", "rs/*"} & set(words)
    done = run(cluster, *printed_command(" ".join(words))[2:])
    assert set(done.outcomes.values()) == {"succeeded"}
    assert containers(cluster, "plain") == [["app"]]


def test_a_named_workload_that_would_not_get_it_is_a_failure(cluster, run):
    for name in ("web", "other"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    replace_pods(cluster, "web")
    cluster.injector.state = "ignored"
    missing = [DRIFTED, "--include-missing", CONFIRM]
    ended = run(cluster, *missing, "deployment/web")
    assert (ended.code, codes(ended)) == (1, {"web": "not_injected"})
    assert ended.summary["failed"] == {"not_injected": 1}
    assert run(cluster, *missing, "deployment/w*").code == 0
    assert run(cluster, *missing).code == 0


def test_another_injectors_container_ends_the_run_with_the_first_pod(cluster, run):
    cluster.injector.also = {"containers": [container("vault-agent", "vault:1")]}
    drifted(cluster, *"abc", replicas=2)
    cluster.injector.also = {}
    dry = run(cluster, DRIFTED, TEXT)
    said = "no dry run returned vault-agent, which 6 Pods have; check the injector"
    assert f"\nWarning: {said}\n" in dry.stdout
    ended = run(cluster, DRIFTED, CONFIRM)
    assert list(ended.outcomes.values()) == ["lost_sidecar", "not_started", "not_started"]
    allowed = run(cluster, DRIFTED, CONFIRM, "--allow-removal", "deployment/b", "deployment/c")
    assert set(allowed.outcomes.values()) == {"succeeded"}


def test_what_the_pod_template_states_is_not_noted(cluster, run):
    """A team may drop its own container, whatever names it."""
    spec = pod_spec(container("app"), container("logger"))
    cluster.create("shop", workload("Deployment", "web", spec))
    make_old(cluster)
    assert run(cluster, CONFIRM, "--sidecar-container-name=logger").code == 0
    found = cluster.get("Deployment", "shop", "web")["spec"]["template"]["metadata"]["annotations"]
    assert found["sidecarRollout.rollout.sidecars"] == "istio-proxy"


def test_json_names_what_a_restart_noted(cluster, run):
    """Also what another injector has put in; not what the Pod template states."""
    cluster.injector.also = {"containers": [container("vault-agent", "vault:1")]}
    drifted(cluster, "web")
    assert run(cluster, CONFIRM, DRIFTED).code == 0
    found = cluster.get("Deployment", "shop", "web")["spec"]["template"]["metadata"]["annotations"]
    assert found["sidecarRollout.rollout.sidecars"] == "istio-proxy, vault-agent"
    assert NEW in json.dumps(cluster.pods("shop"))


def test_a_pod_that_has_the_other_init_container_already_changes_nothing(cluster, run):
    """With Istio CNI, and one Pod that came since."""
    cluster.injector.also = {"initContainers": [container("istio-init", "x:1")]}
    drifted(cluster, "web", replicas=2)
    cluster.injector.also = {"initContainers": [container("istio-validation", "x:1")]}
    found, _ = cluster.pods("shop", "web")
    cluster.delete("Pod", "shop", found["metadata"]["name"])
    cluster.wait_for(lambda: "istio-validation" in str(cluster.pods("shop", "web")))
    cluster.settle()
    ended = run(cluster, DRIFTED, CONFIRM, "--sidecar-container-name=istio-*")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_a_kind_that_is_not_selected_is_in_the_last_list_of_any_run(cluster, start):
    cluster.create("shop", workload("StatefulSet", "db"))
    drifted(cluster, "web")
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    replace_pods(cluster, "db")
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.summary["failed"]) == (1, {"lost_sidecar": 1})
    assert "statefulset/db" in ended.summary["command"]


def test_a_change_that_was_pending_in_the_plan_is_its_teams_own(cluster, start):
    """A Deployment that turns injection off, and is resumed during the run."""
    drifted(cluster, "web", "other")
    cluster.change("Deployment", "shop", "other", {"spec": {"paused": True}})
    template = {"metadata": {"labels": {"mesh": "no"}}}
    cluster.change("Deployment", "shop", "other", {"spec": {"template": template}})
    was = cluster.injector.inject

    def inject(found: dict) -> None:
        if found["metadata"].get("labels", {}).get("mesh") != "no":
            was(found)

    cluster.injector.inject = inject
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    cluster.change("Deployment", "shop", "other", {"spec": {"paused": False}})
    cluster.wait_for(lambda: containers(cluster, "other") == [["app"]])
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert (ended.code, ended.summary["failed"]) == (0, {})


def test_the_command_that_repairs_has_no_limit_and_names_what_was_lost(cluster, run):
    cluster.injector.also = {"containers": [container("vault-agent", "vault:1")]}
    drifted(cluster, "web")
    cluster.injector.also = {}
    ended = run(cluster, CONFIRM, "--max-rollouts=1", "--skip-unhealthy")
    assert ended.outcomes == {"shop/web": "lost_sidecar"}
    words = ended.summary["command"]
    assert {"deployment/web", "--sidecar-container-name=vault-agent"} <= set(words)
    assert not {"--max-rollouts=1", "--skip-unhealthy"} & set(words)
    cluster.injector.also = {"containers": [container("vault-agent", "vault:1")]}
    done = run(cluster, *printed_command(" ".join(words))[2:])
    assert (done.code, done.outcomes) == (0, {"shop/web": "succeeded"})


@pytest.mark.parametrize("policy", ["Always", "Never"])
@pytest.mark.parametrize(
    "options", [(), (DRIFTED,), (DRIFTED, "--evict")], ids=["plain", "drift", "evict"]
)
def test_pods_of_another_template_of_their_owner_have_lost_nothing(cluster, start, policy, options):
    """A RayCluster has a template for its workers, and each step of a Workflow has its own."""
    owner = ("ray.io/v1", "RayCluster", "job")

    def create(name: str, labels: dict) -> None:
        found = pod(name, pod_spec(container("app"), restartPolicy=policy), owner)
        found["metadata"]["labels"] |= labels
        cluster.create("shop", found)
        cluster.settle()

    create("head", {})
    without = {"sidecar.istio.io/inject": "false"}
    create("worker-1", without if policy == "Always" else {})
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    upgrade(cluster)
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, *options)
    assert held.reached.wait(20)
    create("worker-2", without)
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_what_is_evicted_must_have_what_any_of_its_pods_has(cluster, run):
    """Else a CloneSet of which one Pod lost its sidecar would lose the others' while it is evicted."""
    clones = {
        **replicated("CloneSet", "clones", replicas=3),
        "apiVersion": "apps.kruise.io/v1alpha1",
    }
    cluster.create("shop", clones)
    cluster.settle()
    cluster.injector.state = "ignored"
    cluster.delete("Pod", "shop", cluster.pods("shop")[0]["metadata"]["name"])
    cluster.settle()
    ended = run(cluster, CONFIRM, "--evict")
    assert (ended.code, ended.outcomes) == (1, {"shop/clones": "lost_sidecar"})
    assert sum("istio-proxy" in str(found["spec"]) for found in cluster.pods("shop")) == 1
