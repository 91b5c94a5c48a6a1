"""The agent as PID 1 of a container: it reaps orphans, and signals work although the kernel
protects a first process from those that it does not handle."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from shutil import rmtree

import pytest
from tests.harness.alone import ALONE, can_be_alone
from tests.harness.one_agent import OneAgent, agent, eventually
from tests.harness.proc import children_of

# Tells the pid of a grandchild that the agent adopts, and what state that pid is in.
WORKER = """
import os, sys, time
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    if os.fork() == 0:
        os.write(writer, str(os.getpid()).encode())
        os.setsid()
        time.sleep(0.1)
    os._exit(0)
os.waitpid(child, 0)
orphan = int(os.read(reader, 20))
tell("parent", os.getppid())
while os.path.exists(f"/proc/{orphan}"): time.sleep(0.01)
tell("reaped", orphan)
while not os.path.exists("go"): time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if not can_be_alone():
        pytest.skip("PID namespaces need root, and a kernel that has them")


def init_of(run: OneAgent) -> int:
    """The agent itself, from outside; `run.pid` is that of unshare."""
    return children_of(run.pid)[0]


def test_orphans_are_reaped_and_the_job_ends_well(tmp_path: Path) -> None:
    with agent(tmp_path, program=WORKER, under=ALONE) as run:
        assert run.wait_told("parent") == ["1"]
        run.wait_told("reaped")
        (tmp_path / "go").touch()
        assert run.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(tmp_path: Path, number: int) -> None:
    with agent(tmp_path, program=WORKER, under=ALONE) as run:
        run.wait_told("reaped")
        os.kill(init_of(run), number)
        assert run.wait() == 128 + number


def test_a_signal_that_comes_before_the_handlers_is_kept(tmp_path: Path) -> None:
    def is_held_or_handled() -> bool:
        try:
            status = Path(f"/proc/{init_of(run)}/status").read_text()
        except (OSError, IndexError):
            return False
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if fields["Name"].strip() == "unshare":  # which holds signals too, while it forks
            return False
        masks = int(fields["SigBlk"], 16) | int(fields["SigCgt"], 16)
        return bool(masks >> (signal.SIGTERM - 1) & 1)

    with agent(tmp_path, program=WORKER, under=ALONE) as run:
        eventually(is_held_or_handled, "signals held")
        os.kill(init_of(run), signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM


def test_its_death_ends_everything(tmp_path: Path) -> None:
    with agent(tmp_path, program=WORKER, under=ALONE) as run:
        run.wait_told("reaped")
        os.kill(init_of(run), signal.SIGKILL)
        eventually(lambda: not run.processes(), "nothing left")
        # The guard has gone with its container, so that nobody removes the temporary directories.
        for left in (tmp_path / "tmp").iterdir():
            rmtree(left)
