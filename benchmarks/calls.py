"""What a call of `rallypoint.worker` costs a training loop that makes it at every step.

benchmarks/calls.py [--quick] [-n TIMES]

Prints Markdown, in microseconds. The floor is a call of a function that does nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import timeit
from pathlib import Path

from measure import is_quick, prepare, rallypoint
from tables import markdown, spread

MEASURE = "--measure"
CALLS = (
    "floor(7)",
    "worker.progress(7)",
    "worker.drain_requested()",
    "worker.should_restart_at_checkpoint()",
    "worker.is_current()",
    "worker.checkpoint_saved(7)",
)
HEAD = ("call", "alone (us)", "in a worker (us)")


def main() -> int:
    """Measure in a process that runs alone and in a worker; print the table."""
    if sys.argv[1:2] == [MEASURE]:
        print(json.dumps(measured(int(sys.argv[2]))))
        return 0
    times = prepare("Calls of a worker")
    own = [str(Path(__file__).resolve()), MEASURE, "2000" if is_quick() else "100000"]
    found: dict[str, list[dict[str, float]]] = {"alone": [], "worker": []}
    for _ in range(times):
        for name, command in (("alone", [sys.executable]), ("worker", rallypoint("--quiet"))):
            done = subprocess.run([*command, *own], capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout))
    rows = [
        (call, *(spread([turn[call] for turn in turns], 2) for turns in found.values()))
        for call in CALLS
    ]
    print(markdown("What a call costs", HEAD, rows))
    return 0


def measured(count: int) -> dict[str, float]:
    """Microseconds of each call, the first one left out."""
    from rallypoint import worker

    names = {"worker": worker, "floor": lambda step: None}
    found = {}
    for call in CALLS:
        timer = timeit.Timer(call, globals=names)
        timer.timeit(1)
        found[call] = timer.timeit(count) / count * 1e6
    return found


if __name__ == "__main__":
    sys.exit(main())
