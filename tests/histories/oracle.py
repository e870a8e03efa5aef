"""What must be true of a run, by the cluster's own objects: nothing here calls the tool's functions."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from clusters.embedded import is_counted, is_ready
from totals import wrong_numbers

from .cases import SECRETS, SETUPS, App
from .play import GATE_VALID_FOR, NO_ROLLOUT, Entry, Run, Scene, World, forms, is_write, owner_app

FAILURES = ("lost_sidecar", "failed", "timed_out", "incomplete", "still_drifted")
NOT_AUDITED = ("not_named", "excluded", "not_included", "running_to_completion")
# Codes of a row of --plan that needs no rollout
APPLIED = ("up_to_date", "nothing_to_replace", "excluded", "not_included", "not_selected")
LIMITS = (
    "max_rollouts",
    "max_duration",
    "gate",
    "interrupted",
)  # of a person: codes of what is left
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
OURS = r".*\.rollout\.(timestamp|reason|revision|sidecars|by|template)"
NO_CUTOFF = "9999"  # later than the time of any Pod
LATE = 0.5  # seconds until a signal is heeded: requests may be under way
# How many Pods a rollout may stop before one of the new ones is ready, by strategy
AT_ONCE = {"Recreate": 99, "surge 0, maxUnavailable 2": 2, "maxUnavailable 2": 2}
KINDS_OF = {"Deployment": "deployment", "StatefulSet": "statefulset", "DaemonSet": "daemonset"}
SHORT = {"deploy": "deployment", "sts": "statefulset", "ds": "daemonset"}
PLURALS = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "ReplicaSet": "replicasets",
    "ReplicationController": "replicationcontrollers",
    "CloneSet": "clonesets",
}


@dataclass(frozen=True)
class Violation:
    point: int  # of the seven
    text: str

    def __str__(self) -> str:
        return f"{self.point}: {self.text}"


class Words:
    """The options of a run, as its command line has them."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def has(self, flag: str) -> bool:
        return any(
            word.split("=")[0] == flag and not word.endswith("=false") for word in self.words
        )

    def values(self, flag: str) -> list[str]:
        return [word.partition("=")[2] for word in self.words if word.startswith(f"{flag}=")]

    @property
    def names(self) -> list[str]:
        return self.values("--sidecar-container-name")

    @property
    def workloads(self) -> list[str]:
        found = []
        for before, word in zip(["", *self.words], self.words, strict=False):
            if not word.startswith("-") and before != "--kubectl":
                kind, _, name = word.partition("/")
                found.append(f"{SHORT.get(kind.lower(), kind.lower())}/{name}")
        return found

    @property
    def cutoff(self) -> str:
        return (self.values("--only-started-before") or [""])[-1]

    @property
    def plan(self) -> list[dict] | None:
        """The records of --plan that select a workload; None without it."""
        found = None
        for path in self.values("--plan"):
            with open(path) as lines:
                records = map(json.loads, lines)
                found = [r for r in records if r["record"] == "plan" and r["selected"]]
        return found

    def cutoff_of(self, app: App, otherwise: str) -> str:
        """The time before which Pods of a workload count."""
        for record in self.plan or ():
            if (record["namespace"], record["name"]) == (app.namespace, app.name):
                return self.cutoff or record["started_before"] or NO_CUTOFF
        return otherwise or NO_CUTOFF

    def is_in_plan(self, app: App) -> bool:
        found = self.plan
        return found is None or any(
            (r["kind"], r["namespace"], r["name"]) == (app.kind, app.namespace, app.name)
            for r in found
        )

    @property
    def kinds(self) -> set[str]:
        if self.workloads:
            types = {pattern.partition("/")[0] for pattern in self.workloads}
            return {kind for kind, word in KINDS_OF.items() if word in types}
        found = set() if self.has("--exclude-deployment") else {"Deployment"}
        found |= {"StatefulSet"} if self.has("--include-statefulset") else set()
        return found | ({"DaemonSet"} if self.has("--include-daemonset") else set())

    def reads(self, namespace: str) -> bool:
        """Whether the Pods of a namespace are counted, whatever else selects them."""
        included = [] if self.has("--all-namespaces") else self.values("--include-namespace")
        return any(fnmatch.fnmatch(namespace, p) for p in included or ["*"])

    def includes(self, namespace: str) -> bool:
        excluded = self.values("--exclude-namespace")
        is_excluded = any(fnmatch.fnmatch(namespace, p) for p in excluded)
        return self.reads(namespace) and not is_excluded

    def names_workload(self, kind: str, name: str) -> bool:
        wanted = self.workloads
        return not wanted or any(fnmatch.fnmatch(f"{kind.lower()}/{name}", p) for p in wanted)

    def selects(self, labels: dict) -> bool:
        for selector in self.values("--selector"):
            key, equal, value = re.split("(!?=)", selector)
            if (labels.get(key) == value) != (equal == "="):
                return False
        return True

    def annotated(self, app: App) -> bool:
        """Whether annotations select it."""
        never = bool(app.annotation)
        if app.kind == "CloneSet":  # it is not read; its Pods are
            never = app.annotation == "template"
        if never and self.values("--exclude-annotation"):
            return False
        return never or not self.values("--include-annotation")

    def selects_app(self, app: App, kind: bool = True) -> bool:
        """Whether a workload is selected; with `kind`, as one to roll out or evict."""
        is_selected = (
            self.includes(app.namespace)
            and self.names_workload(app.kind, app.name)
            and self.annotated(app)
            and self.selects({"app": app.name})
            and self.is_in_plan(app)
        )
        if not kind or not is_selected:
            return is_selected
        return app.kind in self.kinds if app.kind in KINDS_OF else self.has("--evict")


def place(obj: dict) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def pods_of(scene: Scene, app: App) -> list[dict]:
    """The Pods of a workload that are not terminating, by name."""
    return [
        obj
        for (plural, namespace, _), obj in sorted(scene.items(), key=lambda item: item[0])
        if plural == "pods"
        and namespace == app.namespace
        and is_counted(obj)
        and owner_app(scene, obj) == (app.kind, app.namespace, app.name)
    ]


def wanted_of(obj: dict) -> int:
    """How many Pods a workload wants; a DaemonSet one on each of three nodes, unless one has a taint."""
    return obj["spec"].get("replicas", obj.get("status", {}).get("desiredNumberScheduled", 3))


def template_of(scene: Scene, app: App) -> dict | None:
    obj = scene.get((PLURALS.get(app.kind, ""), app.namespace, app.name))
    return obj and obj["spec"]["template"]


def is_below_partition(scene: Scene, app: App, pod: dict) -> bool:
    obj = scene.get((PLURALS.get(app.kind, ""), app.namespace, app.name))
    if app.kind != "StatefulSet" or not obj:
        return False
    partition = obj["spec"]["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)
    return int(pod["metadata"]["name"].rpartition("-")[2]) < partition


class Oracle:
    def __init__(self, world: World) -> None:
        self.world, self.history = world, world.history
        self.found: list[Violation] = []

    def say(self, point: int, text: str) -> None:
        self.found.append(Violation(point, text))

    def entries(self, run: Run, what: str = "") -> list[Entry]:
        return [e for e in self.world.log[run.began : run.ended] if what in ("", e.what)]

    def would(self, template: dict, version=None) -> dict[str, tuple]:
        """The named sidecars that a Pod of a template would get, by name; see World.gives."""
        found = self.world.gives(template, version)
        names = self.options.names
        return {n: one for n, one in found.items() if any(fnmatch.fnmatchcase(n, p) for p in names)}

    def judge(self, run: Run) -> None:
        """Everything about one run."""
        self.options = Words(run.options)
        self.check_end(run)
        self.check_secrets(run)
        self.check_writes(run)
        if run.summary and "error" in run.summary:
            self.check_error(run)
        elif run.summary and not run.by_process:
            self.check_exit_code(run)
            self.check_texts(run)
            self.check_plan(run)
            self.check_plan_file(run)
            self.check_results(run)
            self.check_census(run)

    # 5. It ends

    def check_end(self, run: Run) -> None:
        if run.killed:
            return
        ended = run.finished
        logged = ended.stderr
        is_debug = self.options.has("--log-level") and "debug" in str(run.options)
        if "unexpected error" in logged or ("Traceback" in logged and not is_debug):
            self.say(5, f"unexpected error: {logged[-3000:]}")
        if run.left_behind and run.summary:  # else its threads end with the process
            self.say(5, f"left behind: {run.left_behind}")
        timeout = float((self.options.values("--timeout") or ["300s"])[0].rstrip("s"))
        limit = 20 + (len(run.of("plan")) + 1) * (2 * timeout + 8)
        if run.seconds > limit:
            self.say(5, f"took {run.seconds:.0f} s")
        if ended.code == 2:
            self.say(0, f"the options were not accepted: {logged}")
        is_early = run.by_process and -ended.code in (1, 2, 15)  # before Python has begun
        if ended.code not in (0, 1, 2, 3, 129, 130, 143) and not is_early:
            self.say(5, f"exit code {ended.code}: {logged[-300:]}")

    def check_error(self, run: Run) -> None:
        """A run ends before its plan only for a name that does not exist, or the API server."""
        known = (
            "not found",
            "no Pod has a container named",
            "cannot",
            "Unauthorized",
            "50",
            "429",
            "403",
        )
        known += ("interrupted", "409", "truncated")
        if not any(word in run.finished.stderr for word in known):
            self.say(3, f"ended without a plan: {run.finished.stderr[-300:]}")
        if any(entry for entry, *_ in self.writes(run)):
            self.say(4, "a write before an error")

    # 7. No secrets

    def check_secrets(self, run: Run) -> None:
        shown = f"{run.finished.stdout}{run.finished.stderr}{run.text}{json.dumps(run.records)}"
        for secret in (*SECRETS, "admin-token"):
            if secret in shown:
                at = shown.index(secret)
                self.say(7, f"shows {secret}: {shown[max(at - 80, 0) : at + 60]!r}")

    # 4. Writes

    def writes(self, run: Run) -> Iterator[tuple[Entry, str, App | None, dict | None]]:
        """The writes that were stored, with their class, the workload, and the Pod before."""
        for entry in self.entries(run, "request"):
            request, kind = entry.data["request"], entry.data["kind"]
            if not is_write(request) or "kubectl" in request.headers.get("user-agent", ""):
                continue
            if kind == "patch":
                _, _, _, _, _, namespace, _, name = request.path.split("/")
                yield entry, kind, self.world.apps.get(f"{namespace}/{name}"), None
            elif kind in ("eviction", "image change"):
                namespace, name = request.path.split("/")[4], request.path.split("/")[6]
                pod = self.pod_before(entry, namespace, name)
                owner = pod and owner_app(self.scene_before(entry), pod)
                yield entry, kind, owner and self.world.apps.get(f"{owner[1]}/{owner[2]}"), pod
            else:
                self.say(4, f"an unknown write: {request.method} {request.path}")

    def scene_before(self, entry: Entry) -> Scene:
        if entry.before:
            return entry.before
        log = self.world.log
        at = next(i for i in range(len(log)) if log[i] is entry)
        return next((e.scene for e in reversed(log[:at]) if e.scene), {})

    def pod_before(self, entry: Entry, namespace: str, name: str) -> dict | None:
        return self.scene_before(entry).get(("pods", namespace, name))

    def check_writes(self, run: Run) -> None:
        options = self.options
        signals = [e.at for e in self.entries(run, "signal")]
        touched = self.touched(run)
        closed = self.closed(run)
        begun: dict[str, float] = {}
        restarts: Counter[str] = Counter()
        for entry, kind, app, pod in self.writes(run):
            request, code = entry.data["request"], entry.data["code"]
            what = f"{kind} {request.path}"
            if not run.confirm:
                self.say(4, f"a write in a dry run: {what}")
            if len(signals) > 1 and entry.at > signals[1] + LATE:
                self.say(4, f"{what} {entry.at - signals[1]:.2f} s after the second signal")
            if any(since < entry.at < until for since, until in closed):
                self.say(4, f"{what} while the gate was closed")
            is_new = app is not None and app.key not in begun
            if is_new:
                begun[app.key] = entry.at
            # Each try to change an image is a write of its own.
            is_other = is_new or kind in ("patch", "eviction")
            if is_other and signals and entry.at > signals[0] + LATE:
                self.say(4, f"{what} {entry.at - signals[0]:.2f} s after the first signal")
            if app is None:
                continue
            if not options.selects_app(app):
                self.say(4, f"{what}: {app} was not selected")
            body = json.loads(request.body)
            if kind == "patch":
                restarts[app.key] += code == 200
                if restarts[app.key] > 1 and not touched.get(app.key, set()) & {"recreated"}:
                    self.say(4, f"{app.key} was restarted twice")
            elif kind == "eviction":
                if not options.has("--evict"):
                    self.say(4, f"{what} without --evict")
                if not body.get("deleteOptions", {}).get("preconditions", {}).get("uid"):
                    self.say(4, f"{what} without the UID")
                if code == 201:
                    self.check_eviction(run, entry, app, pod, touched)
            else:
                if not options.has("--in-place"):
                    self.say(4, f"{what} without --in-place")
                if not body.get("metadata", {}).get("uid"):
                    self.say(4, f"{what} without the UID")
        if not run.by_process:
            self.check_parallel(run)

    def closed(self, run: Run) -> list[tuple[float, float]]:
        """From when until when the gate was closed, and the run had to know that."""
        found = []
        for entry in self.entries(run):
            if entry.what == "event" and entry.data["event"].what == "gate closes":
                found.append((entry.at + GATE_VALID_FOR + LATE, float("inf")))
            elif entry.what == "gate opens":
                found[-1] = found[-1][0], entry.at
        return found

    def check_eviction(self, run: Run, entry: Entry, app: App, pod: dict, touched: dict) -> None:
        scene = self.scene_before(entry)
        events = touched.get(app.key, set())
        if "template changed" not in events and "recreated" not in events:
            template = template_of(scene, app)
            if app.kind == "Deployment":  # paused: its Pods come back from their ReplicaSet
                owner = next(o for o in pod["metadata"]["ownerReferences"] if o.get("controller"))
                above = scene.get(("replicasets", app.namespace, owner["name"]))
                template = above and above["spec"]["template"]
            is_known = template and app.kind != "CloneSet"
            is_replaced = is_known and not is_below_partition(scene, app, pod)
            if is_replaced and mode_of(pod["spec"]) != mode_of(template["spec"]):
                self.say(4, f"evicting {place(pod)} rolls out a pending change")
        if events - {"node is tainted"}:
            return
        obj = scene.get((PLURALS[app.kind], app.namespace, app.name))
        if not obj or not is_ready(pod) or self.is_unwanted(app, pod):
            return
        wanted = wanted_of(obj)
        if app.kind == "DaemonSet":  # its status may still count a node that has just got a taint
            wanted = min(wanted, 3 - len(self.world.tainted))
        if app.kind == "CloneSet":  # it is not read: it wants the Pods that the run began with
            wanted = min(wanted, len(pods_of(self.first_scene(run), app)))
        limit = self.evicted_at_once(obj, wanted)
        pods = [p for p in pods_of(scene, app) if not self.is_unwanted(app, p)]
        ready = sum(map(is_ready, pods))
        if ready - 1 < wanted - limit:
            self.say(4, f"{place(pod)} was evicted while {ready} of {wanted} were ready: {limit}")

    def evicted_at_once(self, obj: dict, wanted: int) -> int:
        if obj["spec"].get("podManagementPolicy") == "OrderedReady":
            return 1
        most = (self.options.values("--max-unavailable") or ["1"])[0]
        limit = int(most.rstrip("%"))
        return max(limit * wanted // 100, 1) if most.endswith("%") else limit

    def is_unwanted(self, app: App, pod: dict) -> bool:
        """Whether a Pod of a DaemonSet is on a node that does not want it: it does not come back."""
        return app.kind == "DaemonSet" and pod["spec"].get("nodeName") in self.world.tainted

    def check_parallel(self, run: Run) -> None:
        planned = [r for r in run.of("plan") if r["selected"]]
        text = (self.options.values("--parallel-rollouts") or ["1"])[0]
        limit = int(text.rstrip("%"))
        if text.endswith("%"):
            limit = max(limit * len(run.of("plan")) // 100, 1)
        timeout = float((self.options.values("--timeout") or ["300s"])[0].rstrip("s"))
        running: dict[str, float] = {}
        writes = {id(entry): app for entry, _, app, _ in self.writes(run) if app}
        for entry in self.entries(run):
            if id(entry) in writes:
                running.setdefault(writes[id(entry)].key, entry.at)
            elif entry.what == "result":
                running.pop(entry.data["key"], None)
            # A rollout that timed out is rechecked at the end.
            running = {k: since for k, since in running.items() if entry.at - since < timeout}
            shared = self.behind_shared(run, running)
            if len(shared) > 1:
                self.say(4, f"two rollouts at a time behind one Service: {shared}")
                return
            if len(running) > limit:
                self.say(4, f"{len(running)} rollouts at a time of {len(planned)}: {[*running]}")
                return

    def behind_shared(self, run: Run, running: dict[str, float]) -> list[str]:
        """Which of the rollouts in progress are behind the shared Service of a namespace.

        Those of a workload with Pods that have an address count: the plan reads no others.
        """
        scene = self.first_scene(run)
        found: dict[str, list[str]] = {}
        for key in running:
            app = self.world.apps[key]
            if app.shared and all("podIP" in p["status"] for p in pods_of(scene, app)):
                found.setdefault(app.namespace, []).append(key)
        return max(found.values(), key=len, default=[])

    # What happened to whom

    def touched(self, run: Run, until: Entry | None = None) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for entry in self.entries(run):
            if entry is until:
                break
            if entry.what == "event":
                keys = [entry.data["touched"]]
                if keys == ["DaemonSet"]:
                    keys = [app.key for app in self.history.apps if app.kind == "DaemonSet"]
                for key in keys:
                    found.setdefault(key, set()).add(entry.data["event"].what)
        return found

    def first_scene(self, run: Run) -> Scene:
        return next((e.scene for e in self.entries(run) if e.scene), {})

    def listed(self, run: Run) -> list[tuple[Entry, list[dict]]]:
        """The lists of all Pods that the tool was answered, and what was in them, page after page."""
        found: list[tuple[Entry, list[dict]]] = []
        for entry in self.entries(run, "request"):
            if entry.data["kind"] == "lists Pods" and entry.data["code"] == 200:
                items = json.loads(entry.data["content"])["items"]
                found.append((entry, items))
        return found

    def last_list(self, run: Run) -> tuple[Entry, list[dict]] | None:
        """The Pods of the last census: of each namespace that was listed, its last answer."""
        lists: dict[str, tuple[Entry, list[dict]]] = {}
        for entry, items in self.listed(run):
            lists[entry.data["request"].path] = entry, items
        if not lists:
            return None
        entries = sorted(lists.values(), key=lambda found: found[0].at)
        return entries[-1][0], [pod for _, items in entries for pod in items]

    def asked(self, run: Run, until: Entry, app: App) -> list:
        """What was injected when the tool last asked about a workload: while it is upgraded, one of two."""
        found = self.world.version
        for entry in itertools.takewhile(lambda entry: entry is not until, self.entries(run)):
            if entry.data.get("kind") == "dry run":
                request = entry.data["request"]
                labels = json.loads(request.body)["metadata"].get("labels", {})
                if request.path.split("/")[4] == app.namespace and labels.get("app") == app.name:
                    found = entry.data["version"]
        return found if isinstance(found, list) else [found]

    # 3. The exit code

    def check_exit_code(self, run: Run) -> None:
        code, summary, options = run.finished.code, run.summary, self.options
        signals = self.entries(run, "signal")
        if signals and code != 128 + signals[0].data["number"]:
            end = next(e.at for e in self.entries(run, "record") if e.data["record"] == "summary")
            if signals[0].at < end - LATE:
                self.say(3, f"exit code {code} after signal {signals[0].data['number']}")
        if signals:
            return
        if code != summary["exit_code"]:
            self.say(3, f"exit code {code}, in the summary {summary['exit_code']}")
        reasons = []
        for result in run.of("result"):
            key = f"{result['namespace']}/{result['name']}"
            # What stops the run counts: since the plan, the injector has changed.
            if result["outcome"] in FAILURES:
                reasons.append(f"{key} {result['outcome']}")
            is_stopped = result["outcome"] == "not_started"
            if is_stopped and re.match(r"\d{3} |cannot ", result["message"]):
                reasons.append(f"{key} not started: {result['message']}")
            if options.plan is not None and is_stopped and result["code"] not in LIMITS:
                reasons.append(f"{key} not applied: {result['message']}")
            if options.plan is not None and result["outcome"] == "interrupted":
                reasons.append(f"{key} not applied: {result['message']}")
            if options.plan is not None and result["outcome"] == "skipped":
                reasons += [f"{key} not applied"] * ("not_applied" in summary["failed"])
        codes = [r["code"] for r in run.of("skip")]
        if run.confirm:
            reasons += self.lost_at_the_end(run)
            reasons += self.unfinished(run)
            reasons += ["a plan without rows"] * (options.plan == [])
            rows = {(r["kind"], r["namespace"], r["name"]) for r in options.plan or ()}
            reasons += [
                f"{r['name']} not applied: {r['code']}"
                for r in run.of("skip")
                if (r["kind"], r["namespace"], r["name"]) in rows and r["code"] not in APPLIED
            ]
        if "cannot list Pods again" in run.finished.stderr:
            reasons.append("Pods not listed")
        planned = sum(r["pods"]["old"] for r in run.of("plan") if not run.confirm)
        audited = [p for p in summary["leftovers"] or () if p["code"] not in NOT_AUDITED]
        left = planned or audited or "without_pods" in codes
        if options.has("--fail-on-drift") and (left or not self.is_checked(run)):
            reasons.append("drift")
        if not code and reasons:
            self.say(3, f"exit code 0 in spite of {reasons} {summary}")
        if bool(code) != bool(summary["failed"]):
            self.say(3, f"exit code {code}, failed: {summary['failed']}")

    def is_checked(self, run: Run) -> bool:
        """Whether an audit has looked at a Pod, and each name and pattern has matched something."""
        if "no Pods" in run.finished.stderr:
            return False
        counts = Counter()
        for row in run.summary["sidecars"]:
            counts["checked"] += row["up_to_date"] + row["old"]
            counts.update(row["left"])
        return any(counts[code] for code in counts.keys() - set(NOT_AUDITED))

    def unfinished(self, run: Run) -> list[str]:
        """Rollouts of the tool that were never complete, and that this run leaves.

        Whether the tool ever restarted it, its template says.
        """
        if self.options.has("--skip-unhealthy"):
            return []
        lists = self.listed(run)
        scene = lists[0][0].scene if lists else self.first_scene(run)  # with --selector
        found = []
        for row in run.of("skip"):
            obj = scene.get((PLURALS.get(row["kind"], ""), row["namespace"], row["name"]))
            is_left = row["code"] in ("incomplete_rollout", "without_pods", "of_an_earlier_run")
            if is_left and obj and self.is_ours(obj) and "in progress until" not in row["message"]:
                pods = [
                    pod
                    for (plural, namespace, _), pod in scene.items()
                    if (plural, namespace) == ("pods", row["namespace"]) and is_counted(pod)
                ]
                if not self.is_rolled_back(obj, pods):
                    found.append(f"{row['name']}: {row['code']}")
        return found

    def notes_of(self, obj: dict) -> dict[str, str]:
        """The annotations of a Pod template by this tool, by their last word."""
        prefix = (self.options.values("--annotation-prefix") or ["sidecarRollout"])[-1]
        found = obj["spec"]["template"].get("metadata", {}).get("annotations", {})
        return {
            key.rpartition(".")[2]: found[key]
            for key in found
            if key.startswith(f"{prefix}.rollout.")
        }

    def is_ours(self, obj: dict) -> bool:
        """Whether today's Pod template is the one that the tool restarted, and nobody restarted it since."""
        notes, template = self.notes_of(obj), obj["spec"]["template"]
        metadata = template.get("metadata", {})
        annotations = metadata.get("annotations", {})
        restarted = annotations.get(RESTARTED_AT, "")
        if restarted[:19] > notes.get("timestamp", "")[:19]:
            return False
        own = {
            k: v for k, v in annotations.items() if k != RESTARTED_AT and not re.fullmatch(OURS, k)
        }
        parts = json.dumps([own, metadata.get("labels", {}), template["spec"]], sort_keys=True)
        digest = hashlib.sha256(parts.encode()).hexdigest()[:12]
        return notes.get("template", "").startswith(f"{digest} until ")

    def is_rolled_back(self, obj: dict, pods: list[dict]) -> bool:
        """Whether all Pods of its template are younger than the run that restarted it."""
        notes = self.notes_of(obj)
        new = [
            pod["metadata"]["creationTimestamp"]
            for pod in pods
            if notes["timestamp"] in pod["metadata"].get("annotations", {}).values()
        ]
        return bool(new) and min(new) > notes["template"].rpartition(" ")[2]

    def lost_at_the_end(self, run: Run) -> list[str]:
        """Pods of the last list that lost a sidecar, whatever became of their workload.

        Not of one that its team has changed since: whose choice that was, depends on others.
        """
        last = self.last_list(run)
        if not last or self.options.has("--allow-removal"):
            return []
        listed = {pod["metadata"]["uid"] for pod in last[1]}
        found = []
        for app in self.history.apps:
            scene = last[0].scene
            obj = scene.get((PLURALS.get(app.kind, ""), app.namespace, app.name))
            if not obj or not self.options.selects_app(app, kind=False) or not self.is_ours(obj):
                continue
            for pod in pods_of(scene, app):
                if pod["metadata"]["uid"] in listed and self.lost(pod):
                    found.append(f"{place(pod)} lost {sorted(self.lost(pod))}")
        return found

    # 2. Numbers

    def check_texts(self, run: Run) -> None:
        """The text of a run has the numbers of its JSON records."""
        for problem in wrong_numbers(run.text, run.records, self.options.has("--only-drifted")):
            self.say(2, problem)

    def old_pods(
        self, app: App, pods: list[dict], template: dict, version, scene: Scene
    ) -> tuple[int, int]:
        """How many Pods are to be replaced, and how many differ from what they would get."""
        options, names = self.options, self.options.names
        would = self.would(template, version)
        have = [forms(pod, names) for pod in pods]
        old = different = 0
        for pod, found in zip(pods, have, strict=True):
            differs = found != would
            different += differs
            is_old = pod["metadata"]["creationTimestamp"] < self.cutoff
            wanted = differs if options.has("--only-drifted") else bool(found)
            is_wanted = bool(self.lost(pod)) or (wanted and is_old)
            old += is_wanted and not is_below_partition(scene, app, pod)
        return old, different

    def lost(self, pod: dict) -> set[str]:
        """The named sidecars that a Pod lost in a rollout, whoever restarted it since: see its annotation."""
        annotations = pod["metadata"].get("annotations", {})
        notes = [annotations[key] for key in annotations if key.endswith(".rollout.sidecars")]
        words = {word for note in notes for word in note.split(", ") if word}
        have = forms(pod, self.options.names)
        inits = {
            c["name"] for c in pod["spec"].get("initContainers", ()) if "restartPolicy" not in c
        }
        new = inits - {word.partition(" ")[0] for word in words}
        found = set()
        for word in words:
            name, _, is_init = word.partition(" ")
            about = [p for p in self.options.names if fnmatch.fnmatchcase(name, p)]
            is_replaced = is_init and any(fnmatch.fnmatchcase(n, p) for n in new for p in about)
            if about and name not in have and not is_replaced:
                found.add(name)
        return found

    def check_plan(self, run: Run) -> None:
        lists = self.listed(run)
        if not lists:
            return
        summary = run.summary
        records = list(self.entries(run, "record"))
        last = next(e for e in records if e.data["record"] == "summary")
        first = next(iter(records), last)
        pods = self.plan_pods(run)
        touched = self.touched(run, first)
        scene = {**lists[0][0].scene, **{("pods", *place(p).split("/")): p for p in pods}}
        version = self.version_at(run, first)
        if version is None:
            return
        plans = {f"{r['namespace']}/{r['name']}": r for r in run.of("plan")}
        known = {f"{r['namespace']}/{r['name']}": r for r in [*run.of("skip"), *run.of("drift")]}
        for app in self.history.apps:
            template = template_of(scene, app)
            if not template or touched.get(app.key) or not self.options.includes(app.namespace):
                continue
            found = [
                p for p in pods_of(scene, app) if self.options.selects(p["metadata"]["labels"])
            ]
            found = [p for p in found if any(p is item for item in pods)]
            record = plans.get(app.key)
            self.cutoff = self.options.cutoff_of(app, summary["started_before"])[:19]
            old, different = self.old_pods(app, found, template, version, scene)
            if record:
                if record["pods"]["old"] != old:
                    self.say(2, f"plan: {app.key}: {record['pods']['old']} Pods, in fact {old}")
                if record["pods"]["total"] < len(found):
                    self.say(2, f"plan: {app.key} has {record['pods']} Pods, in fact {len(found)}")
                shown = {(s["name"], s["image"]) for s in record["sidecars"]}
                real = {
                    (name, one[1])
                    for p in found
                    for name, one in forms(p, self.options.names).items()
                }
                if shown != real:
                    self.say(2, f"plan: {app.key} has {shown}, in fact {real}")
            elif (
                self.options.has("--only-drifted")
                and different
                and any(forms(p, self.options.names) for p in found)
                and self.options.selects_app(app, kind=False)
                and app.key not in known
                and not any(key.startswith(f"{app.namespace}/{app.name}-") for key in known)
            ):
                self.say(2, f"plan: {app.key} drifted, and is not mentioned")
            elif old and not self.options.has("--only-drifted") and app.key not in known:
                is_selected = self.options.selects_app(app) and app.kind in KINDS_OF
                if is_selected:
                    self.say(2, f"plan: {app.key} has {old} old Pods, and is not mentioned")

    def check_plan_file(self, run: Run) -> None:
        """With --plan, the plan has the workloads of the file alone, in its order; the others are listed."""
        away = [r for r in run.of("plan") if r["downtime"]]
        if self.options.has("--skip-downtime") and away:
            self.say(4, f"--skip-downtime: {away}")
        if self.options.plan is None:
            return
        wanted = [f"{r['namespace']}/{r['name']}" for r in self.options.plan]
        planned = [f"{r['namespace']}/{r['name']}" for r in run.of("plan")]
        listed = {f"{r['namespace']}/{r['name']}" for r in run.of("skip")}
        if planned != [key for key in wanted if key in planned]:
            self.say(2, f"--plan: {planned}, in the file: {wanted}")
        # Of an owner that was not read, the Pods are listed.
        lost = [
            key
            for key in wanted
            if key not in planned and not any(f"{k}-".startswith(f"{key}-") for k in listed)
        ]
        if lost:
            self.say(2, f"--plan: {lost} are in the file, and not mentioned")

    def plan_pods(self, run: Run) -> list[dict]:
        """The Pods of the plan's lists: the first answer of each path."""
        seen: dict[str, list[dict]] = {}
        for entry, items in self.listed(run):
            seen.setdefault(entry.data["request"].path, items)
        return [
            pod
            for items in seen.values()
            for pod in items
            if is_counted(pod) and self.options.selects(pod["metadata"].get("labels", {}))
        ]

    def version_at(self, run: Run, until: Entry):
        """What was injected until then, if that did not change and the injector was well."""
        found = []
        for entry in self.entries(run):
            if entry is until:
                break
            if "version" in entry.data:
                if entry.data["state"] not in ("works",) or isinstance(entry.data["version"], list):
                    return None
                found.append(entry.data["version"])
        return found[0] if found and all(v == found[0] for v in found) else None

    def check_census(self, run: Run) -> None:
        """The last count is that of the last list of Pods."""
        last, summary = self.last_list(run), run.summary
        if "cannot list Pods again" in run.finished.stderr or not last:
            return
        if run.confirm and len(self.listed(run)) < 2:
            return  # after the second signal
        entry, items = last
        names = self.options.names
        pods = [
            p
            for p in items
            if is_counted(p)
            and self.options.includes(p["metadata"]["namespace"])
            and self.options.selects(p["metadata"].get("labels", {}))
        ]
        census: Counter[tuple[str, str]] = Counter()
        for pod in pods:
            for name, one in forms(pod, names).items():
                census[name, one[1]] += 1
        shown: Counter[tuple[str, str]] = Counter()
        if summary["sidecars"] is None:  # the second signal
            return
        for found in summary["sidecars"]:
            shown[found["name"], found["image"]] += found["pods"]
        if not shown and len(self.entries(run, "signal")) > 1:
            return  # it did not wait for the list
        with_any = sum(bool(forms(pod, names)) for pod in pods)
        # Each Pod stands in one row; one without any sidecar only if it lacks one
        is_wrong = not with_any <= shown.total() <= len(pods)
        if is_wrong or any(shown[row] > census[row] for row in shown if row[1]):
            self.say(2, f"census: {dict(shown)}, in fact {dict(census)} in {with_any} Pods")
        for found in summary["sidecars"]:
            if found["up_to_date"] + found["old"] + sum(found["left"].values()) != found["pods"]:
                self.say(2, f"census: {found}")
        if not self.options.has("--only-drifted"):
            return
        first = next((e for e in self.entries(run, "record")), None)
        version = self.version_at(run, last[0])
        if version is None or not first:
            return
        self.check_leftovers(run, entry, pods, version)

    def check_leftovers(self, run: Run, entry: Entry, pods: list[dict], version) -> None:
        """Which Pods are not up to date, one by one, where nobody interfered."""
        summary, names = run.summary, self.options.names
        scene = {**entry.scene, **{("pods", *place(p).split("/")): p for p in pods}}
        shown = {
            f"{left['namespace']}/{left['name']}": left["code"] for left in summary["leftovers"]
        }
        touched = self.touched(run)
        planned = {f"{r['namespace']}/{r['name']}" for r in run.of("plan") if not run.confirm}
        compared = {f"{r['namespace']}/{r['name']}": r["verdict"] for r in run.of("drift")}
        unselected = {f"{r['namespace']}/{r['name']}" for r in run.of("skip")} - compared.keys()
        for app in self.history.apps:
            template = template_of(scene, app)
            if not template or touched.get(app.key) or app.key in unselected | planned:
                continue
            if not self.options.selects_app(app, kind=False):
                continue
            verdict = compared.get(app.key)
            would = self.would(template, version)
            for pod in pods_of(scene, app):
                key = place(pod)
                have = forms(pod, names)
                if pod not in pods or (verdict in ("unknown", "rejected")):
                    continue
                differs = have != would and (bool(have) or verdict in ("missing", "drifted"))
                if verdict is None and not have:
                    differs = False
                if differs and key not in shown:
                    self.say(
                        2,
                        f"leftovers: {key} ({verdict}) is not up to date, and not listed: {sorted(have)}, {sorted(would)}",
                    )
                # What had no Pods at first was not compared, and is listed as that.
                # Neither is what --plan does not select.
                is_unknown = verdict is None and shown.get(key) in ("unknown", *NOT_AUDITED)
                # In the middle of a rollout, it is asked with a Pod of another ReplicaSet.
                is_unknown |= self.history.change == "name of the Pod" and (
                    shown.get(key) in ("incomplete_rollout", "timed_out")
                )
                if key in shown and not differs and not is_unknown:
                    self.say(2, f"leftovers: {key} is listed as {shown[key]}, and is up to date")

    # 1. Results

    def check_results(self, run: Run) -> None:
        log = self.entries(run)
        for at, entry in enumerate(log):
            if entry.what != "result":
                continue
            app = self.world.apps.get(entry.data["key"])
            outcome = entry.data["outcome"].replace(" ", "_")
            if app is None:
                continue
            scenes = [entry.scene] + [
                e.scene
                for e in reversed(log[:at])
                if e.what == "request" and e.data["kind"] == "reads Pods of a workload" and e.scene
            ][:6]
            self.check_restarted(run, entry, app, scenes)
            if outcome in FAILURES and "gate closed" in entry.data["message"]:
                self.say(1, f"{app.key} {outcome}: {entry.data['message']}")
            if outcome not in ("succeeded", "completed_late"):
                continue
            problems = [self.problem(run, entry, app, scene) for scene in scenes]
            if all(problems):
                self.say(1, f"{app.key} {outcome}: {problems[0]}")
            self.check_counts(run, entry, app, scenes)

    def problem(self, run: Run, entry: Entry, app: App, scene: Scene) -> str:
        """What is not true of a success; empty: it is."""
        obj = scene.get((PLURALS[app.kind], app.namespace, app.name))
        if not obj:
            return "it does not exist"
        options, names = self.options, self.options.names
        pods = pods_of(scene, app)
        wanted = wanted_of(obj)
        if len(pods) < wanted:
            return f"{len(pods)} of {wanted} Pods"
        events = self.touched(run, entry).get(app.key, set())
        is_excused = app.broken or bool(
            events & {"Pod becomes unready", "Pod crashes", "scaled up"}
        )
        is_excused |= "unready" in app.pods
        exact = [name for name in names if "*" not in name]
        template = obj["spec"]["template"]
        woulds = [self.would(template, version) for version in self.asked(run, entry, app)]
        if options.has("--allow-removal") and self.was_ignored(run, entry):
            woulds.append({})
        cutoff = (run.summary["started_before"] or NO_CUTOFF)[:19]
        was_there = {obj["metadata"]["uid"] for obj in self.first_scene(run).values()}
        for pod in pods:
            if is_below_partition(scene, app, pod):
                continue
            key = place(pod)
            is_newer = pod["metadata"]["creationTimestamp"] >= cutoff  # not selected
            if is_newer and pod["metadata"]["uid"] in was_there:
                continue
            is_left = not forms(pod, names) and not options.has("--include-missing")
            if is_left and not exact and entry.data["method"] != "restart":
                continue  # not in the plan: see `drifted` in the README
            if not is_ready(pod) and not is_excused:
                return f"{key} is not ready"
            have = forms(pod, names)
            if options.has("--only-drifted"):
                woulds = [would for would in woulds if would == have]
                if not woulds:
                    return f"{key} has {have}, and would get another sidecar"
                continue
            is_new = pod["metadata"]["uid"] not in was_there
            if is_new and not any(set(have) >= set(would) for would in woulds):
                return f"{key} has {sorted(have)}, and would get {sorted(woulds[0])}"
        return ""

    def was_ignored(self, run: Run, until: Entry) -> bool:
        """Whether the injector did not answer at any time, which is the same as a removal."""
        entries = itertools.takewhile(lambda entry: entry is not until, self.entries(run))
        return any(entry.data.get("state") == "ignored" for entry in entries)

    def check_restarted(self, run: Run, entry: Entry, app: App, scenes: list[Scene]) -> None:
        """After a restart, whatever its outcome, new and old Pods are counted as they are."""
        counts, options = entry.data["counts"], self.options
        if not counts or entry.data["method"] != "restart":
            return
        stored = [
            e for e, _, found, _ in self.writes(run) if found is app and e.data["code"] == 200
        ]
        if not stored or options.has("--allow-removal"):
            return
        if "undone" in self.touched(run, entry).get(app.key, set()):
            return  # Pods that were up to date are not to be replaced then
        known = {p["metadata"]["uid"] for p in pods_of(self.scene_before(stored[-1]), app)}
        numbers = [self.numbers(app, known, scene) for scene in scenes]
        shown = tuple(counts[n] for n in ("wanted", "updated", "ready", "lost", "not_created"))
        if shown not in numbers:
            self.say(2, f"{app.key} {entry.data['outcome']} with {counts}, in fact {numbers}")

    def numbers(self, app: App, known: set[str], scene: Scene) -> tuple[int, ...] | None:
        """Wanted, updated, of these ready, lost, not created: of the Pods that a restart replaces."""
        obj = scene.get((PLURALS[app.kind], app.namespace, app.name))
        if not obj:
            return None
        pods = pods_of(scene, app)
        new = [p for p in pods if p["metadata"]["uid"] not in known]
        old = [p for p in pods if p not in new and not is_below_partition(scene, app, p)]
        # What is not injected anymore is lost only where no answer to a dry run has told it.
        is_removed = not self.world.version and not self.world.has_other_scc
        updated = [p for p in new if forms(p, self.options.names) or is_removed]
        wanted = wanted_of(obj)
        kept = len(pods) - len(new) - len(old)
        counted = old[: max(wanted - kept - len(new), 0)]
        ready = [p for p in updated if is_ready(p)]
        lost, missing = len(new) - len(updated), max(wanted - len(pods), 0)
        sum_of_all = len(new) + len(counted) + missing
        return sum_of_all, len(updated), len(ready), lost, missing

    def check_counts(self, run: Run, entry: Entry, app: App, scenes: list[Scene]) -> None:
        """A success counts all Pods of its workload, except below a partition, as updated and ready."""
        counts = entry.data["counts"]
        record = next(r for r in run.of("plan") if f"{r['namespace']}/{r['name']}" == app.key)
        if (
            not counts
            or self.touched(run, entry).get(app.key)
            or app.broken
            or "unready" in app.pods
        ):
            return
        numbers = set()
        for scene in scenes:
            kept = [p for p in pods_of(scene, app) if not is_below_partition(scene, app, p)]
            numbers.add(len(kept))
        if record["method"] == "in_place" or "terminating" in app.pods:  # it came back, updated
            numbers |= {len(pods_of(scene, app)) for scene in scenes}
        if record["method"] != "restart":
            before = self.first_scene(run).get((PLURALS[app.kind], app.namespace, app.name), {})
            # Nothing replaces those that are not wanted
            unwanted = before.get("status", {}).get("numberMisscheduled", 0)
            fewest = record["pods"]["old"]
            if "no longer desired: " in entry.data["message"]:
                fewest -= unwanted
            numbers = set(range(fewest, max(numbers) + 1))
        shown = {counts[name] for name in ("wanted", "updated", "ready")}
        if len(shown) > 1 or not shown & numbers or counts["lost"] + counts["not_created"]:
            self.say(2, f"{app.key} succeeded with {counts}, in fact {numbers} Pods")

    # 6. Peace

    def check_peace(self, run: Run, scene: Scene) -> None:
        """All that the options allow to replace, and whose application is well, is up to date."""
        options = self.options = Words(list(self.history.options))
        if options.has("--max-rollouts") or not run.summary:
            return
        if any(options.has(f) for f in ("--max-duration", "--skip-unhealthy", "--skip-downtime")):
            return
        if "not_started" in run.summary["outcomes"]:
            return  # too many fail, for reasons that stay
        cutoff = (run.summary["started_before"] or NO_CUTOFF)[:19]
        names = options.names
        for app in self.history.apps:
            obj = scene.get((PLURALS.get(app.kind, ""), app.namespace, app.name))
            if not obj or not options.selects_app(app) or not self.can_replace(app, obj, scene):
                continue
            would = self.would(obj["spec"]["template"])
            pods = pods_of(scene, app)
            haves = [forms(pod, names) for pod in pods]
            all_names = {name for have in haves for name in have}
            if not all_names and not options.has("--include-missing"):
                continue
            if all_names - set(would) and not options.has("--allow-removal"):
                continue
            for pod, have in zip(pods, haves, strict=True):
                if is_below_partition(scene, app, pod):
                    continue
                is_old = pod["metadata"]["creationTimestamp"] < cutoff
                if not have and not options.has("--include-missing"):
                    is_old = False
                if options.has("--only-drifted") and is_old and have != would:
                    self.say(6, f"{place(pod)} of {app} has {have}, not {would}")
                if not options.has("--only-drifted") and is_old and have:
                    self.say(6, f"{place(pod)} of {app} is older than {cutoff}")

    def can_replace(self, app: App, obj: dict, scene: Scene) -> bool:
        options, spec = self.options, obj["spec"]
        if app.broken or (options.has("--in-place") and options.has("--only-drifted")):
            return False
        if self.world.has_other_scc and options.has("--only-drifted"):
            return False  # nothing is known
        pods = pods_of(scene, app)
        if self.history.change == "name of the Pod" or any(map(has_value_of_its_own, pods)):
            return False  # two answers differ there, and nothing may prove that all do
        templates = set(map(template_key, [*pods, spec["template"]]))
        is_manual = (
            app.kind in NO_ROLLOUT
            or spec.get("paused")
            or spec.get("updateStrategy", {}).get("type") == "OnDelete"
        )
        wanted = wanted_of(obj)
        away = self.evicted_at_once(obj, wanted) if is_manual else AT_ONCE.get(app.strategy, 0)
        is_careful = app.kind == "StatefulSet" or away >= wanted
        if is_careful and any(map(is_ready, pods)) and self.is_replica_short(app, scene):
            return False
        if is_manual:
            is_possible = app.budget != "blocks" and len(templates) == 1
            is_bare = app.kind in ("ReplicaSet", "ReplicationController")
            is_possible &= not is_bare or obj["metadata"].get("generation") == 1
            for name, _ in SETUPS[self.history.setup]:
                is_named = any(fnmatch.fnmatchcase(name, pattern) for pattern in options.names)
                if self.history.change == "removal" and not is_named:
                    return False  # it would be removed from the Pods, too
            return options.has("--evict") and is_possible and app.kind != "CloneSet"
        if app.strategy == "partition" and len(templates) > 1:
            return False
        # With a controller of Pods that are unready for good, nothing is sure.
        return all(map(is_ready, pods)) and len(pods) == wanted

    def is_replica_short(self, app: App, scene: Scene) -> bool:
        """Whether another one of its kind behind the shared Service lacks Pods: it waits for that one."""
        for other in self.history.apps:
            is_replica = other.shared and app.shared and other.key != app.key
            is_replica &= (other.kind, other.namespace) == (app.kind, app.namespace)
            obj = scene.get((PLURALS.get(other.kind, ""), other.namespace, other.name))
            if is_replica and obj and sum(map(is_ready, pods_of(scene, other))) < wanted_of(obj):
                return True
        return False


def has_value_of_its_own(pod: dict) -> bool:
    """Whether the injector wrote a value into a Pod that no other one has."""
    return any(f'"{name}"' in json.dumps(pod) for name in ("START_TIME", "INSTANCE", "TICK"))


def template_key(pod: dict) -> tuple[str, str]:
    """What a change of a template changes here, of a Pod or a template."""
    notes = pod["metadata"].get("annotations", {})
    return mode_of(pod["spec"]), notes.get("kubectl.kubernetes.io/restartedAt", "")


def mode_of(spec: dict) -> str:
    (app,) = (c for c in spec["containers"] if c["name"] == "app")
    return next(v["value"] for v in app["env"] if v["name"] == "MODE")
