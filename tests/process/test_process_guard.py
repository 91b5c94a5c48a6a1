"""A6: an agent killed with SIGKILL leaves no process of the job behind. Real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.harness.limits import patience
from tests.harness.one_agent import eventually
from tests.harness.proc import birth_of, is_alive
from tests.harness.round_workers import spawn_worker

from rallypoint.clocks import boot_time
from rallypoint.process.guard import NAME, Guard, SharedPage
from rallypoint.process.sessions import kill_sessions
from rallypoint.process.spawn import WorkerProcess

LIMIT_S = patience(30.0)

# Starts a child in its own group and one in a group apart, tells their pids, ignores SIGTERM.
WORKER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for apart in (False, True):
    pid = os.fork()
    if pid == 0:
        if apart:
            os.setpgid(0, 0)
        print("child", os.getpid(), flush=True)
        time.sleep(600)
        os._exit(0)
print("worker", os.getpid(), flush=True)
time.sleep(600)
"""
AGENT = """
import os, signal, sys
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand, spawn_workers
guard = Guard.start()
print("guard", guard.pid, flush=True)
argv = [sys.executable, "-S", "-E", "-c", sys.argv[1]]
spawn_workers([WorkerCommand(argv, dict(os.environ))] * 2, guard)
signal.pause()
"""
SPAWNING_AGENT = """
import os, sys
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand, spawn_workers
guard = Guard.start()
print("ready", flush=True)
while True:
    workers = spawn_workers([WorkerCommand(["sleep", sys.argv[1]], dict(os.environ))] * 4, guard)
"""
# A program of the agent's process that forks by other means, and so holds the guard's pipe open.
LEAKING_AGENT = """
import os, signal, sys
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand, spawn_workers
guard = Guard.start()
stranger = os.fork()
if stranger == 0:
    signal.pause()
print("stranger", stranger, flush=True)
argv = [sys.executable, "-S", "-E", "-c", sys.argv[1]]
spawn_workers([WorkerCommand(argv, dict(os.environ))], guard)
signal.pause()
"""

# On a busy machine the guard may not have begun when the agent dies.
HASTY_AGENT = """
import os, signal, sys
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand, spawn_workers
guard = Guard.start()
os.kill(guard.pid, signal.SIGSTOP)
print("guard", guard.pid, flush=True)
argv = [sys.executable, "-S", "-E", "-c", sys.argv[1]]
spawn_workers([WorkerCommand(argv, dict(os.environ))], guard)
signal.pause()
"""


def birth(pid: int) -> str | None:
    """The start time of a live process."""
    return birth_of(pid) if is_alive(pid) else None


class Living:
    """Processes by pid and start time."""

    def __init__(self, pids: list[int]) -> None:
        self.births = {pid: birth(pid) for pid in pids}
        assert None not in self.births.values()

    def left(self) -> list[int]:
        return [pid for pid, born in self.births.items() if birth(pid) == born]

    def end(self, complaint: str) -> None:
        """Wait until none of them lives; the complaint names those that do, and their states."""
        try:
            eventually(lambda: not self.left(), complaint)
        except AssertionError as error:
            raise AssertionError(f"{complaint}:\n{describe(self.left())}") from error


def describe(pids: list[int]) -> str:
    """One line for each process: its number, state, parent, group, session and command."""
    line = ["ps", "-o", "pid,stat,ppid,pgid,sid,args", "-p", ",".join(map(str, pids))]
    return subprocess.run(line, capture_output=True, text=True).stdout


def with_argument(argument: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", argument.encode()]:
            found.append(int(name))
    return found


@contextmanager
def agent(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str], lines: int) -> dict[str, list[int]]:
    assert process.stdout is not None
    pids: dict[str, list[int]] = {}
    for _ in range(lines):
        role, pid = process.stdout.readline().split()
        pids.setdefault(role, []).append(int(pid))
    return pids


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the same user that is none of the job's."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def guard() -> Iterator[Guard]:
    """A guard of the test itself. The test may stop it, too."""
    guard = Guard.start()
    yield guard
    guard.stop()


def sleeper(guard: Guard) -> WorkerProcess:
    """A worker that this guard knows and that does not end by itself."""
    return spawn_worker(["sleep", "600"], dict(os.environ), guard=guard)


def is_killed(worker: WorkerProcess) -> bool:
    """Wait for its end, and say whether SIGKILL has ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) == -signal.SIGKILL


def test_A6_killed_agent_leaves_no_process_behind(bystander: int) -> None:
    with agent(AGENT, WORKER) as process:
        pids = told(process, 7)
        assert [len(pids[role]) for role in ("guard", "worker", "child")] == [1, 2, 4]
        living = Living([*pids["guard"], *pids["worker"], *pids["child"]])
        process.kill()
        living.end("processes of the job outlived the agent")
        assert birth(bystander) is not None


def test_A6_guard_survives_what_schedulers_send_to_everybody() -> None:
    with agent(AGENT, WORKER) as process:
        pids = told(process, 7)
        guard, *_ = pids["guard"]
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(guard, signum)
        living = Living([guard, *pids["worker"], *pids["child"]])
        os.kill(process.pid, signal.SIGTERM)  # Ends this agent, which has no handler.
        living.end("processes of the job outlived the agent")


def test_A6_no_moment_of_a_spawn_is_unguarded() -> None:
    for attempt in range(8):
        seconds = f"600.{os.getpid()}{attempt}"
        with agent(SPAWNING_AGENT, seconds) as process:
            assert process.stdout is not None
            process.stdout.readline()
            eventually(lambda: bool(with_argument(seconds)), "no worker")  # noqa: B023
            process.kill()
            process.wait()
            eventually(lambda: not with_argument(seconds), "workers outlived")  # noqa: B023
            # End of file: not even a child between fork and exec, or the guard, holds the console.
            assert process.stdout.read() == ""


def test_A6_guard_notices_death_though_a_stranger_holds_its_pipe() -> None:
    with agent(LEAKING_AGENT, WORKER) as process:
        pids = told(process, 4)
        living = Living([*pids["worker"], *pids["child"]])
        stranger = Living(pids["stranger"])
        process.kill()
        process.wait()
        living.end("the worker outlived the agent")
        assert stranger.left()
        os.kill(pids["stranger"][0], signal.SIGKILL)


def test_A6_guard_that_begins_after_the_agents_death_leaves_no_process_behind() -> None:
    with agent(HASTY_AGENT, WORKER) as process:
        pids = told(process, 4)
        living = Living([*pids["guard"], *pids["worker"], *pids["child"]])
        process.kill()
        process.wait()
        os.kill(pids["guard"][0], signal.SIGCONT)
        living.end("processes of the job outlived the agent")


def test_A6_a_machine_too_busy_to_kill_in_time_spares_no_process_of_a_session() -> None:
    """No time is left once the worker's own group is killed; another group is in its session."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", WORKER],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        pids = told(process, 3)
        living = Living([*pids["worker"], *pids["child"]])
        kill_sessions([process.pid], 0.0)
        living.end("a process of the session lives")


def test_A6_worker_dies_with_the_agent_even_without_a_guard() -> None:
    script = LEAKING_AGENT.replace("guard = Guard.start()", "guard = None")
    with agent(script, WORKER) as process:
        pids = told(process, 4)
        living = Living(pids["worker"])
        process.kill()
        living.end("the worker outlived the agent")
        for pid in (*pids["stranger"], *pids["child"]):
            os.kill(pid, signal.SIGKILL)


def holds_little(pid: int) -> bool:
    """No console and nothing inherited. As it begins it reads a file or two of /proc."""
    links = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            links[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
    console = [links.pop(fd, None) for fd in (0, 1, 2)]
    is_ours = all(link.startswith(("pipe:", "anon_inode:")) for link in links.values())
    return console == ["/dev/null"] * 3 and is_ours and len(links) <= 3


def test_A6_guard_holds_neither_console_nor_directory() -> None:
    inherited = os.open("/etc/hostname", os.O_RDONLY)
    guard = Guard.start()
    try:
        eventually(lambda: os.readlink(f"/proc/{guard.pid}/cwd") == "/", "directory held")
        eventually(lambda: holds_little(guard.pid), "something inherited held")
        assert Path(f"/proc/{guard.pid}/comm").read_text() == f"{NAME}\n"
    finally:
        guard.stop()
        os.close(inherited)


def test_A6_stop_leaves_no_guard_and_kills_what_is_registered_only(guard: Guard) -> None:
    before = os.listdir("/proc/self/fd")
    kept, forgotten = sleeper(guard), sleeper(guard)
    guard.forget(forgotten.pid)
    guard.stop()
    guard.stop()
    assert is_killed(kept)
    assert birth(forgotten.pid) is not None
    os.kill(forgotten.pid, signal.SIGKILL)
    os.waitpid(forgotten.pid, 0)
    assert birth(guard.pid) is None
    assert len(os.listdir("/proc/self/fd")) == len(before) - 2


def test_F2_guard_ends_workers_when_the_lease_is_over_and_nothing_else(guard: Guard) -> None:
    worker, helper = sleeper(guard), sleeper(guard)
    guard.spare(helper.pid)
    for _ in range(3):
        guard.hold(boot_time() + LIMIT_S)
    assert birth(worker.pid) is not None
    guard.hold(0.0)
    guard.hold(boot_time() - 1.0)  # From none to one: that wakes it.
    eventually(lambda: birth(worker.pid) is None, "the worker outlived the lease")
    late = sleeper(guard)
    eventually(lambda: birth(late.pid) is None, "a worker that began too late lives")
    guard.hold(boot_time() + LIMIT_S)
    fresh = sleeper(guard)
    guard.hold(0.0)
    assert [birth(pid) is None for pid in (helper.pid, fresh.pid, guard.pid)] == [False] * 3
    guard.stop()
    assert all(map(is_killed, (worker, helper, late, fresh)))


def test_F2_a_guard_that_was_frozen_keeps_the_fence_when_it_is_thawed(guard: Guard) -> None:
    worker = sleeper(guard)
    guard.hold(boot_time() + 0.05)
    os.kill(guard.pid, signal.SIGSTOP)
    over_at = boot_time() + 0.3
    eventually(lambda: boot_time() > over_at, "the lease does not end")
    os.kill(guard.pid, signal.SIGCONT)
    assert is_killed(worker)
    guard.forget(worker.pid)


def test_F2_a_later_guard_knows_the_lease_of_the_one_before() -> None:
    page = SharedPage()
    first = Guard.start(page=page)
    first.hold(boot_time() - 1.0)
    os.kill(first.pid, signal.SIGKILL)
    first.stop()
    second = Guard.start(page=page)
    assert is_killed(sleeper(second))
    second.stop()


def test_A6_death_of_the_guard_is_noticed_and_hurts_nobody(guard: Guard) -> None:
    assert not select.select([guard.fileno()], [], [], 0)[0]
    os.kill(guard.pid, signal.SIGKILL)
    assert select.select([guard.fileno()], [], [], LIMIT_S)[0]
    worker = spawn_worker(["true"], dict(os.environ), guard=guard)
    assert os.waitpid(worker.pid, 0)[1] == 0
    guard.forget(worker.pid)


def test_A5_a_guard_tells_the_signals_that_have_reached_it_and_lives_on(guard: Guard) -> None:
    assert guard.read_signals() == ()
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGRTMAX):

        def has_told(number: int = number) -> bool:
            # A signal counts only after the guard has begun to note signals.
            os.kill(guard.pid, number)
            told.extend(guard.read_signals() or ())
            return number in told

        eventually(has_told, f"signal {number} was not told")
    assert set(told) == {signal.SIGTERM, signal.SIGUSR1, signal.SIGRTMAX}
    os.kill(guard.pid, signal.SIGKILL)
    assert select.select([guard.fileno()], [], [], LIMIT_S)[0]
    eventually(lambda: guard.read_signals() is None, "its death was not told")
    guard.stop()
    assert guard.read_signals() is None


def test_A6_stopped_guard_delays_stop_by_a_bounded_time(guard: Guard) -> None:
    """Also if it has told of a signal before, which is not its end."""

    def has_told() -> bool:
        os.kill(guard.pid, signal.SIGTERM)
        return bool(select.select([guard.fileno()], [], [], 0.01)[0])

    eventually(has_told, "no signal was told")
    os.kill(guard.pid, signal.SIGSTOP)
    guard.stop()
    assert birth(guard.pid) is None
