"""The differences between two Pods' sidecars: pure functions, recorded Pods, generated sidecars."""

from __future__ import annotations

import copy
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import (
    MESH,
    SIDECAR,
    differences,
    pod_of,
    recorded,
    sidecar_differences,
    view,
    view_of,
)


@pytest.mark.parametrize("name", ["web", "db", "agent"])
def test_a_recorded_live_pod_is_up_to_date(tool, name):
    fresh, live = recorded(name)
    assert view_of(tool, live, MESH) == view_of(tool, fresh, MESH)


def test_the_replica_set_of_a_rollout_is_no_difference(tool):
    """OpenTelemetry's operator writes its name and UID into a variable."""

    def pod(number: int, deployment: str = "web") -> dict:
        name = f"{deployment}-5d8f7c6b9{number}"
        uid = f"0f9c0000-0000-4000-8000-00000000000{number}"
        value = f"k8s.deployment.name={deployment},k8s.replicaset.name={name},uid={uid}"
        found = pod_of({**SIDECAR, "env": [{"name": "ATTRIBUTES", "value": value}]})
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": uid}
        owner["controller"] = True
        labels = {"pod-template-hash": f"5d8f7c6b9{number}"}
        found["metadata"] |= {"labels": labels, "ownerReferences": [owner]}
        return found

    assert differences(tool, pod(1), pod(2)) == []
    assert len(differences(tool, pod(1), pod(1, "other"))) == 1


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
    assert view_of(tool, live, MESH) == view_of(tool, shuffled(fresh, random.Random(1)), MESH)
    assert differences(tool, live, {"metadata": {}, "spec": {"containers": []}}) == [
        "would be removed: mesh-proxy 1.0.0"
    ]


def test_an_upgrade_of_the_injector_is_exactly_its_differences(tool):
    live, fresh = injected(1), injected(2)
    assert differences(tool, live, fresh) == [
        'mesh-proxy  lifecycle  <none> -> {"preStop": {"exec": {"command": ["agent", "drain"]}}}',
        "mesh-proxy  changes from a regular container to a native sidecar",
        "mesh-proxy  mount /var/run/crl added",
        'mesh-proxy  volume /var/run/crl  <none> -> {"configMap": {"name": "crl", "optional": true}}',
    ]


def test_a_native_sidecar_of_the_users_own_is_not_compared(tool):
    live, fresh = injected(1, users_own=True), injected(2, users_own=True)
    fresh["spec"]["initContainers"][1] = {**fresh["spec"]["initContainers"][1], "image": "logger:2"}
    assert all(line.startswith("mesh-proxy  ") for line in differences(tool, live, fresh))


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


def shuffled(value: object, chance: random.Random, key: str = "") -> object:
    """The same in another spelling: order, empty fields, defaults."""
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
    return value


@given(SIDECARS, st.randoms(use_true_random=False), st.booleans())
def test_equals_in_another_spelling_are_equal(tool, sidecar, chance, native):
    live, fresh = pod_of(sidecar, native), shuffled(pod_of(sidecar, native), chance)
    assert differences(tool, live, fresh) == []
    assert view_of(tool, live, MESH) == view_of(tool, fresh, MESH)


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
    views = view_of(tool, live, MESH), view_of(tool, fresh, MESH)
    found = list(sidecar_differences(tool, *views, (), frozenset(), True).values())
    touched = {difference.path[1] for difference in found}
    expected = {field, "volumes"} if field == "volumeMounts" else {field}
    assert field in touched
    assert touched <= expected


@given(SIDECARS)
def test_where_it_stands_is_a_difference(tool, sidecar):
    (line,) = differences(tool, pod_of(sidecar), pod_of(sidecar, native=True))
    assert line == "mesh-proxy  changes from a regular container to a native sidecar"


@given(SIDECARS, SIDECARS)
def test_differences_are_mirrored(tool, one, other):
    there = list(tool.find_differences(view(tool, one), view(tool, other)))
    back = list(tool.find_differences(view(tool, other), view(tool, one)))
    assert (
        bool(there)
        == bool(back)
        == (view_of(tool, pod_of(one), MESH) != view_of(tool, pod_of(other), MESH))
    )


def test_resources_changed_in_place_are_no_drift(tool):
    live, fresh = (
        pod_of(SIDECAR),
        pod_of({**SIDECAR, "resources": {"requests": {"cpu": "1"}}, "image": "x:2"}),
    )
    views = view_of(tool, live, MESH), view_of(tool, fresh, MESH)
    found = {
        (name, section): [
            d.path[1]
            for d in sidecar_differences(
                tool, *views, ((name, "resources", section, "cpu"),), frozenset(), True
            ).values()
        ]
        for name, section in (
            ("app", "requests"),
            ("mesh-proxy", "requests"),
            ("mesh-proxy", "limits"),
        )
    }
    both = ["image", "resources"]
    assert found == {
        ("app", "requests"): both,
        ("mesh-proxy", "requests"): ["image"],
        ("mesh-proxy", "limits"): both,
    }
