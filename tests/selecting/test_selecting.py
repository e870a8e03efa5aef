"""Which Pods and workloads are selected, and why others are skipped: pure functions, then awkward cases end to end."""

from __future__ import annotations

import copy
import functools
import json
import operator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from clusters.embedded.manifests import container, native, pod, pod_spec, workload
from hypothesis import given
from hypothesis import strategies as st
from support import (
    BOTH,
    CONFIRM,
    argo,
    exchanges,
    options_of,
    printed_command,
    raises_api_error,
    upgrade,
)
from texts import MISSING_PERMISSIONS, NO_PODS_WITH, NOT_A_POD

pytestmark = pytest.mark.both

PROXY = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
NATIVE_PROXY = native("istio-proxy", "docker.io/istio/proxyv2:1.26.2")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def tokens_of(tool, text: str) -> list[str]:
    """The tokens that are asked for, if the first page of a list has a text."""
    asked = []

    def read(path: str, token: str) -> str:
        asked.append(token)
        return "" if token else text

    assert list(tool.read_ahead(["list"], read)) == [text, *[""] * (len(asked) - 1)]
    return asked


@given(st.lists(st.dictionaries(st.text(), JSON_VALUES, max_size=4), max_size=6), st.booleans())
def test_a_list_is_read_item_by_item_as_json_has_it(tool, items, items_first):
    envelope = {"kind": "PodList", "metadata": {"continue": "x"}, "items": items}
    if items_first:
        envelope = dict(reversed(envelope.items()))
    text = json.dumps(envelope, separators=(",", ":"))
    for written in (text, json.dumps(envelope, indent=1)):
        assert list(tool.items_of(written)) == items
        assert tokens_of(tool, written) == ["", "x"]


@given(st.data())
def test_a_list_that_breaks_off_is_an_error_never_a_short_list(tool, data):
    text = json.dumps(
        {"kind": "PodList", "metadata": {}, "items": [{"a": 1}, {"b": [2]}]}, separators=(",", ":")
    )
    cut = data.draw(st.integers(0, len(text) - 1))
    with raises_api_error(tool):
        list(tool.items_of(text[:cut]))


def test_an_item_that_is_too_deep_for_python_is_read_without_what_is_deep(tool):
    """The API server takes 10,000 levels, and a tenant may write managedFields."""
    odd = {"metadata": {"name": 'a"]}\\', "managedFields": [0]}, "spec": {"b": [1, {"c": "}"}]}}
    deep = '{"f:a":' * 9_000 + "{}" + "}" * 9_000
    middle = json.dumps(odd, separators=(",", ":")).replace("[0]", f"[{deep}]")
    text = f'{{"metadata":{{}},"items":[{{"a":1}},{middle},{{"b":2}}]}}'
    first, found, last = tool.items_of(text)
    assert (first, last) == ({"a": 1}, {"b": 2})
    assert json.dumps(found["metadata"].pop("managedFields")).count("f:a") < 100
    del odd["metadata"]["managedFields"]
    assert found == odd
    with raises_api_error(tool, match="truncated"):
        list(tool.items_of(text[: len(text) // 2]))


@pytest.mark.parametrize(
    "text",
    [
        *("<html>no</html>", "", "[]", "   ", '{"kind":"Status"}'),
        *('{"metadata":{}}', '{"metadata":"continue","items":[]}'),
    ],
)
def test_something_else_than_a_list_is_an_error(tool, text):
    with raises_api_error(tool, match="response: "):
        list(tool.items_of(text))
    assert tokens_of(tool, text) == [""]


RECORDED = exchanges("dry-run-pod-web")
REAL_POD = next(one["response"]["body"] for one in RECORDED if one["response"]["status"] == 201)
REAL_NAME = REAL_POD["spec"]["containers"][-1]["name"]


def places_in(value, path=()):
    """The path of each value inside, and of the value itself."""
    yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in inner:
        yield from places_in(part, (*path, key))


def test_a_real_pod_is_read(tool):
    filters = options_of(tool, sidecars=[REAL_NAME], only_drifted=True)
    owners, census = tool.read_pods([REAL_POD], filters)
    assert len(owners) == 1
    assert census.pods == 1


@given(st.sampled_from([path for path in places_in(REAL_POD) if path]), JSON_VALUES, st.booleans())
def test_no_real_pod_with_something_else_in_one_place_makes_the_reading_crash(
    tool, path, value, only_drifted
):
    pod = copy.deepcopy(REAL_POD)
    inner = functools.reduce(operator.getitem, path[:-1], pod)
    inner[path[-1]] = value
    filters = options_of(tool, sidecars=[REAL_NAME], only_drifted=only_drifted)
    try:
        tool.read_pods([pod], filters)
    except tool.ApiError as error:
        assert str(error).startswith(NOT_A_POD)


@given(JSON_VALUES)
def test_no_pod_makes_the_reading_crash(tool, value):
    filters = options_of(tool, sidecars=["istio-proxy"])
    metadata = {
        "name": "x",
        "namespace": "y",
        "creationTimestamp": value,
        "ownerReferences": value,
        "labels": value,
    }
    spec = {"containers": [{"name": "istio-proxy", "image": "x"}], "initContainers": value}
    for status in ({"phase": "Running"}, value):
        try:
            tool.read_pods([{"metadata": metadata, "spec": spec, "status": status}, value], filters)
        except tool.ApiError as error:
            assert str(error).startswith(NOT_A_POD)


def test_an_argo_rollout_beside_a_deployment_of_its_name(cluster, run):
    """Both have ReplicaSets with names that imply the Deployment: each is read by its own owner."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    rollout = argo("web", replicas=1)
    rollout["spec"]["selector"]["matchLabels"] = {"app": "canary"}
    rollout["spec"]["template"]["metadata"]["labels"] = {"app": "canary"}
    cluster.create("shop", rollout)
    cluster.settle()
    ended = run(cluster, "--evict")
    assert {(r["kind"], r["pods"]["old"]) for r in ended.of("plan")} == {
        ("Deployment", 2),
        ("Rollout", 1),
    }


# For real


def test_pods_are_grouped_by_workload_and_counted(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.namespace("plain")
    other = pod_spec(container("app"), container("istio-proxy-2"))
    cluster.create("plain", workload("Deployment", "no-sidecar", other))
    cluster.create("plain", workload("Deployment", "natively", pod_spec(init=(NATIVE_PROXY,))))
    cluster.create("plain", workload("Deployment", "only-init", pod_spec(init=(PROXY,))))
    cluster.settle()
    ended = run(cluster, *BOTH)
    assert ended.code == 0
    found = [
        (r["namespace"], r["kind"], r["name"], r["pods"]["old"], r["pods"]["total"])
        for r in ended.of("plan")
    ]
    assert found == [
        ("plain", "Deployment", "natively", 1, 1),
        ("shop", "StatefulSet", "db", 2, 2),  # namespaces take turns
        ("plain", "Deployment", "only-init", 1, 1),
        ("shop", "DaemonSet", "agent", 3, 3),
        ("shop", "Deployment", "web", 3, 3),
    ]
    assert ended.of("plan")[0]["sidecars"] == [{**PROXY, "native": True, "init": False}]
    assert ended.of("plan")[2]["sidecars"] == [{**PROXY, "native": False, "init": True}]
    oldest = min(p["metadata"]["creationTimestamp"] for p in cluster.pods("shop", "web"))
    assert ended.of("plan")[4]["oldest_pod"] == oldest


def test_statefulsets_and_daemonsets_only_when_requested(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.settle()
    ended = run(cluster)
    assert ended.planned == ["shop/web"]
    assert ended.skipped == {
        "StatefulSet shop/db": "kind_not_selected",
        "DaemonSet shop/agent": "kind_not_selected",
    }
    assert "--include-statefulset" in ended.reasons["StatefulSet shop/db"]
    assert "--include-daemonset" in ended.reasons["DaemonSet shop/agent"]
    assert run(cluster, "--include-statefulset", "--exclude-deployment").planned == ["shop/db"]


@pytest.mark.embedded(
    "the garbage collector of a real one removes Pods of owners that do not exist"
)
def test_what_cannot_be_rolled_out_is_reported_with_its_reason(cluster, run):
    spec = pod_spec(container("app"), PROXY)
    owners = {
        "of-a-job": ("batch/v1", "Job", "backup"),
        "static": ("v1", "Node", "node-1"),
        "of-a-rollout": ("argoproj.io/v1alpha1", "Rollout", "canary"),
        "of-a-cloneset": ("apps.kruise.io/v1alpha1", "CloneSet", "clones"),
        "of-kruise": ("apps.kruise.io/v1beta1", "StatefulSet", "advanced"),
        "of-an-rc": ("v1", "ReplicationController", "old"),
        "bare": None,
    }
    for name, owner in owners.items():
        policy = "Never" if name == "of-a-job" else "Always"
        cluster.create("shop", pod(name, {**spec, "restartPolicy": policy}, owner))
    orphans = workload("Deployment", "orphans")
    cluster.create("shop", orphans)
    cluster.settle()
    cluster.delete("Deployment", "shop", "orphans", orphan=True)
    (orphan,) = cluster.pods("shop", "orphans")
    ended = run(cluster, *BOTH)
    assert ended.code == 0
    assert ended.planned == []
    assert ended.skipped == {
        "Pod shop/of-a-job": "running_to_completion",
        "Pod shop/static": "static_pod",
        "Pod shop/of-a-rollout": "kind_not_selected",
        "Pod shop/of-a-cloneset": "kind_not_selected",
        "Pod shop/of-kruise": "kind_not_selected",
        "Pod shop/of-an-rc": "kind_not_selected",
        "Pod shop/bare": "without_controller",
        f"Pod shop/{orphan['metadata']['name']}": "kind_not_selected",
    }
    assert "skipped" not in ended.stderr


@pytest.mark.embedded("a deletion cannot be kept from ending")
def test_workloads_that_a_patch_would_not_restart_are_skipped_and_not_patched(cluster, run):
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("Deployment", "paused"))
    cluster.create("shop", workload("StatefulSet", "by-hand", **on_delete))
    cluster.create("shop", workload("DaemonSet", "by-hand", **on_delete))
    cluster.create("shop", workload("Deployment", "leaving"))
    cluster.settle()
    cluster.change("Deployment", "shop", "paused", {"spec": {"paused": True}})
    stamp = "2026-01-01T00:00:00Z"
    cluster.change(
        "Deployment",
        "shop",
        "leaving",
        {"metadata": {"deletionTimestamp": stamp, "finalizers": ["x/y"]}},
    )
    ended = run(cluster, *BOTH, "--confirm=true")
    assert ended.code == 0
    assert ended.planned == []
    assert ended.skipped == {
        "Deployment shop/paused": "wrong_method",
        "StatefulSet shop/by-hand": "wrong_method",
        "DaemonSet shop/by-hand": "wrong_method",
        "Deployment shop/leaving": "being_deleted",
    }
    assert [r for r in cluster.server.requests if r.method == "PATCH"] == []


@pytest.mark.embedded("the garbage collector of a real one removes Pods without their owner")
def test_a_workload_that_is_gone_is_skipped(cluster, run):
    first = {"apiVersion": "v1", "kind": "ConfigMap", "name": "first", "uid": "y"}
    reference = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "gone",
        "uid": "x",
        "controller": True,
    }
    left_behind = pod("left-behind", pod_spec(container("app"), PROXY))
    left_behind["metadata"]["ownerReferences"] = [first, reference]
    cluster.create("shop", left_behind)
    ended = run(cluster, *BOTH)
    assert ended.skipped == {"StatefulSet shop/gone": "gone"}


def test_pods_that_are_ending_or_have_ended_do_not_count(cluster, run):
    cluster.kubelet.gone_after = 60
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.create("shop", pod("done", pod_spec(container("app", "once"), restartPolicy="Never")))
    cluster.create("shop", pod("leaving"))
    evicted = cluster.create("shop", pod("evicted"))
    cluster.settle()
    evicted = cluster.get("Pod", "shop", "evicted")
    cluster.store.change(
        "pods", evicted, status={**evicted["status"], "phase": "Failed", "reason": "Evicted"}
    )
    cluster.delete("Pod", "shop", "leaving")
    cluster.wait_for(lambda: cluster.get("Pod", "shop", "done")["status"]["phase"] == "Succeeded")
    cluster.delete("Pod", "shop", cluster.pods("shop", "web")[0]["metadata"]["name"])
    cluster.wait_for(
        lambda: (
            len([p for p in cluster.pods("shop", "web") if p["status"]["phase"] == "Running"]) == 2
        )
    )
    ended = run(cluster)
    assert [(r["name"], r["pods"]["old"]) for r in ended.of("plan")] == [("web", 2)]
    assert ended.skipped == {}


def test_only_pods_that_were_created_before_the_cutoff(cluster, run):
    cluster.create("shop", workload("Deployment", "old", replicas=2))
    cluster.create("shop", workload("Deployment", "new"))
    cluster.settle()
    cluster.backdate(cluster.pods("shop", "old")[0], 7200)
    cut_off = datetime.fromtimestamp(datetime.now().timestamp() - 3600, timezone.utc)
    ended = run(cluster, f"--only-started-before={cut_off:%Y-%m-%d %H:%M:%S}")
    assert [(r["name"], r["pods"]["old"], r["pods"]["total"]) for r in ended.of("plan")] == [
        ("old", 1, 2)
    ]
    assert ended.summary["started_before"] == f"{cut_off:%Y-%m-%dT%H:%M:%SZ}"
    exactly = cluster.pods("shop", "new")[0]["metadata"]["creationTimestamp"]
    assert "shop/new" not in run(cluster, f"--only-started-before={exactly}").planned


@pytest.mark.embedded("a real API server has the clock of this machine")
@pytest.mark.parametrize("ahead", [300, -300])
def test_the_cutoff_is_by_the_api_servers_clock(cluster, run, monkeypatch, ahead):
    """With a local clock that is ahead, the next run would restart once more what this one has restarted."""
    from clusters.embedded.server import Handler

    there = datetime.now(timezone.utc) - timedelta(seconds=ahead)
    monkeypatch.setattr(
        Handler,
        "date_time_string",
        lambda handler, timestamp=None: format_datetime(there, usegmt=True),
    )
    for name, seconds in (("old", 60), ("new", -60)):
        cluster.create("shop", workload("Deployment", name))
        cluster.settle()
        (found,) = cluster.pods("shop", name)
        cluster.backdate(found, ahead + seconds)
    ended = run(cluster)
    assert ended.planned == ["shop/old"]
    moment = datetime.fromisoformat(ended.summary["started_before"].replace("Z", "+00:00"))
    assert abs((moment - there).total_seconds()) < 30
    named = run(cluster, f"--only-started-before={there - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}")
    assert named.summary["started_before"] == f"{there - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize("options", [[], ["--only-drifted"]])
def test_the_cutoff_is_a_whole_second_so_that_the_printed_command_selects_the_same(
    three_namespaces, run, options
):
    """A Pod's time is a whole second, rounded down."""
    for seconds, used in (("00", "00"), ("00.5", "01")):
        ended = run(
            three_namespaces, *options, f"--only-started-before=2026-05-01T00:00:{seconds}Z"
        )
        assert ended.summary["started_before"] == f"2026-05-01T00:00:{used}Z"
    if options:  # what differs needs none
        assert run(three_namespaces, *options).summary["started_before"] is None


def test_a_pod_created_in_the_second_of_the_dry_run_is_in_both_plans(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 0)
    dry = run(cluster, "--log-format=text").stdout
    planned = run(cluster).planned
    *_, command = dry.splitlines()
    assert planned == ["shop/web"]
    words = [word for word in printed_command(command)[2:] if word != "--log-format=text"]
    assert run(cluster, *words).planned == planned


@pytest.fixture
def three_namespaces(cluster):
    for name in ("team-a", "team-b", "kube-public"):
        cluster.namespace(name, inject=True)
        cluster.create(name, workload("Deployment", "web"))
    cluster.settle()
    return cluster


@pytest.mark.embedded("wildcards match the namespaces of other tests, too")
@pytest.mark.parametrize(
    ("options", "planned"),
    [
        ([], ["kube-public/web", "team-a/web", "team-b/web"]),
        (["--include-namespace=team-a"], ["team-a/web"]),
        (["--include-namespace=team-*"], ["team-a/web", "team-b/web"]),
        (["--include-namespace=team-?", "--exclude-namespace=*-b"], ["team-a/web"]),
        (["--exclude-namespace=kube-*", "--exclude-namespace=team-a"], ["team-b/web"]),
        (
            [
                "--include-namespace=team-a",
                "--include-namespace=team-b",
                "--exclude-namespace=team-a",
            ],
            ["team-b/web"],
        ),
        (["-l", "app in (web, api)", "--include-namespace=team-b"], ["team-b/web"]),
        (["--selector=app!=web"], []),
        (["--sidecar-container-name=istio-*"], ["kube-public/web", "team-a/web", "team-b/web"]),
        (["--sidecar-container-name=linkerd-*"], []),
    ],
)
def test_namespaces_selectors_and_wildcards(three_namespaces, run, options, planned):
    ended = run(three_namespaces, *options)
    assert (ended.planned, ended.summary["planned"]) == (planned, len(planned))


def test_only_the_named_namespaces_are_listed(three_namespaces, run):
    run(three_namespaces, "--include-namespace=team-a", "--include-namespace=team-b")
    lists = [r.path for r in three_namespaces.server.requests if r.verb == "list"]
    slices = [
        f"/apis/discovery.k8s.io/v1/namespaces/{name}/endpointslices"
        for name in ("team-a", "team-b")
    ]
    deployments = [f"/apis/apps/v1/namespaces/{name}/deployments" for name in ("team-a", "team-b")]
    pods = ["/api/v1/namespaces/team-a/pods", "/api/v1/namespaces/team-b/pods"]
    assert lists == [*pods, *deployments, *slices]


@pytest.mark.embedded("501 Pods take a real one too long")
def test_all_pages_are_read_and_no_pod_twice(cluster, run, tool):
    cluster.create("shop", workload("Deployment", "web", replicas=500 + 20))
    cluster.settle(60)
    ended = run(cluster)
    lists = [r for r in cluster.server.requests if r.path == "/api/v1/pods"]
    assert len(lists) == 2
    assert "continue" in lists[1].query
    assert ended.of("plan")[0]["pods"]["old"] == 500 + 20


@pytest.mark.embedded("the audit log has no headers")
def test_replica_sets_are_read_one_by_one_as_metadata_and_never_listed(cluster, run):
    for name in ("web", "api"):
        cluster.create("shop", workload("Deployment", name, replicas=3))
        cluster.delete("Deployment", "shop", name, orphan=True)  # else their names tell
    cluster.settle()
    run(cluster)
    asked = [r for r in cluster.server.requests if "/replicasets" in r.path]
    assert sorted(r.path for r in asked) == sorted(
        f"/apis/apps/v1/namespaces/shop/replicasets/{r['metadata']['name']}"
        for r in cluster.store.list("replicasets")
    )
    assert all("as=PartialObjectMetadata;" in r.headers["accept"] for r in asked)


def test_a_typo_in_the_containers_name_is_met_with_the_closest_one(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster, "--sidecar-container-name=istio-prxy", "--log-format=text")
    assert ended.code == 3
    error = f"{NO_PODS_WITH}istio-prxy (1 checked); did you mean istio-proxy?"
    assert f"error: {error} (nothing was changed)\n" in ended.stderr


@pytest.mark.embedded("excluded namespaces are looked at in a whole cluster")
def test_a_namespace_that_holds_no_pod_logs_a_warning(three_namespaces, run):
    three_namespaces.namespace("team-c")
    named = run(three_namespaces, "--include-namespace=team-c", "--include-namespace=team-a")
    assert "no Pods in namespace team-c" in named.stderr
    assert "namespace team-a" not in named.stderr
    excluded = run(three_namespaces, "--exclude-namespace=kube-sy*", "--exclude-namespace=team-*")
    assert "no Pods in namespaces that match kube-sy*" in excluded.stderr
    assert "namespace team-*" not in excluded.stderr


@pytest.mark.embedded("it expects requests for a whole cluster")
def test_the_permission_to_list_the_selected_kinds_is_required(cluster, run):
    rules = [
        {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get"], "apiGroups": ["apps"], "resources": ["deployments", "replicasets"]},
    ]
    ended = run(cluster.kubeconfig_of("viewer", rules))
    assert ended.code == 3
    assert (
        f"{MISSING_PERMISSIONS}list deployments.apps in all namespaces; see deploy" in ended.stderr
    )


def test_a_cutoff_in_the_future_logs_a_warning(cluster, run):
    there = datetime.now(timezone.utc) + timedelta(hours=1)
    warning = "--only-started-before is in the future"
    assert warning in run(cluster, f"--only-started-before={there:%Y-%m-%dT%H:%M:%SZ}").stderr
    assert warning not in run(cluster).stderr


@pytest.mark.embedded("without the feature gate, the API server refuses it")
def test_a_strategy_that_kubectl_cannot_wait_for_is_skipped(cluster, run):
    """Kubernetes 1.37 has Recreate for StatefulSets, as an alpha feature."""
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.settle()
    with cluster.store.lock:
        found = cluster.get("StatefulSet", "shop", "db")
        spec = {**found["spec"], "updateStrategy": {"type": "Recreate"}}
        cluster.store.change("statefulsets", found, spec=spec)
    ended = run(cluster, "--include-statefulset", CONFIRM)
    assert (ended.code, ended.skipped) == (0, {"StatefulSet shop/db": "wrong_method"})
    assert "updateStrategy is Recreate" in ended.reasons["StatefulSet shop/db"]


@pytest.mark.embedded("its garbage collector removes Pods without their owner")
def test_the_controller_of_a_pod_may_be_of_the_core_group(cluster, run):
    cluster.create("shop", pod("x", owner=("v1", "Service", "x")))
    cluster.settle()
    upgrade(cluster)
    (drift,) = run(cluster, "--only-drifted", "--evict").of("drift")
    assert drift["message"] == "the Pod template of Service (v1) cannot be read"
