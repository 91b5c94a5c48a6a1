"""A1 to A3 on one node: an exit is noticed, restarts are counted, the first cause is named."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.harness.one_agent import OneAgent, agent, ended, eventually
from tests.harness.proc import is_alive, stat_of

from rallypoint.wire.c10d_fields import VALIDATE_MAGIC

ROUND = "import os, sys, signal, time; round_ = int(os.environ['RALLYPOINT_ROUND'])\n"
RANK = "rank = int(os.environ['RANK'])\n"
TELL_PID = "tell('pid', os.getpid())\n"
LOSES_ITS_PEER = (
    "import os, time\n" + RANK + "tell('pid', rank, os.getpid())\n"
    "if rank == 0: time.sleep(600)\n"
    "os.read(os.open('pipe', os.O_RDONLY), 1)\n"
    "raise ConnectionResetError('Connection reset by peer')"
)
"""Rank 1 fails when the pipe is closed, rank 0 runs on."""


def cpu_and_wakeups(pid: int) -> tuple[float, int]:
    """Seconds of CPU time, and how often a process went to sleep by itself."""
    fields = stat_of(pid)
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    switches = next(line for line in status if line.startswith("voluntary_ctxt_switches"))
    return ticks / os.sysconf("SC_CLK_TCK"), int(switches.split()[1])


def wait_wakeups(pid: int, count: int) -> None:
    """Wait until a process has slept, and woken up, so many times more."""
    wanted = cpu_and_wakeups(pid)[1] + count
    eventually(lambda: cpu_and_wakeups(pid)[1] >= wanted, f"{count} times that it wakes up")


def test_A1_an_idle_agent_sleeps_and_a_crash_is_noticed_at_once(tmp_path: Path) -> None:
    program = ROUND + TELL_PID + "round_ or time.sleep(600)"
    with agent(tmp_path, "--max-restarts=1", program=program) as run:
        pid = int(run.wait_told("pid")[0])
        helpers = [p for p in run.processes() if p not in (run.pid, pid)]
        wait_wakeups(run.pid, 2)  # What starting leaves to do is done.
        before, began_at = {p: cpu_and_wakeups(p) for p in (run.pid, *helpers)}, time.monotonic()
        # A single burst is no polling: that a second has passed since the start is one.
        while (took_s := time.monotonic() - began_at) < 2:
            wait_wakeups(run.pid, 1)
        for process, (cpu_s, sleeps) in before.items():
            cpu_after_s, sleeps_after = cpu_and_wakeups(process)
            name = run.processes()[process]
            # Heartbeats are one a second: a frame each way, and the status after it.
            assert (sleeps_after - sleeps) / took_s < 16, f"{name} polls"
            assert (cpu_after_s - cpu_s) / took_s < 0.06, f"{name} is busy"
        os.kill(pid, signal.SIGKILL)
        second = run.wait_told("pid", 2)[1]
        assert int(second) != pid
        assert run.wait() == 0


def test_A1_all_workers_restart_together(tmp_path: Path) -> None:
    program = (
        ROUND
        + RANK
        + "tell('round', round_, rank, os.environ['TORCHELASTIC_RESTART_COUNT'],"
        + " os.environ['TORCHELASTIC_MAX_RESTARTS'])\n"
        + "open(f'told-{rank}', 'w').close()\n"
        + "if round_ == 0 and rank == 1:\n"
        + "    while not all(os.path.exists(f'told-{n}') for n in (0, 2)): time.sleep(0.01)\n"
        + "    sys.exit(5)\n"
        + "if round_ == 0: time.sleep(600)"
    )
    run = ended(agent(tmp_path, "--nproc-per-node=3", "--max-restarts=2", program=program), 0)
    told = [line.split() for line in run.told("round")]
    assert sorted(told) == [
        [str(round_), str(rank), str(round_), "2"] for round_ in (0, 1) for rank in (0, 1, 2)
    ]


@pytest.mark.parametrize(
    ("budget", "window", "rounds"), [(0, (), 1), (2, (), 3), (1, ("--restart-window=60",), 2)]
)
def test_A2_restarts_are_counted(
    tmp_path: Path, budget: int, window: tuple[str, ...], rounds: int
) -> None:
    program = ROUND + "tell('round', round_); sys.exit(3)"
    run = ended(agent(tmp_path, f"--max-restarts={budget}", *window, program=program), 1)
    assert run.told("round") == [str(n) for n in range(rounds)]
    if budget:
        assert f"restarts: {budget} of {budget} used" in run.err


def test_A2_a_restart_out_of_the_window_is_forgotten(tmp_path: Path) -> None:
    program = ROUND + TELL_PID + "if round_ < 3: time.sleep(1.2); sys.exit(3)"
    options = ("--max-restarts=1", "--restart-window=1")
    run = ended(agent(tmp_path, *options, program=program), 0)
    assert len(run.told("pid")) == 4


def names_the_killed_rank_0(run: OneAgent) -> str:
    """The last lines of a job, the first of which says that rank 0 was killed."""
    verdict = run.err.partition("rallypoint: job")[2]
    assert "rank 0" in verdict.splitlines()[0]
    assert "was killed by SIGKILL" in verdict.splitlines()[0]
    return verdict


def test_A3_a_fatal_signal_outranks_the_error_that_follows_from_it(tmp_path: Path) -> None:
    """Even where the error is noticed no later: here the agent sleeps while both happen."""
    os.mkfifo(tmp_path / "pipe")
    with agent(tmp_path, "--nproc-per-node=2", program=LOSES_ITS_PEER) as run:
        pids = {line.split()[0]: int(line.split()[1]) for line in run.wait_told("pid", 2)}
        run.send(signal.SIGSTOP)
        (tmp_path / "pipe").open("wb").close()
        eventually(lambda: not is_alive(pids["1"]), "an end of rank 1")
        os.kill(pids["0"], signal.SIGKILL)
        eventually(lambda: not is_alive(pids["0"]), "an end of rank 0")
        run.send(signal.SIGCONT)
        assert run.wait() == 1
    verdict = names_the_killed_rank_0(run)
    assert "1 other worker failed because of it" in verdict
    assert "ConnectionResetError" not in verdict


def test_A3_a_worker_whose_death_takes_longer_than_its_peers_failure(tmp_path: Path) -> None:
    """Its connections are closed before its end can be seen, so that the peer is seen first."""
    program = (
        "import os, signal\n"
        "die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "signal.signal(signal.SIGTERM, die)\n"
    ) + LOSES_ITS_PEER
    os.mkfifo(tmp_path / "pipe")
    with agent(tmp_path, "--nproc-per-node=2", program=program) as run:
        run.wait_told("pid", 2)
        (tmp_path / "pipe").open("wb").close()
        assert run.wait() == 1
    names_the_killed_rank_0(run)


def test_what_a_worker_that_ended_well_left_running_is_ended_with_the_job(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1': sys.stdin.read(); time.sleep(float(sys.argv[1]))\n"
        "elif os.fork() == 0: tell('child', os.getpid()); time.sleep(600)"
    )
    with agent(tmp_path, "--nproc-per-node=2", program=program, arguments=["0.3"]) as run:
        child = int(run.wait_told("child")[0])
        assert run.wait() == 0
        assert not is_alive(child)
        eventually(lambda: not run.processes(), "nothing left")


def test_every_round_has_a_store_of_its_own(tmp_path: Path) -> None:
    """In the bytes of torch's clients: validate, check a key, set it, check it again."""
    program = (
        ROUND
        + "import socket, struct\n"
        + "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        + "store = socket.create_connection(address)\n"
        + "word = lambda text: struct.pack('<Q', len(text)) + text\n"
        + "check = b'\\x05' + struct.pack('<Q', 1) + word(b'mine')\n"
        + f"store.sendall(b'\\0' + struct.pack('<I', {VALIDATE_MAGIC}))\n"
        + "store.sendall(check + b'\\x01' + word(b'mine') + word(b'yes') + check)\n"
        + "answers = store.recv(1) + store.recv(1)\n"
        + "tell('missing', *answers)\n"
        + "sys.exit(0 if round_ else 3)"
    )
    run = ended(agent(tmp_path, "--max-restarts=1", program=program), 0)
    assert run.told("missing") == ["1 0", "1 0"]


def test_real_torch_workers_meet_and_reduce(tmp_path: Path, torch_python: str) -> None:
    program = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "mine = torch.tensor([dist.get_rank() + 1.0])\n"
        "dist.all_reduce(mine)\n"
        "tell('sum', mine.item())\n"
        "dist.destroy_process_group()"
    )
    env = {"PYTHON_EXEC": torch_python}
    run = ended(agent(tmp_path, "--nproc-per-node=2", program=program, env=env), 0)
    assert run.told("sum") == ["3.0", "3.0"]
