"""Istio's own injector, with the values of its charts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from clusters.control_plane.remote import RemoteCluster, Shared
from clusters.embedded.manifests import workload
from clusters.injectors import Istio
from support import BOTH, CONFIRM, DRIFTED, lines, verdicts
from workloads_of_every_kind import create_company

pytestmark = pytest.mark.injectors
PROXY = "docker.io/istio/proxyv2"
OLD, NEW = "1.30.0", Istio.version
ENABLED = {"istio-injection": "enabled"}
UPGRADE = (
    "values.global.proxy.logLevel=info",
    "values.global.proxy.resources.limits.memory=2Gi",
    "meshConfig.defaultConfig.proxyMetadata.EXTRA=1",
)


@pytest.fixture(scope="module")
def istio(shared: Shared, programs: dict) -> Iterator[Istio]:
    found = Istio(shared.api, programs["istio"], str(shared.folder / "kubeconfig"))
    found.install(f"tag={OLD}")
    yield found
    found.close()


def proxies(pod: dict) -> list[str]:
    """The images of a Pod's proxies."""
    spec = pod["spec"]
    containers = spec["containers"] + spec.get("initContainers", [])
    return [found["image"] for found in containers if found["name"] == "istio-proxy"]


def has(tag: str):
    return lambda pod: proxies(pod) == [f"{PROXY}:{tag}"]


def has_none(pod: dict) -> bool:
    return proxies(pod) == []


def label(real_cluster: RemoteCluster, labels: dict[str, str | None]) -> None:
    real_cluster.change("Namespace", "", "shop", {"metadata": {"labels": labels}})


@pytest.fixture
def shop(istio, real_cluster, until) -> RemoteCluster:
    """Two Deployments with the old proxy, one of them with an image of its own."""
    istio.install(f"tag={OLD}")
    real_cluster.namespace("shop", labels=ENABLED)
    until(has(OLD))
    real_cluster.create("shop", workload("Deployment", "web", replicas=2))
    pinned = {"sidecar.istio.io/proxyImage": f"{PROXY}:1.29.9"}
    real_cluster.create("shop", workload("Deployment", "pinned", annotations=pinned))
    real_cluster.settle()
    return real_cluster


@pytest.mark.parametrize("native", ["false", "true"])
def test_right_after_creation_nothing_has_drifted(istio, real_cluster, until, run, native):
    istio.install(f"tag={OLD}", ENABLE_NATIVE_SIDECARS=native)
    for name in ("shop", "bank"):
        real_cluster.namespace(name, labels=ENABLED)
    until(has(OLD))
    company = dict.fromkeys(create_company(real_cluster), "up_to_date")
    natives = [
        c["name"] for p in real_cluster.pods("shop") for c in p["spec"].get("initContainers", ())
    ]
    assert ("istio-proxy" in natives) == (native == "true")
    all_containers = (DRIFTED, *BOTH, "--sidecar-container-name=istio-*")
    for _ in range(2):
        assert verdicts(run(real_cluster, *all_containers)) == company
    istio.start(ENABLE_NATIVE_SIDECARS=native)
    until(has(OLD))
    assert verdicts(run(real_cluster, *all_containers)) == company


def test_a_renewed_root_certificate_is_a_change_of_configuration(istio, real_cluster, until, run):
    istio.install(f"tag={OLD}")
    real_cluster.namespace("shop", labels=ENABLED)
    until(has(OLD))
    real_cluster.create("shop", workload("Deployment", "web"))
    real_cluster.settle()
    found = real_cluster.wait_for(
        lambda: real_cluster.get("ConfigMap", "shop", "istio-ca-root-cert")
    )
    assert lines(run(real_cluster, DRIFTED), "web") == []
    istio.stop()
    secret = "/api/v1/namespaces/istio-system/secrets/istio-ca-secret"
    istio.api.ask("DELETE", secret)
    istio.start()
    real_cluster.wait_for(
        lambda: (
            real_cluster.get("ConfigMap", "shop", "istio-ca-root-cert")["data"] != found["data"]
        ),
        60,
    )
    until(has(OLD))
    assert verdicts(run(real_cluster, DRIFTED)) == {"shop/web": "up_to_date"}
    ended = run(real_cluster, DRIFTED, "--include-config")
    (line,) = lines(ended, "web")
    assert re.match("ConfigMap shop/istio-ca-root-cert: None -> .*changed", line)
    ignored = run(real_cluster, DRIFTED, "--include-config", "--ignore-config=istio-ca-*")
    assert verdicts(ignored) == {"shop/web": "up_to_date"}


def test_an_upgrade_is_found_exactly_and_rolled_out(istio, real_cluster, until, run):
    istio.install(f"tag={OLD}")
    for name in ("shop", "bank"):
        real_cluster.namespace(name, labels=ENABLED)
    until(has(OLD))
    company = create_company(real_cluster)
    istio.install(*UPGRADE)
    until(has(NEW))
    ended = run(real_cluster, DRIFTED, *BOTH)
    assert sorted(ended.planned) == company
    for name in (reference.partition("/")[2] for reference in company):
        assert lines(ended, name) == [
            "istio-proxy.args: <redacted> -> <redacted>",
            "istio-proxy.env.EXTRA: None -> <redacted>",
            "istio-proxy.env.PROXY_CONFIG: <redacted> -> <redacted>",
            f"istio-proxy.image: {PROXY}:{OLD} -> {PROXY}:{NEW}",
            "istio-proxy.resources.limits.memory: 1Gi -> 2Gi",
        ]
    confirmed = run(real_cluster, DRIFTED, *BOTH, CONFIRM, "--parallel-rollouts=5")
    assert confirmed.outcomes == dict.fromkeys(company, "succeeded")
    again = run(real_cluster, DRIFTED, *BOTH, "--sidecar-container-name=istio-*")
    assert verdicts(again) == dict.fromkeys(company, "up_to_date")
    for pod in real_cluster.pods("shop") + real_cluster.pods("bank"):
        assert has(NEW)(pod)
        (proxy,) = [c for c in pod["spec"]["containers"] if c["name"] == "istio-proxy"]
        assert "--proxyLogLevel=info" in proxy["args"]
        assert {"name": "EXTRA", "value": "1"} in proxy["env"]
        assert proxy["resources"]["limits"]["memory"] == "2Gi"


def test_beside_another_injector(istio, real_cluster, until, run):
    """Two webhooks, two sidecars in each Pod; each of them is looked at by its name."""
    istio.install(f"tag={OLD}")
    real_cluster.namespace("shop", inject=True, labels=ENABLED)
    real_cluster.injector.container = {"name": "log-agent", "image": "agent:1"}
    until(has(OLD))
    real_cluster.create("shop", workload("Deployment", "web"))
    real_cluster.settle()
    both = (DRIFTED, "--sidecar-container-name=istio-*", "--sidecar-container-name=log-agent")
    assert verdicts(run(real_cluster, *both)) == {"shop/web": "up_to_date"}
    real_cluster.injector.container["image"] = "agent:2"
    assert lines(run(real_cluster, *both), "web") == ["log-agent.image: agent:1 -> agent:2"]
    assert verdicts(run(real_cluster, DRIFTED)) == {"shop/web": "up_to_date"}


def moved(old: str, before: str, new: str, after: str) -> list[str]:
    """What a move from one revision to another changes."""

    def address(revision: str) -> str:
        suffix = "" if revision == "default" else f"-{revision}"
        return f"istiod{suffix}.istio-system.svc:15012"

    discovery = None if before == "default" else address(before)
    return [
        f"istio-proxy.env.CA_ADDR: {address(before)} -> {address(after)}",
        f"istio-proxy.env.PROXY_CONFIG.discoveryAddress: {discovery} -> {address(after)}",
        *([] if old == new else [f"istio-proxy.image: {PROXY}:{old} -> {PROXY}:{new}"]),
    ]


@pytest.fixture
def canary(istio) -> Iterator[None]:
    """A second revision."""
    istio.install(revision="canary")
    yield
    istio.stop("canary")


def revisions(real_cluster: RemoteCluster) -> set[str]:
    return {pod["metadata"]["annotations"]["istio.io/rev"] for pod in real_cluster.pods("shop")}


def test_a_namespace_moves_to_another_revision(canary, shop, until, run):
    label(shop, {"istio-injection": None, "istio.io/rev": "canary"})
    until(has(NEW))
    ended = run(shop, DRIFTED, "--show-values")
    assert lines(ended, "web") == moved(OLD, "default", NEW, "canary")
    assert lines(ended, "pinned") == moved("1.29.9", "default", "1.29.9", "canary")
    confirmed = run(shop, DRIFTED, CONFIRM)
    assert set(confirmed.outcomes.values()) == {"succeeded"}
    assert verdicts(run(shop, DRIFTED)) == dict.fromkeys(["shop/web", "shop/pinned"], "up_to_date")
    assert revisions(shop) == {"canary"}


def test_a_revision_tag_moves(istio, canary, real_cluster, until, run):
    istio.install("values.revisionTags[0]=prod", revision="canary")
    real_cluster.namespace("shop", labels={"istio.io/rev": "prod"})
    until(has(NEW))
    real_cluster.create("shop", workload("Deployment", "web", replicas=2))
    real_cluster.settle()
    assert verdicts(run(real_cluster, DRIFTED)) == {"shop/web": "up_to_date"}
    istio.install("values.revisionTags[0]=prod", "tag=1.31.9", revision="next")
    until(has("1.31.9"))
    shown = run(real_cluster, DRIFTED, "--show-values")
    assert lines(shown, "web") == moved(NEW, "canary", "1.31.9", "next")
    assert run(real_cluster, DRIFTED, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert revisions(real_cluster) == {"next"}
    istio.stop("next")


NOBODYS = {"a revision that nobody serves": {"istio-injection": None, "istio.io/rev": "nope"}}
NOBODYS["no label"] = {"istio-injection": None}


@pytest.mark.parametrize("labels", NOBODYS.values(), ids=NOBODYS)
def test_without_an_injector_for_the_namespace_pods_would_lose_the_proxy(shop, until, run, labels):
    label(shop, labels)
    until(has_none)
    ended = run(shop, DRIFTED, CONFIRM)
    (path,) = [d["path"] for r in ended.of("drift") if r["name"] == "web" for d in r["differences"]]
    assert path == ["istio-proxy"]
    assert (ended.code, ended.planned, ended.of("result")) == (0, [], [])
    assert all(map(has(OLD), shop.pods("shop", "web")))


def test_a_pod_template_that_opts_out(istio, shop, until, run):
    """The rollout of that change removes the proxy by itself; with OnDelete, it waits."""
    shop.create("shop", workload("DaemonSet", "late", updateStrategy={"type": "OnDelete"}))
    shop.settle()
    opt_out = {"spec": {"template": {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}}}}
    for kind, name in (("Deployment", "web"), ("DaemonSet", "late")):
        shop.change(kind, "shop", name, opt_out)
    shop.wait_for(lambda: all(map(has_none, shop.pods("shop", "web"))))
    istio.install()
    until(has(NEW))
    ended = run(shop, DRIFTED, *BOTH, "--evict", CONFIRM)
    assert "shop/web" not in verdicts(ended)
    assert "shop/late" not in ended.outcomes
    assert "DaemonSet shop/late" in ended.skipped
    assert all(map(has(OLD), shop.pods("shop", "late")))


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_while_istiod_is_down_nothing_is_restarted(istio, shop, until, run, policy):
    istio.set_failure_policy(policy)
    istio.stop()
    if policy == "Ignore":
        until(has_none)
    ended = run(shop, DRIFTED, CONFIRM)
    expected = {"Fail": "unknown", "Ignore": "drifted"}[policy]
    assert verdicts(ended) == dict.fromkeys(["shop/web", "shop/pinned"], expected)
    code = {"Fail": 3, "Ignore": 0}[policy]  # of two without the sidecar, teams may have opted out
    assert (ended.code, ended.planned, ended.of("result")) == (code, [], [])
    if policy == "Fail":
        assert ended.summary["error"].startswith("no dry run returned istio-proxy (0 of 2): ")
    if policy == "Ignore":
        summary = run(shop, DRIFTED, "--log-format=text").stdout
        assert "would lose the sidecar istio-proxy; check the injector" in summary
    assert all(map(has(OLD), shop.pods("shop", "web")))


def test_a_pinned_image_is_up_to_date(istio, shop, until, run):
    istio.install()
    until(has(NEW))
    assert verdicts(run(shop, DRIFTED)) == {"shop/web": "drifted", "shop/pinned": "up_to_date"}


@pytest.mark.parametrize("native", ["false", "true"])
def test_an_image_is_changed_in_place(istio, real_cluster, until, run, native):
    istio.install(f"tag={OLD}", ENABLE_NATIVE_SIDECARS=native)
    real_cluster.namespace("shop", labels=ENABLED)
    until(has(OLD))
    real_cluster.create("shop", workload("Deployment", "web", replicas=2))
    real_cluster.settle()
    before = {p["metadata"]["uid"] for p in real_cluster.pods("shop")}
    istio.install(ENABLE_NATIVE_SIDECARS=native)
    until(has(NEW))
    ended = run(real_cluster, DRIFTED, "--in-place", CONFIRM)
    assert [r["method"] for r in ended.of("plan")] == ["in_place"]
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert {p["metadata"]["uid"] for p in real_cluster.pods("shop")} == before
    assert all(map(has(NEW), real_cluster.pods("shop")))
    assert verdicts(run(real_cluster, DRIFTED)) == {"shop/web": "up_to_date"}
