"""Texts that more than one test sees, each in one place.

Tests assert codes, outcomes and numbers. A reason to skip must fit the row of its code.
"""

from __future__ import annotations

import re

# In results, errors and warnings: the part that does not vary
IN_A_ROW = "rollouts failed in a row"
NO_NEW_ROLLOUTS = "no new rollouts will start"
INTERRUPT_AGAIN = "interrupt again to stop waiting"
RECHECK = "will recheck at the end"
RECHECKED = "complete when rechecked; before: "
WITHOUT_SIDECAR = "new Pods would not have the sidecar"
NOT_CREATED = "new Pods cannot be created: "
WAITS_FOR_READY = "waiting for a Pod to be ready: "
WAITS_FOR_POD = "waiting for 1 Pod to be created"
REPAIR_IMAGE = "; repair the injector and run this command again, or run `kubectl delete pod/"
TO_BE_READY = " to be restarted and ready after "
SIDECAR_NOT_READY = "the sidecar is not ready in new Pods of "
SIDECAR_NOT_STARTED = "a sidecar did not start; "
RECREATED = "was deleted and recreated during its rollout; run this command again"
NO_RESULT = "kubectl ended without a result"
ANNOTATION_REMOVED = "the rollout annotation was removed, for example by"
NOT_VERIFIED = "could not verify its Pods"
CHANGED_LATER = "changed after Pods were created"
REJECTED_CREDENTIALS = "credentials were rejected or have expired; log in again"
TYPE_AND_NAME = "must be TYPE/NAME, such as deployment/web or sts/*"
NO_PODS_WITH = "no Pod has a container named "
NOT_A_POD = "unexpected response: not a Pod: "
IN_SOAK = "failed during the soak: "
NO_RECORD = "is no such record"
MISSING_PERMISSIONS = "missing permissions: "
CANNOT_CONNECT = "cannot connect to the API server at "
MAY_HAVE_NEW = "may have the new image"
DRY_RUN = "This was a dry run; nothing was changed."
UPDATED_AND_READY = " updated and ready"
NEW_HAVE_NONE = " have no sidecar"

# Reasons to skip, by their code
OURS = r"begun by this command on \d{4}-\d\d-\d\d, "
NEVER_COMPLETE = rf"{OURS}(never complete|in progress until \d\d:\d\d UTC): "
N = r"\d+"
LOOK_AT_INJECTOR = "check the injector"
NO_ROLLOUTS = "which `kubectl rollout` does not support; use --evict, or restart it with that controller's tools"
USE_EVICT = "use --evict, which replaces unready Pods first, or repair the unready Pod"

REASONS = {
    "another_method": "would be (restart|evict|in place), and not (restart|evict|in place) as in the plan",
    "another_object": "is another object than in the plan",
    "another_sidecar": "(the injector|its Pod template was) changed (by its team )?since the plan.*; run this command again",
    "being_deleted": "being deleted|its namespace is terminating",
    "below_partition": rf"partition {N} keeps {N} old Pods?; lower the partition",
    "changed_in_place": (
        "managed by an OpenKruise SidecarSet; change its images there"
        "|not only images differ now; rerun this command"
    ),
    "degraded": (
        rf"(a restart waits for its unready Pod, which has lost its sidecar"
        rf"|{N} of {N} available; a restart would stop another Pod); {USE_EVICT}"
    ),
    "excluded": "(its namespace )?matches --exclude-annotation",
    "gone": "(its controller )?no longer exists, or there is no permission to read it",
    "has_downtime": "its rollout is downtime: all its Pods may be unavailable at once",
    "incomplete_rollout": (
        rf"its rollout is not complete: (its latest spec has not been observed"
        rf"|{N} of {N} Pods? updated(: .+)?)"
        r"(; wait, or run `kubectl rollout status`|; repair the application)?"
        rf"|{NEVER_COMPLETE}.+"
    ),
    "kind_not_selected": (
        rf"not selected; (add|remove) --[a-z-]+|managed by \S+ \(\S+\), {NO_ROLLOUTS}"
    ),
    "losing_sidecar": rf"would lose the sidecar .+; {LOOK_AT_INJECTOR}",
    "lost_sidecar": (
        rf"{N} of {N} Pods? lost .+, and new ones would not get it; repair the injector; "
        "if the Pods are to have none, exclude the workload, or remove the annotation "
        r"\S+\.rollout\.sidecars with its next release"
    ),
    "no_sidecar": "has no Pods with the sidecar|it has no Pods now|its Pods no longer have the sidecar",
    "not_found": "does not exist",
    "not_injected": "its Pods have no sidecar, and new ones would not get it[;,] .+",
    "not_included": "does not match --include-annotation",
    "not_named": "not selected by TYPE/NAME or --plan",
    "not_selected": "your options do not select it",
    "nothing_to_replace": (
        "it has no Pods now|its Pods do not match now|already up to date"
        "|all its (drifted )?Pods were created after the cutoff"
    ),
    "of_an_earlier_run": rf"{NEVER_COMPLETE}.+",
    "pending_template": (
        "replacing its Pods may also roll out a change of its Pod template; "
        "replace them manually, one at a time"
    ),
    "rejected": "new Pods cannot be created: .+",
    "replica_not_ready": (
        rf"its replica \S+ \S+ has ({N} of {N} available|Pods that are not ready|a rollout that has just begun)(: .+)?"
        "; repair it first, or run `kubectl rollout restart`"
    ),
    "restart_policy": "restartPolicy is not Always; replace it with the tools of its controller",
    "restarted_meanwhile": "already restarted by another run|restarted by somebody else since the plan",
    "running_to_completion": "runs to completion",
    "static_pod": "static Pod, managed by the kubelet of its node",
    "unhealthy": "unhealthy: .+",
    "unknown": "(not compared|cannot be read): .+",
    "up_to_date": "(needs no|no longer needs a) rollout",
    "without_controller": "not managed by a controller; delete and recreate it manually",
    "without_pods": rf"({NEVER_COMPLETE}no Pods: |no Pods since its restart on ).+",
    "would_differ": "new Pods would (not )?have .+",
    "min_ready_seconds": (
        rf"its Pods count as available after {N}s \(minReadySeconds\), which is longer than --timeout; raise it"
    ),
    "wrong_method": (
        "paused; run `kubectl rollout resume` first, or use --evict"
        "|updateStrategy is OnDelete; use --evict, or delete its Pods manually, one at a time"
        "|updateStrategy is \\w+, which `kubectl rollout status` does not support; restart it manually"
        "|no longer paused; rerun this command to restart it"
    ),
}
VERDICTS = "(drifted|missing), but "


def fits(code: str, reason: str) -> bool:
    """Whether the text of a `skip` record is that of its code."""
    assert code in REASONS, f"add the text of {code} to REASONS in tests/texts.py"
    text = re.sub(f"^{VERDICTS}", "", reason)
    if code not in ("incomplete_rollout", "without_pods", "of_an_earlier_run"):
        text = re.sub(f"^{NEVER_COMPLETE}.+?; ", "", text)  # what an earlier run left is said first
    return re.fullmatch(REASONS[code], text) is not None
