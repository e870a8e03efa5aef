"""Which cluster, as which user: kubectl reads the kubeconfig, and the API calls mean the same."""

from __future__ import annotations

import base64
import http.server
import json
import os
import selectors
import signal
import socket
import stat
import subprocess
import threading
from pathlib import Path

import pytest
import trustme
from clusters.embedded.manifests import workload
from support import CONFIRM, KUBECTL, let_ready
from texts import NO_NEW_ROLLOUTS


@pytest.fixture
def shop(cluster):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    return cluster


def write(path: Path, config: dict) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    return str(path)


def test_several_files_of_which_one_is_missing(shop, run, tmp_path):
    """The first that names a context decides; the user may be in another file."""
    config = shop.kubeconfig_for()
    first = {**config, "users": []}
    second = {**config, "current-context": "other", "clusters": [], "contexts": []}
    paths = [
        write(tmp_path / "one", first),
        str(tmp_path / "missing"),
        write(tmp_path / "two", second),
    ]
    ended = run(":".join(paths), CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert ended.summary["context"] == "embedded"


def test_a_relative_path_of_a_certificate_starts_at_the_kubeconfig(shop, run, tmp_path):
    config = shop.kubeconfig_for()
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "ca.crt").write_text(shop.authority)
    config["clusters"][0]["cluster"] = {
        "server": shop.url,
        "certificate-authority": "certs/ca.crt",
    }
    path = write(tmp_path / "config", config)
    assert run(path, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert run(None, CONFIRM, f"--kubeconfig={path}").code == 0


def test_a_relative_path_of_a_credential_plugin_starts_at_the_kubeconfig(shop, run, tmp_path):
    """As for kubectl, also if an earlier file of KUBECONFIG does not exist."""
    status = {"token": "admin-token"}
    version = "client.authentication.k8s.io/v1beta1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "plugin").write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    (tmp_path / "bin" / "plugin").chmod(0o755)
    plugin = {"apiVersion": version, "command": "bin/plugin", "interactiveMode": "Never"}
    path = write(tmp_path / "config", shop.kubeconfig_for({"exec": plugin}))
    assert run(f"/missing/config:{path}", CONFIRM).outcomes == {"shop/web": "succeeded"}


def a_login(folder: Path, token: str) -> None:
    """A plugin bin/login in a folder."""
    version = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "login").write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    (folder / "bin" / "login").chmod(0o755)


LOGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "bin/login"}


def test_of_several_files_it_starts_at_the_one_that_has_the_user(shop, run, tmp_path):
    """Else the token of one customer is sent to the cluster of another."""
    one, two = (shop.kubeconfig_for({"exec": LOGIN | {"interactiveMode": "Never"}}) for _ in "ab")
    one["users"][0]["name"] = one["clusters"][0]["name"] = "one"
    one["contexts"] = [{"name": "one", "context": {"cluster": "one", "user": "one"}}]
    one["current-context"] = two["current-context"]
    a_login(tmp_path / "one", "token-of-one")
    a_login(tmp_path / "two", "admin-token")
    paths = [write(tmp_path / n / "config", c) for n, c in (("one", one), ("two", two))]
    seen = set()
    user_of = shop.server.user_of

    def note(headers):
        seen.add(headers.get("authorization"))
        return user_of(headers)

    shop.server.user_of = note
    assert run(":".join(paths)).planned == ["shop/web"]
    assert seen == {"Bearer admin-token"}


def test_relative_paths_of_the_default_kubeconfig(shop, run, tmp_path):
    a_login(tmp_path / ".kube", "admin-token")
    config = shop.kubeconfig_for({"exec": LOGIN | {"interactiveMode": "Never"}})
    write(tmp_path / ".kube" / "config", config)
    assert run(None, HOME=str(tmp_path)).planned == ["shop/web"]
    (tmp_path / ".kube" / "token").write_text("admin-token")
    write(tmp_path / ".kube" / "config", shop.kubeconfig_for({"tokenFile": "token"}))
    assert run(None, HOME=str(tmp_path)).planned == ["shop/web"]


def test_an_error_of_kubectl_quotes_no_user(shop, run, tmp_path):
    config = shop.kubeconfig_for({"token": "SECRET-1"})
    config["users"].append(
        {**config["users"][0], "user": {"username": "u", "password": "SECRET-2"}}
    )
    path = write(tmp_path / "config", config)
    for form in ("text", "json"):
        ended = run(path, f"--log-format={form}")
        assert (ended.code, "SECRET" in ended.stdout + ended.stderr) == (3, False)


def test_no_credentials_are_sent_without_tls(shop, run, tmp_path):
    """As by kubectl; `kubectl proxy` has its own, and an old token does not matter there."""
    words = [KUBECTL, f"--kubeconfig={shop.kubeconfig}", "proxy", "--port=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as proxy:
        port = proxy.stdout.readline().strip().rpartition(":")[2]
        config = shop.kubeconfig_for({"token": "old"})
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        ended = run(write(tmp_path / "config", config))
        proxy.kill()
    assert ended.planned == ["shop/web"]


def test_a_token_file_comes_before_a_token(shop, run, tmp_path):
    (tmp_path / "token").write_text("admin-token")
    user = {"token": "old", "tokenFile": str(tmp_path / "token")}
    assert run(write(tmp_path / "config", shop.kubeconfig_for(user))).planned == ["shop/web"]


def test_a_plugin_is_found_by_the_path_of_this_process(shop, run, tmp_path):
    a_login(tmp_path, "admin-token")
    plugin = LOGIN | {"command": "login", "env": [{"name": "PATH", "value": "/bin:/usr/bin"}]}
    path = write(tmp_path / "config", shop.kubeconfig_for({"exec": plugin}))
    ended = run(path, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert ended.planned == ["shop/web"]


@pytest.mark.parametrize("is_option", [True, False])
def test_a_pipe_is_refused_because_kubectl_reads_it_several_times(shop, run, is_option):
    """As of `--kubeconfig=<(...)`."""
    end, other = os.pipe()
    try:
        path = f"/dev/fd/{end}"
        more = [f"--kubeconfig={path}"] if is_option else []
        ended = run(None if is_option else f"/missing:{path}", "--log-format=text", *more)
    finally:
        os.close(end)
        os.close(other)
    assert ended.code == 3
    assert (
        f"error: kubeconfig {path} is a pipe, and kubectl reads it several times; " in ended.stderr
    )
    assert "save it to a file" in ended.stderr


def test_a_token_file(shop, run, tmp_path):
    (tmp_path / "token").write_text("admin-token\n")
    path = write(tmp_path / "config", shop.kubeconfig_for({"tokenFile": str(tmp_path / "token")}))
    assert run(path, CONFIRM).outcomes == {"shop/web": "succeeded"}


def test_a_certificate_is_not_checked_if_the_kubeconfig_says_so(shop, run, tmp_path):
    config = shop.kubeconfig_for()
    config["clusters"][0]["cluster"] = {"server": shop.url, "insecure-skip-tls-verify": True}
    ended = run(write(tmp_path / "config", config), CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert "InsecureRequestWarning" not in ended.stderr


def test_the_name_in_the_certificate_may_be_another_one(shop, run, tmp_path):
    """The server is reached as localhost, and its certificate is for 127.0.0.1."""
    config = shop.kubeconfig_for()
    entry = config["clusters"][0]["cluster"]
    entry["server"] = f"https://localhost:{shop.port}"
    path = write(tmp_path / "config", config)
    refused = run(path, "--log-format=text")
    assert refused.code == 3
    assert "certificate verify failed" in refused.stderr
    entry["tls-server-name"] = "127.0.0.1"
    assert run(write(tmp_path / "config", config), CONFIRM).outcomes == {"shop/web": "succeeded"}


class Proxy(http.server.BaseHTTPRequestHandler):
    """Forwards CONNECT, as a proxy for TLS does."""

    connects: list[str]
    wanted = ""  # of Proxy-Authorization

    def do_CONNECT(self) -> None:
        self.connects.append(self.path)
        if self.wanted and self.headers.get("Proxy-Authorization") != self.wanted:
            self.send_response(407)
            self.end_headers()
            return
        _, _, port = self.path.partition(":")
        with socket.create_connection(("127.0.0.1", int(port))) as there:
            self.send_response(200)
            self.end_headers()
            pairs = {self.connection: there, there: self.connection}
            waiting = selectors.DefaultSelector()  # select() knows only the first 1,024 files
            for end in pairs:
                waiting.register(end, selectors.EVENT_READ)
            while True:
                readable = [key.fileobj for key, _ in waiting.select(10)]
                data = [(pairs[end], end.recv(65536)) for end in readable]
                if not data or not all(part for _, part in data):
                    return
                for end, part in data:
                    end.sendall(part)

    def log_message(self, *_) -> None:
        pass


def test_a_proxy_of_the_kubeconfig(shop, run, tmp_path):
    Proxy.connects = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        config = shop.kubeconfig_for()
        config["clusters"][0]["cluster"]["proxy-url"] = f"http://127.0.0.1:{proxy.server_port}"
        ended = run(write(tmp_path / "config", config))
        proxy.shutdown()
    assert ended.planned == ["shop/web"]
    assert set(Proxy.connects) == {f"127.0.0.1:{shop.port}"}


def test_no_proxy_says_nothing_of_the_proxy_of_the_kubeconfig(shop, run, tmp_path):
    """As for kubectl: without it, the same address may be another cluster."""
    Proxy.connects = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        config = shop.kubeconfig_for()
        config["clusters"][0]["cluster"]["proxy-url"] = f"http://127.0.0.1:{proxy.server_port}"
        path = write(tmp_path / "config", config)
        assert run(path, NO_PROXY="localhost,127.0.0.1,10.0.0.0/8").planned == ["shop/web"]
        proxy.shutdown()
    assert Proxy.connects


@pytest.mark.parametrize(
    "environment",
    [
        {"HTTPS_PROXY": "URL", "https_proxy": "http://127.0.0.1:1"},
        {"HTTPS_PROXY": "URL", "https_proxy": ""},
        {"https_proxy": "URL", "NO_PROXY": "other.example"},
        {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "*.example"},
    ],
)
def test_proxies_of_the_environment_are_read_as_by_go(shop, run, tmp_path, environment):
    """Names in capitals come first, and *.example is .example."""
    Proxy.connects = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        config, url = shop.kubeconfig_for(), f"http://127.0.0.1:{proxy.server_port}"
        config["clusters"][0]["cluster"] |= {
            "server": f"https://localhost.example:{shop.port}",
            "tls-server-name": "127.0.0.1",
        }
        more = {name: value.replace("URL", url) for name, value in environment.items()}
        path = write(tmp_path / "config", config)
        ended = run(path, **more)
        proxy.shutdown()
    if environment.get("NO_PROXY") == "*.example":  # directly, where nobody knows the name
        assert (ended.code, "refused" in ended.stderr) == (3, False)
        return
    assert (ended.planned, bool(Proxy.connects)) == (["shop/web"], True)


@pytest.mark.parametrize("where", ["proxy-url", "HTTPS_PROXY", "without a scheme"])
def test_a_proxy_with_a_user_and_a_password(shop, run, tmp_path, monkeypatch, where):
    words = base64.b64encode("ops:p@ss/w\u00f6rd".encode()).decode()
    monkeypatch.setattr(Proxy, "wanted", f"Basic {words}")
    Proxy.connects = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        config, more = shop.kubeconfig_for(), {}
        url = f"http://ops:p%40ss%2Fw%C3%B6rd@127.0.0.1:{proxy.server_port}"
        if where == "proxy-url":
            config["clusters"][0]["cluster"]["proxy-url"] = url
        else:  # which is not asked for a loopback address
            config["clusters"][0]["cluster"] |= {
                "server": f"https://localhost.example:{shop.port}",
                "tls-server-name": "127.0.0.1",
            }
            more = {"HTTPS_PROXY": url.removeprefix("http://" * (where != "HTTPS_PROXY"))}
        ended = run(write(tmp_path / "config", config), "--log-level=debug", **more)
        proxy.shutdown()
    said = ended.stdout + ended.stderr
    assert (ended.planned, words in said, "%40ss" in said) == (["shop/web"], False, False)


@pytest.mark.parametrize("field", [{}, {"as-groups": ["ops"]}, {"as-uid": "42"}])
def test_a_context_that_impersonates_is_refused(shop, run, field):
    user = {"token": "admin-token", "as": "jane", **field}
    ended = run(shop.write_kubeconfig("as", user), "--log-format=text")
    text = "impersonates jane, which is not supported; use a context without `as` (nothing"
    assert (ended.code, text in ended.stderr) == (3, True)
    assert shop.server.requests == []


# Certificates of users: the client puts them into files


@pytest.fixture
def with_certificates(shop, tmp_path):
    """A kubeconfig with a client certificate and key in it, and the folder for temporary files."""
    issued = trustme.CA().issue_cert("jane")
    texts = {
        "client-certificate-data": issued.cert_chain_pems[0].bytes(),
        "client-key-data": issued.private_key_pem.bytes(),
    }
    user = {name: base64.b64encode(data).decode() for name, data in texts.items()}
    folder = tmp_path / "temporary"
    folder.mkdir()
    return shop.write_kubeconfig("certificates", {**user, "token": "admin-token"}), str(folder)


def secrets_in(folder: str) -> list[Path]:
    return [path for path in Path(folder).iterdir() if "BEGIN" in path.read_text()]


def test_certificates_are_written_for_the_user_alone_and_removed(shop, start, with_certificates):
    path, folder = with_certificates
    held = shop.fault(path="/api/v1/pods", release=threading.Event())
    running = start(shop, CONFIRM, f"--kubeconfig={path}", TMPDIR=folder)
    assert held.reached.wait(20)
    written = secrets_in(folder)
    assert len(written) == 3  # of the authority, the certificate and the key
    assert {stat.S_IMODE(found.stat().st_mode) for found in written} == {0o600}
    held.release.set()
    assert running.finish().code == 0
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT, signal.SIGINT]]
)
@pytest.mark.parametrize("when", ["/api/v1/pods", "rollout"])
def test_certificates_are_removed_after_a_signal(shop, start, with_certificates, signals, when):
    path, folder = with_certificates
    shop.kubelet.ready_after = 60
    held = shop.fault(path="/api/v1/pods", release=threading.Event())
    running = start(shop, CONFIRM, f"--kubeconfig={path}", "--log-level=debug", TMPDIR=folder)
    assert held.reached.wait(20)
    if when == "rollout":
        held.release.set()
        running.wait_for_log("running kubectl")
    for number in signals:
        running.signal(number)
        if when == "rollout":
            running.wait_for_log(NO_NEW_ROLLOUTS)
    if when == "rollout" and len(signals) == 1:
        let_ready(shop)
    assert running.finish(20).code == 128 + signals[0]
    held.release.set()
    assert os.listdir(folder) == []


def test_certificates_are_removed_after_an_error(shop, run, with_certificates):
    path, folder = with_certificates
    shop.fault(path="/api/v1/pods", status=404, body={"message": "gone"})
    assert run(path, TMPDIR=folder).code == 3
    assert os.listdir(folder) == []


def test_kubectl_is_asked_once_for_the_kubeconfig(shop, run, tmp_path):
    log = tmp_path / "log"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$1 $2" >> {log}\nexec {KUBECTL} "$@"\n')
    kubectl.chmod(0o755)
    assert run(shop, f"--kubectl={kubectl}").code == 0
    assert log.read_text().splitlines() == ["config view"]
