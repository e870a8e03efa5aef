"""How the script gets its packages, and that its version is the same everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import yaml
from clusters.embedded.manifests import workload
from support import DEPLOY, KUBECTL, SCRIPT, TEXT, TOP, printed_command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UV = str(Path(sys.executable).with_name("uv"))


def requirements() -> list[str]:
    lines = (TOP / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_inline_metadata_is_the_same_as_the_requirements():
    """The regular expression is that of PEP 723, its reference implementation."""
    block = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
    (found,) = re.finditer(block, SCRIPT.read_text())
    assert found["type"] == "script"
    metadata = tomllib.loads(re.sub("(?m)^# ?", "", found["content"]))
    assert metadata == {"requires-python": ">=3.10", "dependencies": requirements()}


def test_the_version_is_the_same_everywhere(version):
    places = ["deploy/Dockerfile", "deploy/cronjob.yaml", "deploy/audit.yaml", "deploy/README.md"]
    for place in places:
        text = (TOP / place).read_text()
        assert set(re.findall(r"sidecar-rollout:(\d[\w.]*)", text)) == {version}, place
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_uv_needs_nothing_installed(cluster, tmp_path):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig, "UV_PYTHON": sys.executable}

    def run(*words: str) -> str:
        ended = subprocess.run(
            [UV, "run", str(SCRIPT), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    shown = run("--sidecar-container-name=istio-proxy", TEXT, f"--kubectl={KUBECTL}")
    to_apply = printed_command(shown.splitlines()[-1])
    assert to_apply[:4] == ["uv", "run", str(SCRIPT), "--sidecar-container-name=istio-proxy"]
    done = run(*to_apply[3:])
    assert "1 succeeded" in done


def make_release(tag: str, folder: Path) -> subprocess.CompletedProcess:
    words = [str(TOP / ".ci" / "release"), tag, "owner/sidecar-rollout", str(folder)]
    return subprocess.run(words, capture_output=True, text=True)


def test_the_files_of_a_release(version, tmp_path):
    """The script, and the same as a plugin that krew installs; their sums; what has changed."""
    folder = tmp_path / "dist"
    ended = make_release(f"v{version}", folder)
    assert ended.returncode == 0, ended.stderr
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    sums = dict(line.split()[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    plugin = "kubectl-sidecar_rollout"
    assert set(files) == {
        *("sidecar-rollout.py", "sidecar-rollout.yaml", plugin, f"{plugin}.tar.gz")
    }
    # `uv run` of a release takes the packages of that day
    limit = rb'#\n# \[tool\.uv\]\n# exclude-newer = "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"\n(?=# ///\n)'
    as_it_is, count = re.subn(limit, b"", files["sidecar-rollout.py"])
    assert (as_it_is, count) == (SCRIPT.read_bytes(), 1)
    first, _, rest = files[plugin].partition(b"\n")
    assert (first, rest) == (
        b"#!/usr/bin/env -S uv run --script",
        files["sidecar-rollout.py"].partition(b"\n")[2],
    )
    with tarfile.open(folder / f"{plugin}.tar.gz") as archive:
        assert archive.getnames() == [plugin, "LICENSE"]
        assert archive.extractfile(plugin).read() == files[plugin]
        assert archive.getmember(plugin).mode & 0o111
    manifest = yaml.safe_load(files["sidecar-rollout.yaml"])
    (platform,) = manifest["spec"]["platforms"]
    assert manifest["spec"]["version"] == f"v{version}"
    assert platform["sha256"] == sums[f"{plugin}.tar.gz"]
    assert platform["uri"].endswith(f"/releases/download/v{version}/{plugin}.tar.gz")
    changes, _, install = (tmp_path / "dist.md").read_text().partition("\n## Install\n")
    commands = re.findall(r"(?m)^curl .*|^kubectl .*", install)
    assert [f"/releases/download/v{version}/" in command for command in commands] == [True] * 2
    changes = re.sub(
        r"\]\(https://github.com/owner/sidecar-rollout/blob/v[^/]+/docs/", "](", changes
    )
    assert (TOP / "docs" / "CHANGELOG.md").read_text().startswith(f"# Changes\n\n{changes}")
    assert len(re.findall(r"(?m)^- \d", changes)) == 1


def test_a_tag_of_another_version_is_refused(version, tmp_path):
    ended = make_release("v0.0.1", tmp_path / "dist")
    assert ended.returncode == 1
    assert version in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_image_installs_what_the_script_needs():
    pinned = dict(
        re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", (DEPLOY / "requirements.txt").read_text())
    )
    from packaging.requirements import Requirement

    for wanted in map(Requirement, requirements()):
        assert wanted.specifier.contains(pinned[wanted.name]), wanted


def test_ci_runs_on_every_python_from_the_oldest_that_is_required():
    workflow = yaml.safe_load((TOP / ".github" / "workflows" / "ci.yaml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {
        "python": ["3.10", "3.11", "3.12", "3.13", "3.14"],
        "client": ["oldest", "newest"],
    }
    assert 'requires-python = ">=3.10"' in SCRIPT.read_text()
    assert "python_version = 3.10" in (TOP / ".mypy.ini").read_text()
    assert 'target-version = "py310"' in (TOP / "ruff.toml").read_text()


def test_a_module_beside_the_script_is_not_run(tmp_path):
    """Whoever can write into the folder of downloads would run what they like."""
    script = tmp_path / "sidecar-rollout.py"
    script.write_bytes(SCRIPT.read_bytes())
    for name in ("argparse", "kubernetes", "urllib3", "ssl"):
        (tmp_path / f"{name}.py").write_text("print('taken')\n")
    config = tmp_path / "config"
    config.write_text(json.dumps(NO_CLUSTER))
    words = [sys.executable, str(script), "--sidecar-container-name=x", f"--kubectl={KUBECTL}"]
    ended = subprocess.run(
        [*words, f"--kubeconfig={config}"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, "taken" in ended.stdout + ended.stderr) == (3, False)
    assert "cannot connect to the API server" in ended.stderr


NO_CLUSTER = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "x", "user": {"token": "x"}}],
}


def test_a_release_says_how_to_verify_it():
    words = [str(TOP / ".ci" / "verify"), "owner/sidecar-rollout"]
    image = f"registry.example/owner/sidecar-rollout@sha256:{'0' * 64}"
    ended = subprocess.run([*words, image], capture_output=True, text=True)
    commands = re.findall(r"(?m)^gh attestation verify (\S+) --repo (\S+)$", ended.stdout)
    repository = "owner/sidecar-rollout"
    assert commands == [("sidecar-rollout.py", repository), (f"oci://{image}", repository)]
    assert subprocess.run([*words, image.partition("@")[0]], capture_output=True).returncode == 1


def test_where_the_files_are_made_nothing_else_runs():
    """No package of the tests can change them."""
    workflow = yaml.safe_load((TOP / ".github" / "workflows" / "release.yaml").read_text())
    jobs = workflow["jobs"]
    runs = [step["run"] for step in jobs["files"]["steps"] if "run" in step]
    assert runs == ['.ci/release "$GITHUB_REF_NAME" "$GITHUB_REPOSITORY" dist']
    (test,) = [name for name, job in jobs.items() if ".ci/run" in str(job)]
    assert jobs[test]["permissions"] == {"contents": "read"}
    assert all(test != name and "upload" not in str(jobs[test]) for name in jobs if name != test)
    assert jobs["publish"]["needs"] == ["files", "image"]
    attested = [name for name, job in jobs.items() if "attest-build-provenance" in str(job)]
    assert attested == ["files", "image"]
