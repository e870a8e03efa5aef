"""What an API server has, in one document for all of it or, as kubectl reads it before 1.30, in one for each group version.

The newer form is that of the recording discovery, the older one that of discovery-older.
"""

from __future__ import annotations

from .store import RESOURCES, Resource

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
REVIEW = Resource(
    "authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, (), ()
)
KNOWN = (*RESOURCES.values(), REVIEW)
PATHS = {"/api", "/apis"} | {
    f"/{'apis' if resource.group else 'api'}/{resource.api_version}" for resource in KNOWN
}


def is_aggregated(path: str, accept: str) -> bool:
    """Return whether a client gets one document; since Kubernetes 1.33, it must know version v2 of it."""
    return path in ("/api", "/apis") and "g=apidiscovery.k8s.io;v=v2;" in accept


def answer(path: str, accept: str) -> dict:
    """Return what one of PATHS is answered with."""
    if is_aggregated(path, accept):
        return aggregated(path)
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        found = [group(name, resources[0]) for name, resources in groups(path).items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    name = path.removeprefix("/apis/").removeprefix("/api/")
    found = [listed(resource) for resource in KNOWN if resource.api_version == name]
    # The core group's has no apiVersion
    kind = {"kind": "APIResourceList", **({} if name == "v1" else {"apiVersion": "v1"})}
    return {**kind, "groupVersion": name, "resources": found}


def groups(path: str) -> dict[str, list[Resource]]:
    """The resources below /api or /apis, by group."""
    found: dict[str, list[Resource]] = {}
    for resource in KNOWN:
        if (resource.group == "") == (path == "/api"):
            found.setdefault(resource.group, []).append(resource)
    return found


def group(name: str, resource: Resource) -> dict:
    version = {"groupVersion": resource.api_version, "version": resource.version}
    return {"name": name, "versions": [version], "preferredVersion": version}


def listed(resource: Resource) -> dict:
    """A resource as an APIResourceList has it, but for its subresources, which kubectl does not look for there."""
    found = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": verbs_of(resource),
    }
    return {**found, "shortNames": list(resource.short)} if resource.short else found


def aggregated(path: str) -> dict:
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": found[0].version,
                    "resources": list(map(discovered, found)),
                    "freshness": "Current",
                }
            ],
        }
        for group, found in groups(path).items()
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def verbs_of(resource: Resource) -> list[str]:
    if resource.group == "authorization.k8s.io":
        return ["create"]
    return [verb for verb in VERBS if (resource.plural, verb) != ("namespaces", "deletecollection")]


def discovered(resource: Resource) -> dict:
    def kind(name: str) -> dict:
        return {"group": "", "version": "", "kind": name}

    found: dict = {
        "resource": resource.plural,
        "responseKind": kind(resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.kind.lower(),
        "verbs": verbs_of(resource),
    }
    if resource.short:
        found["shortNames"] = list(resource.short)
    if resource.subresources:
        found["subresources"] = [
            {
                "subresource": name,
                "responseKind": kind(resource.kind),
                "verbs": ["get", "patch", "update"],
            }
            if name != "eviction"
            else {
                "subresource": name,
                "responseKind": {"group": "policy", "version": "v1", "kind": "Eviction"},
                "verbs": ["create"],
            }
            for name in resource.subresources
        ]
    return found
