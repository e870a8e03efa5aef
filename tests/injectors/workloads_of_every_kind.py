"""Workloads of every kind, as an injector meets them."""

from __future__ import annotations

from clusters.control_plane.remote import RemoteCluster
from clusters.embedded.manifests import container, native, pod_spec, workload
from support import verdicts

PROBES = {
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
    "livenessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 20},
    "startupProbe": {"exec": {"command": ["true"]}},
    "ports": [{"containerPort": 8080, "name": "http"}],
}
VOLUMES = [
    {"name": "scratch", "emptyDir": {}},
    {"name": "settings", "configMap": {"name": "settings"}},
    {"name": "both", "projected": {"sources": [{"configMap": {"name": "settings"}}]}},
]
MOUNTS = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in VOLUMES]
RESOURCES = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "capabilities": {"drop": ["ALL"]},
}


def stay_up_to_date(
    injector, cluster: RemoteCluster, until, run, condition, *options: str, **annotations: str
):
    """Create workloads whose Pods do not drift, nor when their injector is started again.

    Return their verdicts. `condition` tells of a Pod whether it has the sidecar.
    """
    injector.start()
    for name in ("shop", "bank"):
        cluster.namespace(name)
    until(condition, **annotations)
    found = dict.fromkeys(create_company(cluster, **annotations), "up_to_date")
    assert verdicts(run(cluster, *options)) == found
    injector.renew_certificate()
    injector.start()
    until(condition, **annotations)
    assert verdicts(run(cluster, *options)) == found
    return found


def create_company(cluster: RemoteCluster, **annotations: str) -> list[str]:
    """Create the workloads in the namespaces shop and bank, and return their references, sorted."""
    noted = {"annotations": annotations} if annotations else {}
    cluster.create(
        "shop", {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
    )
    variables = [{"name": "MODE", "value": "fast"}]
    specs = {
        "plain": pod_spec(),
        "probes": pod_spec(container("app", **PROBES)),
        "volumes": pod_spec(container("app", volumeMounts=MOUNTS, env=variables), volumes=VOLUMES),
        "secured": pod_spec(
            container("app", securityContext=RESTRICTED), securityContext={"fsGroup": 2000}
        ),
        "native": pod_spec(init=(native("log-agent"), container("migrate"))),
        "limited": pod_spec(container("app", resources=RESOURCES), container("second")),
    }
    for name, spec in specs.items():
        cluster.create("shop", workload("Deployment", name, spec, replicas=2, **noted))
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    claims = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    database = pod_spec(container("app", **mount))
    stateful = {"replicas": 2, "volumeClaimTemplates": claims}
    cluster.create("shop", workload("StatefulSet", "database", database, **stateful, **noted))
    cluster.create("shop", workload("DaemonSet", "agent", **noted))
    hard = {"pods": "20", "requests.memory": "100Gi", "limits.cpu": "100"}
    cluster.create(
        "bank", {"kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": hard}}
    )
    limits = [{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"memory": "1Mi"}}]
    cluster.create(
        "bank", {"kind": "LimitRange", "metadata": {"name": "all"}, "spec": {"limits": limits}}
    )
    cluster.create("bank", workload("Deployment", "ledger", replicas=2, **noted))
    cluster.settle()
    return sorted(
        ["bank/ledger", "shop/agent", "shop/database", *(f"shop/{name}" for name in specs)]
    )
