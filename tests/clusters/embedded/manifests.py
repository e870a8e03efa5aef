"""Short ways to write the objects that the tests and the demo need."""

from __future__ import annotations

APP = "registry.k8s.io/pause:3.10"


def container(name: str, image: str = APP, **fields) -> dict:
    return {"name": name, "image": image, **fields}


def native(name: str, image: str = APP, **fields) -> dict:
    """A native sidecar: it goes into a template's initContainers."""
    return container(name, image, restartPolicy="Always", **fields)


def pod_spec(*containers: dict, init: tuple[dict, ...] = (), **fields) -> dict:
    found = {
        "containers": list(containers) or [container("app")],
        "terminationGracePeriodSeconds": 1,
        **fields,
    }
    return {**found, "initContainers": list(init)} if init else found


def workload(
    kind: str, name: str, spec: dict | None = None, *, annotations: dict | None = None, **fields
) -> dict:
    """A Deployment, StatefulSet or DaemonSet; `annotations` go to its Pod template, `fields` into its spec."""
    labels = {"app": name}
    metadata = {"labels": labels, **({"annotations": annotations} if annotations else {})}
    template = {"metadata": metadata, "spec": spec or pod_spec()}
    if kind == "StatefulSet":
        fields.setdefault("serviceName", name)
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **fields},
    }


def replicated(kind: str, name: str, spec: dict | None = None, **fields) -> dict:
    """An owner of Pods that has no rollout: a ReplicaSet, ReplicationController or CloneSet."""
    found = workload(kind, name, spec, **fields)
    if kind == "ReplicationController":
        found |= {"apiVersion": "v1"}
        found["spec"]["selector"] = found["spec"]["selector"]["matchLabels"]
    return found


def budget(name: str, app: str = "", **fields) -> dict:
    """A PodDisruptionBudget, of the Pods of the workload of the same name or of `app`."""
    spec = {"selector": {"matchLabels": {"app": app or name}}, **fields}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def service(name: str, **selector: str) -> dict:
    """A Service; without a selector it is that of the workload of the same name."""
    spec = {"selector": selector or {"app": name}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def pod(name: str, spec: dict | None = None, owner: tuple[str, str, str] | None = None) -> dict:
    """A Pod; `owner` is (apiVersion, kind, name) of its controller."""
    metadata: dict = {"name": name, "labels": {"app": name}}
    if owner:
        api_version, kind, owner_name = owner
        reference = {
            "apiVersion": api_version,
            "kind": kind,
            "name": owner_name,
            "uid": f"uid-of-{owner_name}",
        }
        metadata["ownerReferences"] = [
            {**reference, "controller": True, "blockOwnerDeletion": True}
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec or pod_spec()}
