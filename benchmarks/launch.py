"""How long a launch takes, what a resting agent weighs, and how fast a job ends.

benchmarks/launch.py [--quick] [-n TIMES]

Prints Markdown. The floor is a bare `subprocess` spawn of the same workers.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import Popen

from measure import (
    Stage,
    bare,
    first_line,
    has_torchrun,
    is_quick,
    loopback,
    prepare,
    rallypoint,
    stage,
    torchrun,
    wait_exit,
)
from tables import COMPARED, compare, interleaved, markdown, spread

WORKERS = (1, 4, 16, 64)
QUICK_WORKERS = (2,)
FIRST_LINE_S = 0.20
RESTING_MB = 40
CLEAN_END_S = 0.10
NODES = 2


def main() -> int:
    """Measure everything and print three tables."""
    times = prepare("Launch")
    print(launch_table(times), flush=True)
    print(memory_table(times), flush=True)
    print(end_table(times), flush=True)
    return 0


def launch_table(times: int) -> str:
    """From starting the launcher to the first line of the last worker."""
    rows = []
    for count in QUICK_WORKERS if is_quick() else WORKERS:
        each = f"--nproc-per-node={count}"
        variants = {
            "floor": partial(first_line, count, None),
            "rallypoint": partial(first_line, count, rallypoint(each)),
        }
        if has_torchrun():
            variants["torchrun"] = partial(first_line, count, torchrun(each))
        rows.append([str(count), *compare(times, variants, FIRST_LINE_S)])
    title = "Launch to the first line of the last worker (seconds)"
    return markdown(title, ("workers", *COMPARED), rows)


def memory_table(times: int) -> str:
    """An agent with two workers that sleep."""
    names = {"rallypoint": rallypoint("--nproc-per-node=2")}
    if has_torchrun():
        names["torchrun"] = torchrun("--nproc-per-node=2")
    rows = []
    for name, command in names.items():
        weights = [weigh(command) for _ in range(1 if is_quick() else times)]
        resident, with_helpers = ([weight[i] for weight in weights] for i in (0, 1))
        target = "-"
        if name == "rallypoint":
            target = f"{'met' if max(resident) <= RESTING_MB else 'missed'} ({RESTING_MB})"
        cells = (spread(resident, digits=1), spread(with_helpers, digits=1))
        rows.append((name, *cells, target, str(len(weights))))
    head = ("agent", "RSS of the agent", "PSS with its helpers", "target (RSS)", "n")
    return markdown("Memory of an agent at rest (MB)", head, rows)


def weigh(command: list[str], mode: str = "stay") -> tuple[float, float]:
    """RSS of an agent, and PSS of it and its helpers, in megabytes (10^6 bytes)."""
    with stage() as at:
        agent = at.start([*command, *at.worker(mode)])
        workers = {line.pid for line in at.lines(2)}
        time.sleep(1.5)  # At rest: after more than one heartbeat.
        helpers = {pid for pid in children(agent.pid) if pid not in workers}
        pss = sum(rollup(pid, "Pss") for pid in (agent.pid, *helpers))
        return rollup(agent.pid, "Rss"), pss


def cpu_at_rest(command: list[str], mode: str, seconds: float) -> float:
    """Percent of a core that an agent takes while its two workers run on."""
    with stage() as at:
        agent = at.start([*command, *at.worker(mode)])
        at.lines(2)
        time.sleep(1.5)
        used_ns, began_at = on_cpu_ns(agent.pid), time.monotonic()
        time.sleep(seconds)
        return (on_cpu_ns(agent.pid) - used_ns) / 1e7 / (time.monotonic() - began_at)


def on_cpu_ns(pid: int) -> int:
    """What its threads have used so far."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files)


def children(pid: int) -> list[int]:
    """Of all its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def rollup(pid: int, name: str) -> float:
    """One line of /proc/PID/smaps_rollup in megabytes."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def end_table(times: int) -> str:
    """From the last worker's last act to the last agent's exit, on two nodes."""
    options = f"--nnodes={NODES}", "--nproc-per-node=2"
    variants: dict[str, Callable[[], float]] = {"floor": bare_end}
    variants["rallypoint"] = partial(agents_end, rallypoint(*options))
    if has_torchrun():
        command = torchrun(*options, "--rdzv-backend=c10d")
        variants["torchrun"] = partial(agents_end, command)
    found = interleaved(times, variants)
    met = statistics.median(found["rallypoint"]) <= CLEAN_END_S
    target = f"{'met' if met else 'missed'} ({CLEAN_END_S:.2f})"
    theirs = spread(found["torchrun"]) if "torchrun" in found else "-"
    cells = spread(found["floor"]), spread(found["rallypoint"]), target, theirs
    head = ("nodes", "a bare worker's own exit", "rallypoint", "target", "torchrun", "n")
    title = "Clean end: the last worker's last act to the last agent's exit (seconds)"
    return markdown(title, head, [(str(NODES), *cells, str(times))])


def bare_end() -> float:
    """How long a process takes to be seen to exit. Seconds."""
    with stage() as at:
        return gated_end(at, bare(at, 2 * NODES, "last"))


def agents_end(command: list[str]) -> float:
    """As many agents as nodes, with two workers each. Seconds."""
    whole = [*command, *loopback("end")]
    with stage() as at:
        return gated_end(at, [at.start([*whole, *at.worker("last")]) for _ in range(NODES)])


def gated_end(at: Stage, started: list[Popen[bytes]]) -> float:
    """Let all workers go at once, when each has spoken."""
    at.lines(2 * NODES)
    time.sleep(0.2)  # Workers wait at the gate once they have spoken; agents are at rest.
    at.open_gate()
    ended_at = wait_exit(started)
    return ended_at - max(line.at for line in at.lines(2 * NODES))


if __name__ == "__main__":
    sys.exit(main())
