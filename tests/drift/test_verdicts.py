"""Verdicts other than drifted: rejected and unknown."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, TEXT, api_error, config, exchanges, patched, verdicts
from texts import MISSING_PERMISSIONS

pytestmark = pytest.mark.both


def label(cluster, namespace: str, **labels: str) -> None:
    found = cluster.store.get("namespaces", "", namespace)
    metadata = {**found["metadata"], "labels": {**found["metadata"]["labels"], **labels}}
    cluster.store.change("namespaces", found, metadata=metadata)


def test_pods_that_would_not_be_admitted_are_rejected_and_never_restarted(every_kind, run):
    every_kind.namespace("strict", inject=True)
    every_kind.create("strict", config())
    every_kind.create("strict", workload("Deployment", "bomb"))
    every_kind.settle()
    label(every_kind, "strict", **{"pod-security.kubernetes.io/enforce": "restricted"})
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    dry = run(every_kind, DRIFTED)
    assert dry.code == 0
    assert verdicts(dry)["strict/bomb"] == "rejected"
    assert sorted(dry.planned) == ["shop/native", "shop/web"]
    (record,) = [r for r in dry.of("drift") if r["name"] == "bomb"]
    assert 'is forbidden: violates PodSecurity "restricted:latest"' in record["message"]
    done = run(every_kind, DRIFTED, CONFIRM, TEXT)
    assert done.code == 0
    assert "bomb" not in patched(every_kind)
    assert sorted(patched(every_kind)) == ["native", "web"]
    reason = r'  new Pods cannot be created: violates PodSecurity "restricted:latest": .*:'
    assert re.search(rf"^{reason}\n    Deployment strict/bomb$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^2 workloads in \d+s: 2 succeeded\.\nNot rolled out: 3 workloads\.$",
        done.stdout,
        re.MULTILINE,
    )
    after = run(every_kind, DRIFTED, TEXT).stdout
    assert re.search(
        r"\nNothing to roll out; scanned \d+ Pods\.\nNot rolled out: 3 workloads\.\n",
        after,
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"serviceAccountName": "gone"},
            'error looking up service account shop/gone: serviceaccount "gone" not found',
        ),
        ({"priorityClassName": "gone"}, "no PriorityClass with name gone was found"),
    ],
)
def test_a_missing_service_account_or_priority_class_is_rejected(cluster, run, spec, message):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.change("Deployment", "shop", "web", {"spec": {"template": {"spec": spec}}})
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, verdicts(ended)) == (0, {"shop/web": "rejected"})
    assert message in ended.of("drift")[0]["message"]


COMPANY = ("shop/agent", "shop/db", "shop/native", "shop/web")


@pytest.mark.embedded("the injector there is a process of the tests")
@pytest.mark.parametrize(
    ("state", "verdict", "message"),
    [
        (
            "denies",
            "rejected",
            'admission webhook "inject.sidecar.example" denied the request: injector says no',
        ),
        ("fails", "unknown", 'failed calling webhook "inject.sidecar.example"'),
        ("hangs", "unknown", "context deadline exceeded"),
        ("no-dry-run", "unknown", "does not support dry run"),
    ],
)
def test_an_injector_in_trouble(every_kind, run, state, verdict, message):
    every_kind.injector.hangs_for = 0.2
    every_kind.injector.state = state
    dry, done = run(every_kind, DRIFTED), run(every_kind, DRIFTED, CONFIRM)
    assert verdicts(dry) == verdicts(done) == dict.fromkeys(COMPANY, verdict)
    assert message in dry.of("drift")[0]["message"]
    assert (dry.code, done.code) == (0, 3)
    headline = dry.summary["injector"]
    assert headline.startswith("no dry run returned istio-proxy (0 of 4): ")
    assert message in headline
    assert done.records[-1]["error"] == headline
    assert patched(every_kind) == []
    assert done.planned == []
    # Only one that is not reached for a moment is asked once more
    assert len(every_kind.injector.seen) == (16 if state == "fails" else 8)


@pytest.mark.embedded("the injector there is a process of the tests")
def test_if_the_first_dry_runs_of_a_namespace_hang_the_others_are_not_tried(cluster, run):
    """A webhook that hangs would cost its timeout for each of them."""
    count = 3 * 16
    for number in range(count):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    cluster.settle()
    cluster.injector.hangs_for = 1.0  # while 16 answers are read, no other one comes
    cluster.injector.state = "hangs"
    ended = run(cluster, DRIFTED)
    assert Counter(verdicts(ended).values()) == {"unknown": count}
    assert all("deadline exceeded" in record["message"] for record in ended.of("drift"))
    assert "dry runs in namespace shop hang; its other workloads are not compared" in ended.stderr
    assert len(cluster.injector.seen) <= count - 16
    text = run(cluster, DRIFTED, TEXT).stdout
    assert f"\nNot rolled out: {count} workloads.\n" in text
    assert "\n  not compared: 500 Internal error occurred: failed calling webhook " in text
    assert " deadline exceeded:\n    Deployment shop/web-0, shop/web-1, " in text
    assert text.count("deadline exceeded") == 2  # grouped by reason, and the headline


def test_a_page_of_html_in_a_reason_is_cut(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    page = 'failed calling webhook "x": <!DOCTYPE html><html><body>sorry</body></html>'
    cluster.fault(method="POST", path="/pods", times=9, status=500, body={"message": page})
    (drift,) = run(cluster, DRIFTED).of("drift")
    assert drift["message"] == '500 failed calling webhook "x":'


@pytest.mark.embedded("each run is limited to the namespaces of its test there")
def test_a_namespace_that_is_being_deleted_is_left_out(every_kind, run):
    """Its Pods would not be admitted today either, but they are not to come back."""
    every_kind.namespace("leaving", inject=True)
    every_kind.create("leaving", workload("Deployment", "web"))
    every_kind.settle()
    namespace = every_kind.store.get("namespaces", "", "leaving")
    ending = {**namespace["metadata"], "deletionTimestamp": "2026-11-01T00:00:00Z"}
    every_kind.store.change("namespaces", namespace, metadata=ending)
    ended = run(every_kind, DRIFTED, CONFIRM)
    assert ended.code == 0
    assert set(verdicts(ended)) == set(COMPANY)
    assert ended.skipped["Deployment leaving/web"] == "being_deleted"


def test_an_exceeded_quota_is_a_warning_and_unknown(every_kind, run):
    every_kind.create(
        "shop",
        {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}},
    )
    ended = run(every_kind, DRIFTED)
    assert (ended.code, set(verdicts(ended).values())) == (0, {"unknown"})
    assert "exceeded quota: q, requested: pods=1" in ended.of("drift")[0]["message"]


VIEW = [
    {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
    {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps", "secrets"]},
    {"verbs": ["get", "list", "watch", "patch"], "apiGroups": ["apps"], "resources": ["*"]},
]


@pytest.mark.embedded("each run is limited to the namespaces of its test there")
def test_the_permission_to_create_pods_missing_altogether_stops_the_run(every_kind, run):
    viewer = every_kind.kubeconfig_of("viewer", VIEW)
    for options in ((), (CONFIRM,)):
        ended = run(viewer, DRIFTED, TEXT, *options)
        assert ended.code == 3
        assert ended.stdout == ""
        assert patched(every_kind) == []
        assert (
            f"{MISSING_PERMISSIONS}create pods in all namespaces; see deploy/rbac.yaml"
            in ended.stderr
        )


@pytest.mark.embedded("each run is limited to the namespaces of its test there")
def test_the_permission_to_create_pods_in_one_namespace_is_enough_for_that_one(every_kind, run):
    every_kind.namespace("closed", inject=True)
    every_kind.create("closed", config())
    every_kind.create("closed", workload("Deployment", "web"))
    every_kind.settle()
    creates = {"verbs": ["create"], "apiGroups": [""], "resources": ["pods"], "namespace": "shop"}
    team = every_kind.kubeconfig_of("team", [*VIEW, creates])
    refused = run(team, DRIFTED)
    hint = "or select your namespaces with --include-namespace"
    assert (refused.code, refused.summary["exit_code"]) == (3, 3)
    assert "create pods in all namespaces" in refused.stderr and hint in refused.stderr
    assert verdicts(run(team, DRIFTED, "-n=shop")) == dict.fromkeys(COMPANY, "up_to_date")


def test_configuration_that_may_not_be_read_is_unknown(every_kind, run):
    rules = [VIEW[0], VIEW[2], {"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]}]
    ended = run(every_kind.kubeconfig_of("blind", rules), DRIFTED, "--include-config")
    assert set(verdicts(ended).values()) == {"unknown"}
    assert ended.of("drift")[0]["message"].startswith(
        "cannot read ConfigMap shop/proxy-config: 403 configmaps"
    )


def recorded_rejections() -> list:
    refused = exchanges("dry-run-pod-refused")
    verdicts = [
        "UNKNOWN",
        "REJECTED",
        "REJECTED",
        "UNKNOWN",
        "UNKNOWN",
        "REJECTED",
        "UNKNOWN",
        "UNKNOWN",
        "REJECTED",
    ]
    return list(zip(refused, verdicts, strict=True))


@pytest.mark.parametrize(("exchange", "verdict"), recorded_rejections())
def test_recorded_rejections(tool, exchange, verdict):
    answer = exchange["response"]
    text = f"{answer['status']} {answer['body']['message']}"
    error = api_error(tool, answer["status"], text, "DRY_RUN")
    assert tool.verdict_on(error).name == verdict


@pytest.mark.parametrize(
    ("status", "message", "verdict"),
    [
        (
            400,
            'admission webhook "validate.kyverno.svc-fail" denied the request: no latest tags',
            "REJECTED",
        ),
        (422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "REJECTED"),
        (
            422,
            'Pod "web-x" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "data"',
            "REJECTED",
        ),
        (500, 'admission webhook "x" denied the request: no', "REJECTED"),
        (400, 'admission webhook "x" does not support dry run', "UNKNOWN"),
        (404, 'namespaces "gone" not found', "UNKNOWN"),
        (429, "too many requests", "UNKNOWN"),
        (504, "timeout", "UNKNOWN"),
        (0, "no answer", "UNKNOWN"),
    ],
)
def test_other_rejections(tool, status, message, verdict):
    assert tool.verdict_on(api_error(tool, status, message, "DRY_RUN")).name == verdict


@pytest.mark.parametrize(
    "events",
    [
        [
            {"lastTimestamp": "2026-01-01T00:00:00Z", "message": "old"},
            {"eventTime": "2026-01-02T00:00:00.5Z"},
        ],
        [
            {"eventTime": "2026-01-02T00:00:00.5Z"},
            {"eventTime": "2026-01-01T00:00:00.5Z", "message": "old"},
        ],
        [
            {
                "eventTime": "2026-01-01T00:00:00Z",
                "series": {"lastObservedTime": "2026-01-03T00:00:00Z"},
            },
            {"lastTimestamp": "2026-01-02T00:00:00Z", "message": "old"},
        ],
    ],
)
def test_the_latest_event_is_by_whatever_time_it_has(tool, events):
    class Cluster(tool.Cluster):
        def __init__(self) -> None:
            pass

        def find(self, path, **parts):
            return {
                "items": [{"lastTimestamp": None, "message": "new"} | event for event in events]
            }

    pod = {"metadata": {"uid": "u", "namespace": "shop"}}
    assert Cluster().latest_event(pod, "type=Warning") == '"new"'
