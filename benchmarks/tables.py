"""Variants of one measurement, measured side by side, and the tables that compare them.

Variants are interleaved and paired: the floor, Rallypoint and, where it is installed, torchrun are
measured in turn, as often, so that a change of the machine's mood changes all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

COMPARED = ("floor", "rallypoint", "over it", "target", "torchrun", "over it", "n")
"""The columns that `compare` fills."""


def compare(count: int, variants: Mapping[str, Callable[[], float]], target: float) -> list[str]:
    """Measure the floor, Rallypoint and perhaps torchrun so often; the cells of their row.

    `target` is how far Rallypoint may be above the floor, in seconds.
    """
    found = interleaved(count, variants)
    floor, theirs = found["floor"], found.get("torchrun")
    cells = [spread(floor), spread(found["rallypoint"])]
    cells += verdict(found["rallypoint"], floor, target)
    cells += [spread(theirs), verdict(theirs, floor, 0)[0]] if theirs else ["-", "-"]
    return [*cells, str(count)]


def interleaved(
    count: int, variants: Mapping[str, Callable[[], float]]
) -> dict[str, tuple[float, ...]]:
    """Measure every variant so often, in turn, each round beginning with another one."""
    names = list(variants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(count):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            found[name].append(variants[name]())
    return {name: tuple(values) for name, values in found.items()}


def spread(values: Sequence[float], digits: int = 3) -> str:
    """`median [min .. max]`."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} .. {high:.{digits}f}]"


def verdict(values: Sequence[float], floor: Sequence[float], target: float) -> tuple[str, str]:
    """How far the medians are apart, and whether that is within the target."""
    over = statistics.median(values) - statistics.median(floor)
    return f"{over:+.3f}", f"{'met' if over <= target else 'missed'} (+{target:.2f})"


def markdown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that a README can quote."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join([f"### {title}", "", *map(markdown_row, lines), ""])


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
