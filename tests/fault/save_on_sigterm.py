"""Jobs whose workers save a checkpoint when they get SIGTERM, as a scheduler sends it.

    python -m tests.fault.save_on_sigterm [--busy N] [RUNS]

Each run starts a job of two workers and signals every process of it, in an order by chance and up
to some milliseconds apart. The handler of a worker takes half a second to save, as one of a large
model takes longer. All checkpoints must be whole, and each worker must get SIGTERM once. `--busy`
keeps the processors busy with so many other processes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.one_agent import OneAgent, agent

WORKERS = 2
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


def signal_all(job: OneAgent, chance: random.Random) -> None:
    """Signal each process as a scheduler does: SIGCONT and SIGTERM, in any order."""
    pids = list(job.processes())
    chance.shuffle(pids)
    gap_s = chance.choice([0.0, 0.0, 0.001, 0.005])
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        time.sleep(gap_s)


def run(folder: Path, seed: int) -> str:
    """One job; what is wrong with it, or an empty text."""
    with agent(folder, f"--nproc-per-node={WORKERS}", program=SAVES) as job:
        job.wait_told("up", WORKERS)
        signal_all(job, random.Random(seed))
        code = job.wait()
        got = job.told("got")
    saved = [folder / f"saved{rank}" for rank in range(WORKERS)]
    whole = sum(path.exists() and path.read_text() == WHOLE for path in saved)
    if whole == WORKERS and len(got) == WORKERS:
        return "" if code in (0, 143) else f"exit code {code}\n{job.err}"
    return f"{whole} of {WORKERS} checkpoints, {len(got)} signals, exit code {code}\n{job.err}"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Other processes that want all of the processors."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def main() -> int:
    """The command: 1 if a checkpoint was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("runs", type=int, nargs="?", default=50)
    options = parser.parse_args()
    good = 0
    with busy(options.busy):
        for seed in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="save-on-sigterm-") as folder:
                wrong = run(Path(folder), seed)
            good += not wrong
            if wrong:
                print(f"run {seed}: {wrong}", flush=True)
    print(f"{good} of {options.runs} saved")
    return 0 if good == options.runs else 1


if __name__ == "__main__":
    sys.exit(main())
