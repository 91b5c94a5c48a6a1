"""How much longer a launch takes when `--nproc-per-node auto` counts the devices.

benchmarks/devices.py [--quick] [-n TIMES]

Prints Markdown. The floor is the same launch with a number in the place of the word.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from measure import first_line, prepare, rallypoint
from rallypoint.cli.machine import count_workers
from tables import interleaved, markdown, spread, verdict

FIRST_LINE_S = 0.10


def main() -> int:
    """Measure both and print one table."""
    times = prepare("Counting devices", default=10)
    count = count_workers("auto", sys.executable, os.environ, print)
    words = {"number": str(count), "auto": "auto"}
    variants = {
        name: partial(first_line, count, rallypoint(f"--nproc-per-node={word}"))
        for name, word in words.items()
    }
    found = interleaved(times, variants)
    cells = [spread(found["number"]), spread(found["auto"])]
    cells += verdict(found["auto"], found["number"], FIRST_LINE_S)
    head = ("workers", "with a number", "with auto", "over it", "target", "n")
    title = "Launch to the first line of the last worker (seconds)"
    print(markdown(title, head, [(str(count), *cells, str(times))]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
