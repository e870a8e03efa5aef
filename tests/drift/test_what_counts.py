"""What an audit and a question count: each Pod that runs, and what a yes has not looked at."""

from __future__ import annotations

import copy
import itertools
import re
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import CONFIRM, DRIFTED, NEW, TEXT, TOP

OLD = "docker.io/istio/proxyv2:1.26.2"
AUDIT = (DRIFTED, "--fail-on-drift")
EXPECT = "--expect-image=*:1.27.*"
SPEC = pod_spec(container("app"), container("istio-proxy", OLD))
NEW_SPEC = pod_spec(container("app"), container("istio-proxy", NEW))
TABLE = re.findall(
    r"^  \| `(\w+)` \| (yes|no) \| ([a-z ]*)\| .* \|$",
    (TOP / "docs" / "reference.md").read_text(),
    re.MULTILINE,
)

pytestmark = pytest.mark.embedded("it needs moments and objects that a real cluster does not keep")


def upgrade(cluster, image: str = NEW) -> None:
    cluster.injector.container = container("istio-proxy", image)


def last(ended) -> tuple[int, str]:
    return ended.code, ended.stdout.splitlines()[-1]


@pytest.fixture
def web(cluster):
    """A Deployment whose two Pods are up to date."""
    upgrade(cluster)
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    return cluster


# Each code


@pytest.fixture
def only_rule(tool, monkeypatch):
    """only_rule(code): no other rule applies, and this one to each workload; returns when it is asked."""

    rules = tool.RULES

    def make(code: str) -> int:
        for name, row in rules.items():
            reason = "because" if name == code else ""
            monkeypatch.setitem(rules, name, row._replace(applies=lambda *_, it=reason: it))
        return rules[code].known

    return make


@pytest.mark.parametrize(("code", "counts", "_"), TABLE)
def test_an_audit_counts_what_the_reference_says(web, run, only_rule, code, counts, _):
    """Old Pods that are left for a reason, whatever it is."""
    upgrade(web, "docker.io/istio/proxyv2:1.28.0")
    only_rule(code)
    ended = run(web, *AUDIT)
    if code == "up_to_date":  # by the rule, but these Pods differ
        code, counts = "drifted", "yes"
    assert ended.code == 1
    if counts == "yes":
        left = {"without_pods": 3}.get(code, 2)  # the workload counts, too
        code = "losing_sidecar" if code == "lost_sidecar" else code  # those that have it yet
        assert ended.summary["not_up_to_date"] == {code: left}
    else:  # then no Pod was checked
        assert ended.summary["failed"] == {"nothing_checked": 1}


@pytest.mark.parametrize(("code", "_", "new_pods"), TABLE)
def test_a_question_says_of_new_pods_what_the_reference_says(
    web, run, only_rule, code, _, new_pods
):
    known = only_rule(code)
    ended = run(web, EXPECT)
    said = ended.summary["expected"]
    is_checked = new_pods == "" and known == 3  # Known.ALL
    is_no = not is_checked and new_pods != "not checked "
    assert (ended.code, said["pods"], said["asked"] > said["would_differ"]) == (
        is_no,
        2,
        is_checked,
    )
    assert sum(said["not_asked"].values()) == int(new_pods == "not checked ")
    assert said["no_answer"] + said["would_differ"] == int(is_no)


@pytest.mark.parametrize(("code", "_", "new_pods"), TABLE)
def test_a_question_counts_pods_whatever_the_code(web, run, only_rule, code, _, new_pods):
    only_rule(code)
    ended = run(web, "--expect-image=*:1.28.*")
    assert (ended.code, ended.summary["expected"]["others"]) == (1, {NEW: 2})


# Pods that terminate


def terminating(cluster, spec: dict, ago: float, grace: int = 30, *owner, namespace="shop") -> None:
    """A Pod that was deleted so many seconds ago, and is still there."""
    cluster.kubelet.gone_after = 3600
    cluster.create(namespace, pod("last", spec, *owner))
    cluster.settle()
    end = datetime.now(timezone.utc) + timedelta(seconds=grace - ago)
    fields = {"deletionTimestamp": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
    fields |= {"deletionGracePeriodSeconds": grace, "finalizers": ["x/y"]}
    with cluster.store.lock:
        found = cluster.get("Pod", namespace, "last")
        cluster.store.change("pods", found, metadata={**found["metadata"], **fields})


@pytest.mark.parametrize(
    ("ago", "grace", "code"),
    [(660, 30, 1), (500, 30, 0), (660, 2_000_000_000, 1), (500, 0, 0), (660, 0, 1)],
)
def test_a_pod_that_was_deleted_long_ago_counts(web, run, ago, grace, code):
    terminating(web, SPEC, ago, grace)
    ended = run(web, *AUDIT)
    assert (ended.code, ended.summary["not_up_to_date"]) == (
        code,
        {"terminating": 1} if code else {},
    )
    if code:
        (left,) = ended.summary["leftovers"]
        assert (left["name"], left["code"]) == ("last", "terminating")
        text = (
            "was deleted more than 10 minutes ago, and still exists; see its finalizers and node:"
        )
        assert f"  {text}\n    Pod shop/last\n" in run(web, *AUDIT, TEXT).stdout


def test_one_of_a_job_does_not_count_and_one_of_another_kind_of_that_name_does(web, run):
    terminating(web, SPEC, 660, 30, ("batch/v1", "Job", "backup"))
    assert run(web, *AUDIT).code == 0
    web.namespace("legacy", inject=True)
    volcano = ("batch.volcano.sh/v1alpha1", "Job", "backup")
    terminating(web, SPEC, 660, 30, volcano, namespace="legacy")
    assert run(web, *AUDIT).summary["not_up_to_date"] == {"terminating": 1}


@pytest.mark.parametrize("image", [NEW, OLD])
def test_one_of_a_workload_is_compared_and_may_be_excluded(web, run, image):
    web.kubelet.gone_after = 3600
    (found, _) = web.pods("shop")
    name = found["metadata"]["name"]
    with web.store.lock:
        found = web.get("Pod", "shop", name)
        for row in found["spec"]["containers"]:
            if row["name"] == "istio-proxy":
                row["image"] = image
        fields = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
        metadata = {**found["metadata"], **fields, "finalizers": ["x/y"]}
        web.store.change("pods", found, spec=found["spec"], metadata=metadata)
    assert run(web, *AUDIT).code == int(image == OLD)
    annotation = {"metadata": {"annotations": {"out": "yes"}}}
    web.create("shop", workload("Deployment", "other"))
    web.change("Deployment", "shop", "web", annotation)
    web.wait_for(
        lambda: all(map(is_ready, web.pods("shop", "other"))) and web.pods("shop", "other")
    )
    assert run(web, *AUDIT, "--exclude-annotation=out=yes").code == 0
    assert run(web, *AUDIT, "deployment/other").code == 0
    assert run(web, DRIFTED).summary["leftovers"] == []  # only an audit counts it


# Without the sidecar


def lose(cluster, *names: str, kind: str = "Deployment", **more) -> None:
    cluster.injector.state = "ignored"
    for name in names:
        cluster.create(
            "plain", {**replicated(kind, name), **more} if more else workload(kind, name)
        )
    cluster.settle()
    cluster.injector.state = "works"


def test_what_has_no_sidecar_and_would_not_get_it_is_named_and_not_red(web, run):
    web.namespace("plain")
    lose(web, "a", "b")
    ended = run(web, *AUDIT, "--include-missing")
    assert (ended.code, ended.summary["not_injected"]) == (0, 2)
    text = run(web, *AUDIT, "--include-missing", TEXT).stdout
    said = "2 workloads without the sidecar would not get it"
    assert f"\n{said}:\n  plain:\n    Deployment plain/a, plain/b\n" in text
    code, sentence = last(run(web, EXPECT, TEXT))
    assert (code, f"(1 workload checked; {said})." in sentence) == (0, True)
    assert run(web, *AUDIT).summary["not_injected"] == 0  # it did not look
    assert said not in run(web, DRIFTED, "--include-missing", TEXT).stdout


def test_a_custom_resource_whose_pods_all_lack_it_is_named(web, run):
    web.namespace("plain")
    lose(web, "cs", kind="CloneSet", apiVersion="apps.kruise.io/v1alpha1")
    ended = run(web, *AUDIT, "--include-missing", TEXT)
    said = "1 custom resource without the sidecar, not checked"
    assert (ended.code, f"\n{said}:\n  plain:\n    CloneSet plain/cs\n" in ended.stdout) == (
        0,
        True,
    )
    code, sentence = last(run(web, EXPECT, TEXT))
    assert (code, "; not checked: 1 custom resource)." in sentence) == (0, True)


def test_silence_is_a_no_also_if_a_gateway_states_the_container(cluster, run):
    """Twelve Pods have lost the sidecar while the injector was down, and it still is."""
    cluster.injector.state = "ignored"
    for name in "abcd":
        cluster.create("shop", workload("Deployment", name, replicas=3))
    gateway = workload("Deployment", "gateway", pod_spec(container("istio-proxy", OLD)))
    cluster.create("shop", gateway)
    cluster.settle()
    ended = run(cluster, *AUDIT, "--include-missing", TEXT)
    assert last(ended) == (1, "Failed: the injector is down.")


# An image with a digest


@pytest.mark.parametrize(
    ("pattern", "code"), [("*:1.27.*", 1), ("*:1.27.*@sha256:*", 0), ("*@sha256:0*", 0)]
)
def test_a_tag_before_a_digest_is_no_proof(cluster, run, pattern, code):
    upgrade(cluster, f"{NEW}@sha256:{'0' * 64}")
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster, f"--expect-image={pattern}", TEXT)
    hint = f"; an image with a digest needs a pattern with its digest, such as {NEW}@sha256:0"
    assert (ended.code, hint in ended.stdout) == (code, code == 1)


# Twice


@pytest.mark.parametrize("first", [OLD, NEW])
@pytest.mark.parametrize("number", [1, 3])
def test_while_two_replicas_answer_in_turns_nothing_is_a_yes(web, run, first, number):
    for name in ("a", "b")[: number - 1]:
        web.create("shop", workload("Deployment", name))
    web.settle()
    other = OLD if first == NEW else NEW
    for question in ((EXPECT,), AUDIT):
        web.injector.container = container("istio-proxy", first)
        web.injector.upgraded = container("istio-proxy", other)
        assert run(web, *question).code == 1


def test_for_an_audit_and_a_question_each_is_asked_twice(web, run):
    web.create("shop", workload("Deployment", "api"))
    web.settle()
    asked = []
    for question in ((DRIFTED,), AUDIT, (EXPECT,)):
        before = len(web.injector.seen)
        assert run(web, *question).code == 0
        asked.append(len(web.injector.seen) - before)
    assert asked == [2, 4, 4]


def env(value: str) -> dict:
    return container("istio-proxy", NEW, env=[{"name": "CA", "value": value}])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_value_that_all_pods_share_is_not_made_anew(cluster, run, replicas):
    """Answers of two replicas of the injector; only Pods tell that a value is different in each."""
    cluster.injector.container = env("a")
    cluster.create("shop", workload("Deployment", "web", replicas=replicas))
    cluster.settle()
    cluster.injector.container, cluster.injector.upgraded = env("b"), env("c")
    assert run(cluster, DRIFTED).summary["verdicts"] == {"unknown": 1}
    cluster.injector.upgraded = None
    inject, values = cluster.injector.inject, itertools.count()

    def with_another(found: dict) -> None:
        cluster.injector.container = env(f"b{next(values)}")
        inject(found)

    cluster.injector.inject = with_another
    cluster.create("shop", workload("Deployment", "other", replicas=2))
    cluster.settle()
    found = {r["name"]: r["verdict"] for r in run(cluster, DRIFTED).of("drift")}
    # of one Pod, those of others tell; two that agree say more
    assert found == {"other": "up_to_date", "web": "up_to_date" if replicas == 1 else "unknown"}


def test_of_the_only_pod_that_has_a_value_those_of_others_tell(web, run):
    """As in the middle of an upgrade to an injector that writes one."""
    inject, values = web.injector.inject, itertools.count()

    def with_another(found: dict) -> None:
        web.injector.container = env(f"b{next(values)}")
        inject(found)

    web.injector.inject = with_another
    web.delete("Pod", "shop", web.pods("shop")[0]["metadata"]["name"])
    web.create("shop", workload("Deployment", "other", replicas=2))
    web.settle()
    found = {r["name"]: r["verdict"] for r in run(web, DRIFTED).of("drift")}
    assert found == {"other": "up_to_date", "web": "drifted"}


# What was not asked


def test_owners_without_pods_and_suspended_jobs_are_named(web, run):
    web.create("shop", replicated("ReplicaSet", "zero", replicas=0))
    web.create("shop", replicated("ReplicationController", "none", replicas=0))
    web.create("shop", workload("StatefulSet", "off", replicas=0))
    of_rollout = replicated("ReplicaSet", "canary-12ab", replicas=0)
    owner = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "name": "canary",
        "uid": "u-1",
    }
    of_rollout["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    web.create("shop", of_rollout)
    of_clone_set = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1}
    owner = {**owner, "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet"}
    of_clone_set["metadata"] = {"ownerReferences": [{**owner, "controller": True}]}
    of_clone_set["metadata"]["name"] = "canary-1"
    web.create("shop", of_clone_set)
    orphan = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1}
    web.create("shop", {**orphan, "metadata": {"name": "orphan"}})
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": NEW_SPEC}}}
    job["spec"]["suspend"] = True
    web.create("shop", {**job, "metadata": {"name": "later"}})
    active = {"template": {"spec": NEW_SPEC}}
    web.create("shop", {**job, "spec": active, "metadata": {"name": "active"}})
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    web.create("shop", {**job, "spec": active, "metadata": {"name": "done"}})
    with web.store.lock:
        found = web.get("Job", "shop", "done")
        web.store.change("jobs", found, status=done)
    web.settle()
    code, sentence = last(run(web, EXPECT, TEXT))
    said = "(1 workload checked; not checked: 5 without Pods, 1 Job, 1 suspended Job)."
    assert (code, sentence.partition("too ")[2]) == (0, said)


def test_the_waiting_template_of_a_paused_deployment_is_named(web, run):
    web.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    web.settle()
    assert "not checked" not in run(web, EXPECT, TEXT).stdout
    annotations = {"metadata": {"annotations": {"sidecar": "other"}}}
    web.change("Deployment", "shop", "web", {"spec": {"template": annotations}})
    web.settle()
    code, sentence = last(run(web, EXPECT, TEXT))
    assert (code, "not checked: 1 paused Deployment)." in sentence) == (0, True)


def test_a_pod_of_a_workflow_that_comes_meanwhile_is_of_its_kind(web, start):
    held = web.fault(method="POST", path="dryRun", release=threading.Event())
    running = start(web, EXPECT)
    assert held.reached.wait(30)
    web.create("shop", pod("step", NEW_SPEC, ("argoproj.io/v1alpha1", "Workflow", "build")))
    held.release.set()
    ended = running.finish()
    said = ended.summary["expected"]
    assert (ended.code, said["not_asked"]) == (0, {"custom_resource": 1})


def test_a_quota_is_named_and_is_no_injector_that_is_down(web, run):
    quota = {"kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    web.create("shop", quota)
    code, sentence = last(run(web, EXPECT, TEXT))
    why = "the quota few of the namespace is exhausted."
    assert code == 1
    assert sentence == f"No: 1 workload gave no answer: {why}"
    ended = run(web, *AUDIT)
    assert (ended.summary["injector"], ended.summary["failed"]) == ("", {"not_up_to_date": 2})


def test_of_a_webhook_that_fails_it_is_not_said_that_it_is_down(web, run):
    web.injector.state = "fails"
    ended = run(web, *AUDIT, TEXT)
    assert last(ended)[1].startswith(
        "Failed: 2 not up to date (2 unknown), no dry run had an answer"
    )


def test_a_question_has_no_plan(web, run):
    upgrade(web, "docker.io/istio/proxyv2:1.28.0")
    ended = run(web, EXPECT)
    assert (ended.code, ended.summary["planned"], ended.planned) == (1, 0, [])


# What an hour of attacks found


def test_pods_of_a_replica_set_that_a_job_controls_count(web, run):
    """A Job owns Pods alone: whoever writes that it owns a ReplicaSet hides Pods."""
    upgrade(web, OLD)
    lone = replicated("ReplicaSet", "lone")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "backup", "uid": "u-1"}
    lone["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    web.create("shop", lone)
    web.settle()
    upgrade(web)
    assert run(web, *AUDIT).summary["not_up_to_date"] == {"kind_not_selected": 1}


def test_a_changed_image_hides_no_pod_that_terminates(web, run):
    terminating(web, SPEC, 660)
    with web.store.lock:
        found = web.get("Pod", "shop", "last")
        spec = {**found["spec"], "containers": NEW_SPEC["containers"]}
        entry = {"manager": "kubectl-edit", "operation": "Update", "time": "2100-01-01T00:00:00Z"}
        entry["fieldsV1"] = {
            "f:spec": {"f:containers": {'k:{"name":"istio-proxy"}': {"f:image": {}}}}
        }
        managed = [*found["metadata"]["managedFields"], entry]
        web.store.change(
            "pods", found, spec=spec, metadata={**found["metadata"], "managedFields": managed}
        )
    assert run(web, *AUDIT).summary["not_up_to_date"] == {"terminating": 1}


@pytest.mark.parametrize("question", [AUDIT, (EXPECT,)])
def test_who_removes_managed_fields_hides_no_old_image(web, run, question):
    """Then only the runtime tells, by the name that it has for the image."""
    (found, _) = web.pods("shop")
    with web.store.lock:
        found = web.get("Pod", "shop", found["metadata"]["name"])
        status = copy.deepcopy(found["status"])
        for row in status["containerStatuses"]:
            row["image"] = OLD if row["name"] == "istio-proxy" else row["image"]
        metadata = without(found["metadata"], "managedFields")
        web.store.change("pods", found, status=status, metadata=metadata)
    ended = run(web, *question)
    assert ended.code == 1
    assert [row["code"] for row in ended.summary["leftovers"]] == ["not_restarted"]


def without(mapping: dict, name: str) -> dict:
    return {key: value for key, value in mapping.items() if key != name}


def test_a_digest_that_only_an_unknown_workload_has_is_no_error(web, run):
    web.injector.container = container("istio-proxy", f"{NEW}@sha256:{'0' * 64}")
    web.injector.upgraded = container("istio-proxy", NEW)
    ended = run(web, EXPECT)
    assert (ended.code, ended.summary["expected"]["no_answer"]) == (1, 1)


def test_a_yes_needs_new_pods_that_have_it_also_in_the_middle_of_a_rollout(web, run):
    """The injector was down when a release began: the newest Pods lack the sidecar."""
    web.create("shop", workload("Deployment", "api", replicas=3))
    web.settle()
    web.injector.state = "ignored"
    web.kubelet.ready_after = 3600
    annotations = {"metadata": {"annotations": {"release": "2"}}}
    web.change("Deployment", "shop", "api", {"spec": {"template": annotations}})
    web.wait_for(lambda: len(web.pods("shop", "api")) > 3)
    inject = web.injector.inject
    web.injector.state = "works"

    def for_web(found: dict) -> None:
        if not found["metadata"].get("generateName", "").startswith("api"):
            inject(found)

    web.injector.inject = for_web
    ended = run(web, EXPECT, TEXT)
    assert last(ended) == (1, "No: new Pods of 1 workload would get none.")


@pytest.mark.parametrize("answers", [[None, OLD, NEW, NEW], [OLD, None, NEW, NEW]])
def test_an_answer_of_another_version_is_not_forgotten(cluster, run, answers):
    upgrade(cluster)
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    inject, left = cluster.injector.inject, list(answers)

    def scripted(found: dict) -> None:
        image = left.pop(0) if left else NEW
        if image:
            cluster.injector.container = container("istio-proxy", image)
            inject(found)

    cluster.injector.inject = scripted
    ended = run(cluster, EXPECT)
    assert (ended.code, ended.summary["expected"]["no_answer"], left) == (1, 1, [])


def test_values_of_one_other_namespace_prove_nothing(cluster, run):
    """Its tenant may have written them."""
    cluster.injector.container = env("a")
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    inject, values = cluster.injector.inject, itertools.count()

    def with_another(found: dict) -> None:
        cluster.injector.container = env(f"b{next(values)}")
        inject(found)

    cluster.injector.inject = with_another
    verdicts = []
    for namespace in ("theirs", "third"):
        cluster.namespace(namespace, inject=True)
        cluster.create(namespace, workload("Deployment", "x", replicas=2))
        cluster.settle()
        found = {r["name"]: r["verdict"] for r in run(cluster, DRIFTED).of("drift")}
        verdicts.append(found["web"])
    assert verdicts == ["unknown", "up_to_date"]


def test_pods_below_a_partition_and_custom_resources_are_named(web, run):
    fields = {"updateStrategy": {"rollingUpdate": {"partition": 2}}}
    web.create("shop", workload("StatefulSet", "db", replicas=3, **fields))
    rollout = replicated("ReplicaSet", "canary-12ab")
    owner = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "name": "canary",
        "uid": "u-1",
    }
    rollout["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    web.create("shop", rollout)
    web.settle()
    code, sentence = last(run(web, EXPECT, TEXT))
    said = "not checked: 1 custom resource, 2 below a partition)."
    assert (code, sentence.partition("; ")[2].partition("; ")[2]) == (0, said)


# What attacks have found


NOTED = {"sidecarRollout.rollout.sidecars": "istio-proxy"}


@pytest.mark.parametrize(
    ("owner", "code"),
    [
        ((), "lost_sidecar"),  # as after its labels were changed: its ReplicaSet lets it go
        (("v1", "Pod", "driver"), "lost_sidecar"),
        (("v1", "Node", "node-1"), "lost_sidecar"),
        (("example/v1", "Foo", "x"), "lost_sidecar"),
        (("x/v1", "No such kind", "x"), "unknown"),
    ],
)
def test_a_pod_that_lost_its_sidecar_counts_whatever_owns_it(web, run, owner, code):
    lacking = pod("odd", pod_spec(container("app")), *([owner] if owner else []))
    lacking["metadata"]["annotations"] = NOTED
    lacking["metadata"].setdefault("labels", {})["sidecar.istio.io/inject"] = "false"
    web.create("shop", lacking)
    web.settle()
    ended = run(web, *AUDIT)
    assert (ended.code, ended.summary["not_up_to_date"]) == (1, {code: 1})
    ended = run(web, "--only-drifted", CONFIRM, TEXT)
    is_red = code == "lost_sidecar"
    assert (ended.code, "Repair the injector" in ended.stdout) == (
        int(is_red),
        bool(owner[1:2] == ("Foo",)),
    )


def test_a_pod_that_lost_its_sidecar_and_is_held_counts(web, run):
    lacking = pod_spec(container("app"))
    web.injector.state = "ignored"
    terminating(web, lacking, 3600)
    with web.store.lock:
        found = web.get("Pod", "shop", "last")
        web.store.change("pods", found, metadata={**found["metadata"], "annotations": NOTED})
    web.injector.state = "works"
    ended = run(web, *AUDIT)
    assert (ended.code, ended.summary["not_up_to_date"]) == (1, {"terminating": 1})


def test_a_deployment_that_is_not_rolled_out_is_named_paused_or_not(web, run):
    """Its old ReplicaSet, which serves, may create old Pods again: it has a template of its own."""
    bad = {"spec": {"containers": [{"name": "app", "image": "noprogram:1"}]}}
    web.change("Deployment", "shop", "web", {"spec": {"template": bad}})
    web.wait_for(lambda: len(web.pods("shop")) == 3)
    code, sentence = last(run(web, EXPECT, TEXT))
    assert (code, "not checked: 1 unfinished rollout)." in sentence) == (0, True)


def test_an_annotation_that_was_written_later_is_no_proof(web, run):
    question = ("--expect-annotation=istio.io/rev=1-27-0", TEXT)
    template = {"metadata": {"annotations": {"istio.io/rev": "1-27-0"}}}
    web.change("Deployment", "shop", "web", {"spec": {"template": template}})
    web.settle()
    web.wait_for(lambda: last(run(web, *question))[0] == 0)
    for found in web.pods("shop"):
        name = found["metadata"]["name"]
        web.backdate(found, 3600)
        rewritten = {"metadata": {"annotations": {"istio.io/rev": "1-27-1"}}}
        web.change("Pod", "shop", name, rewritten, "kubectl-annotate")
    for wanted in ("1-27-1", "*"):
        code, sentence = last(run(web, f"--expect-annotation=istio.io/rev={wanted}", TEXT))
        assert (code, "2 istio.io/rev=<written later>" in sentence) == (1, True)


def test_what_its_controller_wrote_later_is_from_its_creation(web, run):
    """A controller that adopts a Pod renews the time of all that it owns there, as its creator."""
    template = {"metadata": {"annotations": {"istio.io/rev": "1-27-0"}}}
    web.change("Deployment", "shop", "web", {"spec": {"template": template}})
    web.settle()
    question = ("--expect-annotation=istio.io/rev=1-27-0", TEXT)
    web.wait_for(lambda: last(run(web, *question))[0] == 0)
    owned = {"f:metadata": {"f:annotations": {"f:istio.io/rev": {}}}}
    owned["f:spec"] = {"f:restartPolicy": {}}
    entry = {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": owned}
    managed = [{**entry, "time": "2036-01-01T00:00:00Z"}]
    with web.store.lock:
        for found in web.pods("shop"):
            metadata = {**found["metadata"], "managedFields": managed}
            web.store.change("pods", found, metadata=metadata)
    assert last(run(web, *question))[0] == 0


def test_what_an_operator_wrote_later_is_no_proof(web, run):
    """Also if it created the Pod: it may have written again."""
    web.create("shop", pod("clone", SPEC, ("apps.kruise.io/v1alpha1", "CloneSet", "clones")))
    web.settle()
    owned = {"f:metadata": {"f:annotations": {"f:istio.io/rev": {}}}}
    owned["f:spec"] = {"f:restartPolicy": {}}
    entry = {"manager": "kruise", "operation": "Update", "fieldsV1": owned}
    managed = [{**entry, "time": "2036-01-01T00:00:00Z"}]
    with web.store.lock:
        found = web.get("Pod", "shop", "clone")
        metadata = {**found["metadata"], "managedFields": managed}
        metadata["annotations"] = {"istio.io/rev": "1-27-0"}
        web.store.change("pods", found, metadata=metadata)
    ended = run(web, "--expect-annotation=istio.io/rev=1-27-0")
    others = ended.summary["expected"]["others"]
    assert others["istio.io/rev=<written later>"] == 1


def test_what_comes_during_an_audit_is_neither_checked_nor_up_to_date(cluster, start):
    upgrade(cluster, OLD)
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    upgrade(cluster)
    began = time.time()
    cluster.wait_for(lambda: time.time() > began + 1.5)
    held = cluster.fault(method="POST", path="dryRun", release=threading.Event())
    running = start(cluster, *AUDIT)
    assert held.reached.wait(20)
    cluster.wait_for(lambda: time.time() > began + 3)
    cluster.delete("Deployment", "shop", "web")
    cluster.create_job("shop", "backup", SPEC)
    cluster.wait_for(lambda: len(cluster.store.list("pods")) == 1)
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.summary["failed"]) == (1, {"nothing_checked": 1})


def test_a_workload_that_gave_no_answer_and_lost_its_pod_is_no_yes(web, start):
    """Only what was deleted is no reason for a no."""
    body = {
        "kind": "Status",
        "code": 403,
        "message": 'admission webhook "x" denied the request: no',
    }
    web.create("shop", workload("Deployment", "api"))
    web.settle()
    fields = {"method": "POST", "path": r"pods\?.*dryRun", "status": 403, "body": body}
    held = web.fault(**fields, release=threading.Event(), times=99)
    running = start(web, EXPECT)
    assert held.reached.wait(20)
    web.change("Deployment", "shop", "api", {"spec": {"replicas": 0}})
    web.wait_for(lambda: len(web.store.list("pods")) == 2)  # also none that terminates
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.summary["expected"]["no_answer"]) == (1, 2)


def test_a_held_pod_that_lost_another_sidecar_is_no_matter(web, run):
    web.injector.state = "ignored"
    terminating(web, pod_spec(container("app")), 3600)
    other = {"sidecarRollout.rollout.sidecars": "vault-agent"}
    with web.store.lock:
        found = web.get("Pod", "shop", "last")
        web.store.change("pods", found, metadata={**found["metadata"], "annotations": other})
    web.injector.state = "works"
    assert run(web, *AUDIT).code == 0


# What happens while an audit or a question asks


def delete_workload(cluster) -> None:
    cluster.delete("Deployment", "preview", "web")
    cluster.wait_for(lambda: not cluster.pods("preview", "web"))


def delete_namespace(cluster) -> None:
    delete_workload(cluster)
    with cluster.store.lock:
        cluster.store.delete("namespaces", "", "preview")


def create_another(cluster) -> None:
    began = time.time()
    cluster.wait_for(lambda: time.time() > began + 1.5)  # one of the same second may be from before
    cluster.create("preview", workload("Deployment", "more"))
    cluster.settle()


def replace_one(cluster) -> None:
    create_another(cluster)
    delete_workload(cluster)


@pytest.mark.parametrize("options", [AUDIT, (EXPECT,)], ids=["audit", "question"])
@pytest.mark.parametrize(
    ("happens", "before"),
    [
        (replace_one, "/apis/apps/v1/deployments"),
        (delete_workload, "/apis/apps/v1/deployments"),
        (delete_namespace, "/endpointslices"),
        (create_another, r"shop/pods\?.*dryRun"),
    ],
)
def test_a_preview_that_comes_or_goes_meanwhile_is_no_reason(web, start, options, happens, before):
    web.namespace("preview", inject=True)
    web.create("preview", workload("Deployment", "web"))
    web.settle()
    held = web.fault(path=before, release=threading.Event())
    running = start(web, *options)
    assert held.reached.wait(20)
    happens(web)
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.summary["failed"]) == (0, {})


@pytest.mark.parametrize("options", [AUDIT, (EXPECT,)], ids=["audit", "question"])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, "etcdserver: leader changed"),
        (
            500,
            'Internal error occurred: failed calling webhook "x": Post "https://istiod:443": '
            "dial tcp 10.0.0.7:15017: connect: connection refused",
        ),
        (403, 'pods is forbidden: User "admin" cannot create resource "pods" in API group ""'),
    ],
)
def test_a_dry_run_that_fails_for_a_moment_is_sent_once_more(web, run, options, status, message):
    body = {"kind": "Status", "code": status, "message": message}
    web.fault(method="POST", path=r"pods\?.*dryRun", status=status, body=body, times=1)
    ended = run(web, *options)
    assert (ended.code, ended.summary["failed"]) == (0, {})
