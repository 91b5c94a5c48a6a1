"""A5: a worker that asks for requests of checkpoints holds SIGTERM back while its agent lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.harness.shm_workers import SERVE, Worker, a_shm, workers, working

from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.wire import shm_words as at
from rallypoint.wire.shm import pack_word

LISTEN = "worker.drain_requested()"
OWN_HANDLER = "__import__('signal').signal(15, lambda *_: os.write(1, b'mine\\n'))"
SERVE_WITH_HANDLER = SERVE.replace("for line", f"{OWN_HANDLER}\nfor line")
FORKED = (
    "os.waitstatus_to_exitcode(os.waitpid("
    "os.fork() or os._exit(__import__('signal').getsignal(15) == 0), 0)[1])"
)


def terminate(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGTERM)


def write_agent(shm: WorkerShm, pid: int) -> None:
    with open(shm.path, "r+b") as file:
        file.seek(at.WORD_BYTES * at.AGENT)
        file.write(pack_word(pid))


def pid_of_nobody() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    return gone.pid


def ends_by_sigterm(worker: Worker) -> bool:
    """With what it is asked next, a handler has its turn."""
    with suppress(BrokenPipeError):
        worker.ask("1")
    return worker.process.wait() == -signal.SIGTERM


async def test_A5_sigterm_is_held_back_until_the_round_ends(tmp_path: Path) -> None:
    with working(tmp_path, 2) as (shm, (one, other)):
        other.ask("worker.progress(1)")
        assert shm.holders() == {}
        one.ask("worker.should_restart_at_checkpoint()")
        assert shm.holders() == {0: one.process.pid}
        terminate(one)
        terminate(other)
        assert one.ask("1") == "1"
        assert ends_by_sigterm(other), "who does not ask is as it was"
        assert one.ask(FORKED) == "1", "what it forks ends by SIGTERM"
        shm.retire()
        terminate(one)
        assert ends_by_sigterm(one)


async def test_A5_sigterm_is_held_back_for_no_agent_that_is_dead(tmp_path: Path) -> None:
    with working(tmp_path, 1) as (shm, (one,)):
        one.ask(LISTEN)
        write_agent(shm, pid_of_nobody())
        terminate(one)
        assert ends_by_sigterm(one)


async def test_A5_nor_for_an_agent_that_would_wait_for_it(tmp_path: Path) -> None:
    """One of an older version ends nobody by SIGKILL at once."""
    with a_shm(tmp_path, 1) as shm:
        write_agent(shm, 0)
        with workers(shm, 1) as (one,):
            one.ask(LISTEN)
            assert shm.holders() == {}
            terminate(one)
            assert ends_by_sigterm(one)


async def test_A5_a_programs_own_handler_wins_whenever_it_is_set(tmp_path: Path) -> None:
    with working(tmp_path, 1, SERVE_WITH_HANDLER) as (shm, (before,)):
        before.ask(LISTEN)
        assert shm.holders() == {}
        terminate(before)
        assert before.ask("1") == "mine"
    with working(tmp_path, 1) as (shm, (later,)):
        later.ask(LISTEN)
        assert shm.holders() == {0: later.process.pid}
        later.ask(OWN_HANDLER)
        later.ask(LISTEN)
        assert shm.holders() == {}
        terminate(later)
        assert later.ask("1") == "mine"


async def test_A5_it_can_be_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RALLYPOINT_HOLD_SIGTERM", "0")
    with working(tmp_path, 1) as (shm, (one,)):
        one.ask(LISTEN)
        assert shm.holders() == {}
        terminate(one)
        assert ends_by_sigterm(one)


async def test_A5_another_thread_asks_and_the_first_one_holds_it_back_later(tmp_path: Path) -> None:
    with working(tmp_path, 1) as (shm, (one,)):
        thread = "__import__('threading').Thread(target=worker.drain_requested)"
        one.ask(f"[thread := {thread}, thread.start(), thread.join()]")
        assert shm.listeners() == {0}
        assert shm.holders() == {}
        one.ask(LISTEN)
        assert shm.holders() == {0: one.process.pid}


async def test_A5_a_process_that_a_worker_starts_holds_nothing_back(tmp_path: Path) -> None:
    """It does not speak for the worker, and an exec gives the default back."""
    with working(tmp_path, 1) as (_shm, (one,)):
        one.ask(LISTEN)
        code = "from rallypoint import worker; import os, signal; worker.drain_requested();"
        code += "os.kill(os.getpid(), signal.SIGTERM)"
        started = f"__import__('subprocess').run([sys.executable, '-c', {code!r}])"
        assert one.ask(f"{started}.returncode") == str(-signal.SIGTERM)
        assert os.path.exists(f"/proc/{one.process.pid}")
