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
from pathlib import Path

from measure import (
    Silence,
    first_line,
    has_torchrun,
    is_quick,
    loopback,
    prepare,
    rallypoint,
    stage,
    torchrun,
)
from tables import COMPARED, compare, markdown

WORKERS = (1, 4, 16)
QUICK_WORKERS = (2,)
WORKER_S = 0.15
RECONNECT_GRACE_S = 1.0
RESTART_GRACE_S = 1.0
AGENT_S = 0.30
AGENT_LIMIT_S = 30.0


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
            "floor": partial(first_line, count, None),
            "rallypoint": partial(worker_killed, count, rallypoint(*options)),
        }
        if has_torchrun():
            variants["torchrun"] = partial(worker_killed, count, torchrun(*options))
        rows.append([str(count), *compare(times, variants, WORKER_S)])
    title = "A worker is killed: SIGKILL to the first line of the last replacement (seconds)"
    return markdown(title, ("workers", *COMPARED), rows)


def agent_table(times: int) -> str:
    """Two nodes with two workers each: the survivor's start anew."""
    rows = []
    for mode, alone, name, grace_s in (
        ("stay", True, "agent; workers end on SIGTERM", 0.0),
        ("deaf", True, "agent; workers ignore SIGTERM", RESTART_GRACE_S),
        ("stay", False, "agent and its guard; workers end on SIGTERM", RECONNECT_GRACE_S),
    ):
        grace = f"--restart-grace={RESTART_GRACE_S:g}"
        variants = {
            "floor": partial(first_line, 2, None),
            "rallypoint": partial(agent_killed, mode, rallypoint(grace), alone=alone),
        }
        cells = compare(times, variants, grace_s + AGENT_S)
        cells[-3:-1] = [torchrun_agent_killed(mode) if alone and has_torchrun() else "-"]
        rows.append([name, *cells])
    head = ("killed", *COMPARED[:-3], "torchrun, once", "n")
    title = "An agent is killed: SIGKILL to the first line of the survivor's last worker (seconds)"
    graces = (
        f"Within are, for workers that ignore SIGTERM, --restart-grace {RESTART_GRACE_S:g}, and, "
        f"where the guard was killed too, {RECONNECT_GRACE_S:g} s in which the node may come back."
    )
    return f"{markdown(title, head, rows)}\n{graces}\n"


def torchrun_agent_killed(mode: str) -> str:
    """What to write into its cell. It is tried once, as it may take all of its time."""
    try:
        return f"{agent_killed(mode, torchrun('--rdzv-backend=c10d')):.3f}"
    except Silence:
        return f"not within {AGENT_LIMIT_S:g} s"


def worker_killed(count: int, command: list[str]) -> float:
    """Kill the worker that spoke first. Seconds."""
    with stage() as at:
        at.start([*command, *at.worker("stay")])
        victim = at.lines(count)[0].pid
        time.sleep(0.3)  # The launcher has come to rest.
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return max(line.at for line in at.lines(count)) - killed_at


def agent_killed(mode: str, command: list[str], *, alone: bool = True) -> float:
    """Kill the agent that is not the host of the rendezvous, alone or before its guard can say so.
    Seconds. Raises: Silence."""
    options = "--nnodes=1:2", "--nproc-per-node=2", "--shutdown-timeout=1"
    whole = [*command, *options, *loopback("recovery")]
    with stage() as at:
        at.start([*whole, "--rdzv-conf=is_host=1", *at.worker(mode)])
        other = at.start([*whole, "--rdzv-conf=is_host=0", *at.worker(mode)])
        at.lines(4)
        time.sleep(0.3)  # Agents are at rest.
        guard = 0 if alone else guard_of(other.pid)
        if guard:
            os.kill(guard, signal.SIGSTOP)
        killed_at = time.monotonic()
        other.kill()
        if guard:
            os.kill(guard, signal.SIGKILL)
        return max(line.at for line in at.lines(2, AGENT_LIMIT_S)) - killed_at


def guard_of(agent: int) -> int:
    """The process that ends the workers of this agent when it is killed."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    names = {Path(f"/proc/{pid}/comm").read_text().strip(): int(pid) for pid in children}
    return names["worker-guard"]


if __name__ == "__main__":
    sys.exit(main())
