"""The script as a kubectl plugin: kubectl finds it on the PATH, and it calls itself `kubectl sidecar-rollout`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from clusters.embedded.manifests import workload
from support import KUBECTL, SCRIPT, TEXT, TOP, Finished, printed_command

NAME = "--sidecar-container-name=istio-proxy"
PLUGIN = "kubectl-sidecar_rollout"


@pytest.fixture(params=["symlink", "copy"])
def kubectl(request, tmp_path):
    """kubectl(cluster, *arguments): the real kubectl, with the plugin on the PATH.

    The copy is made with the README's commands, and gets its packages from uv.
    """
    folder = tmp_path / ".local" / "bin"
    folder.mkdir(parents=True)
    (folder / "kubectl").symlink_to(KUBECTL)
    python = Path(sys.executable)
    path = f"{folder}:{python.parent}:/usr/bin:/bin"
    if request.param == "symlink":
        (folder / PLUGIN).symlink_to(SCRIPT)
    else:
        readme = (TOP / "deploy" / "README.md").read_text()
        commands = re.findall(rf"(?m)^(?:sed|chmod) .*{PLUGIN}$", readme)
        assert len(commands) == 2
        script = " && ".join(commands)
        home = {**os.environ, "HOME": str(tmp_path)}
        subprocess.run(["sh", "-c", script], cwd=TOP, env=home, check=True)
        assert (folder / PLUGIN).read_text().startswith("#!/usr/bin/env -S uv run --script\n")
        (folder / "uv").symlink_to(python.with_name("uv"))
        path = f"{folder}:/usr/bin:/bin"

    def run(cluster, *arguments: str) -> Finished:
        environment = {
            **os.environ,
            "PATH": path,
            "KUBECONFIG": cluster.kubeconfig,
            "UV_PYTHON": sys.executable,
        }
        ended = subprocess.run(
            [str(folder / "kubectl"), "sidecar-rollout", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    return run


@pytest.fixture
def company(cluster):
    """Deployment web in each of two namespaces."""
    cluster.namespace("pay", inject=True)
    for namespace in ("shop", "pay"):
        cluster.create(namespace, workload("Deployment", "web"))
    cluster.settle()
    return cluster


def test_the_printed_command_is_one_that_kubectl_runs(company, kubectl):
    last = kubectl(company, NAME, "-n", "shop", TEXT).stdout.splitlines()[-1]
    to_apply = printed_command(last)
    assert to_apply[:5] == ["kubectl", "sidecar-rollout", NAME, "-n", "shop"]
    ended = kubectl(company, *to_apply[2:], "--log-format=json")
    assert ended.outcomes == {"shop/web": "succeeded"}


def test_usage_errors_and_version(company, kubectl):
    wrong = kubectl(company, "--unknown", NAME)
    assert wrong.code == 2
    assert wrong.stderr.splitlines()[-2:] == [  # before them, what uv downloads
        "error: unknown option --unknown",
        "See 'kubectl sidecar-rollout --help' for usage.",
    ]
    shown = kubectl(company, "--help").stdout
    assert shown.startswith("usage: kubectl sidecar-rollout [TYPE/NAME...]\n")
    assert "\n  kubectl sidecar-rollout --sidecar-container-name=istio-proxy --only-" in shown
    assert "sidecar-rollout.py" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert kubectl(company, "--version").stdout.startswith("kubectl sidecar-rollout 1.")


def test_a_workload_may_come_first(company, kubectl):
    """kubectl looks for a longer plugin name first: kubectl-sidecar_rollout-deployment/web."""
    ended = kubectl(company, "deployment/web", NAME, "-n", "pay", "--log-format=json")
    assert ended.planned == ["pay/web"]


@pytest.mark.parametrize(
    ("options", "planned"),
    [
        (["-n", "shop"], ["shop/web"]),
        (["-nshop"], ["shop/web"]),
        (["-n=shop"], ["shop/web"]),
        (["--namespace", "shop"], ["shop/web"]),
        (["--namespace=shop"], ["shop/web"]),
        (["-A"], ["pay/web", "shop/web"]),
        (["-A", "deployment/web"], ["pay/web", "shop/web"]),
        (["--all-namespaces"], ["pay/web", "shop/web"]),
        (["--all-namespaces=true", "-n", "shop"], ["pay/web", "shop/web"]),
        (["-n", "shop", "-A"], ["pay/web", "shop/web"]),
        (["-A", "--exclude-namespace=pay"], ["shop/web"]),
        (["-A=false", "-n", "shop"], ["shop/web"]),
    ],
)
def test_namespaces_are_selected_as_with_kubectl(company, run, options, planned):
    assert run(company, *options).planned == planned
