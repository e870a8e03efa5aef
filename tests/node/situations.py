"""What the tests of this folder need: sidecars with probes, and waits that fit a real kubelet or its stand-in."""

from __future__ import annotations

from clusters.embedded import Cluster, is_ready
from clusters.embedded.manifests import container, pod_spec, workload

PROXY = "docker.io/istio/proxyv2:"
OLD = f"{PROXY}1.26.2"
IN_PLACE = ("--only-drifted", "--in-place", "--confirm=true")


def probe(port: int = 15021, period: int = 1, **fields) -> dict:
    return {"httpGet": {"path": "/ready", "port": port}, "periodSeconds": period, **fields}


def inject(cluster: Cluster, tag: str, *, native: bool = False, **probes: dict) -> None:
    """Let the injector add istio-proxy with a tag from now on."""
    cluster.injector.native = native
    cluster.injector.container = {**container("istio-proxy", f"{PROXY}{tag}"), **probes}


def ready_probe() -> dict:
    return {"readinessProbe": probe()}


def startup_probe() -> dict:
    """As Istio's: it may take ten minutes."""
    return {"startupProbe": probe(failureThreshold=600)}


def create(cluster: Cluster, *names: str, kind: str = "Deployment", spec=None, **fields) -> None:
    """Create workloads, and wait until their Pods are ready."""
    fields = {"replicas": 2, **fields}
    for name in names:
        # Other nodes of the embedded cluster ignore images of native sidecars
        found = spec or pod_spec(container("app", "docker.io/example/app:1"), nodeName="node-1")
        cluster.create("shop", workload(kind, name, found, **fields))
    cluster.wait_for(lambda: is_quiet(cluster), 60)


def is_quiet(cluster: Cluster) -> bool:
    """Whether all Pods are ready, none is missing, and their workloads know."""
    cluster.settle(60)
    return all(map(is_ready, cluster.pods("shop"))) and not any(map(lacks, workloads(cluster)))


def workloads(cluster: Cluster) -> list[dict]:
    return [obj for plural in ("deployments", "statefulsets") for obj in cluster.store.list(plural)]


def lacks(obj: dict) -> bool:
    return obj["status"].get("availableReplicas", 0) < obj["spec"]["replicas"]


def sidecar_of(pod: dict) -> dict:
    """The status of istio-proxy."""
    status = pod["status"]
    both = status["containerStatuses"] + status.get("initContainerStatuses", [])
    return next(found for found in both if found["name"] == "istio-proxy")


def image_of(pod: dict) -> str:
    spec = pod["spec"]
    both = spec["containers"] + spec.get("initContainers", [])
    return next(found["image"] for found in both if found["name"] == "istio-proxy")


def images(cluster: Cluster) -> list[str]:
    """The tags of the sidecars, in order."""
    return sorted(image_of(pod).removeprefix(PROXY) for pod in cluster.pods("shop"))
