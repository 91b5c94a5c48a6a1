"""A node that waits for a place, and is asked whether it can start workers: a real agent, and a
coordinator that asks each node that joins."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.harness.limits import patience
from tests.harness.narrowed import known
from tests.harness.one_agent import LIMIT_S, OneAgent, agent, eventually
from tests.harness.sessions import TOKEN, rally

from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.events import NodeLeft
from rallypoint.core.job_state import JobEffect, JobEvent, JobState
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import Candidate, Lacking, Stamp

PROGRAM = "import time; time.sleep(1000)"


class Asking:
    """What asks, and keeps what it is told. `store`: the port where the round's store is; None: it
    asks for nothing."""

    def __init__(self, store: int | None) -> None:
        self._store = store
        self.port = 0
        self.candidates: list[Candidate] = []
        self.proved: list[m.Proved] = []
        self.failed: list[m.Failed] = []
        self.left = 0
        self.before: list[Callable[[], object]] = []
        """What is done before a node is asked."""

    def step(self, job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
        match event:
            case FromNode(ref, m.Join(_, candidate)):
                self.candidates.append(candidate)
                for act in self.before:
                    act()
                if self._store is None:
                    return jobs.step(job, event, at)
                stamp = Stamp(job.incarnation, 0)
                order = m.Prove(stamp, 1, "127.0.0.1", self._store, 0.5)
                return [*jobs.step(job, event, at), ToNode(ref, order)]
            case FromNode(_, m.Proved() as proved):
                self.proved.append(proved)
                return []
            case FromNode(_, m.Failed() as failed):
                self.failed.append(failed)
            case FromNode(_, m.Leave()) | NodeLeft():
                self.left += 1
        return jobs.step(job, event, at)


@contextmanager
def asking(store: int | None = 1) -> Iterator[Asking]:
    """A coordinator in a thread of this process."""
    asks, ready, loop = Asking(store), threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def main() -> None:
        async with rally(machine=asks.step) as place:
            asks.port = place.port
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        assert ready.wait(patience(LIMIT_S))
        yield asks
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@contextmanager
def waiting(home: Path, asks: Asking, *options: str, temp: str = "") -> Iterator[OneAgent]:
    where = f"--rdzv-endpoint=127.0.0.1:{asks.port}"
    env = {"RALLYPOINT_TOKEN": f"job-{TOKEN.hex()}"} | ({"TMPDIR": temp} if temp else {})
    words = ("--nnodes=2", "--rdzv-id=job", where, "--rdzv-conf=is_host=false", *options)
    with agent(home, *words, program=PROGRAM, env=env) as run:
        yield run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one, for 8 files."""
    place = tmp_path / "disk"
    place.mkdir()
    small = "size=96k,nr_inodes=9"
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", small, "small", str(place)], capture_output=True
    )
    if tried.returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill_with_files(disk: Path) -> None:
    with suppress(OSError):
        for number in range(9):
            (disk / str(number)).touch()


def test_A10_a_node_whose_disk_is_full_leaves_with_one_line_before_it_gets_a_place(
    tmp_path: Path, disk: Path
) -> None:
    (disk / "filler").write_bytes(bytes(48 * 1024))
    with asking() as asks, waiting(tmp_path, asks, f"--log-dir={disk}", "--redirects=3") as run:
        assert run.wait() == 75, "a scheduler may start it elsewhere"
        eventually(lambda: asks.left, "the coordinator to know that it has left")
    [proved] = asks.proved
    assert proved.unfit.startswith(f"can't write to {disk}/")
    assert proved.unfit.endswith(": No space left on device")
    assert known(proved.lacking).errno == errno.ENOSPC
    *_, line = run.said
    assert line.startswith("rallypoint: this node can't start workers of job job: can't write to ")
    assert line.endswith(": No space left on device: free space there, or set TMPDIR or --log-dir")
    assert line.count("\n") == 0
    assert "Traceback" not in run.err


def test_A10_a_full_directory_for_temporary_files_is_found_too(tmp_path: Path, disk: Path) -> None:
    (disk / "filler").write_bytes(bytes(48 * 1024))
    with asking() as asks, waiting(tmp_path, asks, temp=str(disk)) as run:
        assert run.wait() == 75
    assert asks.proved[0].unfit == f"can't write to {disk}: No space left on device"
    assert asks.proved[0].lacking == Lacking(f"write to {disk}", errno.ENOSPC)
    assert [path.name for path in disk.iterdir()] == ["filler"]


def test_A10_a_node_whose_log_directory_is_gone_leaves_with_75(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "logs"

    def remove() -> None:
        for path in logs.iterdir():
            path.rename(tmp_path / "elsewhere")

    with asking() as asks:
        asks.before.append(remove)
        with waiting(tmp_path, asks, f"--log-dir={logs}", "--redirects=3") as run:
            assert run.wait() == 75, run.err
    assert asks.proved[0].lacking is None
    assert "No such file or directory: set TMPDIR or --log-dir" in run.said[-1]


def test_A10_a_node_that_can_start_workers_says_so_and_waits_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:

        def answer() -> None:
            connection, _ = store.accept()
            with connection:
                assert connection.recv(64)[:4] == b"RLYE"
                connection.sendall(bytes(16))
                heard.append(connection.recv(64))

        heard: list[bytes] = []
        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        with asking(store.getsockname()[1]) as asks, waiting(tmp_path, asks) as run:
            eventually(lambda: asks.proved, "its answer")
            run.send(signal.SIGTERM)
            assert run.wait() == 128 + signal.SIGTERM
        answering.join()
    assert asks.proved == [m.Proved(asks.proved[0].stamp, 1)]
    assert heard == [b""], "no proof: nothing is admitted"
    [candidate] = asks.candidates
    assert candidate.proves
    assert "/" not in candidate.machine, "a loopback address names no machine"


def test_A10_a_node_that_does_not_reach_the_store_says_so_and_waits_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with asking(port) as asks, waiting(tmp_path, asks, "--machine-id=rack-7") as run:
        eventually(lambda: asks.proved, "its answer")
        run.wait_said("the current round continues without this node: node ")
        run.send(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM
    [proved] = asks.proved
    assert not proved.unfit
    assert f"could not reach the round store at 127.0.0.1:{port}" in proved.unreached
    assert asks.candidates[0].machine == "rack-7"


@pytest.mark.parametrize("options", [(), ("--preload=json",)])
def test_A10_a_disk_that_fills_up_between_rounds_is_told_as_the_machine_s_fault(
    tmp_path: Path, disk: Path, options: tuple[str, ...]
) -> None:
    with asking(None) as asks:
        asks.before.append(lambda: fill_with_files(disk))
        rounds = ("--nnodes=1:2", "--rdzv-conf=is_host=false,last_call_timeout=0.1")
        logs = (f"--log-dir={disk}", "--redirects=3", "--max-restarts=0")
        with waiting(tmp_path, asks, *rounds, *logs, *options) as run:
            run.wait()
    failed = asks.failed[0]
    assert failed.failures[0].code == 127, "as an older coordinator has it"
    assert known(failed.lacking).errno == errno.ENOSPC
    assert known(failed.lacking).stage == "write logs"


def test_A10_a_program_that_is_missing_is_not_the_machine_s_fault(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with asking(None) as asks:
        asks.before.append(program.unlink)
        rounds = ("--nnodes=1:2", "--rdzv-conf=is_host=false,last_call_timeout=0.1")
        rest = ("--max-restarts=0", "--no-python", str(program))
        with waiting(tmp_path, asks, *rounds, *rest) as run:
            assert run.wait() == 1, run.err
    assert asks.failed[0].lacking is None
    assert asks.failed[0].failures[0].code == 127
