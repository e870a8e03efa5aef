"""--expect-image and --expect-annotation on any cluster; test_expected.py asks all that a simulated one can show."""

from __future__ import annotations

import time

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import NEW, upgrade

pytestmark = pytest.mark.both

EXPECT = "--expect-image=*:1.27.*"
TO_THE_END = {**pod_spec(container("app")), "restartPolicy": "Never"}


@pytest.fixture
def fleet(cluster):
    """Workloads of each kind that are up to date."""
    upgrade(cluster)
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        cluster.create("shop", workload(kind, f"a-{kind.lower()}"))
    cluster.settle()
    return cluster


def said(ended) -> dict:
    found: dict = ended.summary["expected"]
    assert (ended.code, ended.summary["exit_code"]) == ((0, 0) if found["yes"] else (1, 1))
    return found


def test_yes_where_there_are_no_jobs_and_nothing_is_without_pods(fleet, run):
    found = said(run(fleet, EXPECT))
    assert (found["yes"], found["asked"], found["not_asked"]) == (True, 3, {})
    assert found["reasons"] == []


def test_what_may_have_pods_later_is_named(fleet, run):
    fleet.create("shop", workload("Deployment", "zero", replicas=0))
    fleet.create("shop", replicated("ReplicaSet", "none", replicas=0))
    fleet.create("shop", replicated("ReplicationController", "old", replicas=0))
    spec = {"suspend": True, "template": {"spec": TO_THE_END}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "later"}, "spec": spec}
    fleet.create("shop", job)
    spec = {"schedule": "@yearly", "jobTemplate": {"spec": {"template": {"spec": TO_THE_END}}}}
    fleet.create("shop", {**job, "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec})
    fleet.settle()
    found = said(run(fleet, EXPECT))
    wanted = {"without_pods": 3, "cronjob": 1, "suspended_job": 1}
    assert (found["yes"], found["asked"], found["not_asked"]) == (True, 3, wanted)


def test_an_old_pod_is_a_no_whatever_owns_it(fleet, run):
    proxy = container("istio-proxy", NEW.replace("1.27.0", "1.26.2"))
    fleet.create("shop", pod("debug", pod_spec(container("app"), proxy)))
    fleet.settle()
    found = said(run(fleet, EXPECT))
    assert (found["yes"], sum(found["others"].values())) == (False, 1)


def test_an_injector_that_gives_another_image_is_a_no(fleet, run):
    fleet.injector.container["image"] = NEW.replace("1.27.0", "1.28.0")
    found = said(run(fleet, EXPECT))
    assert (found["yes"], found["would_differ"], found["others"]) == (False, 3, {})


def test_an_annotation_is_expected_of_pods_and_of_new_ones(fleet, run):
    question = ("--expect-annotation=team=web",)
    found = said(run(fleet, *question))
    assert (found["yes"], found["would_differ"]) == (False, 3)
    template = {"metadata": {"annotations": {"team": "web"}}}
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        fleet.change(kind, "shop", f"a-{kind.lower()}", {"spec": {"template": template}})
    fleet.settle()
    fleet.wait_for(lambda: run(fleet, *question).code == 0)  # what terminates counts, too
    found = said(run(fleet, *question))
    assert (found["reasons"], found["asked"]) == ([], 3)
    began = time.time()
    fleet.wait_for(lambda: time.time() > began + 1.1)  # managedFields have whole seconds
    for pod_of in fleet.pods("shop"):
        name = pod_of["metadata"]["name"]
        fleet.change("Pod", "shop", name, {"metadata": {"annotations": {"team": "api"}}})
    found = said(run(fleet, "--expect-annotation=team=api"))
    assert set(found["others"]) == {"team=<written later>"}
