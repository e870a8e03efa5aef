"""Certificates of API servers: what kubectl accepts must do, and nothing else."""

from __future__ import annotations

import ipaddress
import ssl
import sys
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
    """old_cluster(days): a cluster whose authority was made by hand, as old EKS and GKE clusters have."""

    def make(days: int = 9) -> EmbeddedCluster:
        authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in "12")
        is_authority = (x509.BasicConstraints(ca=True, path_length=None),)
        issuer = certificate("old", authority, "old", authority, 9, is_authority)
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


def test_nothing_but_the_strict_flag_is_taken_away(tool, old_cluster):
    from urllib3.util.ssl_ import create_urllib3_context

    with old_cluster() as cluster:
        tool.Cluster(tool.connect("kubectl", cluster.kubeconfig, None))
    context = create_urllib3_context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    if sys.version_info >= (3, 13):
        assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
