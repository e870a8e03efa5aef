"""A nightly pipeline, on JSON records and exit codes alone: audit, plan, two waves, and may the old control plane go?

pipeline.py IMAGE PLAN-FILE COMMAND...: prints one line of JSON. IMAGE is a pattern, such as '*:1.27.*', of what is to stay.
"""

from __future__ import annotations

import json
import subprocess
import sys

GO = "remove the old control plane"


def run(command: list[str], *more: str) -> tuple[int, list[str], dict]:
    """The exit code, the lines, and the summary; that has an error if nothing was done."""
    ended = subprocess.run([*command, *more], stdout=subprocess.PIPE, text=True)
    lines = ended.stdout.splitlines()
    return ended.returncode, lines, json.loads(lines[-1]) if lines else {"error": "no output"}


def answer(decision: str, summary: dict, *reasons: str) -> int:
    """Print what was decided, why, and who has to do something."""
    pods = summary.get("leftovers") or ()  # null: Pods could not be listed at the end
    left = sorted({f"{p['workload']['namespace']}/{p['workload']['name']}" for p in pods})
    print(json.dumps({"decision": decision, "reasons": sorted(reasons), "left": left}))
    return 0 if decision == GO else 1


def main(image: str, path: str, *words: str) -> int:
    command = [*words, "--only-drifted", "--log-format=json"]
    code, lines, audit = run(command)
    if "error" in audit:
        return answer("could not check", audit, audit["error"])
    if audit["planned"]:
        with open(path, "w") as plan:
            plan.write("\n".join(lines))
        wave = [f"--plan={path}", "--confirm=true"]
        for limit in (["--max-rollouts=1"], []):  # the second wave is the rest
            code, _, summary = run(command, *wave, *limit)
            if code > 128:
                return answer("interrupted: repeat it", summary)
            if code:
                return answer("repair, then repeat it", summary, *summary.get("failed", ["error"]))
    # About all Pods, whatever the options of the waves leave out
    names = [word for word in words if not word.startswith(("--exclude", "--timeout"))]
    code, _, last = run([*names, "--log-format=json"], f"--expect-image={image}")
    if "error" in last or last["namespaces"]:
        return answer("could not check", last, last.get("error", "not all namespaces were read"))
    if code:
        return answer("keep the old control plane", last, *last["expected"]["reasons"])
    return answer(GO, last)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: pipeline.py IMAGE PLAN-FILE COMMAND...")
    sys.exit(main(*sys.argv[1:]))
