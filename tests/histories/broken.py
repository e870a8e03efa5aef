"""Faults of the script that histories notice by themselves, at least two for each of the seven points."""

from __future__ import annotations

from typing import NamedTuple


class Seen(NamedTuple):
    point: int  # the one that a history violates
    name: str
    old: str  # occurs once in the script
    new: str


SEEN = (
    Seen(
        1,
        "new Pods that still differ are a success",
        "        differences = self.differences_of(unchecked)\n        if differences:\n",
        "        differences = ()\n        if differences:\n",
    ),
    Seen(
        1,
        "what kubectl says is not compared with the Pods",
        "        if waited is Waited.COMPLETE:\n            return self.verify()\n",
        "        if waited is not Waited.PAUSED:\n            return Result(self.planned, Outcome.SUCCEEDED)\n",
    ),
    Seen(
        2,
        "Pods below a partition count as to be replaced",
        "            kept.append(pod.name)\n",
        "            old.append(pod.name)\n",
    ),
    Seen(
        2,
        "the last count is that of the plan",
        "            report.take_census(owners)\n",
        "            report.take_census([d.found for d in report.plan.decisions])\n",
    ),
    Seen(
        3,
        "what failed does not change the exit code",
        "        if outcome in FAILURES or result.cause:\n            self.failed",
        "        if result.cause:\n            self.failed",
    ),
    Seen(
        3,
        "--fail-on-drift does not count Pods",
        '            failures["not_up_to_date"] += self.not_up_to_date().total()\n',
        "            pass\n",
    ),
    Seen(
        4,
        "evictions have no UID",
        '            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},\n',
        '            "deleteOptions": {},\n',
    ),
    Seen(
        4,
        "pending changes of a template are rolled out",
        "    if is_pending and draft.method is Method.EVICT:\n",
        "    if False:\n",
    ),
    Seen(
        4,
        "one rollout more than --parallel-rollouts",
        "    rollouts.cluster.open_connections(2 * workers)  # with looks\n",
        "    rollouts.cluster.open_connections(2 * workers)\n    workers += 1\n",
    ),
    Seen(
        5,
        "workers are not told to end",
        "        for _ in range(self.workers):\n            self.tasks.put(None)\n",
        "        pass\n",
    ),
    Seen(
        5,
        "a Deployment whose status has no replicas is an error",
        "    return Counts(*(nested(obj, path) or 0 for path in paths))\n",
        "    return Counts(*(int(nested(obj, path)) for path in paths))\n",
    ),
    Seen(
        6,
        "the printed command has no --evict",
        'not in ("--", "--fail-on-drift"):',
        'not in ("--", "--fail-on-drift", "--evict"):',
    ),
    Seen(
        6,
        "each run restarts everything again",
        "        if pod.name not in lost and not (is_outdated and pod.created < cutoff):\n",
        "        if pod.name not in lost and not is_outdated:\n",
    ),
    Seen(
        7,
        "values that may be secret are shown",
        "    if not path[1:] or path[1] in PUBLIC or is_image:",
        "    if True:",
    ),
    Seen(
        7,
        "the password of a URL is shown",
        '    (r"(://[^\\s/:@]*:)\\S{1,500}@(?!sha256:)", rf"\\1{REDACTED}@"),  # the password of a URL\n',
        "",
    ),
)
