"""Malicious or odd input: names, messages and responses of the cluster, and any command line."""

from __future__ import annotations

import contextlib
import io
import json
import re

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from hypothesis import given
from hypothesis import strategies as st
from support import CONFIRM, SCRIPT, TEXT

EVIL = "\x1b[2J\x1b]0;owned\x07\r\nfake: line\u202e" + "x" * 60_000


def test_hostile_conditions_and_annotations(cluster, run):
    cluster.create(
        "shop", workload("Deployment", "web", progressDeadlineSeconds=1, annotations={"evil": EVIL})
    )
    cluster.settle()
    cluster.kubelet.ready_after = 60
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
    metadata = {"name": EVIL, "namespace": EVIL, "uid": EVIL}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
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
    assert "Not rolled out:" in ended.stdout
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
        b'{"kind":"PodList","metadata":{"continue":7},"items":0}',
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
    - {
        "--dry-run",
        "--output",
        "--yes",
        "--container",
        "--all",
        "--client",
        "--help",
        "--server",
        "--tls-server-name",
    }  # of other tools
)


NEARLY = st.from_regex(
    r"[0-9]{0,9}[-:. TZ+a-z0-9/,%=*]{0,25}", fullmatch=True
)  # times, durations, names, amounts


def test_all_options_are_known_to_the_next_test(tool, capsys):
    with pytest.raises(SystemExit):
        tool.main(["--help"])
    flags = re.findall(r"(?m)^  (?:-\w, )?(--[a-z-]+)", capsys.readouterr().out)
    assert set(flags) - {"--help"} == set(OPTIONS) - {"--help"}


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
