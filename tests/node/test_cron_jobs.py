"""deploy/: the CronJobs in Pods of a real node, with their ServiceAccounts and policies, and an image of the tool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from situations import create, images, inject, ready_probe
from support import DEPLOY, KUBECTL

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]
NAMESPACE = "--namespace=sidecar-rollout"


@pytest.fixture
def kubectl(cluster):
    def run(*words: str, stdin: str | None = None) -> str:
        command = [KUBECTL, "--kubeconfig", cluster.kubeconfig, *words]
        ended = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def shop(cluster, kubectl, tmp_path):
    """A Deployment and a StatefulSet with an old sidecar; a new one takes 8 seconds to be ready.

    The image was loaded into the node by its tag: it has no digest of a registry.
    """
    folder = shutil.copytree(DEPLOY, tmp_path / "deploy")
    path = folder / "kustomization.yaml"
    text, count = re.subn(r"(?m)^    digest: .*$", "    newTag: 1.0.0", path.read_text())
    assert count == 1
    path.write_text(text)
    inject(cluster, "1.26.2", **ready_probe())
    create(cluster, "web")
    create(cluster, "db", kind="StatefulSet")
    inject(cluster, "1.27.0-ready8", **ready_probe())
    kubectl("apply", "-k", str(folder))
    yield cluster
    kubectl("delete", "namespace", "sidecar-rollout")


def records(text: str) -> list[dict]:
    found = (json.loads(line) for line in text.splitlines())
    return [record for record in found if "record" in record]


def start_job(cluster, kubectl, name: str) -> None:
    """Start a Job as the CronJob would, for the namespace of this test alone."""
    words = ("create", "job", "--from=cronjob/sidecar-rollout", name, NAMESPACE)
    job = json.loads(kubectl(*words, "--dry-run=client", "-o", "json"))
    (tool,) = job["spec"]["template"]["spec"]["containers"]
    tool["args"] = [word for word in tool["args"] if not word.startswith("--soak")]
    tool["args"].append(f"--include-namespace={cluster.names.real('shop')}")
    kubectl("apply", "-f", "-", stdin=json.dumps(job))


def follow(kubectl, name: str) -> str:
    return kubectl("logs", "--follow", "--pod-running-timeout=5m", f"job/{name}", NAMESPACE)


def test_the_audit_and_a_job_whose_pod_is_deleted_and_the_next_one_which_goes_on(shop, kubectl):
    check_audit(shop, kubectl)
    check_deleted(shop, kubectl)
    start_job(shop, kubectl, "again")
    found = records(follow(kubectl, "again"))
    assert [r["outcome"] for r in found if r["record"] == "result"] == ["succeeded"]
    assert found[-1]["exit_code"] == 0
    kubectl("wait", "--for=condition=complete", "--timeout=60s", "job/again", NAMESPACE)
    assert images(shop) == ["1.27.0-ready8"] * 4


def check_audit(shop, kubectl) -> None:
    """It tells what is drifted, and changes nothing."""
    job = ("create", "job", "--from=cronjob/sidecar-rollout-audit", "first-audit", NAMESPACE)
    kubectl(*job)
    found = records(follow(kubectl, "first-audit"))
    own = shop.names.real("shop")
    planned = {
        r["name"]: r["verdict"] for r in found if r["record"] == "drift" and r["namespace"] == own
    }
    assert planned == {"web": "drifted", "db": "drifted"}
    assert found[-1]["record"] == "summary"
    assert images(shop) == ["1.26.2"] * 4


def check_deleted(shop, kubectl) -> None:
    """A Job whose Pod is deleted waits for its rollout, and its log ends with the summary."""
    start_job(shop, kubectl, "nightly")
    shop.wait_for(lambda: len(set(images(shop))) == 2, 60)  # the first rollout is in progress
    (name,) = kubectl("get", "pods", NAMESPACE, "--selector=job-name=nightly", "-o", "name").split()
    kubectl("delete", name, NAMESPACE, "--wait=false")
    found = records(kubectl("logs", "--follow", name, NAMESPACE))
    assert found[-1]["record"] == "summary"
    assert found[-1]["exit_code"] == 143
    outcomes = sorted(r["outcome"] for r in found if r["record"] == "result")
    assert outcomes == ["not_started", "succeeded"]
    assert images(shop) == ["1.26.2"] * 2 + ["1.27.0-ready8"] * 2
