"""The demo, and the README's promises about it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import demo
import pytest
from clusters.embedded import EmbeddedCluster
from support import KUBECTL, cutoff
from texts import DRY_RUN, IN_SOAK, NEW_HAVE_NONE, UPDATED_AND_READY

DEMO = Path(demo.__file__)
ALL = ("--include-statefulset", "--include-daemonset")


def test_without_options_it_is_the_dry_run_for_istio_proxy():
    ended = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    target, _, header, *rows = ended.stdout.splitlines()
    assert target.startswith("Context demo (https://127.0.0.1:")
    assert header.split() == [
        "#",
        "NAMESPACE",
        "WORKLOAD",
        "PODS",
        "VERSION",
        "NOTES",
    ]
    assert DRY_RUN in rows
    table = [header, *rows[: rows.index("")]]
    notes = header.index("NOTES")
    assert notes <= 72
    assert {row.ljust(notes)[notes - 2 : notes] for row in table} == {"  "}
    assert "KUBECONFIG" not in ended.stdout


def test_options_streams_and_exit_status_are_the_tools_own():
    words = [sys.executable, str(DEMO), "--log-format=json", "--parallel-rollouts=0"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    said = (
        'argument --parallel-rollouts: invalid value "0": must be a positive integer, or a '
        "percentage such as 25%"
    )
    assert json.loads(ended.stderr) == {"level": "ERROR", "message": said}
    words.remove("--log-format=json")
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ended.stderr == f"error: {said}\nSee 'sidecar-rollout.py --help' for usage.\n"


def test_it_works_without_a_kubectl_on_the_path(tmp_path):
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": str(tmp_path / "bin")}
    words = [sys.executable, str(DEMO)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0
    assert "\nTo roll out: " in ended.stdout


def test_keep_leaves_the_cluster_up_for_kubectl():
    words = [sys.executable, str(DEMO), "--keep"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        lines = iter(process.stdout)
        kubeconfig = next(
            found[1] for line in lines if (found := re.match(r"  export KUBECONFIG=(.+)", line))
        )
        shown = subprocess.run(
            [KUBECTL, "--kubeconfig", kubeconfig, "get", "deploy", "-n", "shop"],
            capture_output=True,
        )
        process.send_signal(signal.SIGINT)
    assert shown.returncode == 0
    assert b"checkout" in shown.stdout
    assert process.returncode == 0


@pytest.fixture(scope="module")
def company():
    with EmbeddedCluster("demo") as cluster:
        demo.fill(cluster)
        yield cluster


def test_the_sample_company_is_rolled_out_and_a_second_run_finds_nothing(company, run):
    cut_off = cutoff()
    dry = run(company, *ALL, cut_off)
    assert len({r["namespace"] for r in dry.of("plan") + dry.of("skip")} - {"kube-system"}) == 5
    assert len(dry.planned) == 12
    assert len(dry.skipped) == 11
    ended = run(company, "--confirm=true", *ALL, "--parallel-rollouts=5", "--timeout=3s", cut_off)
    assert ended.code == 1
    bad = {"shop/search": "timed_out", "payments/ledger": "failed"}
    assert ended.outcomes == dict.fromkeys(dry.planned, "succeeded") | bad
    again = run(company, "--confirm=true", *ALL, "--parallel-rollouts=5", "--timeout=3s", cut_off)
    # One would be rejected, so it was not patched; the application of the other is broken.
    assert {f"{r['namespace']}/{r['name']}": r["method"] for r in again.of("plan")} == {
        "payments/ledger": "restart",
    }
    assert again.skipped["Deployment shop/search"] == "incomplete_rollout"
    assert again.skipped["StatefulSet data/kafka"] == "below_partition"
    assert again.code == 1


def test_with_evict_only_the_pod_without_a_controller_needs_a_manual_step(run):
    with EmbeddedCluster("demo") as cluster:
        demo.fill(cluster)
        before = {p["metadata"]["uid"] for p in cluster.store.list("pods")}
        ended = run(cluster, *ALL, "--evict", "--confirm=true", "--parallel-rollouts=5")
        manual = [name for name, reason in ended.reasons.items() if "manual" in reason]
        assert sorted(name.partition("-")[0] for name in manual) == [
            "Pod shop/debug",
            "ReplicaSet legacy/orphan",  # it has another generation: its template may be pending
        ]
        bad = {"shop/search": "failed", "payments/ledger": "failed"}
        assert ended.outcomes == dict.fromkeys(ended.planned, "succeeded") | bad
        assert len(ended.planned) == 17
        assert sum(r["method"] == "evict" for r in ended.of("plan")) == 5
        owners = {r["name"]: r["controlled_by"] for r in ended.of("plan") if r["controlled_by"]}
        assert owners == {"prometheus": "Prometheus monitoring/main"}
        left = [p for p in cluster.store.list("pods") if p["metadata"]["uid"] in before]
        names = sorted(p["metadata"]["name"].split("-")[0] for p in left)
        no_sidecar = ["helpdesk"] * 2 + ["intranet"] * 2
        # A Pod below a partition would come back from another revision.
        others = ["kafka", "leaving", "ledger", "orphan", "proxy"]
        assert names == ["backup", "debug", *no_sidecar, *others]


def test_an_injector_that_breaks_stops_the_run():
    given = ["--only-drifted", "--confirm=true", "--break-injector-after=4", "--timeout=10s"]
    ended = subprocess.run(
        [sys.executable, DEMO, *given], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert re.search(
        rf"\nnot started:\n  new Pods of Deployment \S+{NEW_HAVE_NONE} istio-proxy:\n",
        ended.stdout,
    )
    assert re.search(rf"\nPods: \d+ of \d+{UPDATED_AND_READY} \(.*\b[1-9]\d* lost", ended.stdout)
    assert f"{NEW_HAVE_NONE}. Repair the injector, and run:\n  " in ended.stdout


def test_the_sample_company_has_drifted_in_half(run):
    with EmbeddedCluster("demo") as cluster:
        demo.fill(cluster)
        ended = run(cluster, "--only-drifted", "--include-config", *ALL)
        verdicts = {f"{r['namespace']}/{r['name']}": r["verdict"] for r in ended.of("drift")}
        assert ended.code == 0
        assert [name for name, verdict in verdicts.items() if verdict == "rejected"] == [
            "payments/ledger",
        ]
        assert len([name for name, verdict in verdicts.items() if verdict == "up_to_date"]) == 4
        by_config = [
            r["name"]
            for r in ended.of("drift")
            for d in r["differences"]
            if d["path"][0].startswith("ConfigMap ")
        ]
        assert by_config == ["fraud", "api"]  # the first is skipped
        done = run(
            cluster,
            "--only-drifted",
            "--include-config",
            *ALL,
            "--confirm=true",
            "--parallel-rollouts=5",
            "--timeout=3s",
        )
        assert (done.code, done.summary["failed"]) == (1, {"timed_out": 1})
        assert done.outcomes == dict.fromkeys(ended.planned, "succeeded") | {
            "shop/search": "timed_out"
        }


def test_one_crashes_during_the_soak(company_again, run):
    ended = run(company_again, "--confirm=true", "--soak=5s", "deploy/cart", "deploy/web")
    assert ended.outcomes == {"shop/cart": "failed", "shop/web": "succeeded"}
    (message,) = [r["message"] for r in ended.of("result") if r["name"] == "cart"]
    assert re.fullmatch(rf"{IN_SOAK}cart-\S+: container app restarted: OOMKilled", message)


def test_a_labeled_namespace_lacks_the_sidecar(company_again, run):
    ended = run(company_again, "--only-drifted", "--include-missing", "-n=support")
    (drift,) = ended.of("drift")
    assert (drift["name"], drift["verdict"]) == ("helpdesk", "missing")
    assert ended.planned == ["support/helpdesk"]
    everywhere = run(company_again, "--only-drifted", "--include-missing")
    missing = [r["name"] for r in everywhere.of("drift") if r["verdict"] == "missing"]
    assert missing == ["helpdesk"]


def test_an_init_container_has_drifted(company_again, run):
    name = "--sidecar-container-name=opentelemetry-*"
    ended = run(company_again, "--only-drifted", name)
    (plan,) = ended.of("plan")
    assert (plan["name"], plan["sidecars"][0]["init"]) == ("checkout", True)
    (drift,) = run(company_again, "--only-drifted", "deploy/checkout").of("drift")
    assert drift["verdict"] == "up_to_date"


@pytest.fixture(scope="module")
def company_again():
    with EmbeddedCluster("demo") as cluster:
        demo.fill(cluster)
        yield cluster


def test_one_gets_its_new_image_in_place(run):
    with EmbeddedCluster("demo") as cluster:
        demo.fill(cluster)
        before = {p["metadata"]["uid"] for p in cluster.pods("data", "cache")}
        ended = run(cluster, "--only-drifted", "--in-place", "--confirm=true", "--timeout=15s")
        methods = {r["name"]: r["method"] for r in ended.of("plan")}
        assert [name for name, method in methods.items() if method == "in_place"] == ["cache"]
        assert ended.outcomes["data/cache"] == "succeeded"
        assert {p["metadata"]["uid"] for p in cluster.pods("data", "cache")} == before
        images = {p["spec"]["containers"][1]["image"] for p in cluster.pods("data", "cache")}
        assert images == {"docker.io/istio/proxyv2:1.27.0"}
