"""Workers of one round: exactly what was asked for runs, and nothing of it remains."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.harness.descriptors import own_children
from tests.harness.limits import until
from tests.harness.proc import is_alive
from tests.harness.round_workers import (
    ENVIRONMENT,
    LIMIT_S,
    Outcomes,
    python,
    sleeping,
    spawn_worker,
    started,
)
from tests.harness.round_workers import leaves_nothing as leaves_nothing

from rallypoint.process.guard import Guard
from rallypoint.process.spawn import Stage, WorkerCommand, WorkerStartError, spawn_workers
from rallypoint.process.workers import WorkerSet

ORPHANER = """
import os, time
for apart in (False, True):
    if os.fork() == 0:
        if apart:
            os.setpgid(0, 0)
        os.execvp("sleep", ["sleep", "{seconds}"])
"""


async def test_A6_children_of_an_exited_worker_remain_visible_and_die_with_the_round() -> None:
    workers, outcomes, seconds = WorkerSet(None), Outcomes(), f"601.{os.getpid()}"
    workers.start([python(ORPHANER.format(seconds=seconds))], outcomes.note)
    await until(lambda: len(outcomes) == 1 and len(sleeping(seconds)) == 2)
    assert workers.remaining() == 2
    waiting = asyncio.ensure_future(workers.wait_gone())
    workers.signal_all(signal.SIGTERM)  # The group's only, as under torchrun.
    await until(lambda: len(sleeping(seconds)) == 1)
    assert workers.remaining() == 1
    assert not waiting.done()
    assert await workers.reap(LIMIT_S) == []
    assert sleeping(seconds) == []
    await waiting


async def test_A6_reap_also_ends_what_ignores_sigterm_or_is_stopped() -> None:
    seconds = f"603.{os.getpid()}"
    deaf = f"trap '' TERM; sleep {seconds} & {{}}; wait"
    commands = (["sh", "-c", deaf.format(then)] for then in ("kill -STOP $$", "true"))
    workers, outcomes = started(*commands)
    await until(lambda: len(sleeping(seconds)) == 2)
    workers.signal_all(signal.SIGTERM)
    assert await workers.reap(LIMIT_S) == []
    assert [outcome.signal for outcome in outcomes.values()] == [signal.SIGKILL] * 2


async def freeze(freezer: Path, pid: int) -> None:
    """Stop this process so that not even SIGKILL ends it before the cgroup is thawed."""
    (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "freezer.state").write_text("FROZEN")
    await until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")


async def test_reap_gives_up_on_a_process_that_does_not_die(freezer: Path) -> None:
    workers, _ = started(*[["sleep", "600"]] * 2)
    frozen, other = workers.pids
    await freeze(freezer, frozen)
    assert await workers.reap(0.3) == [frozen]
    assert workers.owns(frozen)
    assert not workers.owns(other)
    (freezer / "freezer.state").write_text("THAWED")
    assert await workers.reap(LIMIT_S) == []


async def test_reap_waits_for_a_grandchild_that_dies_late(freezer: Path) -> None:
    seconds = f"604.{os.getpid()}"
    workers, outcomes = started(["sh", "-c", f"sleep {seconds} & exit 0"])
    await until(lambda: len(outcomes) == 1 and len(sleeping(seconds)) == 1)
    await freeze(freezer, sleeping(seconds)[0])
    thaw = partial((freezer / "freezer.state").write_text, "THAWED")
    asyncio.get_running_loop().call_later(0.1, thaw)
    assert await workers.reap(LIMIT_S) == []
    assert sleeping(seconds) == []


def test_worker_runs_exactly_the_command_and_leads_its_own_session(tmp_path: Path) -> None:
    leaked = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    with open(tmp_path / "out", "wb") as out:
        worker = spawn_worker(
            ["sleep", "600"], {"PATH": "/usr/bin:/bin", "A": "é"}, stdout_fd=out.fileno(),
            stderr_fd=out.fileno(),
        )  # fmt: skip
    try:
        proc = Path(f"/proc/{worker.pid}")
        assert (proc / "cmdline").read_bytes() == b"sleep\x00600\x00"
        assert (proc / "environ").read_bytes() == b"PATH=/usr/bin:/bin\0A=\xc3\xa9\0"
        assert os.getsid(worker.pid) == os.getpgid(worker.pid) == worker.pid
        assert os.readlink(proc / "cwd") == os.getcwd()
        # The dynamic linker still has files of its own open for a moment.
        asyncio.run(until(lambda: len(os.listdir(proc / "fd")) <= 3))
        fds = {fd: os.readlink(proc / "fd" / fd) for fd in os.listdir(proc / "fd")}
        assert fds == {
            "0": os.readlink("/proc/self/fd/0"),
            "1": str(tmp_path / "out"),
            "2": str(tmp_path / "out"),
        }
        status = (proc / "status").read_text().split()
        # libc keeps two signals for itself: what whoever started us did to those stays.
        ours = sum(1 << (number - 1) for number in signal.valid_signals())
        for name in ("SigBlk:", "SigIgn:", "SigCgt:"):
            assert int(status[status.index(name) + 1], 16) & ours == 0, name
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == masked | {signal.SIGUSR2}
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
        signal.signal(signal.SIGHUP, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        os.close(leaked)


def test_streams_may_be_swapped(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["sh", "-c", "echo out; echo err >&2"]
    worker = spawn_worker(command, ENVIRONMENT, stdout_fd=2, stderr_fd=1)
    os.waitpid(worker.pid, 0)
    assert capfd.readouterr() == ("err\n", "out\n")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "plain").write_text("echo\n")
    texts = {
        "noheader": b"\0\0",
        "badheader": b"#!/nowhere/python\n",
        "dos": b"#!/bin/sh\r\necho\r\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("program", "number", "fix"),
    [
        ("{}/absent", errno.ENOENT, "check the path"),
        ("no-such-program", errno.ENOENT, "no such program in PATH"),
        ("{}/badheader", errno.ENOENT, "#!"),
        ("{}/dos", errno.ENOENT, "its lines end as on Windows (\\r\\n): run dos2unix on it"),
        ("{}/plain", errno.EACCES, "chmod +x"),
        ("{}", errno.EACCES, "directory"),
        ("{}/plain/x", errno.ENOENT, "check the path"),
        ("{}/noheader", errno.ENOEXEC, "#!"),
        ("a\0b", errno.EINVAL, "NUL"),
    ],
)
def test_program_that_can_not_run_is_one_clear_line(
    programs: Path, program: str, number: int, fix: str
) -> None:
    program, children = program.format(programs), own_children()
    with pytest.raises(WorkerStartError) as caught:
        spawn_worker([program], ENVIRONMENT)
    assert (caught.value.stage, caught.value.errno) == (Stage.EXEC, number)
    message = str(caught.value)
    assert message.startswith(f"cannot run {program!r}: ")
    assert fix in message
    assert "\n" not in message
    assert own_children() - children == set()


@pytest.mark.parametrize(
    ("command", "stage", "words"),
    [
        (WorkerCommand(["true"], ENVIRONMENT, stdout_fd=999), Stage.STREAMS, "'true'"),
        (WorkerCommand(["true"], {"A": "\0"}), Stage.EXEC, "NUL"),
        (WorkerCommand(["true", "x" * 3_000_000], ENVIRONMENT), Stage.EXEC, "too long"),
        (WorkerCommand([], ENVIRONMENT), Stage.EXEC, "empty"),
    ],
)
def test_every_stage_before_the_program_runs_is_told(
    command: WorkerCommand, stage: Stage, words: str
) -> None:
    with pytest.raises(WorkerStartError, match="cannot") as caught:
        spawn_workers([command], None)
    assert caught.value.stage is stage
    assert words in str(caught.value)


async def test_start_that_fails_midway_leaves_nothing() -> None:
    seconds = f"602.{os.getpid()}"
    guard = Guard.start()
    workers = WorkerSet(guard)
    good = WorkerCommand(["sh", "-c", f"sleep {seconds} & sleep {seconds}"], ENVIRONMENT)
    commands = [good, good, WorkerCommand(["/absent"], ENVIRONMENT), good]
    with pytest.raises(WorkerStartError, match="/absent") as caught:
        workers.start(commands, lambda *_: pytest.fail("no worker was started"))
    assert caught.value.index == 2
    await until(lambda: not sleeping(seconds))
    assert workers.running() == workers.remaining() == 0
    assert await workers.reap(LIMIT_S) == []
    guard.stop()


async def test_guard_that_was_replaced_knows_the_living_workers() -> None:
    first = Guard.start()
    workers, outcomes = started(["sleep", "600"], guard=first)
    os.kill(first.pid, signal.SIGKILL)
    second = Guard.start()
    workers.use_guard(second)
    first.stop()
    assert is_alive(workers.pids[0])
    second.stop()
    await until(lambda: len(outcomes) == 1)
    third = Guard.start()
    workers.use_guard(third)
    assert await workers.reap(LIMIT_S) == []
    third.stop()


CLOSED_CONSOLE = """
import asyncio, os, sys
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand
from rallypoint.process.workers import WorkerSet

async def main(guard):
    workers, outcomes = WorkerSet(guard), []
    code = "import os; os.write(1, b'out'); os.write(2, b'err'); os._exit(5)"
    command = WorkerCommand([sys.executable, "-S", "-E", "-c", code], dict(os.environ))
    workers.start([command] * 3, lambda exit_: outcomes.append(exit_.code))
    await workers.wait_gone()
    left = await workers.reap(20)
    with open(sys.argv[1], "w") as file:
        print(outcomes, left, file=file)

guard = Guard.start()
asyncio.run(main(guard))
guard.stop()
"""


def test_all_works_when_the_console_is_closed(tmp_path: Path) -> None:
    report = tmp_path / "report"
    subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", CLOSED_CONSOLE, report],
        check=True,
        timeout=60,
    )
    assert report.read_text() == "[5, 5, 5] []\n"
