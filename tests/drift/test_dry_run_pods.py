"""The Pod that a dry run creates: the template and what the controller adds."""

from __future__ import annotations

from support import a_ref, recorded


def to_create(tool, kind: str, name: str, obj: dict, live: dict) -> dict:
    return tool.pod_to_create(a_ref(tool, kind, "shop", name, "apps"), obj, live)


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
    made = to_create(tool, "Deployment", "web", obj, live)["metadata"]
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
    made = to_create(tool, "Deployment", "web", {"spec": {"template": template}}, live)
    reference = live["metadata"]["ownerReferences"][0]
    digest = live["metadata"]["labels"]["pod-template-hash"]
    assert made == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {"app": "web", "pod-template-hash": digest},
            "annotations": {"a": "b"},
            "generateName": f"web-{digest}-",
            "ownerReferences": [{k: v for k, v in reference.items() if k != "blockOwnerDeletion"}],
        },
        "spec": {"containers": [{"name": "web", "image": "x"}]},
    }


def test_a_stateful_sets_pod_has_its_claims(tool):
    _, live = recorded("db")
    claims = [{"metadata": {"name": "data"}}]
    spec = {
        "replicas": 3,
        "template": {"metadata": {}, "spec": {"containers": []}},
        "volumeClaimTemplates": claims,
        "serviceName": "db",
    }
    made = to_create(tool, "StatefulSet", "db", {"spec": spec}, live)
    assert made["spec"]["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-103"}}
    ]
    assert (made["spec"]["hostname"], made["spec"]["subdomain"]) == ("db-103", "db")
    assert made["metadata"]["generateName"] == "db-"
