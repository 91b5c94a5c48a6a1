"""Schedulers that signal every process of a job on a busy machine (A5)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.harness.one_agent import agent

WORKERS, BUSY = 2, 4
# The handler takes half a second to save, as one of a large model takes longer.
SAVES = """
import os, signal, sys, time
place = os.environ["RANK"]
def save(*_):
    tell("got", place)
    with open(f"temporary{place}", "w") as file:
        for part in range(50):
            print(part, file=file)
            time.sleep(0.01)
    os.rename(f"temporary{place}", f"saved{place}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
tell("up", place)
while True:
    time.sleep(0.05)
"""
WHOLE = "".join(f"{part}\n" for part in range(50))


@pytest.mark.parametrize("seed", range(5))
def test_A5_what_workers_save_on_sigterm_is_whole_on_a_busy_machine(
    tmp_path: Path, seed: int
) -> None:
    """Each process gets SIGCONT and SIGTERM, in an order by chance, up to some milliseconds apart;
    a worker gets SIGTERM once."""
    chance = random.Random(seed)
    with ExitStack() as busy:
        for _ in range(BUSY):
            burning = [sys.executable, "-c", "while True: pass"]
            busy.callback(busy.enter_context(subprocess.Popen(burning)).kill)
        job = busy.enter_context(agent(tmp_path, f"--nproc-per-node={WORKERS}", program=SAVES))
        job.wait_told("up", WORKERS)
        pids = list(job.processes())
        chance.shuffle(pids)
        gap_s = chance.choice([0.0, 0.0, 0.001, 0.005])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
            time.sleep(gap_s)
        assert job.wait() in (0, 143), job.err
        assert sorted(job.told("got")) == ["0", "1"]
    for rank in range(WORKERS):
        assert (tmp_path / f"saved{rank}").read_text() == WHOLE
