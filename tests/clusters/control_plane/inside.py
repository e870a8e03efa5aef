"""python -m clusters.control_plane.inside FOLDER PROGRAM: a node, as the first process of namespaces of its own.

It sets up the network, and starts the registry, containerd and the control plane with the kubelet. When the control
plane ends, as it does at the end of standard input, so does this process, and with it all others and the mounts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .registry import PORT, Registry

ADDRESS = "10.91.0.1"  # of the node and the API server
SERVICE = "10.96.0.1"  # of the Service `kubernetes`, which the API server has as well: there is no kube-proxy
SOCKET = "/run/containerd/containerd.sock"
PLUGINS = ("/usr/lib/cni", "/opt/cni/bin")  # of Debian, of others
NETWORK = (
    "link set lo up",
    "link add node0 type bridge",
    f"addr add {ADDRESS}/24 dev node0",
    "link set node0 up",
    f"addr add {SERVICE}/32 dev lo",
    "link add v0 type veth peer name v1",  # a bridge without a carrier has no route
    "link set v0 master node0 up",
    "link set v1 up",
    f"route add default dev node0 src {ADDRESS}",
)
CONTAINERD = """
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE, a process cannot lower its score
  sandbox_image = "node/sandbox:1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{folder}/registries"
"""
HOSTS = f"""
server = "http://127.0.0.1:{PORT}"
[host."http://127.0.0.1:{PORT}"]
  capabilities = ["pull", "resolve"]
"""
PODS = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.90.0.0/16"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": "/run/cni-ipam",
            },
        }
    ],
}
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",  # systemd's socket is in the machine's /run
    "failSwapOn": False,
    "containerRuntimeEndpoint": f"unix://{SOCKET}",
    "clusterDomain": "cluster.local",
    "clusterDNS": ["10.96.0.10"],
    "maxPods": 250,
    "evictionHard": {
        "memory.available": "100Mi",
        "nodefs.available": "1%",
        "imagefs.available": "1%",
        "nodefs.inodesFree": "1%",
    },
    "imageGCHighThresholdPercent": 100,
    "nodeLeaseDurationSeconds": 20,  # the node lifecycle controller waits as long
    "resolvConf": "",
    "makeIPTablesUtilChains": False,
}


def settings_of_cgroups() -> dict:
    """Return what the kubelet needs for cgroup v1, which it refuses otherwise; for cgroup v2, nothing."""
    is_v2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    return {} if is_v2 else {"failCgroupV1": False}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def prepare(folder: Path) -> None:
    """Write the configurations, and set up mounts and the network."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    # With a real server of names, a pull that fails takes 10 seconds
    nowhere, names = "nameserver 127.0.0.1\n", Path(os.path.realpath("/etc/resolv.conf"))
    write(folder / "resolv.conf", nowhere)
    if names.exists():
        subprocess.run(["mount", "--bind", folder / "resolv.conf", names], check=True)
    else:  # it was a link into /run
        write(names, nowhere)
    for words in NETWORK:
        subprocess.run(["ip", *words.split()], check=True)
    plugins = next(path for path in PLUGINS if os.path.exists(f"{path}/bridge"))
    text = CONTAINERD.format(folder=folder, socket=SOCKET, plugins=plugins)
    write(folder / "containerd.toml", text)
    write(folder / "registries" / "_default" / "hosts.toml", HOSTS)
    write(folder / "cni" / "10-pods.conflist", json.dumps(PODS))
    own = {"podLogsDir": f"{folder}/logs", "volumePluginDir": f"{folder}/plugins"}
    write(folder / "kubelet.json", json.dumps({**KUBELET, **settings_of_cgroups(), **own}))


def main(folder: Path, program: str) -> None:
    prepare(folder)
    Registry(folder / "images").start()
    with (folder / "containerd.log").open("wb") as log:
        words = ["containerd", "--config", str(folder / "containerd.toml")]
        containerd = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline = time.monotonic() + 30
    while not os.path.exists(SOCKET):
        if containerd.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"containerd did not start: {(folder / 'containerd.log').read_text()[-2000:]}")
        time.sleep(0.05)
    running = subprocess.Popen([program, "--node", str(folder)])
    while os.wait()[0] != running.pid:  # the first process adopts others, and reaps them
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
