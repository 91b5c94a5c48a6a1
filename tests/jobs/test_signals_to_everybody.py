"""A5: schedulers (a time limit, `scancel`, systemd, LSF, PBS) send a signal to every process of a
job at once. Those that serve the workers ignore it, and end with their agent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.harness.one_agent import OneAgent, agent

# As people write it: a flag in the handler, and a checkpoint that needs the store of the round.
SAVES = """
import os, signal, sys, time
from rallypoint import worker
told = []
number = int(sys.argv[1])
signal.signal(number, lambda *_: told.append(1))
place, shared = worker.context(), worker.store()
worker.barrier("up")
tell("up", place.rank)
while not told:
    time.sleep(0.01)
shared.set(f"part/{place.rank}", b"x")
worker.barrier("saved", timeout_s=30)
open(f"saved{place.rank}", "w").close()
"""


def agent_first(job: OneAgent) -> list[int]:
    """All processes of a job, in the order in which they are signalled: workers that have all ended
    well before their agent gets the signal have succeeded."""
    return sorted(job.processes(), key=lambda pid: pid != job.pid)


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGTERM, ("--preload=json",)),
        (signal.SIGINT, ()),
        (signal.SIGUSR1, ("--preload=json", "--signals-to-handle=SIGUSR1")),
    ],
    ids=["SIGTERM", "SIGINT", "SIGUSR1"],
)
def test_A5_workers_save_by_the_store_when_every_process_got_the_signal(
    tmp_path: Path, number: int, options: tuple[str, ...]
) -> None:
    arguments = [str(int(number))]
    options = "--nproc-per-node=2", *options
    with agent(tmp_path, *options, program=SAVES, arguments=arguments) as job:
        job.wait_told("up", 2)
        for pid in agent_first(job):
            os.kill(pid, number)
        assert job.wait() == 128 + number
        assert {path.name for path in tmp_path.glob("saved*")} == {"saved0", "saved1"}


# The loop of docs/draining.md, without a framework.
LOOP = """
import os, signal, sys, time
from rallypoint import worker
place, shared = worker.context(), worker.store()
worker.barrier("up")
for step in range(10**6):
    time.sleep(0.01)
    worker.progress(step)
    if worker.should_restart_at_checkpoint():
        shared.set(f"part/{place.rank}", b"x")
        worker.barrier("saved", timeout_s=30)
        open(f"saved{place.rank}", "w").close()
        worker.checkpoint_saved(step)
        break
    if step == 1:
        tell("up", place.rank)
"""


def test_A5_the_documented_loop_saves_when_every_process_got_sigterm(tmp_path: Path) -> None:
    with agent(tmp_path, "--nproc-per-node=2", program=LOOP) as job:
        job.wait_told("up", 2)
        for pid in agent_first(job):
            os.kill(pid, signal.SIGTERM)
        assert job.wait() == 143
        assert {path.name for path in tmp_path.glob("saved*")} == {"saved0", "saved1"}


# Rank 0 fails; rank 1 can't run a handler, as one that waits in a collective can't; what it has
# forked gets SIGTERM and time, as ever.
RE_FORMS = """
import os, signal, sys, time
from rallypoint import worker
place = worker.context()
if place.round:
    tell("again", place.restart_count, place.restart_reason)
    sys.exit(0)
worker.should_restart_at_checkpoint()
def clean_up(*_):
    tell("clean", place.rank)
    os._exit(0)
if place.rank == 1:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, clean_up)
        tell("up", "child")
        while True: time.sleep(0.1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if place.rank == 2:
    signal.signal(signal.SIGTERM, clean_up)
    worker.should_restart_at_checkpoint()
tell("up", place.rank)
while place.rank or not os.path.exists("fail"):
    time.sleep(0.01)
sys.exit(9)
"""


def test_A5_who_holds_sigterm_back_is_killed_at_once_when_the_job_re_forms(tmp_path: Path) -> None:
    """The grace is far longer than the test may take. A program's handler has it, though."""
    options = "--nproc-per-node=3", "--max-restarts=1", "--restart-grace=600"
    with agent(tmp_path, *options, program=RE_FORMS) as job:
        job.wait_told("up", 4)
        (tmp_path / "fail").touch()
        assert job.wait() == 0, job.err
        assert sorted(job.told("clean")) == ["1", "2"]
        told = job.told("again")
        assert len(told) == 3
        assert all(line.startswith("1 rank 0") and "code 9" in line for line in told)
        assert "SIGKILL" not in job.err
