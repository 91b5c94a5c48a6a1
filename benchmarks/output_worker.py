"""What a worker of `output.py` writes.

output_worker.py storm LINES     lines of two lengths, with characters of several bytes
output_worker.py paced LINES     twenty lines a second, each with the moment of its writing
output_worker.py endless BYTES   so many bytes without a line's end
"""

from __future__ import annotations

import os
import sys
import time

SHORT = "step done \N{ROCKET}"
LONG = "\N{SNOWMAN}\N{LATIN SMALL LETTER E WITH ACUTE} long " * 770  # 10 kB
PACE_S = 0.05


def storm(rank: str, count: int) -> None:
    """Every other line is long; each ends with a word, so that a torn one shows."""
    for number in range(count):
        print(f"{rank} {number} {LONG if number % 2 else SHORT} end")


def paced(rank: str, count: int) -> None:
    """All workers together write in bursts, as after a collective operation."""
    for number in range(count):
        time.sleep(PACE_S - time.monotonic() % PACE_S)
        print(f"{rank} {number} {time.monotonic()!r} end")


def endless(rank: str, count: int) -> None:
    """A progress bar gone wrong."""
    piece = b"x" * (1 << 16)
    while count > 0:
        count -= os.write(1, piece[:count])


if __name__ == "__main__":
    globals()[sys.argv[1]](os.environ["RANK"], int(sys.argv[2]))
