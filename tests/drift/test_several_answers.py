"""What several answers of an injector say: what each new Pod has anew, what is the same, and what nobody can tell."""

from __future__ import annotations

import json
import random
import time

import pytest
from clusters.embedded.manifests import workload
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CONFIRM, DRIFTED, NEW, TEXT, a_workload, verdicts

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


WORDS = st.lists(st.integers(0, 16**8).map("{:09x}".format), min_size=6, max_size=6, unique=True)
MIXTURES = st.lists(st.sampled_from(sorted(PARTS)), unique=True)


@settings(max_examples=200)
@given(
    MIXTURES,
    st.booleans(),
    WORDS,
    st.randoms(use_true_random=False),
    st.sampled_from(sorted(CHANGES)),
)
def test_of_any_mixture_the_real_change_is_reported_and_nothing_else(
    tool, parts, reorders, words, chance, change
):
    where, more = CHANGES[change]
    order = chance if reorders else None
    views = [tool.view_of(injected(parts, order, word, more), NAMES) for word in words]
    varying, unknown = tool.split_variations(views[:4])
    assert unknown == []
    live = tool.view_of(injected(parts, order, words[4], {}), NAMES)
    for expected in (views[0], views[5]):  # also one that is asked for by a worker
        found = tool.sidecar_differences(live, expected, (), varying, True).values()
        shown = {difference.path[1] for difference in found} - {"volumes"}
        assert shown == ({where} if where else set())
        assert tool.sidecar_differences(views[4], expected, (), varying, True) == {}


@settings(max_examples=100)
@given(MIXTURES, WORDS, st.sampled_from(sorted(CHANGES)))
def test_what_a_mixture_is_called_is_the_same_in_each_run(tool, parts, words, change):
    """The hash of what is injected, without what varies; a real change makes another one."""
    hashes = []
    for order, more in ((words, {}), (words[::-1], {}), (words, CHANGES[change][1])):
        views = [tool.view_of(injected(parts, None, word, more), NAMES) for word in order[:4]]
        varying, _ = tool.split_variations(views)
        hashes.append(tool.hash_of(tool.Today(views[0], varying=varying)))
    assert hashes[0] == hashes[1]
    assert (hashes[0] == hashes[2]) == (change == "none")


@given(MIXTURES, WORDS, st.lists(st.sampled_from("ab"), min_size=4, max_size=4))
def test_of_a_value_of_which_there_are_two_nothing_is_known_once_answers_differ(
    tool, parts, words, few
):
    views = [
        tool.view_of(injected(parts, None, word, {}, value), NAMES)
        for word, value in zip(words, few, strict=False)
    ]
    _, unknown = tool.split_variations(views)
    assert unknown == [("istio-proxy", "env", "MODE")] * (len(set(few)) > 1)


@pytest.mark.parametrize(
    ("answers", "places"),
    [
        ([{"workingDir": "/a"}, {"tty": True}], [("p", "tty"), ("p", "workingDir")]),
        ([{"workingDir": "/a"}, {}], [("p", "workingDir")]),
        ([{"name": "p"}, {"name": "q"}], [("p",), ("q",)]),
    ],
)
def test_containers_and_their_fields_do_not_vary(tool, answers, places):
    """A container that only some answers have, or a field of it, is an injector that is upgraded."""
    views = []
    for answer in answers:
        pod = {"metadata": {}, "spec": {"containers": [{"name": "p", "image": "x", **answer}]}}
        views.append(tool.view_of(pod, ["p", "q"]))
    assert tool.split_variations(views) == (frozenset(), places)


def test_of_two_variables_whose_names_are_alike_nobody_can_tell_which_is_which(tool):
    views = []
    for number in (1, 3, 5, 7):
        names = {f"TOKEN_{number}": "x", f"TOKEN_{10 - number + 100}": "y"}
        env = [{"name": name, "value": value} for name, value in names.items()]
        pod = {"metadata": {}, "spec": {"containers": [{"name": "p", "image": "x", "env": env}]}}
        views.append(tool.view_of(pod, ["p"]))
    _, unknown = tool.split_variations(views)
    assert unknown == [("p", "env")]


def test_a_removed_variable_is_named_where_names_of_variables_vary(tool):
    parts = ["name of a variable"]
    old = {"env": [{"name": "OLD", "value": "1"}]}
    live = tool.view_of(injected(parts, None, "000000001", old), NAMES)
    views = [tool.view_of(injected(parts, None, f"00000000{n}", {}), NAMES) for n in "2345"]
    varying, _ = tool.split_variations(views)
    found = tool.sidecar_differences(live, views[0], (), varying, True).values()
    assert [(d.path, d.current, d.expected) for d in found] == [
        (("istio-proxy", "env", "OLD"), "1", None)
    ]


def test_what_changes_below_a_path_that_varies_is_a_difference(tool):
    views = []
    for number in "12345":
        pod = injected(["mount"], None, f"00000000{number}", {})
        pod["spec"]["volumes"][1] = {**pod["spec"]["volumes"][1], "emptyDir": {"medium": "Memory"}}
        views.append(tool.view_of(pod, NAMES))
    varying, _ = tool.split_variations(views[:4])
    live = tool.view_of(injected(["mount"], None, "000000009", {}), NAMES)
    found = tool.sidecar_differences(live, views[4], (), varying, True).values()
    assert [d.path for d in found] == [("istio-proxy", "volumes", "/tokens/*/x", "emptyDir")]


# With an injector, in the tool


@pytest.fixture
def injecting(cluster):
    """injecting(change): Deployments a to d, whose sidecars the injector changes by a function."""

    def make(change) -> None:
        real = cluster.injector.inject

        def inject(pod: dict) -> None:
            real(pod)
            change(pod["spec"]["containers"][-1])

        cluster.injector.inject = inject
        for name in "abcd":
            cluster.create("shop", workload("Deployment", name, replicas=2))
        cluster.settle()

    return make


def test_the_time_in_seconds_is_no_drift(cluster, injecting, run, tool, monkeypatch):
    """Datadog's injector writes it. Two answers within milliseconds are equal."""

    def stamp(sidecar: dict) -> None:
        sidecar["env"] = [{"name": "START", "value": str(int(time.time()))}]

    injecting(stamp)
    monkeypatch.setattr(tool, "ANSWERS_APART", 1.1)
    time.sleep(1 - time.time() % 1)  # the next second has begun: the Pods have another one
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


def test_what_is_unknown_has_nothing_that_is_ignored(cluster, injecting, run):
    """Although the order of its arguments is random, too, as in the others."""
    cluster.turn = 0

    def change(sidecar: dict) -> None:
        sidecar["args"] = random.sample([f"--attribute={number}" for number in range(6)], 6)

    injecting(change)
    ordered = cluster.injector.inject

    def inject(pod: dict) -> None:
        ordered(pod)
        if pod["metadata"]["labels"]["app"] == "a":
            cluster.turn += 1
            pod["spec"]["containers"][-1]["env"] = [
                {"name": "ZONE", "value": "ab"[cluster.turn % 2]}
            ]

    cluster.injector.inject = inject
    ended = run(cluster, DRIFTED)
    ignored = {r["name"]: (r["verdict"], r["ignored"]) for r in ended.of("drift")}
    order = [["istio-proxy", "args", "(order)"]]
    assert ignored["a"] == ("unknown", [])
    assert [ignored[name] for name in "bcd"] == [("up_to_date", order)] * 3


def test_who_answers_the_same_twice_is_asked_twice(cluster, injecting, run):
    injecting(lambda sidecar: None)
    cluster.injector.container["image"] = NEW
    before = len(cluster.injector.seen)
    run(cluster, DRIFTED)
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

    views = [tool.view_of(pod(value), NAMES) for value in ("a", 'b"\\')]
    found = tool.sidecar_differences(*views, (), frozenset(), True).values()
    path = ("istio-proxy", "env", "X", "from", "fieldRef", "value")
    assert [(d.path, d.current, d.expected) for d in found] == [(path, "a", 'b"\\')]


def test_a_label_of_a_controller_is_no_configuration(tool):
    """Each ReplicaSet has another one."""

    def pod(template_hash: str) -> dict:
        source = {"fieldRef": {"fieldPath": "metadata.labels['pod-template-hash']"}}
        sidecar = {"name": "istio-proxy", "image": "x", "env": [{"name": "X", "valueFrom": source}]}
        labels = {"pod-template-hash": template_hash}
        return {"metadata": {"labels": labels}, "spec": {"containers": [sidecar]}}

    assert tool.view_of(pod("1"), NAMES) == tool.view_of(pod("2"), NAMES)


def test_images_come_first_then_containers_then_where_they_are(tool):
    """A plan shows five lines of what differs."""
    rest = ("args", "env", "lifecycle", "ports", "resources")
    paths = [
        *((c, field) for c in "ab" for field in rest),
        ("a", "position"),
        ("b",),
        ("b", "image"),
    ]
    found = [
        tool.Difference(path, "containers", "initContainers" if path[1:] == ("position",) else "x")
        for path in sorted(paths)
    ]
    found[found.index(next(d for d in found if d.path == ("b",)))] = tool.Difference(
        ("b",), {"image": "b:1", "position": "containers"}, None
    )
    decision = a_workload(tool, differences=found)
    lines = tool.difference_lines(decision)
    assert [line.split()[0] for line in lines[:3]] == ["b", "would", "a"]
    assert lines[2].startswith("a  changes from a regular container to ")
    assert len(lines) == len(paths)


# What is easily hidden by what varies: current, four answers, and where they really differ


def an_env(**variables: str) -> dict:
    return {"env": [{"name": name, "value": value} for name, value in variables.items()]}


def mounted(**paths: str) -> dict:
    return {"volumeMounts": [{"name": "v", "mountPath": path} for path in paths.values()]}


def words(*texts: str) -> list[list[str]]:
    return [[text.replace("*", word) for text in texts] for word in ("0f", "c1", "9a", "77")]


CASES = {
    "a fixed name becomes one of the Pod": (
        an_env(LEVEL="info", FLAG="1"),
        [an_env(LEVEL="info", **{f"ID_{n}": "1"}) for n in "2345"],
        ["env.FLAG", "env.ID_*"],
    ),
    "a fixed path becomes one of the Pod": (
        mounted(a="/etc/certs"),
        [mounted(a=f"/tokens/{n}") for n in "2345"],
        ["volumeMounts./etc/certs", "volumeMounts./tokens/*"],
    ),
    "a removed name that sorts before one that varies": (
        an_env(A_OLD="1", ID_9="1"),
        [an_env(**{f"ID_{n}": "1"}) for n in "2345"],
        ["env.A_OLD"],
    ),
    "a value is removed from a list with one that varies": (
        {"args": ["--a", "--old", "--id=0"]},
        [{"args": ["--a", f"--id={n}"]} for n in "2345"],
        ["args"],
    ),
    "the same word twice": (
        {"args": ["--node", "00", "--cluster", "00"]},
        [{"args": each} for each in words("--node", "*", "--cluster", "*")],
        [],
    ),
    "the order of arguments": (
        {"args": ["--log-level", "info", "--proxy-level", "debug"]},
        [{"args": ["--log-level", "debug", "--proxy-level", "info"]}] * 4,
        ["args"],
    ),
    "beside a random part of an object in a list": (
        an_env(X='[{"id": "1", "image": "v1"}]'),
        [an_env(X=json.dumps([{"id": f"r{n}", "image": "v2"}])) for n in "2345"],
        ["env.X.0.image"],
    ),
    "null is not nothing": (an_env(X='{"a": null}'), [an_env(X="{}")] * 4, ["env.X"]),
    "two keys that vary": (
        mounted(a="/tokens/91", b="/certs/19"),
        [mounted(a=f"/tokens/{x}", b=f"/certs/{y}") for x, y in ("ab", "cd", "ef", "gh")],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_easily_hidden_by_what_varies(tool, case):
    current, answers, places = CASES[case]
    live, *views = (
        tool.view_of(
            {
                "metadata": {},
                "spec": {"containers": [{"name": "istio-proxy", "image": "x", **one}]},
            },
            NAMES,
        )
        for one in (current, *answers)
    )
    varying, unknown = tool.split_variations(views)
    assert unknown == []
    found = tool.sidecar_differences(live, views[0], (), varying, True).values()
    assert [".".join(d.path[1:]) for d in found] == places


@pytest.mark.parametrize(
    "answers",
    [
        [{"args": ["--a", "info", "--b", level]} for level in ("info", "debug", "info", "info")],
        [an_env(X='{"a": null}'), an_env(X='{"a": "x"}')] * 2,
        [an_env(A="1"), an_env(), an_env(A="1"), an_env()],
    ],
)
def test_a_value_that_comes_back_is_unknown_wherever_it_is(tool, answers):
    views = [
        tool.view_of(
            {
                "metadata": {},
                "spec": {"containers": [{"name": "istio-proxy", "image": "x", **one}]},
            },
            NAMES,
        )
        for one in answers
    ]
    _, unknown = tool.split_variations(views)
    assert unknown


def test_deep_lists_take_no_exponential_time(tool):
    deep = "[" * 31 + "1" + "]" * 31
    views = []
    for number in range(4):
        pod = injected([], None, "1", an_env(X=deep, ID=str(number)))
        views.append(tool.view_of(pod, NAMES))
    varying, unknown = tool.split_variations(views)
    assert (varying, unknown) == ({(("istio-proxy", "env", "ID"), None)}, [])


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

    live = tool.view_of(pod("a", {"net": "10.0.0.1"}), NAMES)
    found = tool.sidecar_differences(live, tool.view_of(pod("b", {}), NAMES), (), frozenset(), True)
    items = ("istio-proxy", "volumes", "/etc/mesh", "downwardAPI", "items")
    assert [d.path for d in found.values()] == [(*items, "0", "fieldRef", "value")]
    assert tool.other_changes(live, tool.view_of(pod("a", {}), NAMES)) == []
