"""The node has the container runtime that was asked for."""

from __future__ import annotations

import subprocess

import pytest
from clusters.control_plane.api import path_of
from clusters.control_plane.node import NAME


@pytest.mark.node
def test_containerd_is_that_of_the_path_or_version_2(cluster, request):
    node = cluster.api.ask("GET", path_of("nodes", None, NAME))
    name, _, version = node["status"]["nodeInfo"]["containerRuntimeVersion"].partition("://")
    assert name == "containerd"
    if request.config.getoption("--containerd"):
        assert version.startswith("2.")
    else:
        words = ["containerd", "--version"]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert version in shown
