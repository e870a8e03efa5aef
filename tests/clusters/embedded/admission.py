"""What happens to an object on its way in: defaults, admission, and the sidecar injector.

The refusals have the statuses and messages of a real API server (tests/clusters/recorded/dry-run-pod-refused.json).
"""

from __future__ import annotations

import copy
import dataclasses
import secrets
import time

from .quantities import canonical_resources
from .store import Store

DEFAULT_TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for key in ("not-ready", "unreachable")
]
TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
RANDOM_LETTERS = (
    "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes' names have them: no vowels, no 0, 1, 3
)


class Refused(Exception):
    """An answer other than success, as the API server words it."""

    def __init__(
        self,
        code: int,
        reason: str | None,
        message: str,
        details: dict | None = None,
        metadata: dict | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details
        self.metadata = metadata or {}


def random_suffix() -> str:
    return "".join(secrets.choice(RANDOM_LETTERS) for _ in range(5))


def set_name(store: Store, resource: str, metadata: dict) -> None:
    """Give an object a name made from its generateName, if it has none: one that is not in use.

    The API server tries up to eight (RetryGenerateName, since 1.32). One in 110 clusters of 500 Pods has two names alike.
    """
    while not metadata.get("name"):
        name = metadata.get("generateName", "") + random_suffix()
        if not store.get(resource, metadata.get("namespace", ""), name):
            metadata["name"] = name


@dataclasses.dataclass
class Injector:
    """A mutating webhook that adds a sidecar to each Pod created in a namespace labelled `sidecar-injection: enabled`.

    A test changes these fields at run time, as an operator changes the sidecar template.
    """

    container: dict = dataclasses.field(
        default_factory=lambda: {"name": "istio-proxy", "image": "docker.io/istio/proxyv2:1.26.2"}
    )
    native: bool = (
        False  # for all; one Pod asks for it by the annotation sidecar.istio.io/nativeSidecar
    )
    init: bool = False  # it adds an ordinary init container, as auto-instrumentation does
    instrumentation: dict | None = None  # an init container for Pods that ask by an annotation
    also: dict = dataclasses.field(
        default_factory=dict
    )  # more of a Pod's spec: volumes, initContainers
    state: str = "works"  # or: fails, denies, hangs, no-dry-run, ignored (failurePolicy: Ignore and no answer)
    hangs_for: float = 5.0
    breaks_after: int | None = None  # so many more Pods that are created; then it is ignored
    takes: float = 0.0
    stamps: bool = False  # it writes into each Pod when that was
    upgraded: dict | None = None  # the container of a newer version, which answers every other time
    seen: list[dict] = dataclasses.field(
        default_factory=list
    )  # the Pods it was asked about in dry runs

    name = "inject.sidecar.example"

    def __call__(self, pod: dict, namespace: dict, dry_run: bool) -> None:
        """Changes the Pod in place. Refused: what a real API server makes of a webhook in trouble."""
        if namespace["metadata"].get("labels", {}).get("sidecar-injection") != "enabled":
            return
        if dry_run:
            self.seen.append(copy.deepcopy(pod))
        if self.takes:
            time.sleep(self.takes)
        failing = f'failed calling webhook "{self.name}": failed to call webhook'
        if self.state == "fails":
            raise _internal(
                f'{failing}: an error on the server ("sick") has prevented the request from succeeding'
            )
        if self.state == "denies":
            raise Refused(
                403, None, f'admission webhook "{self.name}" denied the request: injector says no'
            )
        if self.state == "hangs":
            time.sleep(self.hangs_for)
            url = f"https://127.0.0.1:18443/inject?timeout={self.hangs_for:g}s"
            raise _internal(f'{failing}: Post "{url}": context deadline exceeded')
        if self.state == "no-dry-run" and dry_run:
            message = f'admission webhook "{self.name}" does not support dry run'
            raise Refused(400, "BadRequest", message)
        if (
            self.state == "ignored"
            or pod["metadata"].get("labels", {}).get("sidecar.istio.io/inject") == "false"
        ):
            return
        if not dry_run and self.breaks_after is not None:
            if not self.breaks_after:
                self.state = "ignored"
                return
            self.breaks_after -= 1
        self.inject(pod)

    def inject(self, pod: dict) -> None:
        spec = pod["spec"]
        if any(
            c["name"] == self.container["name"]
            for c in spec["containers"] + spec.get("initContainers", [])
        ):
            return
        container = copy.deepcopy(self.container)
        if self.upgraded:
            self.container, self.upgraded = self.upgraded, self.container
        if self.stamps:
            stamp = {"name": "START_TIME", "value": str(time.time_ns())}
            container["env"] = [*container.get("env", []), stamp]
        asked = pod["metadata"].get("annotations", {}).get("sidecar.istio.io/nativeSidecar")
        if self.init:
            spec["initContainers"] = [container, *spec.get("initContainers", [])]
        elif asked == "true" or (self.native and asked != "false"):
            spec["initContainers"] = [
                {**container, "restartPolicy": "Always"},
                *spec.get("initContainers", []),
            ]
        else:
            spec["containers"] = [*spec["containers"], container]
        wanted = pod["metadata"].get("annotations", {})
        if self.instrumentation and wanted.get("instrumentation.opentelemetry.io/inject") == "true":
            added = [copy.deepcopy(self.instrumentation)]
            spec["initContainers"] = [*spec.get("initContainers", []), *added]
        for field, more in copy.deepcopy(self.also).items():
            spec[field] = [*spec.get(field, []), *more]


def _internal(message: str) -> Refused:
    return Refused(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )


def admit_pod(store: Store, injector: Injector, pod: dict, dry_run: bool) -> dict:
    """The Pod as it would be stored. Refused where it is not admitted."""
    pod = copy.deepcopy(pod)
    metadata = pod["metadata"]
    namespace = store.get("namespaces", "", metadata["namespace"])
    name = metadata.get("name") or metadata["generateName"]
    if namespace is None:
        details = {"name": metadata["namespace"], "kind": "namespaces"}
        raise Refused(404, "NotFound", f'namespaces "{metadata["namespace"]}" not found', details)
    if namespace["metadata"].get("deletionTimestamp"):
        ending = f"unable to create new content in namespace {metadata['namespace']} because it is being terminated"
        refused = _forbidden(name, ending)
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {metadata['namespace']} is being terminated",
        }
        refused.details = {
            **(refused.details or {}),
            "causes": [{**cause, "field": "metadata.namespace"}],
        }
        raise refused  # the cause is in kubernetes' plugin/pkg/admission/namespace/lifecycle, not in the recordings
    account = pod["spec"].get("serviceAccountName", "default")
    if account != "default" and not store.get("serviceaccounts", metadata["namespace"], account):
        whose = f'{metadata["namespace"]}/{account}: serviceaccount "{account}" not found'
        raise _forbidden(name, f"error looking up service account {whose}")
    priority = pod["spec"].get("priorityClassName")
    if priority and not priority.startswith("system-"):
        raise _forbidden(name, f"no PriorityClass with name {priority} was found")
    mount_token(
        pod["spec"]
    )  # the injector sees the service account's volume, as the ServiceAccount plugin runs first
    injector(pod, namespace, dry_run)
    # After mutating admission: an injector sees no name (registry/generic/registry/store.go)
    set_name(store, "pods", metadata)
    mount_token(pod["spec"])
    limit_ranges = store.list("limitranges", metadata["namespace"])
    set_pod_defaults(pod["spec"], limit_ranges)
    pod["spec"].setdefault("tolerations", [])
    pod["spec"]["tolerations"] += [
        t for t in DEFAULT_TOLERATIONS if _tolerates_anew(pod["spec"], t)
    ]
    refuse_by_pod_security(pod, namespace, metadata["name"])
    for quota in store.list("resourcequotas", metadata["namespace"]):
        used = len(store.list("pods", metadata["namespace"]))
        limited = int(quota["spec"]["hard"]["pods"])
        if used >= limited:
            counted = f"requested: pods=1, used: pods={used}, limited: pods={limited}"
            raise _forbidden(
                metadata["name"], f"exceeded quota: {quota['metadata']['name']}, {counted}"
            )
    if store.get("pods", metadata["namespace"], metadata["name"]):
        details = {"name": metadata["name"], "kind": "pods"}
        raise Refused(409, "AlreadyExists", f'pods "{metadata["name"]}" already exists', details)
    pod["status"] = {"phase": "Pending", "qosClass": quality_of_service(pod["spec"])}
    metadata["generation"] = 1
    return pod


def _tolerates_anew(spec: dict, toleration: dict) -> bool:
    return all(known["key"] != toleration["key"] for known in spec["tolerations"])


def quality_of_service(spec: dict) -> str:
    containers = spec["containers"] + spec.get("initContainers", [])
    return "Burstable" if any(c["resources"] for c in containers) else "BestEffort"


def _forbidden(name: str, message: str) -> Refused:
    return Refused(
        403, "Forbidden", f'pods "{name}" is forbidden: {message}', {"name": name, "kind": "pods"}
    )


def mount_token(spec: dict) -> None:
    volume = next(
        (v["name"] for v in spec.get("volumes", ()) if v["name"].startswith("kube-api-access-")),
        None,
    )
    if volume is None:
        volume = f"kube-api-access-{random_suffix()}"
        sources = [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {
                "downwardAPI": {
                    "items": [
                        {
                            "path": "namespace",
                            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                        }
                    ]
                }
            },
        ]
        spec.setdefault("volumes", []).append(
            {"name": volume, "projected": {"sources": sources, "defaultMode": 420}}
        )
    for container in spec["containers"] + spec.get("initContainers", []):
        mounts = container.setdefault("volumeMounts", [])
        if not any(mount["mountPath"] == TOKEN_MOUNT for mount in mounts):
            mounts.append({"name": volume, "readOnly": True, "mountPath": TOKEN_MOUNT})


def set_template_defaults(spec: dict) -> None:
    """What the API server fills in, in a Pod template as in a Pod."""
    for container in spec["containers"] + spec.get("initContainers", []):
        container["resources"] = canonical_resources(container.get("resources", {}))
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        tagged = ":" in container["image"].rpartition("/")[2] and not container["image"].endswith(
            ":latest"
        )
        container.setdefault("imagePullPolicy", "IfNotPresent" if tagged else "Always")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if probe in container:
                defaults = {
                    "timeoutSeconds": 1,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                }
                container[probe] = {**defaults, **container[probe]}
        for port in container.get("ports", ()):
            port.setdefault("protocol", "TCP")
        for variable in container.get("env", ()):
            if "fieldRef" in variable.get("valueFrom", {}):
                variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
        limits = container["resources"].get("limits", {})
        if limits:
            container["resources"]["requests"] = {
                **limits,
                **container["resources"].get("requests", {}),
            }
    for volume in spec.get("volumes", ()):
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")


def set_pod_defaults(spec: dict, limit_ranges: list[dict]) -> None:
    for container in spec["containers"] + spec.get("initContainers", []):
        for limit in (limit for found in limit_ranges for limit in found["spec"]["limits"]):
            resources = container.setdefault("resources", {})
            for field, default in (("limits", "default"), ("requests", "defaultRequest")):
                if default in limit:
                    resources[field] = {**limit[default], **resources.get(field, {})}
    set_template_defaults(spec)
    account = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = account
    spec.setdefault("priority", 0)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def refuse_by_pod_security(pod: dict, namespace: dict, name: str) -> None:
    level = namespace["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce")
    if level != "restricted":
        return
    wrong = [
        container["name"]
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        if container.get("securityContext", {}).get("allowPrivilegeEscalation") is not False
    ]
    if wrong:
        named = ("container " if len(wrong) == 1 else "containers ") + ", ".join(
            f'"{w}"' for w in wrong
        )
        must = f"{named} must set securityContext.allowPrivilegeEscalation=false"
        what = (
            f'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false ({must})'
        )
        raise _forbidden(name, what)


TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


def set_template_generation(plural: str, obj: dict, current: dict | None = None) -> None:
    """Count the changes of a DaemonSet's template in its annotation; nobody else can set it."""
    if plural != "daemonsets":
        return
    annotations = obj["metadata"].setdefault("annotations", {})
    number = int(current["metadata"]["annotations"][TEMPLATE_GENERATION]) if current else 1
    is_changed = current and obj["spec"]["template"] != current["spec"]["template"]
    annotations[TEMPLATE_GENERATION] = str(number + bool(is_changed))


def set_workload_defaults(plural: str, obj: dict) -> None:
    spec = obj["spec"]
    spec["template"].setdefault("metadata", {})
    set_template_defaults(spec["template"]["spec"])
    spec.setdefault("revisionHistoryLimit", 10)
    if plural != "daemonsets":
        spec.setdefault("replicas", 1)
    if plural == "deployments":
        spec.setdefault("strategy", {}).setdefault("type", "RollingUpdate")
        if spec["strategy"]["type"] == "RollingUpdate":
            rolling = {"maxUnavailable": "25%", "maxSurge": "25%"}
            spec["strategy"]["rollingUpdate"] = {
                **rolling,
                **spec["strategy"].get("rollingUpdate", {}),
            }
        spec.setdefault("progressDeadlineSeconds", 600)
        return
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if plural == "statefulsets":
        spec.setdefault("serviceName", "")
        spec.setdefault("podManagementPolicy", "OrderedReady")
        spec.setdefault(
            "persistentVolumeClaimRetentionPolicy",
            {"whenDeleted": "Retain", "whenScaled": "Retain"},
        )
    if strategy["type"] == "RollingUpdate":
        other = {"partition": 0} if plural == "statefulsets" else {"maxSurge": 0}
        given = strategy.get("rollingUpdate", {})
        strategy["rollingUpdate"] = {"maxUnavailable": 1, **other, **given}
