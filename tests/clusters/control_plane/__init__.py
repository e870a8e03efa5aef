"""A real Kubernetes control plane and real sidecar injectors, built from Go modules and started for a run of the tests.

path = build_control_plane(NEWEST, show=print)  # some minutes, the first time
with ControlPlane(path) as control_plane:
    ...  # KUBECONFIG=control_plane.kubeconfig kubectl get pods -A
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
MODULES = {"1.37": "go.mod", "1.34": "kubernetes-1.34.mod"}  # of each Kubernetes version
NEWEST = "1.37"
CONTAINERD = HERE / "containerd"
ENVIRONMENT = dict(os.environ)  # before the tests set another HOME: Go keeps its modules there
CACHE = Path.home() / ".cache" / "sidecar-rollout-tests"


def is_older(version: str, other: str) -> bool:
    """Return whether a Kubernetes version, such as 1.34, is older than another."""
    first, second = ([int(part) for part in text.split(".")] for text in (version, other))
    return first < second


class Unavailable(Exception):
    """What is missing, in one line."""


def sources(folder: Path, module: str) -> list[Path]:
    """What a program is built from. `module` is the name of a go.mod."""
    names = (module, module.removesuffix(".mod") + ".sum")
    return sorted(path for path in folder.iterdir() if path.suffix == ".go" or path.name in names)


def go_version() -> str:
    if not shutil.which("go"):
        raise Unavailable("needs Go 1.26 or later, and there is no `go` on the PATH")
    return _go(HERE, "env", "GOVERSION").strip()


def built(folder: Path, name: str, module: str = "go.mod") -> Path:
    """Where a program of a Go module is kept, whether it is there or not."""
    digest = hashlib.sha256(go_version().encode())
    for path in sources(folder, module):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return CACHE / digest.hexdigest()[:16] / name


def build(folder: Path, name: str, show: Callable[[str], None], module: str = "go.mod") -> Path:
    """Build a program of a Go module, unless it has been built, and return its path."""
    path = built(folder, name, module)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:  # of two that build at a time, one waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        return path if path.exists() else _build(folder, name, path, show, module)


def build_control_plane(version: str, show: Callable[[str], None]) -> Path:
    """Build the control plane and the kubelet of a Kubernetes version: a key of MODULES."""
    return build(HERE, "control-plane", show, MODULES[version])


def build_containerd(show: Callable[[str], None]) -> Path:
    """Build containerd 2 and its shim, and return the folder that has both."""
    build(CONTAINERD, "containerd-shim-runc-v2", show)
    return build(CONTAINERD, "containerd", show).parent


def _build(folder: Path, name: str, path: Path, show: Callable[[str], None], module: str) -> Path:
    show(f"Building {name}: downloading modules")
    own, target = f"-modfile={module}", _target(folder, name)
    packages = _go(folder, "list", own, "-deps", "-e", target).split()
    part = path.with_suffix(".part")
    flags = ["-ldflags", _flags(folder / module)]
    command = ["go", "build", own, "-v", "-buildvcs=false", *flags, "-o", str(part), target]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        last = ""
        for number, line in enumerate(process.stderr, start=1):
            last = line.strip() or last
            if number % 100 == 0:
                show(f"Building {name}: {number} of at most {len(packages)} packages")
    if process.returncode:
        raise Unavailable(f"cannot build {name}: {last}")
    part.rename(path)
    show(f"Built {name}")
    return path


def module_folder(folder: Path, module: str) -> Path:
    """Where Go keeps the source of a module that go.mod requires, with its manifests."""
    return Path(json.loads(_go(folder, "mod", "download", "-json", module))["Dir"])


def _target(folder: Path, name: str) -> str:
    """A main package of our own, or the tool of go.mod that is called like the program."""
    if any(path.suffix == ".go" for path in folder.iterdir()):
        return "."
    (target,) = (t for t in _go(folder, "list", "tool").split() if t.endswith(f"/{name}"))
    return target


def _flags(module: Path) -> str:
    """What a release build tells Kubernetes of its version; go.mod knows it: v0.34.4 of kubectl is v1.34.4."""
    found = re.search(r"^\tk8s\.io/(?:kubernetes|kubectl) v\d\.(\S+)$", module.read_text(), re.M)
    if not found:
        return "-s -w"
    minor = found[1].split(".")[0]
    values = {"gitVersion": f"v1.{found[1]}", "gitMajor": "1", "gitMinor": minor}
    return "-s -w " + " ".join(
        f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()
    )


def _go(folder: Path, *words: str) -> str:
    ended = subprocess.run(
        ["go", *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"`go {words[0]}` failed: {last.strip()}")
    return ended.stdout


class ControlPlane:
    """A control plane that is there until `stop`, or until this process ends, however it ends."""

    def __init__(self, *command: str | Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests, which then end it
            env={**os.environ, "GOGC": "200", **environment},
        )
        line = self._process.stdout.readline().strip()
        if not line:
            raise Unavailable("the control plane did not start; see above")
        self.folder = Path(line)

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> str:
        return str(self.folder / "kubeconfig")

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
