"""--evict: missing permissions are found before anything is changed."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import workload
from support import (
    APP,
    CONFIRM,
    EVICT,
    ON_DELETE,
    OWNERS,
    TEXT,
    evictions,
    evictor,
    of_nobody,
    upgrade,
)
from texts import MISSING_PERMISSIONS

pytestmark = pytest.mark.both


def test_permission_to_create_pods_is_not_needed_to_evict(cluster, run):
    """A pending template is told by counts."""
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    ended = run(evictor(cluster, "pods/create"), CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(evictions(cluster)) == 2


@pytest.mark.embedded("the tests name their namespaces there")
def test_missing_permissions_are_found_before_anything_is_changed(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    user = evictor(cluster, "pods/eviction")
    ended = run(user, CONFIRM, *EVICT)
    assert (ended.code, evictions(cluster)) == (3, [])
    assert f"{MISSING_PERMISSIONS}create pods/eviction in all namespaces" in ended.stderr
    assert "(nothing was changed)" in ended.stderr
    assert run(user, *EVICT).code == 0  # not needed for a dry run


def test_owners_that_may_not_be_read_are_skipped(cluster, run):
    OWNERS["ReplicationController shop/x"](cluster)
    cluster.create("shop", workload("StatefulSet", "y", APP, **ON_DELETE))
    cluster.settle()
    ended = run(evictor(cluster, "replicationcontrollers"), CONFIRM, *EVICT, TEXT)
    assert ended.code == 0
    assert (
        "its controller no longer exists, or there is no permission to read it:\n" in ended.stdout
    )
    assert "StatefulSet shop/y: eviction succeeded" in ended.stderr
    assert evictions(cluster) == ["y-0"]


def test_the_template_of_kruises_daemon_set_is_not_known(cluster, run):
    of_nobody(cluster, 1, "apps.kruise.io/v1alpha1", "DaemonSet")
    ended = run(evictor(cluster), CONFIRM, *EVICT, "--timeout=1s")
    assert ended.outcomes == {"shop/x": "timed_out"}
