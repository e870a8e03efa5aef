"""What the tests do not ask kubectl each time is what it would say."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from support import KUBECTL, VIEW, config_view


def test_a_kubeconfig_with_a_token_is_what_kubectl_shows_of_it(cluster):
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}
    words = [KUBECTL, *VIEW]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    own = json.loads(config_view(cluster.kubeconfig))
    assert {key: json.loads(said.stdout)[key] for key in own} == own


@pytest.mark.parametrize(
    "user",
    [
        {},
        {"tokenFile": "/x"},
        {"token": "x", "as": "admin"},
        {"token": "x\n"},
        {"exec": {"command": "x"}},
    ],
)
def test_of_any_other_kubectl_is_asked(cluster, user):
    assert config_view(cluster.write_kubeconfig("other", user)) == ""
