"""The exit of a worker is noticed, whatever came before (A1, W15)."""

# ruff: noqa: ASYNC222

from __future__ import annotations

import asyncio
import os
import signal

from tests.harness.limits import until
from tests.harness.round_workers import (
    ENVIRONMENT,
    LIMIT_S,
    either_way,
    no_pidfds,
    spawn_worker,
    started,
)
from tests.harness.round_workers import leaves_nothing as leaves_nothing

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process import syscalls
from rallypoint.process.exits import ExitWatch, needs_main_thread


@either_way
async def test_A1_exit_is_noticed_with_code_or_signal(pidfd_open: syscalls.PidfdOpen) -> None:
    scripts = ["true", "exit 3", "kill -KILL $$", "exec sleep 600"]
    workers, outcomes = started(*(["sh", "-c", it] for it in scripts), pidfd_open=pidfd_open)
    await until(lambda: len(outcomes) == 3)
    assert outcomes == {
        0: WorkerExit(0, None),
        1: WorkerExit(3, None),
        2: WorkerExit(None, signal.SIGKILL),
    }
    assert [o.returncode for _, o in sorted(outcomes.items())] == [0, 3, -9]
    assert (workers.running(), workers.remaining()) == (1, 1)
    assert await workers.reap(LIMIT_S) == []
    assert outcomes[3] == WorkerExit(None, signal.SIGKILL)
    assert workers.running() == workers.remaining() == 0


@either_way
async def test_A1_waiting_and_reaping_work_without_pidfds(pidfd_open: syscalls.PidfdOpen) -> None:
    lingering = ["sh", "-c", "sleep 0.3 & exit 0"]
    workers, outcomes = started(lingering, lingering, pidfd_open=pidfd_open)
    async with asyncio.timeout(LIMIT_S):
        await workers.wait_gone()
    assert len(outcomes) == 2
    assert workers.remaining() == 0
    assert await workers.reap(LIMIT_S) == []
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


@either_way
async def test_A1_exit_before_it_is_watched_is_noticed(pidfd_open: syscalls.PidfdOpen) -> None:
    worker = spawn_worker(["sh", "-c", "exit 4"], ENVIRONMENT)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    watch = ExitWatch(asyncio.get_running_loop(), pidfd_open=pidfd_open)
    noticed: list[WorkerExit] = []
    watch.watch(worker.pid, noticed.append)
    await until(lambda: noticed != [])
    assert noticed == [WorkerExit(4, None)]
    watch.close()
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    os.waitpid(worker.pid, 0)


async def test_A1_lost_exit_status_is_an_exit_all_the_same() -> None:
    workers, outcomes = started(["true"])
    os.waitpid(workers.pids[0], 0)  # Someone in this process who waits for any child.
    await until(lambda: len(outcomes) == 1)
    assert outcomes[0] == WorkerExit(None, None)
    assert not outcomes[0].succeeded
    assert await workers.reap(LIMIT_S) == []


async def test_A1_sigchld_ignored_by_whoever_started_us_loses_no_status() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        workers, outcomes = started(["sh", "-c", "exit 3"])
        await until(lambda: len(outcomes) == 1)
        assert outcomes[0] == WorkerExit(3, None)
        assert await workers.reap(LIMIT_S) == []
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_W15_number_of_an_exited_worker_stays_reserved_until_it_is_reaped() -> None:
    workers, outcomes = started(["true"])
    await until(lambda: len(outcomes) == 1)
    pid = workers.pids[0]
    assert workers.owns(pid)
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    for _ in range(3):
        workers.signal_all(signal.SIGTERM)
    assert await workers.reap(LIMIT_S) == []
    assert not workers.owns(pid)
    workers.signal_all(signal.SIGKILL)  # Reaches nobody: the number may be a stranger's now.
    workers.kill_all()
    assert await workers.reap(LIMIT_S) == []


def test_other_threads_notice_exits_only_where_there_are_pidfds() -> None:
    assert not needs_main_thread()
    assert needs_main_thread(pidfd_open=no_pidfds)
