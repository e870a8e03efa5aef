"""Break the script in meaningful ways, one at a time, and list what no test notices.

    .venv/bin/python tests/tools/mutations.py             # all: about 17 minutes on 2 cores
    .venv/bin/python tests/tools/mutations.py evict       # those with this word in their name
    .venv/bin/python tests/tools/mutations.py evict --control-plane  # on a real control plane, where the tests run on both
    .venv/bin/python tests/tools/mutations.py --list
    .venv/bin/python tests/tools/mutations.py --check     # only whether each fits the script and can be compiled

Each mutation is made in a copy of the repository, and only the tests that are specified for it run. It survives if they
pass. Exit code 0: none survived, 1: at least one did, 2: one no longer fits the script.
"""

from __future__ import annotations

import argparse
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parents[2]
SCRIPT = "sidecar-rollout.py"


class Mutation(NamedTuple):
    name: str
    tests: str  # files in a folder of tests/, without test_ and .py
    old: str  # occurs once in the script
    new: str


MUTATIONS = (
    # Reading lists ahead
    Mutation(
        "reading: pages come in another order",
        "reading_ahead",
        "                requests.appendleft(begin(path, token))",
        "                requests.append(begin(path, token))",
    ),
    Mutation(
        "reading: one namespace at a time",
        "reading_ahead",
        "            while unread_paths and len(requests) < LISTS_AT_A_TIME:",
        "            while unread_paths and not requests:",
    ),
    Mutation(
        "reading: all namespaces at a time",
        "reading_ahead",
        "            while unread_paths and len(requests) < LISTS_AT_A_TIME:",
        "            while unread_paths:",
    ),
    Mutation(
        "reading: lists whose metadata comes last end after a page",
        "selecting",
        "    envelope = text[:start] + text[end:] if ITEMS in text else text\n",
        '    envelope = text[:start] + "]}" if ITEMS in text else text\n',
    ),
    # Looks, and the first one alone
    Mutation(
        "looks: an application's own problems end the waiting",
        "looks",
        "for stuck in stuck_containers(pod) if matches(stuck.name, names)}",
        "for stuck in stuck_containers(pod)}",
    ),
    Mutation(
        "looks: a paused rollout is waited for",
        "looks",
        "        if is_paused(self.obj):\n            return Waited.PAUSED\n",
        "",
    ),
    Mutation(
        "looks: a sidecar that does not start is waited for",
        "looks",
        "                return Waited.DID_NOT_START\n",
        '                return ""\n',
    ),
    Mutation(
        "looks: a sidecar that did not start is not rechecked",
        "looks",
        "(Waited.DEADLINE, Waited.DID_NOT_START)",
        "(Waited.DEADLINE,)",
    ),
    Mutation(
        "first: all begin at once",
        "looks",
        "is_alone = not (task.result or self.rollouts.proven.is_set())",
        "is_alone = False",
    ),
    Mutation(
        "first: one that does not start stops nothing",
        "looks namespaces",
        '                reason = f"the sidecar is not ready in new Pods of {self.ref}"\n',
        '                reason = ""\n',
    ),
    Mutation(
        "looks: a crash loop is `waiting` alone",
        "rollouts_on_a_node",
        "        if reason == CRASH_LOOP or is_in_crash_loop(pod, status):\n",
        "        if reason == CRASH_LOOP:\n",
    ),
    Mutation(
        "first: one whose sidecar is not ready stops nothing",
        "rollouts_on_a_node",
        '        if "waiting" not in nested(status, "state"):\n            return True\n    return bool(stuck_sidecars',
        "        if False:\n            return True\n    return bool(stuck_sidecars",
    ),
    Mutation(
        "first: one that does not start stops all, whatever others have shown",
        "looks",
        "        if self.rollouts.proven.is_set():\n            return NO_STOP\n        reason",
        "        reason",
    ),
    # Limits
    Mutation(
        "limits: one more rollout at a time",
        "scheduler",
        "if len(self.in_progress) >= (1 if is_alone else self.workers):",
        "if len(self.in_progress) > (1 if is_alone else self.workers):",
    ),
    Mutation(
        "limits: --parallel-rollouts as a percentage is rounded up",
        "canary",
        "wanted = int(options.parallel_rollouts.of(len(plan.workloads)))",
        "wanted = math.ceil(options.parallel_rollouts.of(len(plan.workloads)))",
    ),
    Mutation(
        "limits: --max-rollouts as a percentage is rounded down",
        "canary",
        "min(math.ceil(options.max_rollouts.of(len(to_roll_out))), len(to_roll_out))",
        "min(int(options.max_rollouts.of(len(to_roll_out))), len(to_roll_out))",
    ),
    Mutation(
        "limits: one failure more than --max-failures",
        "failure_limits scheduler",
        '        if failed[""] >= limit:',
        '        if failed[""] > limit:',
    ),
    Mutation(
        "limits: six failures in a row",
        "scheduler failure_limits",
        "TOO_MANY_IN_A_ROW = 5",
        "TOO_MANY_IN_A_ROW = 6",
    ),
    Mutation(
        "limits: --max-duration reached too late",
        "windows",
        "report.began + (options.max_duration or math.inf)",
        "report.began + 100 * (options.max_duration or math.inf)",
    ),
    Mutation(
        "limits: a closed gate does not hold rollouts",
        "gate",
        "            self.valid_until = time.monotonic() + self.VALID_FOR\n            return not self.why_closed\n",
        "            self.valid_until = time.monotonic() + self.VALID_FOR\n            return True\n",
    ),
    Mutation(
        "gate: the clock runs while it is closed",
        "gate",
        "                    if self.rollouts.gate.why_closed:\n",
        "                    if False:\n",
    ),
    Mutation(
        "gate: workers do not ask it before a Pod",
        "gate",
        "                self.rollouts.gate.is_open()  # asked again if the rest took long\n",
        "",
    ),
    Mutation(
        "signals: a second SIGHUP is the second signal",
        "interrupting",
        "        if number == signal.SIGHUP and self.received:\n            return\n",
        "",
    ),
    # Rollouts of earlier runs
    Mutation(
        "earlier rollouts: all Pods are new",
        "earlier_rollouts concurrent_runs",
        "    pods = [pod for pod in found.pods if pod.restart_times >= times]\n",
        "    pods = found.pods\n",
    ),
    Mutation(
        "earlier rollouts: who skips what is unhealthy is told of it",
        "earlier_rollouts",
        "    if code == LOST or options.skip_unhealthy or not",
        "    if code == LOST or not",
    ),
    Mutation(
        "earlier rollouts: a row of a plan counts twice",
        "earlier_rollouts",
        "            rows = set(self.options.plan or ()).difference(self.never_completed)\n",
        "            rows = set(self.options.plan or ())\n",
    ),
    Mutation(
        "lost sidecar: beside it, the others are up to date",
        "lost_sidecars",
        '        return "losing_sidecar" if pod.sidecars else ""\n',
        '        return ""\n',
    ),
    Mutation(
        "earlier rollouts: what is not complete is restarted",
        "earlier_rollouts concurrent_runs",
        "        reason = why_incomplete(draft.found)\n        is_left",
        '        reason = ""\n        is_left',
    ),
    Mutation(
        "earlier rollouts: new Pods that differ are left",
        "earlier_rollouts",
        "(is_paused(obj) or not draft.comparison.is_drifted)",
        "True",
    ),
    Mutation(
        "earlier rollouts: what becomes unready later is ours",
        "earlier_rollouts",
        '        return progress.get("reason") != "NewReplicaSetAvailable"\n',
        "        return True\n",
    ),
    Mutation(
        "earlier rollouts: a paused Deployment was never complete",
        "earlier_rollouts",
        '    progress = conditions.get(("Progressing", "True"))  # Unknown: it was paused since\n',
        '    progress = conditions.get(("Progressing", "True")) or conditions.get(("Progressing", "Unknown"))\n',
    ),
    Mutation(
        "earlier rollouts: a partition is a record",
        "earlier_rollouts",
        "    return updated != current and not partition_of(workload)",
        "    return updated != current",
    ),
    Mutation(
        "earlier rollouts: without an answer, a stuck sidecar is repaired",
        "concurrent_runs check_before_rollout drifted_rollouts",
        "        return not planned and any(pod.stuck or pod.name in lost for pod in new)\n",
        "        return any(pod.stuck or pod.name in lost for pod in new)\n",
    ),
    # Order
    Mutation(
        "order: the state does not count",
        "order",
        "rank = (decision.state.value, ",
        'rank = ("", ',
    ),
    Mutation(
        "order: most Pods first",
        "order",
        "key=lambda decision: (decision.total_pods, decision.ref)",
        "key=lambda decision: (-decision.total_pods, decision.ref)",
    ),
    Mutation(
        "order: namespaces do not alternate",
        "order",
        "        turns[rank] += 1\n",
        "",
    ),
    # Selection
    Mutation(
        "selection: Pods created after the cutoff are included",
        "selecting",
        "(is_outdated and pod.created < cutoff)",
        "is_outdated",
    ),
    Mutation(
        "selection: the first owner reference counts",
        "selecting",
        'if reference.get("controller"):',
        "if True:",
    ),
    Mutation(
        "selection: terminating Pods count",
        "selecting",
        'return has_ended(pod) or bool(nested(pod, "metadata.deletionTimestamp"))',
        "return has_ended(pod)",
    ),
    Mutation(
        "selection: an included namespace cannot be excluded",
        "selecting",
        'return matches(namespace, included or ["*"]) and not matches(namespace, excluded)',
        'return matches(namespace, included or ["*"])',
    ),
    Mutation(
        "selection: a namespace cannot opt out",
        "opt_out",
        "    if has_any(unwanted, annotations_of(found.namespace)):\n",
        "    if False:\n",
    ),
    Mutation(
        "selection: paused Deployments are restarted",
        "selecting",
        '    if is_paused(obj):\n        return "paused; run',
        '    if False:\n        return "paused; run',
    ),
    Mutation(
        "selection: all workloads are named",
        "named_workloads",
        '        return "not selected by TYPE/NAME or --plan"\n',
        '        return ""\n',
    ),
    Mutation(
        "selection: -A does not select all namespaces",
        "plugin",
        "    if given.all_namespaces:\n        given.include_namespace = []\n",
        "",
    ),
    # Comparison
    Mutation(
        "comparison: volumes behind mounts do not count",
        "only_drifted",
        '            if use["name"] in by_name:\n',
        "            if False:\n",
    ),
    Mutation(
        "comparison: resources that were changed in place are drift",
        "differences",
        "        if not any(difference.path[: len(path)] == path for path in resized):\n",
        "        if True:\n",
    ),
    Mutation(
        "numbers: Pods of a custom resource count only with the sidecar",
        "numbers",
        '            is_custom = "." in owner.group\n',
        "            is_custom = False\n",
    ),
    Mutation(
        "numbers: a rollout that timed out is counted as it was then",
        "numbers",
        "            stamp=self.stamp,\n            is_slow",
        '            stamp="",\n            is_slow',
    ),
    Mutation(
        "signals: one in the end of an object shows a traceback",
        "interrupting",
        "if not self.received:  # else it is the signal, or what that has left half done\n                show(error)",
        "show(error)",
    ),
    Mutation(
        "comparison: changed configuration is no drift",
        "configuration",
        "            if pod.sidecars and pod.created < changed:\n",
        "            if False:\n",
    ),
    Mutation(
        "comparison: every error of a dry run is a rejection",
        "verdicts",
        "        return Verdict.REJECTED\n    return Verdict.UNKNOWN\n",
        "        return Verdict.REJECTED\n    return Verdict.REJECTED\n",
    ),
    Mutation(
        "responses: words of a tenant decide",
        "writes check_before_rollout",
        "        if re.match(beginning, message):\n",
        "        if re.search(beginning, message):\n",
    ),
    Mutation(
        "comparison: sidecars are removed without --allow-removal",
        "removal",
        "    lost = sorted(named_texts(missing, options.sidecars))\n",
        "    lost = sorted(named_texts(missing, options.sidecars)) if planned else []\n",
    ),
    Mutation(
        "comparison: workloads that would not get the sidecar are missing it",
        "missing",
        "Verdict.UP_TO_DATE if found.sidecars else Verdict.NOT_INJECTED",
        "Verdict.UP_TO_DATE if found.sidecars else Verdict.MISSING",
    ),
    # Writes
    Mutation(
        "writes: a patch does not include the resourceVersion",
        "concurrent_runs",
        '            "metadata": {"resourceVersion": version},\n',
        "",
    ),
    Mutation(
        "writes: what another run has restarted is restarted again",
        "concurrent_runs",
        '    return "already restarted by another run"\n',
        '    return ""\n',
    ),
    Mutation(
        "writes: no dry run decides right before the patch",
        "check_before_rollout",
        "            self.ask(self.found)\n            if time",
        "            if time",
    ),
    # Verification
    Mutation(
        "verification: old Pods do not matter",
        "verification",
        "        old = [pod for pod in pods if uid_of(pod) in self.todo]\n",
        "        old: list[Json] = []\n",
    ),
    Mutation(
        "verification: a lost sidecar does not stop the run",
        "lost_sidecars",
        "            return Result(self.planned, Outcome.LOST_SIDECAR, text, cause)\n",
        "            return Result(self.planned, Outcome.LOST_SIDECAR, text)\n",
    ),
    Mutation(
        "verification: Pods that still differ are a success",
        "drifted_rollouts",
        "        if not differences:\n            return None\n        texts",
        "        if True:\n            return None\n        texts",
    ),
    Mutation(
        "verification: rollouts that timed out are not rechecked",
        "rolling_out",
        "        self.rechecks.append(task)\n",
        "        self.report.finish(news)\n",
    ),
    Mutation(
        "limits: what is slow is a failure at once",
        "failure_limits scheduler",
        "(result.is_slow and not task.is_rechecked)",
        "False",
    ),
    Mutation(
        "verification: a crash during the soak is a success",
        "soak",
        "restart = restart_of(before.setdefault(uid_of(pod), pod), pod)",
        'restart = ""',
    ),
    Mutation(
        "verification: an API server that stays away prolongs the soak",
        "soak",
        "                deadline = max(settled_by, ends_at)\n",
        "                deadline = math.inf\n",
    ),
    # Signals
    Mutation(
        "signals: the first one stops waiting",
        "interrupting",
        "        return len(self.received) > 1\n",
        "        return len(self.received) > 0\n",
    ),
    Mutation(
        "signals: the second one is ignored",
        "interrupting",
        "        return len(self.received) > 1\n",
        "        return False\n",
    ),
    Mutation(
        "signals: Ctrl-C reaches kubectl",
        "interrupting",
        "start_new_session=True,",
        "start_new_session=False,",
    ),
    # Eviction
    Mutation(
        "evict: the UID is no precondition",
        "evicting_one_at_a_time",
        '            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},\n',
        "",
    ),
    Mutation(
        "evict: ready Pods first",
        "evicting_one_at_a_time",
        "return ready, number if is_upwards else -number, name_of(pod)",
        "return not ready, number if is_upwards else -number, name_of(pod)",
    ),
    Mutation(
        "evict: the replacement need not be ready",
        "evicting evicting_one_at_a_time",
        "        if is_there or away > others_away or (away and self.not_replaced):\n",
        "        if is_there:\n",
    ),
    Mutation(
        "evict: the replacement of a Pod that was unready need not be ready",
        "evicting_meanwhile",
        "others_away = max(self.away_before - unready, 0)",
        "others_away = self.away_before",
    ),
    Mutation(
        "evict: a budget that allows nothing is a failure",
        "evicting_answers",
        "if is_refused or self.is_still_there(pod):",
        "if not is_refused and self.is_still_there(pod):",
    ),
    Mutation(
        "evict: a pending template is rolled out",
        "evicting_pending",
        "    if is_pending and draft.method is Method.EVICT:\n",
        "    if False:\n",
    ),
    Mutation(
        "decide: the method changes in the middle of an eviction",
        "evicting_meanwhile",
        "        method = planned.method\n",
        "        method = method_for(found, comparison, options)\n",
    ),
    Mutation(
        "evict: Pods that others have replaced meanwhile are evicted",
        "evicting_meanwhile in_place image_changes",
        "            if self.old_among([pod]):\n                return pod\n",
        "            return pod\n",
    ),
    Mutation(
        "evict: a spec that was changed is taken for the Pods' own",
        "evicting_pending",
        'is_pending = nested(obj, "metadata.generation") != 1',
        "is_pending = False",
    ),
    Mutation(
        "evict: the revisions in the status are compared",
        "evicting_pending",
        "is_pending = counts_of(ref, obj).updated < on_wanted_nodes or not is_observed(obj)",
        'is_pending = nested(obj, "status.currentRevision") != nested(obj, "status.updateRevision")',
    ),
    Mutation(
        "evict: a signal does not stop between two Pods",
        "evicting_stops",
        "                self.require_running()  # also before what is only waited for\n",
        "",
    ),
    Mutation(
        "evict: one that took place despite its answer is not waited for",
        "evicting_answers",
        "if is_refused or self.is_still_there(pod):",
        "if True:",
    ),
    Mutation(
        "responses: a dry run that a load balancer drops stops the run",
        "writes",
        '    GATEWAY = "502 or 503", UNAVAILABLE, UNAVAILABLE, MAY_HAVE_ARRIVED\n',
        '    GATEWAY = "502 or 503", UNAVAILABLE, NOTHING_KNOWN, MAY_HAVE_ARRIVED\n',
    ),
    Mutation(
        "responses: a Pod counts twice after its list expired",
        "faults",
        "        if digest in seen:",
        "        if digest is None:",
    ),
    # In place
    Mutation(
        "in place: a ready Pod does not wait for the others",
        "in_place image_changes",
        "        return super().obstacle(pod)\n",
        '        return ""\n',
    ),
    Mutation(
        "in place: a Pod that another run has just changed is not waited for",
        "in_place",
        '            changed = image_changed_at(other) if is_ready(other) else ""\n',
        '            changed = ""\n',
    ),
    Mutation(
        "in place: a container need not be restarted",
        "image_changes",
        '        if status.get("containerID") != old.get(status["name"]):\n',
        "        if True:\n",
    ),
    Mutation(
        "in place: other differences are ignored",
        "in_place",
        '        if section != ["image"] or today[container]["position"] == INIT:\n',
        "        if False:\n",
    ),
    # Secrets
    Mutation(
        "secrets: values of settings are shown",
        "secrets",
        "if not path[1:] or path[1] in PUBLIC or is_image:",
        "if True:",
    ),
    # Exit
    Mutation(
        "exit: the last worker frees the connections",
        "exiting",
        "            POOLS.append(self.pool)\n",
        "",
    ),
    Mutation(
        "exit codes: a failed rollout is a success",
        "rolling_out",
        "            if result.outcome in FAILURES or (",
        "            if (",
    ),
    Mutation(
        "exit codes: drift is a success for an audit",
        "fail_on_drift",
        '            failures["not_up_to_date"] += self.not_up_to_date().total()\n',
        "            pass\n",
    ),
    # Who, why, what
    Mutation(
        "annotations: nobody says who it was",
        "who_and_why",
        '"by": self.cluster.connection.user,',
        '"by": "",',
    ),
    Mutation(
        "annotations: the reason has values",
        "who_and_why",
        "    parts = list(images)\n",
        "    parts = list(map(difference_text, decision.differences))\n",
    ),
    Mutation(
        "downtime: --skip-downtime skips nothing",
        "downtime",
        "    if options.skip_downtime and draft.downtime:\n",
        "    if False:\n",
    ),
    # Plan files
    Mutation(
        "--plan: a file without records selects everything",
        "plan_file",
        "if options.plan is not None and ref not in options.plan:",
        "if options.plan and ref not in options.plan:",
    ),
    Mutation(
        "--plan: another object is rolled out",
        "plan_file",
        '    if row and row.uid != nested(obj, "metadata.uid"):\n',
        "    if False:\n",
    ),
    Mutation(
        "--plan: another sidecar is rolled out",
        "plan_file",
        '    elif row and row.sidecar_hash not in ("", hash_of(today)):\n',
        "    elif False:\n",
    ),
    Mutation(
        "--plan: what is rejected by now needs no rollout",
        "plan_file",
        "    return code in RULES and RULES[code].counts_as_applied\n",
        '    return code == "rejected" or (code in RULES and RULES[code].counts_as_applied)\n',
    ),
    Mutation(
        "--plan: a row that is interrupted is applied",
        "plan_file",
        "    return result.outcome is not Outcome.INTERRUPTED\n",
        "    return True\n",
    ),
    Mutation(
        "--plan: the order is that of a plan without it",
        "plan_file",
        "places.get(decision.ref, 0))",
        "0)",
    ),
    Mutation(
        "--plan: the cutoff is now",
        "plan_file",
        "        return row.cutoff if row else self.cutoff\n",
        "        return self.cutoff\n",
    ),
    # Errors before the plan
    Mutation(
        "errors: a kubectl that is too old is found after the first patch",
        "starting",
        "    if release < OLDEST_KUBECTL:\n",
        "    if False:\n",
    ),
    Mutation(
        "errors: a name that does not exist is no failure",
        "named_workloads",
        "yield StatedName(pattern, scan.listed, text, True, scan.listed)",
        "pass",
    ),
    # --expect-image, the audit, and the injector
    Mutation(
        "expected: Pods that terminate do not count",
        "expected",
        "            is_ignored = is_ending(pod) and not options.is_question\n",
        "            is_ignored = is_ending(pod)\n",
    ),
    Mutation(
        "expected: only one of the named containers counts",
        "expected",
        "            return shorten(printable(image), 300)\n",
        "            return shorten(printable(image), 300)\n        break\n",
    ),
    Mutation(
        "expected: an image that was not restarted yet is a new one",
        "expected",
        "    if not found and image_changed_at(pod) and any(",
        "    if False and any(",
    ),
    Mutation(
        "expected: only images that this command changed can be old ones",
        "expected",
        "        is_certain = len(changed) == 1 and not is_creator\n",
        "        is_certain = len(changed) == 1 and not is_creator\n"
        '        if entry.get("manager") != FIELD_MANAGER:\n            continue\n',
    ),
    Mutation(
        "expected: who created a Pod changed its image",
        "expected",
        "        is_certain = len(changed) == 1 and not is_creator\n",
        "        is_certain = len(changed) == 1\n",
    ),
    Mutation(
        "expected: an init container that has ended runs an old image",
        "expected",
        "            if started < written and (started or not is_creator):\n",
        "            if started < written:\n",
    ),
    Mutation(
        "expected: who created a Pod never changes its image",
        "expected",
        "            if started < written and (started or not is_creator):\n",
        "            if started < written and not is_creator:\n",
    ),
    Mutation(
        "expected: CronJobs of other namespaces count",
        "expected",
        "            if not is_included(ref.namespace, options):\n                continue\n            if kind",
        "            if kind",
    ),
    Mutation(
        "expected: what new Pods would get does not matter",
        "expected",
        '    return today.unexpected and f"new Pods would have {today.unexpected}"\n',
        '    return ""\n',
    ),
    Mutation(
        "expected: new Pods may lose the sidecar",
        "expected",
        '    if lost:\n        return f"new Pods would not have',
        '    if False:\n        return f"new Pods would not have',
    ),
    Mutation(
        "expected: no answer is no no",
        "expected",
        '        no_answer = answers["no_answer"] + len(created)\n',
        "        no_answer = len(created)\n",
    ),
    Mutation(
        "expected: no Pod at all is a yes",
        "expected",
        "        if not (reasons or self.checked):\n",
        "        if False:\n",
    ),
    Mutation(
        "expected: a name that nobody has is no no",
        "expected exit_codes census",
        "            unmatched.append(stated.text)\n",
        "            pass\n",
    ),
    Mutation(
        "expected: options may leave something out",
        "expected",
        "        if question and option.narrows and values[flag] not in UNSET:\n",
        "        if False:\n",
    ),
    Mutation(
        "audit: nothing was checked, and all is well",
        "census missing",
        '                failures["nothing_checked"] = int(not self.checked or bool(self.unmatched))\n',
        "                pass\n",
    ),
    Mutation(
        "injector down: two workloads are enough",
        "silent_injector",
        "    if not silent or (len(silent) < 3 and verdicts",
        "    if not silent or (len(silent) < 2 and verdicts",
    ),
    Mutation(
        "injector down: it must have answered",
        "silent_injector",
        "            silent.append(decision)\n    verdicts",
        "            if view:\n                silent.append(decision)\n    verdicts",
    ),
    Mutation(
        "injector down: a sidecar that the Pod template states counts",
        "silent_injector",
        "        if any(matches(name, names) for name in unpacked_object(today.view).keys() - stated):\n",
        "        if any(matches(name, names) for name in unpacked_object(today.view)):\n",
    ),
    Mutation(
        "injector down: workloads that state it all are asked about it",
        "silent_injector",
        "        if any(matches(name, names) for name in running) or might_get_it:\n",
        "        if True:\n",
    ),
    Mutation(
        "expected: owners without rollouts are not asked",
        "expected",
        "    if is_selected_kind(ref, options) or options.is_question:\n",
        "    if is_selected_kind(ref, options):\n",
    ),
    Mutation(
        "expected: the second answer does not count",
        "expected",
        "    unexpected = first.unexpected or second.unexpected\n",
        "    unexpected = first.unexpected\n",
    ),
    Mutation(
        "in place: of several containers, any one that was restarted counts for all",
        "expected",
        "            if is_certain or older[name] != images_of(pod)[name]:\n",
        "            if is_certain:\n",
    ),
    Mutation(
        "audit: what was changed in place and not restarted is up to date",
        "expected",
        '        return "not_restarted" if pod.unexpected[0] == "not_restarted" else ""\n',
        '        return ""\n',
    ),
    Mutation(
        "audit: a name that only Pods have that do not count",
        "expected",
        "    must_be_checked = options.is_question or options.fail_on_drift\n",
        "    must_be_checked = False\n",
    ),
    Mutation(
        "injector down: rollouts start",
        "silent_injector",
        "        if options.confirm and plan.is_injector_down:\n",
        "        if False:\n",
    ),
    Mutation(
        "injector down: it is drift",
        "silent_injector",
        '            if self.plan.is_injector_down and pod.code == "losing_sidecar":\n',
        "            if False:\n",
    ),
    Mutation(
        "plan file: another run that applies a row is not waited for",
        "concurrent_runs",
        "self.options.plan and self.is_applied():\n",
        "False:\n",
    ),
    Mutation(
        "plan file: whatever another run did counts as applied",
        "concurrent_runs",
        "        return self.wait()[0] is Waited.COMPLETE and self.verify().outcome is Outcome.SUCCEEDED\n",
        "        return True\n",
    ),
    Mutation(
        "codes: what a gate held has that of a limit",
        "not_started",
        '        if why_closed and code == "max_duration":  # it was closed until then\n',
        "        if False:\n",
    ),
    Mutation(
        "codes: what --max-rollouts leaves is a stop",
        "not_started",
        'report.finish(Result(workload, Outcome.NOT_STARTED, message, code="max_rollouts"))',
        'report.finish(Result(workload, Outcome.NOT_STARTED, message, code="stopped"))',
    ),
    Mutation(
        "labels: those of the Pod template are shown",
        "label_columns",
        'nested(found.obj, "metadata.labels")\n        return',
        'nested(found.obj, "spec.template.metadata.labels")\n        return',
    ),
    # The census
    Mutation(
        "census: an audit passes with Pods that were not checked",
        "census",
        "    return code not in RULES or RULES[code].counts_in_audit\n",
        '    return code not in RULES or (code != "static_pod" and RULES[code].counts_in_audit)\n',
    ),
    Mutation(
        "census: it is not taken again after a run",
        "census",
        "            count_again(cluster, report, signals)",
        "            pass",
    ),
    Mutation(
        "census: other kinds are not compared",
        "census",
        "    if options.only_drifted and not comparison.is_drifted:\n",
        "    if False:\n",
    ),
    # What is seen
    Mutation(
        "verified: what could not be verified is a success",
        "verified_outcomes",
        "            result = Result(self.planned, Outcome.INCOMPLETE, message)\n            return result, Progress",
        "            result = Result(self.planned, Outcome.SUCCEEDED, message)\n            return result, Progress",
    ),
    Mutation(
        "verified: missing Pods are no problem",
        "verified_outcomes",
        "        if len(pods) < needed:\n",
        "        if False:\n",
    ),
    Mutation(
        "verified: unready Pods are no problem",
        "verified_outcomes",
        "        if is_stuck or (unready and len(pods) - len(unready) < needed):\n",
        "        if is_stuck:\n",
    ),
    Mutation(
        "verified: Pods that an autoscaler adds must be ready",
        "verified_outcomes",
        "        needed = min(enough or wanted, wanted)\n",
        "        needed = wanted\n",
    ),
    Mutation(
        "verified: --allow-removal allows every removal",
        "verified_outcomes",
        "        must |= named_texts(today.containers, options.sidecars)\n",
        "        must |= named_texts(today.containers, [] if options.allow_removal else options.sidecars)\n",
    ),
    # Pods that lack the sidecar beside Pods that have it
    # No harm
    Mutation(
        "harm: a degraded StatefulSet is restarted",
        "degraded",
        "    if is_degraded(draft.found):\n        shortage",
        "    if False:\n        shortage",
    ),
    Mutation(
        "harm: an incomplete rollout is restarted",
        "concurrent_runs",
        '        if is_repair(draft, planned):\n            return ""\n',
        '        if True:\n            return ""\n',
    ),
    Mutation(
        "harm: a rollout that is stuck because of the sidecar is left alone",
        "concurrent_runs",
        '        if is_repair(draft, planned):\n            return ""\n',
        "",
    ),
    # Clocks, credentials and waits
    Mutation(
        "clocks: that of the API server does not count",
        "requests selecting",
        "        if self.clocks:\n            seconds",
        "        if False:\n            seconds",
    ),
    Mutation(
        "clocks: a token is kept for a day",
        "credentials",
        "                self.valid_until = time.monotonic() + 30\n",
        "                self.valid_until = time.monotonic() + 86_400\n",
    ),
    Mutation(
        "evict: the wait for a budget counts against the timeout",
        "image_changes",
        "                    pauses, deadline = self.pauses(), self.new_deadline()\n",
        "                    pauses = self.pauses()\n",
    ),
    Mutation(
        "selection: scaled to zero counts as without Pods",
        "without_pods",
        "    if not (counts.desired and is_observed(obj)) or restarted_since",
        "    if not is_observed(obj) or restarted_since",
    ),
    # Images that cannot be pulled, and rollouts that are not complete
    Mutation(
        "in place: a crash of the old container is one of the new image",
        "image_changes",
        "        if now[stuck.name] > counts.get(stuck.name, 0):\n            return stuck\n",
        "        return stuck\n",
    ),
    Mutation(
        "in place: a Pod that is ready at the timeout has failed",
        "image_changes",
        "        if not (self.ready_ids and has_time):\n",
        "        if True:\n",
    ),
    Mutation(
        "in place: a startup probe that has not passed is no matter",
        "image_changes",
        '        is_up = status.get("ready") and status.get("started") is not False\n',
        '        is_up = status.get("ready")\n',
    ),
    Mutation(
        "in place: another container starts to count where the last one was",
        "image_changes",
        "        if ids != self.ready_ids:\n",
        "        if not self.ready_since:\n",
    ),
    Mutation(
        "in place: a Pod that is ready for a moment counts as changed",
        "images_on_a_node",
        "        return bool(ids) and ready_for >= max(READY_FOR, self.min_ready)",
        "        return bool(ids)",
    ),
    Mutation(
        "exit codes: an own rollout that is not complete is a success",
        "earlier_rollouts concurrent_runs",
        "            never_completed.append(decision.ref)\n",
        "            pass\n",
    ),
    # Injectors that never give the same twice
    Mutation(
        "changing values: containers and their fields vary",
        "several_answers",
        "        if len(path) <= 2 or is_large or is_few:\n",
        "        if is_large or is_few:\n",
    ),
    Mutation(
        "exit codes: that of the last signal",
        "interrupting",
        "return 128 + self.received[0] if self.received else 0",
        "return 128 + self.received[-1] if self.received else 0",
    ),
    Mutation(
        "exit codes: a run that cannot start exits with 1",
        "starting",
        '            sys.stderr.writelines(f"{line}\\n" for line in output if line)\n        return 3\n',
        '            sys.stderr.writelines(f"{line}\\n" for line in output if line)\n        return 1\n',
    ),
    # Names that lead elsewhere, and protections
    Mutation(
        "harm: any name in an owner reference is a path",
        "owner_references",
        '    if ref.name in (".", "..") or re.search("[/%]", ref.name):\n        return ""\n',
        "",
    ),
    Mutation(
        "harm: paths are not quoted",
        "owner_references",
        "configuration.host + urllib.parse.quote(path)",
        "configuration.host + path",
    ),
    Mutation(
        "harm: a typo in an excluded namespace is a warning",
        "named_workloads",
        "raise StartError(f'namespaces \"{name}\" not found; {hint}')",
        "log.warning(hint)",
    ),
    Mutation(
        "harm: operators of a shell are words of a gate",
        "gate",
        '    if any(re.fullmatch("[&|;<>]+|.*;", word) for word in words):',
        "    if False:",
    ),
    Mutation(
        "harm: containers of a SidecarSet are changed in place",
        "in_place_managed",
        '    if "kruise.io/sidecarset-hash" in annotations_of(pod):\n',
        "    if False:\n",
    ),
    Mutation(
        "harm: only the example Pod is looked at before a change in place",
        "in_place_managed",
        '    for pod in draft.found.pods:\n        if pod.why_managed:\n            return pod.why_managed\n    return ""\n',
        "    return why_images_managed(unpacked_object(draft.found.sample))\n",
    ),
    Mutation(
        "evict: a custom resource needs as many Pods as it has",
        "evicting_meanwhile",
        "            self.retry_after = 0.0\n",
        "            self.retry_after = 0.0\n            self.workload.total_pods = len(self.pods)\n",
    ),
    Mutation(
        "evict: one Pod more than --max-unavailable",
        "max_unavailable",
        "may_be_taken = self.away() < self.limit",
        "may_be_taken = self.away() <= self.limit",
    ),
    Mutation(
        "evict: what was unavailable from the start is waited for in each batch",
        "max_unavailable",
        "        if is_there or away > others_away or (away and self.not_replaced):\n",
        "        if is_there or away:\n",
    ),
    Mutation(
        "evict: an OrderedReady StatefulSet loses several Pods at once",
        "max_unavailable",
        "        if self.is_ordered:\n            return 1\n",
        "",
    ),
    Mutation(
        "evict: what is in the batch is available",
        "max_unavailable",
        "        if is_ending(pod) or uid_of(pod) in self.batch:\n            return False\n        ready",
        "        if is_ending(pod):\n            return False\n        ready",
    ),
    Mutation(
        "evict: minReadySeconds is ignored",
        "rollouts_on_a_node",
        "        if not since or not self.min_ready:\n",
        "        if True:\n",
    ),
    Mutation(
        "downtime: maxUnavailable is rounded up",
        "downtime",
        'away = math.ceil(part) if found.ref.kind == "DaemonSet" else int(part)',
        "away = math.ceil(part)",
    ),
    Mutation(
        "downtime: both may be 0",
        "downtime",
        "    if not has_surge:\n        away = max(away, 1)\n",
        "",
    ),
    Mutation(
        "order: downtime says nothing",
        "order downtime",
        "rank = (decision.state.value, decision.downtime, decision.ref.namespace)",
        "rank = (decision.state.value, False, decision.ref.namespace)",
    ),
    Mutation(
        "rules: what is not ready without its sidecar is left",
        "lost_sidecars",
        "        if pod.name in lost:\n            return True\n        if pod.stuck:\n",
        "        if pod.stuck:\n",
    ),
    Mutation(
        "rules: whatever is not ready is repaired",
        "lost_sidecars rollouts_of_others degraded",
        "        if pod.name in lost:\n            return True\n        if pod.stuck:\n",
        "        if not pod.is_ready:\n            return True\n        if pod.stuck:\n",
    ),
    # The command that replaces Pods after a lost sidecar
    Mutation(
        "recovery: a restart waits for a broken Pod",
        "lost_sidecars",
        "        if outcome is Outcome.LOST_SIDECAR and is_ordered_ready(planned.found.obj):\n",
        "        if False:\n",
    ),
    Mutation(
        "recovery: Pods without the sidecar are not selected",
        "lost_sidecars what_is_lost",
        '"--include-missing", *more]',
        "*more]",
    ),
    # Writes without an answer
    Mutation(
        "patch: a repetition is not recognized",
        "lost_answers",
        "            if self.stamp in template_annotations(obj).values():  # the last try has arrived\n                return\n",
        "",
    ),
    Mutation(
        "patch: one that was answered with 500 is not recognized",
        "lost_answers",
        "                problem = error\n                conflicts",
        "                if error.reply is Reply.ERROR:\n                    raise\n                problem = error\n                conflicts",
    ),
    Mutation(
        "writes: after a signal, too",
        "writes",
        "        self.require_running()\n        return send",
        "        return send",
    ),
    Mutation(
        "writes: the transport repeats a patch",
        "writes",
        "        retries = 0 if asked is Asked.WRITE else self.retries\n",
        "        retries = self.retries\n",
    ),
    Mutation(
        "patch: others start after one without an answer",
        "lost_answers",
        "        return Result(planned, Outcome.FAILED, text, cause)\n",
        "        return Result(planned, Outcome.FAILED, text)\n",
    ),
    Mutation(
        "patch: conflicts do not pause",
        "lost_answers",
        "            self.signals.wait(pause, self.why_stopped)\n\n    def require_repeatable",
        "            pass\n\n    def require_repeatable",
    ),
    Mutation(
        "verification: a recreated workload is the same",
        "lost_answers",
        'if nested(self.obj, "metadata.uid") != uid:',
        "if False:",
    ),
    Mutation(
        "verification: another container of a pattern is as good",
        "several_injectors lost_sidecars what_is_lost",
        "        is_replaced = text != name and any(",
        "        is_replaced = any(fnmatch.filter(present, p) for p in patterns) or any(",
    ),
    # Counts
    Mutation(
        "numbers: Pods that drift after the plan are up to date",
        "numbers",
        "        if is_compared and pods is not decision.found.pods:  # it was read again\n",
        "        if False:\n",
    ),
    Mutation(
        "numbers: surge Pods are counted",
        "numbers",
        "        wanted = max(desired - kept, len(new) + uncreated)\n",
        "        wanted = len(pods) - kept + lost\n",
    ),
    Mutation(
        "numbers: Pods that the plan does not replace are in the plan",
        "numbers",
        " or (code == IN_THE_PLAN and not state.is_old):",
        "  or False:",
    ),
    Mutation(
        "numbers: Pods below a partition have no code of their own",
        "numbers partitions",
        '    if state.is_kept:\n        return "below_partition"\n',
        "",
    ),
    Mutation(
        "numbers: a Pod stands in the row of its first sidecar",
        "census several_injectors",
        "            if sidecar.name in self.containers:\n                return sidecar.name, sidecar.image\n",
        "            return sidecar.name, sidecar.image\n",
    ),
    Mutation(
        "numbers: Pods that the options do not select are left",
        "numbers census",
        "            if row.code and (counts_in_audit(row.code) or (lists_all and row.pod.sidecars)):\n",
        "            if row.code:\n",
    ),
    Mutation(
        "numbers: --include-annotation does not exclude from the count",
        "census exit_codes",
        "@rule(Known.OBJECT, counts_in_audit=False, counts_as_applied=True)\ndef not_included",
        "@rule(Known.OBJECT)\ndef not_included",
    ),
    Mutation(
        "exit codes: a Pod that runs to completion fails an audit",
        "census",
        '@rule(counts_in_audit=False, answer="not_asked")\ndef running_to_completion',
        '@rule(answer="not_asked")\ndef running_to_completion',
    ),
    # Answers of an injector
    Mutation(
        "changing values: the same name is sent again",
        "answers_by_pod names_of_pods",
        "+ UNUSED_ORDINALS + number)",
        "+ UNUSED_ORDINALS)",
    ),
    Mutation(
        "changing values: an error of the second dry run is ignored",
        "answers_by_pod",
        "        return replace(first, error=second.error)\n",
        "        return first\n",
    ),
    Mutation(
        "changing values: what comes from the name of a ReplicaSet is a fault",
        "drifted_rollouts failure_limits partitions",
        "            self.note_names(new[0])\n",
        "            pass\n",
    ),
    Mutation(
        "verification: of a reverted rollout, all old Pods count",
        "verification",
        "        if self.is_reverted():  # what was up to date may stay\n",
        "        if False:\n",
    ),
    Mutation(
        "looks: Pods that are complete are enough",
        "looks",
        "self.is_complete and COMPLETE.search(last_line):",
        "self.is_complete:",
    ),
    Mutation(
        "looks: kubectl's last line is enough",
        "looks",
        "        if was_complete and self.is_complete and COMPLETE",
        "        if COMPLETE",
    ),
    Mutation(
        "looks: a kubectl that lingers is waited for",
        "looks",
        "        if was_complete and self.is_complete and COMPLETE.search(last_line):",
        "        if False:",
    ),
    Mutation(
        "metadata: an annotation that was written later is drift",
        "several_answers",
        '    if path[-2:] == ("fieldRef", "value") and expected is None:',
        "    if False:",
    ),
    Mutation(
        "metadata: labels of a controller are configuration",
        "several_answers",
        "        if key in CONTROLLER_LABELS:\n            return None\n        value: str",
        "        value: str",
    ),
    Mutation(
        "metadata: the value of an annotation does not count",
        "several_answers",
        "        return match[0] if value is None else ",
        "        return match[0] if True else ",
    ),
    Mutation(
        "changing values: the names of dry runs are in use",
        "names_of_pods",
        "UNUSED_ORDINALS = 100",
        "UNUSED_ORDINALS = -1",
    ),
    Mutation(
        "changing values: a StatefulSet's dry run has no name",
        "names_of_pods",
        '        metadata["name"] = pod_name\n',
        "",
    ),
    Mutation(
        "changing values: volumes have names",
        "names_of_pods changing_values",
        '            uses[use[path]] = without_keys(use, "name", path)\n',
        "            uses[use[path]] = without_keys(use, path)\n",
    ),
    Mutation(
        "changing values: the hash has what varies",
        "changing_values",
        "comparable(unpacked(view), ignored)",
        "comparable(unpacked(view))",
    ),
    Mutation(
        "changing values: the order of a list counts",
        "several_answers",
        "        return sorted(parts, key=json.dumps)\n",
        "        return parts\n",
    ),
    Mutation(
        "changing values: an element that only moved is random",
        "several_answers",
        "        if not counts[text]:\n",
        "        if True:\n",
    ),
    Mutation(
        "changing values: a value that a running Pod has belongs to the Pod",
        "several_answers changing_values",
        "        if len(path) <= 2 or is_large or is_few:\n",
        "        if len(path) <= 2 or is_large:\n",
    ),
    Mutation(
        "changing values: a random element of a shuffled list is known",
        "several_answers",
        "        if gone.keys() == new.keys():\n",
        "        if len(gone) == len(new):\n",
    ),
    Mutation(
        "changing values: a name that only one answer has is ignored",
        "several_answers",
        "    doubtful += [names for names, more in surplus.items() if more]\n",
        "",
    ),
    Mutation(
        "changing values: names that vary are compared",
        "several_answers names_of_pods",
        "            names = current.keys() & expected.keys()\n",
        "            pass\n",
    ),
    Mutation(
        "changing values: answers come at once",
        "several_answers",
        "time.sleep(max(answered_at[found] + ANSWERS_APART - time.monotonic(), 0))",
        "pass",
    ),
    # Others
    Mutation(
        "selection: a namespace that terminates does not matter",
        "opt_out changed_meanwhile verdicts check_before_rollout",
        '    if error and error.reply is not Reply.DENIED and "NamespaceTerminating" in error.causes:\n        return "its namespace is terminating"\n',
        "",
    ),
    Mutation(
        "selection: an owner that may not be read is an error",
        "evicting_permissions permissions census",
        "            is_forbidden = or_forbidden and error.reply in FORBIDDEN\n",
        "            is_forbidden = False\n",
    ),
    Mutation(
        "verification: a custom resource may have fewer Pods in the end",
        "soak what_is_wanted",
        "            desired += counts_of(owner, obj).desired\n",
        "            desired += 0\n",
    ),
    Mutation(
        "in place: the Pod need not be ready",
        "image_changes",
        "    if is_ready(before) and not is_ready(pod):\n        return False\n    old = container",
        "    old = container",
    ),
    Mutation(
        "answers: a stub that nobody fills in is a sidecar",
        "answers_for_controllers",
        "if not STUB.fullmatch(image)]",
        "]",
    ),
    Mutation(
        "gate: one that closes for a moment ends what is in progress",
        "gate",
        "obstacle = self.rollouts.gate.why_closed or self.obstacle(pod)",
        "obstacle = self.obstacle(pod)",
    ),
    Mutation(
        "gate: a patch is sent though it has closed",
        "gate",
        "            while self.wait_for_gate():  # it was closed: all else is old by now\n",
        "            while False:\n",
    ),
    Mutation(
        "answers: what a person is admitted by says what controllers get",
        "answers_for_controllers",
        "        if own and theirs and own != theirs:\n",
        "        if False:\n",
    ),
    Mutation(
        "references: extensions is a group of its own",
        "owner_references",
        '    if group == "extensions":',
        '    if group == "":',
    ),
    Mutation(
        "references: Pods belong to who the reference names, not its UID",
        "owner_references",
        '    return str(controller_reference(obj).get("uid", ""))\n',
        '    reference = controller_reference(obj)\n    return str(reference.get("uid", "") + reference.get("apiVersion", ""))\n',
    ),
    Mutation(
        "waiting: minReadySeconds does not prolong the timeout",
        "rolling_out",
        "        deadline = time.monotonic() + timeout + min(ready_seconds(self.obj), timeout)\n",
        "        deadline = time.monotonic() + timeout\n",
    ),
    Mutation(
        "evict: Pods on nodes that do not want them hide missing ones",
        "what_is_wanted",
        "        unwanted = misscheduled(self.owner_obj)  #",
        "        unwanted = 0  #",
    ),
    Mutation(
        "evict: what came back before a batch counts as its replacement",
        "evicting_meanwhile",
        "                    self.present = set(map(uid_of, self.pods))\n",
        "                    self.present = self.known_uids\n",
    ),
    Mutation(
        "in place: a changed Pod that is gone proves its image",
        "what_is_wanted",
        '        now = self.cluster.pod_again(pod)\n        if not now:\n            return ""\n        if self.is_up(',
        '        now = self.cluster.pod_again(pod)\n        if not now:\n            self.rollouts.proven.set()\n            return ""\n        if self.is_up(',
    ),
    Mutation(
        "proxies: ALL_PROXY counts",
        "requests",
        "        proxy = urllib.request.getproxies_environment().get(server.scheme)\n",
        '        proxies = urllib.request.getproxies_environment()\n        proxy = proxies.get(server.scheme) or proxies.get("all")\n',
    ),
    Mutation(
        "limits: --max-failures as a percentage is rounded up",
        "failure_limits",
        "max_failures = max(int(limit.of(len(plan.workloads))), 1)",
        "max_failures = max(math.ceil(limit.of(len(plan.workloads))), 1)",
    ),
    Mutation(
        "requests: Retry-After has no limit",
        "requests",
        "            pause = min(pause, 30.0)  # who wants more is asked once more all the same\n",
        "",
    ),
    Mutation(
        "patch: Retry-After has no limit",
        "writes",
        "min(problem.retry_after, 30.0)",
        "problem.retry_after",
    ),
    Mutation(
        "downtime: a DaemonSet with one Pod is away",
        "downtime",
        ' or (found.ref.kind == "DaemonSet" and desired == 1)',
        "",
    ),
    Mutation(
        "lost sidecars: those of another annotation prefix are not known",
        "lost_sidecars",
        '        if key.endswith(".rollout.sidecars"):\n            texts +=',
        '        if key == "sidecarRollout.rollout.sidecars":\n            texts +=',
    ),
    Mutation(
        "patch: an opt-out between two conflicts is not seen",
        "lost_answers",
        "            self.note_object(obj)\n            early",
        "            early",
    ),
    Mutation(
        "signals: workers may not report after the second signal",
        "scheduler interrupting in_place evicting_stops",
        "    GRACE = 2.0",
        "    GRACE = 0.0",
    ),
    Mutation(
        "signals: a recheck that is abandoned is interrupted",
        "scheduler interrupting",
        "        if task.result:\n            return task.result\n        seconds",
        "        seconds",
    ),
    Mutation(
        "signals: the kubectl of a worker that hangs is left",
        "looks",
        "        for pid in list(self.signals.children):  # a worker may hang in a look\n            end_group(pid)\n",
        "",
    ),
    Mutation(
        "gate: what ended while it was asked is handled later",
        "gate scheduler",
        "        while not self.ended.empty():  # meanwhile\n            self.handle_result(POLL)\n",
        "",
    ),
    Mutation(
        "limits: rechecks count as failures again",
        "scheduler failure_limits",
        "            if not task.result:\n                self.begun.append(task)\n",
        "            self.begun.append(task)\n",
    ),
    Mutation(
        "waiting: a kubectl that keeps failing is run forever",
        "scheduler",
        "if waited is not Waited.NO_RESULT or code is None or remaining <= 1:",
        "if waited is not Waited.NO_RESULT or code is None:",
    ),
    Mutation(
        "requests: they have no deadline",
        "requests",
        "            if time.monotonic() + pause >= deadline:\n",
        "            if False:\n",
    ),
    Mutation(
        "soak: an interrupted one is a success",
        "soak",
        '                return replace(result, outcome=Outcome.INCOMPLETE, message=text)\n            self.tell(f"soaking',
        '                return replace(result, message=text)\n            self.tell(f"soaking',
    ),
    Mutation(
        "soak: it goes on as long as a Pod is unready",
        "soak",
        "            if progress.uncreated or has_moved or not result.counts:\n",
        "            if True:\n",
    ),
    Mutation(
        "evict: a sidecar that does not start is waited for",
        "evicting_replacements",
        '            self.require_started()\n            return f"waiting for {self.awaited()}"\n',
        '            return f"waiting for {self.awaited()}"\n',
    ),
    # Those that survived a trial
    Mutation(
        "earlier rollouts: those of kinds that are not selected are named",
        "earlier_rollouts",
        "    if is_selected_kind(draft.ref, options):\n        own = ",
        "    if True:\n        own = ",
    ),
    Mutation(
        "commands: what they have started goes on",
        "gate",
        "os.killpg(pid, signal.SIGKILL)",
        "os.kill(pid, signal.SIGKILL)",
    ),
    Mutation(
        "batches: an error ends nothing",
        "batches",
        "                self.deferred = error\n",
        "                pass\n",
    ),
    Mutation(
        "batches: an eviction that has not arrived is waited for",
        "batches",
        "        if self.deferred:  # an eviction without an answer may not have taken place\n",
        "        if False:\n",
    ),
    Mutation(
        "answers: an error of the second one does not count",
        "answers_by_pod",
        "        return replace(first, error=second.error)\n",
        "        return first\n",
    ),
    Mutation(
        "census: Pods without a known owner are up to date",
        "census",
        '            code = LOST if gone else "unknown" if is_old else ""\n',
        '            code = LOST if gone else ""\n',
    ),
    # Services
    Mutation(
        "services: workloads behind the same one roll out together",
        "services scheduler",
        "            is_free = busy.isdisjoint(services_of(task.planned)) and not self.why_held(task)\n",
        "            is_free = not self.why_held(task)\n",
    ),
    Mutation(
        "services: those of other namespaces count as the same",
        "services",
        "return [(found.ref.namespace, name) for name in found.services or ()]",
        'return [("", name) for name in found.services or ()]',
    ),
    Mutation(
        "services: one that waits holds up the others",
        "services",
        "                return task\n        return None\n",
        "                return task\n            return None\n        return None\n",
    ),
    Mutation(
        "services: what is late does not hold them",
        "services",
        "        for task in (*self.in_progress.values(), *late):",
        "        for task in self.in_progress.values():",
    ),
    # What survived once
    Mutation(
        "in place: a restart of another container is that of the changed one",
        "image_changes",
        "    return restarted.issuperset(names)\n",
        "    return bool(restarted)\n",
    ),
    Mutation(
        "starting: the password of a proxy is not sent",
        "kubeconfig",
        "        configuration.proxy_headers = {",
        "        _ = {",
    ),
    Mutation(
        "starting: an authority that is an intermediate one is refused",
        "certificates",
        "    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN\n",
        "",
    ),
    Mutation(
        "starting: each connection loads certificates into the context that all share",
        "certificates",
        "        keywords.pop(name, None)\n",
        "        pass\n",
    ),
    Mutation(
        "starting: the client renews the token of an auth-provider, and loses what comes with it",
        "credentials",
        "        check_kubectl(kubectl, [*context_flags",
        "        list([*context_flags",
    ),
    Mutation(
        "starting: where to log in is not shown",
        "credentials starting",
        '                    log.warning("%s: %s", name, message_text(line))\n',
        "                    pass\n",
    ),
    Mutation(
        "starting: a signal waits for a credential plugin",
        "interrupting",
        "                child.kill()  # if a signal came",
        "                pass  # if a signal came",
    ),
    Mutation(
        "audit: a Job that owns a ReplicaSet hides its Pods",
        "what_counts",
        "controller if controller and not is_job(controller) else owner",
        "controller or owner",
    ),
    Mutation(
        "question: what the newest Pods lack is not missed",
        "what_counts",
        "    lost |= having - plain_names(today.containers)\n",
        "",
    ),
    Mutation(
        "question: an answer of another version is forgotten",
        "what_counts",
        "                if other is fourth or not lacks_sidecar(found, other):",
        "                if other is fourth:",
    ),
    Mutation(
        "values of one other namespace are a proof",
        "what_counts",
        "if len(ns) > 1 or found.ref.namespace in ns)",
        ")",
    ),
    Mutation(
        "audit: who removes managedFields hides an old image",
        "what_counts",
        "            if is_running and is_another_tag(",
        "            if False and is_another_tag(",
    ),
    Mutation(
        "audit: what a finalizer holds does not count",
        "fail_on_drift",
        '@rule(Known.EXISTS, answer="not_asked")\ndef being_deleted',
        '@rule(Known.EXISTS, counts_in_audit=False, answer="not_asked")\ndef being_deleted',
    ),
    Mutation(
        "audit: a Pod that was deleted long ago does not count",
        "what_counts",
        "            counts_anyway = options.fail_on_drift and is_held(pod, began)\n",
        "            counts_anyway = False\n",
    ),
    Mutation(
        "audit: the grace period of a Pod hides it",
        "what_counts examples",
        "parse_time(end) - grace < now - HELD_AFTER",
        "parse_time(end) < now - HELD_AFTER",
    ),
    Mutation(
        "audit: a Pod that terminates counts also if it is as new ones would be",
        "what_counts",
        "        return compared._replace(code=state.code if is_counted else compared.code)\n",
        "        return compared._replace(code=state.code)\n",
    ),
    Mutation(
        "audit: what is excluded counts if it terminates",
        "what_counts",
        "        is_counted = compared.code and counts_in_audit(compared.code)\n",
        "        is_counted = compared.code\n",
    ),
    Mutation(
        "audit: what has no sidecar, and would not get it, is not listed",
        "what_counts",
        "        if self.options.fail_on_drift:\n            self.print_without_sidecar()\n",
        "",
    ),
    Mutation(
        "audit: a custom resource without the sidecar is not named",
        "what_counts",
        "            scan.nouns[found.ref] = CUSTOM\n",
        "            pass\n",
    ),
    Mutation(
        "audit: each workload is asked once",
        "what_counts",
        "    twice = options.fail_on_drift or options.is_question\n",
        "    twice = options.is_question\n",
    ),
    Mutation(
        "question: each workload is asked once",
        "what_counts",
        "    twice = options.fail_on_drift or options.is_question\n",
        "    twice = options.fail_on_drift\n",
    ),
    Mutation(
        "the injector is asked for the second time in the same order",
        "what_counts",
        "        for found in reversed(answers)\n",
        "        for found in answers\n",
    ),
    Mutation(
        "a value that all Pods share counts as made anew",
        "what_counts",
        "        if any(value_at(view, where) is not None for view in running):\n",
        "        if False:\n",
    ),
    Mutation(
        "one Pod of a workload that all agree: others tell",
        "what_counts",
        "ignored - (values_made_anew(found) if are_several else made_anew()):",
        "ignored - made_anew():",
    ),
    Mutation(
        "question: a digest does not count",
        "what_counts examples",
        'if "@" in pattern or "@" not in image])',
        "])",
    ),
    Mutation(
        "question: workloads that would not get the sidecar count as checked",
        "what_counts expected",
        'return "not_injected" if verdict is Verdict.NOT_INJECTED else ""',
        'return ""',
    ),
    Mutation(
        "question: the next template of a paused Deployment is not named",
        "what_counts",
        "            elif is_paused(row.found.obj) and counted.",
        "            elif False and counted.",
    ),
    Mutation(
        "question: a Job that has ended is named",
        "what_counts",
        '            elif not {("Complete", "True"), ("Failed", "True")} & conditions_of(obj).keys():\n',
        "            else:\n",
    ),
    Mutation(
        "question: the owner of a ReplicaSet without Pods is named twice",
        "what_counts",
        "scan.nouns.setdefault(possible_controller_of(obj) or ref, noun)",
        "scan.nouns.setdefault(ref, noun)",
    ),
    Mutation(
        "injector down: a quota, or a policy, is an injector that is down",
        "what_counts",
        "        if today.error and today.error.reply in (Reply.QUOTA, Reply.POLICY):\n            continue\n",
        "",
    ),
    Mutation(
        "lists: what needs another method has no rank",
        "output",
        "@rule(place=7)\ndef wrong_method",
        "@rule()\ndef wrong_method",
    ),
    Mutation(
        "--plan: a row that a person interrupted is not applied",
        "plan_file",
        'LIMITS = ("max_rollouts", "max_duration", "gate", "interrupted")',
        'LIMITS = ("max_rollouts", "max_duration", "gate")',
    ),
    Mutation(
        "selector: a worker decides on all Pods",
        "changed_meanwhile",
        "        decision = self.decide_again(self.selected(own))\n",
        "        decision = self.decide_again(own)\n",
    ),
    Mutation(
        "answers: each Pod is not asked about before it is taken",
        "one_answer evicting_answers",
        "                if self.asked != self.owner:\n                    self.ask_owner()\n",
        "",
    ),
    Mutation(
        "secrets: JSON of a variable may have an image",
        "secrets",
        'path[1:2] == ("volumes",) and path',
        "path",
    ),
    Mutation(
        "evictions: one that may have begun was not started",
        "evicting_stops",
        "Outcome.NOT_STARTED:\n                if not self.is_begun:\n",
        "Outcome.NOT_STARTED:\n                if not self.done:\n",
    ),
    Mutation(
        "gate: it seems open while it is asked",
        "gate",
        '            why_closed = ""\n            if code != 0:\n',
        '            self.why_closed = why_closed = ""\n            if code != 0:\n',
    ),
    Mutation(
        "evict: nothing that was replaced is a success",
        "evicting_meanwhile",
        "            if not self.done and not result.counts.wanted:\n",
        "            if False:\n",
    ),
    Mutation(
        "evict: a success does not say which Pods nothing came for",
        "what_is_wanted",
        "            if unwanted > 0:\n",
        "            if False:\n",
    ),
    Mutation(
        "kubeconfig: a pipe is read again and again",
        "kubeconfig",
        "stat.S_ISFIFO(os.stat(path).st_mode)",
        "False",
    ),
    # One answer, one cluster, and what one namespace says
    Mutation(
        "cluster: a kubeconfig that means another one is followed",
        "one_answer",
        "        if cluster_of(again) != cluster:\n",
        "        if False:\n",
    ),
    Mutation(
        "answers: what the plan did not show is begun",
        "one_answer",
        '        text = "; ".join(map(difference_text, changes_since(planned, today)))\n',
        '        text = ""\n',
    ),
    Mutation(
        "answers: without one, a restart is unchecked",
        "check_before_rollout",
        "        if not (error and error.reply in UNCHECKED) or self.options.only_drifted:\n",
        "        if not error:\n",
    ),
    Mutation(
        "namespaces: one that named a cause stays open",
        "namespaces",
        '            self.signals.stop(Stop(cause.reason, "namespace_stopped"), namespace)\n',
        "            pass\n",
    ),
    Mutation(
        "namespaces: one closes all",
        "namespaces",
        'if cause.code == "stopped" or len(named) > 1 or not has_others:',
        "if True:",
    ),
    Mutation(
        "namespaces: a team's own release is a cause",
        "namespaces",
        "        if not reason or template_hash(self.obj) != template_hash(self.planned.found.obj):\n",
        "        if not reason:\n",
    ),
    Mutation(
        "namespaces: one may use up the limit of all",
        "namespaces",
        "        most = (limit + 1) // 2 if len(self.namespaces) > 1 else limit\n",
        "        most = limit\n",
    ),
    Mutation(
        "namespaces: what a template states proves the sidecar",
        "namespaces",
        "        stated = set() if self.rollouts.is_stated else stated_containers(self.obj)\n",
        "        stated: set[str] = set()\n",
    ),
    Mutation(
        "namespaces: any error of a request stops the run",
        "namespaces",
        'Stop(message, "api_error" if is_ready else "stopped")',
        'Stop(message, "stopped")',
    ),
    Mutation(
        "bounded: an odd Pod ends the run",
        "bounded hostile_namespace owner_references",
        '            log.debug("cannot read a Pod", exc_info=True)\n',
        "            raise\n",
    ),
    # What is lost, whose rollout it is, and what was applied
    Mutation(
        "lost: what came since the plan is not",
        "what_is_lost",
        "        if planned and is_new and not (is_pending and pod.revision not in revisions):\n",
        "        if False:\n",
    ),
    Mutation(
        "lost: a release of its team is a loss",
        "what_is_lost",
        "    if planned and is_same_template(planned.found, found):\n",
        "    if planned:\n",
    ),
    Mutation(
        "lost: --allow-removal forgets what new Pods would get",
        "what_is_lost",
        "            gone &= plain_names(today.containers)\n",
        "            gone = frozenset()\n",
    ),
    Mutation(
        "lost: what the Pod template states is",
        "what_is_lost",
        "    return frozenset(text for text in must if text.removesuffix(INIT_MARK) not in stated_names)\n",
        "    return frozenset(must)\n",
    ),
    Mutation(
        "lost: what another injector put in is not",
        "what_is_lost lost_sidecars",
        "    must |= injected_by_others(found, options)\n",
        "",
    ),
    Mutation(
        "lost: a team may not turn injection off",
        "what_is_lost",
        "            if other.ref.namespace == found.ref.namespace and gets.issuperset(lost):\n",
        "            if False:\n",
    ),
    Mutation(
        "lost: a release while the injector is down is the choice of its team",
        "lost_sidecars what_is_lost",
        "        if not is_known or lost & plain_names(today.containers):\n            return False\n        for other in self.decided.values():\n            gets",
        "        return True\n        for other in self.decided.values():\n            gets",
    ),
    Mutation(
        "lost: what a person left out counts",
        "lost_sidecars",
        "    if state.lost and code != IN_THE_PLAN and not is_left_out:\n",
        "    if state.lost and code != IN_THE_PLAN:\n",
    ),
    Mutation(
        "lost: a custom resource without any sidecar is dropped",
        "what_is_lost",
        "    owners = []\n    for owner, own in by_owner.items():\n",
        "    owners = []\n    for owner, own in by_owner.items():\n        if not (samples[owner].sidecars or has_template(owner)):\n            continue\n",
    ),
    Mutation(
        "lost: the annotation of another sidecar is overwritten",
        "what_is_lost",
        "(noted - named_texts(noted, self.options.sidecars))",
        "set()",
    ),
    Mutation(
        "lost: the annotation of another prefix stays",
        "what_is_lost",
        '        for key in (f"{prefix}.sidecars", *before):\n',
        '        for key in (f"{prefix}.sidecars",):\n',
    ),
    Mutation(
        "lost: the printed command selects what was typed",
        "what_is_lost",
        "without_selection(argv) if names else argv",
        "argv",
    ),
    Mutation(
        "lost: a named workload that would not get the sidecar is no failure",
        "what_is_lost",
        '            failures["not_injected"] = self.skips("not_injected")\n',
        "",
    ),
    Mutation(
        "lost: any workload without the sidecar is a failure",
        "what_is_lost",
        "    if not (is_exact and options.include_missing) or all",
        "    if not options.include_missing or all",
    ),
    Mutation(
        "order: what lost a sidecar comes as any other",
        "what_is_lost",
        "        key=lambda row: (not row.lost, row.ref not in broken, *place[row.ref]),\n",
        "        key=lambda row: (row.ref not in broken, *place[row.ref]),\n",
    ),
    Mutation(
        "order: what a restart of this command left comes as any other",
        "earlier_rollouts",
        "        key=lambda row: (not row.lost, row.ref not in broken, *place[row.ref]),\n",
        "        key=lambda row: (not row.lost, *place[row.ref]),\n",
    ),
    Mutation(
        "ours: whatever the Pod template",
        "earlier_rollouts without_pods",
        "    if not restarted or restarted != template_hash(obj):\n",
        "    if not restarted:\n",
    ),
    Mutation(
        "ours: a roll back to it",
        "earlier_rollouts",
        "    if new and format_time(min(pod.created for pod in new) - CLOCKS_DIFFER) > until:\n",
        "    if False:\n",
    ),
    Mutation(
        "ours: what its team restarts",
        "earlier_rollouts",
        " or restarted_since(obj, began):\n",
        ":\n",
    ),
    Mutation(
        "ours: one in progress is a failure",
        "earlier_rollouts",
        "    return format_time(found.read_at + CLOCKS_DIFFER) < until\n",
        "    return False\n",
    ),
    Mutation(
        "ours: one with a stuck Pod is in progress",
        "earlier_rollouts",
        "    if found.read_at == NO_CUTOFF or why_not_healthy(found):\n",
        "    if found.read_at == NO_CUTOFF:\n",
    ),
    Mutation(
        "ours: not if it is paused",
        "earlier_rollouts",
        "    if why_incomplete(found) or (is_paused(obj) and counts.updated < counts.current):\n",
        "    if why_incomplete(found):\n",
    ),
    Mutation(
        "ours: not if no Pod leads to it",
        "earlier_rollouts",
        "                    if why_never_completed(found, options) or why_left",
        "                    if why_left",
    ),
    Mutation(
        "writes: a roll back is a restart of another run",
        "earlier_rollouts",
        '    if max(timestamps_of(obj), default="") <= max(before, default=""):\n',
        "    if not set(timestamps_of(obj)).difference(before):\n",
    ),
    Mutation(
        "--plan: one without rows is applied",
        "plan_file",
        "            if self.options.plan is not None and not self.options.plan:\n",
        "            if False:\n",
    ),
    Mutation(
        "--plan: what is scaled to 0 is not applied",
        "plan_file",
        '        if code != "not_named" or is_scaled_down:\n',
        '        if code != "not_named":\n',
    ),
    Mutation(
        "--plan: a row that a partition keeps is applied",
        "partitions",
        "@rule(before_each_pod=False)\ndef below_partition",
        "@rule(before_each_pod=False, counts_as_applied=True)\ndef below_partition",
    ),
    # Replicas
    Mutation(
        "replicas: a second one is begun",
        "replicas",
        '    return draft.ref.kind == "StatefulSet" or draft.downtime\n',
        "    return False\n",
    ),
    Mutation(
        "replicas: two that are down wait for each other",
        "replicas",
        "    if not (found.short_replica and is_careful(draft) and ready) or is_repair(draft, planned):\n",
        "    if not (found.short_replica and is_careful(draft)) or is_repair(draft, planned):\n",
    ),
    Mutation(
        "replicas: whatever its containers",
        "replicas",
        "    groups = group_by(rows, lambda row: (row.ref.kind, row.ref.namespace, row.containers))\n",
        "    groups = group_by(rows, lambda row: (row.ref.kind, row.ref.namespace, 0))\n",
    ),
    Mutation(
        "replicas: a worker does not look again",
        "replicas",
        "        if is_held or (self.found.replicas and is_careful(self.planned)):\n            text = short_replica",
        "        if False:\n            text = short_replica",
    ),
    Mutation(
        "replicas: an eviction does not look again",
        "replicas",
        "            self.note_replicas()\n            if self.found.short_replica and name_of(pod) not in self.decision.lost:\n",
        "            if False:\n",
    ),
    Mutation(
        "replicas: without permission, nothing tells",
        "replicas",
        "    if selectors is None:  # forbidden: EndpointSlices tell, where there are any\n",
        "    if selectors is None:\n        selectors = {}\n    if False:\n",
    ),
    Mutation(
        "overload: what loses its sidecar is not asked again",
        "replicas",
        "    if not options.allow_removal:\n        later",
        "    if False:\n        later",
    ),
    Mutation(
        "overload: an injector that is down is asked for each",
        "replicas",
        "        if in_a_row >= LOST_IN_A_ROW or time.monotonic() > deadline:\n",
        "        if False:\n",
    ),
)


def mutated(text: str, mutation: Mutation) -> str:
    """Return the script with a mutation. ValueError if it does not fit the script."""
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.name}: its text occurs {count} times in {SCRIPT}, not once")
    return text.replace(mutation.old, mutation.new)


def problems(chosen: Sequence[Mutation], text: str) -> Iterator[str]:
    """Yield why mutations cannot be tried. They are compiled several at a time, which takes long."""
    fitting = []
    for mutation in chosen:
        for name in mutation.tests.split():
            if not [*TOP.glob(f"tests/*/test_{name}.py")]:
                yield f"{mutation.name}: there is no test_{name}.py"
        try:
            if mutated(text, mutation) == text:
                yield f"{mutation.name}: it changes nothing"
            fitting.append(mutation)
        except ValueError as error:
            yield str(error)
    while fitting:
        changed, others = text, []
        for mutation in fitting:
            try:
                changed = mutated(changed, mutation)
            except ValueError:  # another one has changed the same text
                others.append(mutation)
        compile(changed, SCRIPT, "exec")
        fitting = others


def run_tests(folder: Path, names: str, *more: str) -> bool:
    """Return whether the tests pass in a folder."""
    found = [path for name in names.split() for path in TOP.glob(f"tests/*/test_{name}.py")]
    files = [str(path.relative_to(TOP)) for path in found]
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout=60", *more]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if ended.returncode and " failed" not in ended.stdout:
        raise RuntimeError(f"pytest {' '.join(files)}: {ended.stdout}{ended.stderr}")
    return ended.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("word", nargs="?", default="", help="only mutations with this in the name")
    parser.add_argument("--control-plane", action="store_true", help="on a real control plane")
    parser.add_argument("--jobs", type=int, default=6, help="so many at a time; default: 6")
    parser.add_argument("--list", action="store_true", help="show the names and the tests")
    parser.add_argument("--check", action="store_true", help="run no tests")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.word in mutation.name]
    if options.list:
        print("\n".join(f"{mutation.name}  ({mutation.tests})" for mutation in chosen))
        return 0
    text = (TOP / SCRIPT).read_text()
    found = [*problems(chosen, text)]
    if found or options.check:
        print("".join(f"error: {problem}\n" for problem in found), end="", file=sys.stderr)
        return 2 if found else 0
    texts = [mutated(text, mutation) for mutation in chosen]
    where = ["--control-plane"] if options.control_plane else []
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        ignored = shutil.ignore_patterns(".venv", ".git", ".hypothesis", "__pycache__")
        for number in range(options.jobs):
            folders.put(shutil.copytree(TOP, Path(name) / str(number), ignore=ignored))

        def survives(mutation: Mutation, changed: str) -> bool:
            folder = folders.get()
            try:
                (folder / SCRIPT).write_text(changed)
                began = time.monotonic()
                has_survived = run_tests(folder, mutation.tests, *where)
            finally:
                folders.put(folder)
            word = "SURVIVED" if has_survived else "killed  "
            print(f"{word}  {time.monotonic() - began:4.0f}s  {mutation.name}", flush=True)
            return has_survived

        with ThreadPoolExecutor(options.jobs) as pool:
            survived = list(pool.map(survives, chosen, texts))
    survivors = [mutation.name for mutation, is_one in zip(chosen, survived, strict=True) if is_one]
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutations killed.")
    print("".join(f"  survived: {name}\n" for name in survivors), end="")
    return int(bool(survivors))


if __name__ == "__main__":
    raise SystemExit(main())
