"""The rollout order: least risky first, alternating between namespaces, the same for the same cluster."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import container, pod_spec, service, workload
from hypothesis import given
from hypothesis import strategies as st
from support import TEXT, a_ref, a_workload

pytestmark = pytest.mark.both


def test_the_order_is_least_risky_first(tool, planned):
    wanted = [
        planned("no Service", 3, "a", "x"),
        planned("no Service", 1, "b", "x"),
        planned("serving", 1, "a", "m"),
        planned("serving", 1, "b", "a"),  # the namespaces take turns ...
        planned("serving", 1, "a", "n"),
        planned("serving", 1, "b", "b"),
        planned("serving", 1, "a", "o"),  # ... as long as they have any
        planned("serving", 1, "a", "p"),
        planned("serving", 2, "a", "a"),
        planned("serving", 1, "b", "y", downtime=True),
        planned("unhealthy", 2, "z", "y"),
        planned("unhealthy", 1, "z", "z", downtime=True),
    ]
    assert tool.in_rollout_order(wanted[::-1]) == wanted


WORDS = st.text("ab", min_size=1, max_size=2)


STATES = st.sampled_from(["no Service", "serving", "unhealthy"])


@given(
    st.lists(
        st.tuples(STATES, st.integers(1, 3), WORDS, WORDS, st.booleans()),
        unique_by=lambda row: row[2:4],
    ),
    st.randoms(),
)
def test_the_order_is_the_same_for_the_same_cluster(tool, rows, chance):
    def make(row):
        ref = a_ref(tool, "Deployment", *row[2:4])
        state = tool.State(row[0])
        return a_workload(tool, ref=ref, total_pods=row[1], state=state, downtime=row[4])

    plan = [make(row) for row in rows]
    mixed = list(plan)
    chance.shuffle(mixed)
    ordered = tool.in_rollout_order(plan)
    assert ordered == tool.in_rollout_order(mixed)
    assert sorted(map(id, ordered)) == sorted(map(id, plan))
    states = list(tool.State)
    ranks = [(states.index(w.state), w.downtime) for w in ordered]
    assert ranks == sorted(ranks)
    for rank in set(ranks):
        found = [one for one, its in zip(ordered, ranks, strict=True) if its == rank]
        names = [one.ref.namespace for one in found]
        for index in range(1, len(names)):  # whatever the sizes
            if names[index] == names[index - 1]:  # only where no other namespace has one left
                assert set(names[index:]) == {names[index]}
        for name in set(names):  # in each, fewer Pods first
            sizes = [one.total_pods for one in found if one.ref.namespace == name]
            assert sizes == sorted(sizes)


def test_an_inactive_half_goes_before_its_active_one(cluster, run):
    """Blue/green: the same app twice, and a Service that selects one of them."""
    cluster.kubelet.back_off = 60  # else it is pulled again meanwhile: ErrImagePull
    for name in ("blue", "green"):
        template = workload("Deployment", name, replicas=2)
        template["spec"]["template"]["metadata"]["labels"] = {"app": name, "half": name}
        cluster.create("shop", template)
    cluster.create("shop", service("web", half="blue"))
    cluster.create(
        "shop",
        workload("Deployment", "z-broken", pod_spec(container("app", "broken:1")), replicas=4),
    )
    cluster.settle()
    cluster.wait_for(
        lambda: sum(len(s["endpoints"]) for s in cluster.store.list("endpointslices", "shop")) == 2
    )
    ended = run(cluster)
    assert [(r["name"], r["state"]) for r in ended.of("plan")] == [
        ("green", "no_service"),
        ("blue", "serving"),
        ("z-broken", "unhealthy"),
    ]
    table = run(cluster, TEXT).stdout.splitlines()
    assert [row[table[2].index("NOTES") :] for row in table[2:6]] == [
        "NOTES",
        "no Service",
        "",
        "unhealthy: ImagePullBackOff",
    ]


def test_without_the_permission_to_endpoint_slices_all_count_as_serving(deployments_a_to_f, run):
    rules = [
        {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get", "list"], "apiGroups": ["apps"], "resources": ["*"]},
    ]
    ended = run(deployments_a_to_f.kubeconfig_of("viewer", rules))
    assert {(r["state"], r["services"]) for r in ended.of("plan")} == {("serving", None)}
    lost = (
        "cannot list EndpointSlices: every healthy workload counts as serving, and workloads "
        "behind the same Service may roll out together"
    )
    assert ended.stderr.count(lost) == 1


@pytest.mark.parametrize("conditions", [{}, {"ready": True}, {"ready": False, "serving": False}])
@pytest.mark.parametrize("service", ["web", ""])
def test_an_endpoint_makes_it_serving_ready_or_not(deployments_a_to_f, run, conditions, service):
    """One that is not ready for a moment may be when it is the turn of others behind its Service."""
    (found,) = deployments_a_to_f.pods("shop", "a")
    target = {"kind": "Pod", "name": found["metadata"]["name"], "namespace": "shop"}
    endpoint = {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": target}
    labels = {"kubernetes.io/service-name": service} if service else {}
    deployments_a_to_f.create(
        "shop",
        {
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "metadata": {"name": "a-x", "labels": labels},
            "endpoints": [endpoint],
        },
    )
    plan = run(deployments_a_to_f).of("plan")
    states = {record["name"]: record["state"] for record in plan}
    expected = {"a": "serving"} if service else {}
    assert states == dict.fromkeys("abcdef", "no_service") | expected
    (services,) = [record["services"] for record in plan if record["name"] == "a"]
    assert services == ([service] if service else [])
