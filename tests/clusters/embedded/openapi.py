"""The part of OpenAPI v3 that kubectl asks for before it creates an object, and the validation of fields.

kubectl reads whether the PATCH of a kind takes the parameter `fieldValidation`
(k8s.io/kubectl, pkg/validation and k8s.io/cli-runtime, pkg/resource/query_param_verifier_v3.go). The fields of a kind are
those of the client's models, which are generated from Kubernetes' OpenAPI.
"""

from __future__ import annotations

from collections.abc import Iterator

from .admission import Refused
from .store import RESOURCES, Resource

PREFIX = "/openapi/v3"


def group_path(resource: Resource) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.api_version}"


def document(path: str) -> dict:
    """The answer to a GET below /openapi/v3. KeyError if there is none."""
    paths = {group_path(resource) for resource in RESOURCES.values()}
    if path == PREFIX:
        return {
            "paths": {name: {"serverRelativeURL": f"{PREFIX}/{name}"} for name in sorted(paths)}
        }
    group = path.removeprefix(f"{PREFIX}/")
    if group not in paths:
        raise KeyError(path)
    operations = {}
    for resource in RESOURCES.values():
        if group_path(resource) == group:
            namespace = "namespaces/{namespace}/" if resource.namespaced else ""
            operations[f"/{group}/{namespace}{resource.plural}/{{name}}"] = {
                "patch": patch(resource)
            }
    info = {"title": "Kubernetes", "version": "v1.36.2"}
    return {"openapi": "3.0.0", "info": info, "paths": operations, "components": {"schemas": {}}}


def patch(resource: Resource) -> dict:
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {
        "parameters": [{"name": name, "in": "query"} for name in names],
        "responses": {},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": kind,
    }


def refuse_unknown_fields(resource: Resource, obj: dict) -> None:
    """Refuse, as with fieldValidation=Strict, an object with fields that its kind does not have."""
    from kubernetes import client

    model = getattr(client, f"V1{resource.kind}", None)
    if model is None:
        return
    known = client.ApiClient().sanitize_for_serialization(model.from_dict(obj))
    unknown = list(unknown_fields(obj, known))
    if unknown:
        found = ", ".join(f'unknown field "{field}"' for field in unknown)
        message = f"{resource.kind} in version {resource.version!r} cannot be handled as a "
        message = message.replace("'", '"') + f"{resource.kind}: strict decoding error: {found}"
        raise Refused(400, "BadRequest", message)


def unknown_fields(given: object, known: object, path: str = "") -> Iterator[str]:
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            inner = f"{path}.{key}" if path else key
            if key in known:
                yield from unknown_fields(value, known[key], inner)
            else:
                yield inner
    if isinstance(given, list) and isinstance(known, list):
        for index, (one, other) in enumerate(zip(given, known, strict=True)):
            yield from unknown_fields(one, other, f"{path}[{index}]")
