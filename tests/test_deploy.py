"""deploy/: the manifests and the CronJobs."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import demo
import pytest
from kubernetes import client
from support import CONFIRM, arguments, documents

MODELS = {
    "Namespace": "V1Namespace",
    "ServiceAccount": "V1ServiceAccount",
    "ClusterRole": "V1ClusterRole",
    "ClusterRoleBinding": "V1ClusterRoleBinding",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "CronJob": "V1CronJob",
}


@pytest.mark.parametrize("name", ["rbac.yaml", "cronjob.yaml", "audit.yaml"])
def test_manifests_are_of_the_openapi_of_a_current_kubernetes(name):
    """The client's models are generated from Kubernetes' OpenAPI; what they do not know gets lost in them."""
    for document in documents(name):
        model = getattr(client, MODELS[document["kind"]])
        assert client.ApiClient().sanitize_for_serialization(model.from_dict(document)) == document


def test_a_manifest_with_a_misspelled_field_would_be_found():
    (document,) = documents("cronjob.yaml")
    wrong = copy.deepcopy(document)
    wrong["spec"]["concurencyPolicy"] = wrong["spec"].pop("concurrencyPolicy")
    assert client.ApiClient().sanitize_for_serialization(client.V1CronJob.from_dict(wrong)) != wrong


@pytest.mark.parametrize("name", ["cronjob.yaml", "audit.yaml"])
def test_the_cron_jobs_pods_pass_pod_security_restricted(name):
    (job,) = documents(name)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert set().union(*(volume.keys() for volume in pod["volumes"])) == {"name", "emptyDir"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    timeout = next((a for a in container["args"] if a.startswith("--timeout=")), "--timeout=300s")
    assert (
        pod["terminationGracePeriodSeconds"]
        > int(timeout.removeprefix("--timeout=").rstrip("s")) + 60
    )
    accounts = [d["metadata"] for d in documents("rbac.yaml") if d["kind"] == "ServiceAccount"]
    assert {
        "name": pod["serviceAccountName"],
        "namespace": job["metadata"]["namespace"],
    } in accounts


def test_the_audit_is_the_same_without_confirm():
    rollout, audit = set(arguments("cronjob.yaml")), set(arguments("audit.yaml"))
    assert {"--only-drifted", CONFIRM, "--max-failures=3", "--log-format=json"} <= rollout
    assert audit - rollout == {"--fail-on-drift"}
    assert CONFIRM not in audit


@pytest.mark.parametrize(("name", "code"), [("cronjob.yaml", 1), ("audit.yaml", 1)])
def test_the_demo_runs_the_cron_jobs_command_line(name, code):
    words = [sys.executable, demo.__file__, *arguments(name)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100)
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == code == records[-1]["exit_code"]
    assert {"drifted", "rejected"} <= records[-1]["verdicts"].keys()
    assert ("result" in {r["record"] for r in records}) == (name == "cronjob.yaml")
