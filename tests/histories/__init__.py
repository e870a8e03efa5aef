"""Random histories, compared with what is true in the cluster.

A seed gives a cluster, a change of what is injected, options, and what happens during the runs (cases.py). It is played
on the embedded cluster (play.py), and an oracle that sees only the cluster's objects says what was not true (oracle.py):

1. A success is one: its Pods are there, are ready, and have what is injected now.
2. Each number of the plan, the results and the summary is that of the cluster, as JSON and as text.
3. The exit code is what the README says.
4. Nothing is written that should not be.
5. It ends, and leaves nothing behind.
6. When there is peace, at most three more runs finish the work, and another one writes nothing.
7. No secret is shown.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType

from clusters.control_plane.remote import RemoteCluster, Shared
from clusters.embedded import EmbeddedCluster

from .cases import History, a_history, records_of_plan, shorter
from .oracle import Oracle, Violation
from .play import Run, World, is_write, printed_commands
from .remote import RemoteWorld, served

PEACE = 3  # more runs until all is done


@dataclass
class Played:
    """A history that has been played."""

    history: History
    violations: list[Violation]
    covered: Counter = field(default_factory=Counter)
    runs: list[Run] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # in their order


def play(history: History, tool: ModuleType, shared: Shared | None = None) -> Played:
    """Play a history, and return what was not true in it.

    `shared` is the real control plane, if it is to be played there: see remote.py.
    """
    with RemoteCluster(shared) if shared else EmbeddedCluster() as cluster:
        world = RemoteWorld(history, cluster) if shared else World(history, cluster)
        try:
            return play_on(world, tool)
        finally:
            shutil.rmtree(world.folder, ignore_errors=True)


def play_on(world: World, tool: ModuleType) -> Played:
    history, cluster = world.history, world.cluster
    world.prepare()
    oracle = Oracle(world)
    runs = []

    def run(options: list[str], events=()) -> Run:
        found = world.run(tool, options, events)
        runs.append(found)
        oracle.judge(found)
        return found

    options = list(history.options)
    first = run(options)
    commands = printed_commands(first.text)
    confirmed = [*options, "--confirm=true"]
    if commands and history.seed % 2:
        confirmed = without_program(commands[0])
    if history.plan:
        gone = history.dropped or "none"
        needs = "--max-unavailable" if gone == "--evict" else "none"
        confirmed = [word for word in confirmed if not word.startswith((gone, needs))]
        confirmed = [*confirmed, f"--plan={write_plan(world, first)}"]
    last = run(confirmed, history.events)
    if last.killed:
        world.rest(0.5)
        last = run(confirmed)
    if history.rerun and not oracle.found and last.finished.code != 2:
        world.rest(0.3)
        if history.rerun == "breaks":
            world.break_one()
        last = run(confirmed)
    if not oracle.found and last.finished.code != 2:
        same = commands[0] if commands else []
        make_peace(world, oracle, run, last, without_program(same) if same else options)
    if cluster.server.unexpected:
        oracle.found.append(Violation(0, f"unexpected: {cluster.server.unexpected[0]}"))
    requests = [e.data["request"] for e in world.log if e.what == "request" and e.data["kind"]]
    shown = [f"{r.method} {r.path}{'?dryRun' * ('dryRun' in r.query)}" for r in requests]
    return Played(history, oracle.found, covered(history, world, runs), runs, shown)


def write_plan(world: World, dry_run: Run) -> str:
    """Write what a person would approve of a dry run to a file; return its path."""
    path = f"{world.folder}/plan.jsonl"
    records = records_of_plan(world.history.plan, dry_run.records)
    with open(path, "w") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)
    return path


def without_program(words: list[str]) -> list[str]:
    """A printed command's options, without kubectl's path, which World.run adds, and without --plan."""
    at = words.index("--kubectl")
    rest = words[:at] + words[at + 2 :]
    return [word for word in rest if not word.startswith("--plan")]


def make_peace(world: World, oracle: Oracle, run, last: Run, same: list[str]) -> None:
    """Rerun what was printed, or the same command, until nothing changes; then all must be up to date."""
    if "--confirm=true" not in same:
        same = [*same, "--confirm=true"]
    if any(word.startswith(("--max-duration=1s", "--max-rollouts")) for word in same):
        return
    is_endless = not any(w.startswith(("--only-started", "--only-drifted")) for w in same)
    for number in itertools.count():
        world.make_peace()
        printed = [without_program(words) for words in printed_commands(last.text)]
        began = len(world.log)
        for options in printed or [same]:
            last = run(options)
        wrote = any(
            is_write(entry.data["request"])
            for entry in world.log[began:]
            if entry.what == "request"
            and entry.data["kind"] in ("patch", "eviction", "image change")
            and entry.data["code"] < 300
            and not is_hopeless(world, entry.data["request"].path)
        )
        if not wrote or is_endless:
            break
        if number >= PEACE:
            oracle.say(6, f"still writes after {PEACE} more runs: {last.text[-600:]}")
            return
    oracle.check_peace(last, world.scene())


def is_hopeless(world: World, path: str) -> bool:
    """Whether a write is about a workload whose application does not start, so that it is tried again and again."""
    namespace, _, name = path.partition("/namespaces/")[2].split("/")[:3]
    is_removed = world.history.change == "removal"  # no dry run can tell it of a custom resource
    apps = world.history.apps
    broken = [app for app in apps if app.broken or (is_removed and app.kind == "CloneSet")]
    return any(f"{namespace}/{name}-".startswith(f"{app.key}-") for app in broken)


def covered(history: History, world: World, runs: list[Run]) -> Counter:
    """What this history had in it, for the table of coverage."""
    found = [f"kind {app.kind}" for app in history.apps]
    found += [f"strategy {app.kind} {app.strategy}" for app in history.apps if app.strategy]
    found += [f"Pod {state}" for app in history.apps for state in app.pods]
    found += [f"sidecars {history.setup}", f"change {history.change}"]
    found += [
        f"option {word.split('=')[0] if word.startswith('-') else 'TYPE/NAME'}"
        for word in history.options
    ]
    found += [f"plan file {history.plan}"] if history.plan else []
    found += [f"plan file without {history.dropped}"] if history.dropped else []
    found += [f"rerun {history.rerun}"] if history.rerun else []
    found += [f"event {event.what}" for event in world.fired]
    found += [f"moment {event.request or 'at random'}" for event in world.fired]
    found += [f"outcome {r['outcome']}" for run in runs for r in run.of("result")]
    found += [f"method {r['method']}" for run in runs for r in run.of("plan")]
    found += [f"verdict {r['verdict']}" for run in runs for r in run.of("drift")]
    found += [f"exit code {run.finished.code}" for run in runs]
    return Counter(found)


def shorten(
    history: History,
    tool: ModuleType,
    point: int,
    tries: int = 5,
    seconds: float = 300,
    shared: Shared | None = None,
) -> History:
    """Return a shorter history with a violation of the same point, as short as time allows."""
    deadline = time.monotonic() + seconds

    def fails(candidate: History) -> bool:
        for _ in range(tries):
            if time.monotonic() >= deadline:
                return False
            try:
                played = play(candidate, tool, shared)
            except Exception:  # without this part it cannot be played
                return False
            if any(v.point == point for v in played.violations):
                return True
        return False

    while True:
        found = next((h for h in shorter(history) if fails(h)), None)
        if found is None:
            return history
        history = found


__all__ = ["History", "Played", "Violation", "a_history", "play", "served", "shorten"]
