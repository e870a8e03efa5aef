"""Build a kubectl that is older than those of PyPI, and print its path.

KUBECTL=$(PYTHONPATH=tests .venv/bin/python -m clusters.kubectl 1.28) && export KUBECTL
.venv/bin/python -m pytest -q -n 6 tests
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..control_plane import Unavailable, build

MODULES = {"1.28": "kubectl-1.28.mod", "1.34": "go.mod"}


def show(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m clusters.kubectl")
    parser.add_argument("version", choices=MODULES)
    module = MODULES[parser.parse_args().version]
    try:
        print(build(Path(__file__).parent, "kubectl", show, module))
    except Unavailable as missing:
        sys.exit(f"error: {missing}")


if __name__ == "__main__":
    main()
