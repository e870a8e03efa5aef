"""Real sidecar injectors, as processes beside a real control plane; their webhooks are called by address.

An injector is installed as its charts or manifests say, but for what needs a running Pod: it is a process here, with
the administrator's kubeconfig, and the webhook's Service is replaced by the process's address.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import trustme
import yaml

from ..control_plane import module_folder
from ..control_plane.api import Api, ApiError

HERE = Path(__file__).parent
RUN = 'while :; do "$@" </dev/null; sleep 0.5; done & read -r _; kill -9 0'  # 0: its session
APPLY = {"kind": "application/apply-patch+yaml", "fieldManager": "tests", "force": "true"}
GROUPS = {
    "CloneSet": "/apis/apps.kruise.io/v1alpha1/namespaces/{namespace}/clonesets",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": (
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    ),
    "Instrumentation": "/apis/opentelemetry.io/v1alpha1/namespaces/{namespace}/instrumentations",
    "Namespace": "/api/v1/namespaces",
    "OpenTelemetryCollector": (
        "/apis/opentelemetry.io/v1beta1/namespaces/{namespace}/opentelemetrycollectors"
    ),
    "SidecarSet": "/apis/apps.kruise.io/v1alpha1/sidecarsets",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "StatefulSet": "/apis/apps/v1/namespaces/{namespace}/statefulsets",
    "ValidatingWebhookConfiguration": (
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    ),
}


def apply(api: Api, obj: dict) -> None:
    """Create or change an object, as `kubectl apply --server-side` does."""
    metadata = obj["metadata"]
    path = GROUPS[obj["kind"]].format(namespace=metadata.get("namespace"))
    api.ask("PATCH", f"{path}/{metadata['name']}", obj, **APPLY)


def apply_definitions(api: Api, definitions: list[dict]) -> None:
    """Create CustomResourceDefinitions, and wait until they are served: an operator that starts earlier ends."""
    for definition in definitions:
        apply(api, definition)
    wanted = {
        (d["spec"]["group"], v["name"], d["spec"]["names"]["plural"])
        for d in definitions
        for v in d["spec"]["versions"]
        if v["served"]
    }
    deadline = time.monotonic() + 60
    while missing := {found for found in wanted if not is_served(api, *found)}:
        assert time.monotonic() < deadline, f"not served: {missing}"
        time.sleep(0.1)


def is_served(api: Api, group: str, version: str, plural: str) -> bool:
    try:
        found = api.ask("GET", f"/apis/{group}/{version}")
    except (ApiError, ValueError):  # until the group is known, "404 page not found" is no JSON
        return False
    return plural in (resource["name"] for resource in found["resources"])


def free_port() -> int:
    """Return a port that stays free between two starts: none of those that the system gives to connections.

    A connection that has one, even a closed one that the system still remembers, makes a start there fail.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Process:
    """A program that runs until `stop`, or until this process ends, however it ends: then a pipe is closed.

    One that ends by itself is started again, as a kubelet does.
    """

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        self.log = folder / f"{Path(command[0]).name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", RUN, "sh", *command],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)


class Istio:
    """istiod, installed as `istioctl install --set profile=minimal` does."""

    folder, program = HERE / "istio", "istio"
    version = "1.31.1"

    def __init__(self, api: Api, program: Path, kubeconfig: str) -> None:
        self.api, self.path, self.kubeconfig = api, str(program), kubeconfig
        self.home = Path(tempfile.mkdtemp(prefix="istio-"))
        self.running: dict[str, Process] = {}
        self.ports: dict[str, int] = {}
        apply(api, namespace("istio-system"))

    def install(self, *settings: str, revision: str = "default", **environment: str) -> None:
        """Apply the charts with some settings, such as values.global.proxy.logLevel=info, and start istiod."""
        known = ["profile=minimal", "hub=docker.io/istio", f"tag={self.version}"]
        known += [f"revision={revision}"] if revision != "default" else []
        words = [self.path, "manifest", *known, *settings]
        ended = subprocess.run(words, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        port = self.ports.get(revision) or free_port()
        objects = list(filter(None, yaml.safe_load_all(ended.stdout)))
        if not self.ports:
            apply_definitions(
                self.api, [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
            )
        for obj in objects:
            if obj["kind"] == "MutatingWebhookConfiguration":
                call_by_address(obj, port)
            if obj["kind"] in GROUPS and obj["kind"] != "CustomResourceDefinition":
                apply(self.api, obj)
        self.ports[revision] = port
        self.start(revision, **environment)

    def start(self, revision: str = "default", **environment: str) -> None:
        self.stop(revision)
        home = self.home / revision
        home.mkdir(exist_ok=True)
        self.running[revision] = Process(
            home,
            self.path,
            "discovery",
            f"--kubeconfig={self.kubeconfig}",
            f"--httpsAddr=127.0.0.1:{self.ports[revision]}",
            *(f"--{kind}=127.0.0.1:0" for kind in ("httpAddr", "grpcAddr", "secureGRPCAddr")),
            "--monitoringAddr=127.0.0.1:0",
            "--ctrlz_port=0",
            REVISION=revision,
            POD_NAME=f"istiod-{revision}",
            POD_NAMESPACE="istio-system",
            CLUSTER_ID="Kubernetes",
            PILOT_CERT_PROVIDER="istiod",
            ISTIOD_CUSTOM_HOST="localhost",
            ENABLE_LEADER_ELECTION="false",
            INJECTION_WEBHOOK_CONFIG_NAME="istio-sidecar-injector"
            + (f"-{revision}" if revision != "default" else ""),
            **environment,
        )

    def stop(self, revision: str = "default") -> None:
        if revision in self.running:
            self.running.pop(revision).stop()

    def close(self) -> None:
        for revision in list(self.running):
            self.stop(revision)
        shutil.rmtree(self.home)

    def set_failure_policy(self, policy: str) -> None:
        path = f"{GROUPS['MutatingWebhookConfiguration']}/istio-sidecar-injector"
        found = self.api.ask("GET", path)
        for webhook in found["webhooks"]:
            webhook["failurePolicy"] = policy
        self.api.ask("PUT", path, found)


def namespace(name: str, **labels: str) -> dict:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def call_by_address(configuration: dict, port: int) -> None:
    """Let the API server call webhooks of this machine, not a Service: it has no network to Pods."""
    for webhook in configuration["webhooks"]:
        service = webhook["clientConfig"].pop("service")
        webhook["clientConfig"]["url"] = f"https://localhost:{port}{service['path']}"


class Webhook:
    """An injector that is one process with a certificate of its own, and is called by address."""

    folder: Path
    program: str

    def __init__(self, api: Api, program: Path, kubeconfig: str, labels: dict[str, str]) -> None:
        self.api, self.path, self.kubeconfig, self.labels = api, str(program), kubeconfig, labels
        self.home = Path(tempfile.mkdtemp(prefix=f"{self.program}-"))
        self.port = free_port()
        self._process: Process | None = None
        self._registered: list[dict] = []
        self.authority = trustme.CA()
        self.renew_certificate()

    def renew_certificate(self) -> None:
        """Issue another certificate for the webhook, by the same authority."""
        issued = self.authority.issue_cert("localhost")
        folder = (
            self.home / "k8s-webhook-server" / "serving-certs"
        )  # where controller-runtime looks
        folder.mkdir(parents=True, exist_ok=True)
        issued.private_key_pem.write_to_path(str(folder / "tls.key"))
        (folder / "tls.crt").write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
        self.certificate = str(folder / "tls.crt"), str(folder / "tls.key")

    def configure(self, configuration: dict, *names: str) -> None:
        """Register the webhooks of a configuration, or those of them that are named, for the namespaces of its tests.

        Dapr's injector answers about five times a second, which slows down the tests of other injectors beside it.
        """
        if names:
            found = [w for w in configuration["webhooks"] if w["name"] in names]
            configuration = {**configuration, "webhooks": found}
        call_by_address(configuration, self.port)
        bundle = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = bundle
            webhook["namespaceSelector"] = {"matchLabels": self.labels}
        self.register(configuration)

    def register(self, configuration: dict) -> None:
        """Create a configuration of webhooks, until `close`: then nobody answers them."""
        apply(self.api, configuration)
        self._registered.append(configuration)

    def start(self, *options: str) -> None:
        self.stop()
        self._process = Process(
            self.home, self.path, *self.options(), *options, **self.environment()
        )

    def options(self) -> list[str]:
        return []

    def environment(self) -> dict[str, str]:
        return {}

    def stop(self) -> None:
        if self._process:
            self._process.stop()
            self._process = None

    def close(self) -> None:
        for found in self._registered:
            path = f"{GROUPS[found['kind']]}/{found['metadata']['name']}"
            self.api.ask("DELETE", path)
        self.stop()
        shutil.rmtree(self.home)


class Vault(Webhook):
    """The agent injector of vault-k8s, configured as its own deploy/injector-mutating-webhook.yaml says."""

    folder, program = HERE / "vault", "vault"

    def install(self) -> None:
        path = module_folder(self.folder, "github.com/hashicorp/vault-k8s") / "deploy"
        text = (path / "injector-mutating-webhook.yaml").read_text()
        self.configure(yaml.safe_load(text))

    def options(self) -> list[str]:
        certificate, key = self.certificate
        address = f"-listen=127.0.0.1:{self.port}"
        return [f"-kubeconfig={self.kubeconfig}", address, f"-cert={certificate}", f"-key={key}"]


class OpenTelemetry(Webhook):
    """The OpenTelemetry operator with the custom resources and webhooks of its own config/."""

    folder, program = HERE / "opentelemetry", "opentelemetry-operator"
    webhooks = ("mpod.kb.io", "minstrumentation.kb.io", "mopentelemetrycollectorbeta.kb.io")

    def install(self) -> None:
        module = "github.com/open-telemetry/opentelemetry-operator"
        path = module_folder(self.folder, module) / "config"
        paths = sorted((path / "crd" / "bases").glob("*.yaml"))
        apply_definitions(self.api, [yaml.safe_load(found.read_text()) for found in paths])
        for found in yaml.safe_load_all((path / "webhook" / "manifests.yaml").read_text()):
            if found["kind"] == "MutatingWebhookConfiguration":
                found["metadata"]["name"] = "opentelemetry-operator"
                self.configure(found, *self.webhooks)

    def options(self) -> list[str]:
        nowhere = ("--metrics-addr=127.0.0.1:0", "--health-probe-addr=127.0.0.1:0")
        return [f"--webhook-port={self.port}", *nowhere]

    def environment(self) -> dict[str, str]:
        return {"KUBECONFIG": self.kubeconfig, "TMPDIR": str(self.home)}

    def create(self, namespace: str, kind: str, spec: dict, name: str = "main") -> None:
        """Create or change an OpenTelemetryCollector or an Instrumentation."""
        version = {"OpenTelemetryCollector": "v1beta1", "Instrumentation": "v1alpha1"}[kind]
        metadata = {"name": name, "namespace": namespace}
        api_version = f"opentelemetry.io/{version}"
        apply(
            self.api, {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
        )


class Dapr(Webhook):
    """Dapr's sidecar injector with the defaults of its chart, without Sentry: it is given its certificates."""

    folder, program = HERE / "dapr", "dapr"
    defaults = {
        "SIDECAR_IMAGE_PULL_POLICY": "IfNotPresent",
        "NAMESPACE": "dapr-system",
        "KUBE_CLUSTER_DOMAIN": "cluster.local",
        "SIDECAR_RUN_AS_NON_ROOT": "true",
        "SIDECAR_READ_ONLY_ROOT_FILESYSTEM": "true",
        "SIDECAR_DROP_ALL_CAPABILITIES": "false",
        "ENABLE_K8S_DOWNWARD_APIS": "false",
        "DAPR_SENTRY_ADDRESS": "dapr-sentry.dapr-system.svc.cluster.local:443",
        "ACTORS_ENABLED": "true",
        "ACTORS_SERVICE_NAME": "placement",
        "ACTORS_SERVICE_ADDRESS": "dapr-placement-server.dapr-system.svc.cluster.local:50005",
    }

    def install(self) -> None:
        path = module_folder(self.folder, "github.com/dapr/dapr") / "charts" / "dapr" / "crds"
        apply_definitions(
            self.api, [yaml.safe_load(found.read_text()) for found in sorted(path.glob("*.yaml"))]
        )
        apply(self.api, namespace("dapr-system"))
        labels = {"app": "dapr-scheduler-server"}
        pod = {"containers": [{"name": "scheduler", "image": "ghcr.io/dapr/scheduler"}]}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        metadata = {"name": "dapr-scheduler-server", "namespace": "dapr-system"}
        kind = {"apiVersion": "apps/v1", "kind": "StatefulSet"}  # which the injector waits for
        apply(self.api, {**kind, "metadata": metadata, "spec": spec})
        rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
        webhook = {
            "name": "sidecar-injector.dapr.io",
            "reinvocationPolicy": "IfNeeded",
            "clientConfig": {"service": {"path": "/mutate"}},
            "rules": [{**rule, "resources": ["pods"]}],
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        kind = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
        }
        self.configure({**kind, "metadata": {"name": "dapr-injector"}, "webhooks": [webhook]})

    def options(self) -> list[str]:
        certificate, key = self.certificate
        anchors = self.home / "anchors.pem"
        anchors.write_bytes(self.authority.cert_pem.bytes())
        files = [f"-cert={certificate}", f"-key={key}", f"-anchors={anchors}"]
        return [f"-kubeconfig={self.kubeconfig}", f"-port={self.port}", *files]

    def environment(self) -> dict[str, str]:
        return {**self.defaults, "SIDECAR_IMAGE": self.image}


class OpenKruise(Webhook):
    """OpenKruise's manager with the custom resources and webhooks of its own config/, for SidecarSets.

    It issues its certificates itself, and registers its webhooks by address where it is told one.
    """

    folder, program = HERE / "openkruise", "kruise"
    webhooks = ("mpod.kb.io", "msidecarset.kb.io", "vsidecarset.kb.io")

    def install(self) -> None:
        path = module_folder(self.folder, "github.com/openkruise/kruise") / "config"
        paths = sorted((path / "crd" / "bases").glob("*.yaml"))
        apply_definitions(self.api, [yaml.safe_load(found.read_text()) for found in paths])
        apply(self.api, namespace("kruise-system"))
        for found in yaml.safe_load_all((path / "webhook" / "manifests.yaml").read_text()):
            found["metadata"]["name"] = f"kruise-{found['metadata']['name']}"
            found["webhooks"] = [w for w in found["webhooks"] if w["name"] in self.webhooks]
            for webhook in found["webhooks"]:
                if webhook["name"] == "mpod.kb.io":
                    webhook["namespaceSelector"] = {"matchLabels": self.labels}
            self.register(found)

    def renew_certificate(self) -> None:
        """Let the manager issue another certificate, and another authority, at its next start."""
        shutil.rmtree(self.home / "certificates", ignore_errors=True)

    def options(self) -> list[str]:
        nowhere = ("--metrics-addr=0", "--health-probe-addr=0", "--enable-pprof=false")
        return ["--enable-leader-election=false", *nowhere]

    def environment(self) -> dict[str, str]:
        return {
            "KUBECONFIG": self.kubeconfig,
            "POD_NAMESPACE": "kruise-system",
            "WEBHOOK_HOST": "localhost",
            "WEBHOOK_PORT": str(self.port),
            "WEBHOOK_CERT_DIR": str(self.home / "certificates"),
        }

    def inject(self, *containers: dict, name: str = "proxy", update: dict | None = None) -> None:
        """Create or change a SidecarSet for the Pods of the tests; by default it updates none of them."""
        spec = {
            "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            "namespaceSelector": {"matchLabels": self.labels},
            "containers": list(containers),
            "updateStrategy": update or {"type": "NotUpdate"},
        }
        kind = {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "SidecarSet"}
        apply(self.api, {**kind, "metadata": {"name": name}, "spec": spec})


INJECTORS = (Istio, Vault, OpenTelemetry, Dapr, OpenKruise)
