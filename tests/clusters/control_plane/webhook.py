"""The injector of the embedded cluster as a mutating webhook of a real API server."""

from __future__ import annotations

import base64
import contextlib
import copy
import http.server
import json
import threading
import uuid

from clusters.embedded import certificates
from clusters.embedded.admission import Injector, Refused

from .api import Api

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Webhook(http.server.ThreadingHTTPServer):
    """Serves the injectors of all tests of this process; a namespace has the label `label` and an injector."""

    daemon_threads = True

    def __init__(self, api: Api) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.api = api
        self.label = {"tests": uuid.uuid4().hex[:8]}
        self.injectors: dict[str, Injector] = {}
        context, authority = certificates()
        self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        url = f"https://127.0.0.1:{self.server_address[1]}/inject"
        rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
        self._path = f"{WEBHOOKS}/injector-{self.label['tests']}"
        webhook = {
            "name": Injector.name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "clientConfig": {"url": url, "caBundle": base64.b64encode(authority.encode()).decode()},
            "rules": [{**rule, "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {**self.label, "sidecar-injection": "enabled"}},
        }
        body = {"metadata": {"name": f"injector-{self.label['tests']}"}, "webhooks": [webhook]}
        api.ask("POST", WEBHOOKS, body)

    def stop(self) -> None:
        self.api.ask("DELETE", self._path)
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Webhook

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        response = self._response(request)
        if response is None:
            with contextlib.suppress(OSError):  # the API server has not waited
                self.send_error(500, "sick")
            return
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        body = json.dumps({**review, "response": {"uid": request["uid"], **response}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _response(self, request: dict) -> dict | None:
        injector = self.server.injectors[request["namespace"]]
        before = request["object"]
        pod = copy.deepcopy(before)
        labels = {"sidecar-injection": "enabled"}
        try:
            injector(pod, {"metadata": {"labels": labels}}, request.get("dryRun", False))
        except Refused as refused:
            if injector.state != "denies":
                return None
            text = refused.message.partition("denied the request: ")[2]
            return {"allowed": False, "status": {"message": text, "code": refused.code}}
        operations = [
            {"op": "replace", "path": f"/{field}", "value": pod[field]}
            for field in ("metadata", "spec")
            if pod[field] != before[field]
        ]
        if not operations:
            return {"allowed": True}
        patch = base64.b64encode(json.dumps(operations).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": patch}
