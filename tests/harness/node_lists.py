"""Lists of nodes as Slurm writes them."""

from __future__ import annotations

import random
from collections.abc import Iterator


def lists(number: int) -> Iterator[str]:
    """So many of all kinds, always the same."""
    rng = random.Random(20)
    for _ in range(number):
        yield ",".join(_part(rng) for _ in range(rng.randint(1, 3)))


def _part(rng: random.Random) -> str:
    text = rng.choice(("n", "gpu", "c-r")) + str(rng.choice(("", 1)))
    for _ in range(rng.randint(0, 2)):
        ranges = []
        for _ in range(rng.randint(1, 3)):
            width, first = rng.choice((1, 3)), rng.randint(0, 20)
            last = first + rng.randint(0, 4)
            ranges.append(rng.choice((f"{first:0{width}}", f"{first:0{width}}-{last:0{width}}")))
        text += f"x[{','.join(ranges)}]"
    return text
