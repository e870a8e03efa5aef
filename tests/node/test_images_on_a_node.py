"""--in-place, as the kubelet and containerd carry it out. The same situations run with the stand-in for the kubelet."""

from __future__ import annotations

import subprocess
from datetime import datetime

import pytest
from clusters.embedded import is_ready
from situations import (
    IN_PLACE,
    PROXY,
    create,
    image_of,
    images,
    inject,
    is_quiet,
    ready_probe,
    sidecar_of,
    startup_probe,
)
from support import KUBECTL
from texts import REPAIR_IMAGE

pytestmark = [pytest.mark.both, pytest.mark.node, pytest.mark.timeout(400)]


@pytest.fixture
def on_node(request) -> bool:
    return request.config.getoption("--node")


@pytest.fixture
def slowly(cluster, on_node, tool, monkeypatch):
    """For half a second, the stand-in shows what the probes of the old container said; a real kubelet does by itself."""
    if not on_node:
        cluster.kubelet.step = 0.5
        monkeypatch.setattr(tool, "READY_FOR", 3.0)
    return cluster


def message_of(ended) -> str:
    (result,) = ended.of("result")
    return result["message"]


@pytest.mark.parametrize("native", [False, True])
def test_a_sidecar_that_ends_after_it_was_called_ready_fails(slowly, run, native):
    """Without probes, a container is ready from its start to its end, and so is its Pod."""
    inject(slowly, "1.26.2", native=native)
    create(slowly, "web", replicas=3)
    inject(slowly, "1.27.0-crashing", native=native)
    ended = run(slowly, *IN_PLACE, "--timeout=60s")
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "failed"})
    assert "container istio-proxy: CrashLoopBackOff: Error (exit code 1)" in message_of(ended)
    assert REPAIR_IMAGE in message_of(ended)
    assert message_of(ended).endswith(" (0 of 3 Pods changed)")
    assert sorted(images(slowly)) == ["1.26.2"] * 2 + ["1.27.0-crashing"]
    inject(slowly, "1.27.0", native=native)
    ended = run(slowly, *IN_PLACE, "--timeout=60s")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"}), message_of(ended)
    assert images(slowly) == ["1.27.0"] * 3


@pytest.mark.parametrize("probes", [ready_probe, startup_probe])
def test_the_next_pod_is_changed_once_the_last_one_has_stayed_ready(
    slowly, run, tool, on_node, probes
):
    """Also if only the startup probe of the old container has passed."""
    inject(slowly, "1.26.2", native=True, **probes())
    create(slowly, "web")
    inject(slowly, "1.27.0-ready5" if on_node else "1.27.0", native=True, **probes())
    ended = run(slowly, *IN_PLACE, "--timeout=60s")
    assert ended.outcomes == {"shop/web": "succeeded"}
    moments = [
        datetime.fromisoformat(
            sidecar_of(pod)["state"]["running"]["startedAt"].replace("Z", "+00:00")
        )
        for pod in slowly.pods("shop")
    ]
    apart = abs((moments[0] - moments[1]).total_seconds())
    assert apart >= (10 + 4 if on_node else 3)  # whole seconds
    assert ended.summary["pods"]["ready"] == 2


def test_a_native_sidecar_whose_image_cannot_be_pulled_fails_at_the_timeout(cluster, run):
    """Its status may stay `terminated`, with exit code 0: only an event says why."""
    inject(cluster, "1.26.2", native=True)
    create(cluster, "web")
    inject(cluster, "1.27.0-broken", native=True)
    ended = run(cluster, *IN_PLACE, "--timeout=10s")
    assert ended.outcomes == {"shop/web": "failed"}
    assert REPAIR_IMAGE in message_of(ended)
    assert message_of(ended).endswith(" (0 of 2 Pods changed)")
    inject(cluster, "1.27.0", native=True)
    assert run(cluster, *IN_PLACE, "--timeout=60s").outcomes == {"shop/web": "succeeded"}
    assert images(cluster) == ["1.27.0"] * 2


def test_a_pod_whose_kubelet_ignores_the_next_image_is_to_be_deleted(cluster, run):
    """Until its startup probe has passed, no other image of a native sidecar counts."""
    inject(cluster, "1.26.2", native=True, **startup_probe())
    create(cluster, "web")
    inject(cluster, "1.27.0-neverready", native=True, **startup_probe())
    ended = run(cluster, *IN_PLACE, "--timeout=15s")
    assert ended.outcomes == {"shop/web": "failed"}
    assert REPAIR_IMAGE in message_of(ended)
    (changed,) = (pod for pod in cluster.pods("shop") if not is_ready(pod))
    assert image_of(changed) == f"{PROXY}1.27.0-neverready"
    command = message_of(ended).split("`")[1]
    name, context = changed["metadata"]["name"], cluster.name
    assert command == f"kubectl delete pod/{name} --namespace shop --context {context}"
    inject(cluster, "1.26.2", native=True, **startup_probe())
    names = getattr(
        cluster, "names", None
    )  # on a cluster that tests share, the namespace has another
    words = (names.translate(command) if names else command).split()[1:]
    subprocess.run([KUBECTL, *words, "--kubeconfig", cluster.kubeconfig], check=True)
    cluster.wait_for(lambda: is_quiet(cluster), 60)
    assert images(cluster) == ["1.26.2"] * 2


@pytest.mark.parametrize("native", [False, True])
def test_a_program_that_does_not_exist(cluster, run, native):
    inject(cluster, "1.26.2", native=native)
    create(cluster, "web")
    inject(cluster, "1.27.0-noprogram", native=native)
    ended = run(cluster, *IN_PLACE, "--timeout=60s")
    assert ended.outcomes == {"shop/web": "failed"}
    assert "container istio-proxy: RunContainerError" in message_of(
        ended
    ) or "StartError" in message_of(ended)
    assert REPAIR_IMAGE in message_of(ended)
    assert message_of(ended).endswith(" (0 of 2 Pods changed)")
    assert sorted(images(cluster)) == ["1.26.2", "1.27.0-noprogram"]
