"""A6: an agent that is killed leaves nothing of the job; a guard that is killed is no harm."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from shutil import rmtree

import pytest
from tests.harness.one_agent import OneAgent, agent, ended, eventually
from tests.harness.proc import is_alive
from tests.harness.stubborn import STUBBORN

# So that the process of the store starts.
ASKS_FOR_THE_STORE = """
import os, socket, struct
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = socket.create_connection(address)
store.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\x0d\\1\\2\\3\\4")
assert store.recv(4) == b"\\1\\2\\3\\4"
"""
WORKER = ASKS_FOR_THE_STORE + STUBBORN
HELPERS = ("worker-guard", "rallypoint-rly")


def started(run: OneAgent, workers: int) -> None:
    run.wait_told("pid", 3 * workers)
    for helper in HELPERS:
        assert run.named(helper), f"{helper} is not among {run.processes()}"
    # The agent, its helpers, the store, the workers and their children.
    assert len(run.processes()) == 1 + len(HELPERS) + 1 + 3 * workers, run.processes()


@pytest.mark.executed
def test_A6_an_agent_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with agent(tmp_path, "--nproc-per-node=2", program=WORKER) as run:
        started(run, 2)
        run.kill()
        assert run.process.returncode == -signal.SIGKILL


LEAVES_A_CHILD = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    tell("exits", os.getpid())
    if os.fork():
        os._exit(0)
tell("pid", os.getpid())
time.sleep(600)
"""


def test_A6_what_an_exited_worker_left_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    with agent(tmp_path, "--nproc-per-node=2", program=LEAVES_A_CHILD) as run:
        stay = [int(pid) for pid in run.wait_told("pid", 2)]
        [worker] = [int(pid) for pid in run.wait_told("exits")]
        eventually(lambda: not is_alive(worker), "the exit of the first worker")
        assert all(map(is_alive, stay))
        run.send(signal.SIGKILL)
        eventually(lambda: not run.processes(), "an end of all processes of the job")
        assert not os.listdir(tmp_path / "tmp")


def test_A6_an_agent_that_is_killed_leaves_the_logs_that_a_person_asked_for(
    tmp_path: Path,
) -> None:
    program = "import os, time; tell('pid', os.getpid()); time.sleep(600)"
    with agent(tmp_path, "--tee=1", "--log-dir=logs", program=program) as run:
        run.wait_told("[default0]:pid")
        run.send(signal.SIGKILL)
        eventually(lambda: not run.processes(), "an end of all processes of the job")
    assert [file.name for file in (tmp_path / "logs").rglob("*.log")] == ["stdout.log"]
    with agent(tmp_path, "--tee=1", program=program) as run:
        run.wait_told("[default0]:pid")
        run.send(signal.SIGKILL)
        eventually(lambda: not run.processes(), "an end of all processes of the job")
        left = list((tmp_path / "tmp").rglob("*.log"))
        rmtree(next((tmp_path / "tmp").iterdir()))
    assert [file.name for file in left] == ["stdout.log"]


def test_A6_a_guard_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with agent(tmp_path, program=WORKER) as run:
        started(run, 1)
        first = run.named("worker-guard")
        os.kill(first[0], signal.SIGKILL)
        run.wait_said("guard")
        eventually(lambda: run.named("worker-guard") not in ([], first), "another guard")
        workers = [int(pid) for pid in run.told("pid")]
        assert all(map(is_alive, workers))
        run.kill()


def test_A6_the_last_process_of_a_job_that_succeeds_is_the_agent(tmp_path: Path) -> None:
    """Also the store, which a worker has used."""
    program = WORKER.replace("time.sleep(600)", "")
    ended(agent(tmp_path, program=program), 0)
