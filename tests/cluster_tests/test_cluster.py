"""The embedded cluster, tested against recordings of a real API server and a real kubectl (tests/clusters/recorded/)."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
import urllib.parse

import pytest
from clusters.control_plane.api import Names
from clusters.embedded import EmbeddedCluster, admission
from clusters.embedded.manifests import container, pod_spec, workload
from clusters.recorded.record import READS_APPS, Client, fill
from support import KUBECTL, RECORDED, exchanges, kubectl_minor, let_ready


@pytest.fixture(scope="module")
def recorded_cluster():
    """The same objects as in the recorded cluster."""
    with EmbeddedCluster() as cluster:
        fill(cluster)
        cluster.kubeconfig_of("viewer", [READS_APPS])
        yield cluster


@pytest.fixture
def client(recorded_cluster):
    found = Client(recorded_cluster)
    yield found
    found.pool.clear()


WHOLE = {"fieldsV1", "annotations", "labels"}  # their keys are values
OPTIONAL = {
    ".status.conditions[].message",
    ".status.conditions[].reason",
}  # a Pod's: the kubelet's to fill


def keys_of(value: object, path: str = "") -> set[str]:
    """Every key of a JSON value by its path; a list's items count as one."""
    if isinstance(value, list):
        return set().union(*(keys_of(item, path + "[]") for item in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, inner in value.items():
        here = f"{path}.{key}"
        found.add(here)
        if key not in WHOLE:
            found |= keys_of(inner, here)
    return found


def token_of(exchange: dict) -> str | None:
    return "token-of-viewer" if exchange["request"].get("as") else "admin-token"


def compare(exchange: dict, status: int, body: dict) -> None:
    wanted = exchange["response"]
    assert status == wanted["status"], body
    if wanted["body"].get("kind") == "Status":
        assert body.keys() == wanted["body"].keys(), body
        assert body.get("reason") == wanted["body"].get("reason")
        assert body.get("details", {}).keys() == wanted["body"].get("details", {}).keys()
    else:
        missing = keys_of(wanted["body"]) - keys_of(body)
        surplus = keys_of(body) - keys_of(wanted["body"])
        assert (sorted(missing), sorted(surplus)) == ([], [])


def ids(value: object) -> str | None:
    return value["request"]["path"] if isinstance(value, dict) else None


@pytest.mark.parametrize(
    "exchange", exchanges("get-workloads") + exchanges("list-replicasets"), ids=ids
)
def test_objects_and_lists(client, exchange):
    status, _, body = client(exchange["request"])
    compare(exchange, status, body)


def test_lists_in_pages(client):
    path = None
    pages = exchanges("list-pods-paged")
    for exchange in pages:
        status, _, body = client(exchange["request"], path=path)
        assert status == 200
        assert body["metadata"].keys() == exchange["response"]["body"]["metadata"].keys()
        assert body["metadata"].get("remainingItemCount") == exchange["response"]["body"][
            "metadata"
        ].get("remainingItemCount")
        assert len(body["items"]) == len(exchange["response"]["body"]["items"])
        assert all(item.keys() == {"metadata", "spec", "status"} for item in body["items"])
        token = body["metadata"].get("continue", "")
        path = f"/api/v1/pods?limit=4&continue={urllib.parse.quote(token)}"


@pytest.mark.parametrize("exchange", exchanges("list-pods-selectors"), ids=ids)
def test_selectors(client, exchange):
    status, _, body = client(exchange["request"])
    assert status == exchange["response"]["status"]
    wanted = exchange["response"]["body"]
    assert body.keys() == wanted.keys()
    if status == 200:
        assert len(body["items"]) == len(wanted["items"])
        assert body["metadata"].keys() == wanted["metadata"].keys()
    else:
        assert (body["reason"], body["message"]) == (wanted["reason"], wanted["message"])


def test_a_pod_has_the_fields_of_a_real_one(client):
    for name in ("web", "db", "agent"):
        exchange = exchanges(f"dry-run-pod-{name}")[1]
        status, _, body = client(exchange["request"])
        (wanted,), (found,) = exchange["response"]["body"]["items"], body["items"]
        assert (keys_of(wanted) ^ keys_of(found)) - OPTIONAL == set()
        assert found["metadata"]["labels"].keys() == wanted["metadata"]["labels"].keys()


@pytest.mark.parametrize("name", ["web", "db", "agent"])
def test_a_dry_run_pod_has_the_fields_of_a_real_one(client, recorded_cluster, name):
    exchange = exchanges(f"dry-run-pod-{name}")[0]
    before = recorded_cluster.store.version
    status, _, body = client(exchange["request"])
    compare(exchange, status, body)
    assert recorded_cluster.store.version == before


@pytest.mark.parametrize(
    "exchange", exchanges("patch"), ids=lambda e: json.dumps(e["request"]["body"])
)
def test_patches(client, exchange):
    status, _, body = client(exchange["request"], token_of(exchange))
    compare(exchange, status, body)
    if status >= 400:
        assert body["message"] == exchange["response"]["body"]["message"]


@pytest.mark.parametrize(
    ("number", "token"),
    [
        (0, None),
        (1, "nobody's"),
        (2, "token-of-viewer"),
        (3, "token-of-viewer"),
        (4, "admin-token"),
    ],
)
def test_authentication_and_authorization(client, number, token):
    exchange = exchanges("auth")[number]
    status, _, body = client(exchange["request"], token)
    compare(exchange, status, body)
    if status >= 400:
        assert body["message"] == exchange["response"]["body"]["message"]
    else:
        assert body["status"] == exchange["response"]["body"]["status"]


def test_discovery(client):
    version, *groups = exchanges("discovery")
    compare(version, *client(version["request"])[::2])
    for exchange in groups:
        status, headers, body = client(exchange["request"])
        assert headers["Content-Type"] == exchange["response"]["headers"]["Content-Type"]
        known = {
            r["resource"]: r
            for g in exchange["response"]["body"]["items"]
            for v in g["versions"]
            for r in v["resources"]
        }
        for group in body["items"]:
            for found in (
                resource for version in group["versions"] for resource in version["resources"]
            ):
                if found["resource"] not in known:  # custom resources
                    continue
                wanted = known[found["resource"]]
                for key in ("responseKind", "scope", "singularResource", "shortNames"):
                    assert found.get(key) == wanted.get(key), found["resource"]
                assert set(found["verbs"]) == set(wanted["verbs"])


def test_discovery_as_kubectl_reads_it_before_1_30(client):
    versions, groups, *lists = exchanges("discovery-older")
    status, _, body = client(versions["request"])
    assert (status, body["kind"], body["versions"]) == (200, "APIVersions", ["v1"])
    known = {group["name"]: group for group in groups["response"]["body"]["groups"]}
    _, headers, body = client(groups["request"])
    assert headers["Content-Type"] == groups["response"]["headers"]["Content-Type"]
    found = {group["name"]: group for group in body["groups"]}
    assert {"apps", "batch", "policy", "authorization.k8s.io"} <= set(found)
    assert all(group == known[name] for name, group in found.items() if name in known)
    for exchange in lists:
        wanted = exchange["response"]["body"]
        by_name = {resource["name"]: resource for resource in wanted.pop("resources")}
        _, _, body = client(exchange["request"])
        served = body.pop("resources")
        assert body == wanted
        assert served
        for resource in served:
            expected = by_name[resource["name"]]
            assert set(resource.pop("verbs")) == set(expected["verbs"])
            assert resource.items() <= expected.items()


def test_a_rollout_as_a_watch_sees_it(recorded_cluster, client):
    wanted = exchanges("watch-one-rollout")
    found = client.events_of_a_rollout(recorded_cluster, "admin-token")
    assert (
        [e["type"] for e in found[:2]] == ["ADDED", "BOOKMARK"] == [e["type"] for e in wanted[:2]]
    )
    assert found[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert {e["type"] for e in found[2:]} == {"MODIFIED"}

    def reasons(events):
        seen = [
            c["reason"]
            for e in events
            for c in e["object"]["status"].get("conditions", ())
            if c["type"] == "Progressing"
        ]
        return list(dict.fromkeys(seen))

    assert reasons(found) == reasons(wanted)
    for events in (found, wanted):
        states = [e["object"]["status"] for e in events if e["type"] == "MODIFIED"]
        assert (
            states[-1]["updatedReplicas"]
            == states[-1]["availableReplicas"]
            == states[-1]["replicas"]
            == 3
        )
        assert max(s["replicas"] for s in states) == 4  # maxSurge 25% of 3
        assert min(s["availableReplicas"] for s in states) == 3  # maxUnavailable 25% of 3
    known = set().union(*(e["object"]["status"].keys() for e in wanted))
    assert set().union(*(e["object"]["status"].keys() for e in found)) <= known


def test_an_expired_continue_token(recorded_cluster, client):
    first = {"method": "GET", "path": "/api/v1/pods?limit=2", "accept": "application/json"}
    _, _, body = client(first)
    recorded_cluster.store.expire_pages()
    token = urllib.parse.quote(body["metadata"]["continue"])
    status, _, body = client(first, path=f"/api/v1/pods?limit=2&continue={token}")
    assert (status, body["reason"]) == (410, "Expired")
    assert body["metadata"]["continue"]


def test_every_recording_is_described():
    rows = re.findall(r"(?m)^\| (`.*?`) \|", (RECORDED / "README.md").read_text())
    names = re.findall(r"`([\w-]+)`", " ".join(rows).replace("`-", "`dry-run-pod-"))
    assert sorted(names) == sorted(path.stem for path in RECORDED.glob("*.json"))


def test_it_starts_in_under_a_second():
    began = time.monotonic()
    with EmbeddedCluster():
        assert time.monotonic() - began < 1


# With a real kubectl


def kubectl(
    cluster: EmbeddedCluster, *words: str, **environment: str
) -> subprocess.CompletedProcess:
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig, **environment}
    return subprocess.run(
        [KUBECTL, *words], env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_rollout_can_be_undone(cluster):
    cluster.create("shop", workload("Deployment", "web", pod_spec(container("app", "app:1"))))
    cluster.settle()
    changed = {"spec": {"containers": [{"name": "app", "image": "app:2"}]}}
    cluster.change("Deployment", "shop", "web", {"spec": {"template": changed}})
    cluster.settle()
    words = ("rollout", "undo", "deployment/web", "-n", "shop", "--to-revision=1")
    assert kubectl(cluster, *words).stdout == "deployment.apps/web rolled back\n"
    cluster.settle()
    (found,) = cluster.pods("shop", "web")
    assert found["spec"]["containers"][0]["image"] == "app:1"


@pytest.mark.parametrize(
    "as_stream", ["true", "false"]
)  # kubectl 1.37's way to watch, and that of older ones
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_kubectl_waits_for_a_rollout_in_both_ways_to_watch(cluster, kind, as_stream):
    if as_stream == "true" and kubectl_minor() < 30:
        pytest.skip("needs kubectl 1.30: streams of lists")
    cluster.create("shop", workload(kind, "web"))
    cluster.settle()
    cluster.kubelet.ready_after = 600
    target = f"{kind.lower()}/web"
    assert (
        kubectl(cluster, "rollout", "restart", target, "-n", "shop").stdout
        == f"{kind.lower()}.apps/web restarted\n"
    )
    words = [KUBECTL, "rollout", "status", target, "-n", "shop", "--timeout=60s"]
    environment = {"KUBECONFIG": cluster.kubeconfig, "KUBE_FEATURE_WatchListClient": as_stream}
    with subprocess.Popen(
        words, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout.readline().startswith("Waiting for")
        let_ready(cluster)
        assert "roll" in waiting.stdout.read()
    assert waiting.returncode == 0
    watches = [r for r in cluster.server.requests if r.verb == "watch"]
    assert all(
        (r.query.get("sendInitialEvents") == "true") == (as_stream == "true") for r in watches
    )
    assert watches


@pytest.mark.parametrize(
    ("kind", "fields", "change", "words", "said"),
    [
        (
            "Deployment",
            {"replicas": 0},
            {},
            "status deploy/x",
            'deployment "x" successfully rolled out\n',
        ),
        (
            "StatefulSet",
            {"updateStrategy": {"type": "OnDelete"}},
            {},
            "status sts/x",
            "error: rollout status is only available for RollingUpdate strategy type\n",
        ),
        (
            "StatefulSet",
            {
                "replicas": 3,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}},
            },
            {},
            "status sts/x",
            "partitioned roll out complete: 3 new pods have been updated...\n",
        ),
        (
            "Deployment",
            {},
            {"spec": {"paused": True}},
            "restart deploy/x",
            'error: deployments.apps "x" can\'t restart paused deployment (run rollout resume first)\n',
        ),
        (
            "Deployment",
            {},
            {},
            "status deploy/nosuch",
            'Error from server (NotFound): deployments.apps "nosuch" not found\n',
        ),
        (
            "Deployment",
            {},
            {},
            "status rs/bare",
            'Error from server (NotFound): replicasets.apps "bare" not found\n',
        ),
    ],
)
def test_kubectl_says_what_it_says_to_a_real_cluster(cluster, kind, fields, change, words, said):
    cluster.create("shop", workload(kind, "x", **fields))
    cluster.settle()
    if change:
        cluster.change(kind, "shop", "x", change)
        cluster.settle()
    ended = kubectl(
        cluster,
        "rollout",
        *words.split(),
        "-n",
        "shop",
        "--timeout=5s" if "status" in words else "-v=0",
    )
    assert ended.stdout + ended.stderr == said


def test_a_generated_name_that_is_taken_is_made_again(cluster, monkeypatch):
    """As the API server does since 1.32: one cluster of 500 Pods in 110 would be without a Pod."""
    suffixes = iter(["aaaaa", "aaaaa", "aaaaa", "bbbbb"])
    monkeypatch.setattr(admission, "random_suffix", lambda: next(suffixes))
    monkeypatch.setattr(admission, "mount_token", lambda spec: None)
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    names = [pod["metadata"]["name"] for pod in cluster.pods("shop")]
    assert [name.rpartition("-")[2] for name in names] == ["aaaaa", "bbbbb"]


def test_an_unexpected_request_is_remembered(recorded_cluster, client):
    paths = ["/apis/nobody/v1/things", "/apis/nobody/v1"]
    for path in paths:
        status, _, _ = client({"method": "GET", "path": path, "accept": "application/json"})
        assert status == 404
    assert recorded_cluster.server.unexpected == [f"GET {path}" for path in paths]


def test_namespaces_on_a_shared_cluster_are_as_long_as_those_of_the_tests():
    """Columns and orders of a plan stay as they are; a namespace is used once."""
    numbers, found = itertools.count(), []
    for _ in range(3000):
        names = Names(numbers)
        names.add("shop")
        found += names.all
        assert names.restore(names.translate("shop  web in shop-2")) == "shop  web in shop-2"
    assert len(set(found)) == 3000
    assert {(len(name), name[0]) for name in found} == {(4, "s")}
