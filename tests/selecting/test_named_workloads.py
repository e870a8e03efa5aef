"""TYPE/NAME: only these workloads."""

from __future__ import annotations

import shlex

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import CONFIRM, DRIFTED, TEXT, printed_command, restarted_by_us
from texts import NO_PODS_WITH, TYPE_AND_NAME

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
        (["Deployment.apps/[ac]*"], ["shop/cart"]),
        (["sts/db", "ds/*"], ["shop/agent", "shop/db"]),
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
        "WARNING no Pods of deployment/none have istio-proxy",
        "WARNING no Pods of statefulset/x-* have istio-proxy",
    ]


@pytest.mark.parametrize("options", [[], ["--confirm=true"]], ids=["dry", "confirm"])
def test_what_does_not_exist_is_an_error(shop, run, options):
    """A typo in a CronJob must not stay green for a year."""
    shop.server.requests.clear()
    close = "did you mean istio-proxy?"
    for words, error in {
        (
            "-n=other",
            "deploy/web",
            "deploy/cart",
        ): 'deployments.apps "cart" not found in namespace other',
        ("-n=shop", "-n=shpo"): 'namespaces "shpo" not found; ',
        ("--exclude-namespace=istio-sytem",): 'namespaces "istio-sytem" not found; ',
        (
            "-n=shop",
            "--sidecar-container-name=istio-prox",
        ): f"{NO_PODS_WITH}istio-prox ",
        ("-n=shop", "--sidecar-container-name=istio-prox", DRIFTED): close,
        ("sts/web",): 'statefulsets.apps "web" not found in ',
    }.items():
        ended = run(shop, *words, TEXT, *options)
        assert (ended.code, ended.stdout.count("\n") <= 1) == (3, True), words
        (said,) = told(ended)
        assert error in said
        assert said.endswith(" (nothing was changed)")
    assert [r for r in shop.server.requests if r.method == "PATCH"] == []


@pytest.mark.embedded("there, each run is limited to the namespaces of its test")
@pytest.mark.parametrize("options", [[], ["--confirm=true"]], ids=["dry", "confirm"])
def test_a_name_with_a_wildcard_may_match_nothing(shop, run, options):
    for words, warning in {
        ("-n=shop", "sts/x-*"): "no Pods of statefulset/x-* have istio-proxy",
        ("-n=sh?p", "-n=x-*"): "no Pods in namespaces that match x-*",
        ("--exclude-namespace=istio-sytem*",): "no Pods in namespaces that match istio-sytem*",
        (
            "-n=shop",
            "--sidecar-container-name=linkerd-*",
        ): f"{NO_PODS_WITH}linkerd-*",
    }.items():
        ended = run(shop, *words, TEXT, *options)
        assert ended.code == 0, words
        said = [line for line in told(ended) if line.startswith(f"WARNING {warning}")]
        assert len(said) == 1  # on a real one, the namespaces of others are left out, too


def test_a_container_exists_if_a_template_or_a_dry_run_has_it(shop, run):
    spec = pod_spec(container("app"), container("logger", "x:1"))
    shop.create("shop", workload("Deployment", "logs", spec, replicas=0))
    shop.settle()
    assert run(shop, "--sidecar-container-name=logger").code == 0
    shop.injector.container = {"name": "mesh-proxy", "image": "x:1"}
    names = ["--sidecar-container-name=istio-proxy", "--sidecar-container-name=mesh-proxy"]
    assert run(shop, *names).code == 3
    assert run(shop, *names, DRIFTED).code == 0


@pytest.mark.parametrize(
    "options",
    [
        [DRIFTED, "--allow-removal"],
        ["--selector=app=nobody"],  # no Pods were read
    ],
)
def test_what_is_not_known_is_a_warning(shop, run, options):
    ended = run(shop, "--sidecar-container-name=istio-prox", "-n=shop", *options)
    assert ended.code == 0
    assert f"{NO_PODS_WITH}istio-prox " in ended.stderr


def test_a_dry_run_without_an_answer_makes_it_a_warning(shop, run):
    shop.injector.state = "fails"
    names = ["--sidecar-container-name=istio-proxy", "--sidecar-container-name=mesh-proxy"]
    ended = run(shop, *names, DRIFTED, "-n=shop")
    assert ended.code == 0
    assert f"{NO_PODS_WITH}mesh-proxy " in ended.stderr


def test_without_permission_to_read_namespaces_there_is_a_warning(shop, run):
    rules = [
        {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"], "namespace": "shop"},
        {"verbs": ["get", "list"], "apiGroups": ["apps"], "resources": ["*"], "namespace": "shop"},
    ]
    ended = run(shop.kubeconfig_of("team", rules), "-n=shop", "--exclude-namespace=shpo", TEXT)
    assert ended.code == 0
    text = "no permission to check whether namespace {} exists"
    assert [text.format(name) in ended.stderr for name in ("shop", "shpo")] == [True, True]


def test_one_that_is_skipped_or_up_to_date_is_no_warning(shop, run):
    shop.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    ended = run(shop, "-n=shop", "deploy/web", "deploy/cart", "--only-drifted")
    assert ended.skipped == {}  # it is not to be restarted
    assert ended.summary["verdicts"] == {"up_to_date": 2}
    assert "WARNING" not in ended.stderr


def test_workloads_without_pods_are_reported_only_if_they_are_named(tool, cluster, run):
    spec = pod_spec(container("app"), serviceAccountName="missing")
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name, spec))
        restarted_by_us(tool, cluster, "Deployment", name)
    cluster.settle()
    assert run(cluster, "deploy/b").skipped.keys() == {"Deployment shop/b"}


def test_other_owners_need_evict(shop, run):
    shop.create("shop", replicated("ReplicaSet", "lone"))
    shop.create("shop", replicated("ReplicaSet", "other"))
    shop.settle()
    ended = run(shop, "rs/lone", TEXT)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr == (
        'error: invalid type "replicaset": must be deployment, statefulset or daemonset, or use '
        "--evict\nSee 'sidecar-rollout.py --help' for usage.\n"
    )
    for name in ("pay/db", "pod/x", "job/x", "cronjob/backup", "cj/backup"):
        assert run(shop, name, TEXT).code == 2
    ended = run(shop, "rs/lone", "--evict", CONFIRM)
    assert ended.outcomes == {"shop/lone": "succeeded"}


def test_custom_resources_by_their_kind(cluster, run):
    cluster.create("shop", replicated("CloneSet", "clones", replicas=2))
    cluster.settle()
    assert run(cluster, "clonesets.apps.kruise.io/clones", "--evict").planned == ["shop/clones"]
    assert run(cluster, "cloneset/other", "--evict").planned == []


def test_a_deployment_that_is_named_is_selected_whatever_is_excluded(shop, run):
    assert run(shop, "deploy/web", "--exclude-deployment").planned == ["other/web", "shop/web"]


@pytest.mark.parametrize("word", ["web", "deploy/", "/web", "deploy/a/b", "deploy/Web", "a=b/c"])
def test_what_is_no_workload(run, word):
    ended = run(None, TEXT, word)
    assert ended.code == 2
    text = f'error: invalid value "{word}": {TYPE_AND_NAME}'
    assert ended.stderr.startswith(f"{text}\n")


def test_a_workload_of_another_api_group_is_another_one(cluster, run):
    """OpenKruise has StatefulSets and DaemonSets as well."""
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.settle()
    ended = run(cluster, "statefulset.apps.kruise.io/db", CONFIRM)
    assert (ended.code, ended.stdout) == (2, "")
    assert run(cluster, "statefulset.apps.kruise.io/db", "--evict").planned == []
    for name in ("statefulset/db", "statefulsets.apps/db", "sts.apps/db"):
        assert run(cluster, name).planned == ["shop/db"]


def test_one_statefulset_needs_no_replicasets(shop, run):
    assert run(shop, "sts/db", "--evict").planned == ["shop/db"]
    assert not [r for r in shop.server.requests if "replicasets" in r.path]


@pytest.mark.parametrize("extra", [["--"], ["--gate=sh -c 'true --confirm true x'"]])
def test_the_printed_command_is_right_with_other_arguments_as_well(shop, run, extra):
    ended = run(shop, TEXT, "--confirm=false", *extra, "sts/db")
    words = shlex.split(ended.stdout.splitlines()[-1])
    assert "--" not in words
    assert [word for word in words if word.startswith("--confirm")] == [
        "--confirm=false",
        "--confirm=true",
    ]
    gates = [word for word in words if word.startswith("--gate")]
    assert gates == [word for word in extra if word != "--"]
