"""Injectors that never give the same twice."""

from __future__ import annotations

import itertools
import re

import pytest
from clusters.embedded.manifests import container, workload
from support import CONFIRM, DRIFTED, NEW, TEXT, lines, verdicts

pytestmark = pytest.mark.both

IGNORED = "Ignored, because it is different in each new Pod: istio-proxy env START_TIME"


@pytest.fixture
def stamped(cluster):
    """Three Deployments with Pods into which the injector wrote the time."""
    cluster.injector.stamps = True
    for name in "abc":
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    return cluster


def test_a_value_that_each_new_pod_has_anew_is_no_difference(stamped, run):
    ended = run(stamped, DRIFTED)
    assert set(verdicts(ended).values()) == {"up_to_date"}
    assert [r["ignored"] for r in ended.of("drift")] == [[["istio-proxy", "env", "START_TIME"]]] * 3
    assert len(stamped.injector.seen) == 6  # two for each: a value of one excuses no other
    assert f"\n{IGNORED}\n" in run(stamped, DRIFTED, TEXT).stdout


def test_what_differs_besides_is_found_and_rolled_out(stamped, run):
    stamped.injector.container["image"] = NEW
    ended = run(stamped, DRIFTED, CONFIRM)
    assert lines(ended, "a") == [f"istio-proxy.image: docker.io/istio/proxyv2:1.26.2 -> {NEW}"]
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert run(stamped, DRIFTED).planned == []


def test_what_is_injected_has_the_same_hash_each_time(cluster, run):
    """Without what varies: a value, and the name of a volume."""
    numbers = itertools.count()
    image = ["mesh:1"]

    def inject(found: dict) -> None:
        word = f"{next(numbers):09x}"
        mounted = {"volumeMounts": [{"name": f"v-{word}", "mountPath": "/data"}]}
        sidecar = container("istio-proxy", image[0], env=[{"name": "ID", "value": word}], **mounted)
        spec = found["spec"]
        if len(spec["containers"]) == 1:
            spec["containers"] = [*spec["containers"], sidecar]
            spec["volumes"] = [*spec.get("volumes", ()), {"name": f"v-{word}", "emptyDir": {}}]

    cluster.injector.inject = inject
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    hashes = []
    for image[0] in ("mesh:2", "mesh:2", "mesh:3"):
        hashes += [record["sidecar_hash"] for record in run(cluster, DRIFTED).of("plan")]
    assert hashes[0] == hashes[1] != hashes[2]


def test_another_name_of_a_volume_is_no_difference(cluster, run):
    for name in ("v-1", "v-2"):
        cluster.injector.container["volumeMounts"] = [{"name": name, "mountPath": "/data"}]
        cluster.injector.also = {"volumes": [{"name": name, "emptyDir": {}}]}
        if name == "v-1":
            cluster.create("shop", workload("Deployment", "web"))
            cluster.settle()
    assert verdicts(run(cluster, DRIFTED)) == {"shop/web": "up_to_date"}


def test_pods_that_lack_such_a_sidecar_are_missing_it(stamped, run):
    stamped.injector.state = "ignored"
    stamped.create("shop", workload("Deployment", "late"))
    stamped.settle()
    stamped.injector.state = "works"
    ended = run(stamped, DRIFTED, "--include-missing", CONFIRM)
    assert ended.outcomes == {"shop/late": "succeeded"}


@pytest.mark.parametrize(
    "other",
    [
        {"name": "istio-proxy", "image": NEW},
        {"name": "istio-proxy", "image": "docker.io/istio/proxyv2:1.26.2", "args": ["x"]},
    ],
)
def test_while_two_versions_answer_in_turns_nothing_is_known(cluster, run, other):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container = other
    cluster.injector.upgraded = container("istio-proxy", "docker.io/istio/proxyv2:1.26.9")
    ended = run(cluster, DRIFTED, CONFIRM)
    (drift,) = ended.of("drift")
    odd = "image of istio-proxy"
    if "args" in other:
        odd = "args of istio-proxy and image of istio-proxy"
    text = (
        f"the injector gave two different answers ({odd}): it has a few possible values, "
        "or the injector is being upgraded"
    )
    assert (drift["verdict"], drift["message"], drift["differences"]) == ("unknown", text, [])
    assert (ended.code, ended.planned) == (0, [])


def test_a_value_that_only_some_answers_have_is_not_ignored(cluster, run):
    """The live Pod has the value of one of the two answers."""
    variable = {"env": [{"name": "X", "value": "1"}]}
    image = "docker.io/istio/proxyv2:1.26.2"
    cluster.injector.container = container("istio-proxy", image, **variable)
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.upgraded = cluster.injector.container
    cluster.injector.container = container("istio-proxy", image, env=[{"name": "X", "value": "2"}])
    assert verdicts(run(cluster, DRIFTED)) == {"shop/web": "unknown"}


def test_a_value_that_only_the_second_answer_has_is_not_ignored(cluster, run):
    """The live Pod has the value of the first one, and something else drifted."""
    image = "docker.io/istio/proxyv2:1.26.2"
    cluster.injector.container = container("istio-proxy", image, env=[{"name": "X", "value": "1"}])
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container = container("istio-proxy", NEW, env=[{"name": "X", "value": "1"}])
    cluster.injector.upgraded = container("istio-proxy", NEW, env=[{"name": "X", "value": "2"}])
    (drift,) = run(cluster, DRIFTED).of("drift")
    assert drift["verdict"] == "unknown"
    assert "(env X of istio-proxy)" in drift["message"]


def test_a_variable_that_running_pods_do_not_have_at_all_is_a_difference(cluster, run):
    """Only its value is ignored. Found by a random history (a variable with the Pod's name)."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.create("shop", workload("Deployment", "zoo"))
    cluster.settle()
    cluster.injector.stamps = True
    ended = run(cluster, DRIFTED, TEXT)
    assert "istio-proxy  env START_TIME added" in ended.stdout
    assert re.findall(r"^\d  shop .*  ([ab])(?:  |$)", ended.stdout, re.M) == ["a", "a"]
    done = run(cluster, DRIFTED, CONFIRM)
    assert set(done.outcomes.values()) == {"succeeded"}
    assert set(verdicts(run(cluster, DRIFTED)).values()) == {"up_to_date"}
    cluster.injector.stamps = False  # and back
    assert set(verdicts(run(cluster, DRIFTED)).values()) == {"drifted"}


def test_a_variable_that_is_empty_in_running_pods_is_one_that_they_have(cluster, run):
    empty = [{"name": "START_TIME", "value": ""}]
    plain = cluster.injector.container
    cluster.injector.container = {**plain, "env": empty}
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container, cluster.injector.stamps = plain, True
    cluster.create("shop", workload("Deployment", "other", replicas=2))
    cluster.settle()
    found = {"shop/web": "up_to_date", "shop/other": "up_to_date"}
    assert verdicts(run(cluster, DRIFTED)) == found


def test_a_new_recommendation_of_an_autoscaler_for_a_sidecar_is_drift(cluster, run):
    """A VerticalPodAutoscaler's webhook sets resources when a Pod is created; in a running Pod it resizes."""
    cluster.injector.container = container("istio-proxy", NEW, resources=requests("100m"))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    assert verdicts(run(cluster, DRIFTED)) == {"shop/web": "up_to_date"}
    cluster.injector.container["resources"] = requests("150m")
    (drift,) = run(cluster, DRIFTED).of("drift")
    assert [d["path"] for d in drift["differences"]] == [
        ["istio-proxy", "resources", "requests", "cpu"]
    ]


def requests(cpu: str) -> dict:
    return {"requests": {"cpu": cpu}}
