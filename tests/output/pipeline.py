"""A nightly pipeline, on JSON records and exit codes alone: audit, plan, two waves, and may the old control plane go?

pipeline.py PLAN-FILE COMMAND...: prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys

# Codes of Pods of which nobody knows whether they are up to date
NOT_CHECKED = {"unknown", "without_controller", "gone"}


def run(command: list[str], *more: str) -> tuple[int, list[str], dict]:
    """The exit code, the lines, and the summary; that has an error if nothing was done."""
    ended = subprocess.run([*command, *more], stdout=subprocess.PIPE, text=True)
    lines = ended.stdout.splitlines()
    return ended.returncode, lines, json.loads(lines[-1]) if lines else {"error": "no output"}


def answer(decision: str, summary: dict, *reasons: str) -> int:
    """Print what was decided, why, and who has to do something."""
    left = {
        f"{p['workload']['namespace']}/{p['workload']['name']}"
        for p in summary.get("leftovers", ())
        if p["code"] != "not_named"  # by --plan: not compared
    }
    print(json.dumps({"decision": decision, "reasons": sorted(reasons), "left": sorted(left)}))
    return 0 if decision == "remove the old control plane" else 1


def main(path: str, *words: str) -> int:
    command = [*words, "--only-drifted", "--log-format=json"]
    code, lines, audit = run(command, "--fail-on-drift")
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
        code, _, audit = run(command, "--fail-on-drift")
    if NOT_CHECKED & audit.get("not_up_to_date", {}).keys():
        return answer("could not check", audit, *audit["not_up_to_date"])
    if code:
        return answer("keep the old control plane", audit, *audit.get("not_up_to_date", ["error"]))
    return answer("remove the old control plane", audit)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
