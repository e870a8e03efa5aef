"""The real control plane is built once, also if two processes ask for it at the same time."""

from __future__ import annotations

import threading

from clusters import control_plane


def test_of_two_that_build_one_waits(tmp_path, monkeypatch):
    program = tmp_path / "cache" / "program"
    monkeypatch.setattr(control_plane, "built", lambda folder, name: program)
    begun, may_end = threading.Event(), threading.Event()
    builds = []

    def build(folder, name, path, show):
        builds.append(name)
        begun.set()
        assert may_end.wait(20)
        path.touch()
        return path

    monkeypatch.setattr(control_plane, "_build", build)
    found = []

    def ask():
        found.append(control_plane.build(tmp_path, "program", print))

    first, second = (threading.Thread(target=ask) for _ in "12")
    first.start()
    assert begun.wait(20)
    second.start()
    may_end.set()
    first.join(20)
    second.join(20)
    assert (found, builds) == ([program, program], ["program"])
