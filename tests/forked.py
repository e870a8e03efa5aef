"""The tool as a process that is forked from one that has imported it: to import it takes two thirds of a short run.

Tests of starting, of Python's own options and of the terminal's settings start Python instead.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.reduction import DupFd

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["forked", "at_once", "kubernetes.client", "kubernetes.config"])


class Pipe:
    """The end of a pipe that the process writes to; it is duplicated when it is sent there."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> object:
        return DupFd(self.number)

    def __setstate__(self, sent) -> None:
        self.number = sent.detach()


def run_tool(words: list[str], environment: dict[str, str], pipes: list[Pipe]) -> None:
    """Run the command line in this process, as `python words` would."""
    import at_once

    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe.number, number)
        os.close(pipe.number)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    tempfile.tempdir = None  # that of this environment
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.orig_argv = words[1:], words
    if words[1].endswith("at_once.py"):
        at_once.wait_less()
    try:
        sys.exit(at_once.module.main(words[2:]))
    finally:
        atexit._run_exitfuncs()  # which a forked process does not do by itself


class Forked:
    """As subprocess.Popen, with the output of the process as pipes of text."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.words = words
        pipes = [os.pipe() for _ in range(2)]
        sent = [Pipe(theirs) for _, theirs in pipes]
        self.process = FORKSERVER.Process(target=run_tool, args=(words, environment, sent))
        self.process.start()
        for _, theirs in pipes:
            os.close(theirs)
        self.stdout, self.stderr = (open(own) for own, _ in pipes)  # noqa: SIM115
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.words, timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
