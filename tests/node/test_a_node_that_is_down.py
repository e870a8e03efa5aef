"""A node whose kubelet is not there: its Pods are not ready, and their status tells nothing more."""

from __future__ import annotations

import pytest
from clusters.embedded import is_ready
from situations import IN_PLACE, create, images, inject
from texts import REPAIR_IMAGE

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def web(cluster):
    inject(cluster, "1.26.2")
    create(cluster, "web")
    inject(cluster, "1.27.0")
    return cluster


def change_images(cluster, run) -> None:
    # The controller of a node that is down tells it of one Pod after the other.
    cluster.wait_for(lambda: not any(map(is_ready, cluster.pods("shop"))), 30)
    ended = run(cluster, *IN_PLACE, "--timeout=5s")
    (result,) = ended.of("result")
    assert result["outcome"] == "failed"
    nodes = {pod["spec"]["nodeName"] for pod in cluster.pods("shop")}
    assert any(f": its node {node} may be down after 5s" in result["message"] for node in nodes), (
        result
    )
    assert REPAIR_IMAGE in result["message"]
    assert sorted(images(cluster)) == ["1.26.2", "1.27.0"]


@pytest.mark.node
@pytest.mark.alone
def test_a_real_node(web, run):
    with web.without_kubelet():
        change_images(web, run)
    web.wait_for(lambda: all(map(is_ready, web.pods("shop"))), 60)


def test_a_node_of_the_stand_in(web, run):
    nodes = {pod["spec"]["nodeName"] for pod in web.pods("shop")}
    for node in nodes:
        web.kubelet.stop_on(node)
    change_images(web, run)
    for node in nodes:
        web.kubelet.start_on(node)
    web.wait_for(lambda: all(map(is_ready, web.pods("shop"))))
