"""Tokens that expire or are rejected during a run, from files and credential plugins."""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading
import time
import types
import urllib.parse
from pathlib import Path
from typing import ClassVar

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


def test_a_plugin_may_print_more_than_a_pipe_holds(cluster, run, tmp_path):
    version = "client.authentication.k8s.io/v1"
    found = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "admin-token"}}
    (tmp_path / "output").write_text(json.dumps({**found, "more": "x" * 200_000}))
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho before >&2\ncat {tmp_path}/output\necho after >&2\n")
    plugin.chmod(0o755)
    user = {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}
    assert run(cluster.write_kubeconfig("large", {"exec": user})).code == 0


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
        connection.authorization()
    assert told.value.reply.name == "NO_RESPONSE"
    assert str(told.value) == "cannot renew the credentials: OSError"
    assert told.value.__suppress_context__
    assert connection.authorization() == connection.authorization() == "Bearer good"


def test_a_token_is_kept_for_half_a_minute(tool, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(tool, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    tokens = iter(["one", "two"])
    configuration = types.SimpleNamespace(get_api_key_with_prefix=lambda *_, **__: next(tokens))
    connection = tool.Connection(configuration)
    assert connection.authorization() == "one"
    now[0] += 29
    assert connection.authorization() == "one"
    now[0] += 2
    assert connection.authorization() == "two"


def test_a_token_that_was_rejected_is_read_again_once_for_all_threads(tool):
    reloads = []
    configuration = types.SimpleNamespace(
        get_api_key_with_prefix=lambda *_, **__: f"t{len(reloads)}"
    )
    connection = tool.Connection(configuration, reload=lambda: reloads.append(1))
    first = connection.authorization()
    assert [connection.authorization(rejected=first) for _ in range(5)] == ["t1"] * 5
    assert len(reloads) == 1


def test_a_question_of_a_plugin_that_ends_no_line_is_shown_at_once(cluster, start, tmp_path):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.server.tokens = Tokens(cluster.server.tokens, 60)
    done = tmp_path / "done"
    asks = (
        "import os, time\nprint('Enter ABCD-1234: ', end='', file=sys.stderr, flush=True)\n"
        f"while not os.path.exists({str(done)!r}): time.sleep(0.05)"
    )
    path = cluster.write_kubeconfig("exec", a_plugin(tmp_path / "plugin", 60, asks))
    running = start(cluster, TEXT, f"--kubeconfig={path}")
    running.wait_for_log("Enter ABCD-1234:")
    done.touch()
    assert running.finish().code == 0


def test_what_a_plugin_leaves_behind_is_not_waited_for(cluster, run, tmp_path):
    """Such as an ssh that others share: it keeps standard error."""
    cluster.server.tokens = Tokens(cluster.server.tokens, 60)
    leave = "import subprocess\nsubprocess.Popen(['sleep', '30'])"
    path = cluster.write_kubeconfig("exec", a_plugin(tmp_path / "plugin", 60, leave))
    began = time.monotonic()
    assert run(path).code == 0
    assert time.monotonic() - began < 20


def test_a_login_in_mid_run_is_asked_for_at_once(cluster, run, tmp_path):
    """What a plugin says on standard error is shown; what it prints, perhaps a token, is not."""
    for name in "abc":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.kubelet.ready_after = 1.0
    cluster.server.tokens = Tokens(cluster.server.tokens, 2)
    asks = (
        "runs.seek(0)\nif runs.read().count('run') > 1: print('Enter ABCD-1234', file=sys.stderr)"
    )
    path = cluster.write_kubeconfig("exec", a_plugin(tmp_path / "plugin", 2, asks))
    ended = run(path, TEXT, CONFIRM)
    assert ended.code == 0
    plugin = f"credential plugin {tmp_path / 'plugin'} (context embedded)"
    assert f" WARNING {plugin}: Enter ABCD-1234\n" in ended.stderr
    assert "short-" not in ended.stdout + ended.stderr


# kubectl renews what belongs to an auth-provider


def a_token(seconds: float) -> str:
    """A JSON Web Token, which nobody has signed, for so many seconds."""
    parts = ({"alg": "RS256"}, {"sub": "ops", "exp": int(time.time() + seconds)})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(text.rstrip("=") for text in (*texts, "c2ln"))


class Provider(http.server.BaseHTTPRequestHandler):
    """An OpenID Connect provider whose refresh tokens can be used once."""

    refresh_tokens: ClassVar[list[str]] = []
    lifetime = 3600.0

    def answer(self, status: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        url = f"http://127.0.0.1:{self.server.server_port}"
        self.answer(200, {"issuer": url, "token_endpoint": f"{url}/token"})

    def do_POST(self) -> None:
        words = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if words["refresh_token"] != self.refresh_tokens[-1:]:
            self.answer(400, {"error": "invalid_grant"})
            return
        token = a_token(self.lifetime)
        self.server.cluster.server.tokens[token] = "admin"
        self.refresh_tokens.append(f"once-{len(self.refresh_tokens)}")
        refresh = self.refresh_tokens[-1]
        self.answer(
            200,
            {
                "access_token": "x",
                "token_type": "bearer",
                "id_token": token,
                "refresh_token": refresh,
            },
        )

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def with_provider(cluster, tmp_path):
    """A kubeconfig whose token has expired, and whose refresh token has not been used."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    Provider.refresh_tokens[:] = ["once-0"]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider) as provider:
        provider.cluster = cluster
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        config = {
            "idp-issuer-url": f"http://127.0.0.1:{provider.server_port}",
            "client-id": "kubectl",
        }
        config |= {"client-secret": "", "id-token": a_token(-60), "refresh-token": "once-0"}
        path = tmp_path / "config"
        user = {"auth-provider": {"name": "oidc", "config": config}}
        path.write_text(json.dumps(cluster.kubeconfig_for(user)))
        yield str(path)
        provider.shutdown()


def kept(path: str) -> str:
    """The refresh token in a kubeconfig."""
    return re.search(r"refresh-token[\"']?: [\"']?([\w-]+)", Path(path).read_text())[1]


@pytest.mark.parametrize("options", [(), (CONFIRM,)])
def test_kubectl_renews_a_token_and_keeps_what_comes_with_it(with_provider, run, options):
    """A refresh token can be used once: a dry run that used it up would log a person out."""
    for number in (1, 1):  # the second run has a token that is valid
        ended = run(with_provider, *options)
        assert (ended.code, ended.planned) == (0, ["shop/web"])
        assert kept(with_provider) == Provider.refresh_tokens[-1] == f"once-{number}"


def test_such_a_token_is_renewed_in_mid_run(with_provider, cluster, start, run):
    run(with_provider)
    cluster.kubelet.ready_after = 1.0
    running = start(cluster, CONFIRM, f"--kubeconfig={with_provider}", "--log-level=debug")
    running.wait_for_log("running kubectl")
    path = Path(with_provider)
    for token in [token for token in cluster.server.tokens if "." in token]:
        del cluster.server.tokens[token]
        path.write_text(path.read_text().replace(token, a_token(-60)))
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert kept(with_provider) == "once-2"


def test_such_a_context_that_impersonates_is_refused_as_any(with_provider, run):
    path = Path(with_provider)
    config = json.loads(path.read_text())
    config["users"][0]["user"]["as"] = "jane"
    path.write_text(json.dumps(config))
    ended = run(with_provider, TEXT)
    assert ended.code == 3
    assert "impersonates jane, which is not supported" in ended.stderr


def test_a_login_that_is_over_ends_in_what_kubectl_says(with_provider, run):
    Provider.refresh_tokens.append("used-elsewhere")
    ended = run(with_provider, TEXT)
    assert ended.code == 3
    assert "error: kubectl cannot connect to the cluster; to reproduce: " in ended.stderr
    assert "invalid_grant" in ended.stderr
