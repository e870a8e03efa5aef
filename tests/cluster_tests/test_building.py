"""The real control plane is built once, also if two processes ask for it at the same time, and by its version."""

from __future__ import annotations

import threading

import pytest
from clusters import control_plane
from clusters.control_plane import inside


def test_of_two_that_build_one_waits(tmp_path, monkeypatch):
    program = tmp_path / "cache" / "program"
    monkeypatch.setattr(control_plane, "built", lambda folder, name, module: program)
    begun, may_end = threading.Event(), threading.Event()
    builds = []

    def build(folder, name, path, show, module):
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


def test_each_version_has_a_program_of_its_own(monkeypatch):
    monkeypatch.setattr(control_plane, "go_version", lambda: "go1.26.0")
    paths = {
        control_plane.built(control_plane.HERE, "control-plane", module)
        for module in control_plane.MODULES.values()
    }
    assert len(paths) == len(control_plane.MODULES)


@pytest.mark.parametrize(
    ("folder", "module", "version"),
    [
        (control_plane.HERE, "kubernetes-1.34.mod", "v1.34.4"),
        (control_plane.HERE.parent / "kubectl", "kubectl-1.28.mod", "v1.28.15"),
    ],
)
def test_a_program_knows_its_version(folder, module, version):
    assert f"version.gitVersion={version} " in control_plane._flags(folder / module)


def test_containerd_is_built_without_a_version():
    assert control_plane._flags(control_plane.CONTAINERD / "go.mod") == "-s -w"


@pytest.mark.parametrize(
    ("version", "other", "expected"),
    [
        ("1.34", "1.35", True),
        ("1.35", "1.35", False),
        ("1.9", "1.10", True),
        ("2.0", "1.35", False),
    ],
)
def test_which_version_is_older(version, other, expected):
    assert control_plane.is_older(version, other) is expected


@pytest.mark.parametrize(("is_v2", "expected"), [(True, {}), (False, {"failCgroupV1": False})])
def test_the_kubelet_accepts_cgroup_v1_only_where_there_is_no_v2(monkeypatch, is_v2, expected):
    monkeypatch.setattr(inside.os.path, "exists", lambda path: is_v2)
    assert inside.settings_of_cgroups() == expected
