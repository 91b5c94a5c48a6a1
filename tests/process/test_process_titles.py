"""What `ps` shows of an agent, its helpers and its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster
from tests.harness.function_job import function_job
from tests.harness.one_agent import OneAgent, agent, eventually, free_port
from tests.harness.proc import name_of

pytestmark = pytest.mark.executed

STAY = """
import os, time
tell("up", os.getpid(), os.environ["RANK"])
while not os.path.exists("go"):
    time.sleep(0.01)
"""
JOIN_STORE = """
import os, socket
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
"""
FUNCTION = """
def stay():
    import time
    tell("up", os.getpid(), os.environ["RANK"])
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


def command_line(pid: int) -> str:
    """As `ps -f` shows it."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode()


def shown(running: OneAgent) -> set[str]:
    """The command lines of all processes of the job but its agent's and its workers'."""
    others = {running.pid} | {int(line.split()[0]) for line in running.told("up")}
    return {command_line(pid) for pid in running.processes() if pid not in others}


def end(running: OneAgent) -> None:
    (running.home / "go").touch()
    assert running.wait() == 0, running.err


def test_each_helper_says_what_it_is_and_of_which_job_and_node(tmp_path: Path) -> None:
    where = (f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--insecure")
    with agent(
        tmp_path, "--rdzv-id=job7", "--node-id=a", *where, program=JOIN_STORE + STAY
    ) as running:
        running.wait_told("up")
        helpers = {
            "rallypoint: relay of job job7 (node a)",
            "rallypoint: store of round 0 of job job7 (node a)",
            "worker guard",
        }
        eventually(lambda: shown(running) == helpers, "the titles")
        names = set(running.processes().values())
        assert {"worker-guard", "rallypoint-rly", "rally-store-0"} < names
        end(running)


def test_the_agent_and_its_workers_keep_the_command_lines_that_people_look_for(
    tmp_path: Path,
) -> None:
    with agent(tmp_path, "--rdzv-id=job7", program=STAY, arguments=["--lr", "3"]) as running:
        [told] = running.wait_told("up")
        script = tmp_path / "worker.py"
        run = f"-m rallypoint run --rdzv-id=job7 {script} --lr 3"
        assert command_line(running.pid) == f"{sys.executable} {run}"
        worker = f"{sys.executable} -u {script} --lr 3"
        assert command_line(int(told.split()[0])) == worker
        processes = running.processes()
        assert processes[running.pid] == "rallypoint-agt"
        assert processes[int(told.split()[0])].startswith("python")
        end(running)


def test_a_coordinator_of_its_own_has_a_name_in_top(cluster: Cluster) -> None:
    server = cluster.serve()
    eventually(lambda: name_of(server.pid) == "rallypoint-srv", "the name")


def test_a_guard_that_is_replaced_says_what_it_is(tmp_path: Path) -> None:
    with agent(tmp_path, "--rdzv-id=job7", program=STAY) as running:
        running.wait_told("up")
        [first] = running.named("worker-guard")
        os.kill(first, signal.SIGKILL)
        running.wait_said("started another")
        eventually(lambda: "worker guard" in shown(running), "the title")
        end(running)


def test_a_worker_of_a_prepared_process_is_shown_as_if_it_had_been_executed(
    tmp_path: Path,
) -> None:
    options = ("--preload=json", "--rdzv-id=job7", "--nproc-per-node=2")
    words = ["--lr", "3", "${local_rank}"]
    with agent(tmp_path, *options, program=STAY, arguments=words) as running:
        for told in running.wait_told("up", 2):
            pid, rank = told.split()
            worker = f"{sys.executable} -u {tmp_path / 'worker.py'} --lr 3 {rank}"
            assert command_line(int(pid)) == worker
            assert running.processes()[int(pid)].startswith("python")
        assert "rallypoint: prepared process of job job7" in shown(running)
        end(running)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_worker_that_runs_a_function_says_its_rank_and_job(tmp_path: Path, method: str) -> None:
    with function_job(tmp_path, FUNCTION, f"stay, method={method!r}") as running:
        for told in running.wait_told("up", 2):
            pid, rank = told.split()
            title = f"rank {rank} of job job (rallypoint)"
            assert title in command_line(int(pid)), command_line(int(pid))
        end(running)


def test_a_title_that_finds_no_room_is_cut_off() -> None:
    program = (
        "import sys; from rallypoint.process import titles; titles.overwrite(['x' * 5000, 'y']); "
        "print(open('/proc/self/cmdline').read(), end='')"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "x" * (sum(len(word) + 1 for word in words) - 1) + "\0"
