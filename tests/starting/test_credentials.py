"""Tokens that expire or are rejected during a run, from files and credential plugins."""

from __future__ import annotations

import re
import time
import types

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, TEXT, raises_api_error


def test_a_token_that_expires_is_renewed_without_losing_a_rollout(cluster, run, tmp_path):
    """An exec-credential plugin whose tokens live for 2 s, on a run that takes longer."""
    for number in range(4):
        cluster.create("shop", workload("Deployment", f"w-{number}"))
    cluster.settle()
    cluster.kubelet.ready_after = 1.0
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
    cluster.kubelet.ready_after = 1.0
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
    cluster.kubelet.ready_after = 1.0
    token = tmp_path / "token"
    token.write_text("admin-token\n")
    path = cluster.write_kubeconfig("file", {"tokenFile": str(token)})
    running = start(cluster, CONFIRM, f"--kubeconfig={path}", "--log-level=debug")
    running.wait_for_log("running kubectl")
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

    connection = tool.Connection(Configuration())
    with raises_api_error(tool) as told:
        connection.authorization(time.monotonic() + 20)
    assert told.value.reply.name == "NO_RESPONSE"
    assert str(told.value) == "cannot renew the credentials: OSError"
    assert told.value.__suppress_context__
    assert (
        connection.authorization(time.monotonic() + 20)
        == connection.authorization(time.monotonic() + 20)
        == "Bearer good"
    )


def test_a_token_is_kept_for_half_a_minute(tool, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(tool, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    tokens = iter(["one", "two"])
    configuration = types.SimpleNamespace(get_api_key_with_prefix=lambda *_, **__: next(tokens))
    connection = tool.Connection(configuration)
    assert connection.authorization(now[0] + 20) == "one"
    now[0] += 29
    assert connection.authorization(now[0] + 20) == "one"
    now[0] += 2
    assert connection.authorization(now[0] + 20) == "two"


def test_a_token_that_was_rejected_is_read_again_once_for_all_threads(tool):
    reloads = []
    configuration = types.SimpleNamespace(
        get_api_key_with_prefix=lambda *_, **__: f"t{len(reloads)}"
    )
    connection = tool.Connection(configuration, reload=lambda: reloads.append(1))
    first = connection.authorization(time.monotonic() + 20)
    assert [connection.authorization(time.monotonic() + 20, rejected=first) for _ in range(5)] == [
        "t1"
    ] * 5
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
