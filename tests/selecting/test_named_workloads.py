"""TYPE/NAME: only these workloads."""

from __future__ import annotations

import re
import shlex

import pytest
from cluster.manifests import container, pod, pod_spec, replicated, workload
from hypothesis import given
from hypothesis import strategies as st
from support import CONFIRM, TEXT, options_of, printed_command

pytestmark = pytest.mark.both


@pytest.fixture
def shop(cluster):
    for name in ("web", "web-admin", "cart"):
        cluster.create("shop", workload("Deployment", name))
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.create("shop", pod("shell"))
    cluster.namespace("other", inject=True)
    cluster.create("other", workload("Deployment", "web"))
    cluster.settle()
    return cluster


@pytest.mark.parametrize(
    ("given_names", "planned"),
    [
        (["deployment/web", "-n", "shop"], ["shop/web"]),
        (["deploy/web"], ["other/web", "shop/web"]),
        (["deployments.apps/web*", "-n", "shop"], ["shop/web", "shop/web-admin"]),
        (["Deployment.v1.apps/[ac]*"], ["shop/cart"]),
        (["sts/db", "ds/*"], ["shop/db", "shop/agent"]),
        (["statefulsets/*"], ["shop/db"]),
        (["sts/*", "--include-daemonset"], ["shop/db"]),
        (["sts/*", "--exclude-deployment"], ["shop/db"]),
        (["--only-drifted=false", "ds/agent"], ["shop/agent"]),
        (["deploy/cart", "--timeout=3s", "sts/db"], ["shop/cart", "shop/db"]),
    ],
)
def test_only_these_are_in_the_plan(shop, run, given_names, planned):
    ended = run(shop, *given_names)
    assert (ended.code, ended.planned, ended.skipped) == (0, planned, {})
    assert "WARNING" not in ended.stderr


@pytest.mark.parametrize("switch", ["--confirm", "--include-statefulset"])
def test_a_switch_does_not_take_a_workload_as_its_value(shop, run, switch):
    ended = run(shop, "-n=shop", switch, "deploy/web")
    assert ended.planned == ["shop/web"]
    assert ended.summary["dry_run"] == (switch != "--confirm")


def test_one_is_rolled_out_and_nothing_else(shop, run):
    before = {p["metadata"]["uid"] for p in shop.store.list("pods")}
    ended = run(shop, "-n=shop", "sts/db", CONFIRM)
    assert ended.outcomes == {"shop/db": "succeeded"}
    after = {p["metadata"]["uid"] for p in shop.store.list("pods")}
    assert len(before - after) == 1


def test_the_printed_command_has_them(shop, run):
    *_, header, command = run(shop, "sts/d*", TEXT).stdout.splitlines()
    assert header == "To apply, run:"
    words = [word for word in printed_command(command)[2:] if word != TEXT]
    assert run(shop, *words).outcomes == {"shop/db": "succeeded"}


def told(ended) -> list[str]:
    """The warnings and errors, without their time."""
    lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    return [line if line.startswith("error: ") else line[10:] for line in lines]


def test_what_matches_nothing_is_a_warning(shop, run):
    shop.create("shop", workload("Deployment", "none", replicas=0))
    ended = run(shop, "deploy/none", "sts/x-*", "-n=shop", TEXT, "--confirm=true")
    assert ended.code == 0
    found = [line for line in told(ended) if " in namespace " not in line]  # a real one has others
    assert found == [
        "WARNING deployment/none exists, but none of its Pods has istio-proxy",
        "WARNING no Pods of statefulset/x-* have istio-proxy; check the name and the namespace",
    ]


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--confirm=true"], 1)])
def test_what_does_not_exist_is_an_error(shop, run, options, code):
    """A typo in a CronJob must not stay green for a year."""
    absent = 'deployments.apps "cart" not found in namespace other'
    ended = run(shop, "-n=other", "deploy/web", "deploy/cart", TEXT, *options)
    assert (ended.code, told(ended)) == (code, [f"error: {absent}"])
    ended = run(shop, "-n=shop", "-n=shpo", TEXT, *options)
    assert told(ended) == ['error: namespaces "shpo" not found']
    assert ended.code == code
    near = "--sidecar-container-name=istio-prox"
    ended = run(shop, "-n=shop", near, TEXT, *options)
    assert ended.code == code
    assert re.fullmatch(
        r"error: no Pods have a container named istio-prox \(\d+ checked\); did you mean "
        "istio-proxy[?]",
        told(ended)[0],
    )


def test_one_that_is_skipped_or_up_to_date_is_no_warning(shop, run):
    shop.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    ended = run(shop, "-n=shop", "deploy/web", "deploy/cart", "--only-drifted")
    assert ended.skipped == {}  # it is not to be restarted
    assert ended.summary["verdicts"] == {"up_to_date": 2}
    assert "WARNING" not in ended.stderr


def test_workloads_without_pods_are_reported_only_if_they_are_named(cluster, run):
    restarted = {"sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00.000000+00:00"}
    spec = pod_spec(container("app"), serviceAccountName="missing")
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name, spec, annotations=restarted))
    cluster.settle()
    assert run(cluster, "deploy/b").skipped.keys() == {"Deployment shop/b"}


def test_other_owners_need_evict(shop, run):
    shop.create("shop", replicated("ReplicaSet", "lone"))
    shop.create("shop", replicated("ReplicaSet", "other"))
    shop.settle()
    ended = run(shop, "rs/lone", TEXT)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr == (
        'error: invalid type "replicaset": must be deployment, statefulset or daemonset; other '
        "owners of Pods require --evict\nSee 'sidecar-rollout.py --help' for usage.\n"
    )
    for pasted in ("pay/db", "pay-2/db"):  # as the log prints it
        name = pasted.partition("/")[0]
        assert (
            run(shop, pasted, TEXT)
            .stderr.partition("\n")[0]
            .endswith(f"; if {name} is a namespace, use deployment/db --include-namespace={name}")
        )
    for name in ("pod/x", "job/x", "cronjob/backup", "cj/backup"):
        hint = "; Pods of Jobs run to completion and are not supported\n"
        assert hint in run(shop, name, TEXT).stderr
    ended = run(shop, "rs/lone", "--evict", CONFIRM)
    assert ended.outcomes == {"shop/lone": "succeeded"}


def test_custom_resources_by_their_kind(cluster, run):
    cluster.create("shop", replicated("CloneSet", "clones", replicas=2))
    cluster.settle()
    assert run(cluster, "clonesets.apps.kruise.io/clones", "--evict").planned == ["shop/clones"]
    assert run(cluster, "cloneset/other", "--evict").planned == []


def test_a_deployment_that_is_excluded_cannot_be_named(run):
    ended = run(None, "deploy/web", "--exclude-deployment")
    assert ended.code == 2
    assert "--exclude-deployment cannot be used with deployment/NAME" in ended.stderr


@pytest.mark.parametrize("word", ["web", "deploy/", "/web", "deploy/a/b", "deploy/Web", "a=b/c"])
def test_what_is_no_workload(run, word):
    ended = run(None, word)
    assert ended.code == 2
    text = f'error: invalid value "{word}": must be TYPE/NAME, such as deployment/web or sts/*'
    assert ended.stderr.startswith(f"{text}\n")


@given(
    st.sampled_from(["Deployment", "StatefulSet", "DaemonSet"]),
    st.from_regex("[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
)
def test_each_name_selects_its_own_workload_and_kind(tool, kind, name):
    options = options_of(tool, f"{kind.lower()}s/{name}")
    assert options.kinds == {kind}
    assert tool.is_named(tool.ObjectRef(kind, "shop", name, "apps"), options)
    assert not tool.is_named(tool.ObjectRef(kind, "shop", f"{name}-2", "apps"), options)
    assert not tool.is_named(tool.ObjectRef("Job", "shop", name, "batch"), options)


def test_a_workload_of_another_api_group_is_another_one(cluster, run):
    """OpenKruise has StatefulSets and DaemonSets as well."""
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.settle()
    ended = run(cluster, "statefulset.apps.kruise.io/db", CONFIRM)
    assert (ended.code, ended.stdout) == (2, "")
    assert run(cluster, "statefulset.apps.kruise.io/db", "--evict").planned == []
    for name in ("statefulset/db", "statefulsets.apps/db", "sts.v1.apps/db"):
        assert run(cluster, name).planned == ["shop/db"]


def test_one_statefulset_needs_no_replicasets(shop, run):
    assert run(shop, "sts/db", "--evict").planned == ["shop/db"]
    assert not [r for r in shop.server.requests if "replicasets" in r.path]


@pytest.mark.parametrize("extra", [["--"], ["--gate=sh -c 'true --confirm true x'"]])
def test_the_printed_command_is_right_with_other_arguments_as_well(shop, run, extra):
    ended = run(shop, TEXT, "--confirm", "false", *extra, "sts/db")
    words = shlex.split(ended.stdout.splitlines()[-1])
    assert "--" not in words
    assert [word for word in words if word.startswith("--confirm")] == ["--confirm=true"]
    gates = [word for word in words if word.startswith("--gate")]
    assert gates == [word for word in extra if word != "--"]


def test_a_name_without_a_group_means_kubernetes_own_kinds(tool):
    own = tool.ObjectRef("StatefulSet", "shop", "db", "apps")
    kruise = tool.ObjectRef("StatefulSet", "shop", "db", "apps.kruise.io")
    rollout = tool.ObjectRef("Rollout", "shop", "db", "argoproj.io")
    for name, found in (
        ("sts/db", [own]),
        ("statefulsets.apps.kruise.io/db", [kruise]),
        ("rollouts/db", [rollout]),
        ("rollout.argoproj.io/d*", [rollout]),
        ("rollout.other.io/db", []),
    ):
        options = options_of(tool, "--evict", name)
        assert [ref for ref in (own, kruise, rollout) if tool.is_named(ref, options)] == found
