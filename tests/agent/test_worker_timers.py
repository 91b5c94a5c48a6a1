"""W6: a worker whose timer has ended is ended, it alone, and the agent goes on."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest
from tests.harness.one_agent import agent, ended
from tests.harness.unprivileged import become_somebody

STUCK = """
import os, signal, sys, time
from rallypoint import worker
from rallypoint.elastic.timer import expires
place = worker.context()
def never_ends():
    time.sleep(600)
"""
FAILS_ONCE = (
    STUCK
    + """
if place.round == 0:
    if place.rank == 0:
        def told(*_):
            tell("told", worker.is_current())
            os._exit(0)
        signal.signal(signal.SIGTERM, told)
        tell("pid", os.getpid())
        worker.barrier("both")
        while True: time.sleep(0.1)
    worker.barrier("both")
    with expires(after=60, scope="long"), expires(after=1.5, scope="all reduce"):
        never_ends()
with expires(after=60, scope="long"):
    tell("round", place.round, place.restart_count, place.restart_reason)
"""
)
FAILS = (
    STUCK
    + """
if place.rank == 1:
    with expires(after=1, scope="all reduce"):
        never_ends()
time.sleep(600)
"""
)


@pytest.mark.executed
def test_W6_an_expired_timer_ends_its_worker_alone_and_the_job_restarts(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, "--nproc-per-node=2", "--max-restarts=1", program=FAILS_ONCE), 0)
    # The other one has lived until the round was stopped, and was asked to end, not killed.
    assert run.told("told") == ["False"]
    rounds = run.told("round")
    assert len(rounds) == 2
    for line in rounds:
        assert line.startswith("1 1 ")
        assert "rank 1" in line
        assert "timer 'all reduce' expired after 1.5 s" in line
    assert any(
        line.endswith("rank 1: timer 'all reduce' expired after 1.5 s: ending it")
        for line in run.said
    )


def test_W6_the_last_lines_name_the_timer_and_show_the_stacks(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, "--nproc-per-node=2", program=FAILS), 1)
    verdict = run.err[run.err.index("rallypoint: job-") :]
    assert "rank 1 (" in verdict.splitlines()[0]
    assert "SIGKILL" in verdict.splitlines()[0]
    assert "error: timer 'all reduce' expired after 1 s" in verdict
    assert "what it was doing:" in verdict
    assert "in never_ends" in verdict
    assert "out of memory" not in verdict


def test_blocks_that_are_over_in_time_end_nobody(tmp_path: Path) -> None:
    program = (
        STUCK
        + """
for turn in range(200):
    with expires(after=0.5, scope="turn"):
        pass
@expires(after=0.5)
def quick():
    return 7
assert [quick(), quick()] == [7, 7]
try:
    with expires(after=0.3, scope="fails"):
        raise KeyError("own")
except KeyError:
    pass
time.sleep(1)
tell("done", 1)
"""
    )
    run = ended(agent(tmp_path, program=program), 0)
    assert run.told("done") == ["1"]
    assert "expired" not in run.err


PAUSED = """
import threading, time
from rallypoint.elastic.timer import expires
turn, waited = 0, threading.Event()
def watch():
    seen, since = turn, time.monotonic()
    while time.monotonic() < since + 1.5:  # longer than a client without patience tries
        time.sleep(0.01)
        if turn != seen:
            seen, since = turn, time.monotonic()
    tell("waits", turn)
    waited.set()
tell("runs", 1)
threading.Thread(target=watch, daemon=True).start()
while not waited.is_set():
    with expires(after=60, scope="turn"):
        turn += 1
tell("done", 1)
"""


def test_an_agent_that_is_paused_fails_no_worker_that_uses_timers(tmp_path: Path) -> None:
    with agent(tmp_path, "--lease=60", program=PAUSED) as run:
        run.wait_told("runs")
        run.send(signal.SIGSTOP)
        try:
            run.wait_told("waits")
        finally:
            run.send(signal.SIGCONT)
        assert run.wait() == 0, run.err
        assert run.told("done") == ["1"]
        assert "expired" not in run.err


def test_a_timer_of_a_process_that_a_worker_started_ends_the_worker(tmp_path: Path) -> None:
    program = """
import subprocess, sys, time
text = "import time; from rallypoint.elastic.timer import expires\\n"
text += "with expires(after=1, scope='in a child'): time.sleep(600)"
subprocess.run([sys.executable, "-c", text])
tell("survived")
time.sleep(600)
"""
    run = ended(agent(tmp_path, program=program), 1)
    assert run.told("survived") == []
    assert "timer 'in a child' expired after 1 s" in run.err


def test_a_request_for_a_process_of_somebody_else_ends_nobody(tmp_path: Path) -> None:
    program = """
import os, time
from rallypoint.wire.timer_lines import format_timer_line
pipe = os.path.join(os.path.dirname(os.environ["RALLYPOINT_SHM"]), "wake-up")
fd = os.open(pipe, os.O_WRONLY)
for pid in (os.getppid(), 1, 0, -1, 2**31, 10**30):
    os.write(fd, format_timer_line(pid, "not mine", time.time(), 9).encode() + b"\\n")
os.write(fd, b'{"version": 1, "pid": ' + b"[" * 3000 + b"\\n")
for number in (0, -5, 10**9):
    os.write(fd, format_timer_line(os.getpid(), "mine", time.time(), number).encode() + b"\\n")
time.sleep(1)
tell("done", 1)
"""
    run = ended(agent(tmp_path, program=program), 0)
    assert run.told("done") == ["1"]
    assert "rank 0: timer 'mine' expired" in run.err
    assert "not ended, as its request asks" in run.err


PIPE = """
import os, stat, time
from rallypoint.elastic.timer import FileTimerClient
path = os.environ["TORCHELASTIC_TIMER_FILE"]
tell("pipe", path)
client = FileTimerClient(path)
client.acquire("by the pipe", time.time() + 1)
time.sleep(600)
"""


HOSTILE = """
import json, os, random, struct, sys, time
shm = os.environ["RALLYPOINT_SHM"]
pipe = os.open(os.path.join(os.path.dirname(shm), "wake-up"), os.O_WRONLY)
def ask(**other):
    said = {"version": 1, "pid": os.getpid(), "scope_id": "s", "signal": 9}
    said["expiration_time"] = time.time() + 600
    os.write(pipe, (json.dumps(said | other) + "\\n").encode())
for time_s in (1.7e308, 1e300, 2.0**63, 10**400, 1e-308, float("nan"), float("inf")):
    harmless = {"signal": 0 if time_s < 1 else 9}  # It has expired when it is read.
    ask(expiration_time=time_s, **harmless)
    ask(expiration_time=time_s, after_s=time_s, **harmless)
    ask(after_s=-time_s)
for number in (10**30, 2**31, 2**63, -1, 0, 10**400):
    ask(pid=number)
    ask(signal=number, expiration_time=time.time() - 1)
    ask(version=number)
ask(pid=os.getppid(), expiration_time=1)
ask(scope_id="\\ud800\\x1b[2J", signal=0, expiration_time=1)
for line in (b"{" + b"[" * 3000, b'{"a":' * 700, b'{"pid":' + b"9" * 4000 + b"}", b"\\xff\\0{"):
    os.write(pipe, line + b"\\n")
mapped = os.open(shm, os.O_RDWR)
words = [2**63 - 1, -(2**63), -1, 2**31, os.getppid(), 64, 40]
size = os.fstat(mapped).st_size // 8
for turn in range(60):
    os.pwrite(mapped, struct.pack(f"={size}q", *random.choices(words, k=size)), 0)
    ask(pid=os.getpid(), scope_id=f"looks {turn}", signal=0, expiration_time=1)
    os.write(pipe, os.urandom(4096))
    time.sleep(0.01)
os.truncate(shm, 0)
os.write(pipe, b"x\\n")
os.truncate(shm, 1 << 40)
os.write(pipe, b"x\\n")
"""


def test_nothing_that_a_worker_writes_ends_its_agent(tmp_path: Path) -> None:
    """A line about a time that no clock can show did, and so the job of all nodes."""
    options = "--hang-timeout=30", "--json-summary=summary.json"
    run = ended(agent(tmp_path, *options, program=HOSTILE), 0)
    assert "Traceback" not in run.err


def test_a_pipe_at_the_place_that_torchs_variable_names_is_served_and_removed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "timers"
    os.mkfifo(path)  # Left behind by an agent that was killed.
    env = {"TORCHELASTIC_TIMER_FILE": str(path)}
    run = ended(agent(tmp_path, "--max-restarts=1", program=PIPE, env=env), 1)
    assert run.told("pipe") == [str(path)] * 2
    assert "timer 'by the pipe' expired after " in run.err
    assert not path.exists()


def test_a_pipe_that_somebody_else_reads_is_left_to_him(tmp_path: Path) -> None:
    path = tmp_path / "timers"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        env = {"TORCHELASTIC_TIMER_FILE": str(path)}
        run = ended(agent(tmp_path, program=PIPE, env=env), 1)
        assert run.told("pipe") != [str(path)]
        assert "timer 'by the pipe' expired after " in run.err
        assert stat.S_ISFIFO(path.stat().st_mode)
    finally:
        os.close(fd)


def test_a_place_for_the_pipe_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    for name, why in (("worker.py", "something else"), ("no/where", "No such file")):
        path = tmp_path / name
        env = {"TORCHELASTIC_TIMER_FILE": str(path)}
        with agent(tmp_path, program="pass", env=env) as run:
            assert run.wait() != 0
            assert f"TORCHELASTIC_TIMER_FILE={path}: " in run.err
            assert why in run.err
            assert "Traceback" not in run.err


def test_a_pipe_that_this_user_may_not_remove_is_one_clear_line(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("a directory in which only the owner removes files needs another user")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / "timers"
    os.mkfifo(path)
    env = {"TORCHELASTIC_TIMER_FILE": str(path)}
    with agent(tmp_path, program="pass", env=env, under=become_somebody()) as run:
        assert run.wait() == 1
        assert f"TORCHELASTIC_TIMER_FILE={path}: can't make this named pipe: " in run.err
        assert "Operation not permitted: choose another path" in run.err
        assert "Traceback" not in run.err
    assert path.is_fifo()
