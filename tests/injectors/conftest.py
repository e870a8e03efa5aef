"""Namespaces and Pods for the tests of real injectors: `pytest --injectors`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clusters.control_plane.api import ApiError, path_of
from clusters.control_plane.remote import RemoteCluster, Shared
from clusters.embedded.manifests import pod_spec


@pytest.fixture
def real_cluster(shared: Shared) -> Iterator[RemoteCluster]:
    """A real cluster; its namespaces get the labels that a test gives them."""
    with RemoteCluster(shared) as found:
        yield found
        assert found.errors == []


@pytest.fixture
def until(real_cluster: RemoteCluster):
    """until(condition, **annotations): wait until a Pod of the namespace shop would be as that."""

    def wait(condition: Callable[[dict], bool], **annotations: str) -> None:
        path = path_of("pods", real_cluster.names.real("shop"))
        metadata = {"name": "x", "annotations": annotations, "labels": {"app": "x"}}
        body = {"metadata": metadata, "spec": pod_spec()}

        def is_as_wanted() -> bool:
            try:
                return condition(real_cluster.api.ask("POST", path, body, dryRun="All"))
            except ApiError:  # as while the injector starts
                return False

        real_cluster.wait_for(is_as_wanted, timeout=60)

    return wait
