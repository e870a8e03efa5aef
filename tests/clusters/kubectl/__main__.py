"""python -m clusters.kubectl VERSION: build a kubectl that is older than that of PyPI, and print its path.

KUBECTL=$(PYTHONPATH=tests .venv/bin/python -m clusters.kubectl 1.28) .venv/bin/python -m pytest -q -n 6 tests
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..control_plane import build

MODULES = {"1.28": "kubectl-1.28.mod", "1.34": "go.mod"}


def main(version: str) -> None:
    folder = Path(__file__).parent
    print(build(folder, "kubectl", lambda line: print(line, file=sys.stderr), MODULES[version]))


if __name__ == "__main__":
    main(sys.argv[1])
