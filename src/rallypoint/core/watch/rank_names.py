"""Many ranks in few words. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

_BRIEF_MAX = 30
"""The characters of ranks that are no row."""


def rank_names(ranks: Iterable[int], gap: str = ",") -> str:
    """`0-30,32-63`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return gap.join("-".join(map(str, run)) for run in runs)


def brief_ranks(ranks: Collection[int]) -> str:
    """`0-30,32-63`; of many that are no row their number."""
    text = rank_names(ranks)
    if len(text) <= _BRIEF_MAX:
        return text
    begin = text[:_BRIEF_MAX].rpartition(",")[0]
    return f"{begin},… {len(ranks)} ranks"
