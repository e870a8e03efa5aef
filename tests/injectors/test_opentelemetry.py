"""The OpenTelemetry operator: a collector as a sidecar, and auto-instrumentation as an init container."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from clusters.control_plane.api import ApiError
from clusters.control_plane.remote import RemoteCluster, Shared
from clusters.injectors import OpenTelemetry
from support import BOTH, CONFIRM, DRIFTED, lines, verdicts
from workloads_of_every_kind import create_company

pytestmark = pytest.mark.injectors
COLLECTOR, JAVA = "otc-container", "opentelemetry-auto-instrumentation-java"
WANTED = {
    "sidecar.opentelemetry.io/inject": "true",
    "instrumentation.opentelemetry.io/inject-java": "true",
}
OPTIONS = (DRIFTED, *BOTH, *(f"--sidecar-container-name={name}" for name in (COLLECTOR, JAVA)))
PIPELINE = {"receivers": ["otlp"], "exporters": ["debug"]}
CONFIG = {
    "receivers": {"otlp": {"protocols": {"grpc": {}}}},
    "exporters": {"debug": {}},
    "service": {"pipelines": {"traces": PIPELINE}},
}
RESOURCES = f"{COLLECTOR}.env.OTEL_RESOURCE_ATTRIBUTES"


def images(collector: str, java: str) -> list[str]:
    """Options of the operator: the images that it gives where a custom resource names none."""
    return [
        f"--collector-image=registry.example/collector:{collector}",
        f"--auto-instrumentation-java-image=registry.example/java:{java}",
    ]


@pytest.fixture(scope="module")
def operator(shared: Shared, programs: dict) -> Iterator[OpenTelemetry]:
    program = programs["opentelemetry-operator"]
    found = OpenTelemetry(
        shared.api, program, str(shared.folder / "kubeconfig"), shared.webhook.label
    )
    found.install()
    yield found
    found.close()


def has(*tags: str):
    def is_injected(pod: dict) -> bool:
        containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        found = {c["name"]: c["image"].rpartition(":")[2] for c in containers}
        return (found.get(COLLECTOR), found.get(JAVA)) == tags

    return is_injected


def configure(operator: OpenTelemetry, real_cluster: RemoteCluster, **spec) -> None:
    """Create or change the custom resources of both namespaces, once the operator answers."""

    def is_created(namespace: str, kind: str, spec: dict) -> bool:
        try:
            operator.create(real_cluster.names.real(namespace), kind, spec)
        except ApiError as refused:
            print(refused)  # why the wait was in vain
            return False
        return True

    collector = {"mode": "sidecar", "config": CONFIG}
    instrumentation = {"exporter": {"endpoint": "http://localhost:4317"}, **spec}
    for name in ("shop", "bank"):
        real_cluster.wait_for(
            lambda name=name: is_created(name, "OpenTelemetryCollector", collector), 30
        )
        real_cluster.wait_for(
            lambda name=name: is_created(name, "Instrumentation", instrumentation), 30
        )


def create_known_company(real_cluster: RemoteCluster) -> list[str]:
    """Create the workloads, and their Pods once more, when the operator knows their ReplicaSets.

    It reads of them in the background. A Pod that comes first lacks the names of its owners.
    """
    company = create_company(real_cluster, **WANTED)
    for namespace in ("shop", "bank"):
        for pod in real_cluster.pods(namespace):
            real_cluster.delete("Pod", namespace, pod["metadata"]["name"])
    real_cluster.settle()
    return company


def test_nothing_drifts_until_an_upgrade_which_is_found_exactly(operator, real_cluster, until, run):
    operator.start(*images("1", "2"))
    for name in ("shop", "bank"):
        real_cluster.namespace(name)
    configure(operator, real_cluster)
    until(has("1", "2"), **WANTED)
    company = create_known_company(real_cluster)
    assert verdicts(run(real_cluster, *OPTIONS)) == dict.fromkeys(company, "up_to_date")
    operator.renew_certificate()
    operator.start(*images("1", "2"))
    until(has("1", "2"), **WANTED)
    assert verdicts(run(real_cluster, *OPTIONS)) == dict.fromkeys(company, "up_to_date")

    operator.start(*images("11", "12"))
    until(has("11", "12"), **WANTED)
    ended = run(real_cluster, *OPTIONS)
    for name in (reference.partition("/")[2] for reference in company):
        assert sorted(lines(ended, name)) == [
            f"{JAVA}.image: registry.example/java:2 -> registry.example/java:12",
            f"{COLLECTOR}.image: registry.example/collector:1 -> registry.example/collector:11",
        ]
    confirmed = run(real_cluster, *OPTIONS, "--show-values", CONFIRM, "--parallel-rollouts=5")
    is_new = has("11", "12")
    old = [
        p["metadata"]["name"]
        for p in real_cluster.pods("shop") + real_cluster.pods("bank")
        if not is_new(p)
    ]
    assert old == [], (confirmed.stdout, confirmed.stderr)
    assert set(confirmed.outcomes) == set(company)
    # A Pod that came before the operator knew its ReplicaSet lacks its owners' names, and the next one will have them.
    for result in confirmed.of("result"):
        if result["outcome"] != "succeeded":
            assert result["outcome"] == "still_drifted"
            found = re.search(r" env (\w+)(?:\.value)?  (\S+) -> \S+$", result["message"])
            assert found, result["message"]
            assert (found[1], "k8s.deployment.name" in found[2]) == (
                "OTEL_RESOURCE_ATTRIBUTES",
                False,
            )
    for found in run(real_cluster, *OPTIONS).of("drift"):
        for path in (".".join(d["path"]) for d in found["differences"]):
            assert path.startswith(RESOURCES)


def test_a_changed_instrumentation_is_found(operator, real_cluster, until, run):
    """What it sets in the application's container is no sidecar's."""
    operator.start(*images("1", "2"))
    for name in ("shop", "bank"):
        real_cluster.namespace(name)
    configure(operator, real_cluster)
    until(has("1", "2"), **WANTED)
    create_known_company(real_cluster)
    configure(operator, real_cluster, java={"image": "registry.example/java:own"})
    until(has("1", "own"), **WANTED)
    ended = run(real_cluster, *OPTIONS)
    assert lines(ended, "plain") == [
        f"{JAVA}.image: registry.example/java:2 -> registry.example/java:own"
    ]
    configure(operator, real_cluster, exporter={"endpoint": "http://other:4317"})
    until(has("1", "2"), **WANTED)
    ended = run(real_cluster, *OPTIONS)
    (plain,) = [r for r in ended.of("drift") if r["name"] == "plain"]
    assert plain["verdict"] == "up_to_date"


def test_what_it_sets_in_the_application_is_found_if_its_container_is_named_too(
    operator, real_cluster, until, run
):
    """The README's recipe."""
    operator.start(*images("1", "2"))
    for name in ("shop", "bank"):
        real_cluster.namespace(name)
    configure(operator, real_cluster)
    until(has("1", "2"), **WANTED)
    create_known_company(real_cluster)
    configure(operator, real_cluster, exporter={"endpoint": "http://other:4317"})
    until(has("1", "2"), **WANTED)
    names = [f"--sidecar-container-name={name}" for name in (JAVA, "app")]
    ended = run(real_cluster, DRIFTED, *BOTH, *names)
    (plain,) = [r for r in ended.of("drift") if r["name"] == "plain"]
    assert plain["verdict"] == "drifted"
    changed = {tuple(difference["path"]) for difference in plain["differences"]}
    assert ("app", "env", "OTEL_EXPORTER_OTLP_ENDPOINT") in changed
    assert {path[0] for path in changed} == {"app"}
    done = run(real_cluster, DRIFTED, CONFIRM, *names, "deployment/plain")
    assert done.outcomes == {"shop/plain": "succeeded"}
