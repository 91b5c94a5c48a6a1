"""`rallypoint.worker` in workers of real agents: what they learn, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.one_agent import agent, ended, eventually, free_port
from tests.harness.programs import run_program


@pytest.mark.executed
def test_a_worker_knows_its_place(tmp_path: Path) -> None:
    program = """
import dataclasses, json
from rallypoint import worker
place = worker.context()
tell("place", json.dumps(dataclasses.asdict(place)))
tell("says", worker.drain_requested(), worker.should_restart_at_checkpoint(),
     worker.checkpoint_saved(1), worker.progress(1), worker.is_current())
if place.rank == 1 and place.round == 0:
    raise SystemExit(3)
worker.barrier("end", 60)
"""
    options = ("--nproc-per-node=2", "--max-restarts=2", "--rdzv-id=job", "--role=trainer")
    run = ended(agent(tmp_path, *options, program=program), 0)
    places = [json.loads(line) for line in run.told("place")]
    said = set(run.told("says"))
    assert said == {"False False False None True"}
    first, second = (
        sorted((p for p in places if p["round"] == number), key=lambda p: p["rank"])
        for number in (0, 1)
    )
    assert [(p["rank"], p["local_rank"]) for p in second] == [(0, 0), (1, 1)]
    for place in second:
        assert (place["world_size"], place["local_world_size"], place["node_count"]) == (2, 2, 1)
        assert (place["restart_count"], place["max_restarts"]) == (1, 2)
        assert (place["run_id"], place["role"], place["launched"]) == ("job", "trainer", True)
        assert "rank 1" in place["restart_reason"]
        assert place["node_id"]
        assert place["incarnation"]
        assert place["master_port"]
    assert first[0]["restart_count"] == 0
    assert first[0]["incarnation"] == second[0]["incarnation"]


def test_workers_share_a_store_and_meet(tmp_path: Path) -> None:
    program = """
from rallypoint import worker
place = worker.context()
for turn in range(3):
    worker.store().set(f"{turn}/{place.rank}", str(turn * 10 + place.rank))
    worker.barrier("turn", 60)
    other = 1 - place.rank
    assert worker.store().get(f"{turn}/{other}") == str(turn * 10 + other).encode()
if place.rank == 0:
    try:
        worker.barrier("alone", 0.2)
    except TimeoutError as error:
        tell("timeout", error)
worker.barrier("end", 60)
"""
    run = ended(agent(tmp_path, "--nproc-per-node=2", program=program), 0)
    assert "rank 1" in run.told("timeout")[0]


def test_who_waited_in_vain_at_a_barrier_may_come_again(tmp_path: Path) -> None:
    program = """
import os, time
from rallypoint import worker
rank = worker.context().rank
if rank == 0:
    try:
        worker.barrier("late", 0.2)
    except TimeoutError:
        open("waited", "w").close()
else:
    while not os.path.exists("waited"):
        time.sleep(0.01)
for turn in range(3):
    worker.store().set(f"{turn}/{rank}", "here")
    worker.barrier("late", 60)
    assert worker.store().check([f"{turn}/{1 - rank}"]), turn
"""
    ended(agent(tmp_path, "--nproc-per-node=2", program=program), 0)


def test_a_barrier_without_a_store_waits_no_longer_than_it_was_told() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    program = (
        "from rallypoint import worker\n"
        "from rallypoint.errors import StoreConnectionError\n"
        "for timeout_s in (0.2, float('nan'), -1):\n"
        "    try: worker.barrier('x', timeout_s=timeout_s)\n"
        "    except (StoreConnectionError, ValueError) as error: print(type(error).__name__)\n"
    )
    command = [sys.executable, "-c", program]
    ran = run_program(command, env=os.environ | place | where)
    assert ran.stdout.split() == ["StoreConnectionError", "ValueError", "ValueError"], ran.stderr


def test_nothing_of_the_board_is_left_when_the_agent_ends_or_is_killed(tmp_path: Path) -> None:
    program = """
import os, sys, time
from rallypoint import worker
worker.progress(1)
tell("shm", os.environ["RALLYPOINT_SHM"])
time.sleep(float(sys.argv[1]))
"""
    run = ended(agent(tmp_path, "--log-dir=logs", program=program, arguments=["0"]), 0)
    path = Path(run.told("shm")[0])
    assert not path.parent.parent.exists()
    with agent(tmp_path, "--log-dir=logs", program=program, arguments=["600"]) as run:
        path = Path(run.wait_told("shm")[0])
        assert path.is_relative_to(tmp_path / "tmp"), "it belongs on storage of this node"
        assert path.exists()
        run.send(signal.SIGKILL)
        eventually(lambda: not run.processes(), "an end of all processes of the job")
        assert not path.parent.parent.exists()


def test_each_round_has_a_board_of_its_own(tmp_path: Path) -> None:
    program = """
import os
from rallypoint import worker
shm = os.environ["RALLYPOINT_SHM"]
names = os.listdir(os.path.dirname(os.path.dirname(shm)))
tell("rounds", *(name for name in names if name.startswith("round_")))
raise SystemExit(worker.context().round == 0)
"""
    run = ended(agent(tmp_path, "--max-restarts=1", program=program), 0)
    assert run.told("rounds") == ["round_0", "round_1"]


def test_a_worker_whose_round_has_ended_is_not_current(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
from rallypoint import worker
place = worker.context()
if place.round > 0:
    raise SystemExit(0)
if place.rank == 0:
    def stopped(*_):
        tell("current", worker.is_current())
        os._exit(0)
    signal.signal(signal.SIGTERM, stopped)
    tell("before", worker.is_current())
    worker.barrier("ready")
    while True: time.sleep(0.1)
worker.barrier("ready")
raise SystemExit(1)
"""
    run = ended(agent(tmp_path, "--nproc-per-node=2", "--max-restarts=1", program=program), 0)
    assert run.told("before") == ["True"]
    assert run.told("current") == ["False"]


def test_F2_a_worker_knows_that_the_lease_is_over_while_its_agent_is_paused(tmp_path: Path) -> None:
    program = """
import time
from rallypoint import worker
if worker.context().round:
    raise SystemExit(0)
tell("current", worker.is_current())
while worker.is_current():
    time.sleep(0.01)
tell("over", 1)
time.sleep(600)
"""
    meet = f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-conf=last_call_timeout=0.1"
    # A job that can have one node only has no lease; and the guard would be as fast.
    with agent(tmp_path, "--lease=2", "--nnodes=1:2", *meet, program=program) as run:
        run.wait_told("current")
        assert "over" not in run.out
        paused = [*run.named("worker-guard"), run.pid]
        try:
            for pid in paused:
                os.kill(pid, signal.SIGSTOP)
            run.wait_told("over")
        finally:
            for pid in paused:
                os.kill(pid, signal.SIGCONT)
        assert run.wait() == 0, run.err
        assert run.told("current") == ["True"]


def test_outside_of_any_launcher_every_call_says_what_is_true_of_one_process() -> None:
    script = """
from rallypoint import worker
place = worker.context()
print(place.rank, place.world_size, place.launched, repr(place.run_id), place.round)
print(worker.drain_requested(), worker.should_restart_at_checkpoint(),
      worker.checkpoint_saved(3), worker.progress(3), worker.is_current(), worker.barrier("x"))
worker.store().set("a", "b")
print(worker.store().get("a"))
"""
    env = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "0 1 False '' 0",
        "False False False None True None",
        "b'b'",
    ]
    assert done.stderr == ""


LIGHT = {"__future__", "errno", "importlib", "mmap", "warnings"}


def test_importing_it_is_light() -> None:
    script = """
import os, sys
before = set(sys.modules)
from rallypoint import worker
worker.progress(1)
worker.drain_requested()
worker.checkpoint_saved(1)
worker.is_current()
print(*sorted(set(sys.modules) - before))
from rallypoint.worker import context
context()
print(*sys.modules)
"""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        "import sys; sys.path.append(sys.argv[1])" + script,
    ]
    source = Path(__file__).parents[2] / "src"
    done = run_program([*command, str(source)], env={}, check=True)
    light, whole = (set(line.split()) for line in done.stdout.splitlines())
    ours = {name for name in light if name.partition(".")[0] == "rallypoint"}
    assert {name.partition(".")[0] for name in light - ours} <= LIGHT
    assert {name.split(".")[1] for name in ours if "." in name} == {
        "files",
        "lazy",
        "worker",
        "wire",
    }
    assert "msgspec" not in whole
