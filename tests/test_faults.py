"""Bad days: an API server and a kubectl in trouble, signals at any moment, and malicious input.

More seeds: pytest tests/test_faults.py --seeds 200 --kills 50
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import types
from datetime import datetime, timezone

import pytest
from cluster import EmbeddedCluster
from cluster.manifests import container, pod_spec, workload
from cluster.server import Fault
from hypothesis import given
from hypothesis import strategies as st
from support import CONFIRM, SCRIPT, TEXT, command

ALL = ("--include-statefulset", "--include-daemonset")
EXPIRED = {
    "kind": "Status",
    "status": "Failure",
    "reason": "Expired",
    "message": "too old",
    "code": 410,
}
UNAUTHORIZED = {
    "kind": "Status",
    "status": "Failure",
    "reason": "Unauthorized",
    "message": "Unauthorized",
    "code": 401,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in ("seed", "kill"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(metafunc.config.getoption(f"--{name}s")))


class Chaos:
    """A seeded plan of what goes wrong, for one request in so many; from the first patch on, so that all get a plan."""

    def __init__(self, seed: int, share: float = 0.03) -> None:
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.share = share
        self.unauthorized = self.has_begun = False

    def __call__(self, method: str, target: str, agent: str) -> Fault | None:
        with self.lock:
            self.has_begun |= method == "PATCH"
            if not self.has_begun or self.chance.random() > self.share:
                return None
            kind = self.chance.randrange(9)
            if kind == 7 and (self.unauthorized or "kubectl" in agent):
                kind = 1
            self.unauthorized |= kind == 7
        if kind == 8:
            return Fault(status=410, body=EXPIRED) if "continue=" in target else Fault(status=503)
        faults = (
            {"status": 429, "headers": {"Retry-After": "1"}, "body": {"message": "slow down"}},
            {"status": 500, "body": {"message": "sick"}},
            {"status": 503},
            {"drop": "before"},
            {"drop": "after"},
            {"delay": 0.5},
            {"truncate": True},
            {"status": 401, "body": UNAUTHORIZED},
        )
        return Fault(**faults[kind])


KINDS = ("Deployment", "Deployment", "Deployment", "StatefulSet", "DaemonSet")


def fill(cluster: EmbeddedCluster, count: int) -> None:
    cluster.controllers.ready_after = cluster.controllers.gone_after = 0.02
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        fields = {} if kind == "DaemonSet" else {"replicas": 1 + number % 3}
        cluster.create("shop", workload(kind, f"w-{number}", **fields))
    cluster.settle(60)
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)


def pods_by_workload(cluster: EmbeddedCluster) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pod in cluster.pods("shop"):
        found.setdefault(pod["metadata"]["labels"]["app"], set()).add(pod["metadata"]["uid"])
    return found


def generations(cluster: EmbeddedCluster) -> dict[str, int]:
    plurals = ("deployments", "statefulsets", "daemonsets")
    return {
        w["metadata"]["name"]: w["metadata"]["generation"]
        for p in plurals
        for w in cluster.store.list(p, "shop")
    }


def kill_kubectls(running, chance: random.Random, stop: threading.Event) -> None:
    while not stop.wait(chance.uniform(0.5, 2)):
        children = subprocess.run(
            ["pgrep", "-P", str(running.process.pid)], capture_output=True, text=True
        )
        for pid in children.stdout.split()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.timeout(300)
def test_nothing_is_lost_under_faults(cluster, start, seed):
    """Every second seed has a workload whose patch is refused, so that both exit codes come up."""
    chance = random.Random(seed)
    fill(cluster, 100)
    before = pods_by_workload(cluster)
    if seed % 2:
        cluster.fault(
            method="PATCH", path="deployments/w-5[?]", times=99, status=403, body={"message": "no"}
        )
    cluster.server.chaos = Chaos(seed)
    running = start(
        cluster, CONFIRM, *ALL, "--parallel-rollouts=8", "--timeout=30s", "--log-level=debug"
    )
    stop = threading.Event()
    killer = threading.Thread(target=kill_kubectls, args=(running, chance, stop))
    running.wait_for_log('"message": "progress"')
    killer.start()
    if chance.random() < 0.5:
        cluster.vanish()
        time.sleep(2)  # as long as the API server is away
        cluster.reappear()
    ended = running.finish(240)
    stop.set()
    killer.join()
    cluster.server.chaos = lambda *_: None

    assert "Traceback" not in ended.stderr or '"message": "rollout failed"' in ended.stderr
    assert '"message": "error: unexpected error' not in ended.stderr
    assert sorted(ended.planned) == sorted(f"shop/{name}" for name in before)
    outcomes = {r["name"]: r["outcome"] for r in ended.of("result")}
    assert len(ended.of("result")) == len(outcomes) and outcomes.keys() == before.keys(), (
        "each in exactly one outcome"
    )
    assert max(generations(cluster).values()) <= 2, "each patched at most once"
    after = pods_by_workload(cluster)
    for name, outcome in outcomes.items():
        if outcome in ("succeeded", "completed_late"):
            assert not after[name] & before[name], name
    bad = {"failed", "timed_out", "incomplete"} & ended.summary["outcomes"].keys()
    assert ended.code == (1 if bad else 0) == ended.summary["exit_code"]
    if seed % 2:
        assert (ended.code, outcomes["w-5"]) == (1, "failed")
        assert generations(cluster)["w-5"] == 1


@pytest.mark.timeout(300)
def test_killed_and_run_again_until_nothing_is_left(cluster, start, run, kill):
    """Signals at random moments, then the same command again: at most one restart more than there were SIGKILLs."""
    chance = random.Random(kill)
    fill(cluster, 12)
    before = pods_by_workload(cluster)
    words = (
        CONFIRM,
        *ALL,
        "--parallel-rollouts=4",
        f"--only-started-before={datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
    )
    kills = 0
    for _ in range(3):
        number = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        running = start(cluster, *words)
        running.wait_for_log(
            "scanning Pods"
        )  # until then it is Python that starts: see test_interrupting.py
        try:
            running.process.wait(chance.uniform(0, 2.4))
        except subprocess.TimeoutExpired:
            running.signal(number)
            kills += number == signal.SIGKILL
        ended = running.finish()
        assert "Traceback" not in ended.stderr
        cluster.settle()
    last = run(cluster, *words)
    assert last.code == 0
    assert run(cluster, *words).planned == []
    after = pods_by_workload(cluster)
    assert not any(after[name] & before[name] for name in before)
    assert max(generations(cluster).values()) <= 2 + kills


def test_a_list_that_expires_is_read_again_and_no_pod_counted_twice(cluster, run, tool):
    cluster.create("shop", workload("Deployment", "web", replicas=tool.PAGE + 10))
    cluster.settle(60)
    expired = cluster.fault(path=r"/api/v1/pods\?.*continue=", status=410, body=EXPIRED)
    ended = run(cluster, "--log-level=debug")
    assert expired.reached.is_set()
    assert "the list expired; reading it again" in ended.stderr
    assert ended.of("plan")[0]["pods_to_replace"] == tool.PAGE + 10
    assert [
        r.query.get("continue", "") for r in cluster.server.requests if r.path == "/api/v1/pods"
    ].count("") == 2


def test_long_lists_are_requested_compressed(cluster, run):
    """Over a slow link nothing counts more; the API server decides by the answer's length."""
    cluster.create("shop", workload("Deployment", "web", replicas=200))
    cluster.settle(60)
    sent = cluster.server.compressed
    assert run(cluster).of("plan")[0]["pods_to_replace"] == 200
    assert sent == ["/api/v1/pods"]


def test_a_kubectl_that_is_killed_is_run_again(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.controllers.ready_after = 1.5
    running = start(cluster, CONFIRM, "--log-level=debug")
    running.wait_for_log("Waiting for deployment")
    subprocess.run(["pkill", "-KILL", "-P", str(running.process.pid)], check=True)
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_retries_honour_retry_after_and_are_bounded(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    busy = {"status": 429, "headers": {"Retry-After": "1"}, "body": {"message": "slow down"}}
    cluster.fault(path="/api/v1/pods", times=1, **busy)
    began = time.monotonic()
    assert run(cluster).planned == ["shop/web"]
    assert time.monotonic() - began >= 1
    always = cluster.fault(path="/api/v1/pods", times=99, **{**busy, "headers": {}})
    ended = run(cluster, TEXT)
    assert (ended.code, 99 - always.times) == (3, 5)
    assert "error: 429 slow down (nothing was changed)" in ended.stderr


def test_a_token_that_expires_is_renewed_without_losing_a_rollout(cluster, run, tmp_path):
    """An exec-credential plugin whose tokens live for 2 s, on a run that takes longer."""
    for number in range(4):
        cluster.create("shop", workload("Deployment", f"w-{number}"))
    cluster.settle()
    cluster.controllers.ready_after = 1.0
    cluster.server.tokens = Tokens(cluster.server.tokens, 2)
    ended = run(cluster.write_kubeconfig("exec", a_plugin(tmp_path / "plugin", 2)), CONFIRM)
    assert (ended.code, ended.summary["outcomes"]) == (0, {"succeeded": 4})
    assert ended.summary["seconds"] > 3
    assert len(cluster.server.tokens.issued) > 4
    assert "short-" not in ended.stdout + ended.stderr


def a_plugin(path, seconds: int, before: str = "") -> dict:
    """A kubeconfig's user: a credential plugin whose tokens end after so many seconds; `<path>.runs` counts them."""
    path.write_text(
        "#!/usr/bin/env python3\nimport datetime, json, os, sys, uuid\n"
        f"runs = open({str(path) + '.runs'!r}, 'a+')\nruns.write('run ')\nruns.flush()\n"
        f"{before}\n"
        f"end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds={seconds})\n"
        "status = {'token': f'short-{uuid.uuid4()}', 'expirationTimestamp': end.strftime('%Y-%m-%dT%H:%M:%SZ')}\n"
        "version = 'client.authentication.k8s.io/v1'\n"
        "print(json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status}))\n"
    )
    path.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(path), "interactiveMode": "Never"}}


class Tokens(dict):
    """Takes each token that begins with `short-` for so many seconds."""

    def __init__(self, others: dict[str, str], seconds: float) -> None:
        super().__init__(others)
        self.seconds, self.issued = seconds, {}

    def get(self, token, default=None):
        if not token.startswith("short-"):
            return super().get(token, default)
        first = self.issued.setdefault(token, time.monotonic())
        return "admin" if time.monotonic() - first < self.seconds else None


def test_a_plugin_of_short_lived_tokens_is_not_run_for_each_request(cluster, run, tmp_path):
    """The client takes a token that ends within 5 minutes for ended."""
    for number in range(10):
        cluster.create("shop", workload("Deployment", f"w-{number}"))
    cluster.settle()
    cluster.server.tokens = Tokens(cluster.server.tokens, 60)
    ended = run(cluster.write_kubeconfig("exec", a_plugin(tmp_path / "plugin", 60)))
    assert len(ended.planned) == 10
    runs = (tmp_path / "plugin.runs").read_text().split()
    assert len(runs) <= 3 < len(cluster.server.requests)


def test_a_plugin_whose_tokens_name_no_end_is_run_again_when_one_is_refused(cluster, run, tmp_path):
    for number in range(3):
        cluster.create("shop", workload("Deployment", f"w-{number}"))
    cluster.settle()
    cluster.controllers.ready_after = 1.0
    cluster.server.tokens = Tokens(cluster.server.tokens, 2)
    user = a_plugin(tmp_path / "plugin", 2)
    text = (tmp_path / "plugin").read_text()
    (tmp_path / "plugin").write_text(re.sub(", 'expirationTimestamp'.*}", "}", text))
    ended = run(cluster.write_kubeconfig("exec", user), CONFIRM)
    assert (ended.code, ended.summary["outcomes"]) == (0, {"succeeded": 3})
    assert ended.summary["seconds"] > 3


def test_a_token_file_is_read_again_when_its_token_is_refused(cluster, start, tmp_path):
    """With the line end that an editor leaves."""
    cluster.create("shop", workload("Deployment", "a"))
    cluster.create("shop", workload("Deployment", "b"))
    cluster.settle()
    cluster.controllers.ready_after = 1.0
    token = tmp_path / "token"
    token.write_text("admin-token\n")
    path = cluster.write_kubeconfig("file", {"tokenFile": str(token)})
    running = start(cluster, CONFIRM, f"--kubeconfig={path}", "--log-level=debug")
    running.wait_for_log('"message": "progress"')
    cluster.server.tokens = {"next-token": "admin"}
    token.write_text("next-token\n")
    ended = running.finish()
    assert ended.outcomes["shop/b"] == "succeeded"
    assert "-token" not in ended.stderr


@pytest.mark.parametrize("token", ["SECRET\nX-Other: header", "SECR\u20acT", "SECRET\x7f"])
def test_a_token_that_is_none_is_refused_and_not_shown(cluster, run, token):
    ended = run(cluster.write_kubeconfig("odd", {"token": token}), TEXT, "--log-level=debug")
    assert ended.code == 3
    assert "SECR" not in ended.stderr
    assert "the token must be printable ASCII; check the credentials" in ended.stderr


def test_credentials_that_cannot_be_renewed_are_requested_again(tool):
    """What an identity provider says that is unavailable for a moment is not shown."""
    answers = [OSError("SECRET"), "Bearer good"]

    class Configuration:
        def get_api_key_with_prefix(self, *names, **more):
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    credentials = tool.Credentials(tool.Connection(Configuration()))
    with pytest.raises(tool.ApiError) as told:
        credentials.get()
    assert (told.value.status, str(told.value)) == (0, "cannot renew the credentials: OSError")
    assert told.value.__suppress_context__
    assert credentials.get() == credentials.get() == "Bearer good"


def test_a_token_that_was_rejected_is_read_again_once_for_all_threads(tool):
    reloads = []
    configuration = types.SimpleNamespace(
        get_api_key_with_prefix=lambda *_, **__: f"t{len(reloads)}"
    )
    connection = tool.Connection(configuration, reload=lambda: reloads.append(1))
    credentials = tool.Credentials(connection)
    first = credentials.get()
    assert [credentials.get(rejected=first) for _ in range(5)] == ["t1"] * 5
    assert len(reloads) == 1


def test_a_plugin_that_fails_in_mid_run_and_what_it_wrote_stays_unsaid(cluster, run, tmp_path):
    """Its second run fails, with what may be a token on its standard output."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.server.tokens = Tokens(cluster.server.tokens, 60)
    fails = "runs.seek(0)\nif runs.read().count('run') > 1: sys.exit(print('short-SECRET') or 'login: SECRET expired')"
    path = cluster.write_kubeconfig("exec", a_plugin(tmp_path / "plugin", 60, fails))
    ended = run(path, "--log-level=debug")
    assert (tmp_path / "plugin.runs").read_text().count("run") > 1
    assert ended.planned == ["shop/web"]
    assert "SECRET" not in ended.stdout + ended.stderr


# Input that means harm


EVIL = "\x1b[2J\x1b]0;owned\x07\r\nfake: line\u202e" + "x" * 60_000


def test_hostile_conditions_and_annotations(cluster, run):
    cluster.create(
        "shop", workload("Deployment", "web", progressDeadlineSeconds=1, annotations={"evil": EVIL})
    )
    cluster.settle()
    cluster.controllers.ready_after = 60
    cluster.fault(method="PATCH", path="deployments/web", status=422, body={"message": EVIL})
    ended = run(cluster, TEXT, CONFIRM)
    assert ended.code == 1
    shown = ended.stdout + ended.stderr
    assert not set(shown) & set("\x1b\x07\r\u202e")
    assert "\\x1b[2J" in shown
    assert not any(line.startswith("fake") for line in shown.splitlines())


@pytest.mark.parametrize("owner", ["StatefulSet", EVIL, None])
def test_hostile_names(cluster, run, owner):
    """No API server takes such names; one that means harm may say them all the same."""
    metadata = {"name": EVIL, "namespace": EVIL, "creationTimestamp": "2026-01-01T00:00:00Z"}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": owner, "name": EVIL, "controller": True}
        ]
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "istio-proxy", "image": EVIL}]}}
    listed = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}
    cluster.fault(path="/api/v1/pods", status=200, body=listed)
    ended = run(cluster, TEXT, "--log-level=debug")
    shown = ended.stdout + ended.stderr
    assert ended.code == 0
    assert "Skipped:" in ended.stdout
    assert not set(shown) & set("\x1b\x07\r\u202e")
    assert "\\x1b[2J" in shown
    assert not any(line.startswith("fake") for line in shown.splitlines())


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE html><html>log in</html>",
        b'{"kind":"PodList","metadata":{},"items":[1,2]}',
        b'{"kind":"PodList","metadata":{},"items":[{"metadata":{"name":5,"namespace":[]},"spec":{"containers":"x"}}]}',
        b'{"kind":"PodList","metadata":{},"items":{"a":1}}',
        b'{"kind":"PodList","metadata":[],"items":[]}',
        b'{"kind":"PodList","metadata":{"continue":7},"items":null}',
        b'{"kind":"PodList","metadata":{},"items":[',
        b"[" * 100_000,
        b" " * 10_000_000,
        b"\xff\xfe\x00",
        b'{"kind":"PodList","metadata":{},"items":[{"metadata":{"name":"\x1b[2J"}}]}',
    ],
)
def test_hostile_answers(cluster, run, body):
    cluster.fault(path="/api/v1/pods", status=200, body=body)
    ended = run(cluster, TEXT)
    assert (ended.code, ended.stdout.count("\n")) == (3, 1)
    wrong = [line for line in ended.stderr.splitlines() if "INFO" not in line]
    assert len(wrong) == 1
    assert re.search(
        "error: (unexpected|truncated) response: .* \\(nothing was changed\\)", wrong[0]
    )
    assert len(wrong[0]) < 500
    assert "\x1b" not in ended.stderr


OPTIONS = sorted(
    set(re.findall(r'"(--[a-z-]+[a-z])[ "]', SCRIPT.read_text()))
    - {"--flatten", "--raw", "--minify", "--namespace"}
)
NEARLY = st.from_regex(
    r"[0-9]{0,9}[-:. TZ+a-z0-9/,%=*]{0,25}", fullmatch=True
)  # times, durations, names, amounts


def test_all_options_are_known_to_the_next_test():
    assert {"--sidecar-container-name", "--only-started-before", "--timeout", "--log-format"} < set(
        OPTIONS
    )
    assert len(OPTIONS) == 37  # with --help and --version


@given(
    st.lists(
        st.tuples(st.sampled_from(OPTIONS), st.text(max_size=30) | NEARLY | st.none()), max_size=4
    ),
    st.lists(st.text(max_size=30) | NEARLY | st.just("deploy/web"), max_size=2),
)
def test_no_command_line_makes_it_crash(tool, given_options, workloads):
    words = [option if word is None else f"{option}={word}" for option, word in given_options]
    words += workloads
    with (
        contextlib.redirect_stderr(io.StringIO()) as told,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            tool.parse_args(["--sidecar-container-name=x", *words])
        except SystemExit as ended:
            assert ended.code == (2 if told.getvalue() else 0)
        lines = told.getvalue().splitlines()
        assert len(lines) in (0, 2)
        assert all(map(str.isprintable, lines))


def test_a_workload_of_a_strange_shape_fails_alone(cluster, run):
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name, pod_spec(container("app"))))
    cluster.settle()
    cluster.fault(method="PATCH", path="deployments/b", status=200, body=b"[]")
    ended = run(cluster, CONFIRM)
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "failed", "shop/c": "succeeded"}
    assert "unexpected response: not a JSON object: " in json.dumps(ended.of("result"))


@pytest.mark.parametrize("layout", ["text", "json"])
def test_standard_output_that_is_full(cluster, layout):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    words, environment = command(cluster.kubeconfig, f"--log-format={layout}", CONFIRM)
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            words, env=environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert "rollout succeeded" in ended.stderr
    assert "cannot write to standard output: No space left on device" in ended.stderr
