"""Play many random histories, and print what was not true in them: python -m histories [--seeds=FIRST-LAST]

    PYTHONPATH=tests .venv/bin/python -m histories --seeds=0-4999 --jobs=6   # a table of what they covered at the end
    PYTHONPATH=tests .venv/bin/python -m histories --seeds=17 --shorten      # one of them, and a shorter history that fails, too

See __init__.py for what must be true.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS.parent / "sidecar-rollout.py"
sys.path.insert(0, str(TESTS))

if TYPE_CHECKING:
    from histories.broken import Seen


def load_tool(path: Path | str = SCRIPT) -> ModuleType:
    """The script as a module, for a process of its own."""
    os.environ |= {"KUBERC": "off", "KUBECACHEDIR": tempfile.mkdtemp(prefix="history-cache-")}
    spec = importlib.util.spec_from_file_location("sidecar_rollout", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sidecar_rollout"] = module
    spec.loader.exec_module(module)
    return module


def play_all(seeds: range, is_shortened: bool, output: str) -> None:
    """Play histories one after the other; write a line of JSON for each."""
    from histories import a_history, play, shorten

    tool = load_tool()
    with open(output, "a") as lines:
        for seed in seeds:
            history = a_history(seed)
            began = time.monotonic()
            try:
                played = play(history, tool)
            except Exception:
                lines.write(json.dumps({"seed": seed, "error": traceback.format_exc()}) + "\n")
                lines.flush()
                continue
            found = {
                "seed": seed,
                "seconds": round(time.monotonic() - began, 1),
                "violations": list(map(str, played.violations)),
                "covered": played.covered,
            }
            if played.violations:
                found["history"] = history.lines
                found["requests"] = played.requests
                found["texts"] = [run.text for run in played.runs]
                found["logs"] = [run.finished.stderr for run in played.runs]
            if played.violations and is_shortened:
                found["shorter"] = shorten(history, tool, played.violations[0].point).lines
            lines.write(json.dumps(found) + "\n")
            lines.flush()


def mutate(seen: Seen) -> ModuleType:
    """The script with a mutation, as a module."""
    text = SCRIPT.read_text()
    if text.count(seen.old) != 1:
        raise SystemExit(f"{seen.name}: its text does not occur once in the script")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as changed:
        changed.write(text.replace(seen.old, seen.new))
        changed.flush()
        return load_tool(changed.name)


def is_noticed(seed: int) -> bool:
    """Whether a history violates the point of the mutation of this process."""
    from histories import a_history, play

    seen, tool = MUTATED[0]
    return any(
        violation.point == seen.point for violation in play(a_history(seed), tool).violations
    )


MUTATED: list[tuple[Seen, ModuleType]] = []  # of this process


def try_mutations(most: int, word: str, jobs: int) -> int:
    """Show in how many histories each mutation of the script is noticed, without any other test."""
    from histories.broken import SEEN

    missed = 0
    for seen in (seen for seen in SEEN if word in seen.name):
        MUTATED[:] = [(seen, mutate(seen))]
        pool = multiprocessing.get_context("fork").Pool(jobs)
        size = 4 * jobs  # to its end: the tool's handlers keep SIGTERM from ending a process
        parts = (range(first, min(first + size, most)) for first in range(0, most, size))
        count = next((part.stop for part in parts if any(pool.map(is_noticed, part, 1))), None)
        pool.close()
        pool.join()
        missed += count is None
        where = f"noticed within {count}" if count else f"MISSED in {most}"
        print(f"{seen.point}  {where:20}  {seen.name}", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="FIRST-LAST, or one")
    parser.add_argument("--jobs", type=int, default=6, help="processes (default: 6)")
    parser.add_argument("--shorten", action="store_true", help="print a shorter history, too")
    parser.add_argument("--output", help="a file for a line of JSON for each history")
    parser.add_argument(
        "--break", metavar="WORD", nargs="?", const="", help="show which faults are noticed"
    )
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if getattr(given, "break") is not None:
        return try_mutations(200, getattr(given, "break"), given.jobs)
    output = given.output or tempfile.mktemp(prefix="histories-", suffix=".jsonl")
    if given.part is not None:
        play_all(seeds[given.part :: given.jobs], given.shorten, output)
        return 0
    words = [sys.executable, __file__, f"--seeds={given.seeds}", f"--jobs={given.jobs}"]
    words += [f"--output={output}"] + ["--shorten"] * given.shorten
    began = time.monotonic()
    children = [subprocess.Popen([*words, f"--part={n}"]) for n in range(given.jobs)]
    for child in children:
        child.wait()
    found = [json.loads(line) for line in Path(output).read_text().splitlines()]
    covered: Counter = Counter()
    failed = 0
    for one in found:
        covered.update(one.get("covered", {}))
        if one.get("error") or one["violations"]:
            failed += 1
            print(f"--- seed {one['seed']}")
            print(one.get("error") or "\n".join([*one["violations"][:4], *one["history"]]))
            print("\n".join(["shorter:", *one["shorter"]]) if "shorter" in one else "")
    for name, count in sorted(covered.items()):
        print(f"{count:8} {name}")
    seconds = time.monotonic() - began
    print(f"{len(found)} histories in {seconds:.0f} s, {failed} with violations; details: {output}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
