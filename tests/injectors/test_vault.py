"""Vault's agent injector: Pods ask for it by annotations; an init container and a sidecar."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters.control_plane.remote import Shared
from clusters.injectors import Vault
from support import BOTH, CONFIRM, DRIFTED, lines, verdicts
from workloads_of_every_kind import stay_up_to_date

pytestmark = pytest.mark.injectors
WANTED = {
    "vault.hashicorp.com/agent-inject": "true",
    "vault.hashicorp.com/role": "app",
    "vault.hashicorp.com/agent-inject-secret-db": "secret/data/db",
}
OLD, NEW = "hashicorp/vault:1.18.5", "hashicorp/vault:1.20.0"
OPTIONS = (DRIFTED, *BOTH, "--sidecar-container-name=vault-agent*")


@pytest.fixture(scope="module")
def vault(shared: Shared, programs: dict) -> Iterator[Vault]:
    found = Vault(
        shared.api, programs["vault"], str(shared.folder / "kubeconfig"), shared.webhook.label
    )
    found.install()
    yield found
    found.close()


def has(image: str):
    def is_injected(pod: dict) -> bool:
        containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        agents = {c["name"]: c["image"] for c in containers if c["name"].startswith("vault-")}
        return agents == {"vault-agent": image, "vault-agent-init": image}

    return is_injected


def test_nothing_drifts_until_an_upgrade_which_is_found_exactly(vault, real_cluster, until, run):
    company = stay_up_to_date(vault, real_cluster, until, run, has(OLD), *OPTIONS, **WANTED)

    vault.start(f"-image={NEW}", "-cpu-limit=1")
    until(has(NEW), **WANTED)
    ended = run(real_cluster, *OPTIONS)
    for name in (reference.partition("/")[2] for reference in company):
        assert lines(ended, name) == [
            f"{container}.{change}"
            for container in ("vault-agent", "vault-agent-init")
            for change in (f"image: {OLD} -> {NEW}", "resources.limits.cpu: 500m -> 1")
        ]
    confirmed = run(real_cluster, *OPTIONS, CONFIRM, "--parallel-rollouts=5")
    assert confirmed.outcomes == dict.fromkeys(company, "succeeded")
    assert verdicts(run(real_cluster, *OPTIONS)) == company
    assert all(map(has(NEW), real_cluster.pods("shop") + real_cluster.pods("bank")))
