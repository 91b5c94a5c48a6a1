"""A job in a terminal, as the person before it sees it: progress bars, prompts, Ctrl-Z."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.one_agent import LIMIT_S, agent, ended, environment, eventually, marked
from tests.harness.proc import state_of
from tests.harness.terminal import Terminal

BAR = """
import os, sys, time
rank, n = os.environ["RANK"], 0
while not os.path.exists("go" + rank):
    n += 1
    os.write(2, f"\\rbar {rank}: {n:4}".encode())
    time.sleep(0.01)
os.write(2, f"\\rbar {rank}: over".encode())
os.write(2, b"\\n")
"""
ASKS = """
import os, sys, time
rank = int(os.environ["RANK"])
if rank in {ranks}:
    value = 6 * 7
    breakpoint()
while not os.path.exists("go"): time.sleep(0.01)
"""


class Sitting:
    """A job in a terminal of 80 columns, and what can be seen and typed there."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, home: Path) -> None:
        self.process, self.home, self.sent = process, home, b""
        self._master, self._terminal = master, Terminal()

    @property
    def rows(self) -> list[str]:
        return self._terminal.rows

    @property
    def all(self) -> str:
        return "\n".join(self.rows)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def go(self, *ranks: int) -> None:
        """Let these workers end; all that wait for the same file, if none is named."""
        for rank in ranks or ("",):
            (self.home / f"go{rank}").touch()

    def until(self, pattern: str) -> None:
        """Wait until what can be seen has this in it; a regular expression, over all rows."""
        deadline = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.all, re.MULTILINE):
            assert time.monotonic() < deadline, f"never: {pattern}\n{self.all}"
            assert self._look(1.0), f"ended without {pattern}\n{self.all}"

    def rest(self) -> int:
        """Look on until the terminal is free; the exit code."""
        deadline = time.monotonic() + LIMIT_S
        while self._look(1.0):
            assert time.monotonic() < deadline, self.all
        return self.process.wait(LIMIT_S)

    def _look(self, seconds: float) -> bool:
        """Take what comes; False when nobody holds the terminal any more."""
        if select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # EIO
                return False
            self.sent += data
            # What is cut within a character or an escape sequence waits for the rest of it.
            whole = re.sub(rb"([\xc0-\xff][\x80-\xbf]{0,2}|\x1b[^A-Za-z]*)\Z", b"", self.sent)
            self._terminal = Terminal()
            self._terminal.feed(whole.replace(b"\x07", b""))
        return True


@contextmanager
def sitting(home: Path, program: str, *options: str, term: str = "xterm") -> Iterator[Sitting]:
    mark = uuid.uuid4().hex
    (home / "worker.py").write_text(program)
    env = environment(home, mark, TERM=term, OMP_NUM_THREADS="1", NO_COLOR="1")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "rallypoint", "run", *options, str(home / "worker.py")]
    process = subprocess.Popen(
        command, cwd=home, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    try:
        yield Sitting(process, master, home)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        eventually(lambda: not marked(mark), "nothing left")


def test_A9_each_rank_that_draws_has_one_row_which_becomes_one_line(tmp_path: Path) -> None:
    with sitting(tmp_path, BAR, "--nproc-per-node=4") as job:
        job.until(r"^\[default 3\] bar 3: +\d{2}$")
        job.until(r"(\[default \d\] bar \d: +\d+\n){4}round 0 · 4 workers")
        job.go(2)
        job.until(r"^\[default 2\] bar 2: over\n(\[default [013]\] bar \d: +\d+\n){3}round 0")
        job.go(0, 1, 3)
        assert job.rest() == 0
    bars = [row for row in job.rows if "bar" in row]
    assert sorted(bars) == [f"[default {rank}] bar {rank}: over" for rank in range(4)]
    assert "succeeded" in job.rows[-1]


def test_A9_more_ranks_than_a_third_of_the_rows_are_counted(tmp_path: Path) -> None:
    with sitting(tmp_path, BAR, "--nproc-per-node=12") as job:
        job.until(r"(\[default \d\] bar \d: +\d+\n){6}… and 6 more ranks\nround 0 · 12 workers")
        job.go(*range(12))
        assert job.rest() == 0
    assert job.all.count("over") == 12


def test_a_worker_that_is_killed_leaves_the_last_state_of_its_bar(tmp_path: Path) -> None:
    dies = "import os, signal\nos.write(2, b'\\r 10%\\r 20%')\n"
    dies += "os.kill(os.getpid(), signal.SIGKILL)"
    with sitting(tmp_path, dies, "--nproc-per-node=2", "--max-restarts=0") as job:
        assert job.rest() == 1
    assert "[default 0]  20%" in job.rows or "[default 1]  20%" in job.rows
    assert "10%" not in job.all


def test_A9_where_no_terminal_is_only_the_last_state_of_a_bar_is_written(tmp_path: Path) -> None:
    draws = BAR.replace('os.path.exists("go" + rank)', "n == 20")
    job = ended(agent(tmp_path, "--nproc-per-node=2", "--output=prefix", program=draws), 0)
    lines = [line for line in job.err.splitlines() if "bar" in line]
    assert sorted(lines) == ["[default 0] bar 0: over", "[default 1] bar 1: over"]


def test_a_terminal_that_can_not_redraw_gets_lines_alone(tmp_path: Path) -> None:
    with sitting(tmp_path, BAR, "--nproc-per-node=2", term="dumb") as job:
        job.go(0, 1)
        assert job.rest() == 0
    assert b"\x1b" not in job.sent
    assert job.all.count("over") == 2


def test_a_tee_draws_in_place_and_its_file_keeps_every_byte(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = ("--nproc-per-node=2", "--tee=3", f"--log-dir={logs}")
    with sitting(tmp_path, BAR, *options) as job:
        job.until(r"^\[default1\]:bar 1: +\d{2}$")
        job.go(0, 1)
        assert job.rest() == 0
    assert job.all.count("bar 1") == 1
    (kept,) = logs.rglob("1/stderr.log")
    steps = kept.read_bytes().removesuffix(b"\n").split(b"\r")
    assert steps[1:3] == [b"bar 1:    1", b"bar 1:    2"]
    assert steps[-1] == b"bar 1: over"


@pytest.mark.parametrize("options", [("--local-ranks-filter=1",), ("--local-ranks-filter=g1",)])
def test_one_rank_alone_has_the_terminal_to_itself(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    program = "import os\nos.write(1, f'{os.environ[\"RANK\"]} {os.isatty(2)}\\n'.encode())"
    with sitting(tmp_path, program, "--nproc-per-node=2", *options) as job:
        assert job.rest() == 0
    assert "1 True" in job.rows
    assert "0 True" not in job.all


def test_A9_a_debugger_of_one_worker_shows_its_prompt_and_takes_what_is_typed(
    tmp_path: Path,
) -> None:
    with sitting(tmp_path, ASKS.format(ranks={1}), "--nproc-per-node=2") as job:
        job.until(r"^\[default 1\] -> .*\n\[default 1\] \(Pdb\)$")
        job.type("p value\n")
        job.until(r"^\[default 1\] \(Pdb\) p value\n\[default 1\] 42\n\[default 1\] \(Pdb\)$")
        job.type("c\n")
        job.until(r"\(Pdb\) c$")
        job.go()
        assert job.rest() == 0
    assert job.all.count("(Pdb)") == 2
    assert "several workers" not in job.all


def test_several_workers_that_ask_are_told_of_once(tmp_path: Path) -> None:
    with sitting(tmp_path, ASKS.format(ranks={0, 1, 2}), "--nproc-per-node=3") as job:
        for rank in range(3):
            job.until(rf"^\[default {rank}\] \(Pdb\)$")
        job.until("several workers seem to wait for input from this terminal")
        job.type("c\nc\nc\n")
        job.go()
        assert job.rest() == 0
    assert job.all.count("several workers") == 1


WRITES_A_LINE_IN_TWO_PARTS = """
import os, time
if os.environ["RANK"] == "1":
    os.write(1, b"Loading model: ")
while not os.path.exists("go" + os.environ["RANK"]):
    time.sleep(0.01)
os.write(1, b"done\\n" if os.environ["RANK"] == "1" else b"meanwhile\\n")
"""


@pytest.mark.parametrize("others_write", [False, True])
def test_a_line_whose_beginning_looks_like_a_prompt_stays_one_line(
    tmp_path: Path, others_write: bool
) -> None:
    with sitting(tmp_path, WRITES_A_LINE_IN_TWO_PARTS, "--nproc-per-node=2") as job:
        job.until(r"^\[default 1\] Loading model:$")
        if others_write:
            job.go(0)
            job.until(r"^\[default 0\] meanwhile\n\[default 1\] Loading model:\nround 0")
        job.go(0, 1)
        assert job.rest() == 0
    assert [row for row in job.rows if "Loading" in row] == ["[default 1] Loading model: done"]
    assert "several workers" not in job.all


def test_a_question_that_is_answered_stays_with_its_answer(tmp_path: Path) -> None:
    asks = """
import os
if os.environ["RANK"] == "1":
    print("hello", input("Name: "))
"""
    with sitting(tmp_path, asks, "--nproc-per-node=2") as job:
        job.until(r"^\[default 1\] Name:$")
        job.type("Ann\n")
        assert job.rest() == 0
    assert "[default 1] Name: Ann\n[default 1] Name: hello Ann\n" in job.all


def test_while_the_agent_is_stopped_the_terminal_is_left_alone(tmp_path: Path) -> None:
    with sitting(tmp_path, BAR, "--nproc-per-node=2") as job:
        job.until(r"bar 1: +\d+\nround 0")
        job.process.send_signal(signal.SIGSTOP)
        eventually(lambda: state_of(job.process.pid) == "T", "stopped")
        before = job.sent
        # What it had painted already may still arrive; then there is nothing more to see.
        eventually(lambda: not select.select([job._master], [], [], 1.0)[0] or not job._look(0), "")
        assert len(job.sent) - len(before) < 4096
        quiet = job.rows
        job.process.send_signal(signal.SIGCONT)
        job.until(r"bar 1: +\d+\nround 0[^\n]*\n(.*\n)*.*bar 1: +\d+\nround 0")
        assert job.rows[: len(quiet) - 1] == quiet[:-1]
        job.go(0, 1)
        assert job.rest() == 0


def test_V6_what_goes_to_a_terminal_as_it_is_is_not_kept_which_is_said(tmp_path: Path) -> None:
    program = "import os, time\nprint('up', flush=True)\n"
    program += "while not os.path.exists('go'): time.sleep(0.01)"
    with sitting(tmp_path, program, f"--rdzv-id={tmp_path.name}") as job:
        job.until("^up$")
        command = [sys.executable, "-m", "rallypoint", "logs", "--job", tmp_path.name]
        env = environment(tmp_path, "")
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        job.go()
        assert job.rest() == 0
    assert (done.returncode, done.stdout) == (0, "")
    straight = "is not kept, as it goes straight to the terminal of the agent: start the job with"
    assert done.stderr.splitlines() == [
        f"stdout of rank 0 {straight} --tee 1, or --output prefix",
        f"stderr of rank 0 {straight} --tee 2, or --output prefix",
    ]
