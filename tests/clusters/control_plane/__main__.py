"""python -m clusters.control_plane NAME: whether `control-plane`, `node` or `injectors` can run as it is; exit code 0 or 1.

Their programs have been built, and for `node` this machine has what it needs.
"""

from __future__ import annotations

import sys

from ..injectors import INJECTORS
from . import HERE, Unavailable, built
from .node import require


def main(name: str) -> int:
    programs = [(HERE, "control-plane")]
    if name == "injectors":
        programs += [(injector.folder, injector.program) for injector in INJECTORS]
    try:
        if name == "node":
            require()
        return 0 if all(built(*program).exists() for program in programs) else 1
    except Unavailable:  # without Go, for example
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
