"""The tool compares quantities as text: API servers write one form of each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from clusters.embedded.quantities import canonical
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity
from support import RECORDED

WRITTEN = {  # what a manifest has, and what the API server makes of it
    "1000m": "1",
    "0.1": "100m",
    "1500m": "1500m",
    "1.5": "1500m",
    "1024Mi": "1Gi",
    "1536Mi": "1536Mi",
    "131072Ki": "128Mi",
    "65536": "65536",
    "512M": "512M",
    "0.5G": "500M",
    "1000k": "1M",
    "1e3": "1k",
    "0": "0",
}


@pytest.mark.parametrize(("text", "form"), WRITTEN.items())
def test_the_canonical_form(text, form):
    assert canonical(text) == form


@given(st.integers(1, 10**6), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_it_is_the_same_number_and_stays_as_it_is(number, unit):
    form = canonical(f"{number}{unit}")
    assert parse_quantity(form) == parse_quantity(f"{number}{unit}")
    assert canonical(form) == form


def resources_in(value: object) -> Iterator[str]:
    """The quantities inside a recorded object."""
    if isinstance(value, list):
        for item in value:
            yield from resources_in(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in ("limits", "requests") and isinstance(inner, dict):
                yield from (text for text in inner.values() if isinstance(text, str))
            yield from resources_in(inner)


def test_a_real_api_server_answers_in_this_form():
    found = {
        text
        for path in RECORDED.glob("*.json")
        for exchange in json.loads(path.read_text())
        for text in resources_in(exchange.get("response", {}).get("body"))
    }
    assert found
    assert {text: canonical(text) for text in found} == {text: text for text in found}


@pytest.mark.both
def test_api_servers_store_one_form(cluster):
    texts = {text for text in WRITTEN if text.endswith(("i", "M", "G", "k"))}
    for number, text in enumerate(sorted(texts)):
        resources = {"requests": {"memory": text, "cpu": "1000m"}}
        spec = pod_spec(container("app", resources=resources))
        cluster.create("shop", workload("Deployment", f"x{number}", spec))
    cluster.settle()
    stored = {}
    for number, text in enumerate(sorted(texts)):
        (found,) = cluster.pods("shop", f"x{number}")
        requests = found["spec"]["containers"][0]["resources"]["requests"]
        assert requests["cpu"] == "1"
        stored[text] = requests["memory"]
    assert stored == {text: WRITTEN[text] for text in texts}
