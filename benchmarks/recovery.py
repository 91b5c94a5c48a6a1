"""How long a job takes to come back after a worker or a whole agent was killed with SIGKILL.

benchmarks/recovery.py [--quick] [-n TIMES]

Prints Markdown. The floor is a bare `subprocess` spawn of as many workers.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

from measure import (
    bare,
    free_port,
    has_torchrun,
    interleaved,
    is_quick,
    markdown,
    prepare,
    rallypoint,
    spread,
    stage,
    torchrun,
    verdict,
)

WORKERS = (1, 4, 16)
QUICK_WORKERS = (2,)
WORKER_S = 0.15
RECONNECT_GRACE_S = 1.0
RESTART_GRACE_S = 1.0
AGENT_S = 0.30


def main() -> int:
    """Measure everything and print two tables."""
    times = prepare("Recovery")
    print(worker_table(times), flush=True)
    print(agent_table(times), flush=True)
    return 0


def worker_table(times: int) -> str:
    """One node: all its workers start anew."""
    rows = []
    for count in QUICK_WORKERS if is_quick() else WORKERS:
        options = f"--nproc-per-node={count}", "--max-restarts=1"
        variants = {
            "floor": partial(spawn, count),
            "rallypoint": partial(worker_killed, count, rallypoint(*options)),
        }
        if has_torchrun() and not is_quick():
            variants["torchrun"] = partial(worker_killed, count, torchrun(*options))
        found = interleaved(times, variants)
        ours = verdict(found["rallypoint"], found["floor"], WORKER_S)
        theirs = found.get("torchrun")
        over = verdict(theirs, found["floor"], 0)[0] if theirs else "-"
        cells = (spread(found["floor"]), spread(found["rallypoint"]), *ours)
        rows.append((str(count), *cells, spread(theirs) if theirs else "-", over, str(times)))
    head = ("workers", "floor", "rallypoint", "over it", "target", "torchrun", "over it", "n")
    title = "A worker is killed: SIGKILL to the first line of the last replacement (seconds)"
    return markdown(title, head, rows)


def agent_table(times: int) -> str:
    """Two nodes with two workers each: the survivor's start anew."""
    found = interleaved(
        times,
        {
            "floor": partial(spawn, 2),
            "stay": partial(agent_killed, "stay"),
            "deaf": partial(agent_killed, "deaf"),
        },
    )
    rows = []
    for mode, name, grace_s in (
        ("stay", "end on SIGTERM", RECONNECT_GRACE_S),
        ("deaf", "ignore SIGTERM", RECONNECT_GRACE_S + RESTART_GRACE_S),
    ):
        told = verdict(found[mode], found["floor"], grace_s + AGENT_S)
        rows.append((name, spread(found["floor"]), spread(found[mode]), *told, str(times)))
    head = ("workers that", "floor", "rallypoint", "over it", "target", "n")
    title = "An agent is killed: SIGKILL to the first line of the survivor's last worker (seconds)"
    graces = (
        f"Within are {RECONNECT_GRACE_S:g} s in which a broken connection may come back and, for "
        f"workers that ignore SIGTERM, --restart-grace {RESTART_GRACE_S:g}. torchrun is "
        "not measured here."
    )
    return f"{markdown(title, head, rows)}\n{graces}\n"


def spawn(count: int) -> float:
    """The floor. Seconds."""
    with stage() as at:
        began_at = time.monotonic()
        bare(at, count, "stay")
        return max(line.at for line in at.lines(count)) - began_at


def worker_killed(count: int, command: list[str]) -> float:
    """Kill the worker that spoke first. Seconds."""
    with stage() as at:
        at.start([*command, *at.worker("stay")])
        victim = at.lines(count)[0].pid
        time.sleep(0.3)  # The launcher has come to rest.
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return max(line.at for line in at.lines(count)) - killed_at


def agent_killed(mode: str) -> float:
    """Kill the agent that does not host the coordinator. Seconds."""
    where = f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=recovery"
    options = "--nnodes=1:2", "--nproc-per-node=2", f"--restart-grace={RESTART_GRACE_S:g}"
    command = rallypoint(*options, *where, "--shutdown-timeout=1")
    with stage() as at:
        at.start([*command, "--rdzv-conf=is_host=1", *at.worker(mode)])
        other = at.start([*command, "--rdzv-conf=is_host=0", *at.worker(mode)])
        at.lines(4)
        time.sleep(0.3)  # Agents are at rest.
        killed_at = time.monotonic()
        other.kill()
        return max(line.at for line in at.lines(2)) - killed_at


if __name__ == "__main__":
    sys.exit(main())
