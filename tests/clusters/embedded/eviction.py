"""Evictions and the PodDisruptionBudgets that hold them up."""

from __future__ import annotations

import time
from collections.abc import Callable

from .admission import Refused
from .store import PLURALS, Store, controller_of, now

EXPECTED = ("replicasets", "replicationcontrollers", "statefulsets")  # those with a scale
DISRUPTED_FOR = 120.0  # seconds an eviction counts whose Pod was not deleted after all


def is_ready(pod: dict) -> bool:
    """Whether a Pod is ready; it may be terminating."""
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_terminating(pod: dict) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def selects(budget: dict, pod: dict) -> bool:
    wanted = budget["spec"]["selector"].get("matchLabels", {})
    return wanted.items() <= pod["metadata"].get("labels", {}).items()


def scale_of(store: Store, pod: dict) -> tuple[str, int] | None:
    """The owner of a Pod and how many Pods it asks for; None where it has no scale."""
    owner = controller_of(pod)
    plural = PLURALS.get(owner["kind"]) if owner else None
    if plural not in EXPECTED:
        return None
    found = store.get(plural, pod["metadata"]["namespace"], owner["name"])
    above = found and controller_of(found)
    if above and above["kind"] == "Deployment":
        found = store.get("deployments", pod["metadata"]["namespace"], above["name"])
    return (found["metadata"]["uid"], found["spec"]["replicas"]) if found else None


def share(value: int | str, total: int) -> int:
    return value if isinstance(value, int) else -(-int(value.rstrip("%")) * total // 100)


def budget_status(store: Store, budget: dict) -> dict:
    """What the disruption controller makes of a budget."""
    metadata, spec = budget["metadata"], budget["spec"]
    pods = [pod for pod in store.list("pods", metadata["namespace"]) if selects(budget, pod)]
    scales = [scale_of(store, pod) for pod in pods]
    least = spec.get("minAvailable")
    if isinstance(least, int):
        expected, desired = len(pods), least
    elif None in scales:
        expected = desired = 0
    else:
        expected = sum(dict(scales).values())
        spare = share(spec["maxUnavailable"], expected) if least is None else 0
        desired = expected - spare if least is None else share(least, expected)
    names = {pod["metadata"]["name"] for pod in pods if not is_terminating(pod)}
    known = budget.get("status", {}).get("disruptedPods", {})
    disrupted = {
        name: since
        for name, since in known.items()
        if name in names and time.time() - since < DISRUPTED_FOR
    }
    healthy = sum(
        is_ready(pod) and not is_terminating(pod) and pod["metadata"]["name"] not in disrupted
        for pod in pods
    )
    allowed = max(healthy - desired, 0) if expected else 0
    sufficient = {"status": "True", "reason": "SufficientPods"}
    insufficient = {"status": "False", "reason": "InsufficientPods"}
    before = budget.get("status", {}).get("conditions", ())
    why = {
        "type": "DisruptionAllowed",
        **(sufficient if allowed else insufficient),
        "observedGeneration": metadata["generation"],
        "lastTransitionTime": before[0]["lastTransitionTime"] if before else now(),
        "message": "",
    }
    return {
        "observedGeneration": metadata["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "conditions": [why],
        **({"disruptedPods": disrupted} if disrupted else {}),
    }


def too_many(budget: dict, what: str, retry_after: int | None = None) -> Refused:
    message = f"The disruption budget {budget['metadata']['name']} {what}"
    details: dict = {"causes": [{"reason": "DisruptionBudget", "message": message}]}
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    refused = Refused(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        details,
    )
    refused.retry_after = retry_after
    return refused


def evict(
    store: Store, terminate: Callable[[dict], None], pod: dict, body: dict, dry_run: bool
) -> None:
    """Evicts a Pod, in the order of a real API server: budgets first, then the uid."""
    metadata = pod["metadata"]
    given = body.get("metadata", {})
    if given.get("name") != metadata["name"]:
        raise Refused(400, "BadRequest", "name in URL does not match name in Eviction object")
    if given.get("namespace", metadata["namespace"]) != metadata["namespace"]:
        message = (
            "the namespace of the provided object does not match the namespace sent on the request"
        )
        raise Refused(400, "BadRequest", message)
    options = body.get("deleteOptions", {})
    if options.get("dryRun") and dry_run:
        raise Refused(500, None, "Non-matching dry-run options in request and content")
    dry_run = dry_run or options.get("dryRun") == ["All"]
    is_over = pod["status"]["phase"] in ("Pending", "Succeeded", "Failed") or is_terminating(pod)
    budgets = [
        budget
        for budget in store.list("poddisruptionbudgets", metadata["namespace"])
        if selects(budget, pod) and not is_over
    ]
    if len(budgets) > 1:
        message = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
        raise Refused(500, None, message)
    for budget in budgets:
        take_from(store, budget, pod, dry_run)
    wanted = options.get("preconditions", {}).get("uid", metadata["uid"])
    if wanted != metadata["uid"]:
        message = (
            f'Operation cannot be fulfilled on Pod "{metadata["name"]}": the UID in the '
            f"precondition ({wanted}) does not match the UID in record ({metadata['uid']}). The "
            "object might have been deleted and then recreated"
        )
        raise Refused(409, "Conflict", message, {"name": metadata["name"], "kind": "Pod"})
    if dry_run or is_terminating(pod):
        return
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now(),
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    conditions = [*pod["status"].get("conditions", ()), target]
    pod = store.change("pods", pod, status={**pod["status"], "conditions": conditions})
    terminate(pod)


def take_from(store: Store, budget: dict, pod: dict, dry_run: bool) -> None:
    """Takes one disruption from a budget. Refused if it allows none."""
    status = budget.get("status", {})
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        raise too_many(budget, "is still being processed by the server.", retry_after=10)
    healthy, desired = status["currentHealthy"], status["desiredHealthy"]
    policy = budget["spec"].get("unhealthyPodEvictionPolicy", "IfHealthyBudget")
    is_spared = policy == "AlwaysAllow" or (healthy >= desired and desired > 0)
    if not is_ready(pod) and is_spared:
        return
    if not status["disruptionsAllowed"]:
        what = f"needs {desired} healthy pods and has {healthy} currently"
        raise too_many(
            budget, what if status["expectedPods"] else "does not allow evicting pods currently"
        )
    if not dry_run:
        disrupted = {**status.get("disruptedPods", {}), pod["metadata"]["name"]: time.time()}
        changed = {
            **status,
            "disruptionsAllowed": status["disruptionsAllowed"] - 1,
            "disruptedPods": disrupted,
        }
        store.change("poddisruptionbudgets", budget, status=changed)
