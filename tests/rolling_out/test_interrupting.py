"""SIGINT and SIGTERM: the tool waits for rollouts in progress; at the second signal, it lists them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from clusters.embedded.kubelet import READY_AFTER
from clusters.embedded.manifests import workload
from support import CONFIRM, DEBUG, cutoff, is_running, let_ready, no_signals, raises_ended
from texts import INTERRUPT_AGAIN, NO_NEW_ROLLOUTS

pytestmark = pytest.mark.both


@pytest.fixture
def deployments_a_to_c(cluster):
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    return cluster


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_starts_nothing_new_and_waits_for_what_is_in_progress(
    deployments_a_to_c, start, number, code
):
    deployments_a_to_c.kubelet.ready_after = 60
    running = start(deployments_a_to_c, CONFIRM, DEBUG)
    running.wait_for_log("running kubectl")
    running.signal(number)
    running.wait_for_log(NO_NEW_ROLLOUTS)
    let_ready(deployments_a_to_c)
    ended = running.finish()
    assert ended.code == code
    assert ended.outcomes == {
        "shop/a": "succeeded",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }
    assert ended.summary["exit_code"] == code
    assert ended.summary["planned"] == 3
    assert (
        f"interrupted: {NO_NEW_ROLLOUTS}; waiting for 1 in progress ({INTERRUPT_AGAIN})"
        in ended.stderr
    )


def test_the_second_signal_ends_kubectl_and_names_what_is_in_progress(deployments_a_to_c, start):
    deployments_a_to_c.create(
        "shop", workload("Deployment", "0-first", annotations={READY_AFTER: "0.02"})
    )
    deployments_a_to_c.settle()
    deployments_a_to_c.kubelet.ready_after = 60
    running = start(deployments_a_to_c, CONFIRM, DEBUG, "--parallel-rollouts=2")
    running.wait_for_log("running kubectl", times=3)
    running.signal(signal.SIGINT)
    running.wait_for_log(INTERRUPT_AGAIN)
    kubectls = running.wait_for_kubectls(2)
    running.signal(signal.SIGINT)
    ended = running.finish(timeout=10)
    assert ended.code == 130
    assert ended.outcomes == {
        "shop/0-first": "succeeded",
        "shop/a": "interrupted",
        "shop/b": "interrupted",
        "shop/c": "not_started",
    }
    ((told, seconds),) = [
        (r["message"], r["seconds"]) for r in ended.of("result") if r["name"] == "a"
    ]
    assert told.endswith("stopped waiting; it may go on")
    assert 0 < seconds < ended.summary["seconds"] + 0.1
    assert not any(map(is_running, kubectls))


def test_nothing_is_patched_after_the_second_signal(deployments_a_to_c, start):
    running = start(deployments_a_to_c, CONFIRM)
    plan_is_read = deployments_a_to_c.fault(path="/endpointslices", release=threading.Event())
    assert plan_is_read.reached.wait(20)
    before_the_patch = deployments_a_to_c.fault(path="/deployments/a", release=threading.Event())
    plan_is_read.release.set()
    assert before_the_patch.reached.wait(20)
    running.signal(signal.SIGINT)
    running.wait_for_log(INTERRUPT_AGAIN)
    running.signal(signal.SIGINT)
    running.wait_for_log("rollout interrupted")
    before_the_patch.release.set()
    ended = running.finish(timeout=10)
    assert ended.outcomes == {
        "shop/a": "interrupted",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }
    assert [r for r in deployments_a_to_c.server.requests if r.method == "PATCH"] == []


def test_a_signal_before_anything_is_changed_ends_at_once(deployments_a_to_c, start):
    held = deployments_a_to_c.fault(path="/api/v1/pods", release=threading.Event())
    running = start(deployments_a_to_c, CONFIRM, "--log-format=text")
    assert held.reached.wait(20)
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=5)
    held.release.set()
    assert ended.code == 143
    assert ended.stdout.startswith("Context ")
    assert ended.stdout.count("\n") == 1
    assert ended.stderr.endswith("interrupted (nothing was changed)\n")


def test_kubectl_is_not_in_the_terminals_process_group(deployments_a_to_c, start):
    """Ctrl-C reaches the whole group of the terminal: kubectl must live on, so that its rollout is waited for."""
    deployments_a_to_c.kubelet.ready_after = 60
    running = start(deployments_a_to_c, CONFIRM, DEBUG)
    (kubectl,) = running.wait_for_kubectls(1)
    assert os.getpgid(kubectl) != os.getpgid(running.process.pid)
    running.signal(signal.SIGINT)
    running.wait_for_log(NO_NEW_ROLLOUTS)
    let_ready(deployments_a_to_c)
    assert running.finish().outcomes["shop/a"] == "succeeded"


def test_the_same_command_again_resumes_where_it_stopped(deployments_a_to_c, start, run):
    deployments_a_to_c.kubelet.ready_after = 60
    cut_off = cutoff()
    running = start(deployments_a_to_c, CONFIRM, cut_off, DEBUG)
    running.wait_for_log("running kubectl")
    running.signal(signal.SIGINT)
    running.wait_for_log(NO_NEW_ROLLOUTS)
    let_ready(deployments_a_to_c)
    assert running.finish().outcomes["shop/a"] == "succeeded"
    again = run(deployments_a_to_c, CONFIRM, cut_off)
    assert (again.code, again.outcomes) == (0, {"shop/b": "succeeded", "shop/c": "succeeded"})
    patched = [
        r.path.rpartition("/")[2] for r in deployments_a_to_c.server.requests if r.method == "PATCH"
    ]
    assert patched == ["a", "b", "c"]
    assert run(deployments_a_to_c, CONFIRM, cut_off).planned == []


def test_signals_that_a_parent_ignores_stay_ignored(deployments_a_to_c):
    """A shell gives its background jobs SIGINT ignored, nohup SIGHUP."""
    from support import command

    deployments_a_to_c.kubelet.ready_after = 1.0
    words, environment = command(deployments_a_to_c.kubeconfig, CONFIRM, DEBUG)
    process = subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    with process.stderr as log:
        for line in log:
            if "Waiting for deployment" in line:
                process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert [r.method for r in deployments_a_to_c.server.requests].count("PATCH") == 3


def test_what_was_told_before_the_second_signal_is_not_lost(deployments_a_to_c, start, tmp_path):
    """While nobody reads its log the main thread stands still, and the workers go on."""
    from support import command

    words, environment = command(
        deployments_a_to_c.kubeconfig, CONFIRM, "--parallel-rollouts=3", "--log-level=debug"
    )
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deployments_a_to_c.wait_for(
        lambda: len([r for r in deployments_a_to_c.server.requests if r.method == "PATCH"]) == 3, 20
    )
    deployments_a_to_c.settle()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    outcomes = [json.loads(line)["outcome"] for line in out.splitlines() if '"result"' in line]
    assert len(outcomes) == 3
    assert "not_started" not in outcomes


def test_a_signal_while_a_credential_plugin_runs_ends_at_once(deployments_a_to_c, tmp_path):
    from support import command

    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\ntouch {tmp_path}/runs\nexec sleep 30\n")
    plugin.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    user = {"exec": {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}}
    words, environment = command(deployments_a_to_c.write_kubeconfig("exec", user), CONFIRM)
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deployments_a_to_c.wait_for(lambda: (tmp_path / "runs").exists(), 20)
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "interrupted (nothing was changed)" in log


def test_the_second_signal_ends_the_recheck_as_well(deployments_a_to_c, start):
    """The last look at what timed out has its own kubectl, which may hang."""
    deployments_a_to_c.kubelet.ready_after = 60
    options = ["--parallel-rollouts=3", "--timeout=1s", "--log-level=debug"]
    running = start(deployments_a_to_c, CONFIRM, *options)
    running.wait_for_log("will recheck", times=3)  # the last one at once
    running.signal(signal.SIGINT)
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=5)
    assert set(ended.outcomes.values()) == {"timed_out"}
    assert len(ended.outcomes) == 3


def test_after_the_second_signal_not_even_a_moment_is_waited(tool):
    signals = no_signals(tool)
    signals.received = [signal.SIGINT]
    signals.wait(0)
    signals.wait(60, until=signals.why_stopped)
    signals.received.append(signal.SIGINT)
    with raises_ended(tool):
        signals.wait(0)


def test_signals_at_once_raise_once(tool, monkeypatch):
    """An exception on the way out would be a traceback of what is being cleaned up."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    signals = tool.Signals()
    with pytest.raises(tool.Interrupted):
        signals.note(signal.SIGTERM, None)
    signals.note(signal.SIGINT, None)
    assert signals.exit_code == 143


def test_ctrl_c_twice_while_the_cluster_is_read(deployments_a_to_c, start):
    held = deployments_a_to_c.fault(path="/api/v1/pods", release=threading.Event())
    running = start(deployments_a_to_c, "--log-format=text")
    assert held.reached.wait(20)
    running.signal(signal.SIGINT)
    running.signal(signal.SIGINT)
    ended = running.finish()
    held.release.set()
    said = ended.stderr.splitlines()
    assert ended.code == 130
    assert len(said) == 2
    assert said[1].endswith("interrupted (nothing was changed)")


def test_a_signal_in_the_end_of_an_object_shows_no_traceback(tool, monkeypatch, capfd):
    """Python cannot raise there what the handler of the signal raises: it shows a traceback and goes on."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    handlers = {number: signal.getsignal(number) for number in (1, 2, 15)}
    try:
        signals = tool.Signals()

        class Ends:
            def __init__(self, error: type) -> None:
                self.error = error

            def __del__(self) -> None:
                if self.error is tool.Interrupted:
                    os.kill(os.getpid(), signal.SIGINT)
                else:
                    raise self.error

        Ends(KeyError)
        assert "KeyError" in capfd.readouterr().err
        Ends(tool.Interrupted)
        Ends(OSError)  # of a socket whose creation the signal has interrupted
        assert signals.exit_code == 130
        assert capfd.readouterr().err == ""
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("numbers", "is_second"),
    [
        ([signal.SIGHUP, signal.SIGHUP], False),  # a terminal that was closed
        ([signal.SIGINT, signal.SIGHUP], False),
        ([signal.SIGHUP, signal.SIGINT], True),
        ([signal.SIGINT, signal.SIGINT], True),
    ],
)
def test_sighup_is_never_the_second_signal(tool, numbers, is_second):
    signals = no_signals(tool)
    signals.may_interrupt = False
    for number in numbers:
        signals.note(number, None)
    assert signals.is_second() is is_second
