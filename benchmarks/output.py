"""What it costs to pass on the output of many workers, and how late a line is.

benchmarks/output.py [--quick] [-n TIMES]

Prints Markdown. The floor is a bare `subprocess` spawn of the same workers into the same pipe,
which tears long lines and names no rank. Every line that comes through Rallypoint is checked.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from measure import has_torchrun, is_quick, prepare, rallypoint, torchrun
from output_worker import LONG, SHORT
from tables import interleaved, markdown, spread, verdict

WORKER = Path(__file__).with_name("output_worker.py")
WORKERS, LINES, PACED_LINES, ENDLESS_BYTES = 64, 5000, 100, 200_000_000
QUICK_WORKERS, QUICK_LINES, QUICK_PACED, QUICK_BYTES = 4, 200, 20, 20_000_000
BEHIND_S = 0.05
GROWTH_MB = 4.0
MATCHES, NEVER_MATCHES = r"^\d+ (?P<step>\d+) ", r"iteration (?P<step>\d+)/(?P<total>\d+)"
PATTERN_RATIO = 1.5
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_READ_BYTES = 1 << 20


class Usage(NamedTuple):
    """What one process has used: seconds of CPU, and its largest resident size in MB."""

    cpu_s: float
    peak_mb: float


class Run:
    """A job whose stdout is read here, and what its agent and the agent's relay use meanwhile."""

    def __init__(self, command: list[str] | None, workers: int, mode: str, count: int) -> None:
        words = [str(WORKER), mode, str(count)]
        reader, writer = os.pipe()
        self._reader, self._used = reader, dict[str, Usage]()
        self._began_at = time.monotonic()
        if command:
            self._started = [_spawn([*command, *words], writer)]
        else:
            each = [sys.executable, "-u", *words]
            self._started = [_spawn(each, writer, RANK=str(rank)) for rank in range(workers)]
        os.close(writer)
        self.took_s = 0.0

    def pieces(self) -> Iterator[bytes]:
        """All that is written, as it comes. Raises SystemExit when the job fails."""
        looked_at = 0.0
        while data := os.read(self._reader, _READ_BYTES):
            yield data
            if time.monotonic() - looked_at > 0.05:
                looked_at = time.monotonic()
                self._look()
        self.took_s = time.monotonic() - self._began_at
        os.close(self._reader)
        if any(process.wait() for process in self._started):
            raise SystemExit("a job failed")

    def lines(self) -> Iterator[bytes]:
        """Whole lines, without their ends."""
        rest = b""
        for data in self.pieces():
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def used(self, name: str) -> Usage:
        """By `agent` or `relay`, at the last look."""
        return self._used.get(name, Usage(0.0, 0.0))

    def _look(self) -> None:
        agent = self._started[0].pid
        with suppress(OSError):
            self._used["agent"] = _usage(agent)
            children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
            for child in children:
                if Path(f"/proc/{child}/comm").read_text().strip() == "rallypoint-rly":
                    self._used["relay"] = _usage(int(child))


def _spawn(command: list[str], stdout: int, **env: str) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=stdout, stderr=null, env=os.environ | env)


def _usage(pid: int) -> Usage:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return Usage(
        (int(fields[11]) + int(fields[12])) * _TICK_S, int(peak[1]) / 1024 if peak else 0.0
    )


def main() -> int:
    """Measure everything and print four tables."""
    times = prepare("Output", 3)
    print(storm_table(times), flush=True)
    print(pattern_table(times), flush=True)
    print(delay_table(times), flush=True)
    print(memory_table(times), flush=True)
    return 0


def storm_table(times: int) -> str:
    """As many lines as the workers can write."""
    workers, lines = (QUICK_WORKERS, QUICK_LINES) if is_quick() else (WORKERS, LINES)
    each = f"--nproc-per-node={workers}"
    ways: dict[str, list[str] | None] = {
        "floor": None,
        "--output prefix": rallypoint(each, "--output=prefix"),
        "--tee 1": rallypoint(each, "--tee=1"),
    }
    if has_torchrun():
        ways["torchrun --tee 1"] = torchrun(each, "--tee=1")
    runs: dict[str, list[Run]] = {name: [] for name in ways}

    def storm(name: str) -> float:
        run = Run(ways[name], workers, "storm", lines)
        runs[name].append(run)
        if name.startswith("--"):
            check(run.lines(), workers, lines)
        else:
            for _ in run.pieces():
                pass
        return run.took_s

    took = interleaved(times, {name: partial(storm, name) for name in ways})
    rows = []
    for name, seconds in took.items():
        rate = workers * lines / statistics.median(seconds)
        cpu = [spread([run.used(who).cpu_s for run in runs[name]], 2) for who in ("agent", "relay")]
        state = "all whole" if name.startswith("--") else "not checked"
        cells = cpu if ways[name] else ["-", "-"]
        rows.append((name, spread(seconds, 2), f"{rate:.0f}", *cells, state))
    head = ("way", "seconds", "lines/s", "agent's CPU (s)", "relay's CPU (s)", "lines")
    return markdown(f"{workers} workers write {lines} lines each, half of them 10 kB", head, rows)


def pattern_table(times: int) -> str:
    """The same output, with an expression that each line matches and with one that none does."""
    workers, lines = (QUICK_WORKERS, QUICK_LINES) if is_quick() else (WORKERS, LINES)
    plain = (f"--nproc-per-node={workers}", "--output=prefix")
    ways = {
        "--output prefix": plain,
        "with a pattern that matches": (*plain, f"--progress-pattern={MATCHES}"),
        "with one that never does": (*plain, f"--progress-pattern={NEVER_MATCHES}"),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}

    def relay_cpu(name: str) -> float:
        run = Run(rallypoint(*ways[name]), workers, "storm", lines)
        check(run.lines(), workers, lines)
        took[name].append(run.took_s)
        return run.used("relay").cpu_s

    found = interleaved(times, {name: partial(relay_cpu, name) for name in ways})
    floor = found["--output prefix"]
    rows = []
    for name, cpu in found.items():
        # Of each turn, so that a busy machine slows both.
        ratio = statistics.median(
            one / max(base, _TICK_S) for one, base in zip(cpu, floor, strict=True)
        )
        target = f"{'met' if ratio <= PATTERN_RATIO else 'missed'} ({PATTERN_RATIO})"
        rows.append((name, spread(took[name], 2), spread(cpu, 2), f"{ratio:.2f}", target))
    head = ("way", "seconds", "relay's CPU (s)", "times that without", "target")
    return markdown(f"--progress-pattern: {workers} workers write {lines} lines each", head, rows)


def check(lines: Iterator[bytes], workers: int, count: int) -> None:
    """Raise SystemExit unless every line of every worker came once, whole and in order."""
    tails = {0: f" {SHORT} end".encode(), 1: f" {LONG} end".encode()}
    heard = [0] * workers
    for line in lines:
        found = re.match(rb"\[default ?(\d+)\]:? ?(\d+) (\d+)", line)
        if found is None or found[1] != found[2]:
            raise SystemExit(f"torn: {line[:80]!r}")
        rank, number = int(found[2]), int(found[3])
        if number != heard[rank] or line[found.end() :] != tails[number % 2]:
            raise SystemExit(f"lost or torn: {line[:80]!r}")
        heard[rank] += 1
    if heard != [count] * workers:
        raise SystemExit(f"lost: {heard}")


def delay_table(times: int) -> str:
    """From the moment before a line is written to the moment when it is read."""
    workers, lines = (QUICK_WORKERS, QUICK_PACED) if is_quick() else (WORKERS, PACED_LINES)
    each = f"--nproc-per-node={workers}"
    ways: dict[str, list[str] | None] = {
        "floor": None,
        "--output prefix": rallypoint(each, "--output=prefix"),
        "--tee 1": rallypoint(each, "--tee=1"),
    }
    if has_torchrun():
        ways["torchrun --tee 1"] = torchrun(each, "--tee=1")

    def delay(command: list[str] | None) -> float:
        late = []
        for line in Run(command, workers, "paced", lines).lines():
            moment = re.search(rb"(\d+\.\d+) end$", line)
            if moment is not None:
                late.append(time.monotonic() - float(moment[1]))
        late.sort()
        return late[int(len(late) * 0.99)]

    variants: dict[str, Callable[[], float]] = {n: partial(delay, c) for n, c in ways.items()}
    found = interleaved(times, variants)
    rows = [
        (name, spread(late), *verdict(late, found["floor"], BEHIND_S))
        for name, late in found.items()
    ]
    title = f"How late 99 of 100 lines are at most: {workers} workers, 20 lines/s each (seconds)"
    return markdown(title, ("way", "late", "over the floor", "target"), rows)


def memory_table(times: int) -> str:
    """A worker that never ends its line, against one that says little."""
    size = QUICK_BYTES if is_quick() else ENDLESS_BYTES
    peaks: dict[tuple[str, int], list[float]] = {}
    for _ in range(times):
        for count in (100_000, size):
            run = Run(rallypoint("--output=prefix"), 1, "endless", count)
            for _piece in run.pieces():
                pass
            for who in ("agent", "relay"):
                peaks.setdefault((who, count), []).append(run.used(who).peak_mb)
    rows = []
    for who in ("agent", "relay"):
        little, much = peaks[who, 100_000], peaks[who, size]
        over = statistics.median(much) - statistics.median(little)
        target = f"{'met' if over <= GROWTH_MB else 'missed'} (+{GROWTH_MB:.0f})"
        rows.append((who, spread(little, 1), spread(much, 1), f"{over:+.1f}", target))
    title = f"Largest size while a worker writes {size // 1_000_000} MB without a line's end (MB)"
    return markdown(title, ("process", "0.1 MB", "all of it", "growth", "target"), rows)


if __name__ == "__main__":
    sys.exit(main())
