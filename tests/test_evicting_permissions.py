"""--evict: missing permissions are found before anything is changed."""

from __future__ import annotations

import pytest
from cluster.manifests import workload
from support import APP, CONFIRM, EVICT, ON_DELETE, OWNERS, evictions, evictor, of_nobody, upgrade


def test_without_permission_to_create_pods_it_is_not_tried(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    ended = run(evictor(cluster), CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


@pytest.mark.parametrize(
    ("owner", "resource", "text"),
    [
        ("ReplicaSet shop/x", "pods/eviction", "create pods/eviction in namespace shop"),
        (
            "DaemonSet shop/x",
            "controllerrevisions",
            "list controllerrevisions.apps in namespace shop",
        ),
        ("ReplicationController shop/x", "replicationcontrollers", "replicationcontrollers"),
    ],
)
def test_missing_permissions_are_found_before_anything_is_changed(
    cluster, run, owner, resource, text
):
    OWNERS[owner](cluster)
    cluster.settle()
    ended = run(evictor(cluster, resource), CONFIRM, *EVICT)
    assert (ended.code, evictions(cluster)) == (3, [])
    assert text in ended.stderr
    assert "(nothing was changed)" in ended.stderr
    if "Controller " not in owner:  # not needed for a dry run
        assert run(evictor(cluster, resource), *EVICT).code == 0


def test_permissions_that_are_not_needed_are_not_asked_for(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, **ON_DELETE))
    cluster.settle()
    user = evictor(cluster, "replicationcontrollers", "controllerrevisions")
    assert run(user, CONFIRM, *EVICT).outcomes == {"shop/x": "succeeded"}


def test_kruises_daemon_set_needs_no_permission_for_revisions(cluster, run):
    of_nobody(cluster, 1, "apps.kruise.io/v1alpha1", "DaemonSet")
    ended = run(evictor(cluster, "controllerrevisions"), CONFIRM, *EVICT, "--timeout=1s")
    assert ended.outcomes == {"shop/x": "timed_out"}
