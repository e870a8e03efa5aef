"""Make the README's pictures from what the demo shows on a terminal: .venv/bin/python tests/tools/pictures.py

They are in .github/. A test says if their text is not today's.
"""

from __future__ import annotations

import fcntl
import html
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

TOP = Path(__file__).parents[2]
WIDTH = 110
PICTURES = {
    "dry-run": ["--only-drifted", "--include-namespace=shop", "--include-namespace=data"],
    "result": ["--only-drifted", "--confirm=true", "--break-injector-after=2"],
}
# What is another one each time, and what is shown
SAME = (
    (r"\d\d:\d\d:\d\dZ", "12:00:00Z"),
    (r"\d{4}-\d\d-\d\dT", "2026-11-25T"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:6443"),
    (r"/\S*/python\S* \S*/sidecar-rollout\.py", "sidecar-rollout.py"),
    (r" --kubectl \S+ --kubeconfig=\S+", ""),
    (r"\S*/embedded-cluster-[^/]+/config", "~/.kube/config"),
    (r"\bErrImagePull\b", "ImagePullBackOff"),  # they take turns
    (r"\b(in|finished,) [\dms.]+", r"\1 20s"),
    (r"-[0-9a-f]{8,10}(?=-[a-z0-9]{5}\b)", "-6f7884cc9d"),
)
RANDOM = "bcdfghjklmnpqrstvwxz2456789"  # of what Kubernetes makes the ends of names


def shown(options: list[str], width: int = WIDTH) -> str:
    """What the demo shows on a terminal, with its colors: standard output, so not the log."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width)}
    environment.pop("NO_COLOR", None)
    words = [sys.executable, str(TOP / "tests" / "demo.py"), *options]
    process = subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=child, stderr=subprocess.DEVNULL
    )
    os.close(child)
    parts = []
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # Linux: the other side was closed
            break
        if not part:
            break
        parts.append(part)
    process.wait()
    os.close(parent)
    text = b"".join(parts).decode().replace("\r\n", "\n")
    for pattern, same in SAME:
        text = re.sub(pattern, same, text)
    ends = dict.fromkeys(re.findall(rf"-([{RANDOM}]{{5}})\b", text))
    assert len(ends) <= len(RANDOM)
    for end, letter in zip(ends, RANDOM, strict=False):
        text = text.replace(f"-{end}", f"-x2x4{letter}")
    if "--confirm=true" in options:  # its end: the plan is in the other picture
        lines = text.split("\n")
        first = next(n for n, line in enumerate(lines) if plain(line).startswith("lost sidecar:"))
        text = "\n".join(lines[first:])
    return text.strip() + "\n"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


def picture(name: str, text: str) -> str:
    """The picture of a terminal, as SVG, with fonts that are there."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(text), no_wrap=False)
    options = " ".join(PICTURES[name])
    svg = console.export_svg(title=f"tests/demo.py {options}", unique_id=name)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def text_of(svg: str) -> str:
    """The text of a picture."""
    parts = re.findall(r"<text [^>]*>([^<]*)</text>", svg)
    return html.unescape("".join(parts)).replace("\xa0", " ")


def path_of(name: str) -> Path:
    return TOP / ".github" / f"{name}.svg"


def main() -> int:
    for name, options in PICTURES.items():
        path_of(name).write_text(picture(name, shown(options)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
