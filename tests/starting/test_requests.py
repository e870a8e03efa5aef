"""Requests: their deadline, the clock of their answers, the proxy, impersonation."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster.manifests import workload
from support import CONFIRM, KUBECTL, TEXT


@pytest.fixture
def client(tool, cluster):
    """The tool's Cluster, whose requests may take half a second."""
    connection = tool.connect(KUBECTL, cluster.kubeconfig, None)
    found = tool.Cluster(connection)
    found.check_connection()
    found.patience = 0.5
    return found


def test_a_server_that_accepts_and_never_answers_holds_a_request_until_its_deadline(
    client, cluster, tool
):
    never = threading.Event()
    cluster.fault(path="/version", release=never, times=9)
    began = time.monotonic()
    with pytest.raises(tool.ApiError, match="cannot connect to the API server at https://127"):
        client.request("GET", "/version")
    assert time.monotonic() - began < 5
    never.set()


def test_a_retry_after_of_an_hour_is_not_followed(client, cluster, tool):
    cluster.fault(path="/version", status=429, headers={"Retry-After": "3600"}, body={}, times=9)
    began = time.monotonic()
    with pytest.raises(tool.ApiError) as caught:
        client.request("GET", "/version")
    assert (caught.value.status, caught.value.retry_after) == (429, 3600)
    assert time.monotonic() - began < 5


def test_a_credential_plugin_that_hangs_blocks_nobody_for_good(client, tool):
    never = threading.Event()
    client.connection.read_token = lambda renew: never.wait(30) and ""
    client.connection.valid_until = 0
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(tool.ApiError, match="the credential plugin does not answer"):
            client.request("GET", "/version")
    assert time.monotonic() - began < 10
    never.set()


def answer(date: str | None) -> SimpleNamespace:
    return SimpleNamespace(status=200, headers={"Date": date} if date else {})


def test_the_clock_is_that_of_the_api_server_never_ahead_of_it(client):
    client.clock = 0.0
    client.set_clock(answer("Sun, 22 Nov 2026 10:00:00 GMT"))
    moment = datetime(2026, 11, 22, 10, tzinfo=timezone.utc)
    assert timedelta(0) <= client.now() - moment < timedelta(seconds=5)
    client.set_clock(answer("Sun, 22 Nov 2026 09:59:59 GMT"))  # of another, slower API server
    assert client.now() >= moment
    page = answer("Sun, 22 Nov 2026 23:00:00 GMT")
    page.status = 502  # of a proxy
    client.set_clock(page)
    assert client.now() < moment + timedelta(hours=1)
    client.set_clock(answer("Sun, 22 Nov 2026 10:00:30 GMT"))
    assert client.now() >= moment + timedelta(seconds=30)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 99 Nov 2026"])
def test_an_answer_without_a_date_does_not_set_the_clock(client, date):
    client.clock = 0.0
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


@pytest.mark.parametrize(
    ("host", "cluster", "used"),
    [
        ("https://127.0.0.1:6443", {}, None),
        ("https://localhost:6443", {}, None),
        ("https://[::1]:6443", {}, None),
        ("https://127.0.0.1:6443", {"proxy-url": "http://p:3128"}, "http://p:3128"),
        ("https://api.example:6443", {}, "http://p:3128"),
        ("https://127.example", {}, "http://p:3128"),
        ("https://internal.example", {}, None),
    ],
)
@pytest.mark.parametrize("given", ["http://p:3128", "p:3128"])  # Go accepts both
def test_which_proxy_is_used(tool, monkeypatch, host, cluster, used, given):
    monkeypatch.setenv("HTTPS_PROXY", given)
    monkeypatch.setenv("NO_PROXY", "internal.example")
    configuration = configured(host, cluster.get("proxy-url", given))
    tool.check_proxy({"clusters": [{"cluster": cluster}]}, configuration)
    assert configuration.proxy == used


@pytest.mark.parametrize("proxy", ["ftp://p", "socks5://p", "http://", "http://user:secret@ x"])
def test_a_malformed_proxy_is_one_line(tool, proxy):
    with pytest.raises(tool.StartError, match="^invalid proxy URL .*must be http://") as caught:
        tool.check_proxy({}, configured("https://api.example", proxy))
    assert "secret" not in str(caught.value)


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


def test_a_password_in_a_servers_url_is_not_shown(tool):
    configuration = configured("https://user:hunter2@api.example", None)
    connection = tool.Connection(configuration, context="x")
    assert str(connection) == "Context x (https://user:<redacted>@api.example)"
    assert connection.via == "https://user:<redacted>@api.example"


@pytest.mark.parametrize("name", ["jürgen", "日本"])
def test_impersonated_names_are_sent_in_utf_8(tool, name):
    headers = dict(tool.impersonation_headers({"as": name, "as-groups": [name]}))
    assert headers["Impersonate-User"].encode("latin-1").decode() == name
    assert headers["Impersonate-Group"].encode("latin-1").decode() == name
