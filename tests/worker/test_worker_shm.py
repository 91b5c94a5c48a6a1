"""The shared memory between an agent and its workers, with real workers on the other side."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest
from tests.harness.limits import patience, until
from tests.harness.other_versions import BEFORE_PHASES, environ_of
from tests.harness.shm_workers import SERVE, a_shm, workers, working

from rallypoint import worker
from rallypoint.agent.progress import NO_PHASE, Phase
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.wire import shm_words as at
from rallypoint.wire.shm import ShmRequest, pack_word
from rallypoint.wire.shm_words import ask_stacks_path

LIMIT_S = patience(30.0)
PHASES = f"""
from rallypoint import worker
outer, inner = worker.phase("evaluation"), worker.phase("checkpoint_of-24-letters")
def raised():
    try:
        with worker.phase("broken"):
            raise OSError
    except OSError:
        pass
{SERVE}"""


async def test_a_request_is_seen_and_answered(tmp_path: Path) -> None:
    with working(tmp_path, 2) as (shm, (first, second)):
        assert first.ask("worker.drain_requested()") == "False"
        assert shm.listeners() == {0}
        shm.request(ShmRequest.GROWTH, 60)
        assert first.ask("worker.drain_requested()") == "False"
        assert first.ask("worker.should_restart_at_checkpoint()") == "True"
        assert shm.answered() == frozenset()
        assert second.ask("worker.checkpoint_saved(7)") == "True"
        assert shm.answered() == {1}
        assert shm.checkpoints() == (None, 7)
        shm.request(ShmRequest.DRAIN, 60)
        assert shm.answered() == frozenset(), "that was for the growth"
        assert first.ask("worker.drain_requested()") == "True"
        assert first.ask("worker.checkpoint_saved()") == "True"
        shm.request(ShmRequest.DRAIN, 5)
        assert shm.answered() == {0}, "the deadline alone has moved"
        shm.withdraw()
        assert first.ask("worker.should_restart_at_checkpoint()") == "False"
        assert first.ask("worker.checkpoint_saved(9)") == "False"
        assert shm.answered() == frozenset()
        assert shm.checkpoints() == (9, 7)
        assert shm.listeners() == {0}


async def test_V4_a_person_who_asks_again_gets_another_checkpoint(tmp_path: Path) -> None:
    with working(tmp_path, 1) as (shm, (worker,)):
        for step in (5, 9):
            shm.request(ShmRequest.SAVE, 60)
            assert shm.answered() == frozenset()
            assert worker.ask("worker.checkpoint_requested()") == "True"
            assert worker.ask(f"worker.checkpoint_saved({step})") == "False", "the round goes on"
            assert shm.answered() == {0}
            assert worker.ask("worker.checkpoint_requested()") == "False"


async def test_progress_is_seen_and_ages(tmp_path: Path) -> None:
    with working(tmp_path, 2) as (shm, (first, _)):
        assert shm.progress() == (None, None)
        for step in ("1", "2", "-3", "10**30", "2.5", "41"):
            assert first.ask(f"worker.progress({step})") == "None"
        told, silent = shm.progress()
        assert told is not None
        assert told.step == 41
        assert silent is None
        await until(lambda: (p := shm.progress()[0]) is not None and p.age_s > told.age_s)


async def test_what_is_left_out_of_progress_stays_as_it_was_told_last(tmp_path: Path) -> None:
    shm = WorkerShm.open(str(tmp_path), 3, 2)
    with workers(shm, 2) as (first, second):
        first.ask("worker.progress(1, total=100, loss=0.0)")
        second.ask("worker.progress(1)")
        told, plain = shm.progress()
        assert told is not None
        assert (told.total, told.loss, told.tokens) == (100, 0.0, None)
        assert plain is not None
        assert (plain.total, plain.loss, plain.tokens) == (None, None, None)
        first.ask("worker.progress(2)")
        first.ask("worker.progress(3, 100, float('nan'), 100)")
    shm.close()
    last = shm.progress()[0]
    assert last is not None, "also when the round is over"
    assert (last.step, last.total, last.tokens) == (3, 100, 100)
    assert last.loss != last.loss
    assert last.is_timed


async def test_the_wake_up_pipe_is_written_for_what_is_new(tmp_path: Path) -> None:
    rung: list[None] = []
    with a_shm(tmp_path, 1) as shm:
        shm.watch(lambda: rung.append(None))
        with workers(shm, 1) as (one,):
            for asked in ("drain_requested()", "progress(1)", "checkpoint_saved()"):
                rung.clear()
                one.ask(f"worker.{asked}")
                await until(lambda: rung)
            rung.clear()
            one.ask("[(worker.drain_requested(), worker.progress(2)) for _ in range(999)] and 1")
            await asyncio.sleep(0)
            assert rung == [], "what is asked at every step must not wake the agent"


@pytest.mark.parametrize("time_s", [1e12, 1e30, 1e300])
async def test_a_time_of_the_far_future_fits_in_shared_memory(
    tmp_path: Path, time_s: float
) -> None:
    with a_shm(tmp_path, 1) as shm:
        shm.request(ShmRequest.DRAIN, time_s)
        shm.hold(time_s)
        with workers(shm, 1) as (one,):
            assert one.ask("worker.drain_requested()") == "True"
            assert one.ask("worker.is_current()") == "True"


async def test_nobody_else_may_read_the_shared_memory(tmp_path: Path) -> None:
    with a_shm(tmp_path, 1) as shm:
        folder = Path(shm.path).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


GARBAGE = (
    b"\n" * 100_000,
    b"\xff\x00" * 50_000,
    b"{" * 20_000 + b"\n",
    b'{"a": 1}\n',
    b"listens 99999999999999999999\n",
)


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_in_the_wake_up_pipe_is_no_harm(tmp_path: Path, garbage: bytes) -> None:
    rung: list[None] = []
    with a_shm(tmp_path, 1) as shm:
        shm.watch(lambda: rung.append(None))
        fd = os.open(shm.wake_up_path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            left = garbage
            while left:
                try:
                    left = left[os.write(fd, left) :]
                except BlockingIOError:
                    await asyncio.sleep(0)
        finally:
            os.close(fd)
        with workers(shm, 1) as (one,):
            await asyncio.sleep(0)
            rung.clear()
            one.ask("worker.drain_requested()")
            await until(lambda: rung)
            assert shm.listeners() == {0}


async def test_garbage_on_the_board_is_no_harm(tmp_path: Path) -> None:
    with a_shm(tmp_path, 2) as shm, workers(shm, 2):
        size = os.stat(shm.path).st_size
        for data in (b"\xff" * size, b"\x80" * size, os.urandom(size), b""):
            Path(shm.path).write_bytes(data)
            shm.request(ShmRequest.DRAIN, 1)
            assert len(shm.progress()) == 2
            assert shm.listeners() <= {0, 1}
            assert shm.answered() <= {0, 1}
            assert len(shm.checkpoints()) == 2
            texts = await shm.dump_stacks(0.1)
            assert set(texts) == {0, 1}
            assert all(text.startswith("process ") for text in texts.values())


async def test_a_process_that_a_worker_forks_or_starts_does_not_speak_for_it(
    tmp_path: Path,
) -> None:
    program = """
import os, subprocess, sys
from rallypoint import worker
def children():
    if (pid := os.fork()) == 0:
        said = [worker.drain_requested(), worker.checkpoint_saved(5), worker.progress(99)]
        os._exit(10 + sum(map(bool, said)))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = "from rallypoint import worker as w; w.progress(98); w.checkpoint_saved(6)"
    text += "; print(w.drain_requested())"
    return code, subprocess.run([sys.executable, "-c", text], capture_output=True).stdout
for line in sys.stdin:
    print(eval(line), flush=True)
"""
    with working(tmp_path, 1, program) as (shm, (one,)):
        one.ask("worker.progress(1)")
        shm.request(ShmRequest.DRAIN, 60)
        # They may know (the one forked sees the request), but are not heard.
        assert one.ask("children()") == "(11, b'True\\n')"
        assert shm.answered() == frozenset()
        assert shm.listeners() == frozenset()
        told = shm.progress()[0]
        assert told is not None
        assert told.step == 1
        assert one.ask("worker.checkpoint_saved(2)") == "True"
        assert shm.answered() == {0}


async def test_a_script_that_a_shell_runs_speaks_for_the_worker_one_after_the_other(
    tmp_path: Path,
) -> None:
    program = """
import subprocess, sys
for step in (5, 6):
    text = f"from rallypoint import worker as w; w.progress({step})"
    subprocess.run([sys.executable, "-c", text], check=True)
    print(step, flush=True)
sys.stdin.read()
"""
    with working(tmp_path, 1, program) as (shm, (one,)):
        for expected in (5, 6):
            assert one.line() == str(expected)
        told = shm.progress()[0]
        assert told is not None
        assert told.step == 6


STUCK = """
import sys, threading, time
from rallypoint import worker
waits = threading.Event()
def waits_for_ever():
    waits.set()
    threading.Event().wait()
threading.Thread(target=waits_for_ever, daemon=True).start()
waits.wait()
def busy_in_step():
    print("stuck", flush=True)
    sum(iter(lambda: 1, 2))
worker.progress(1)
busy_in_step()
"""


async def test_stacks_of_all_threads_of_a_worker_that_never_yields(tmp_path: Path) -> None:
    with working(tmp_path, 2, STUCK) as (shm, started):
        for worker in started:
            worker.line()
        texts = await shm.dump_stacks(LIMIT_S)
        assert set(texts) == {0, 1}
        for text in texts.values():
            assert "busy_in_step" in text
            assert "waits_for_ever" in text
        again = await shm.dump_stacks(LIMIT_S, [1])
        assert set(again) == {1}
        assert again[1].count("busy_in_step") == 1, "only what is new"
        assert all(worker.process.poll() is None for worker in started)


def phases(shm: WorkerShm) -> tuple[Phase, ...]:
    return tuple(phase for _, phase in shm.progress_and_phases())


def ask_stacks_of(shm: WorkerShm, rank: int) -> Path:
    """The pipe of the thread that writes the stacks of this worker."""
    return Path(ask_stacks_path(str(Path(shm.path).parent / f"stacks_{rank}")))


async def test_V6_a_busy_worker_writes_its_stacks_without_a_signal(tmp_path: Path) -> None:
    """At a signal Python's faulthandler may end a process that runs Python code just then."""
    with working(tmp_path, 1, STUCK) as (shm, (one,)):
        one.line()
        with open(shm.path, "r+b") as file:
            file.seek(at.WORD_BYTES * (at.first_word(0) + at.STACKS))
            file.write(pack_word(0))
        for _ in range(3):
            text = (await shm.dump_stacks(LIMIT_S))[0]
            assert text.count("in busy_in_step\n") == 1, "only what is new"
            assert "in waits_for_ever\n" in text
            assert "worker/stacks.py" not in text, "the thread that writes"
            assert text.split("\n\n")[-1].startswith("Current thread 0x")
        assert one.process.poll() is None


@pytest.mark.parametrize("has_thread", [True, False])
async def test_V6_a_worker_that_keeps_the_interpreter_lock_writes_its_stacks_at_a_signal(
    tmp_path: Path, has_thread: bool
) -> None:
    program = """
import ctypes
from rallypoint import worker
def holds_the_lock():
    print("stuck", flush=True)
    while True:
        ctypes.PyDLL(None).sleep(600)  # Until a signal comes.
worker.progress(1)
holds_the_lock()
"""
    with working(tmp_path, 1, program) as (shm, (one,)):
        one.line()
        if not has_thread:
            ask_stacks_of(shm, 0).unlink()
        text = (await shm.dump_stacks(2.0))[0]
        assert text.count("in holds_the_lock\n") == 1
        assert "worker/stacks.py" not in text
        assert one.process.poll() is None


async def test_a_worker_that_offers_no_stacks_is_not_signalled(tmp_path: Path) -> None:
    program = "print(1, flush=True); import time; time.sleep(600)"
    with working(tmp_path, 1, program) as (shm, (one,)):
        one.line()
        texts = await shm.dump_stacks()
        assert f"process {one.process.pid} (python" in texts[0]
        assert one.process.poll() is None


async def test_a_process_of_another_session_is_not_signalled(tmp_path: Path) -> None:
    with working(tmp_path, 2) as (shm, (first, second)):
        for worker in (first, second):
            worker.ask("worker.progress(1)")
        with open(shm.path, "r+b") as file:
            file.seek(at.WORD_BYTES * (at.first_word(0) + at.OWNER))
            file.write(pack_word(second.process.pid))
        ask_stacks_of(shm, 0).unlink()
        texts = await shm.dump_stacks(local_ranks=[0])
        assert texts[0].startswith(f"process {first.process.pid} ")
        assert (Path(shm.path).parent / "stacks_1").read_text() == ""


async def test_a_worker_that_became_another_program_is_not_signalled(tmp_path: Path) -> None:
    program = """
import os
from rallypoint import worker
worker.progress(1)
os.execv("/bin/sh", ["sh", "-c", "echo 1; sleep 600"])
"""
    with working(tmp_path, 1, program) as (shm, (one,)):
        one.line()
        texts = await shm.dump_stacks()
        assert texts[0].startswith("process ")
        assert one.process.poll() is None


async def test_without_a_place_for_it_a_board_is_silent(tmp_path: Path) -> None:
    for scratch in ("", str(tmp_path / "missing")):
        shm = WorkerShm.open(scratch, 1, 2)
        assert shm.path == ""
        shm.request(ShmRequest.DRAIN, 1)
        shm.withdraw()
        shm.retire()
        assert shm.progress() == (None, None)
        assert shm.listeners() | shm.answered() == frozenset()
        assert await shm.dump_stacks() == {}
        shm.close()


async def test_A15_a_phase_is_seen_until_its_block_ends_whatever_ends_it(tmp_path: Path) -> None:
    with working(tmp_path, 2, PHASES) as (shm, (one, silent)):
        assert phases(shm) == (NO_PHASE, NO_PHASE)
        for ask, name in (
            ("outer.__enter__()", "evaluation"),
            ("inner.__enter__()", "checkpoint_of-24-letters"),
            ("inner.__exit__()", "evaluation"),
            ("outer.__enter__()", "evaluation"),
            ("outer.__exit__()", "evaluation"),
            ("raised()", "evaluation"),
            ("outer.__exit__()", ""),
            ("outer.__exit__()", ""),
        ):
            before = phases(shm)[0]
            one.ask(ask)
            phase = phases(shm)[0]
            assert phase.name == name, ask
            assert phase.since_ns > before.since_ns, "its time begins anew at both ends"
        assert shm.progress() == (None, None), "that is no step"
        assert silent.ask("1") == "1"
        assert phases(shm)[1] == NO_PHASE


async def test_A15_a_fork_of_a_worker_that_takes_its_place_is_in_none_of_its_phases(
    tmp_path: Path,
) -> None:
    program = """
import os, time
from rallypoint import worker
worker.phase("evaluation").__enter__()
parent = os.getpid()
if os.fork():
    time.sleep(600)
print("forked", flush=True)
while os.getppid() == parent or os.path.exists(f"/proc/{parent}"):
    time.sleep(0.01)
with worker.phase("checkpoint"):
    pass
print("ended", flush=True)
time.sleep(600)
"""
    with working(tmp_path, 1, program) as (shm, (one,)):
        assert one.line() == "forked"
        assert phases(shm)[0].name == "evaluation"
        one.process.kill()
        one.process.wait()
        assert one.line() == "ended"
        assert phases(shm)[0].name == ""
        assert phases(shm)[0] != NO_PHASE


async def test_A15_the_first_phase_alone_wakes_the_agent(tmp_path: Path) -> None:
    rung: list[None] = []
    with a_shm(tmp_path, 1) as shm:
        shm.watch(lambda: rung.append(None))
        with workers(shm, 1, PHASES) as (one,):
            one.ask("outer.__enter__()")
            await until(lambda: rung)
            rung.clear()
            one.ask("[raised() for _ in range(999)] and 1")
            await asyncio.sleep(0)
            assert rung == []


async def test_R7_A15_a_worker_with_an_older_library_is_in_no_phase_and_tells_its_steps(
    tmp_path: Path,
) -> None:
    environ = environ_of(BEFORE_PHASES, tmp_path)
    with a_shm(tmp_path / "agent", 1) as shm, workers(shm, 1, environ=environ) as (one,):
        assert one.ask("hasattr(worker, 'phase')") == "False"
        one.ask("worker.progress(3)")
        (told,) = shm.progress()
        assert told is not None
        assert told.step == 3
        assert phases(shm) == (NO_PHASE,)


async def test_R7_A15_an_older_agent_reads_what_a_worker_in_a_phase_tells(tmp_path: Path) -> None:
    environ = os.environ | environ_of(BEFORE_PHASES, tmp_path)
    reads = (
        "import pathlib, sys; from rallypoint.wire.shm import parse_slots\n"
        "print(parse_slots(pathlib.Path(sys.argv[1]).read_bytes(), 1))"
    )
    with a_shm(tmp_path / "agent", 1) as shm, workers(shm, 1, PHASES) as (one,):
        for ask in ("worker.progress(3)", "outer.__enter__()", "worker.checkpoint_saved(2)"):
            one.ask(ask)
        older = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", reads, shm.path),
            env=environ,
            stdout=asyncio.subprocess.PIPE,
        )
        said = (await older.communicate())[0].decode()
    assert "phase" not in said
    assert "checkpoint=3," in said
    assert "Reported(step=3, " in said


@pytest.mark.parametrize("name", ["", "a b", "évaluation", "x" * 25, "start", "-"])
def test_A15_the_name_of_a_phase_is_refused_in_one_line_also_without_an_agent(name: str) -> None:
    with pytest.raises(ValueError, match=r"^phase\('.*'\): needs 1 to 24 letters"):
        worker.phase(name)


def test_A15_a_phase_does_nothing_outside_of_a_job() -> None:
    with worker.phase("evaluation"):
        pass
