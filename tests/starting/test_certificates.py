"""Certificates of API servers: what kubectl accepts must do, and nothing else."""

from __future__ import annotations

import base64
import ipaddress
import json
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import clusters.embedded
import pytest
from clusters.embedded import EmbeddedCluster
from clusters.embedded.manifests import workload
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from support import CONFIRM

Extensions = tuple[x509.ExtensionType, ...]


def certificate(name: str, key, issuer: str, signer, days: int, extensions: Extensions) -> bytes:
    """A certificate in PEM that ends in so many days, without identifiers of keys."""
    now = datetime.now(timezone.utc)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    made = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(issuer))
    made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=9))
    made = made.not_valid_after(now + timedelta(days=days))
    for extension in extensions:
        made = made.add_extension(extension, critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(pem.Encoding.PEM)


@pytest.fixture
def old_cluster(monkeypatch, tmp_path) -> Callable[..., EmbeddedCluster]:
    """old_cluster(days): a cluster whose authority was made by hand, as old EKS and GKE clusters have.

    With a `root`, the authority of the kubeconfig is an intermediate one, as that of a company's cluster.
    """

    def make(days: int = 9, root: str = "old") -> EmbeddedCluster:
        authority, own, company = (ec.generate_private_key(ec.SECP256R1()) for _ in "123")
        is_authority = (x509.BasicConstraints(ca=True, path_length=None),)
        signer = authority if root == "old" else company
        issuer = certificate("old", authority, root, signer, 9, is_authority)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        served = (x509.SubjectAlternativeName([address]),)
        leaf = certificate("api", own, "old", authority, days, served)
        file = tmp_path / "api.pem"
        plain = pem.PrivateFormat.PKCS8, pem.NoEncryption()
        file.write_bytes(own.private_bytes(pem.Encoding.PEM, *plain) + leaf)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        monkeypatch.setattr(clusters.embedded, "certificates", lambda: (context, issuer.decode()))
        return EmbeddedCluster()

    return make


def test_an_authority_without_identifiers_of_its_key_is_accepted(old_cluster, run):
    """Python 3.13 and later refuse it otherwise; kubectl does not."""
    with old_cluster() as cluster:
        cluster.namespace("shop", inject=True)
        cluster.create("shop", workload("Deployment", "web"))
        cluster.settle()
        assert run(cluster, CONFIRM).outcomes == {"shop/web": "succeeded"}


def test_a_certificate_that_has_expired_is_refused(old_cluster, run):
    with old_cluster(days=-1) as cluster:
        ended = run(cluster, "--log-format=text")
    assert ended.code == 3
    assert "certificate verify failed: certificate has expired" in ended.stderr


def test_an_authority_that_is_an_intermediate_one_is_accepted(old_cluster, run):
    """Python accepts it from 3.13 on; kubectl always does."""
    with old_cluster(root="company") as cluster:
        cluster.namespace("shop", inject=True)
        cluster.create("shop", workload("Deployment", "web"))
        cluster.settle()
        assert run(cluster, CONFIRM).outcomes == {"shop/web": "succeeded"}


def test_another_authority_is_refused(old_cluster, run, tmp_path):
    with EmbeddedCluster() as other, old_cluster(root="company") as cluster:
        config = other.kubeconfig_for()
        theirs = cluster.kubeconfig_for()["clusters"][0]["cluster"]
        data = config["clusters"][0]["cluster"]["certificate-authority-data"]
        config["clusters"][0]["cluster"] = {**theirs, "certificate-authority-data": data}
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        ended = run(str(path), "--log-format=text")
    assert ended.code == 3
    assert "certificate verify failed" in ended.stderr


def test_certificates_are_loaded_once(tool, old_cluster):
    """Threads that connect would load them again, into the context that all share."""
    with old_cluster() as cluster:
        found = tool.Cluster(tool.connect("kubectl", cluster.kubeconfig, None))
        keywords = found.pool.connection_pool_kw
        context = keywords["ssl_context"]
        assert context.cert_store_stats()["x509_ca"] == 1
        assert keywords.keys().isdisjoint({"ca_certs", "cert_file", "key_file"})
        found.request("GET", "/version")
        assert context.cert_store_stats()["x509_ca"] == 1
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_certificate_that_is_none_is_one_line(old_cluster, run, tmp_path):
    with old_cluster() as cluster:
        config = cluster.kubeconfig_for()
        text = base64.b64encode(
            b"-----BEGIN CERTIFICATE-----\nbad\n-----END CERTIFICATE-----"
        ).decode()
        config["clusters"][0]["cluster"]["certificate-authority-data"] = text
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        ended = run(str(path), "--log-format=text")
    said = "error: cannot use the certificates of the cluster: "
    assert (ended.code, ended.stderr.count("\n"), ended.stderr.startswith(said)) == (3, 1, True)
