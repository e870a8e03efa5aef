"""deploy/no-alerts.sh: a gate that fails while an alert fires."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import ssl
import subprocess
import threading
import urllib.parse

import pytest
import trustme
from support import DEPLOY

needed = [name for name in ("curl", "jq") if not shutil.which(name)]
pytestmark = pytest.mark.skipif(bool(needed), reason=f"needs {' and '.join(needed)}")


@pytest.fixture
def prometheus():
    """A stand-in that answers each query with its alerts, and remembers what it was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"][0]
            self.server.asked.append((query, self.headers.get("Authorization")))
            result = [{"metric": {"alertname": name}} for name in self.server.alerts]
            body = json.dumps({"data": {"result": result}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.alerts, server.asked = [], []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(
    server, *words: str, scheme: str = "http", **environment: str
) -> subprocess.CompletedProcess:
    url = f"{scheme}://127.0.0.1:{server.server_port}"
    return subprocess.run(
        [str(DEPLOY / "no-alerts.sh"), url, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_it_asks_for_critical_alerts(prometheus):
    assert ask(prometheus).returncode == 0
    assert prometheus.asked == [('ALERTS{alertstate="firing",severity="critical"}', None)]
    prometheus.alerts = ["NodeDown", "DiskFull", "NodeDown"]
    ended = ask(prometheus)
    assert (ended.returncode, ended.stdout) == (1, "firing: DiskFull, NodeDown\n")


def test_labels_can_be_selected(prometheus):
    ask(prometheus, 'namespace="shop"')
    ask(prometheus, "")
    assert [query for query, _ in prometheus.asked] == [
        'ALERTS{alertstate="firing",namespace="shop"}',
        'ALERTS{alertstate="firing"}',
    ]


def test_a_token_is_read_from_a_file(prometheus, tmp_path):
    (tmp_path / "token").write_text("hunter2\n")
    ended = ask(prometheus, PROMETHEUS_TOKEN_FILE=str(tmp_path / "token"))
    assert (ended.returncode, prometheus.asked[0][1]) == (0, "Bearer hunter2")
    assert "hunter2" not in ended.stdout + ended.stderr


def test_a_token_that_cannot_be_read_closes_the_gate(prometheus):
    assert ask(prometheus, PROMETHEUS_TOKEN_FILE="/nope").returncode == 1
    assert prometheus.asked == []


def test_the_certificate_is_checked_with_a_ca_of_its_own(prometheus, tmp_path):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    prometheus.socket = context.wrap_socket(prometheus.socket, server_side=True)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    assert ask(prometheus, scheme="https").returncode == 1
    ca = str(tmp_path / "ca.crt")
    assert ask(prometheus, scheme="https", PROMETHEUS_CA_FILE=ca).returncode == 0
    assert len(prometheus.asked) == 1


def test_no_answer_closes_the_gate(prometheus):
    prometheus.shutdown()
    prometheus.server_close()
    assert ask(prometheus).returncode == 1
