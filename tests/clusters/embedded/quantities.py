"""Quantities as the API server writes them: it reads `1000m` and stores `1`."""

from __future__ import annotations

from kubernetes.utils.quantity import parse_quantity

BINARY = [f"{prefix}i" for prefix in "EPTGMK"]
DECIMAL = ["E", "P", "T", "G", "M", "k"]


def canonical(text: str) -> str:
    """The canonical form (k8s.io/apimachinery/pkg/api/resource, Quantity): the greatest suffix of the same sort with
    which the number is whole."""
    value = parse_quantity(text)
    if value % 1:
        return f"{int(value * 1000)}m"
    is_binary = str(text).endswith("i")
    base, suffixes = (1024, BINARY) if is_binary else (1000, DECIMAL)
    number = int(value)
    for power, suffix in zip(range(len(suffixes), 0, -1), suffixes, strict=True):
        if number and number % base**power == 0:
            return f"{number // base**power}{suffix}"
    return str(number)


def canonical_resources(resources: dict) -> dict:
    """The resources of a container with all quantities in this form."""
    for field in {"limits", "requests"} & resources.keys():
        resources[field] = {name: canonical(str(text)) for name, text in resources[field].items()}
    return resources
