"""Break the script in ways that harm somebody, one at a time, and list what no test notices.

    .venv/bin/python tests/tools/mutations.py             # all: about 10 minutes on 2 cores
    .venv/bin/python tests/tools/mutations.py evict       # those with this word in their sentence, function or tests
    .venv/bin/python tests/tools/mutations.py evict --control-plane  # on a real control plane, where the tests run on both
    .venv/bin/python tests/tools/mutations.py --list
    .venv/bin/python tests/tools/mutations.py --check     # only whether each fits the script and can be compiled

Each names a function and a kind of change, and no line of text, so that a refactoring leaves most of them as they are. It is
made in a copy of the repository, and only the tests that are specified for it run. It survives if they pass. Exit code 0: none
survived, 1: at least one did, 2: one no longer fits the script.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import queue
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parents[2]
SCRIPT = "sidecar-rollout.py"


class Mutation(NamedTuple):
    harm: str  # what would happen, and to whom
    tests: str  # files in a folder of tests/, without test_ and .py
    function: str  # or Class.method
    kind: str  # see mutated
    about: str  # the value that is returned, or what the change is about


MUTATIONS = (
    # What is left alone
    Mutation(
        "A workload whose team opted out is restarted",
        "opt_out selecting",
        "excluded",
        "returns",
        '""',
    ),
    Mutation(
        "A workload that lacks the annotation that an operator asks for is restarted",
        "selecting opt_out",
        "not_included",
        "returns",
        '""',
    ),
    Mutation(
        "A Pod that nobody creates again is evicted",
        "evicting selecting census",
        "without_controller",
        "returns",
        '""',
    ),
    Mutation(
        "A notebook or virtual machine is evicted and does not come back",
        "evicting census selecting",
        "restart_policy",
        "returns",
        '""',
    ),
    Mutation(
        "The kubelet's own Pods are in a plan",
        "selecting evicting",
        "static_pod",
        "returns",
        '""',
    ),
    Mutation(
        "Pods of Jobs fail each audit",
        "census fail_on_drift what_counts",
        "running_to_completion",
        "returns",
        '""',
    ),
    Mutation(
        "What is being deleted is restarted",
        "selecting changed_meanwhile opt_out",
        "being_deleted",
        "returns",
        '""',
    ),
    Mutation(
        "A workload that was created anew under its name gets the rollout that was approved for the old one",
        "plan_file",
        "another_object",
        "returns",
        '""',
    ),
    Mutation(
        "What another run has just restarted is restarted once more",
        "concurrent_runs",
        "restarted_meanwhile",
        "returns",
        '""',
    ),
    Mutation(
        "A workload is stopped whose new Pods cannot be created",
        "verdicts selecting check_before_rollout",
        "rejected",
        "returns",
        '""',
    ),
    Mutation(
        "A workload about whose new Pods nothing is known is restarted",
        "verdicts several_answers what_counts",
        "unknown",
        "returns",
        '""',
    ),
    Mutation(
        "A workload with half of its rollout is restarted on top of it",
        "concurrent_runs rollouts_of_others",
        "incomplete_rollout",
        "returns",
        '""',
    ),
    Mutation(
        "A workload loses its sidecar",
        "removal lost_sidecars",
        "losing_sidecar",
        "returns",
        '""',
    ),
    Mutation(
        "A workload gets another sidecar than was approved",
        "one_answer plan_file",
        "another_sidecar",
        "returns",
        '""',
    ),
    Mutation(
        "A worker waits for hours for minReadySeconds",
        "namespaces",
        "min_ready_seconds",
        "returns",
        '""',
    ),
    Mutation(
        "A paused Deployment is patched, and nothing happens",
        "selecting",
        "wrong_method",
        "returns",
        '""',
    ),
    Mutation(
        "A StatefulSet with one Pod left loses it",
        "degraded",
        "degraded",
        "returns",
        '""',
    ),
    Mutation(
        "The last healthy replica of a database is taken",
        "replicas",
        "replica_not_ready",
        "returns",
        '""',
    ),
    Mutation(
        "An operator who leaves out what is unhealthy restarts it",
        "skip_unhealthy",
        "unhealthy",
        "returns",
        '""',
    ),
    Mutation(
        "A Pod below a partition is evicted",
        "partitions",
        "below_partition",
        "returns",
        '""',
    ),
    Mutation(
        "Images of containers that OpenKruise manages are changed",
        "in_place_managed",
        "changed_in_place",
        "returns",
        '""',
    ),
    Mutation(
        "An eviction rolls out what a team has not released",
        "evicting_pending",
        "pending_template",
        "returns",
        '""',
    ),
    Mutation(
        "What was approved as an eviction is a restart",
        "plan_file",
        "another_method",
        "returns",
        '""',
    ),
    Mutation(
        "An operator who wants no downtime has some",
        "downtime",
        "has_downtime",
        "returns",
        '""',
    ),
    Mutation(
        "Pods of a namespace that an operator excluded are restarted",
        "selecting",
        "is_included",
        "returns",
        "True",
    ),
    # Whether it is known
    Mutation(
        "A Pod with an old sidecar is up to date",
        "only_drifted fail_on_drift",
        "compare_pods",
        "returns",
        "({}, [])",
    ),
    Mutation(
        "A changed ConfigMap is not noticed",
        "configuration",
        "changed_at",
        "returns",
        "created_at(config)",
    ),
    Mutation(
        "A ConfigMap that may not be read counts as unchanged, and an audit passes",
        "configuration",
        "with_changes",
        "never",
        "ABSENT",
    ),
    Mutation(
        "A replica of the injector that is old decides for all",
        "what_counts several_answers",
        "known_today",
        "never",
        "doubtful",
    ),
    Mutation(
        "A value that all Pods share counts as different in each",
        "what_counts",
        "known_today",
        "never",
        "having",
    ),
    Mutation(
        "Values of one other tenant make old Pods look up to date",
        "what_counts",
        "values_in",
        "always",
        "namespace",
    ),
    Mutation(
        "An answer of another version is forgotten, and the question says yes",
        "what_counts",
        "compare_all",
        "never",
        "fourth",
    ),
    Mutation(
        "An audit asks one replica of the injector",
        "what_counts",
        "compare_all",
        "sets",
        "twice=options.is_question",
    ),
    Mutation(
        "An injector that is down looks like 300 teams that opted out",
        "silent_injector",
        "why_silent",
        "returns",
        '""',
    ),
    Mutation(
        "A quota is reported as an injector that is down",
        "what_counts",
        "why_silent",
        "never",
        "QUOTA",
    ),
    Mutation(
        "A slow injector looks like one that is down",
        "replicas",
        "ask_one_by_one",
        "returns",
        "{}",
    ),
    Mutation(
        "A webhook that hangs in one namespace stops a plan for half an hour",
        "namespaces",
        "DryRuns.note",
        "returns",
        "None",
    ),
    Mutation(
        "Words of a tenant's webhook are taken for the API server's",
        "writes check_before_rollout",
        "reply_of",
        "never",
        "match",
    ),
    # Audits and questions
    Mutation(
        "A Pod that a finalizer holds runs an old sidecar, and no audit says so",
        "what_counts",
        "is_held",
        "returns",
        "False",
    ),
    Mutation(
        "A Pod hides behind a grace period of 63 years",
        "what_counts examples",
        "is_held",
        "sets",
        "seconds=0",
    ),
    Mutation(
        "A workload that is being deleted for weeks is in no audit",
        "fail_on_drift what_counts",
        "being_deleted",
        "argument",
        'answer=""',
    ),
    Mutation(
        "A ReplicaSet hides its Pods behind a Job",
        "what_counts",
        "controllers_of",
        "never",
        "controller",
    ),
    Mutation(
        "An image whose tag says one thing, and its digest another, is a yes",
        "what_counts examples",
        "is_expected",
        "returns",
        "matches(image, patterns)",
    ),
    Mutation(
        "An image that was changed in place, and does not run yet, is a yes",
        "expected",
        "image_changed_at",
        "returns",
        '""',
    ),
    Mutation(
        "A question says yes while new Pods would get the old image",
        "expected what_counts",
        "would_differ",
        "returns",
        '""',
    ),
    Mutation(
        "A question says yes though nobody answered",
        "expected what_counts",
        "answer_of",
        "never",
        "NOT_COMPARED",
    ),
    Mutation(
        "An audit of which no Pod was checked passes",
        "census missing exit_codes",
        "Totals.checked",
        "returns",
        "1",
    ),
    Mutation(
        "Of two annotations that are expected, one is enough",
        "expected",
        "unexpected_part",
        "never",
        "wanted",
    ),
    Mutation(
        "Six workloads that lost their sidecar are in no list",
        "what_counts",
        "Totals.not_injected",
        "returns",
        "[]",
    ),
    Mutation(
        "What has no Pods now is not named in a yes",
        "what_counts expected",
        "Totals.not_asked",
        "returns",
        "Counter()",
    ),
    Mutation(
        "An audit says nothing of Pods that drifted",
        "fail_on_drift census",
        "Totals.not_up_to_date",
        "returns",
        "Counter()",
    ),
    # What is lost
    Mutation(
        "A Pod that lost its sidecar is nobody's loss",
        "what_is_lost lost_sidecars",
        "lost_pods",
        "returns",
        "{}",
    ),
    Mutation(
        "The next run has forgotten what a restart brought",
        "lost_sidecars what_is_lost",
        "noted_texts",
        "returns",
        "frozenset()",
    ),
    Mutation(
        "New Pods need no sidecar",
        "lost_sidecars verification what_is_lost",
        "must_of",
        "returns",
        "frozenset()",
    ),
    Mutation(
        "What was left incomplete is green the next night",
        "earlier_rollouts",
        "why_never_completed",
        "returns",
        '""',
    ),
    Mutation(
        "A workload that lost its sidecar waits behind all others",
        "what_is_lost",
        "in_rollout_order",
        "argument",
        "key=lambda row: (row.ref not in broken, *place[row.ref])",
    ),
    # Writes
    Mutation(
        "A change by somebody else is overwritten",
        "concurrent_runs",
        "Cluster.patch_template",
        "forgets",
        "resourceVersion",
    ),
    Mutation(
        "Another Pod of the same name is evicted",
        "evicting_one_at_a_time",
        "Cluster.evict",
        "forgets",
        "preconditions",
    ),
    Mutation(
        "The image of another Pod of the same name is changed",
        "requests",
        "Cluster.change_images",
        "forgets",
        "uid",
    ),
    Mutation(
        "A write goes to another cluster",
        "one_answer",
        "cluster_of",
        "returns",
        "{}",
    ),
    Mutation(
        "Words of an owner reference stand in requests and printed commands",
        "owner_references",
        "possible_controller_of",
        "never",
        "is_possible",
    ),
    Mutation(
        "A patch is sent though the gate has closed",
        "gate",
        "Restart.wait_for_gate",
        "returns",
        "None",
    ),
    Mutation(
        "A run goes on after a signal",
        "interrupting scheduler",
        "Signals.why_stopped",
        "returns",
        "NO_STOP",
    ),
    Mutation(
        "Two workloads of one Service are away together",
        "services scheduler",
        "services_of",
        "returns",
        "[]",
    ),
    Mutation(
        "The first workload fails, and so do ten others at once",
        "looks scheduler",
        "Scheduler.fill_slots",
        "never",
        "is_alone",
    ),
    Mutation(
        "A broken sidecar takes every namespace down",
        "namespaces looks",
        "Scheduler.note_cause",
        "returns",
        "None",
    ),
    Mutation(
        "Three failures are too few for --max-failures=3",
        "failure_limits scheduler",
        "Signals.stop",
        "returns",
        "None",
    ),
    Mutation(
        "A namespace opts out during a run, and is restarted",
        "changed_meanwhile opt_out",
        "Work.note_object",
        "never",
        "asks_namespaces",
    ),
    Mutation(
        "A moment of 403 during a run ends a rollout",
        "faults requests",
        "Cluster.request",
        "always",
        "FORBIDDEN",
    ),
    Mutation(
        "A look waits a minute for an API server that is away",
        "requests",
        "Cluster.at_a_glance",
        "omits",
        "patience",
    ),
    # Verification
    Mutation(
        "A rollout of which Pods are missing is a success",
        "verified_outcomes verification",
        "Work.completeness",
        "returns",
        "Outcome.SUCCEEDED",
    ),
    Mutation(
        "A container that restarts during the soak is a success",
        "soak",
        "restart_of",
        "returns",
        '""',
    ),
    Mutation(
        "Pods that still differ are a success",
        "drifted_rollouts one_answer",
        "Work.differences_of",
        "returns",
        "()",
    ),
    Mutation(
        "A StatefulSet's Pods above a partition are left",
        "partitions",
        "is_below_partition",
        "returns",
        "ordinal_of({'metadata': {'name': pod_name}}) < partition_of(workload)",
    ),
    Mutation(
        "A claim of each Pod is a difference of its own",
        "comparison_edge_cases",
        "normal_volume",
        "returns",
        'without_keys(volume, "name")',
    ),
    Mutation(
        "A Pod that is not restarted counts as changed in place",
        "image_changes in_place",
        "is_restarted",
        "returns",
        "True",
    ),
    Mutation(
        "All ready Pods of a workload are evicted at once",
        "max_unavailable evicting_one_at_a_time",
        "PodByPod.obstacle",
        "returns",
        '""',
    ),
    # Secrets, errors, starting
    Mutation(
        "A password stands in a log",
        "secrets hostile_input",
        "redact_text",
        "returns",
        "text",
    ),
    Mutation(
        "A termination message with a password is shown",
        "soak reasons",
        "exit_text",
        "returns",
        'ended.get("message", "")',
    ),
    Mutation(
        "An escape sequence of a tenant changes what an operator reads",
        "hostile_input secrets",
        "printable",
        "returns",
        "text",
    ),
    Mutation(
        "A value of a variable is shown",
        "secrets",
        "value_text",
        "returns",
        "str(value)",
    ),
    Mutation(
        "Any error of a kubeconfig leads to the Pod's own cluster",
        "starting kubeconfig",
        "read_kubeconfig",
        "always",
        "NO_CONTEXT",
    ),
    Mutation(
        "A proxy's password is not sent, and no run begins",
        "kubeconfig",
        "load_proxy",
        "never",
        "credentials",
    ),
    Mutation(
        "An intermediate authority is refused, and no run begins",
        "certificates",
        "tls_context",
        "omits",
        "VERIFY_X509_PARTIAL_CHAIN",
    ),
    Mutation(
        "A refresh token is used up, and a person is logged out",
        "credentials",
        "read_with_token",
        "omits",
        "check_kubectl",
    ),
    Mutation(
        "The token of one cluster is sent to another, whose kubeconfig comes later",
        "kubeconfig",
        "find_files",
        "returns",
        "None",
    ),
    Mutation(
        "A login is waited for that nobody can see",
        "credentials starting",
        "run_plugin",
        "omits",
        "warning",
    ),
    Mutation(
        "A missing permission ends a run in its middle",
        "permissions starting",
        "check_permissions",
        "returns",
        "None",
    ),
    Mutation(
        "One odd Pod ends the run for everybody",
        "bounded hostile_namespace",
        "note_odd_pod",
        "returns",
        "1 / 0",
    ),
    Mutation(
        "A kubectl that is too old is found after the first patch",
        "starting",
        "check_kubectl",
        "never",
        "OLDEST_KUBECTL",
    ),
    Mutation(
        "A name that does not exist is no error",
        "named_workloads mistyped_names",
        "check_names",
        "never",
        "must_exist",
    ),
    Mutation(
        "A Pod of two Services is taken with another one of the first",
        "services",
        "Cluster.services_of_pods",
        "sets",
        "own=frozenset()",
    ),
    # What one namespace writes
    Mutation(
        "JSON that hides its depth ends the run of everybody",
        "bounded hostile_namespace",
        "is_deeper",
        "returns",
        "False",
    ),
    Mutation(
        "A spec that changes all the time holds a worker for good",
        "changed_meanwhile",
        "Restart.decide_now",
        "omits",
        "require_running",
    ),
    Mutation(
        "Events of one namespace exhaust the memory of a run",
        "requests",
        "Cluster.latest_event",
        "argument",
        "largest=None",
    ),
    Mutation(
        "A webhook that hangs takes a worker from everybody for each of its workloads",
        "hostile_namespace",
        "Rollouts.note_hanging",
        "returns",
        "None",
    ),
    # A yes
    Mutation(
        "Who annotates running Pods makes the answer yes, and the old control plane is removed",
        "what_counts",
        "annotated_later",
        "returns",
        "()",
    ),
    Mutation(
        "An old Pod of a workload that came during the run counts as up to date",
        "census",
        "Report.unknown",
        "sets",
        'left=""',
    ),
)


def mentions(node: ast.AST, word: str) -> bool:
    """Return whether a name, attribute, argument or text is the word."""
    for inner in ast.walk(node):
        found = [getattr(inner, name, None) for name in ("id", "attr", "arg", "value", "name")]
        if word in found:
            return True
    return False


def function_of(tree: ast.Module, path: str) -> ast.FunctionDef:
    """Return a function, or a method of a class. ValueError if there is none."""
    nodes: list[ast.stmt] = tree.body
    for name in path.split("."):
        found = [
            node
            for node in nodes
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name
        ]
        if not found:
            raise ValueError(f"there is no {path}")
        nodes = found[0].body
    assert isinstance(found[0], ast.FunctionDef)
    return found[0]


class Change(ast.NodeTransformer):
    """Makes one change, to the first place that fits."""

    def __init__(self, kind: str, about: str) -> None:
        self.kind, self.about, self.is_done = kind, about, False

    def fits(self, node: ast.AST) -> bool:
        fits = not self.is_done and mentions(node, self.about)
        self.is_done |= fits
        return fits

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self.kind in ("never", "always"):
            if isinstance(node, (ast.If, ast.IfExp, ast.While)) and self.fits(node.test):
                node.test = ast.Constant(self.kind == "always")
            if isinstance(node, ast.comprehension):
                node.ifs = [
                    ast.Constant(self.kind == "always") if self.fits(test) else test
                    for test in node.ifs
                ]
        is_plain = isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Continue, ast.Raise))
        if self.kind == "omits" and is_plain and self.fits(node):
            return ast.Pass()
        name, _, value = self.about.partition("=")
        is_free = not self.is_done and isinstance(node, ast.Assign)
        if self.kind == "sets" and is_free and ast.unparse(node.targets[0]) == name:
            node.value, self.is_done = ast.parse(value, mode="eval").body, True
        if self.kind == "forgets" and isinstance(node, ast.Dict) and not self.is_done:
            pairs = list(zip(node.keys, node.values, strict=True))
            kept = [pair for pair in pairs if getattr(pair[0], "value", None) != self.about]
            self.is_done = len(kept) < len(pairs)
            node.keys, node.values = [key for key, _ in kept], [value for _, value in kept]
        if self.kind == "argument" and isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == name and not self.is_done:
                    keyword.value, self.is_done = ast.parse(value, mode="eval").body, True
        return super().generic_visit(node)


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def mutated(text: str, mutation: Mutation) -> str:
    """Return the script with a mutation. ValueError if it does not fit the script.

    The function returns a value at once (`returns`); or its first condition that has the word is
    `never` or `always` true; or its first simple statement with the word is gone (`omits`); or it
    `sets` a name to another value, `forgets` a key of a mapping, or gives an `argument`, also of its
    decorator, another value.
    """
    function = copy.deepcopy(function_of(parsed(text), mutation.function))
    if mutation.kind == "returns":
        function.body = ast.parse(f"return {mutation.about}").body
    else:
        change = Change(mutation.kind, mutation.about)
        change.visit(function)
        if not change.is_done:
            raise ValueError(
                f"{mutation.function} has no place for: {mutation.kind} {mutation.about}"
            )
    first = min(node.lineno for node in (function, *function.decorator_list))
    changed = ast.unparse(ast.fix_missing_locations(function))
    lines = text.splitlines()
    lines[first - 1 : function.end_lineno] = [textwrap.indent(changed, " " * function.col_offset)]
    return "\n".join(lines) + "\n"


def problems(chosen: Sequence[Mutation], text: str) -> Iterator[str]:
    """Yield why mutations cannot be tried."""
    for mutation in chosen:
        for name in mutation.tests.split():
            if not [*TOP.glob(f"tests/*/test_{name}.py")]:
                yield f"{mutation.harm}: there is no test_{name}.py"
        try:
            changed = mutated(text, mutation)
            if ast.dump(ast.parse(changed)) == ast.dump(parsed(text)):
                yield f"{mutation.harm}: it changes nothing"
        except ValueError as error:
            yield f"{mutation.harm}: {error}"


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
    parser.add_argument("word", nargs="?", default="", help="only mutations that have this word")
    parser.add_argument("--control-plane", action="store_true", help="on a real control plane")
    parser.add_argument("--jobs", type=int, default=6, help="so many at a time; default: 6")
    parser.add_argument("--list", action="store_true", help="show the names and the tests")
    parser.add_argument("--check", action="store_true", help="run no tests")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.word in " ".join(mutation)]
    if options.list:
        print("\n".join(f"{mutation.harm}  ({mutation.tests})" for mutation in chosen))
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
            print(f"{word}  {time.monotonic() - began:4.0f}s  {mutation.harm}", flush=True)
            return has_survived

        with ThreadPoolExecutor(options.jobs) as pool:
            survived = list(pool.map(survives, chosen, texts))
    survivors = [mutation.harm for mutation, is_one in zip(chosen, survived, strict=True) if is_one]
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutations killed.")
    print("".join(f"  survived: {name}\n" for name in survivors), end="")
    return int(bool(survivors))


if __name__ == "__main__":
    raise SystemExit(main())
