"""The loop over several clusters of docs/recipes.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from clusters.embedded import EmbeddedCluster
from clusters.embedded.manifests import workload
from support import KUBECTL, TOP, patched


def the_loop() -> str:
    (loop,) = re.findall(
        r"```sh\n(set -e\nfor context in .*?\ndone\n)```",
        (TOP / "docs" / "recipes.md").read_text(),
        re.DOTALL,
    )
    return loop


@pytest.mark.parametrize("canary_fails", [False, True])
def test_the_loop_over_contexts_stops_at_the_first_cluster_that_fails(tmp_path, canary_fails):
    with EmbeddedCluster("canary") as canary, EmbeddedCluster("production") as production:
        config: dict = {
            "apiVersion": "v1",
            "kind": "Config",
            "contexts": [],
            "clusters": [],
            "users": [],
        }
        for cluster in (canary, production):
            one = cluster.kubeconfig_for()
            config = {
                **config,
                **{key: config[key] + one[key] for key in ("contexts", "clusters", "users")},
            }
            cluster.namespace("shop", inject=True)
            cluster.create("shop", workload("Deployment", "web"))
            cluster.settle()
            cluster.injector.container["image"] = "istio/proxyv2:2"
        config["users"] = config["users"][:1]
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        if canary_fails:
            canary.fault(method="PATCH", status=422, body={"message": "no"})
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "kubectl").symlink_to(KUBECTL)
        environment = {
            **os.environ,
            "KUBECONFIG": str(path),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        }
        loop = the_loop().replace(".venv/bin/python", sys.executable)
        ended = subprocess.run(
            ["sh", "-c", loop], cwd=TOP, env=environment, capture_output=True, text=True, timeout=60
        )
        assert patched(canary) == ["web"], ended.stderr
        assert patched(production) == ([] if canary_fails else ["web"])
        assert ended.returncode == int(canary_fails)
        assert ended.stdout.count("1 succeeded") == (0 if canary_fails else 2)
