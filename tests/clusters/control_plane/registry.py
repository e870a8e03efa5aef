"""A container registry with images made in memory: busybox, and a script that does what words in the image's tag say.

| in the tag | the container, or the registry |
| --- | --- |
| exitsN, crashing | ends N seconds after its start with exit code 1; at once |
| readyN, neverready | is ready N seconds after its start; never |
| ignoresterm | ends when its grace period does |
| noprogram | has no such program |
| pullN | is pulled for N seconds |
| broken, denied, busy, down | does not exist (404); is answered with 403, 429, 500 |

A container listens on port 8080, or 15021 if its repository's name has `proxy`, for `GET /ready`.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
import time
from pathlib import Path

ENTRY = Path(__file__).parent / "node" / "entry.sh"
PORT = 5000
MEDIA = "application/vnd.docker.distribution.manifest.v2+json"
PROGRAMS = ("sh", "sleep", "mkdir", "rm", "cat", "echo", "ls", "ps", "kill", "env", "tee")
REFUSED = {
    "broken": (404, "MANIFEST_UNKNOWN", "manifest unknown"),
    "denied": (403, "DENIED", "requested access to the resource is denied"),
    "busy": (429, "TOOMANYREQUESTS", "You have reached your pull rate limit"),
    "down": (500, "UNKNOWN", "internal error"),
}


def number_after(word: str, tag: str) -> str:
    """Return the number after a word of a tag, or an empty text."""
    found = re.search(rf"{word}(\d+)", tag)
    return found[1] if found else ""


def behavior(name: str, tag: str) -> dict:
    """Return the configuration of an image, by its name."""
    variables = {
        "PORT": "15021" if "proxy" in name else "8080",
        "READY_AFTER": "never" if "neverready" in tag else number_after("ready", tag) or "0",
        "EXIT_AFTER": "0" if "crashing" in tag else number_after("exits", tag),
        "IGNORE_TERM": "yes" if "ignoresterm" in tag else "",
        "TAG": f"{name}:{tag}",  # so that each tag has a digest of its own
    }
    program = "/no/such/program" if "noprogram" in tag else "/entry"
    if "sandbox" in name:  # the process that holds a Pod's network; it listens nowhere
        return {"Entrypoint": ["/bin/sleep", "2147483647"]}
    return {
        "Env": ["PATH=/bin", *(f"{name}={value}" for name, value in variables.items() if value)],
        "Entrypoint": [program],
    }


def layer(files: dict[str, tuple[bytes | str | None, int]]) -> bytes:
    """Return a layer: files by path, with their content (a text is a link, None a folder) and mode."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for path, (content, mode) in files.items():
            info = tarfile.TarInfo(path)
            info.mode = mode
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return written.getvalue()


class Registry(http.server.ThreadingHTTPServer):
    """Answers as Docker's registry API does, for any image but those whose tag says otherwise."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", PORT), Handler)
        self.folder = (
            folder  # with layers of other images, NAME.tar, and their configuration, NAME.json
        )
        self.blobs: dict[str, bytes] = {}
        self.own: dict[str, dict] = {}  # layers of that folder
        links = {f"bin/{name}": ("busybox", 0o777) for name in PROGRAMS}
        self.layers = self.add_layer(
            layer(
                {
                    "bin": (None, 0o755),
                    "bin/busybox": (Path("/bin/busybox").read_bytes(), 0o755),
                    "tmp": (None, 0o1777),
                    "etc": (None, 0o755),
                    "etc/passwd": (b"root:x:0:0:root:/:/bin/sh\n", 0o644),
                    **links,
                    "entry": (ENTRY.read_bytes(), 0o755),
                }
            )
        )

    def add(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def add_layer(self, tar: bytes) -> dict:
        """Return a layer's digest as it is stored, its size, and the digest of what is in it."""
        stored = gzip.compress(tar, 1, mtime=0)
        inside = f"sha256:{hashlib.sha256(tar).hexdigest()}"
        return {"digest": self.add(stored), "size": len(stored), "inside": inside}

    def manifest(self, name: str, tag: str) -> bytes:
        own, settings = self.layers, behavior(name, tag)
        path = self.folder / f"{name}.tar"
        if path.exists():
            own = self.own.get(name) or self.own.setdefault(name, self.add_layer(path.read_bytes()))
            settings = json.loads(path.with_suffix(".json").read_text())
        root = {"type": "layers", "diff_ids": [own["inside"]]}
        config = {"architecture": "amd64", "os": "linux", "config": settings, "rootfs": root}
        raw = json.dumps(config).encode()
        kind = "application/vnd.docker"
        image = {"mediaType": f"{kind}.container.image.v1+json", "size": len(raw)}
        stored = {"mediaType": f"{kind}.image.rootfs.diff.tar.gzip", "size": own["size"]}
        found = {
            "schemaVersion": 2,
            "mediaType": MEDIA,
            "config": {**image, "digest": self.add(raw)},
            "layers": [{**stored, "digest": own["digest"]}],
        }
        return json.dumps(found).encode()

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/?]+)(\?.*)?", self.path)
        if not found:
            self.answer(200, b"{}")
            return
        name, kind, reference, _ = found.groups()
        if reference in self.server.blobs:
            media = MEDIA if kind == "manifests" else "application/octet-stream"
            self.answer(200, self.server.blobs[reference], media, reference)
            return
        seconds = number_after("pull", reference)
        time.sleep(int(seconds or 0))
        for word, (status, code, message) in REFUSED.items():
            if word in reference:
                self.answer(
                    status, json.dumps({"errors": [{"code": code, "message": message}]}).encode()
                )
                return
        manifest = self.server.manifest(name, reference)
        self.answer(200, manifest, MEDIA, self.server.add(manifest))

    do_HEAD = do_GET

    def answer(
        self, status: int, body: bytes, kind: str = "application/json", digest: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        with contextlib.suppress(OSError):
            if self.command != "HEAD":
                self.wfile.write(body)
