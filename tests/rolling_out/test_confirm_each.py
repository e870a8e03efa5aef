"""--confirm-each: a question for each workload."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from types import SimpleNamespace

from support import TEXT, command, patched


class Typed:
    """The tool on a pseudo-terminal, with somebody who answers its questions."""

    def __init__(self, cluster, *options: str) -> None:
        words, environment = command(cluster.kubeconfig, TEXT, "--confirm-each", *options)
        self.own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.process = subprocess.Popen(
            words,
            env={**environment, "TERM": "xterm"},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def expect(self, text: str, times: int = 1) -> None:
        while self.text.count(text) < times:
            self.text += os.read(self.own, 65536).decode("utf-8", "replace")

    def answer(self, text: str | bytes) -> None:
        os.write(self.own, text if isinstance(text, bytes) else text.encode())

    def end(self) -> tuple[int, str]:
        while True:
            try:
                self.text += os.read(self.own, 65536).decode("utf-8", "replace")
            except OSError:
                break
        os.close(self.own)
        with self.process.stdout as stream:
            shown = stream.read()
        return self.process.wait(30), shown


QUESTION = "? [y]es/[n]o/[a]ll/[q]uit: "


def test_each_is_asked_about_one_at_a_time(deployments_a_to_f):
    typed = Typed(deployments_a_to_f, "--parallel-rollouts=3")
    for number, (name, answer) in enumerate(
        (("a", "y\n"), ("b", "N\n"), ("c", "yes\n"), ("d", "a\n")), 1
    ):
        typed.expect(QUESTION, number)
        assert typed.text.count(QUESTION) == number
        assert typed.text.endswith(f"Roll out Deployment shop/{name}{QUESTION}")
        typed.answer(answer)
    code, shown = typed.end()
    assert code == 0
    assert typed.text.count("shop       deployment/") == 4  # its plan line, once a workload
    assert "5 succeeded, 1 declined." in shown
    assert sorted(patched(deployments_a_to_f)) == list("acdef")


def test_an_invalid_key_is_answered_with_the_valid_ones(deployments_a_to_f):
    typed = Typed(deployments_a_to_f)
    typed.expect(QUESTION)
    typed.answer("what\n")
    typed.expect("Answer y, n, a or q: ")
    typed.answer("\n")
    typed.expect("Answer y, n, a or q: ", 2)
    typed.answer("q\n")
    assert typed.end()[0] == 0
    assert patched(deployments_a_to_f) == []


def test_what_is_no_text_is_no_answer(deployments_a_to_f, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    typed = Typed(deployments_a_to_f)
    typed.expect(QUESTION)
    typed.answer(b"y\xff\n")
    typed.expect("Answer y, n, a or q: ")
    typed.answer("q\n")
    code, shown = typed.end()
    assert code == 0
    assert patched(deployments_a_to_f) == []
    assert "6 not started." in shown


def test_quit_starts_nothing_more(deployments_a_to_f):
    typed = Typed(deployments_a_to_f)
    typed.expect(QUESTION)
    typed.answer("y\n")
    typed.expect(QUESTION, 2)
    typed.answer("q\n")
    code, shown = typed.end()
    assert code == 0
    assert patched(deployments_a_to_f) == ["a"]
    assert "1 succeeded, 5 not started." in shown
    assert "not started:\n  quit:\n    Deployment shop/b, " in shown


def test_the_end_of_input_is_quit(deployments_a_to_f):
    typed = Typed(deployments_a_to_f)
    typed.expect(QUESTION)
    typed.answer("\x04")
    code, shown = typed.end()
    assert code == 0
    assert patched(deployments_a_to_f) == []
    assert "6 not started." in shown


def test_ctrl_c_at_the_question_ends_it(deployments_a_to_f):
    typed = Typed(deployments_a_to_f)
    typed.expect(QUESTION)
    typed.process.send_signal(signal.SIGINT)
    code, shown = typed.end()
    assert code == 130
    assert patched(deployments_a_to_f) == []
    assert "6 not started." in shown
    assert not any("[q]uit" in line and "interrupted" in line for line in typed.text.splitlines())


def test_a_signal_just_before_the_wait_for_an_answer_is_noticed(tool, monkeypatch):
    """The handler has run, and no system call of this thread is interrupted."""
    own, theirs = pty.openpty()
    with open(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        signals = SimpleNamespace(received=[])
        scheduler = SimpleNamespace(signals=signals)
        threading.Timer(0.1, signals.received.append, [signal.SIGINT]).start()
        assert tool.Scheduler.read_line(scheduler) == ""
    os.close(own)


def test_the_differences_stand_above_the_question(deployments_a_to_f):
    deployments_a_to_f.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    typed = Typed(deployments_a_to_f, "--only-drifted")
    typed.expect(QUESTION)
    assert "\r\nistio-proxy  image  docker.io/istio/proxyv2:1.26.2 -> 1.27.0\r\n" in typed.text
    typed.answer("q\n")
    assert typed.end()[0] == 0
