"""A real node: a control plane with a kubelet and containerd, in namespaces of its own.

with Node(build_control_plane(NEWEST, show=print)) as node:
    ...  # in this process and its children, KUBECONFIG=node.kubeconfig kubectl get pods -A
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import ControlPlane, Unavailable, image
from .api import Api, ApiError, only_embedded, path_of
from .inside import PLUGINS
from .remote import RemoteCluster

CLONE_NEWNET = 0x40000000  # of unshare(2)
NAME = "node-1"
PACKAGES = "containerd runc containernetworking-plugins busybox-static iproute2 iptables conntrack"
PROGRAMS = ("containerd", "runc", "ip", "iptables", "conntrack", "unshare")
# Its standard input is that of the control plane. Once all of it has ended, it removes what is left.
KEEPER = """
unshare --mount --pid --fork --kill-child --mount-proc --propagation private -- "$@"
find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + 2>/dev/null
rm -rf "$FOLDER"
"""


def require() -> None:
    """Raise Unavailable if this machine cannot be a node."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Unavailable("needs Linux, and root: it creates namespaces and containers")
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if not os.path.exists("/bin/busybox"):
        missing.append("/bin/busybox (static)")
    if not any(os.path.exists(f"{path}/bridge") for path in PLUGINS):
        missing.append("the CNI plugin bridge")
    if missing:
        text = f"needs {', '.join(missing)}; on Debian: apt-get install {PACKAGES}"
        raise Unavailable(text)


class Node(ControlPlane):
    """A node that is there until `stop`, or until this process ends, however it ends.

    Nobody else reaches it: this process, and those that it starts from now on, get its network.
    """

    def __init__(
        self, program: Path, tool: Path | None = None, containerd: Path | None = None
    ) -> None:
        """`tool`: packages for an image of the tool, see image.py; `containerd`: a folder, if not that of the PATH."""
        require()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise Unavailable(
                f"cannot have a network of its own: {os.strerror(ctypes.get_errno())}"
            )
        own = Path(tempfile.mkdtemp(prefix="node-"))
        if tool:
            image.build(tool, own / "images")
        inside = [sys.executable, "-m", "clusters.control_plane.inside", str(own), str(program)]
        path, programs = str(Path(__file__).parents[2]), os.environ["PATH"]  # tests/
        super().__init__(
            *("sh", "-c", KEEPER, "sh", *inside),
            FOLDER=str(own),
            PYTHONPATH=path,
            PATH=f"{containerd}:{programs}" if containerd else programs,
            PYTHONSAFEPATH="1",
        )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        api, deadline = Api(self.folder), time.monotonic() + 60
        while not is_node_ready(api):
            if time.monotonic() > deadline:
                log = (self.folder / "kubelet.log").read_text()[-2000:]
                raise Unavailable(f"the node is not ready: {log}")
            time.sleep(0.1)


def is_node_ready(api: Api) -> bool:
    """Return whether the node is known, ready, and takes Pods."""
    try:
        node = api.ask("GET", path_of("nodes", None, NAME))
    except ApiError:
        return False
    conditions = node["status"].get("conditions", ())
    is_ready = any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
    return is_ready and not node["spec"].get("taints")


class RealKubelet:
    """In place of the stand-in for the kubelet: tests that set what a Pod does skip."""

    def sync(self, pod: dict) -> None:
        pass

    def __getattr__(self, name: str):
        only_embedded(f"`cluster.kubelet.{name}`")

    def __setattr__(self, name: str, value: object) -> None:
        only_embedded(f"`cluster.kubelet.{name}`")


class NodeCluster(RemoteCluster):
    """A real node, for one test in namespaces of its own."""

    patience = 5

    def make_kubelet(self) -> RealKubelet:
        return RealKubelet()

    def kubelet_process(self) -> int:
        """Return the process ID of the kubelet."""
        words = ["pgrep", "-f", f"kubeconfig={self.shared.folder}/kubelet.kubeconfig"]
        return int(subprocess.run(words, capture_output=True, check=True).stdout)

    @contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """Stop the kubelet, until the node is known not to be ready; at the end, it goes on.

        Only for a test that has the node for itself: see `alone`.
        """
        process = self.kubelet_process()
        os.kill(process, signal.SIGSTOP)
        try:
            self.wait_for(lambda: not is_node_ready(self.api))
            yield
        finally:
            os.kill(process, signal.SIGCONT)
            self.wait_for(lambda: is_node_ready(self.api))


@contextmanager
def the_node(folder: Path, alone: bool) -> Iterator[None]:
    """Use the node, together with others or alone. Who waits to be alone lets nobody else start."""
    turnstile, room = ((folder / name).open("w") for name in ("turnstile", "room"))
    with turnstile, room:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield
