"""What the metadata of a ConfigMap or Secret tells of its changes, and what it does not tell."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
from datetime import datetime, timezone

import pytest
from clusters.embedded.manifests import workload
from support import (
    BOTH,
    CONFIRM,
    DRIFTED,
    KUBECTL,
    TEXT,
    ask,
    config,
    container,
    partition,
    patched,
    pod_spec,
    verdicts,
)
from texts import CHANGED_LATER

CONFIG = (DRIFTED, "--include-config")


MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
PUT = "application/json"
LABELED = {"metadata": {"labels": {"x": "1"}}}


def of(**data: str | None) -> dict:
    return {"data": data}


# Who creates an object with k and l, and then changes it how; and which of these steps changed it last, by its metadata
CHANGES = {
    "created": ["helm", 0],
    "by the same manager": ["helm", ("helm", MERGE, of(k="2")), 1],
    "by another manager": ["helm", ("team", MERGE, of(k="2")), 1],
    "a label": ["helm", ("team", MERGE, LABELED), 0],
    "a label by who owns data": ["helm", ("team", MERGE, of(k="2")), ("team", MERGE, LABELED), 2],
    "nothing": ["helm", ("helm", MERGE, of(k="1")), 0],
    "a key removed": ["helm", ("remover", MERGE, of(l=None)), 0],  # which nothing tells
    "replaced": ["kubectl-create", ("kubectl-replace", PUT, of(k="2", l="1")), 1],
    "replaced, then annotated": [
        "kubectl-create",
        ("kubectl-replace", PUT, of(k="2", l="1")),
        ("kubectl-annotate", MERGE, {"metadata": {"annotations": {"x": "1"}}}),
        1,
    ],
    "binary": ["helm", ("helm", MERGE, {"binaryData": {"b": "AAE="}}), 1],
    "applied": ["helm", ("argocd", APPLY, of(k="2", l="1")), 1],
    "applied, a label": [
        "helm",
        ("argocd", APPLY, of(k="2", l="1")),
        ("argocd", APPLY, {**LABELED, **of(k="2", l="1")}),
        2,
    ],
    "applied as it is": ["helm", ("argocd", APPLY, of(k="1", l="1")), 0],
}


class Writer:
    """Writes ConfigMaps and Secrets in steps, each in a second of its own."""

    def __init__(self, cluster, kind: str, cases: dict[str, list]) -> None:
        self.cluster, self.kind, self.cases = cluster, kind, cases
        self.names = {case: f"config-{number}" for number, case in enumerate(cases)}
        self.path = f"/api/v1/namespaces/shop/{kind.lower()}s"
        self.spans: list[range] = []  # the seconds of each step

    def write(self, method: str, case: str, who: str, content_type: str, body: dict) -> None:
        name = self.names[case]
        metadata = {"name": name, **body.get("metadata", {})}
        if self.kind == "Secret":
            texts = body.get("data", {})
            encode = base64.b64encode
            data = {key: text and encode(text.encode()).decode() for key, text in texts.items()}
            body = {**body, "data": data}
        body = {"apiVersion": "v1", "kind": self.kind, **body, "metadata": metadata}
        query = f"fieldManager={who}{'&force=true' * (content_type == APPLY)}"
        path = f"{self.path}{f'/{name}' * (method != 'POST')}?{query}"
        answer = ask(self.cluster, method, path, body, content_type=content_type)
        assert answer.status < 300, answer.body

    def step(self, number: int) -> None:
        """Make one change of each object that has so many, after the second of the step before."""
        begin = int(time.time()) + 1
        self.cluster.wait_for(lambda: time.time() >= begin)
        for case, (creator, *changes, _) in self.cases.items():
            if number == 0:
                self.write("POST", case, creator, PUT, of(k="1", l="1"))
            elif number <= len(changes):
                who, content_type, body = changes[number - 1]
                self.write("PUT" if content_type == PUT else "PATCH", case, who, content_type, body)
        self.spans.append(range(begin, int(time.time()) + 1))

    def last_changes(self, tool) -> dict[str, int]:
        """By case, the number of the step that changed it last, as the tool reads its metadata."""
        found = {}
        for case, name in self.names.items():
            body = ask(self.cluster, "GET", f"{self.path}/{name}").body
            at = tool.changed_at(body).timestamp()
            (found[case],) = [number for number, span in enumerate(self.spans) if at in span]
        return found


@pytest.mark.both
@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
def test_when_configuration_changed_is_read_from_its_metadata(cluster, tool, kind):
    cases = {
        case: steps
        for case, steps in CHANGES.items()
        if (cluster.serves_apply or not case.startswith("applied"))
        and (kind == "ConfigMap" or case != "binary")
    }
    writer = Writer(cluster, kind, cases)
    for number in range(max(map(len, cases.values())) - 1):
        writer.step(number)
    assert writer.last_changes(tool) == {case: steps[-1] for case, steps in cases.items()}


@pytest.mark.parametrize(
    ("managed", "changed"),
    [
        ([{"manager": "helm", "time": "2026-11-21T16:35:52Z", "fieldsV1": {"f:data": {}}}], 52),
        ([{"manager": "flux", "operation": "Apply", "fieldsV1": {"f:data": {}}}], 48),  # no time
        ([{"manager": "helm", "time": "2026-11-21T16:35:52Z", "fieldsV1": {"f:type": {}}}], 48),
        ([{"manager": "helm", "time": "2026-11-21T16:35:52Z"}], 48),
        ([], 48),
        # As the API server writes 0001-01-01T00:00:00Z
        ([{"manager": "odd", "time": None, "fieldsV1": {"f:data": {}}}], 48),
        # The latest counts, wherever it stands
        (
            [
                {"manager": "helm", "time": "2026-11-21T16:35:52Z", "fieldsV1": {"f:data": {}}},
                {"manager": "flux", "time": "2026-11-21T16:35:50Z", "fieldsV1": {"f:data": {}}},
            ],
            52,
        ),
    ],
)
def test_what_says_nothing_leaves_the_time_of_creation(tool, managed, changed):
    metadata = {"creationTimestamp": "2026-11-21T16:35:48Z", "managedFields": managed}
    wanted = datetime(2026, 11, 21, 16, 35, changed, tzinfo=timezone.utc)
    assert tool.changed_at({"metadata": metadata}) == wanted
    if not managed:
        del metadata["managedFields"]
        assert tool.changed_at({"metadata": metadata}) == wanted


def create_shop(cluster, web: dict) -> None:
    """Create a workload, a day old, and the ConfigMap of its sidecar, which is older."""
    settings = {"name": "settings", "configMap": {"name": "settings"}}
    cluster.injector.also = {"volumes": [settings]}
    cluster.injector.container["volumeMounts"] = [{"name": "settings", "mountPath": "/etc/x"}]
    labels = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"k": "1", "l": "1"}}
    cluster.create("shop", labels)
    cluster.create("shop", web)
    cluster.settle()
    for plural, days in (("pods", 1), ("configmaps", 2)):
        for found in cluster.store.list(plural, "shop"):
            cluster.backdate(found, days * 86400, plural)


@pytest.fixture
def shop(cluster):
    create_shop(cluster, workload("Deployment", "web"))
    return cluster


def test_pods_that_a_rollout_left_are_older_than_their_configuration(cluster, run):
    create_shop(cluster, workload("StatefulSet", "web", replicas=3, **partition(1)))
    cluster.change("ConfigMap", "shop", "settings", {"data": {"k": "2"}})
    ended = run(cluster, *CONFIG, CONFIRM, "--include-statefulset")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    (summary,) = ended.of("summary")
    assert [found["name"] for found in summary["leftovers"]] == ["web-0"]


def kubectl(cluster, *words: str) -> None:
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}
    subprocess.run(
        [KUBECTL, *words, "-n", "shop"], env=environment, check=True, capture_output=True
    )


def drift(ended) -> str:
    (record,) = ended.of("drift")
    return "; ".join(found["expected"] for found in record["differences"])


@pytest.mark.parametrize("verb", ["annotate", "label"])
def test_an_annotation_or_a_label_is_no_change(shop, run, verb):
    kubectl(shop, verb, "configmap", "settings", "x=1")
    assert drift(run(shop, *CONFIG)) == ""


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"data": {"k": "2"}}, CHANGED_LATER),
        (
            {"data": {"k": "2"}, "metadata": {"labels": {"v": "2"}}},
            CHANGED_LATER,
        ),
        ({"data": {"l": None}}, ""),  # nothing tells that a key was removed
    ],
)
def test_what_is_said_of_a_change(shop, run, patch, said):
    kubectl(shop, "patch", "configmap", "settings", "--type=merge", "-p", json.dumps(patch))
    assert drift(run(shop, *CONFIG)) == said


def test_what_may_not_be_read_may_have_changed(shop, run):
    """An audit does not pass on it."""
    body = {
        "kind": "Status",
        "message": 'configmaps "settings" is forbidden: User "x"',
        "code": 403,
    }
    shop.fault(method="GET", path="/configmaps/settings", status=403, times=9, body=body)
    ended = run(shop, *CONFIG, "--fail-on-drift")
    (record,) = ended.of("drift")
    assert (ended.code, record["verdict"]) == (1, "unknown")
    assert record["message"].startswith("cannot read ConfigMap shop/settings: 403 ")


def test_configuration_counts_only_on_request(every_kind, run):
    for found in every_kind.pods("shop"):
        every_kind.backdate(found, 3 * 86400 + 60)
    every_kind.delete("ConfigMap", "shop", "proxy-config")
    every_kind.server.requests.clear()
    assert set(verdicts(run(every_kind, DRIFTED, *BOTH)).values()) == {"up_to_date"}
    asked = [r.path for r in every_kind.server.requests]
    assert [path for path in asked if "/configmaps" in path or "/secrets" in path] == []


def test_configuration_that_changed_after_the_pods_were_created(every_kind, run):
    for found in every_kind.pods("shop"):
        every_kind.backdate(found, 3 * 86400 + 60)
    assert set(verdicts(run(every_kind, *CONFIG, *BOTH)).values()) == {"drifted"}
    every_kind.server.requests.clear()
    ended = run(every_kind, *CONFIG, *BOTH, TEXT)
    assert f"  ConfigMap shop/proxy-config {CHANGED_LATER}\n" in ended.stdout
    asked = [
        r for r in every_kind.server.requests if "/configmaps" in r.path or "/secrets" in r.path
    ]
    assert [r.path for r in asked] == ["/api/v1/namespaces/shop/configmaps/proxy-config"]
    assert "as=PartialObjectMetadata;" in asked[0].headers["accept"]
    assert "kube-root-ca.crt" not in json.dumps([r.path for r in every_kind.server.requests])


def test_configuration_that_the_sidecar_reloads_by_itself_is_left_out(every_kind, run):
    for found in every_kind.pods("shop"):
        every_kind.backdate(found, 3 * 86400 + 60)
    ended = run(every_kind, *CONFIG, *BOTH, "--ignore-config=istio-*", "--ignore-config=proxy-*")
    assert set(verdicts(ended).values()) == {"up_to_date"}


def test_after_a_rollout_for_its_configuration_a_workload_is_up_to_date(every_kind, run):
    for found in every_kind.pods("shop", "web"):
        every_kind.backdate(found, 3 * 86400 + 60)
    ended = run(every_kind, *CONFIG, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert run(every_kind, *CONFIG, CONFIRM).planned == []


def test_configuration_that_is_missing_is_rejected(every_kind, run):
    every_kind.delete("ConfigMap", "shop", "proxy-config")
    ended = run(every_kind, *CONFIG, CONFIRM, *BOTH)
    assert ended.code == 0
    assert ended.planned == []
    assert patched(every_kind) == []
    assert set(verdicts(ended).values()) == {"rejected"}
    assert ended.of("drift")[0]["message"] == (
        "would not start: ConfigMap shop/proxy-config does not exist"
    )


def test_no_content_of_a_secret_is_ever_read(every_kind, run):
    every_kind.injector.also = {
        "volumes": [{"name": "proxy-config", "secret": {"secretName": "certs"}}]
    }
    every_kind.create("shop", config("certs", "Secret"))
    ended = run(every_kind, *CONFIG, "--log-level=debug")
    asked = [r for r in every_kind.server.requests if "/secrets/certs" in r.path]
    assert asked
    assert all("as=PartialObjectMetadata;" in r.headers["accept"] for r in asked)
    assert "c2VjcmV0" not in ended.stdout + ended.stderr


def test_the_configuration_that_a_sidecar_uses(cluster, run):
    """All that is required exists, and nothing that is optional."""
    cluster.injector.container |= {
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
    optional_and_not = [
        {"configMap": {"name": "env-map", "optional": True}},
        {"secret": {"name": "p"}},
    ]
    token = [{"configMap": {"name": "kube-root-ca.crt"}}]
    cluster.injector.also = {
        "volumes": [
            {"name": "m", "configMap": {"name": "mounted-map", "optional": True}},
            {"name": "s", "secret": {"secretName": "mounted-secret"}},
            {"name": "p", "projected": {"sources": optional_and_not}},
            {"name": "unused", "configMap": {"name": "not-mounted"}},
            {"name": "kube-api-access-abcde", "projected": {"sources": token}},
        ]
    }
    required = {
        "ConfigMap": ["env-map", "from-map"],
        "Secret": ["from-secret", "mounted-secret", "p"],
    }
    for kind, names in required.items():
        for name in names:
            cluster.create("shop", config(name, kind))
    app = container("app", "a:1", envFrom=[{"configMapRef": {"name": "of-the-app"}}])
    cluster.create("shop", config("of-the-app"))
    cluster.create("shop", workload("Deployment", "web", pod_spec(app)))
    cluster.settle()
    assert verdicts(run(cluster, *CONFIG)) == {"shop/web": "up_to_date"}
    asked = {r.path.partition("/shop/")[2] for r in cluster.server.requests if r.verb == "get"}
    assert {path for path in asked if re.match("configmaps|secrets", path)} == {
        *("configmaps/env-map", "configmaps/from-map", "configmaps/mounted-map"),
        *("secrets/env-secret", "secrets/from-secret", "secrets/mounted-secret", "secrets/p"),
    }
    cluster.delete("ConfigMap", "shop", "env-map")  # required in one place is required
    assert verdicts(run(cluster, *CONFIG)) == {"shop/web": "rejected"}
