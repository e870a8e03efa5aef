"""What several answers of an injector say: what each new Pod has anew, what is the same, and what nobody can tell."""

from __future__ import annotations

import json
import random
import time

import pytest
from clusters.embedded.manifests import workload
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CONFIRM, DRIFTED, NEW, TEXT, sidecar_differences, verdicts, view_of

pytestmark = pytest.mark.both
NAMES = ["istio-proxy"]
PARTS = {  # of a sidecar, by what it is in each new Pod: a function of a word that is new in each
    "name of a variable": lambda word: {"env": [{"name": f"ID_{word}_X", "value": "1"}]},
    "variable": lambda word: {"env": [{"name": "ID", "value": word}]},
    "inside JSON": lambda word: {
        "env": [{"name": "JSON", "value": json.dumps({"a": {"b": word}})}]
    },
    "key inside JSON": lambda word: {
        "env": [{"name": "KEYS", "value": json.dumps({"x": {word: 1}})}]
    },
    "argument": lambda word: {"args": [f"--id={word}"]},
    "mount": lambda word: {
        "volumeMounts": [{"name": f"v-{word}", "mountPath": f"/tokens/{word}/x"}]
    },
    "volume": lambda word: {"volumeMounts": [{"name": f"w-{word}", "mountPath": "/data"}]},
    "seconds": lambda word: {"env": [{"name": "TIME", "value": str(1764090000 + int(word, 16))}]},
}
CHANGES = {  # real ones, and where they are
    "none": (None, {}),
    "image": ("image", {"image": NEW}),
    "a variable": ("env", {"env": [{"name": "LEVEL", "value": "debug"}]}),
    "a new variable": ("env", {"env": [{"name": "NEW", "value": "1"}]}),
    "an argument": ("args", {"args": ["--level=debug"]}),
    "a port": ("ports", {"ports": [{"containerPort": 77}]}),
    "a mount": ("volumeMounts", {"volumeMounts": [{"name": "new", "mountPath": "/new"}]}),
    "resources": ("resources", {"resources": {"limits": {"cpu": "2"}}}),
}


def with_more(sidecar: dict, more: dict) -> dict:
    """The sidecar with more in its lists, and other values of what is none."""
    lists = {
        key: [*sidecar.get(key, []), *value]
        for key, value in more.items()
        if key in ("env", "args", "volumeMounts")
    }
    return {**sidecar, **more, **lists}


def injected(
    parts: list[str], order: random.Random | None, word: str, change: dict, few: str = ""
) -> dict:
    """A Pod with a sidecar: constant parts, those that are new with each word, and a real change."""
    sidecar = {
        "name": "istio-proxy",
        "image": "istio/proxyv2:1",
        "args": ["proxy", "--level=info", "--a=1", "--b=2", "--b=2"],
        "env": [{"name": "LEVEL", "value": "info"}, {"name": "MODE", "value": few}],
        "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
    }
    for part in parts:
        sidecar = with_more(sidecar, PARTS[part](word))
    if any(variable["name"] == "LEVEL" for variable in change.get("env", [])):
        sidecar["env"] = sidecar["env"][1:]
    sidecar = with_more(sidecar, change)
    if order:
        order.shuffle(sidecar["args"])
    volumes = [{"name": mount["name"], "emptyDir": {}} for mount in sidecar["volumeMounts"]]
    return {"metadata": {}, "spec": {"containers": [sidecar], "volumes": volumes}}


WORDS = st.lists(st.integers(0, 16**8).map("{:09x}".format), min_size=4, max_size=4, unique=True)
MIXTURES = st.lists(st.sampled_from(sorted(PARTS)), unique=True)
NAMED_ANEW = {"name of a variable": "env", "mount": "volumeMounts"}  # only common names count there


def ignored(tool, first: bytes, second: bytes, *running: bytes):
    """What two answers say is ignored, and where nothing is known."""
    return tool.ignored_paths(
        tool.unpacked(first), tool.unpacked(second), list(map(tool.unpacked, running))
    )


def a_view(tool, **sidecar) -> bytes:
    containers = [{"name": "istio-proxy", "image": "x", **sidecar}]
    return view_of(tool, {"metadata": {}, "spec": {"containers": containers}}, NAMES)


@settings(max_examples=200)
@given(MIXTURES, WORDS, st.sampled_from(sorted(CHANGES)))
def test_of_any_mixture_the_real_change_is_reported_and_nothing_else(tool, parts, words, change):
    where, more = CHANGES[change]
    views = [view_of(tool, injected(parts, None, word, more), NAMES) for word in words]
    live = view_of(tool, injected(parts, None, words[2], {}), NAMES)
    paths, unknown = ignored(tool, *views[:2], live)
    assert unknown == []
    is_hidden = (
        change.startswith("a new") or change == "a mount"
    )  # an added name, beside such names
    is_hidden = is_hidden and where in [NAMED_ANEW.get(part) for part in parts]
    for expected in (views[0], views[3]):  # also one that is asked for by a worker
        found = sidecar_differences(tool, live, expected, (), paths, True).values()
        shown = {difference.path[1] for difference in found} - {"volumes"}
        assert shown == (set() if is_hidden or not where else {where})
        assert sidecar_differences(tool, views[2], expected, (), paths, True) == {}


@settings(max_examples=100)
@given(st.randoms(use_true_random=False), WORDS, st.sampled_from(sorted(CHANGES)))
def test_the_order_of_a_list_is_never_a_difference(tool, chance, words, change):
    where, more = CHANGES[change]
    answers = [view_of(tool, injected([], chance, word, more), NAMES) for word in words]
    assert ignored(tool, *answers[:2]) == (frozenset(), [])
    live = view_of(tool, injected([], chance, "0", {}), NAMES)
    found = sidecar_differences(tool, live, answers[0], (), frozenset(), True).values()
    assert {difference.path[1] for difference in found} - {"volumes"} == (
        {where} if where else set()
    )


@given(MIXTURES, WORDS, st.sampled_from("ab"), st.sampled_from("abc"))
def test_of_a_value_that_a_running_pod_has_nothing_is_known_once_answers_differ(
    tool, parts, words, other, running
):
    views = [
        view_of(tool, injected(parts, None, word, {}, value), NAMES)
        for word, value in zip(words, ("a", other, running), strict=False)
    ]
    paths, unknown = ignored(tool, *views)
    place = ("istio-proxy", "env", "MODE")
    if other == "a":
        assert (unknown, place in paths) == ([], False)
    else:
        assert (unknown, place in paths) == (([], True) if running == "c" else ([place], False))


@pytest.mark.parametrize(
    ("answers", "places"),
    [
        ([{"workingDir": "/a"}, {"tty": True}], [("p", "tty"), ("p", "workingDir")]),
        ([{"workingDir": "/a"}, {}], [("p", "workingDir")]),
        ([{"name": "p"}, {"name": "q"}], [("p",), ("q",)]),
        ([{"image": "x:1"}, {"image": "x:2"}], [("p", "image")]),
        ([{"args": ["a"]}, {"args": ["a", "b"]}], [("p", "args")]),
    ],
)
def test_containers_and_their_fields_do_not_vary(tool, answers, places):
    """A container that only some answers have, or a field of it, is an injector that is upgraded."""
    views = []
    for answer in answers:
        pod = {"metadata": {}, "spec": {"containers": [{"name": "p", "image": "x", **answer}]}}
        views.append(view_of(tool, pod, ["p", "q"]))
    assert ignored(tool, *views) == (frozenset(), places)


def test_a_removed_variable_is_hidden_where_names_of_variables_vary(tool):
    """Only common names are compared there; one that has another value is named."""
    parts = ["name of a variable"]
    old = {"env": [{"name": "OLD", "value": "1"}]}
    live = view_of(tool, injected(parts, None, "000000001", old, "x"), NAMES)
    views = [view_of(tool, injected(parts, None, f"00000000{n}", {}, "y"), NAMES) for n in "23"]
    paths, unknown = ignored(tool, *views, live)
    assert (paths, unknown) == ({("istio-proxy", "env", "*")}, [])
    found = sidecar_differences(tool, live, views[0], (), paths, True).values()
    assert [(d.path, d.current, d.expected) for d in found] == [
        (("istio-proxy", "env", "MODE"), "x", "y")
    ]


def test_a_name_that_only_one_answer_has_is_not_known(tool):
    """It takes no other one's place: an injector that is upgraded."""
    views = [a_view(tool, **an_env(A="1", B="1")), a_view(tool, **an_env(A="1"))]
    assert ignored(tool, *views)[1] == [("istio-proxy", "env", "*")]


def test_a_list_that_is_shuffled_and_has_a_random_element_is_not_known(tool):
    views = [a_view(tool, args=["a", "b", "r1"]), a_view(tool, args=["r2", "a", "b"])]
    assert ignored(tool, *views) == (frozenset(), [("istio-proxy", "args")])


# With an injector, in the tool


@pytest.fixture
def injecting(cluster):
    """injecting(change): Deployments a to d, whose sidecars the injector changes by a function."""

    def make(change, replicas=2) -> None:
        real = cluster.injector.inject

        def inject(pod: dict) -> None:
            real(pod)
            change(pod["spec"]["containers"][-1])

        cluster.injector.inject = inject
        for name in "abcd":
            cluster.create("shop", workload("Deployment", name, replicas=replicas))
        cluster.settle()

    return make


def test_the_time_in_seconds_is_no_drift(cluster, injecting, run, tool, monkeypatch):
    """Datadog's injector writes it. Two answers within milliseconds are equal."""

    def stamp(sidecar: dict) -> None:
        sidecar["env"] = [{"name": "START", "value": str(int(time.time()))}]

    injecting(stamp, replicas=1)
    monkeypatch.setattr(tool, "ANSWERS_APART", 1.1)
    time.sleep(1 - time.time() % 1)  # the next second has begun: each Pod has another one
    for name in "abcd":
        cluster.change("Deployment", "shop", name, {"spec": {"replicas": 2}})
    cluster.settle()
    time.sleep(1 - time.time() % 1)
    ended = run(cluster, DRIFTED)
    assert set(verdicts(ended).values()) == {"up_to_date"}
    cluster.injector.container["image"] = NEW
    done = run(cluster, DRIFTED, CONFIRM)
    assert (done.code, set(done.outcomes.values())) == (0, {"succeeded"})
    assert {str(r["differences"][0]["path"]) for r in done.of("plan")} == {
        "['istio-proxy', 'image']"
    }


@pytest.mark.parametrize("count", [2, 6])
def test_arguments_in_random_order_are_no_drift(cluster, injecting, run, count):
    """Dynatrace's operator writes them from a map of Go."""

    def reorder(sidecar: dict) -> None:
        args = [f"--attribute={number}" for number in range(count)]
        random.shuffle(args)
        sidecar["args"] = ["bootstrap", *args, "--last"]

    injecting(reorder)
    assert set(verdicts(run(cluster, DRIFTED)).values()) == {"up_to_date"}
    cluster.injector.container["image"] = NEW
    done = run(cluster, DRIFTED, CONFIRM)
    assert {len(r["differences"]) for r in done.of("plan")} == {1}
    assert set(done.outcomes.values()) == {"succeeded"}


def test_a_value_of_which_there_are_two_is_unknown_as_soon_as_answers_differ(
    cluster, injecting, run
):
    cluster.turn = 0

    def choose(sidecar: dict) -> None:
        cluster.turn += 1
        sidecar["env"] = [{"name": "ZONE", "value": "ab"[cluster.turn % 2]}]

    injecting(choose)
    cluster.injector.container["image"] = NEW
    ended = run(cluster, DRIFTED, "deployment/a")
    (drift,) = ended.of("drift")
    assert (drift["verdict"], drift["ignored"]) == ("unknown", [])
    assert "two different answers (env ZONE of istio-proxy)" in drift["message"]
    assert "Ignored" not in run(cluster, DRIFTED, TEXT, "deployment/a").stdout


def test_who_answers_the_same_twice_is_asked_twice(cluster, injecting, run):
    injecting(lambda sidecar: None)
    cluster.injector.container["image"] = NEW
    before = len(cluster.injector.seen)
    run(cluster, DRIFTED)
    assert len(cluster.injector.seen) - before == 8


def test_who_answers_otherwise_is_not_asked_again(cluster, injecting, run):
    def stamp(sidecar: dict) -> None:
        sidecar["env"] = [{"name": "ID", "value": str(random.random())}]

    injecting(stamp)
    before = len(cluster.injector.seen)
    assert set(verdicts(run(cluster, DRIFTED)).values()) == {"up_to_date"}
    assert len(cluster.injector.seen) - before == 8


def test_answers_are_a_second_apart_and_wait_for_nobody(cluster, injecting, run, tool, monkeypatch):
    """The first answers of all come before the second of any."""

    def note(sidecar: dict) -> None:
        moments.append(time.monotonic())

    moments: list[float] = []
    injecting(note)
    cluster.injector.container["image"] = NEW
    moments.clear()
    monkeypatch.setattr(tool, "ANSWERS_APART", 1.1)
    run(cluster, DRIFTED)
    first, second = sorted(moments)[:4], sorted(moments)[4:]
    assert len(second) == 4
    assert second[0] - first[-1] > 0.8
    assert second[-1] - first[-1] < 10


def test_an_annotation_of_the_pod_that_a_sidecar_reads_is_its_configuration(cluster, run):
    """Kuma writes the proxy's configuration into an annotation, and mounts it."""
    cluster.config = "a"
    real = cluster.injector.inject

    def field(key: str) -> dict:
        return {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.{key}"}}

    def inject(pod: dict) -> None:
        real(pod)
        pod["metadata"].setdefault("annotations", {})["mesh/config"] = f"mode: {cluster.config}"
        items = [
            {"path": "config", **field("annotations['mesh/config']")},
            {"path": "all", **field("annotations")},
        ]
        pod["spec"]["volumes"].append({"name": "config", "downwardAPI": {"items": items}})
        sidecar = pod["spec"]["containers"][-1]
        sidecar["volumeMounts"] = [
            *sidecar.get("volumeMounts", []),
            {"name": "config", "mountPath": "/etc/mesh"},
        ]
        sidecar["env"] = [
            {"name": "APP", "valueFrom": field("labels['app']")},
            {"name": "HASH", "valueFrom": field("labels['pod-template-hash']")},
            {"name": "NETWORK", "valueFrom": field("annotations['network/status']")},
            {"name": "POD", "valueFrom": field("name")},
        ]

    cluster.injector.inject = inject
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    for pod in cluster.pods("shop"):  # a network plugin writes it when the Pod starts
        cluster.change(
            "Pod",
            "shop",
            pod["metadata"]["name"],
            {"metadata": {"annotations": {"network/status": "10.0.0.1"}}},
        )
    assert verdicts(run(cluster, DRIFTED)) == {"shop/web": "up_to_date"}
    cluster.config = "b"
    done = run(cluster, DRIFTED, CONFIRM)
    (drift,) = done.of("drift")
    items = ["istio-proxy", "volumes", "/etc/mesh", "downwardAPI", "items"]
    assert [d["path"] for d in drift["differences"]] == [[*items, "0", "fieldRef", "value"]]
    assert done.outcomes == {"shop/web": "succeeded"}
    assert verdicts(run(cluster, DRIFTED)) == {"shop/web": "up_to_date"}


def test_a_variable_that_reads_an_annotation_changes_with_it(tool):
    def pod(value: str) -> dict:
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['x/y']"}}
        sidecar = {"name": "istio-proxy", "image": "x", "env": [{"name": "X", "valueFrom": source}]}
        return {"metadata": {"annotations": {"x/y": value}}, "spec": {"containers": [sidecar]}}

    views = [view_of(tool, pod(value), NAMES) for value in ("a", 'b"\\')]
    found = sidecar_differences(tool, *views, (), frozenset(), True).values()
    path = ("istio-proxy", "env", "X", "from", "fieldRef", "value")
    assert [(d.path, d.current, d.expected) for d in found] == [(path, "a", 'b"\\')]


def test_a_label_of_a_controller_is_no_configuration(tool):
    """Each ReplicaSet has another one."""

    def pod(template_hash: str) -> dict:
        source = {"fieldRef": {"fieldPath": "metadata.labels['pod-template-hash']"}}
        sidecar = {"name": "istio-proxy", "image": "x", "env": [{"name": "X", "valueFrom": source}]}
        labels = {"pod-template-hash": template_hash}
        return {"metadata": {"labels": labels}, "spec": {"containers": [sidecar]}}

    assert view_of(tool, pod("1"), NAMES) == view_of(tool, pod("2"), NAMES)


# What is easily hidden by what varies: current, two answers, and where they really differ


def an_env(**variables: str) -> dict:
    return {"env": [{"name": name, "value": value} for name, value in variables.items()]}


def mounted(**paths: str) -> dict:
    return {"volumeMounts": [{"name": "v", "mountPath": path} for path in paths.values()]}


CASES = {
    "a value is removed from a list with one that varies": (
        {"args": ["--a", "--old", "--id=0"]},
        [{"args": ["--a", f"--id={n}"]} for n in "23"],
        ["args"],
    ),
    "an argument beside one that varies": (
        {"args": ["--id=0", "--level=info"]},
        [{"args": [f"--id={n}", "--level=debug"]} for n in "23"],
        ["args"],
    ),
    "the same word twice": (
        {"args": ["--node", "00", "--cluster", "00"]},
        [{"args": ["--node", n, "--cluster", n]} for n in ("0f", "c1")],
        [],
    ),
    "beside a random part of an object in a list": (
        an_env(X='[{"id": "1", "image": "v1"}]'),
        [an_env(X=json.dumps([{"id": f"r{n}", "image": "v2"}])) for n in "23"],
        ["env.X.0.image"],
    ),
    "null is not nothing": (an_env(X='{"a": null}'), [an_env(X="{}")] * 2, ["env.X"]),
    "two keys that vary": (
        mounted(a="/tokens/91", b="/certs/19"),
        [mounted(a=f"/tokens/{x}", b=f"/certs/{y}") for x, y in ("ab", "cd")],
        [],
    ),
    "a changed element in a list in another order": (
        {"args": ["--a", "--b", "--c=1"]},
        [{"args": ["--c=2", "--b", "--a"]}] * 2,
        ["args"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_easily_hidden_by_what_varies(tool, case):
    current, answers, places = CASES[case]
    live, *views = (a_view(tool, **one) for one in (current, *answers))
    paths, unknown = ignored(tool, *views, live)
    assert unknown == []
    found = sidecar_differences(tool, live, views[0], (), paths, True).values()
    assert [".".join(d.path[1:]) for d in found] == places


@pytest.mark.parametrize(
    "answers",
    [
        [{"args": ["--a", "info", "--b", level]} for level in ("info", "debug")],
        [an_env(X='{"a": null}'), an_env(X='{"a": "x"}')],
        [an_env(A="1"), an_env()],
    ],
)
def test_a_value_that_a_running_pod_has_is_unknown_wherever_it_is(tool, answers):
    """Also where only one of its Pods has it."""
    views = [a_view(tool, **one) for one in answers]
    other = a_view(tool, args=["x"], **an_env(A="2", X="3"))
    for running in (views[0], views[1]):
        assert ignored(tool, *views, other, running)[1]


def test_deep_lists_take_no_exponential_time(tool):
    deep = "[" * 31 + "1" + "]" * 31
    views = []
    for number in range(2):
        pod = injected([], None, "1", an_env(X=deep, ID=str(number)))
        views.append(view_of(tool, pod, NAMES))
    assert ignored(tool, *views) == ({("istio-proxy", "env", "ID")}, [])


def test_items_of_a_volume_are_compared_one_by_one(tool):
    """Beside one that refers to what a controller or a network plugin sets."""

    def pod(value: str, later: dict) -> dict:
        fields = ("annotations['mesh/config']", "labels['pod-template-hash']", "annotations['net']")
        items = [
            {"path": field[-6:], "fieldRef": {"fieldPath": f"metadata.{field}"}} for field in fields
        ]
        sidecar = {"name": "istio-proxy", "image": "x", **mounted(a="/etc/mesh")}
        volumes = [{"name": "v", "downwardAPI": {"items": items}}]
        metadata = {
            "annotations": {"mesh/config": value, **later},
            "labels": {"pod-template-hash": value},
        }
        return {"metadata": metadata, "spec": {"containers": [sidecar], "volumes": volumes}}

    live = view_of(tool, pod("a", {"net": "10.0.0.1"}), NAMES)
    found = sidecar_differences(
        tool, live, view_of(tool, pod("b", {}), NAMES), (), frozenset(), True
    )
    items = ("istio-proxy", "volumes", "/etc/mesh", "downwardAPI", "items")
    assert [d.path for d in found.values()] == [(*items, "0", "fieldRef", "value")]
    same = view_of(tool, pod("a", {}), NAMES)
    assert sidecar_differences(tool, live, same, (), frozenset(), True) == {}
