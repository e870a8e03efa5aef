"""Before anything is changed: kubectl, the cluster, the permissions; each failure is one line and exit code 3."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from clusters.embedded.manifests import workload
from support import BOTH, CONFIRM, KUBECTL, SCRIPT, TEXT, patched
from texts import CANNOT_CONNECT, MISSING_PERMISSIONS, REJECTED_CREDENTIALS


def only_error(ended, said: str = "") -> str:
    """What the one line at the end says; below it, perhaps the words of kubectl or a plugin."""
    assert ended.code == 3
    assert ended.stdout.count("\n") <= 1  # the target
    error, *more = [line for line in ended.stderr.splitlines() if "INFO" not in line]
    assert said in "\n".join(more)
    assert said or not more, ended.stderr
    _, _, message = error.partition("error: ")
    assert message.endswith(" (nothing was changed)")
    return message.removesuffix(" (nothing was changed)")


NO_CLUSTER = (
    "kubectl cannot find a cluster in the kubeconfig; specify a file with --kubeconfig "
    "or a context with --context; to reproduce: {}"
)
UNREADABLE = NO_CLUSTER.format("").strip()
NO_CONTEXT = "current-context must exist in order to minify"  # says kubectl


def script(path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_no_kubectl(cluster, run):
    said = only_error(run(cluster, TEXT, CONFIRM, "--kubectl=/nowhere/kubectl"))
    assert said == (
        "kubectl not found or not executable: /nowhere/kubectl; "
        "install it (https://kubernetes.io/docs/tasks/tools/) or specify its path with --kubectl"
    )


def test_a_kubectl_that_does_not_run(cluster, run, tmp_path):
    kubectl = script(tmp_path / "kubectl", "echo wrong architecture >&2; exit 126")
    error = NO_CLUSTER.format("{} config view --minify")
    ended = run(cluster, TEXT, f"--kubectl={kubectl}")
    assert only_error(ended, "wrong architecture") == error.format(kubectl)
    (record,) = run(cluster, f"--kubectl={kubectl}").records
    assert record["error"] == f"{error.format(kubectl)}: wrong architecture"
    ended = run(cluster, TEXT, "--kubectl=/bin/ls")
    assert only_error(ended, "/bin/ls: ") == error.format("/bin/ls")
    ended = run(cluster, TEXT, "--kubectl=/bin/true")  # which says nothing
    hint = " with --context, or kubectl with --kubectl; to"
    assert only_error(ended) == error.format("/bin/true").replace(" with --context; to", hint)


@pytest.mark.parametrize(
    ("minor", "is_too_old"), [("27", True), ("27+", True), ("28", False), ("28+", False)]
)
def test_a_kubectl_before_1_28_is_too_old(cluster, run, tmp_path, minor, is_too_old):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    client = {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.3"}
    said = json.dumps({"clientVersion": client})
    answer = f"""case "$*" in *version*) echo '{said}'; exit;; esac"""
    kubectl = script(tmp_path / "kubectl", f'{answer}\nexec {KUBECTL} "$@"')
    ended = run(cluster, TEXT, CONFIRM, f"--kubectl={kubectl}")
    if is_too_old:
        assert only_error(ended) == f"{kubectl} is v1.{minor}.3; install kubectl 1.28 or later"
    assert patched(cluster) == ([] if is_too_old else ["web"])


def test_what_kubectl_writes_need_not_be_utf_8(cluster, run, tmp_path):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\nprintf 'pr\\374fe\\n' >&2\nexec {KUBECTL} \"$@\"\n")
    kubectl.chmod(0o755)
    ended = run(cluster, CONFIRM, f"--kubectl={kubectl}")
    assert ended.code == ended.summary["exit_code"] == 0


def test_no_kubeconfig_at_all(run, tmp_path):
    """In kubectl's words below: it finds no current context."""
    error = NO_CLUSTER.format(f"{KUBECTL} config view --minify")
    one = f"{tmp_path}/nope"
    for environ in ({"HOME": str(tmp_path)}, {"KUBECONFIG": one}, {"KUBECONFIG": f"{one}:{one}2"}):
        assert only_error(run(None, TEXT, **environ), NO_CONTEXT) == error


@pytest.mark.parametrize(
    "proxy", ["ftp://p", "socks5://p", "http://user:hunter2@ x", "http://u:hunter2@proxy:99999"]
)
def test_a_proxy_that_cannot_be_used(cluster, run, tmp_path, proxy):
    config = json.loads(Path(cluster.kubeconfig).read_text())
    config["clusters"][0]["cluster"]["proxy-url"] = proxy
    path = tmp_path / "proxied"
    path.write_text(json.dumps(config))
    said = only_error(run(str(path), TEXT))
    assert said.startswith("cannot use the proxy ")
    assert said.endswith("; run: pip install PySocks") == proxy.startswith("socks")
    assert "hunter2" not in said


def test_a_context_without_credentials_is_not_logged_in(cluster, run):
    said = only_error(run(cluster.write_kubeconfig("nobody", {}), TEXT))
    assert said == "403 not logged in: the context has no credentials"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, None),
        ("[1, 2]", "couldn't get version/kind; json parse error: "),
        ("a: b: c", 'error loading config file "{path}": yaml: '),
        ("", NO_CONTEXT),
        ("{{}}", NO_CONTEXT),
    ],
)
def test_a_kubeconfig_that_is_none(run, tmp_path, content, said):
    """In kubectl's words, as it reads the file."""
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content.format())
    ended = run(None, TEXT, f"--kubeconfig={path}")
    if content is None:
        assert only_error(ended) == f"kubeconfig {path} does not exist"
    else:
        error = NO_CLUSTER.format(f"{KUBECTL} config view --minify --kubeconfig {path}")
        assert only_error(ended, said.format(path=path)) == error


def test_a_kubeconfig_that_is_a_directory(run, tmp_path):
    ended = run(None, TEXT, f"--kubeconfig={tmp_path}")
    assert only_error(ended, f"read {tmp_path}: is a directory").startswith(UNREADABLE)


def test_an_unknown_context(cluster, run):
    ended = run(cluster, TEXT, "--context=prod")
    command = f"{KUBECTL} config view --minify --context prod"
    hint = "--context must be one of embedded"
    assert only_error(ended, "error: cannot locate context prod") == (
        f"kubectl cannot find a cluster in the kubeconfig; {hint}; to reproduce: {command}"
    )


def test_an_unknown_context_of_many(cluster, run, tmp_path):
    config = cluster.kubeconfig_for()
    (context,) = config["contexts"]
    config["contexts"] = [{**context, "name": f"c{n}"} for n in range(7)]
    path = tmp_path / "many"
    path.write_text(json.dumps(config))
    said = run(None, TEXT, f"--kubeconfig={path}", "--context=prod").stderr
    assert "; --context must be one of c0, c1, c2, c3 or c4, ...; to reproduce: " in said


def test_a_kubeconfig_with_a_missing_certificate(cluster, run, tmp_path):
    config = cluster.kubeconfig_for()
    config["clusters"][0]["cluster"] = {
        "server": cluster.url,
        "certificate-authority": "/nowhere/ca.crt",
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    said = "open /nowhere/ca.crt: no such file or directory"
    ended = run(None, TEXT, f"--kubeconfig={path}")
    assert only_error(ended, said).startswith(UNREADABLE)


def test_no_token_is_ever_shown(cluster, run, tmp_path):
    """The client quotes whole entries of a kubeconfig when something in them is missing."""
    config = cluster.kubeconfig_for()
    config["users"] = [{"name": "user", "token": "s3cret"}]
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    ended = run(None, TEXT, f"--kubeconfig={path}", "--log-level=debug")
    assert ended.code == 3
    assert "s3cret" not in ended.stderr
    good = run(cluster, CONFIRM, "--log-level=debug")
    assert good.code == 0
    assert "admin-token" not in good.stderr + good.stdout


def test_a_dead_api_server(cluster, run, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = cluster.kubeconfig_for()
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    said = only_error(run(None, TEXT, f"--kubeconfig={path}"))
    assert said == f"{CANNOT_CONNECT}https://127.0.0.1:{port}: Connection refused"


def test_a_hanging_api_server(cluster, run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = cluster.kubeconfig_for()
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        said = only_error(run(None, TEXT, f"--kubeconfig={path}"))
    assert said.startswith(f"{CANNOT_CONNECT}http://127.0.0.1:")
    assert "timed out" in said


def test_a_certificate_of_another_authority(cluster, run, tmp_path):
    import trustme

    config = cluster.kubeconfig_for()
    pem = tmp_path / "other.pem"
    pem.write_bytes(trustme.CA().cert_pem.bytes())
    config["clusters"][0]["cluster"] = {"server": cluster.url, "certificate-authority": str(pem)}
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    assert "certificate verify failed" in only_error(run(None, TEXT, f"--kubeconfig={path}"))


def test_credentials_that_have_expired(cluster, run):
    path = cluster.write_kubeconfig("expired", {"token": "no-longer-good"})
    said = only_error(run(path, TEXT))
    assert said == f"401 Unauthorized: {REJECTED_CREDENTIALS}"


def test_a_list_that_is_forbidden(cluster, run):
    """A permission may be lost after it was checked."""
    forbidden = {
        "kind": "Status",
        "message": 'pods is forbidden: User "x" cannot list resource "pods"',
        "code": 403,
    }
    cluster.fault(path="/api/v1/pods", status=403, body=forbidden)
    assert (
        only_error(run(cluster, TEXT))
        == '403 pods is forbidden: User "x" cannot list resource "pods"'
    )


@pytest.mark.parametrize(
    "body", [b"<html>proxy login</html>", b"[]", b"null", b'{"kind":"PodList","items":null}', b""]
)
def test_an_answer_that_is_none_of_kubernetes(cluster, run, body):
    cluster.fault(path="/api/v1/pods", status=200, body=body)
    assert only_error(run(cluster, TEXT)).startswith(
        ("unexpected response: ", "truncated response: ")
    )


def test_a_page_where_an_answer_should_be(cluster, run):
    page = {
        "body": b"<html>Sign in</html>",
        "headers": {"Content-Type": "text/html; charset=utf-8"},
    }
    cluster.fault(path="/api/v1/pods", status=200, **page)
    server = f"https://127.0.0.1:{cluster.port}"
    expected = f"{server} answered with an HTML page: is it a proxy or a login page?"
    assert only_error(run(cluster, TEXT)) == expected


def test_a_bad_selector(cluster, run):
    ended = run(cluster, TEXT, "--selector=bad selector!!")
    said = "found 'selector', expected: in, notin, =, ==, !=, gt, lt"
    text = f"error: invalid value for --selector: unable to parse requirement: {said}\n"
    assert (ended.code, ended.stderr.partition("\n")[2]) == (2, text)


@pytest.mark.parametrize(
    "said",
    [
        "found '', expected: identifier after ','",
        "found 'c', expected: ',' or 'end of string'",
        "found '=', expected: !, identifier, or 'end of string'",
    ],
)
def test_what_else_an_api_server_says_of_a_selector(cluster, run, said):
    """k8s.io/apimachinery/pkg/labels, in three places."""
    cluster.fault(path="/api/v1/pods", status=400, times=9, body={"message": said})
    ended = run(cluster, TEXT, "-l", "a=b")
    assert ended.code == 2
    assert ended.stderr.endswith(f"error: invalid value for --selector: {said}\n")


def test_a_traceback_only_at_debug_level(cluster, run, start):
    cluster.fault(path="/api/v1/pods", status=404, times=2, body={"message": "gone"})
    assert only_error(run(cluster, TEXT)) == "404 gone"
    running = start(cluster, TEXT, "--log-level=debug")
    assert "Traceback (most recent call last)" in running.finish().stderr


PLAN_RULES = [
    {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
    {
        "verbs": ["get", "list"],
        "apiGroups": ["apps"],
        "resources": ["replicasets", "deployments", "statefulsets", "daemonsets"],
    },
]
ROLLOUT_RULES = [
    *PLAN_RULES,
    {
        "verbs": ["patch", "watch"],
        "apiGroups": ["apps"],
        "resources": ["deployments", "statefulsets", "daemonsets"],
    },
]


def test_a_dry_run_needs_no_patch_permission(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    viewer = cluster.kubeconfig_of("viewer", PLAN_RULES)
    assert run(viewer, *BOTH).planned == ["shop/web"]
    said = only_error(run(viewer, TEXT, CONFIRM))
    assert said == (
        f"{MISSING_PERMISSIONS}patch deployments.apps in all namespaces, "
        "watch deployments.apps in all namespaces; see deploy/rbac.yaml, or select your namespaces with --include-namespace "
        "(user viewer, context embedded)"
    )
    assert [r for r in cluster.server.requests if r.method == "PATCH"] == []


def test_the_permissions_of_the_readme_suffice(cluster, run):
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        cluster.create("shop", workload(kind, kind.lower()))
    cluster.settle()
    ended = run(cluster.kubeconfig_of("operator", ROLLOUT_RULES), CONFIRM, *BOTH)
    assert (ended.code, ended.summary["outcomes"]) == (0, {"succeeded": 3})


def test_who_leaves_out_deployments_needs_no_permission_on_replica_sets(cluster, run):
    for kind in ("Deployment", "StatefulSet"):
        cluster.create("shop", workload(kind, kind.lower()))
    cluster.settle()
    rules = [
        {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
        {
            "verbs": ["get", "list", "patch", "watch"],
            "apiGroups": ["apps"],
            "resources": ["statefulsets"],
        },
    ]
    only = ("--exclude-deployment", "--include-statefulset")
    ended = run(cluster.kubeconfig_of("somebody", rules), CONFIRM, *only)
    assert (ended.code, ended.outcomes) == (0, {"shop/statefulset": "succeeded"})
    assert ended.skipped == {"Deployment shop/deployment": "kind_not_selected"}
    assert "remove --exclude-deployment" in ended.reasons["Deployment shop/deployment"]


def test_the_permission_to_read_namespaces_is_requested_where_it_is_needed(cluster, run):
    viewer = cluster.kubeconfig_of("viewer", PLAN_RULES)
    assert run(viewer, *BOTH).code == 0
    said = only_error(run(viewer, TEXT, "--exclude-annotation=example.com/restart=never"))
    assert said.startswith(f"{MISSING_PERMISSIONS}get namespaces in all namespaces; see ")


def test_permissions_on_the_named_namespaces_suffice(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    team = cluster.kubeconfig_of("team", [{**rule, "namespace": "shop"} for rule in ROLLOUT_RULES])
    assert run(team, CONFIRM, "--include-namespace=shop").outcomes == {"shop/web": "succeeded"}
    assert MISSING_PERMISSIONS in only_error(run(team, TEXT))
    elsewhere = only_error(run(team, TEXT, "--include-namespace=default"))
    assert elsewhere.startswith(
        f"{MISSING_PERMISSIONS}get deployments.apps in namespace default, get replicasets.apps in"
    )


def test_in_the_cluster_there_is_no_kubeconfig(cluster, tool, tmp_path, monkeypatch):
    from kubernetes.config import incluster_config

    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("admin-token")
    authority.write_text(cluster.authority)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    found = tool.connect(KUBECTL, "", "")
    assert found.kubectl_flags == ()
    assert str(found) == f"In-cluster service account (https://127.0.0.1:{cluster.port})"
    assert tool.Cluster(found).find("/api/v1/pods")["kind"] == "PodList"


def test_a_kubeconfig_that_is_broken_does_not_lead_to_the_pods_own_cluster(
    run, tmp_path, monkeypatch
):
    """It means another cluster."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{broken")
    said = only_error(
        run(None, TEXT, HOME=str(tmp_path), KUBERNETES_SERVICE_HOST="10.0.0.1"), "config"
    )
    assert said.startswith("kubectl cannot find a cluster in the kubeconfig; ")


def test_in_the_cluster_without_a_service_account(run, tmp_path):
    said = only_error(run(None, TEXT, HOME=str(tmp_path), KUBERNETES_SERVICE_HOST="10.0.0.1"))
    assert said.startswith("cannot use the Pod's service account: ")


def test_a_kubectl_that_does_not_print_json_is_not_quoted(cluster, run, tmp_path):
    kubectl = script(tmp_path / "kubectl", "echo token: SECRET")
    said = run(cluster, TEXT, f"--kubectl={kubectl}", "--log-level=debug").stderr
    assert "kubectl cannot find a cluster in the kubeconfig" in said
    assert "SECRET" not in said


def of_plugin(cluster, command: str, **fields) -> str:
    """A kubeconfig with a credential plugin."""
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": command, "interactiveMode": "Never", **fields}
    return cluster.write_kubeconfig("exec", {"exec": plugin})


def test_what_a_credential_plugin_says_is_shown_before_the_error(cluster, run, tmp_path):
    """It may ask to log in. A token that it prints is not shown."""
    plugin = script(
        tmp_path / "plugin",
        "echo before >&2; echo token: SECRET-1234; echo run: aws sso login >&2; exit 3",
    )
    ended = run(of_plugin(cluster, str(plugin)), TEXT)
    name = f"credential plugin {plugin} (context embedded)"
    lines = [
        line.partition("  ")[0][10:] + line.partition("  ")[2] for line in ended.stderr.splitlines()
    ]
    assert lines[:2] == [f"WARNING {name}: before", f"WARNING {name}: run: aws sso login"]
    assert ended.stderr.splitlines()[2:] == [
        f"error: {name} failed with exit code 3 (nothing was changed)"
    ]
    assert "SECRET" not in ended.stdout + ended.stderr


def test_a_credential_plugin_that_is_not_installed(cluster, run):
    hint = "Install gke-gcloud-auth-plugin for use with kubectl"
    ended = run(of_plugin(cluster, "aws-nope", installHint=hint), TEXT)
    text = "credential plugin aws-nope (context embedded) cannot run: No such file or directory"
    assert only_error(ended, hint) == text


@pytest.mark.parametrize(
    "output", ["", "no JSON", "[]", '{"status": {}}', '{"status": {"token": ""}}']
)
def test_a_credential_plugin_that_returns_nothing(cluster, run, tmp_path, output):
    plugin = script(tmp_path / "plugin", f"echo '{output}'")
    ended = run(of_plugin(cluster, str(plugin)), TEXT)
    assert (
        only_error(ended)
        == f"credential plugin {plugin} (context embedded) returned no credentials"
    )


@pytest.mark.parametrize("first", ["embedded", ""])
def test_of_several_kubeconfigs_the_first_that_names_a_context_says_which(
    cluster, run, tmp_path, first
):
    """As kubectl has it; the client takes the last one's."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    here, elsewhere = cluster.kubeconfig_for(), cluster.kubeconfig_for()
    here["current-context"] = first
    if first:
        elsewhere["current-context"] = elsewhere["contexts"][0]["name"] = "elsewhere"
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, config in zip(paths, (here, elsewhere), strict=True):
        path.write_text(json.dumps(config))
    assert run(":".join(map(str, paths)), CONFIRM).outcomes == {"shop/web": "succeeded"}


def test_kubectl_decides_which_kubeconfig_is_the_default(cluster, run, tmp_path):
    """k3s' kubectl has another default, in which each cluster's context is called `default`."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    (tmp_path / "k3s.yaml").write_text(json.dumps(cluster.kubeconfig_for()))
    elsewhere = cluster.kubeconfig_for()
    elsewhere["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(json.dumps(elsewhere))
    kubectl = script(
        tmp_path / "kubectl",
        f'export KUBECONFIG="${{KUBECONFIG:-{tmp_path}/k3s.yaml}}"\nexec {KUBECTL} "$@"',
    )
    assert run(None, CONFIRM, f"--kubectl={kubectl}", HOME=str(tmp_path)).outcomes == {
        "shop/web": "succeeded"
    }


def test_a_kubectl_that_does_not_reach_the_cluster_is_found_out_before_anything_is_changed(
    cluster, run, tmp_path
):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec {KUBECTL} --server=https://127.0.0.1:1 "$@"\n')
    kubectl.chmod(0o755)
    assert run(cluster, f"--kubectl={kubectl}").code == 0  # a dry run needs it for nothing
    said = only_error(run(cluster, TEXT, CONFIRM, f"--kubectl={kubectl}"), "was refused")
    command = f"{kubectl} --context embedded version --output=json"
    assert said == f"kubectl cannot connect to the cluster; to reproduce: {command}"
    assert [r for r in cluster.server.requests if r.method == "PATCH"] == []


def test_who_may_not_ask_for_the_version_has_reached_the_cluster(cluster, start):
    body = {
        "kind": "Status",
        "status": "Failure",
        "reason": "Forbidden",
        "code": 403,
        "message": "forbidden: x",
    }
    placed = cluster.fault(path="/version", times=9, status=403, body=body, user_agent="kubectl")
    assert start(cluster, CONFIRM).finish().code == 0
    assert placed.reached.is_set()


def test_a_permission_that_only_kubectl_needs_is_requested(cluster, run):
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "watch"]}
        for rule in ROLLOUT_RULES[1:]
    ]
    said = only_error(run(cluster.kubeconfig_of("x", [*PLAN_RULES, *rules]), TEXT, CONFIRM))
    assert said.startswith(f"{MISSING_PERMISSIONS}watch deployments.apps in all namespaces; see ")


def test_a_tilde_in_the_kubeconfigs_path_is_the_same_file_for_kubectl(cluster, run, tmp_path):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    (tmp_path / "kc").write_text(json.dumps(cluster.kubeconfig_for()))
    assert run(None, CONFIRM, "--kubeconfig=~/kc", HOME=str(tmp_path)).outcomes == {
        "shop/web": "succeeded"
    }


@pytest.mark.parametrize(
    "option", ["--log-format=json", "--only-started-before=2022-05-01", "--log-format=text"]
)
def test_a_missing_package_is_reported_in_one_line(option):
    words = [
        sys.executable,
        "-I",
        "-S",
        str(SCRIPT),
        "--sidecar-container-name=x",
        f"--kubectl={KUBECTL}",
        option,
    ]
    ended = subprocess.run(words, capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    assert re.search(
        r"Python package \w+ is not installed; run: pip install -r requirements.txt", last
    )


def test_an_exec_credential_plugin(cluster, run, tmp_path):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    plugin = tmp_path / "plugin"
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    credential["status"] = {"token": "admin-token"}
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plugin.chmod(0o755)
    user = {
        "exec": {
            "apiVersion": credential["apiVersion"],
            "command": str(plugin),
            "interactiveMode": "Never",
        }
    }
    path = cluster.write_kubeconfig("exec", user)
    assert run(path, CONFIRM).outcomes == {"shop/web": "succeeded"}


FAULTS = (
    {"status": 429, "headers": {"Retry-After": "1"}},
    {"status": 500},
    {"status": 503},
    {"drop": "before"},
    {"drop": "after"},
    {"truncate": True},
    {"delay": 0.5},
)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        *(("GET /api/v1/pods", fault) for fault in FAULTS),
        *(("PATCH /deployments", fault) for fault in FAULTS),
        ("GET /deployments/web", {"drop": "after"}),
        (r"GET /deployments\?", {"truncate": True}),
    ],
)
def test_a_passing_fault_is_retried(cluster, run, path, fault):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    method, _, part = path.partition(" ")
    placed = cluster.fault(method=method, path=part, user_agent="sidecar-rollout", **fault)
    ended = run(cluster, CONFIRM, "--log-level=debug")
    assert placed.reached.is_set()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert cluster.get("Deployment", "shop", "web")["metadata"]["generation"] == 2
    assert ("retrying" in ended.stderr) == ("delay" not in fault)


def test_a_slow_server_is_waited_for(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(path="/api/v1/pods", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    held.release.set()
    assert running.finish().outcomes == {"shop/web": "succeeded"}


def test_a_persons_kuberc_has_no_say(cluster, start, tmp_path):
    """It may change the defaults of kubectl's options."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    seen = tmp_path / "seen"
    script = tmp_path / "kubectl"
    script.write_text(f'#!/bin/sh\necho "$KUBERC" >>{seen}\nexec {KUBECTL} "$@"\n')
    script.chmod(0o755)
    running = start(cluster, CONFIRM, f"--kubectl={script}", KUBERC="/nowhere/kuberc")
    assert running.finish().outcomes == {"shop/web": "succeeded"}
    assert set(seen.read_text().split()) == {"off"}
