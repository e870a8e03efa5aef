"""An image of the tool, as deploy/Dockerfile makes it, but from this machine's Python: no base image can be pulled."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import CACHE, ENVIRONMENT, Unavailable

TOP = Path(__file__).parents[3]
REQUIREMENTS = TOP / "deploy" / "requirements.txt"
PYTHON = f"python{sysconfig.get_python_version()}"
LEFT_OUT = ("test", "__pycache__", "site-packages", "idlelib", "ensurepip", "lib2to3", "tkinter")
SETTINGS = {  # of the Dockerfile
    "Env": [
        "PATH=/usr/local/bin:/bin",
        "HOME=/tmp",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONUNBUFFERED=1",
    ],
    "User": "65532:65532",
    "Entrypoint": ["/usr/local/bin/sidecar-rollout.py"],
}
LATER = (
    "gcc_s",
    "nss_files",
    "nss_dns",
    "resolv",
    "rt",
    "pthread",
    "dl",
    "util",
)  # loaded when needed


def packages(show: Callable[[str], None]) -> Path:
    """Return a layer with Python and what deploy/requirements.txt names; made once, with network."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    path = CACHE / digest / "tool.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            show("Building an image of the tool")
            with tempfile.TemporaryDirectory() as folder:
                _install(Path(folder))
                _pack(Path(folder), path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
    return path


def _install(root: Path) -> None:
    """Install Python with its libraries, packages and a shell in a folder."""
    local = root / "usr" / "local"
    for folder in ("bin", "tmp", "etc", "lib64", "usr/bin", "usr/local/bin", "usr/local/lib"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    program = Path(os.path.realpath(sys.executable))
    shutil.copy(program, local / "bin" / PYTHON)
    (local / "bin" / "python3").symlink_to(PYTHON)
    library = Path(sysconfig.get_path("stdlib"))
    ignored = shutil.ignore_patterns(*LEFT_OUT, "config-*")
    shutil.copytree(library, local / "lib" / PYTHON, ignore=ignored)
    command = [sys.executable, "-m", "pip", "install", "-q", "-I", "--no-cache-dir", "--no-deps"]
    command += ["--require-hashes", f"--prefix={local}", "-r", str(REQUIREMENTS)]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if ended.returncode:
        raise Unavailable(f"cannot install deploy/requirements.txt: {ended.stderr.strip()[-200:]}")
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    for name in ("sh", "ls", "cat", "env", "sleep"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "usr" / "bin" / "env").symlink_to("/bin/busybox")
    extensions = local.rglob("*.so*")
    for path in _libraries([local / "bin" / PYTHON, *extensions], Path(sys.base_prefix) / "lib"):
        target = root / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)


def _libraries(programs: list[Path], own: Path) -> set[Path]:
    """Return the shared libraries of programs, those that are loaded later, and the loader."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(own)}
    words = ["ldd", *map(str, programs)]
    told = subprocess.run(words, env=environment, capture_output=True, text=True).stdout
    found = set(map(Path, re.findall(r"(/\S+\.so\S*) \(0x", told)))
    folder = next(path.parent for path in found if path.name.startswith("libc.so"))
    return found.union(*(folder.glob(f"lib{name}.so.*") for name in LATER))


def _pack(root: Path, path: Path) -> None:
    def as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        return info

    with tarfile.open(path, "w") as tar:
        for name in sorted(os.listdir(root)):
            tar.add(root / name, name, filter=as_root)


def build(layer: Path, folder: Path) -> None:
    """Write the image's layer, and its configuration: Python, packages, and the script as it is now."""
    path = folder / "sidecar-rollout.tar"
    folder.mkdir(exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(SETTINGS))
    part = path.with_suffix(".part")
    shutil.copy(layer, part)
    with tarfile.open(part, "a") as tar:
        info = tar.gettarinfo(TOP / "sidecar-rollout.py", "usr/local/bin/sidecar-rollout.py")
        info.mode, info.uid, info.gid = 0o755, 0, 0
        with (TOP / "sidecar-rollout.py").open("rb") as script:
            tar.addfile(info, script)
    part.rename(path)
