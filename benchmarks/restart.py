"""How long a crashed worker's successor takes to have torch: cold, and forked with torch in it.

benchmarks/restart.py [--quick] [-n TIMES]

Prints Markdown. The floor is one fork of a process that has imported torch. With --quick a module
of the standard library stands for torch.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from measure import has_torchrun, is_quick, prepare, rallypoint, stage, torchrun
from tables import interleaved, markdown, spread, verdict

WORKER = Path(__file__).with_name("restart_worker.py")
WARM_S = 0.25
TIMES_FASTER = 5
HEAD = ("worker", "crash to first line", "over the floor", "target", "torchrun's is", "n")


def main() -> int:
    """Measure and print one table."""
    times = prepare("Restart")
    module = "asyncio" if is_quick() else "torch"
    command = rallypoint("--max-restarts=1")
    variants = {
        "floor": partial(fork_floor, module),
        "cold": partial(worker_killed, command, module),
        "warm": partial(worker_killed, [*command, f"--preload={module}"], module),
    }
    if has_torchrun():
        standalone = torchrun("--standalone", "--max-restarts=1")
        variants["torchrun"] = partial(worker_killed, standalone, module)
    found = interleaved(times, variants)
    names = {
        "floor": "a fork alone",
        "cold": "rallypoint",
        "warm": f"rallypoint --preload {module}",
        "torchrun": "torchrun --standalone",
    }
    rows = [[names[name], *cells(name, found), str(times)] for name in found]
    title = f"One worker is killed: SIGKILL to the first line after `import {module}` (seconds)"
    print(markdown(title, HEAD, rows), flush=True)
    return 0


def cells(name: str, found: dict[str, tuple[float, ...]]) -> list[str]:
    """One variant against the floor and torchrun."""
    over, target = verdict(found[name], found["floor"], WARM_S)
    theirs, faster = found.get("torchrun"), "-"
    if theirs and name in ("cold", "warm"):
        ratio = statistics.median(theirs) / statistics.median(found[name])
        faster = f"{ratio:.1f} times"
        if name == "warm":
            faster += f", {'met' if ratio >= TIMES_FASTER else 'missed'} ({TIMES_FASTER})"
    return [
        spread(found[name]),
        over if name != "floor" else "-",
        target if name == "warm" else "-",
        faster,
    ]


def worker_killed(command: list[str], module: str) -> float:
    """Seconds from the death of the only worker to its successor's line."""
    with stage() as at:
        at.start([*command, str(WORKER), str(at.pipe), "stay", module])
        victim = at.lines(1)[0].pid
        time.sleep(0.3)  # The agent is at rest.
        began_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return at.lines(1)[0].at - began_at


def fork_floor(module: str) -> float:
    """Seconds from a process's call of fork to its child's first line."""
    with stage() as at:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), str(at.pipe), "forks", module], stdin=subprocess.PIPE
        )
        at.lines(1)
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(b"go\n")
            stdin.flush()
            began, ended = (line.at for line in at.lines(2))
        process.wait()
        return ended - began


if __name__ == "__main__":
    sys.exit(main())
