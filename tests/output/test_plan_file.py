"""--plan FILE: what was reviewed is applied, in its order, and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import threading

import pytest
from clusters.embedded.manifests import replicated, workload
from hypothesis import given
from hypothesis import strategies as st
from support import (
    CONFIRM,
    DRIFTED,
    TEXT,
    command,
    options_of,
    upgrade,
)
from texts import NO_RECORD

JSON = ("--log-format=json", DRIFTED)
FIELDS = ("kind", "namespace", "name", "group", "uid", "sidecar_hash", "method", "started_before")


@pytest.fixture
def fleet(cluster):
    """Three drifted Deployments."""
    for name, replicas in (("web", 1), ("api", 2), ("db", 3)):
        cluster.create("shop", workload("Deployment", name, replicas=replicas))
    cluster.settle()
    upgrade(cluster)
    return cluster


def lines_of(ended) -> list[str]:
    return ended.stdout.splitlines()


def plans(ended) -> list[dict]:
    return [record for record in map(json.loads, lines_of(ended)) if record["record"] == "plan"]


def names(ended) -> list[str]:
    return [record["name"] for record in plans(ended)]


def reasons(ended) -> dict[str, tuple[str, str]]:
    skips = [r for r in map(json.loads, lines_of(ended)) if r["record"] == "skip"]
    return {skip["name"]: (skip["code"], skip["message"]) for skip in skips}


def written(path, lines) -> str:
    file = path / "plan.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return f"--plan={file}"


def test_only_the_workloads_of_a_plan_are_rolled_out_in_its_order(fleet, run, tmp_path):
    dry = run(fleet, *JSON)
    assert names(dry) == ["web", "api", "db"]
    kept = [line for line in lines_of(dry) if '"name": "api"' not in line]
    option = written(tmp_path, kept[::-1])
    again = run(fleet, *JSON, option)
    assert names(again) == ["db", "web"]
    ended = run(fleet, *JSON, CONFIRM, option)
    assert (ended.code, ended.summary["outcomes"]) == (0, {"succeeded": 2})
    assert {d["name"] for d in plans(run(fleet, *JSON))} == {"api"}


def test_the_same_command_resumes(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    assert run(fleet, *JSON, CONFIRM, option, "--max-rollouts=1").summary["outcomes"] == {
        "succeeded": 1,
        "not_started": 2,
    }
    rest = run(fleet, *JSON, CONFIRM, option)
    assert rest.summary["outcomes"] == {"succeeded": 2}
    assert reasons(rest)["web"] == ("up_to_date", "no longer needs a rollout")


def test_an_earlier_cutoff_may_be_given(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    ended = run(fleet, *JSON, option, "--only-started-before=2020-01-01T00:00:00Z")
    assert names(ended) == []


def test_another_object_of_the_same_name_is_skipped(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    fleet.delete("Deployment", "shop", "web")
    fleet.settle()
    sidecar = dict(fleet.injector.container)
    fleet.injector.container["image"] = "docker.io/istio/proxyv2:1.26.2"
    fleet.create("shop", workload("Deployment", "web", replicas=1))
    fleet.settle()
    fleet.injector.container.update(sidecar)
    ended = run(fleet, *JSON, option, "--only-started-before=2099-01-01T00:00:00Z")
    assert names(ended) == ["api", "db"]
    assert reasons(ended)["web"] == ("another_object", "is another object than in the plan")


def test_a_sidecar_that_was_not_approved_is_not_rolled_out(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    fleet.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    ended = run(fleet, *JSON, CONFIRM, option)
    assert (names(ended), ended.summary["outcomes"]) == ([], {})
    code, reason = reasons(ended)["web"]
    assert code == "another_sidecar"
    assert reason.startswith("drifted, but the injector changed since the plan: hash ")


def test_an_injector_that_is_upgraded_in_the_middle_ends_what_was_approved(
    fleet, run, start, tmp_path
):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    held = fleet.fault(method="GET", path="deployments/web$", release=threading.Event())
    running = start(fleet, *JSON, CONFIRM, option)
    assert held.reached.wait(30)
    fleet.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    held.release.set()
    ended = running.finish()
    results = [r for r in map(json.loads, lines_of(ended)) if r["record"] == "result"]
    first = next(r for r in results if r["name"] == "web")
    assert (first["outcome"], first["code"]) == ("skipped", "another_sidecar")
    assert {r["code"] for r in results} <= {"another_sidecar", "stopped"}


def test_what_no_longer_exists_is_listed(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    fleet.delete("Deployment", "shop", "web")
    fleet.settle()
    ended = run(fleet, *JSON, option)
    assert names(ended) == ["api", "db"]
    assert reasons(ended)["web"][0] == "not_found"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["not json"], 1),
        (["[]"], 1),
        (['{"record": "summary"}', "{}"], 2),
        (['{"record": "plan", "selected": true}'], 1),
        ([json.dumps({"record": "plan", "selected": True, **dict.fromkeys(FIELDS[:5], "x")})], 1),
        (['{"record": "skip"}', '{"record": "skip"}', '"record"'], 3),
        (['{"record": "plan", "selected": "false"}'], 1),
    ],
)
def test_a_line_that_is_no_record_is_bad_usage(cluster, run, tmp_path, lines, said):
    ended = run(cluster, TEXT, DRIFTED, written(tmp_path, lines))
    assert ended.code == 2
    text = f"line {said} {NO_RECORD}, or made by an older version; repeat the dry run"
    assert f"--log-format=json, a record per line; {text}\n" in ended.stderr


def test_a_blank_line_and_a_byte_order_mark_are_no_error(fleet, run, tmp_path):
    lines = lines_of(run(fleet, *JSON))
    option = written(tmp_path, ["\ufeff" + lines[0], "", *lines[1:], " "])
    assert names(run(fleet, *JSON, option)) == ["web", "api", "db"]


def test_a_plan_that_cannot_be_read_is_bad_usage(cluster, run, tmp_path):
    ended = run(cluster, *JSON, f"--plan={tmp_path}/nope.jsonl")
    assert ended.code == 2
    assert "No such file or directory" in ended.stderr


def test_a_plan_without_workloads_selects_nothing(fleet, run, tmp_path):
    dry = run(fleet, *JSON)
    records = [line for line in lines_of(dry) if '"plan"' not in line]
    deselected = [json.dumps({**record, "selected": False}) for record in plans(dry)]
    for lines in ([], records, deselected):
        ended = run(fleet, *JSON, written(tmp_path, lines))
        assert (ended.code, names(ended)) == (0, [])
        assert "--plan has no records of workloads to roll out: nothing is selected" in ended.stderr


def test_a_plan_made_with_a_comparison_needs_one(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    ended = run(fleet, option)
    assert (ended.code, "--plan was made with other options" in ended.stderr) == (2, True)


def test_the_plan_may_come_from_standard_input(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    text = run(fleet, TEXT, DRIFTED, option).stdout
    assert f" {option} " in text
    assert "--only-started-before" not in text
    words, environment = command(fleet.kubeconfig, TEXT, DRIFTED, "--plan=-")
    with open(option.removeprefix("--plan=")) as plan:
        ended = subprocess.run(
            words, env=environment, stdin=plan, capture_output=True, text=True, check=True
        )
    assert "To roll out: 3 workloads with 6 Pods, 6 of them old." in ended.stdout
    assert " --plan=- " in ended.stdout


def test_a_random_value_and_the_name_of_a_pod_do_not_change_the_revision(cluster, run, tmp_path):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.create("shop", replicated("StatefulSet", "db", replicas=2))
    cluster.settle()
    upgrade(cluster)
    cluster.injector.stamps = True
    options = (*JSON, "--include-statefulset")
    first, second = (run(cluster, *options) for _ in range(2))
    found = [{r["name"]: r["sidecar_hash"] for r in plans(ended)} for ended in (first, second)]
    assert found[0] == found[1]
    assert all(len(revision) == 12 for revision in found[0].values())
    ended = run(cluster, *options, CONFIRM, written(tmp_path, lines_of(first)))
    assert ended.summary["outcomes"] == {"succeeded": 2}


@pytest.mark.parametrize("method", ["", "restartt", "attach"])
def test_a_row_with_no_method_that_exists_is_bad_usage(fleet, run, tmp_path, method):
    (line,) = lines_of(run(fleet, *JSON, "deployment/web", "-n=shop"))[-2:-1]
    record = {**json.loads(line), "method": method}
    ended = run(fleet, *JSON, written(tmp_path, [json.dumps(record)]))
    text = "line 1 is no such record, or made by an older version; repeat the dry run"
    assert (ended.code, text in ended.stderr) == (2, True)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(["", "plan", "web", "2026-05-01T13:00:00Z", "0001-01-01T00:00:00+14:00"]),
    st.lists(st.text(max_size=3), max_size=2),
)
LINES = st.one_of(
    st.binary(max_size=40),
    st.fixed_dictionaries(
        {"record": st.just("plan"), "selected": st.booleans()},
        optional=dict.fromkeys(FIELDS, VALUES),
    ).map(lambda record: json.dumps(record).encode()),
)


@given(st.lists(LINES, max_size=4))
def test_whatever_a_file_has_it_is_a_plan_or_bad_usage(tool, tmp_path_factory, found):
    path = tmp_path_factory.mktemp("plan") / "plan.jsonl"
    path.write_bytes(b"\n".join(found))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            plan = options_of(tool, f"--plan={path}").plan
    except SystemExit:
        assert re.search(rf"; line \d+ {NO_RECORD}, or made by an older version; ", said.getvalue())
    else:
        assert all(isinstance(part, str) for ref in plan for part in ref)
        sorted(plan)  # as the report does


def test_a_plan_of_several_files_is_one(fleet, run, tmp_path):
    """As `cat` makes it of the plans of two clusters or teams."""
    lines = lines_of(run(fleet, *JSON))
    ended = run(fleet, *JSON, written(tmp_path, [*lines[::-1], *lines]))
    assert names(ended) == ["db", "api", "web"]


def test_what_is_not_selected_stays_so(fleet, run, tmp_path):
    """--plan is one more filter: a kind that is not selected is listed."""
    fleet.create("shop", workload("StatefulSet", "queue", replicas=1))
    sidecar = fleet.injector.container
    sidecar["image"], new = "docker.io/istio/proxyv2:1.26.2", sidecar["image"]
    fleet.settle()
    sidecar["image"] = new
    option = written(tmp_path, lines_of(run(fleet, *JSON, "--include-statefulset", "sts/*")))
    ended = run(fleet, *JSON, option)
    assert names(ended) == []
    assert reasons(ended)["queue"][0] == "kind_not_selected"
    assert set(reasons(ended)) == {"queue"}


def test_what_is_rejected_or_unknown_by_now_is_not_up_to_date(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    for state, verdict in (("denies", "rejected"), ("fails", "unknown")):
        fleet.injector.state = state
        ended = run(fleet, *JSON, option)
        assert names(ended) == []
        assert {name: code for name, (code, _) in reasons(ended).items()} == dict.fromkeys(
            ("web", "api", "db"), verdict
        )


@pytest.mark.parametrize("state", ["denies", "fails"])
def test_a_row_that_is_not_applied_makes_the_exit_code_1(fleet, run, tmp_path, state):
    """The injector answers for the Pods of one workload."""
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    call = type(fleet.injector).__call__

    class Troubled(type(fleet.injector)):
        def __call__(self, pod, namespace, dry_run) -> None:
            is_web = pod["metadata"].get("generateName", "").startswith("web-")
            self.state = "works" if is_web else state
            call(self, pod, namespace, dry_run)

    fleet.injector.__class__ = Troubled
    shown = run(fleet, *JSON, option)
    assert (shown.code, shown.planned) == (0, ["shop/web"])
    ended = run(fleet, *JSON, option, CONFIRM)
    assert (ended.code, ended.summary["failed"]) == (1, {"not_applied": 2})


def test_a_row_that_other_options_leave_out_was_not_to_be_applied(fleet, run, tmp_path):
    """One that does not exist was."""
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    fleet.delete("Deployment", "shop", "db")
    fleet.wait_for(lambda: not fleet.get("Deployment", "shop", "db"))
    ended = run(fleet, *JSON, option, CONFIRM, "--selector=app=web")
    codes = {name: code for name, (code, _) in reasons(ended).items()}
    assert codes == {"api": "not_selected", "db": "not_found"}
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert (ended.code, ended.summary["failed"]) == (1, {"not_applied": 1})


def test_a_row_that_is_skipped_right_before_its_patch_is_not_applied(fleet, run, start, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    held = fleet.fault(method="GET", path="deployments/web$", release=threading.Event())
    running = start(fleet, *JSON, CONFIRM, option)
    assert held.reached.wait(30)
    fleet.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.summary["failed"]) == (1, {"not_applied": 1})
    assert ended.summary["outcomes"] == {"skipped": 1, "succeeded": 2}


def test_what_is_up_to_date_or_left_by_max_rollouts_counts_as_applied(fleet, run, tmp_path):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    assert run(fleet, *JSON, option, CONFIRM, "--max-rollouts=2").code == 0
    ended = run(fleet, *JSON, option, CONFIRM)
    assert (ended.code, ended.summary["outcomes"]) == (0, {"succeeded": 1})
    assert run(fleet, *JSON, option, CONFIRM).code == 0


def test_rows_that_are_not_found_say_why(fleet, run, tmp_path):
    fleet.create("shop", workload("StatefulSet", "queue", replicas=1))
    fleet.settle()
    option = written(tmp_path, lines_of(run(fleet, JSON[0], "--include-statefulset")))
    fleet.delete("Deployment", "shop", "web")
    fleet.change("Deployment", "shop", "api", {"spec": {"replicas": 0}})
    fleet.settle()
    for options in (["--include-statefulset", "deploy/web", "deploy/api", "deploy/db"], []):
        options = [word for word in options if "web" not in word]
        ended = run(fleet, JSON[0], option, *options)
        found = {name: code for name, (code, _) in reasons(ended).items()}
        absent = "not_selected" if options else "not_found"
        queue = "not_selected" if options else "kind_not_selected"
        assert found == {"web": absent, "api": "up_to_date", "queue": queue}  # api: scaled to 0


@pytest.mark.parametrize("approved", ["in_place", "restart"])
def test_the_method_binds(cluster, run, tmp_path, approved):
    """A row that was approved as a change in place is not restarted, and the reverse."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.settle()
    upgrade(cluster)
    options = (*JSON, "--include-statefulset")
    first, then = ["--in-place"], []
    if approved == "restart":
        first, then = then, first
    dry = run(cluster, *options, *first)
    assert [r["method"] for r in plans(dry)] == [approved]
    option = written(tmp_path, lines_of(dry))
    ended = run(cluster, *options, *then, option, CONFIRM)
    assert (ended.code, names(ended)) == (1, [])
    assert reasons(ended)["db"][0] == "another_method"
    assert run(cluster, *options, *first, option, CONFIRM).summary["outcomes"] == {"succeeded": 1}


def test_what_a_wave_leaves_has_its_workload(fleet, run, tmp_path):
    """An audit can tell whose Pods they are, although they are not compared."""
    lines = lines_of(run(fleet, *JSON))
    wave = [line for line in lines if json.loads(line)["record"] == "plan"][:1]
    (name,) = (json.loads(line)["name"] for line in wave)
    ended = run(fleet, *JSON, CONFIRM, written(tmp_path, wave))
    assert ended.outcomes == {f"shop/{name}": "succeeded"}
    left = {(p["workload"]["name"], p["code"], p["message"]) for p in ended.summary["leftovers"]}
    others = {"api", "db", "web"} - {name}
    assert left == {(other, "not_named", "not named") for other in others}
    assert ended.summary["not_up_to_date"] == {}
    text = run(fleet, DRIFTED, TEXT, CONFIRM, written(tmp_path, wave)).stdout
    assert "not up to date:" not in text  # nobody knows: they were not compared


def test_a_row_that_the_end_of_the_window_interrupts_is_not_applied(cluster, run, tmp_path):
    cluster.create("shop", replicated("ReplicaSet", "x", replicas=3))
    cluster.settle()
    upgrade(cluster)
    option = written(tmp_path, lines_of(run(cluster, *JSON, "--evict")))
    cluster.kubelet.ready_after = 2
    ended = run(cluster, *JSON, CONFIRM, option, "--evict", "--max-duration=1s")
    assert ended.outcomes == {"shop/x": "interrupted"}
    assert (ended.code, ended.summary["failed"]) == (1, {"not_applied": 1})


def test_what_a_person_interrupts_before_it_began_is_no_row_that_was_not_applied(
    fleet, start, run, tmp_path
):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    running = start(fleet, *JSON, CONFIRM, option)
    assert held.reached.wait(20)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted")
    held.release.set()
    ended = running.finish()
    assert sorted(ended.outcomes.values()) == ["not_started", "not_started", "succeeded"]
    assert (ended.code, ended.summary["failed"]) == (130, {})


def test_without_a_comparison_too_the_same_command_resumes(fleet, run, tmp_path):
    """New Pods are younger than the cutoff of the plan, and not restarted again."""
    json_alone = JSON[0]
    option = written(tmp_path, lines_of(run(fleet, json_alone)))
    assert run(fleet, json_alone, CONFIRM, option).summary["outcomes"] == {"succeeded": 3}
    again = run(fleet, json_alone, CONFIRM, option)
    assert (names(again), again.summary["outcomes"]) == ([], {})


@pytest.mark.parametrize(
    "limit", [["--max-duration=1s"], ["--gate=false", "--max-duration=1s"]], ids=["window", "gate"]
)
def test_what_a_limit_of_a_person_leaves_is_named_and_no_failure(fleet, run, tmp_path, limit):
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    fleet.kubelet.ready_after = 1.5
    ended = run(fleet, *JSON, CONFIRM, option, *limit)
    assert (ended.code, ended.summary["failed"]) == (0, {})
    assert "not_started" in ended.outcomes.values()


def test_a_plan_without_rows_is_not_applied(fleet, run, tmp_path):
    option = written(tmp_path, ['{"record": "summary"}\n'])
    assert run(fleet, *JSON, option).code == 0
    ended = run(fleet, *JSON, option, CONFIRM)
    assert (ended.code, ended.summary["failed"]) == (1, {"not_applied": 1})


def test_a_row_whose_pods_have_no_sidecar_is_not_applied(fleet, run, tmp_path):
    """What is scaled to 0 does not count."""
    option = written(tmp_path, lines_of(run(fleet, *JSON)))
    fleet.injector.state = "ignored"
    for found in fleet.pods("shop", "web"):
        fleet.delete("Pod", "shop", found["metadata"]["name"])
    fleet.change("Deployment", "shop", "api", {"spec": {"replicas": 0}})
    fleet.wait_for(lambda: "istio-proxy" not in str(fleet.pods("shop", "web")))
    fleet.settle()
    fleet.injector.state = "works"
    ended = run(fleet, *JSON, option, CONFIRM)
    codes = {name: code for name, (code, _) in reasons(ended).items()}
    assert codes == {"web": "no_sidecar", "api": "up_to_date"}
    assert (ended.code, ended.summary["failed"]) == (1, {"not_applied": 1})
