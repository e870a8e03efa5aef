"""python -m control_plane NAME: whether the programs of `control-plane` or `injectors` have been built; exit code 0 or 1."""

from __future__ import annotations

import sys

from . import HERE, Unavailable, built
from .injectors import INJECTORS


def main(name: str) -> int:
    programs = [(HERE, "control-plane")]
    if name == "injectors":
        programs += [(injector.folder, injector.program) for injector in INJECTORS]
    try:
        return 0 if all(built(*program).exists() for program in programs) else 1
    except Unavailable:  # without Go
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
