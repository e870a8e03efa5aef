"""The comparison of live Pods with what would be created today: pure functions, recorded Pods, generated sidecars."""

from __future__ import annotations

import copy
import json
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from conftest import a_planned
from hypothesis import assume, given
from hypothesis import strategies as st

RECORDED = Path(__file__).parent / "recorded"
MESH = ("mesh-proxy",)
NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def recorded(name: str) -> list[dict]:
    exchanges = json.loads((RECORDED / f"dry-run-pod-{name}.json").read_text())
    bodies = [exchange["response"]["body"] for exchange in exchanges]
    return [
        item for body in bodies for item in (body["items"] if body["kind"] == "PodList" else [body])
    ]


def differences(tool, live: dict, fresh: dict, names=MESH) -> list[str]:
    """The differences between two Pods' sidecars, as an operator reads them."""
    found = tool.sidecar_differences(tool.view_of(live, names), tool.view_of(fresh, names), ())
    return [tool.difference_text(difference) for difference in found]


@pytest.mark.parametrize("name", ["web", "db", "agent"])
def test_a_recorded_live_pod_is_up_to_date(tool, name):
    fresh, live = recorded(name)
    assert tool.view_of(live, MESH) == tool.view_of(fresh, MESH)
    assert tool.other_changes(live, fresh, MESH) == ()


def test_recorded_drift_is_exactly_its_differences(tool):
    (_, live), (native, newer) = recorded("web"), recorded("drifted")
    assert differences(tool, live, native) == [
        "mesh-proxy  changes from a regular container to a native sidecar"
    ]
    assert differences(tool, live, newer) == [
        "mesh-proxy  env NEW  <none> -> 1",
        "mesh-proxy  env PROXY_LOG_LEVEL  warn -> info",
        "mesh-proxy  image  registry.example/mesh-proxy:1.0.0 -> 2.0.0",
        "mesh-proxy  resources.requests.cpu  <none> -> 200m",
    ]


def recorded_rejections() -> list:
    exchanges = json.loads((RECORDED / "dry-run-pod-refused.json").read_text())
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
    return list(zip(exchanges, verdicts, strict=True))


@pytest.mark.parametrize(("exchange", "verdict"), recorded_rejections())
def test_recorded_rejections(tool, exchange, verdict):
    answer = exchange["response"]
    error = tool.ApiError(answer["status"], f"{answer['status']} {answer['body']['message']}")
    assert tool.verdict_on(error) is tool.Verdict[verdict]


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
    assert tool.verdict_on(tool.ApiError(status, message)) is tool.Verdict[verdict]


# A mesh proxy in two versions: what a real injector's upgrade looks like, in small


def injected(version: int, *, users_own: bool = False) -> dict:
    """A Pod as an injector's version 1 or 2 makes it; 2 injects a native sidecar and mounts one volume more."""
    proxy = {
        "name": "mesh-proxy",
        "image": "registry.example/mesh-proxy:1.0.0",
        "args": ["proxy", "sidecar", "--level=warning"],
        "env": [
            {"name": "PROXY_CONFIG", "value": '{"drain": "45s", "tracing": {}}'},
            {
                "name": "POD_NAME",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
            },
        ],
        "ports": [{"containerPort": 15090, "protocol": "TCP", "name": "http-envoy-prom"}],
        "resources": {
            "limits": {"cpu": "2", "memory": "1Gi"},
            "requests": {"cpu": "100m", "memory": "128Mi"},
        },
        "volumeMounts": [{"name": "certs", "mountPath": "/var/run/certs"}],
    }
    volumes = [
        {"name": "certs", "configMap": {"name": "ca"}},
        {"name": "kube-api-access-abcde", "projected": {}},
    ]
    init = [{"name": "mesh-init", "image": "registry.example/mesh-proxy:1.0.0"}]
    if users_own:
        init.append({"name": "logger", "image": "logger:1", "restartPolicy": "Always"})
    app = {"name": "app", "image": "app:1"}
    spec: dict = {"containers": [app, proxy], "initContainers": init, "volumes": volumes}
    if version == 2:
        drain = {"preStop": {"exec": {"command": ["agent", "drain"]}}}
        crl = {"name": "crl", "configMap": {"name": "crl", "optional": True}}
        proxy = {**proxy, "restartPolicy": "Always", "lifecycle": drain}
        proxy["volumeMounts"] = [
            *proxy["volumeMounts"],
            {"name": "crl", "mountPath": "/var/run/crl"},
        ]
        spec |= {"containers": [app], "initContainers": [*init, proxy], "volumes": [*volumes, crl]}
    status = json.dumps({"initContainers": [c["name"] for c in spec["initContainers"]]})
    return {
        "metadata": {"name": "x", "namespace": "y", "annotations": {"mesh/status": status}},
        "spec": spec,
    }


@pytest.mark.parametrize("users_own", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_an_injected_pod_compared_with_itself_is_up_to_date(tool, version, users_own):
    live, fresh = (injected(version, users_own=users_own) for _ in range(2))
    assert tool.view_of(live, MESH) == tool.view_of(shuffled(fresh, random.Random(1)), MESH)
    assert differences(tool, live, {"metadata": {}, "spec": {"containers": []}}) == [
        "would be removed: mesh-proxy 1.0.0"
    ]


def test_an_upgrade_of_the_injector_is_exactly_its_differences(tool):
    live, fresh = injected(1), injected(2)
    assert differences(tool, live, fresh) == [
        'mesh-proxy  lifecycle  <none> -> {"preStop": {"exec": {"command": ["agent", "drain"]}}}',
        "mesh-proxy  changes from a regular container to a native sidecar",
        'mesh-proxy  mount /var/run/crl  <none> -> {"mountPath": "/var/run/crl", "name": "crl"}',
        'mesh-proxy  volume crl  <none> -> {"configMap": {"name": "crl", "optional": true}}',
    ]
    assert tool.other_changes(live, fresh, MESH) == ("annotation mesh/status",)


@pytest.mark.parametrize(
    "name",
    [
        "sidecarRollout.rollout.timestamp",
        "team.example/x.rollout.reason",
        "sidecarRollout.rollout.revision",
        "kubectl.kubernetes.io/restartedAt",
        "kubernetes.io/limit-ranger",
    ],
)
def test_annotations_about_restarts_and_admission_are_no_change(tool, name):
    live, fresh = injected(1), injected(1)
    fresh["metadata"]["annotations"] = {**fresh["metadata"].get("annotations", {}), name: "new"}
    assert tool.other_changes(live, fresh, MESH) == ()
    fresh["metadata"]["annotations"]["other"] = "new"
    assert tool.other_changes(live, fresh, MESH) == ("annotation other",)


def test_a_native_sidecar_of_the_users_own_is_not_compared(tool):
    live, fresh = injected(1, users_own=True), injected(2, users_own=True)
    fresh["spec"]["initContainers"][1] = {**fresh["spec"]["initContainers"][1], "image": "logger:2"}
    assert all(line.startswith("mesh-proxy  ") for line in differences(tool, live, fresh))
    assert "init container logger" in tool.other_changes(live, fresh, MESH)


# Generated sidecars


NAMES = st.text("abcdef", min_size=1, max_size=4)
VALUES = st.text("xyz0123", min_size=1, max_size=5)
QUANTITIES = st.sampled_from(["100m", "1", "1500m", "128Mi", "1Gi", "2", "64Ki"])
JSON_TEXTS = st.dictionaries(
    NAMES, st.integers(0, 9) | VALUES | st.lists(st.integers(0, 9), max_size=3), min_size=1
)


def unique(items, key):
    return st.lists(items, max_size=4, unique_by=key)


SIDECARS = st.fixed_dictionaries(
    {
        "name": st.just("mesh-proxy"),
        "image": VALUES.map(lambda tag: f"registry.example/proxy:{tag}"),
        "args": st.lists(VALUES.map(lambda value: f"--{value[0]}={value}"), max_size=3),
        "env": unique(
            st.builds(
                lambda name, value: {"name": name, "value": value},
                NAMES,
                VALUES | JSON_TEXTS.map(json.dumps),
            ),
            lambda variable: variable["name"],
        ),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                k: st.dictionaries(st.sampled_from(["cpu", "memory"]), QUANTITIES)
                for k in ("limits", "requests")
            },
        ),
        "ports": unique(
            st.builds(
                lambda n, p: {"containerPort": n, "protocol": p},
                st.integers(1, 9),
                st.sampled_from(["TCP", "UDP"]),
            ),
            lambda port: (port["containerPort"], port["protocol"]),
        ),
        "volumeMounts": unique(
            st.builds(lambda n, p: {"name": n, "mountPath": f"/{p}"}, NAMES, NAMES),
            lambda mount: mount["mountPath"],
        ),
        "securityContext": st.fixed_dictionaries(
            {}, optional={"privileged": st.booleans(), "runAsUser": st.integers(1, 9)}
        ),
        "readinessProbe": st.none() | st.fixed_dictionaries({"periodSeconds": st.integers(1, 9)}),
    }
)


def pod_of(sidecar: dict, native: bool = False) -> dict:
    volumes = [
        {"name": name, "emptyDir": {}}
        for name in sorted({mount["name"] for mount in sidecar["volumeMounts"]})
    ]
    spec = {"containers": [{"name": "app", "image": "app:1"}], "volumes": volumes}
    if native:
        spec["initContainers"] = [{**sidecar, "restartPolicy": "Always"}]
    else:
        spec["containers"].append(sidecar)
    return {"metadata": {"name": "x", "namespace": "y"}, "spec": spec}


SPELLINGS = {
    "1": "1000m",
    "1500m": "1.5",
    "1Gi": "1024Mi",
    "128Mi": "131072Ki",
    "2": "2000m",
    "100m": "0.1",
    "64Ki": "65536",
}


def shuffled(value: object, chance: random.Random, key: str = "") -> object:
    """The same in another spelling: order, empty fields, quantities, defaults."""
    if isinstance(value, dict):
        items = [(k, shuffled(v, chance, k)) for k, v in value.items()]
        chance.shuffle(items)
        result = dict(items)
        if key in ("securityContext", "resources") and chance.random() < 0.3:
            result["claims"] = []
        if result.get("protocol") == "TCP" and chance.random() < 0.5:
            del result["protocol"]
        if "value" in result and str(result["value"]).startswith("{"):
            parsed = json.loads(result["value"])
            result["value"] = json.dumps(shuffled(parsed, chance), indent=chance.choice([None, 2]))
        return result
    if isinstance(value, list):
        result = [shuffled(item, chance) for item in value]
        if key in ("env", "ports", "volumeMounts", "volumes"):
            chance.shuffle(result)
        return result
    if key in ("cpu", "memory") and chance.random() < 0.5:
        return SPELLINGS.get(value, value)
    return value


@given(SIDECARS, st.randoms(use_true_random=False), st.booleans())
def test_equals_in_another_spelling_are_equal(tool, sidecar, chance, native):
    live, fresh = pod_of(sidecar, native), shuffled(pod_of(sidecar, native), chance)
    assert differences(tool, live, fresh) == []
    assert tool.view_of(live, MESH) == tool.view_of(fresh, MESH)


def change(sidecar: dict, field: str, chance: random.Random) -> dict:
    """The sidecar with one real change in a field."""
    changed = copy.deepcopy(sidecar)
    if field in ("image", "args"):
        changed[field] = changed[field] + ("z" if field == "image" else ["--new"])
    elif field == "resources":
        changed[field].setdefault("limits", {})["cpu"] = "77m"
    elif field in ("securityContext", "readinessProbe"):
        changed[field] = {
            **(changed[field] or {}),
            "runAsUser" if field == "securityContext" else "periodSeconds": 77,
        }
    elif changed[field] and chance.random() < 0.5:
        changed[field].pop(chance.randrange(len(changed[field])))
    else:
        new = {
            "env": {"name": "new", "value": ""},
            "ports": {"containerPort": 77},
            "volumeMounts": {"name": "new", "mountPath": "/new", "readOnly": True},
        }
        changed[field].append(new[field])
    return changed


FIELDS = (
    "image",
    "args",
    "env",
    "resources",
    "ports",
    "volumeMounts",
    "securityContext",
    "readinessProbe",
)


@given(SIDECARS, st.sampled_from(FIELDS), st.randoms(use_true_random=False))
def test_any_one_real_change_is_found_and_named(tool, sidecar, field, chance):
    live, fresh = pod_of(sidecar), shuffled(pod_of(change(sidecar, field, chance)), chance)
    found = list(tool.sidecar_differences(tool.view_of(live, MESH), tool.view_of(fresh, MESH), ()))
    touched = {difference.path[1] for difference in found}
    expected = {field, "volumes"} if field == "volumeMounts" else {field}
    assert field in touched
    assert touched <= expected


@given(SIDECARS)
def test_where_it_stands_is_a_difference(tool, sidecar):
    (line,) = differences(tool, pod_of(sidecar), pod_of(sidecar, native=True))
    assert line == "mesh-proxy  changes from a regular container to a native sidecar"


def view(tool, sidecar: dict) -> dict:
    return tool.unpacked(tool.view_of(pod_of(sidecar), MESH))


@given(SIDECARS, SIDECARS)
def test_differences_are_mirrored(tool, one, other):
    there = list(tool.find_differences(view(tool, one), view(tool, other)))
    back = list(tool.find_differences(view(tool, other), view(tool, one)))
    assert (
        bool(there)
        == bool(back)
        == (tool.view_of(pod_of(one), MESH) != tool.view_of(pod_of(other), MESH))
    )


@given(st.integers(1, 10**6), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_quantities_compare_by_value(tool, number, unit):
    factor = {"": 1, "k": 1000, "M": 10**6, "G": 10**9, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}[
        unit
    ]
    assert (
        tool.normal_quantity(f"{number}{unit}")
        == tool.normal_quantity(str(number * factor))
        == tool.normal_quantity(f"{number * factor * 1000}m")
    )
    assume(number * factor != 7)
    assert tool.normal_quantity(f"{number}{unit}") != tool.normal_quantity("7")


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("1000m", "1"),
        ("0.1", "100m"),
        ("1024Mi", "1Gi"),
        ("1e3", "1000"),
        ("100m", "100m"),
        ("x", "x"),
    ],
)
def test_quantities_are_shown_as_people_write_them(tool, amount, shown):
    assert tool.normal_quantity(amount) == shown


# Secrets, resized Pods, configuration


def with_env(**env: str) -> dict:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return {
        "metadata": {},
        "spec": {"containers": [{"name": "mesh-proxy", "image": "x:1", "env": variables}]},
    }


def test_what_looks_like_a_secret_is_masked(tool):
    live = with_env(
        ADMIN_PASSWORD="hunter2", API_TOKEN="abc", LEVEL="1", CONFIG='{"password": "p1", "port": 1}'
    )
    fresh = with_env(ADMIN_PASSWORD="hunter3", LEVEL="2", CONFIG='{"password": "p2", "port": 2}')
    assert differences(tool, live, fresh) == [
        "mesh-proxy  env ADMIN_PASSWORD  <redacted> -> <redacted>",
        "mesh-proxy  env API_TOKEN  <redacted> -> <none>",
        "mesh-proxy  env CONFIG.password  <redacted> -> <redacted>",
        "mesh-proxy  env CONFIG.port  1 -> 2",
        "mesh-proxy  env LEVEL  1 -> 2",
    ]
    whole = differences(tool, with_env(), with_env(CONFIG='{"inner": {"token": "abc"}}'))
    assert whole == ['mesh-proxy  env CONFIG  <none> -> {"inner": {"token": "<redacted>"}}']


def test_arguments_that_look_like_secrets_are_masked(tool):
    live, fresh = with_env(), with_env()
    live["spec"]["containers"][0]["args"] = ["--api-token=abc", "--level=1"]
    fresh["spec"]["containers"][0]["args"] = ["--api-token=def", "--level=2"]
    assert differences(tool, live, fresh) == [
        "mesh-proxy  args  --api-token=<redacted> -> --api-token=<redacted>",
        "mesh-proxy  args  --level=1 -> --level=2",
    ]


def test_a_secret_in_an_argument_of_its_own_is_masked(tool):
    live, fresh = with_env(), with_env()
    live["spec"]["containers"][0]["args"] = [
        "--password",
        "hunter2",
        "--level",
        "1",
        "--use-token",
        "--x",
    ]
    fresh["spec"]["containers"][0]["args"] = [
        "--password",
        "hunter3",
        "--level",
        "2",
        "--use-token",
        "--x",
    ]
    assert differences(tool, live, fresh) == [
        "mesh-proxy  args  --password=<redacted> -> --password=<redacted>",
        "mesh-proxy  args  1 -> <none>",
        "mesh-proxy  args  <none> -> 2",
    ]


def test_a_flag_that_comes_more_than_once_loses_no_difference(tool):
    live, fresh = with_env(), with_env()
    live["spec"]["containers"][0]["args"] = ["-x=1", "-y=1"]
    fresh["spec"]["containers"][0]["args"] = ["-x=2", "-x=3", "-y=1"]
    assert differences(tool, live, fresh) == [
        "mesh-proxy  args  -x=1 -> -x=2",
        "mesh-proxy  args  <none> -> -x=3",
    ]


def test_a_secret_that_looks_like_a_reference_is_masked(tool):
    live, fresh = (
        with_env(MY_SECRET='{"from": "hunter2"}'),
        with_env(MY_SECRET='{"from": "hunter3"}'),
    )
    assert differences(tool, live, fresh) == [
        "mesh-proxy  env MY_SECRET.from  <redacted> -> <redacted>"
    ]
    assert "hunter" not in str(
        differences(tool, with_env(), with_env(MY_SECRET='{"from": {"a": "hunter2"}}'))
    )


def test_another_secret_that_is_referred_to_is_named(tool):
    live, fresh = with_env(), with_env()
    for pod, name in ((live, "old"), (fresh, "new")):
        reference = {
            "name": "DB_PASSWORD",
            "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}},
        }
        pod["spec"]["containers"][0]["env"] = [reference]
    told = ["mesh-proxy  env DB_PASSWORD.from.secretKeyRef.name  old -> new"]
    assert differences(tool, live, fresh) == told


def test_references_to_secrets_are_shown_they_are_no_secrets(tool):
    live, fresh = with_env(), with_env()
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    fresh["spec"]["containers"][0]["env"] = [reference, {"name": "X", "value": "y"}]
    live["spec"]["containers"][0]["env"] = [{"name": "X", "value": "y"}]
    assert differences(tool, live, fresh) == [
        'mesh-proxy  env TOKEN  <none> -> {"from": {"secretKeyRef": {"key": "k", "name": "s"}}}'
    ]


def test_resources_changed_in_place_are_no_drift(tool):
    live, fresh = (
        pod_of(SIDECAR),
        pod_of({**SIDECAR, "resources": {"requests": {"cpu": "1"}}, "image": "x:2"}),
    )
    views = tool.view_of(live, MESH), tool.view_of(fresh, MESH)
    found = {
        name: [d.path[1] for d in tool.sidecar_differences(*views, (name,))]
        for name in ("app", "mesh-proxy")
    }
    assert found == {"app": ["image", "resources"], "mesh-proxy": ["image"]}


@pytest.mark.parametrize("position", ["f:containers", "f:initContainers"])
def test_which_containers_were_changed_in_place(tool, position):
    """As the API server writes it: an entry of the subresource, with the containers' names as keys."""
    changed = {
        "f:spec": {
            position: {'k:{"name":"mesh-proxy"}': {"f:resources": {"f:requests": {"f:cpu": {}}}}}
        }
    }
    created = {"f:spec": {position: {'k:{"name":"app"}': {".": {}, "f:name": {}}}}}
    live = pod_of(SIDECAR)
    live["metadata"] |= {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"fieldsV1": created}, {"subresource": "resize", "fieldsV1": changed}],
    }
    assert tool.live_pod(live, MESH).resized == ("mesh-proxy",)


SIDECAR = {"name": "mesh-proxy", "image": "x:1", "volumeMounts": []}


def using_configs() -> dict:
    sidecar = {
        "name": "mesh-proxy",
        "image": "x:1",
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "env-map", "key": "k"}}},
            {
                "name": "B",
                "valueFrom": {"secretKeyRef": {"name": "env-secret", "key": "k", "optional": True}},
            },
        ],
        "envFrom": [{"configMapRef": {"name": "from-map"}}, {"secretRef": {"name": "from-secret"}}],
        "volumeMounts": [
            {"name": n, "mountPath": f"/{n}"} for n in ("m", "s", "p", "kube-api-access-abcde")
        ],
    }
    volumes = [
        {"name": "m", "configMap": {"name": "mounted-map", "optional": True}},
        {"name": "s", "secret": {"secretName": "mounted-secret"}},
        {
            "name": "p",
            "projected": {
                "sources": [
                    {"configMap": {"name": "env-map", "optional": True}},
                    {"secret": {"name": "p"}},
                ]
            },
        },
        {"name": "unused", "configMap": {"name": "not-mounted"}},
        {
            "name": "kube-api-access-abcde",
            "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]},
        },
    ]
    app = {"name": "app", "image": "a:1", "envFrom": [{"configMapRef": {"name": "of-the-app"}}]}
    return {"metadata": {}, "spec": {"containers": [app, sidecar], "volumes": volumes}}


def test_the_configuration_that_a_sidecar_uses(tool):
    found = {
        (c.kind, c.name): required
        for c, required in tool.configs_of(using_configs(), "shop", MESH).items()
    }
    assert found == {
        ("ConfigMap", "env-map"): True,  # required in one place is required
        ("Secret", "env-secret"): False,
        ("ConfigMap", "from-map"): True,
        ("Secret", "from-secret"): True,
        ("ConfigMap", "mounted-map"): False,
        ("Secret", "mounted-secret"): True,
        ("Secret", "p"): True,
    }


def judged(tool, changed: object, required: bool = True):
    view = tool.view_of(pod_of(SIDECAR), MESH)
    config = tool.ObjectRef("ConfigMap", "shop", "proxy-config")
    pods = [tool.LivePod("a", NOW - timedelta(days=3), view, ()), tool.LivePod("b", NOW, view, ())]
    changed = (
        tool.ConfigChange(changed, changed, True) if isinstance(changed, datetime) else changed
    )
    expected = tool.ExpectedPod(view, {config: required}, ())
    return tool.judge(a_planned(tool), pods, expected, {config: changed})


def test_configuration_changed_after_the_pod_was_created_is_drift(tool):
    drift = judged(tool, NOW)
    assert (drift.verdict, drift.drifted_pods) == (tool.Verdict.DRIFTED, ("a",))
    (difference,) = drift.differences
    assert (
        tool.difference_text(difference)
        == "ConfigMap shop/proxy-config changed 3d after the oldest Pod was created"
    )
    assert judged(tool, NOW - timedelta(days=4)).verdict is tool.Verdict.UP_TO_DATE


def test_configuration_that_does_not_exist(tool):
    gone = tool.ApiError(404, "404 not found")
    assert judged(tool, gone).verdict is tool.Verdict.REJECTED
    assert judged(tool, gone).message == (
        "would not start: ConfigMap shop/proxy-config does not exist"
    )
    assert judged(tool, gone, required=False).verdict is tool.Verdict.UP_TO_DATE
    assert judged(tool, tool.ApiError(403, "403 no")).verdict is tool.Verdict.UNKNOWN


def test_values_are_shortened_to_the_width(tool):
    difference = tool.Difference(("mesh-proxy", "env", "X"), "a" * 300, "b" * 300)
    for columns in (60, 80, 200):
        assert len(tool.difference_text(difference, columns)) <= columns
    assert len(tool.difference_text(difference)) > 600


def test_a_templates_own_name_and_namespace_are_not_those_of_its_pods(tool):
    """Controllers take labels, annotations and finalizers over, and ignore the rest."""
    metadata = {
        "name": "web",
        "namespace": "elsewhere",
        "labels": {"app": "web"},
        "finalizers": ["x/y"],
    }
    obj = {"spec": {"template": {"metadata": metadata, "spec": {"containers": []}}}}
    live = {"metadata": {"name": "web-7d-x2", "generateName": "web-7d-"}}
    made = tool.pod_to_create(tool.ObjectRef("Deployment", "shop", "web", "apps"), obj, live)[
        "metadata"
    ]
    assert made == {
        "generateName": "web-7d-",
        "labels": {"app": "web"},
        "finalizers": ["x/y"],
        "ownerReferences": [],
    }


def test_a_pod_to_create_is_made_from_the_template_and_what_the_controller_adds(tool):
    _, live = recorded("web")
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "web", "image": "x"}], "nodeName": "never"},
    }
    made = tool.pod_to_create(
        tool.ObjectRef("Deployment", "shop", "web", "apps"), {"spec": {"template": template}}, live
    )
    reference = live["metadata"]["ownerReferences"][0]
    assert made == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {"app": "web", "pod-template-hash": "6f7884cc"},
            "annotations": {"a": "b"},
            "generateName": "web-6f7884cc-",
            "ownerReferences": [{k: v for k, v in reference.items() if k != "blockOwnerDeletion"}],
        },
        "spec": {"containers": [{"name": "web", "image": "x"}]},
    }


def test_a_stateful_sets_pod_has_its_claims(tool):
    _, live = recorded("db")
    claims = [{"metadata": {"name": "data"}}]
    spec = {
        "template": {"metadata": {}, "spec": {"containers": []}},
        "volumeClaimTemplates": claims,
        "serviceName": "db",
    }
    made = tool.pod_to_create(
        tool.ObjectRef("StatefulSet", "shop", "db", "apps"), {"spec": spec}, live
    )
    assert made["spec"]["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}
    ]
    assert (made["spec"]["hostname"], made["spec"]["subdomain"]) == ("db-0", "db")
    assert made["metadata"]["generateName"] == "db-"
