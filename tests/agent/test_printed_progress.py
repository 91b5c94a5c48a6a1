"""`--progress-pattern`: jobs of scripts that only print."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster
from tests.harness.metrics_client import one, port_of, scrape
from tests.harness.narrowed import known
from tests.harness.one_agent import agent, eventually

from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.process.relay.messages import NothingMatched, PatternOff, ReadProgress, RelayReport
from rallypoint.process.relay.progress import MatchLimit, ProgressReader, TooSlowError

PATTERN = r"step (?P<step>\d+)/(?P<total>\d+)( loss (?P<loss>\S+))?"
PRINTS = """
import os, sys, time
tell("worker", os.getpid(), os.environ.get("PYTHONUNBUFFERED", ""))
if os.environ["RANK"] == "0":
    for step in range(3):
        print(f"step {step}/90 loss {step / 4}")
    print("saving")
else:
    print("\\rstep 5/90\\rstep 6/90", end="", file=sys.stderr, flush=True)
while not os.path.exists("end"):
    time.sleep(0.01)
if os.environ["RANK"] == "0":
    print("step 89/90", end="")
"""
PRINTS_UNTIL_SEEN = """
from rallypoint.wire import shm_words as at
def changes():
    with open(os.environ["RALLYPOINT_SHM"], "rb") as file:
        word = at.first_word(int(os.environ["LOCAL_RANK"])) + at.OUTPUT_CHANGES
        file.seek(at.WORD_BYTES * word)
        return int.from_bytes(file.read(8), "little")
while changes() < 2:
    os.write(2, b"step %d of 900\\n" % step)
    step += 1
    time.sleep(0.05)
time.sleep(600)
"""
CATASTROPHE = r"^(?P<step>(x+)+)y$"


def test_V5_a_script_that_only_prints_tells_its_progress(tmp_path: Path) -> None:
    """All of it, also if the relay is late and the last line has no end."""
    summary = tmp_path / "summary.json"
    options = ("--nproc-per-node", "2", "--metrics-port", "0", "--output", "inherit")
    told = ("--json-summary", str(summary), "--progress-pattern", PATTERN)
    with agent(tmp_path, *options, *told, program=PRINTS) as running:
        port = port_of(running)

        def steps() -> list[float]:
            samples = scrape(port)
            name = "rallypoint_worker_step"
            return [samples.get((name, (("local_rank", rank),)), -1) for rank in "01"]

        eventually(lambda: steps() == [2, 6], "the steps of both")
        assert one(scrape(port), "worker_steps_wanted", local_rank="1") == 90
        assert one(scrape(port), "worker_loss", local_rank="0") == 0.5
        pids = [int(words.split()[0]) for words in running.wait_told("worker", 2)]
        (relay,) = running.named("rallypoint-rly")
        os.kill(relay, signal.SIGSTOP)
        (tmp_path / "end").touch()
        # Its agent has reaped them, and would close the round now.
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "their end")
        os.kill(relay, signal.SIGCONT)
        assert running.wait() == 0
    (only,) = json.loads(summary.read_text())["rounds"]
    assert only["progress"] == {"step": 89, "total": 90, "loss": 0.5, "tokens": None}
    assert {"first_output", "first_progress"} <= set(only["phases"])
    shown = [f"step {step}/90 loss {step / 4}" for step in range(3)]
    told_pids = [f"worker {pid} 1" for pid in pids]
    assert sorted(running.out.splitlines()) == sorted([*shown, *told_pids, "saving", "step 89/90"])
    assert b"\rstep 5/90\rstep 6/90" in (tmp_path / "stderr").read_bytes()


def test_A2_a_rank_that_prints_no_more_steps_is_blamed(cluster: Cluster) -> None:
    cluster.options |= {"hang_timeout": 1.5, "restart_grace": 0.5, "max_restarts": 1}
    a, b = cluster.running("a", "b", log_dir="/dev/null", progress_pattern=r"step (?P<step>\d+) of")
    cluster.order("step = 400" + PRINTS_UNTIL_SEEN, round=0, rank=0)
    cluster.order("step = 17" + PRINTS_UNTIL_SEEN, round=0, rank=1)
    ended = a.wait_event("round_ended", "no progress for", round=0).message
    assert "rank 1 (node b, local rank 0) made no progress for" in ended
    found = re.search(r"at step (\d+) while others are at (\d+)", ended)
    assert found is not None, ended
    assert 17 < int(found[1]) < 400 < int(found[2])
    cluster.wait_workers(2, round=1)
    cluster.end_well(a, b)
    assert a.verdict["restarts"] == 1


def test_V5_a_pattern_that_takes_for_ever_is_switched_off_and_the_output_goes_on(
    tmp_path: Path,
) -> None:
    program = """
    import os, time
    print("x" * 60)
    while not os.path.exists("go"):
        time.sleep(0.01)
    for number in range(2000):
        print(f"line {number}")
    print("x" * 60)
    """
    options = ("--nproc-per-node", "2", "--output", "prefix", "--progress-pattern", CATASTROPHE)
    with agent(tmp_path, *options, program=textwrap.dedent(program)) as running:
        running.wait_said("is switched off: no more progress is read from the output; the line: xx")
        (tmp_path / "go").touch()
        assert running.wait() == 0
    for rank in range(2):
        prefix = f"[default {rank}] "
        mine = [line for line in running.out.splitlines() if line.startswith(prefix)]
        wanted = ["x" * 60, *(f"line {number}" for number in range(2000)), "x" * 60]
        assert mine == [prefix + line for line in wanted]
    assert running.err.count("is switched off") == 1


@contextmanager
def restored_signal() -> Iterator[None]:
    before = signal.getsignal(signal.SIGVTALRM)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


@asynccontextmanager
async def reading(
    folder: Path, pattern: str
) -> AsyncIterator[tuple[ProgressReader, WorkerShm, list[RelayReport]]]:
    """A reader of the output of one worker, whose stderr is stream 7, from second 0."""
    reports: list[RelayReport] = []
    shm = WorkerShm.open(str(folder), 3, 1)
    with restored_signal():
        reader = ProgressReader(reports.append, unmatched_s=120.0)
        reader.begin(ReadProgress(3, shm.path.encode(), pattern.encode()))
        reader.add((3, 0), 7, 0.0)
        try:
            yield reader, shm, reports
        finally:
            reader.end((3, 0), 7, 0.0)
            shm.close()


async def test_what_was_read_is_forgotten_when_the_pattern_is_switched_off(tmp_path: Path) -> None:
    pattern = rf"step (?P<step>\d+)|{CATASTROPHE.replace('step', 'no')}"
    async with reading(tmp_path, pattern) as (reader, shm, reports):
        reader.feed((3, 0), 7, b"step 3\n", 1.0)
        reader.look(1.0)
        first = known(shm.progress()[0])
        assert (first.step, first.is_timed) == (3, False)
        reader.feed((3, 0), 7, b"step 4\n", 2.0)
        reader.look(2.0)
        second = known(shm.progress()[0])
        assert (second.step, second.is_timed) == (4, True)
        reader.feed((3, 0), 7, b"x" * 60 + b"\n", 3.0)
        reader.look(3.0)
        assert shm.progress() == (None,), "a rank that is not looked at does not hang"
        reader.feed((3, 0), 7, b"step 5\n" + b"x" * 60 + b"\n", 4.0)
        reader.look(4.0)
        assert shm.progress() == (None,)
        assert reports == [PatternOff("x" * 60)]


@pytest.mark.parametrize(
    ("written", "line"),
    [(b"epoch 1\nepoch 2\nepo", "epo"), (b"epoch 1\n", "epoch 1"), (b"", "")],
)
async def test_that_nothing_has_ever_matched_is_reported_once_with_the_newest_line(
    tmp_path: Path, written: bytes, line: str
) -> None:
    async with reading(tmp_path, r"step (?P<step>\d+)") as (reader, _, reports):
        reader.feed((3, 0), 7, written, 1.0)
        reader.look(1.0)
        reader.look(119.0)
        assert reader.due_at() == 120.0
        assert reports == []
        reader.look(120.0)
        reader.look(500.0)
        assert reports == [NothingMatched(line)]


async def test_what_has_matched_once_is_no_report(tmp_path: Path) -> None:
    async with reading(tmp_path, r"step (?P<step>\d+)") as (reader, _, reports):
        reader.feed((3, 0), 7, b"step 0\n", 1.0)
        reader.look(1.0)
        reader.look(500.0)
        assert reports == []


async def test_a_worker_that_breaks_the_shared_memory_does_not_end_the_relay(
    tmp_path: Path,
) -> None:
    async with reading(tmp_path, r"step (?P<step>\d+)") as (reader, shm, reports):
        Path(shm.path).write_bytes(b"")
        Path(shm.wake_up_path).unlink()
        reader.feed((3, 0), 7, b"step 1\n", 1.0)
        reader.look(1.0)
        assert reports == []


@pytest.mark.parametrize("expression", [r"(a+)+$", r"(a|a)*b", r"a*a*a*a*a*b", r"(?:a*)*b"])
def test_a_match_that_takes_long_is_ended(expression: str) -> None:
    line = "a" * 1000 + "!"
    with restored_signal():
        limit = MatchLimit(0.01)
        assert limit.run(lambda: re.search("!", line)) is not None
        with pytest.raises(TooSlowError):
            limit.run(lambda: re.search(expression, line))
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
        assert limit.run(lambda: re.search("!", line)) is not None
