"""Requests: their deadline, the clock of their answers, the proxy."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, KUBECTL, TEXT, raises_api_error
from texts import CANNOT_CONNECT


@pytest.fixture
def client(tool, cluster):
    """The tool's Cluster, whose requests may take half a second."""
    connection = tool.connect(KUBECTL, cluster.kubeconfig, None)
    found = tool.Cluster(connection)
    found.check_connection()
    found.patience = connection.patience = 0.5
    return found


def test_a_server_that_accepts_and_never_answers_holds_a_request_until_its_deadline(
    client, cluster, tool
):
    never = threading.Event()
    cluster.fault(path="/version", release=never, times=9)
    began = time.monotonic()
    with raises_api_error(tool, match=f"{CANNOT_CONNECT}https://127"):
        client.request("GET", "/version")
    assert time.monotonic() - began < 5
    never.set()


def test_a_retry_after_of_an_hour_is_not_followed(client, cluster, tool):
    cluster.fault(path="/version", status=429, headers={"Retry-After": "3600"}, body={}, times=9)
    began = time.monotonic()
    with raises_api_error(tool) as caught:
        client.request("GET", "/version")
    assert (caught.value.reply.name, caught.value.retry_after) == ("OVERLOADED", 3600)
    assert time.monotonic() - began < 5


def test_who_asks_for_more_than_half_a_minute_is_asked_again_after_it(
    client, cluster, tool, monkeypatch
):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    client.patience = 60
    cluster.fault(path="/version", status=429, headers={"Retry-After": "3600"}, body={})
    assert b"gitVersion" in client.request("GET", "/version")
    assert pauses == [30]


@pytest.fixture
def with_plugin(client, cluster, tool, tmp_path):
    """with_plugin(text): a client whose token is rejected, and whose credential plugin is this script by now."""

    def make(text: str) -> Path:
        plugin = tmp_path / "plugin"
        version = "client.authentication.k8s.io/v1"
        found = {
            "apiVersion": version,
            "kind": "ExecCredential",
            "status": {"token": "admin-token"},
        }
        plugin.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
        plugin.chmod(0o755)
        user = {"exec": {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}}
        client.connection = tool.connect(KUBECTL, cluster.write_kubeconfig("exec", user), None)
        client.connection.patience = 0.5
        assert client.request("GET", "/version")
        plugin.write_text(f"#!/bin/sh\n{text}\n")
        cluster.server.tokens = {}
        return plugin

    return make


def test_a_credential_plugin_that_hangs_in_mid_run_is_ended(client, tool, with_plugin):
    """Else each request would start another one, which waits for a login, too."""
    with_plugin("exec sleep 60")
    with raises_api_error(tool, match="the credential plugin does not answer"):
        client.request("GET", "/api/v1/pods")
    assert client.connection.plugin.wait(10) == -9


def test_a_first_connection_that_is_cut_is_made_once_more(cluster, run):
    cluster.fault(path="/version", drop="before", times=1)
    assert run(cluster).code == 0


def test_events_that_are_too_many_are_not_read_to_their_end(client, cluster, tool):
    """Who may write them in a namespace would exhaust the memory."""
    event = b'{"message":"' + b"x" * 250_000 + b'"},'
    body = b'{"metadata":{},"items":[' + event * 70 + b"{}]}"
    cluster.fault(path="/events", status=200, body=body, times=1)
    client.patience = 30
    obj = {"metadata": {"uid": "u", "namespace": "shop"}}
    with raises_api_error(tool, match="/events: more than"):
        client.latest_event(obj, "reason=FailedCreate")


def test_somebody_who_logs_in_has_longer_than_a_look(client, cluster, tool, with_plugin):
    """Else each look would end the plugin, and the next one would ask with another code."""
    plugin = with_plugin("echo x")
    text = plugin.read_text().replace("echo x", f"sleep 1; cat {plugin}.token")
    token = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    Path(f"{plugin}.token").write_text(json.dumps(token | {"status": {"token": "new"}}))
    plugin.write_text(text)
    cluster.server.tokens = {"new": "admin"}
    client.connection.patience = 20
    assert b"gitVersion" in client.at_a_glance(0.3).request("GET", "/version")


def test_a_credential_plugin_that_fails_in_mid_run_is_named(client, tool, with_plugin):
    """What it printed may be a token."""
    name = f"credential plugin {with_plugin('echo SECRET-1234; exit 3')} (context embedded)"
    with raises_api_error(tool) as told:
        client.request("GET", "/api/v1/pods")
    text = f"cannot renew the credentials: {name} failed with exit code 3"
    assert (str(told.value), told.value.__cause__) == (text, None)


def test_a_credential_plugin_that_hangs_blocks_nobody_for_good(client, tool):
    never = threading.Event()
    client.connection.read_token = lambda renew: never.wait(30) and ""
    client.connection.valid_until = 0
    began = time.monotonic()
    for _ in range(2):
        with raises_api_error(tool, match="the credential plugin does not answer"):
            client.request("GET", "/version")
    assert time.monotonic() - began < 10
    never.set()


def answer(date: str | None, status: int = 200) -> SimpleNamespace:
    return SimpleNamespace(status=status, headers={"Date": date} if date else {})


def test_the_clock_is_that_of_the_api_server_never_ahead_of_it(client):
    """Of several API servers, or proxies, one may have a wrong clock: the median counts."""
    client.clocks.clear()
    moment = datetime(2026, 11, 22, 10, tzinfo=timezone.utc)
    client.set_clock(answer("Sun, 22 Nov 2026 11:00:00 GMT"))
    for _ in range(3):
        client.set_clock(answer("Sun, 22 Nov 2026 10:00:00 GMT"))
        client.set_clock(answer("Sun, 22 Nov 2026 23:00:00 GMT", 502))  # of a proxy
    assert timedelta(0) <= client.now() - moment < timedelta(seconds=5)
    client.set_clock(answer("Sun, 22 Nov 2026 09:00:00 GMT"))
    assert client.now() >= moment
    for _ in range(9):  # it was set
        client.set_clock(answer("Sun, 22 Nov 2026 10:30:00 GMT"))
    assert client.now() >= moment + timedelta(minutes=30)


def test_one_skewed_api_server_does_not_move_the_cutoff(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ahead = f"{datetime.now(timezone.utc) + timedelta(hours=1):%a, %d %b %Y %H:%M:%S} GMT"
    cluster.fault(path="/version", status=200, body={}, headers={"Date": ahead}, times=99)
    ended = run(cluster)
    cutoff = datetime.fromisoformat(ended.summary["started_before"].replace("Z", "+00:00"))
    assert cutoff - datetime.now(timezone.utc) < timedelta(minutes=1)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 99 Nov 2026"])
def test_an_answer_without_a_date_does_not_set_the_clock(client, date):
    client.clocks.clear()
    client.set_clock(answer(date))
    assert abs(client.now() - datetime.now(timezone.utc)) < timedelta(seconds=5)


def test_no_pod_of_a_run_is_older_than_its_cutoff(cluster, run):
    """So that the command that it prints does not restart them again."""
    for name in "abc":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--parallel-rollouts=3")
    cutoff = ended.summary["started_before"]
    assert all(p["metadata"]["creationTimestamp"] >= cutoff for p in cluster.pods("shop"))


def configured(host: str, proxy: str | None) -> SimpleNamespace:
    return SimpleNamespace(host=host, proxy=proxy)


def test_a_proxy_that_does_not_answer_is_named(cluster, run, tmp_path):
    ended = run(cluster, TEXT, HTTPS_PROXY="http://user:hunter2@127.0.0.1:9", NO_PROXY="")
    assert ended.code == 0, ended.stderr  # the API server has a loopback address
    config = json.loads(Path(cluster.kubeconfig).read_text())
    config["clusters"][0]["cluster"]["proxy-url"] = "http://user:hunter2@127.0.0.1:9"
    path = tmp_path / "proxied"
    path.write_text(json.dumps(config))
    ended = run(str(path), TEXT)
    assert ended.code == 3
    assert "through the proxy http://user:<redacted>@127.0.0.1:9: " in ended.stderr
    assert "hunter2" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("name", ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"])
def test_only_the_proxy_for_the_servers_scheme_is_used(
    cluster, run, tool, tmp_path, monkeypatch, name
):
    """Go's net/http, and so kubectl, knows no ALL_PROXY, and asks no proxy for a loopback address."""
    monkeypatch.setattr(tool, "RETRIES", 0)
    config = json.loads(Path(cluster.kubeconfig).read_text())
    config["clusters"][0]["cluster"]["server"] = "https://api.invalid:6443"
    path = tmp_path / "elsewhere"
    path.write_text(json.dumps(config))
    unset = dict.fromkeys(("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"), "")
    ended = run(str(path), TEXT, **{**unset, name: "http://127.0.0.1:9"})
    assert (ended.code, "error: cannot connect" in ended.stderr) == (3, True), ended.stderr
    assert ("through the proxy" in ended.stderr) == (name == "HTTPS_PROXY")


def test_a_password_in_a_servers_url_is_not_shown(tool):
    configuration = configured("https://user:hunter2@api.example", None)
    connection = tool.Connection(configuration, context="x")
    assert str(connection) == "Context x (https://user:<redacted>@api.example)"
    assert connection.via == "https://user:<redacted>@api.example"


def test_a_look_has_one_try(client, cluster, tool):
    """It is one of many: a worker that looks does not wait for an API server that is away."""
    client.patience = 20
    away = cluster.fault(path="/version", status=503, times=9)
    with raises_api_error(tool) as told:
        client.at_a_glance().request("GET", "/version")
    assert (told.value.reply.name, away.times) == ("GATEWAY", 8)


def test_the_image_of_another_pod_of_the_same_name_is_not_changed(client, cluster, tool):
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.settle()
    (found,) = cluster.pods("shop")
    before = {**found, "metadata": {**found["metadata"], "uid": "of-an-earlier-one"}}
    with raises_api_error(tool) as told:
        client.change_images(before, {"istio-proxy": "istio/proxyv2:2"})
    assert told.value.reply.name == "INVALID"  # the UID cannot be changed
    assert cluster.pods("shop") == [found]
