"""A history: a cluster, a change of what is injected, options, and what happens during the runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

KINDS = {  # how often, of 100; with rollouts, then those whose Pods can only be evicted, then others
    "Deployment": 34,
    "StatefulSet": 21,
    "DaemonSet": 9,
    "ReplicaSet": 8,
    "ReplicationController": 7,
    "CloneSet": 8,
    "Job": 5,
    "static": 4,
    "bare": 4,
}
NAMESPACES = ("shop", "pay")
STRATEGIES: dict[str, dict[str, dict]] = {  # fields of the spec, by name
    "Deployment": {
        "default": {},
        "surge 1": {
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            }
        },
        "surge 100%": {
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": "50%"},
            }
        },
        "surge 0, maxUnavailable 2": {
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2},
            }
        },
        "Recreate": {"strategy": {"type": "Recreate"}},
        "paused": {"paused": True},
    },
    "StatefulSet": {
        "OrderedReady": {},
        "Parallel": {"podManagementPolicy": "Parallel"},
        "partition": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
        },
        "OnDelete": {"updateStrategy": {"type": "OnDelete"}},
        "OnDelete, Parallel": {
            "updateStrategy": {"type": "OnDelete"},
            "podManagementPolicy": "Parallel",
        },
    },
    "DaemonSet": {
        "RollingUpdate": {},
        "maxUnavailable 2": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}
        },
        "OnDelete": {"updateStrategy": {"type": "OnDelete"}},
    },
}
PODS = ("old", "new", "lacking", "unready", "terminating")  # how one Pod is at the beginning
SECRETS = ("hunter2-in-env", "hunter2-in-url", "hunter2-in-args", "hunter2-new")


@dataclass(frozen=True)
class App:
    """A workload, and how its Pods are at the beginning."""

    kind: str
    namespace: str
    name: str
    replicas: int = 2
    strategy: str = ""
    pods: tuple[str, ...] = ()  # of PODS, by their order; the others are old
    pending: bool = False  # its template was changed, and not rolled out
    broken: bool = False  # its application never becomes ready
    injected: bool = True  # no opt-out
    native: bool = False
    service: bool = False
    shared: bool = False  # it is behind a Service that others are behind, too
    budget: str = ""  # `allows` or `blocks`
    annotation: str = ""  # `workload`, `template`: it has rollout=never there

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        words = [self.kind, self.key, f"replicas={self.replicas}", self.strategy, *self.pods]
        words += [
            name
            for name in ("pending", "broken", "native", "service", "shared")
            if getattr(self, name)
        ]
        words += [] if self.injected else ["opt-out"]
        words += [f"budget {self.budget}"] if self.budget else []
        words += [f"rollout=never in its {self.annotation}"] if self.annotation else []
        return " ".join(filter(None, words))


SETUPS = {  # (name, position) of the sidecars that are injected
    "one": (("istio-proxy", "regular"),),
    "native": (("istio-proxy", "native"),),
    "with init": (("istio-proxy", "regular"), ("istio-init", "init")),
    "two injectors": (("istio-proxy", "regular"), ("vault-agent", "native")),
}
CHANGES = (
    "image",
    "image",
    "environment",
    "another container",
    "position",
    "random value",
    "value per Pod",
    "name of the Pod",
    "time",
    "random order",
    "removal",
    "nothing",
)

# What may happen, and which of it needs the embedded API server
POD_EVENTS = (
    "Pod dies",
    "Pod is evicted",
    "Pod becomes unready",
    "Pod becomes ready",
    "Pod crashes",
)
WORKLOAD_EVENTS = (
    "scaled up",
    "scaled down",
    "undone",
    "paused",
    "resumed",
    "restarted",
    "template changed",
    "deleted",
    "recreated",
    "owner applies",
)
KUBELET_EVENTS = ("Pods start late",)
GATE_EVENTS = ("gate closes",)  # for longer than --timeout
INJECTOR_EVENTS = (
    "injector ignored",
    "injector fails",
    "injector denies",
    "injector hangs",
    "injector half upgraded",
    "injector upgraded again",
    "injector well",
)
# No sidecar, or another one than a dry run has told
WORST = (
    "injector ignored",
    "injector ignored",
    "injector half upgraded",
    "injector upgraded again",
)
# What only the embedded cluster has; the first of them stays for the whole history
RULE_EVENTS = ("another SCC", "node is tainted", "operator replaces Pods", "writes are refused")
API_EVENTS = (
    "API server away",
    "API server slow",
    "answers 409",
    "answers 429",
    "answers 500",
    "answers 503",
    "answer lost",
    "request lost",
    "token expires",
)
# Between two Pods of a batch
BATCH_EVENTS = (
    "template changed",
    "recreated",
    "scaled down",
    "Pod becomes unready",
    "injector ignored",
    "answers 403",
    "answers 500",
    "request lost",
    "SIGINT",
)
# What an authorization webhook that was away for a moment refuses, after the plan
MOMENTS_OF_403 = ("patch", "eviction", "image change", "reads Pods of a workload", "kubectl reads")
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
# Which records of the dry run stand in the file of --plan
PLANS = ("all", "backwards", "every other one", "none selected", "no plan records")
EVENTS = (
    *POD_EVENTS,
    *WORKLOAD_EVENTS,
    *KUBELET_EVENTS,
    *GATE_EVENTS,
    *INJECTOR_EVENTS,
    *API_EVENTS,
    *RULE_EVENTS,
    *SIGNALS,
    "kill -9",
)
REQUESTS = (  # of the tool, right after which something happens
    "lists Pods",
    "lists workloads",
    "reads a workload",
    "reads Pods of a workload",
    "dry run",
    "patch",
    "eviction",
    "image change",
    "kubectl reads",
)


@dataclass(frozen=True)
class Event:
    """What happens, and when: so many seconds after the start, or right after a request."""

    what: str
    target: int = 0  # a number of a workload or Pod
    request: str = ""  # one of REQUESTS
    number: int = 0  # how many of them come first
    seconds: float = 0.0

    def __str__(self) -> str:
        when = f"after {self.seconds:.1f} s"
        if self.request:
            when = f"right after request {self.number + 1} of: {self.request}"
        return f"{self.what} ({self.target}) {when}"


@dataclass(frozen=True)
class History:
    seed: int
    apps: tuple[App, ...]
    setup: str = "one"
    change: str = "image"
    options: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    plan: str = ""  # one of PLANS: the run that applies gets the records of the dry run by --plan
    dropped: str = ""  # an option of the dry run that the run with --plan does not have
    rerun: str = ""  # the same command again, before any repair: `same`, or after an app `breaks`

    @property
    def lines(self) -> list[str]:
        """The history as a list for people."""
        return [
            f"seed {self.seed}: sidecars: {self.setup}; change: {self.change}",
            *(f"  {app}" for app in self.apps),
            f"  options: {' '.join(self.options)}"
            + (f" (--plan: {self.plan}" * bool(self.plan))
            + (f", without {self.dropped}" * bool(self.dropped))
            + (")" * bool(self.plan))
            + (f" (rerun: {self.rerun})" * bool(self.rerun)),
            *(f"  {event}" for event in self.events),
        ]

    def has(self, option: str) -> bool:
        return any(word.split("=")[0] == option for word in self.options)

    def value(self, option: str, default: str = "") -> str:
        found = [w.partition("=")[2] for w in self.options if w.split("=")[0] == option]
        return found[-1] if found else default

    def values(self, option: str) -> list[str]:
        return [w.partition("=")[2] for w in self.options if w.split("=")[0] == option]

    @property
    def names(self) -> list[str]:
        return self.values("--sidecar-container-name")

    @property
    def workloads(self) -> list[str]:
        return [word for word in self.options if not word.startswith("-")]


def an_app(chance: random.Random, number: int, kinds: dict[str, int] = KINDS) -> App:
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    strategy = chance.choice(list(STRATEGIES.get(kind, {"": {}})))
    replicas = (
        chance.choice((0, 1, 1, 2, 2, 2, 3, 4)) if kind not in ("Job", "static", "bare") else 1
    )
    has_template = kind not in ("Job", "static", "bare")
    states = [
        chance.choices(PODS, (70, 12, 9, 5, 4))[0] if chance.random() < 0.5 else "old"
        for _ in range(replicas * has_template)
    ]
    if chance.random() < 0.06:
        states = ["lacking"] * len(states)
    return App(
        kind,
        chance.choice(NAMESPACES),
        f"{chance.choice(('web', 'api', 'db'))}-{number}",
        replicas,
        strategy,
        tuple(states) if {*states} - {"old"} else (),
        pending=has_template and chance.random() < 0.12,
        broken=has_template and chance.random() < 0.06,
        injected=chance.random() > 0.06,
        native=chance.random() < 0.1,
        service=chance.random() < 0.3,
        budget=chance.choice(("allows", "allows", "blocks")) if chance.random() < 0.2 else "",
        annotation=chance.choice(("workload", "template")) if chance.random() < 0.08 else "",
    )


def some_options(chance: random.Random, apps: tuple[App, ...], setup: str) -> tuple[str, ...]:
    """Options that go together; nearly each of them in a part of the histories."""

    def maybe(share: float, *words: str) -> list[str]:
        return [chance.choice(words)] if chance.random() < share else []

    names = [name for name, _ in SETUPS[setup]]
    if any(name.startswith("istio-") for name in names) and chance.random() < 0.25:
        names = ["istio-*"] + [name for name in names if not name.startswith("istio-")]
    elif chance.random() < 0.2:
        names = names[:1]
    found = [f"--sidecar-container-name={name}" for name in names]
    app = chance.choice(apps)
    drifted = chance.random() < 0.65
    named: list[str] = []
    if chance.random() < 0.12:
        kind = app.kind.lower()
        named = [f"{kind}/{app.name}"] if kind in ("deployment", "statefulset", "daemonset") else []
        named += maybe(0.3, "deployment/*", "sts/db-*")
    found += named
    found += maybe(0.7, "--include-statefulset") + maybe(0.6, "--include-daemonset")
    if not named and found[-1].startswith("--include") and chance.random() < 0.08:
        found += ["--exclude-deployment"]
    found += maybe(
        0.1, "--include-namespace=shop", "--include-namespace=pay", "--include-namespace=s*"
    )
    if not any(word.startswith("--include-namespace") for word in found):
        found += maybe(0.08, "--all-namespaces") + maybe(0.1, "--exclude-namespace=pay")
    found += maybe(0.06, f"--selector=app={app.name}", "--selector=app!=web-0")
    found += maybe(0.12, "--exclude-annotation=example.com/rollout=never")
    found += maybe(0.05, "--include-annotation=example.com/rollout")
    found += maybe(0.7, "--only-started-before={past}")
    found += maybe(0.1, "--skip-unhealthy")
    found += maybe(0.5, "--evict")
    if "--evict" in found:
        found += maybe(0.3, "--max-unavailable=2", "--max-unavailable=3", "--max-unavailable=50%")
    if drifted:
        found += ["--only-drifted"]
        found += maybe(0.3, "--include-missing") + maybe(0.2, "--allow-removal")
        found += maybe(0.3, "--fail-on-drift") + maybe(0.4, "--in-place")
        found += maybe(0.1, "--include-config")
        if "--include-config" in found:
            found += maybe(0.5, "--ignore-config=mesh")
    found += maybe(0.6, *(f"--parallel-rollouts={n}" for n in ("2", "5", "50%")))
    found += maybe(0.12, "--max-rollouts=2", "--max-rollouts=50%")
    found += maybe(0.15, "--max-failures=1", "--max-failures=3", "--max-failures=30%")
    found += maybe(0.06, "--max-duration=1s", "--max-duration=60s")
    found += maybe(0.1, "--gate=true", "--gate={gate}")
    found += maybe(0.12, "--soak=1s")
    found += maybe(0.06, "--annotation-prefix=example.com/sidecars")
    found += maybe(0.06, "--rollout-reason=tests")
    found += maybe(0.5, "--log-format=json") + maybe(
        0.08, "--log-level=debug", "--log-level=warning"
    )
    found += maybe(0.05, "--context=embedded")
    more = random.Random(str(apps))  # of the same history, so that older seeds stay what they were
    found += ["--skip-downtime"] * (more.random() < 0.1)
    return (*found, f"--timeout={chance.choice((4, 6))}s")


def some_events(chance: random.Random, changes_images: bool) -> tuple[Event, ...]:
    if chance.random() < 0.25:
        return ()
    if chance.random() < 0.2:  # the worst moment: between the last dry run and a new Pod
        request = chance.choice(("patch", "patch", "eviction", "reads Pods of a workload"))
        return (Event(chance.choice(WORST), request=request, number=chance.choice((0, 0, 1, 2))),)
    found = []
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        group = chance.choices(
            (
                POD_EVENTS,
                WORKLOAD_EVENTS,
                KUBELET_EVENTS,
                INJECTOR_EVENTS,
                API_EVENTS,
                SIGNALS,
                ("kill -9",),
            ),
            (24, 28, 4, 20, 22, 8, 2),
        )[0]
        event = Event(chance.choice(group), chance.randrange(1000))
        if group is WORKLOAD_EVENTS and chance.random() < 0.25:  # these need a certain workload
            event = replace(event, what=chance.choice(("undone", "resumed")))
        if chance.random() < 0.65:
            shares = (4, 2, 6, 6, 6, 8, 6, 4, 4)
            if event.what in INJECTOR_EVENTS:  # it matters between a dry run and a new Pod
                shares = (1, 0, 4, 12, 4, 8, 6, 2, 2)
            request = chance.choices(REQUESTS, shares)[0]
            if event.what == "undone":  # there must have been a rollout
                request = chance.choice(("kubectl reads", "reads Pods of a workload"))
            if changes_images and chance.random() < 0.5:
                request = "image change"
            number = min(int(chance.expovariate(0.7)), 12)
            event = replace(event, request=request, number=number)
        else:
            event = replace(event, seconds=round(chance.uniform(0, 1.5), 2))
        found.append(event)
        if event.what in SIGNALS and chance.random() < 0.7:
            found.append(replace(event, seconds=event.seconds + 0.3, request=""))
    return tuple(found)


def without_kills(events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(event for event in events if event.what != "kill -9")


def a_history(seed: int) -> History:
    chance = random.Random(seed)
    count = min(3 + int(chance.expovariate(0.25)), 30)
    apps = tuple(an_app(chance, number) for number in range(count))
    setup = chance.choice(list(SETUPS))
    options = some_options(chance, apps, setup)
    change = chance.choice(CHANGES)
    changes_images = change == "image" and "--in-place" in options
    events = some_events(chance, changes_images)
    found = History(seed, apps, setup, change, options, events)
    if chance.random() < 0.2:
        found = replace(found, plan=chance.choices(PLANS, (8, 6, 6, 1, 1))[0])
    found = with_more(found, random.Random(f"more of {seed}"))
    found = with_rules(found, random.Random(f"rules of {seed}"))
    found = with_memory(found, random.Random(f"memory of {seed}"))
    return with_services(found, random.Random(f"services of {seed}"))


def with_more(found: History, chance: random.Random) -> History:
    """Return a history with what came later; older seeds stay what they were otherwise."""
    is_alone = all(event.what != "kill -9" for event in found.events)
    if found.plan and chance.random() < 0.3:
        may_go = [w for w in found.options if w in ("--evict", "--in-place", "--include-missing")]
        found = replace(found, dropped=chance.choice([*may_go, "--include-statefulset"]))
    if is_alone and chance.random() < 0.25:
        found = replace(found, rerun=chance.choice(("same", "breaks")))
    if is_alone and chance.random() < 0.1:
        moment = chance.choice(MOMENTS_OF_403)
        event = Event("answers 403", request=moment, number=chance.randrange(3))
        found = replace(found, events=(*found.events, event))
    if is_alone and "--evict" in found.options and chance.random() < 0.3:
        event = Event(chance.choice(BATCH_EVENTS), chance.randrange(1000), "eviction")
        event = replace(event, number=chance.choice((0, 0, 1, 2)))
        more = (event, replace(event, request="", seconds=0.2)) if "SIG" in event.what else (event,)
        options = [word for word in found.options if not word.startswith("--max-unavailable")]
        options.append(chance.choice(("--max-unavailable=2", "--max-unavailable=100%")))
        found = replace(found, events=(*found.events, *more), options=tuple(options))
    return found


def with_rules(found: History, chance: random.Random) -> History:
    """Return a history with what each rule of evictions, writes and answers is about."""
    if any(event.what == "kill -9" for event in found.events):
        return found
    target = chance.randrange(1000)
    number = chance.choice((0, 0, 0, 1, 2))
    request = chance.choice(("eviction", "patch", "reads Pods of a workload"))
    events: tuple[Event, ...] = ()
    what = chance.choices(
        ("", "another SCC", "node is tainted", "operator", "signals", "scaled down", "no answer"),
        (55, 3, 8, 8, 10, 8, 8),
    )[0]
    if what == "another SCC":
        events = (Event(what, seconds=-1.0),)  # from the beginning
    elif what == "node is tainted":
        events = (Event(what, target, request, number),)
    elif what == "operator":
        events = (Event("operator replaces Pods", target, "lists workloads"),)
    elif what == "signals":  # a write that is refused, and the two signals around the next try
        write = chance.choice(("patch", "eviction", "image change"))
        refused = Event("writes are refused", target, "lists Pods")
        events = (refused, Event("SIGINT", request=write, number=number))
        events += (Event("SIGTERM", request=write, number=number + chance.choice((0, 1))),)
    elif what == "scaled down":
        events = (Event(what, target, "eviction", number),)
    elif what == "no answer":
        fails = chance.choice(("injector fails", "injector hangs", "answers 500"))
        events = (
            Event(fails, target, "dry run", number + 1),
            Event("Pod crashes", target, request),
        )
    return replace(found, events=(*found.events, *events))


def with_memory(found: History, chance: random.Random) -> History:
    """Return a history with what a run must remember, or must not take for something else."""
    if any(event.what == "kill -9" for event in found.events):
        return found
    target = chance.randrange(1000)
    number = chance.choice((0, 0, 1, 2))
    write = chance.choice(("patch", "patch", "eviction", "image change"))
    after = chance.choice(("kubectl reads", "reads Pods of a workload"))
    options, events, rerun = list(found.options), (), found.rerun
    what = chance.choices(
        ("", "lost, and applied", "lost, and restarted", "late", "gate", "upgraded twice"),
        (50, 12, 12, 8, 10, 8),
    )[0]
    if what.startswith("lost"):
        then = "owner applies" if what == "lost, and applied" else "restarted"
        ignored = Event("injector ignored", request=write, number=number)
        events = (ignored, *(Event(then, target + n, after, number + n) for n in range(3)))
        rerun = "same"
    elif what == "late":  # beside a limit: all may be complete when they are rechecked
        options = [w for w in options if not w.startswith(("--max-failures", "--parallel"))]
        options += ["--parallel-rollouts=5", chance.choice(("--max-failures=2", "--soak=1s"))]
        events = (Event("Pods start late", request="lists workloads"),)
    elif what == "gate":
        options = [word for word in options if not word.startswith("--gate")] + ["--gate={gate}"]
        writes = ("patch", "eviction", "image change")
        events = tuple(Event("gate closes", request=name, number=number) for name in writes)
    elif what == "upgraded twice":  # between two Pods of a workload
        more = ("--evict", "--only-drifted")
        options += [word for word in more if word not in options]
        events = tuple(
            Event("injector upgraded again", request="eviction", number=n) for n in (0, 1)
        )
    return replace(found, options=tuple(options), events=(*found.events, *events), rerun=rerun)


def with_services(found: History, chance: random.Random) -> History:
    """Return a history in which some workloads are behind the same Service."""
    if chance.random() < 0.6:
        return found
    apps = tuple(replace(app, shared=chance.random() < 0.6) for app in found.apps)
    options = [word for word in found.options if not word.startswith("--parallel-rollouts")]
    return replace(found, apps=apps, options=(*options, "--parallel-rollouts=5"))


def shorter(history: History):
    """Yield histories with one part less, the largest parts first."""
    for name in ("events", "apps", "options"):
        parts = getattr(history, name)
        sizes = [size for size in (len(parts) // 2, 1) if size]
        for size in dict.fromkeys(sizes):
            for start in range(0, len(parts), size):
                rest = (*parts[:start], *parts[start + size :])
                has_name = any("--sidecar-container-name" in str(word) for word in rest)
                if (name != "options" or has_name) and (rest or name != "apps"):
                    yield replace(history, **{name: rest})
    for name in ("dropped", "rerun", "plan"):
        if getattr(history, name) and not (name == "plan" and history.dropped):
            yield replace(history, **{name: ""})
    for number, app in enumerate(history.apps):
        plain = App(app.kind, app.namespace, app.name, app.replicas, app.strategy)
        if app != plain:
            yield replace(
                history, apps=(*history.apps[:number], plain, *history.apps[number + 1 :])
            )


def records_of_plan(plan: str, records: list[dict]) -> list[dict]:
    """The records of a dry run that a person leaves in the file, in their order."""
    if plan == "backwards":
        return records[::-1]
    if plan == "every other one":
        return [r for number, r in enumerate(records) if r["record"] != "plan" or number % 2]
    if plan == "none selected":
        return [{**r, "selected": False} if r["record"] == "plan" else r for r in records]
    if plan == "no plan records":
        return [r for r in records if r["record"] != "plan"]
    return records


__all__ = ["App", "Event", "History", "a_history", "field", "shorter"]
