"""Each number of a run's text, computed again from its JSON records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

ROW = r"^(\S+) +\S+(?: \(in template\))? +(\d+) +(\d+) +(\d+) +(\d+)(?: \((.*)\))?$"
TO_ROLL_OUT = (
    r"To roll out: (\d+)(?: of (\d+))? workloads?(?: \(--max-rollouts\))?"
    r" with (\d+) Pods?(?:, (\d+) of them old)?"
)
DONE = r"^(\d+) workloads? in [^:]+: ([^;\n]*?)(?:; (\d+) left by --max-rollouts)?\.$"
FAILED = r"^Failed: (.*)\.$"  # without names and details in parentheses
ANSWER = r"^(Yes|No): (.*)\.$"  # to --expect-image and --expect-annotation
OTHERS = r"(\d+) Pods? (?:runs?|has|have) another [^(]*\((.*?)\)(?:, including ([^;.]*))?"
DETAILS = r"^Failed: .*not up to date \(([^)]*)\)"
WORDS = {  # what people read of a code, if it is not the code itself
    "pods_not_listed": "Pods not listed",
    "max_rollouts": "left by --max-rollouts",
    "restart_policy": "restartPolicy not Always",
    "static_pod": "static Pod",
    "without_pods": "without Pods",
    "wrong_method": "paused or OnDelete",
}


def words_of(counts: dict[str, int]) -> Counter[str]:
    """Numbers by what people read, of those by code."""
    return Counter({WORDS.get(code, code.replace("_", " ")): n for code, n in counts.items()})


def wrong_numbers(text: str, records: list[dict], compares: bool) -> Iterator[str]:
    """Yield what the text of a run says otherwise than its records; `compares`: with --only-drifted."""
    plan = of(records, "plan")
    (summary,) = of(records, "summary")
    if summary["expected"] is not None:
        yield from wrong_answer(text, summary)
        return
    yield from wrong_plan(text, plan)
    is_shown = summary["dry_run"] or len(plan) != 1  # of one workload, its result says the same
    if is_shown and summary["sidecars"] is not None:
        yield from wrong_table(text.rpartition("\nSIDECAR ")[2], summary["sidecars"], compares)
    said = re.findall(r"^Not rolled out: (.*)\.$", text, re.MULTILINE)
    left = left_out(records)
    ended = not summary["dry_run"] and bool(of(records, "plan"))  # it is said once more
    if said != [left] * (bool(left) * (1 + ended)):
        yield f"text: not rolled out: {said}, records: {left}"
    if not summary["dry_run"] and plan:
        yield from wrong_results(text, records)
    failed = words_of(summary["failed"])
    plain = re.sub(r" \([^)]*\)", "", text)
    plain = plain.replace("no Pod was checked", "1 nothing checked")
    plain = plain.replace("the injector is down", "1 injector down")
    plain = plain.replace("no dry run had an answer", "1 injector down")
    plain = plain.replace("1 list of Pods was not read", "1 Pods not listed")
    if summary["exit_code"] == 1 and numbers(plain, FAILED) != failed:
        yield f"text: failed: {numbers(plain, FAILED)}, records: {failed}"
    counted = summary["not_up_to_date"]
    details = numbers(text, DETAILS)
    if details and details != words_of(counted):
        yield f"text: not up to date: {details}, records: {counted}"
    listed = [pod for pod in summary["leftovers"] or () if pod["code"] in counted]
    if (counted and not compares) or sum(counted.values()) < len(listed):
        yield f"not up to date: {counted}, leftovers: {len(listed)}"


def of(records: list[dict], kind: str) -> list[dict]:
    return [found for found in records if found["record"] == kind]


def key(record: dict) -> tuple[str, str, str]:
    return record["kind"], record["namespace"], record["name"]


def numbers(text: str, pattern: str) -> Counter[str]:
    """The numbers of a list such as `2 timed out, 1 failed`, by their words."""
    found = re.search(pattern, text, re.MULTILINE)
    counts: Counter[str] = Counter()
    for number, word in re.findall(r"(\d+) ([^,]+)", found[1] if found else ""):
        counts[word] = int(number)
    return counts


def wrong_plan(text: str, plan: list[dict]) -> Iterator[str]:
    selected = [record for record in plan if record["selected"]]
    expected = [
        len(selected),
        len(plan),
        sum(record["pods"]["replaced"] for record in selected),
        sum(record["pods"]["old"] for record in selected),
    ]
    found = re.search(TO_ROLL_OUT, text)
    if found:
        *first, old = found.groups()
        shown = [int(part or found[1]) for part in first] + [int(n) for n in [old] if n]
        expected = expected[: len(shown)]
    if bool(plan) != bool(found) or (found and shown != expected):
        yield f"text: {found and shown} to roll out, records: {expected}"
    has_old = re.search("^#.* OLD ", text, re.M)  # where something was compared
    for record in plan:
        kind, namespace, name = key(record)
        counts = r"(\d+) +(\d+)" if has_old else r"(\d+)"
        rows = re.findall(
            rf"^(\S+) +{namespace} +{kind.lower()}/{re.escape(name)} +{counts} ", text, re.M
        )
        place = str(record["position"]) if record["selected"] else "-"
        wanted = [(place, str(record["pods"]["replaced"]))]
        if has_old:
            wanted = [(*wanted[0], str(record["pods"]["old"]))]
        wanted *= record["selected"]  # the others are a number
        if rows != wanted:
            yield f"text: rows {rows} of {name}, records: {wanted}"


def wrong_table(table: str, sidecars: list[dict], compares: bool) -> Iterator[str]:
    """The table of sidecars: each row adds up, and says what the records say."""
    rows = []
    for found in sidecars:
        left = sorted(words_of(found["left"]).items())
        rows.append((found["name"], found["pods"], found["up_to_date"], found["old"], left))
    shown = []
    for name, *counts, note in re.findall(ROW, table, re.MULTILINE):
        pods, current, old, left = map(int, counts)
        reasons = numbers(note, "(.*)")
        shown.append((name, pods, current, old, sorted(reasons.items())))
        if pods != current + old + left or reasons.total() != left:
            yield f"text: {name} {counts} ({note}) does not add up"
    # Without rows, the Pods were not counted again, and the last table is that of the plan.
    if sidecars and compares and sorted(shown) != sorted(rows):
        yield f"text: {shown}, records: {rows}"


def wrong_answer(text: str, summary: dict) -> Iterator[str]:
    """The answer to a question about all Pods: what it counts, and of which codes."""
    said, expected = re.search(ANSWER, text, re.MULTILINE), summary["expected"]
    if not said:
        yield f"text: no answer, records: {expected}"
        return
    verdict, sentence = said.groups()
    others = [pod for pod in summary["leftovers"] if pod["code"] != "unknown"]
    of_codes: Counter[str] = Counter()
    passing: Counter[str] = Counter()
    for pod in others:
        what = pod["found"] if "=" in pod["found"] else pod["found"].rpartition("/")[2]
        is_passing = pod["code"] in ("terminating", "running_to_completion")
        passing += words_of({pod["code"]: 1}) if is_passing else Counter()
        has_image = is_passing or pod["code"] == "unexpected"
        of_codes += Counter([what]) if has_image else words_of({pod["code"]: 1})
    found = re.search(OTHERS, sentence)
    images, states = (found[2], found[3] or "") if found else ("", "")
    shown = (int(found[1]) if found else 0, numbers(images, "(.*)"), numbers(states, "(.*)"))
    if shown != (len(others), of_codes, passing):
        yield f"text: {shown}, records: {of_codes}, {passing}"
    numbers_of = {
        "would_differ": r"new Pods of (\d+) workloads?",
        "no_answer": r"(\d+) workloads? gave no answer",
    }
    if verdict == "Yes":
        sentence = re.sub(r"(\d),(\d)", r"\1\2", sentence).replace("the only Pod", "all 1 Pod")
        numbers_of |= {"pods": r"all (\d+) Pods?", "asked": r"(\d+) workloads? checked"}
        not_asked = re.search(r"not checked: ([^)]*)\)", sentence)
        nouns = not_asked[1].split(", ") if not_asked else []
        listed = {}
        for part in nouns:
            number, _, noun = part.partition(" ")
            one = (
                noun.removesuffix("s")
                if int(number) > 1 and noun not in ("without Pods", "below a partition")
                else noun
            )
            listed[one.lower().replace(" ", "_")] = int(number)
        if listed != expected["not_asked"]:
            yield f"text: not asked {listed}, records: {expected['not_asked']}"
    for name, pattern in numbers_of.items():
        match = re.search(pattern, sentence)
        if int(match[1] if match else 0) != expected[name]:
            yield f"text: {match and match[0]}, records: {name} {expected[name]}"
    if (verdict == "Yes") != expected["yes"] or expected["yes"] != (summary["exit_code"] == 0):
        yield f"text: {verdict}, records: {expected['yes']}, exit code {summary['exit_code']}"


def left_out(records: list[dict]) -> str:
    """How many workloads, and Pods without one, are listed as not rolled out: none of a Job."""
    listed = [row for row in of(records, "skip") if row["code"] != "running_to_completion"]
    kinds = Counter(kind == "Pod" for kind, *_ in set(map(key, listed)))
    found = {"workload": kinds[False], "Pod": kinds[True]}
    return " and ".join(
        f"{count} {noun}{'s' * (count > 1)}" for noun, count in found.items() if count
    )


def wrong_results(text: str, records: list[dict]) -> Iterator[str]:
    (summary,) = of(records, "summary")
    outcomes = Counter(r["outcome"] for r in of(records, "result"))
    if outcomes != summary["outcomes"]:
        yield f"results: {outcomes}, summary: {summary['outcomes']}"
    planned, ended = (sorted(map(key, of(records, name))) for name in ("plan", "result"))
    if planned != ended:
        yield f"planned {planned}, results {ended}"
    wanted = Counter({outcome.replace("_", " "): count for outcome, count in outcomes.items()})
    left = sum(not record["selected"] for record in of(records, "plan"))
    wanted["not started"] -= left
    total = re.search(DONE, text, re.MULTILINE)
    shown = numbers(f"x {total[2]}" if total else "", r"x (.*)")
    if total and int(total[3] or 0) != left:
        yield f"text: {total[0]}, records: {left} not selected"
    if shown != +wanted or (total and int(total[1]) != wanted.total()):
        yield f"text: {total and total[0]}, records: {wanted}"
    pods = summary["pods"]
    found = re.search(r"^Pods: (\d+) of \d+ updated and ready", text, re.MULTILINE)
    if found and int(found[1]) != pods["ready"]:
        yield f"text: {found[0]}, records: {pods}"
    if not pods["ready"] <= pods["updated"] <= pods["wanted"]:
        yield f"counts: {pods}"
