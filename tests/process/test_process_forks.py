"""Helper processes forked from the agent, also from within its running loop. Real processes."""

# ruff: noqa: ASYNC110, ASYNC222

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.harness.limits import patience
from tests.harness.programs import run_program

from rallypoint.process import syscalls
from rallypoint.process.exits import Reaper
from rallypoint.process.forks import ForkedProcess, fork_process
from rallypoint.process.signals import SENT_TO_EVERYBODY

LIMIT_S = patience(30.0)
PR_SET_CHILD_SUBREAPER = 36


def ask(body: Callable[[], str]) -> tuple[str, ForkedProcess]:
    """What a helper says of itself."""
    read, write = os.pipe()

    def answer() -> None:
        os.write(write, body().encode())

    helper = fork_process(answer, name="a-rather-long-name", keep_fds=(write,))
    os.close(write)
    with open(read) as file:
        text = file.read()
    return text, helper


def test_helper_has_nothing_but_what_it_was_given() -> None:
    with open("/etc/hostname") as other:
        os.set_inheritable(other.fileno(), True)

        def about() -> str:
            fds = sorted(map(int, os.listdir("/proc/self/fd")))
            status = Path("/proc/self/status").read_text()
            mask = next(line.split()[1] for line in status.splitlines() if "SigBlk" in line)
            comm = Path("/proc/self/comm").read_text().strip()
            return f"{len(fds)} {int(mask, 16)} {os.getsid(0) == os.getpid()} {comm}"

        text, helper = ask(about)
        # 0, 1, 2, the pipe, and the directory that is being listed.
        assert text == "5 0 True a-rather-long-n"
        assert helper.wait() == 0


def test_helper_tells_success_failure_and_death(capfd: pytest.CaptureFixture[str]) -> None:
    assert fork_process(lambda: None, name="ok").wait() == 0

    def fail() -> None:
        raise ValueError("what was wrong")

    assert fork_process(fail, name="fails").wait() == 1
    assert "ValueError: what was wrong" in capfd.readouterr().err
    helper = fork_process(lambda: signal.pause(), name="waits")
    assert helper.alive()
    helper.kill()
    assert helper.wait() == helper.wait() == -signal.SIGKILL
    assert not helper.alive()
    helper.kill()  # Harmless.


def test_helper_dies_with_its_parent() -> None:
    script = """
import os, signal
from rallypoint.process.signals import SENT_TO_EVERYBODY
from rallypoint.process.forks import fork_process
print(fork_process(lambda: signal.pause(), name="helper").pid, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        fd = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([fd], [], [], 0)[0]
        parent.kill()
        assert select.select([fd], [], [], LIMIT_S)[0]
        os.close(fd)


async def test_fork_within_a_running_loop_leaves_the_loop_alone() -> None:
    """The helper runs a loop of its own and gets signals of its own; ours sees none of it."""
    loop = asyncio.get_running_loop()
    ours: list[int] = []
    loop.add_signal_handler(signal.SIGUSR1, ours.append, 1)
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()

    async def child() -> None:
        got = asyncio.Event()
        own = asyncio.get_running_loop()
        own.add_signal_handler(signal.SIGUSR1, got.set)
        own.add_reader(to_child, got.set)
        os.write(from_child, b"up")
        await got.wait()
        os.write(from_child, b"ok")

    helper = fork_process(
        lambda: asyncio.run(child()), name="loop", keep_fds=(to_child, from_child)
    )
    os.close(to_child)
    os.close(from_child)
    said: asyncio.Queue[bytes] = asyncio.Queue()
    loop.add_reader(to_parent, lambda: said.put_nowait(os.read(to_parent, 2)))
    async with asyncio.timeout(LIMIT_S):
        assert await said.get() == b"up"
        os.kill(helper.pid, signal.SIGUSR1)
        assert await said.get() == b"ok"
        assert await said.get() == b""  # Its end.
    assert helper.wait() == 0
    assert ours == []
    os.kill(os.getpid(), signal.SIGUSR1)
    async with asyncio.timeout(LIMIT_S):
        while not ours:
            await asyncio.sleep(0)
    loop.remove_reader(to_parent)
    loop.remove_signal_handler(signal.SIGUSR1)
    os.close(to_parent)
    os.close(from_parent)


def test_helper_never_wakes_the_parents_loop() -> None:
    """A byte of a signal of its own would go to the parent, or to whatever has that number now."""

    async def parent() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)
        text, helper = ask(lambda: str(signal.set_wakeup_fd(-1)))
        assert (text, helper.wait()) == ("-1", 0)

    asyncio.run(parent())


def wait_end(fd: int) -> None:
    assert os.read(fd, 1) == b""


def test_A5_what_is_sent_to_everybody_ends_no_helper_and_is_not_taken_for_the_parents() -> None:
    """At any moment of its birth, and later."""
    ours: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: ours.append(os.getpid()))
    numbers = sorted(SENT_TO_EVERYBODY - {signal.SIGTERM})
    assert {signal.SIGINT, signal.SIGTSTP, signal.SIGVTALRM, signal.SIGRTMAX} < set(numbers)
    try:
        for turn in range(50):
            read, write = os.pipe()
            helper = fork_process(partial(wait_end, read), name="told", keep_fds=(read,))
            os.kill(helper.pid, signal.SIGTERM)
            os.kill(helper.pid, numbers[turn % len(numbers)])
            os.close(write)
            assert helper.wait() == 0
            os.close(read)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ours == []


# Each worker leaves an orphan that is no longer in its session and exits before it.
PID_ONE = """
import asyncio, os, sys
from rallypoint.process import exits
from rallypoint.process.spawn import WorkerCommand
from rallypoint.process.workers import WorkerSet

ORPHANER = '''
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.05)
    os._exit(0)
os.wait()
os._exit(7)
'''

def zombies():
    states = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with open(f"/proc/{name}/stat") as file:
            states.append(file.read().rpartition(")")[2].split()[0])
    return states.count("Z"), len(states)

async def main():
    assert os.getpid() == 1
    workers = WorkerSet(None)
    reaping = exits.Reaper.install(asyncio.get_running_loop(), workers.owns)
    done = asyncio.Queue()
    argv = [sys.executable, "-S", "-E", "-c", ORPHANER]
    commands = [WorkerCommand(argv, dict(os.environ))] * 3
    workers.start(commands, lambda exit_: done.put_nowait(exit_.code))
    print([await done.get() for _ in commands])
    assert await workers.reap(20) == []
    async with asyncio.timeout(20):
        while zombies() != (0, 1):
            await asyncio.sleep(0.01)
    reaping.close()
    print("clean", flush=True)

asyncio.run(main())
"""


def test_agent_as_pid_1_reaps_orphans_and_keeps_its_workers_statuses() -> None:
    unshare = shutil.which("unshare")
    isolated = [str(unshare), "--pid", "--fork", "--mount-proc", "--kill-child"]
    if unshare is None or subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("PID namespaces can't be made here (needs unshare and root)")
    result = run_program([*isolated, sys.executable, "-c", PID_ONE])
    assert (result.stdout, result.returncode) == ("[7, 7, 7]\nclean\n", 0), result.stderr


def test_subreaper_adopts_and_reaps_only_what_is_not_ours() -> None:
    def helper() -> str:
        syscalls.load_prctl()(PR_SET_CHILD_SUBREAPER, 1)
        return asyncio.run(reap_orphan())

    async def reap_orphan() -> str:
        own = fork_process(lambda: None, name="own")
        reaper = Reaper.install(asyncio.get_running_loop(), lambda pid: pid == own.pid)
        read, write = os.pipe()
        orphaner = os.fork()
        if orphaner == 0:
            orphan = os.fork()
            if orphan:
                os.write(write, b"%d" % orphan)
            os._exit(0)
        orphan = int(os.read(read, 20))
        async with asyncio.timeout(LIMIT_S):
            while os.path.exists(f"/proc/{orphan}") or os.path.exists(f"/proc/{orphaner}"):
                await asyncio.sleep(0.005)
            while own.alive():
                await asyncio.sleep(0.005)
        reaper.reap()
        reaper.close()
        return f"own {os.waitid(os.P_PID, own.pid, os.WEXITED) is not None}"

    text, process = ask(helper)
    assert text == "own True"
    assert process.wait() == 0
