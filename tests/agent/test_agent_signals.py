"""A5 on one node: a signal to the agent stops the workers, in time, and it was no failure."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.harness.one_agent import OneAgent, agent, eventually, free_port
from tests.harness.proc import is_alive
from tests.harness.stubborn import STUBBORN

TELL = "tell('pid', os.getpid())\n"
SLEEPS = "import os, signal, sys, time\n" + TELL + "time.sleep(600)"
CLEANS_UP = """
import os, signal, sys, time
def clean_up(number, frame):
    tell("caught", number)
    time.sleep(float(sys.argv[1]))
    tell("clean")
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, clean_up)
tell("pid", os.getpid())
while True: time.sleep(0.1)
"""


def pids(run: OneAgent, count: int = 1) -> list[int]:
    return [int(pid) for pid in run.wait_told("pid", count)]


def exists(pid: int) -> bool:
    """Whether a process runs or is a zombie."""
    return os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize(
    ("number", "chosen"),
    [
        (signal.SIGTERM, ()),
        (signal.SIGHUP, ()),
        (signal.SIGQUIT, ()),
        (signal.SIGINT, ()),
        (signal.SIGUSR1, ("--signals-to-handle=SIGUSR1,SIGTERM",)),
    ],
)
@pytest.mark.executed
def test_A5_workers_get_the_signal_and_time_to_clean_up(
    tmp_path: Path, number: int, chosen: tuple[str, ...]
) -> None:
    options = ("--nproc-per-node=2", "--max-restarts=3", *chosen)
    with agent(tmp_path, *options, program=CLEANS_UP, arguments=["0.2"]) as run:
        pids(run, 2)
        run.send(number)
        assert run.wait() == 128 + number
        assert run.told("caught") == [str(int(number))] * 2
        assert run.out.count("clean") == 2
    assert signal.Signals(number).name in run.said[-1]
    assert len(run.told("pid")) == 2


def test_A5_a_second_signal_skips_the_grace(tmp_path: Path) -> None:
    with agent(tmp_path, "--shutdown-timeout=600", program=STUBBORN) as run:
        found = pids(run, 3)
        run.send(signal.SIGTERM)
        run.wait_said("SIGTERM")
        run.send(signal.SIGTERM)
        assert all(map(is_alive, found))
        run.send_again(signal.SIGTERM)
        assert run.wait() == 143
        assert not [pid for pid in found if is_alive(pid)]


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGTERM, signal.SIGINT, 143),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGHUP, signal.SIGQUIT, 129),
    ],
)
def test_A5_a_second_signal_of_any_kind_does_not_begin_the_grace_anew(
    tmp_path: Path, first: int, second: int, code: int
) -> None:
    with agent(tmp_path, "--shutdown-timeout=600", program=STUBBORN) as run:
        found = pids(run, 3)
        run.send(first)
        run.wait_said(signal.Signals(first).name)
        run.send_again(second)
        assert run.wait() == code
        assert not [pid for pid in found if is_alive(pid)]


def test_A5_workers_that_end_in_their_grace_are_not_waited_for(tmp_path: Path) -> None:
    with agent(tmp_path, "--shutdown-timeout=600", program=SLEEPS) as run:
        pids(run)
        run.send(signal.SIGTERM)
        assert run.wait() == 143


@pytest.mark.parametrize("agent_first", [True, False])
def test_A5_a_scheduler_that_signals_every_process_is_no_failure(
    tmp_path: Path, agent_first: bool
) -> None:
    options = ("--nproc-per-node=2", "--max-restarts=3")
    with agent(tmp_path, *options, program=SLEEPS) as run:
        found = pids(run, 2)
        everybody = [*run.processes()]
        everybody.remove(run.pid)
        if agent_first:
            run.send(signal.SIGTERM)
        for pid in everybody:
            os.kill(pid, signal.SIGTERM)
        if not agent_first:
            # The agent waits two seconds for a signal of its own, and reaps them after that.
            eventually(lambda: not any(map(is_alive, found)), "an end of the workers")
            run.send(signal.SIGTERM)
        assert run.wait() == 143
        assert not [pid for pid in found if is_alive(pid)]
    assert len(run.told("pid")) == 2
    assert "failed" not in run.err


def test_A5_a_worker_ended_alone_by_SIGTERM_has_failed(tmp_path: Path) -> None:
    program = "import os, sys\nif os.environ['RALLYPOINT_ROUND'] == '1': sys.exit(0)\n" + SLEEPS
    with agent(tmp_path, "--max-restarts=1", program=program) as run:
        os.kill(pids(run)[0], signal.SIGTERM)
        assert run.wait() == 0
    assert "was killed by SIGTERM" in run.err
    with agent(tmp_path, program=SLEEPS) as run:
        os.kill(pids(run)[0], signal.SIGTERM)
        assert run.wait() == 1


def test_A5_SIGUSR1_and_SIGUSR2_are_the_workers_own(tmp_path: Path) -> None:
    """They end neither the agent nor its helpers, and a worker has the default disposition."""
    program = (
        "import os, signal, sys, time\n"
        "if os.environ['RALLYPOINT_ROUND'] == '1':\n"
        "    signal.signal(signal.SIGUSR2, lambda *_: (tell('user'), sys.exit(0)))\n"
        "tell('default', signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)\n"
    ) + SLEEPS
    with agent(tmp_path, "--max-restarts=1", program=program) as run:
        first = pids(run)[0]
        others = [pid for pid in run.processes() if pid != first]
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            for pid in others:
                os.kill(pid, number)
        os.kill(first, signal.SIGUSR1)
        second = pids(run, 2)[1]
        assert set(others) <= set(run.processes())
        os.kill(second, signal.SIGUSR2)
        assert run.wait() == 0
    assert run.told("default") == ["True", "True"]
    assert "was killed by SIGUSR1" in run.err
    assert "user" in run.out


def test_A5_a_signal_before_any_worker_runs_ends_the_agent(tmp_path: Path) -> None:
    options = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=lonely")
    with agent(tmp_path, *options, program=SLEEPS) as run:
        run.wait_said("waiting for")
        run.send(signal.SIGTERM)
        assert run.wait() == 143
    assert not run.told("pid")


@pytest.mark.parametrize(
    ("chosen", "code"), [((), 143), (("--signals-to-handle=SIGHUP,SIGTERM",), 129)]
)
def test_A5_nohup_is_honoured_unless_the_signal_was_asked_for(
    tmp_path: Path, chosen: tuple[str, ...], code: int
) -> None:
    with agent(tmp_path, *chosen, program=SLEEPS, under=("nohup",)) as run:
        pids(run)
        run.send(signal.SIGHUP)
        if not chosen:
            run.send(signal.SIGTERM)
        assert run.wait() == code
    assert ("SIGHUP" in run.err) is bool(chosen)
