"""The tool as a process that does not wait: for containers to stay ready, or to ask an injector or a gate again."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "sidecar-rollout.py"

spec = importlib.util.spec_from_file_location("sidecar_rollout", SCRIPT)
module = importlib.util.module_from_spec(spec)
sys.modules["sidecar_rollout"] = module
spec.loader.exec_module(module)


def wait_less() -> None:
    module.ANSWERS_APART = 0.0
    module.RETRIES = int(os.environ.get("RETRIES", module.RETRIES))
    module.SETTLE = float(os.environ.get("SETTLE", module.SETTLE))
    module.Gate.VALID_FOR = 0.0
    module.READY_FOR = 0.2


if __name__ == "__main__":
    wait_less()
    sys.exit(module.main(sys.argv[1:]))
