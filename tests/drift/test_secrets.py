"""No value is shown that may be secret: differences have none by construction, and messages pass one small filter."""

from __future__ import annotations

import base64
import json
import shlex
import string
import time

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import (
    CONFIRM,
    DRIFTED,
    TEXT,
    difference_texts,
    options_of,
    sidecar_differences,
    view_of,
)

pytestmark = pytest.mark.both

TOKEN = st.text(string.ascii_letters + string.digits + "-_", min_size=12, max_size=30)
PASSWORD = st.text(string.ascii_letters + string.digits + "!#$%&'()*+,-./:;<=>?[]^_`{|}~@\"\\")


def jwt(secret: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"RS256","typ":"JWT"}').decode().rstrip("=")
    return f"{head}.{secret}.{secret}"


def everywhere(text: str) -> dict:
    """A sidecar with a text in each place where a secret may be."""
    inner = json.dumps({"outer": [{"inner": text}], "nested": json.dumps({"deep": text})})
    return {
        "name": "istio-proxy",
        "image": "docker.io/istio/proxyv2:1.26.2",
        "command": ["/bin/proxy", text, f"--dsn={text}", f"--config={inner}"],
        "args": ["run", text, inner, "--header", text],
        "workingDir": text,
        "env": [
            {"name": "SETTINGS", "value": text},
            {"name": "PROXY_CONFIG", "value": inner},
        ],
        "lifecycle": {"postStart": {"exec": {"command": ["t", "--api-key", text]}}},
        "livenessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "X", "value": text}]}},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }


def pod_of(text: str) -> dict:
    volume = {"name": "v", "csi": {"driver": "d", "volumeAttributes": {"key": text}}}
    return {"metadata": {}, "spec": pod_spec(everywhere(text), volumes=[volume])}


def differences(tool, before: dict, after: dict, with_values: bool = False) -> list:
    views = (view_of(tool, pod, ["istio-proxy"]) for pod in (before, after))
    return [*sidecar_differences(tool, *views, (), frozenset(), with_values).values()]


@settings(max_examples=40)
@given(TOKEN, TOKEN)
def test_no_value_is_in_any_difference(tool, old, new):
    assume(old != new and old not in str(pod_of("")) and new not in str(pod_of("")))
    plain = {"metadata": {}, "spec": pod_spec(container("app"))}
    for before, after in ((pod_of(old), pod_of(new)), (pod_of(old), plain), (plain, pod_of(new))):
        found = differences(tool, before, after)
        shown = json.dumps(found) + "".join(difference_texts(tool, found))
        assert found
        assert old not in shown
        assert new not in shown


def test_each_difference_says_which_one_changed(tool):
    shown = sorted(difference_texts(tool, differences(tool, pod_of("a"), pod_of("b"))))
    assert shown == [
        "istio-proxy  args changed",
        "istio-proxy  command changed",
        "istio-proxy  env PROXY_CONFIG changed",
        "istio-proxy  env SETTINGS changed",
        "istio-proxy  lifecycle.postStart.exec.command changed",
        "istio-proxy  livenessProbe.httpGet.httpHeaders.0.value changed",
        "istio-proxy  volume /v.csi.volumeAttributes.key changed",
        "istio-proxy  workingDir changed",
    ]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"image": "r/x:1"}, {"image": "r/x:2"}, ["image  r/x:1 -> 2"]),
        ({"imagePullPolicy": "Always"}, {}, ["imagePullPolicy  Always -> <none>"]),
        ({}, {"env": [{"name": "X", "value": "istiod"}]}, ["env X added"]),
        ({"env": [{"name": "X", "value": ""}]}, {}, ["env X removed"]),
        (
            {"resources": {"limits": {"cpu": "1"}}},
            {"resources": {"limits": {"cpu": "2"}}},
            ["resources.limits.cpu  1 -> 2"],
        ),
        (
            {},
            {"ports": [{"containerPort": 15090, "name": "prom"}]},
            ['port 15090/TCP  <none> -> {"containerPort": 15090, "name": "prom"}'],
        ),
        (
            {"securityContext": {"runAsUser": 1}},
            {"securityContext": {"runAsUser": 2}},
            ["securityContext.runAsUser  1 -> 2"],
        ),
    ],
)
def test_values_that_cannot_be_secret_are_shown(tool, before, after, shown):
    pods = [
        {"metadata": {}, "spec": pod_spec({"name": "istio-proxy", "image": "r/x:1", **fields})}
        for fields in (before, after)
    ]
    found = difference_texts(tool, differences(tool, *pods))
    assert list(found) == [f"istio-proxy  {text}" for text in shown]


@pytest.mark.parametrize(
    ("volume", "kind"),
    [({"secret": {"secretName": "hunter2"}}, "secret"), ({"emptyDir": {}}, "emptyDir")],
)
def test_a_new_volume_is_shown_with_its_kind(tool, volume, kind):
    plain, mounted = ({"name": "istio-proxy", "image": "x"} for _ in "12")
    mounted["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    before = {"metadata": {}, "spec": pod_spec(plain)}
    after = {"metadata": {}, "spec": pod_spec(mounted, volumes=[{"name": "v", **volume}])}
    shown = list(difference_texts(tool, differences(tool, before, after)))
    assert f"istio-proxy  volume /v  <none> -> {kind}" in shown


def test_the_image_of_an_image_volume_is_shown(tool):
    def mounting(image: str) -> dict:
        mounted = {"name": "istio-proxy", "image": "x"}
        mounted["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
        volume = {"name": "v", "image": {"reference": image, "pullPolicy": "Always"}}
        return {"metadata": {}, "spec": pod_spec(mounted, volumes=[volume])}

    found = differences(tool, mounting("r/plugin:1"), mounting("r/plugin:2"))
    (text,) = difference_texts(tool, found)
    assert text == "istio-proxy  volume /v.image.reference  r/plugin:1 -> r/plugin:2"


def test_an_image_inside_a_variable_is_no_image(tool):
    """It may be a secret, whatever its keys are."""
    pods = []
    for secret in ("s3cret", "t0ken"):
        value = json.dumps({"image": {"reference": secret}, "port": 80})
        proxy = {"name": "istio-proxy", "image": "x", "env": [{"name": "C", "value": value}]}
        pods.append({"metadata": {}, "spec": pod_spec(proxy)})
    texts = list(difference_texts(tool, differences(tool, *pods)))
    assert texts and not any("s3cret" in text or "t0ken" in text for text in texts)


def test_show_values_shows_all(tool):
    found = differences(tool, pod_of("old-one"), pod_of("new-one"), with_values=True)
    texts = list(difference_texts(tool, found))
    assert "istio-proxy  env SETTINGS  old-one -> new-one" in texts
    assert {found.path[1] for found in found if "new-one" in str(found.expected)} == {
        *("args", "command", "env", "lifecycle", "livenessProbe", "volumes", "workingDir")
    }


@pytest.mark.parametrize("output", ["--log-format=text", "--log-format=json"])
def test_no_value_is_in_any_output_log_or_annotation(cluster, run, output):
    secrets = {"old": "Zq7hunterOLD", "new": "Zq7hunterNEW"}
    for name in "abcd":
        cluster.create("shop", workload("Deployment", name))
    for name in ("web", "api"):
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.injector.container = everywhere(secrets["old"]) | {"volumeMounts": []}
    for found in cluster.store.list("deployments", "shop"):  # with the old sidecar
        notes = {"spec": {"template": {"metadata": {"annotations": {"x": "1"}}}}}
        cluster.change("Deployment", "shop", found["metadata"]["name"], notes)
    cluster.settle()
    cluster.injector.container = everywhere(secrets["new"]) | {"volumeMounts": []}
    denial = {"message": "denied the request: postgres://user:Zq7hunterNEW@db.example"}
    cluster.fault(method="POST", path="/pods", status=403, body=denial)
    shown = ""
    for options in ([], [CONFIRM]):
        ended = run(cluster, DRIFTED, output, "--log-level=debug", *options)
        shown += ended.stdout + ended.stderr
    assert "denied the request: postgres://user:<redacted>@db.example" in shown
    assert "env" in shown
    assert "SETTINGS" in shown
    notes = json.dumps(
        [d["spec"]["template"]["metadata"] for d in cluster.store.list("deployments", "shop")]
    )
    for secret in secrets.values():
        assert secret not in shown
        assert secret not in notes


def test_values_are_shown_on_request_alone(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container["env"] = [{"name": "TARGET", "value": "istiod.example"}]
    hidden, shown = (run(cluster, DRIFTED, *more) for more in ([], ["--show-values"]))
    path = ["istio-proxy", "env", "TARGET"]
    for ended, value in ((hidden, "<redacted>"), (shown, "istiod.example")):
        (drift,) = ended.of("drift")
        assert drift["differences"] == [{"path": path, "current": None, "expected": value}]
    text = run(cluster, DRIFTED, "--show-values", TEXT).stdout
    assert "  a  1 workload:\n     istio-proxy  env TARGET  <none> -> istiod.example\n" in text


# Messages of the cluster, of kubectl and of webhooks


@given(PASSWORD.filter(lambda text: len(text) >= 8))
def test_a_password_in_a_url_may_have_any_character(tool, secret):
    text = f"postgres://user:{secret}@host/db"
    assert tool.redact_text(text) == "postgres://user:<redacted>@host/db"


@given(TOKEN)
def test_a_json_web_token_is_redacted_anywhere(tool, secret):
    text = f"cannot verify {jwt(secret)}: expired"
    assert tool.redact_text(text) == "cannot verify <redacted>: expired"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://user:secret@host", "postgres://user:<redacted>@host"),
        ("redis://:secret@cache.example", "redis://:<redacted>@cache.example"),
        ("https://ghp_abc123@github.com/x", "https://<redacted>@github.com/x"),
        ("Authorization: Bearer abc.defg", "Authorization: Bearer <redacted>"),
        ("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\ny", "<redacted>\ny"),
        ("half: -----BEGIN RSA PRIVATE KEY-----\nx", "half: <redacted>"),
        # What is none
        ("no basic auth credentials", "no basic auth credentials"),
        ("failed to fetch anonymous token: denied", "failed to fetch anonymous token: denied"),
        ("https://registry:5000/v2/x@sha256:abc", "https://registry:5000/v2/x@sha256:abc"),
        ("docker.io/istio/proxyv2:1.27.0", "docker.io/istio/proxyv2:1.27.0"),
        ("http://istiod.istio-system:15010", "http://istiod.istio-system:15010"),
        ("ssh://git@github.com/x", "ssh://git@github.com/x"),
        ('pods "web-1" is forbidden: exceeded quota', 'pods "web-1" is forbidden: exceeded quota'),
        ('serviceaccount "web" not found', 'serviceaccount "web" not found'),
        ("authorization failed for user jane", "authorization failed for user jane"),
        ("dial with password=pw1 failed", "dial with password=<redacted> failed"),
        ('"access_token": "ya29.abc"', '"access_token": "<redacted>"'),
        ("token: hvs.CAESIJ9x", "token: <redacted>"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7", "AWS_SECRET_ACCESS_KEY=<redacted>"),
        ("db_password: x, user: y", "db_password: <redacted>, user: y"),
        ("the token is not valid", "the token is not valid"),
    ],
)
def test_what_of_a_message_is_redacted(tool, text, shown):
    assert tool.redact_text(text) == shown


@pytest.mark.parametrize(
    "text", ["x" * 300_000, "://a:" * 60_000, "ey" * 150_000, ":" * 50_000, "token" * 60_000]
)
def test_a_long_text_takes_no_long_time(tool, text):
    """These take minutes if a pattern is quadratic."""
    began = time.process_time()
    assert tool.redact_text(text) == text
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "gate",
    [
        """sh -c 'curl -H "Authorization: Bearer hunter2hunter2" http://x'""",
        """check 'http://a:hunter2@b/'""",
        """sh -c "curl -H 'Authorization: Bearer hunter2hunter2'" """,
    ],
)
def test_a_gate_that_was_redacted_can_still_be_parsed(tool, gate):
    printed = tool.next_command([f"--gate={gate}"], options_of(tool), "")
    assert "hunter2" not in str(printed)
    (word,) = [word for word in printed if word.startswith("--gate=")]
    assert len(shlex.split(word.partition("=")[2])) == len(shlex.split(gate))
