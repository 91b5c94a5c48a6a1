"""Which streams of which worker: the grammar of `--redirects` and `--tee`.

    3               both streams of every worker
    0:1,10:3        by local rank: stdout of 0, both of 10, nothing of the others
    g12:3           by global rank: both streams of the job's worker 12, on whatever node it is

A global rank says more than a local one, so it wins where both name a worker. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntFlag
from typing import Any, TypeAlias

from rallypoint.core.wording import count, shown
from rallypoint.errors import UsageError

_FORM = "needs 0 to 3, or RANK:0-3 with commas, as in 0:1,10:3 (g12:3: global rank 12)"


class Std(IntFlag):
    """A set of a worker's streams; the numbers are those of torchrun's `--redirects`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, text: str) -> Std | dict[int | str, Std]:
        """Read `3`, or a map such as `0:1,10:3,g12:2`, whose global ranks are keys such as `"g12"`.

        Raises ValueError, one line with the text and what would be right.
        """
        if ":" not in text:
            return _std(text, text)
        chosen: dict[int | str, Std] = {}
        for item in text.split(","):
            rank_text, colon, std_text = item.partition(":")
            rank = rank_key(rank_text)
            if not colon or rank is None:
                raise ValueError(f"{text}: {item!r} is wrong: {_FORM}")
            if rank in chosen:
                raise ValueError(f"{text}: rank {rank} is named twice")
            chosen[rank] = _std(std_text, text)
        return chosen


StdMap: TypeAlias = Std | Mapping[Any, Std]
"""The same streams of every worker; or by local rank (5) and global rank ("g12")."""


def rank_key(text: str) -> int | str | None:
    """`5` -> 5 (a local rank), `g12` -> "g12" (a global one); None for anything else."""
    text = text.strip()
    digits = text.removeprefix("g")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        return None
    return int(digits) if digits == text else f"g{int(digits)}"


def streams_of(wanted: StdMap, local_rank: int, rank: int) -> Std:
    """The streams that `wanted` names for one worker."""
    if isinstance(wanted, Std):
        return wanted
    return Std(wanted.get(f"g{rank}", wanted.get(local_rank, Std.NONE)))


def is_named(ranks: Collection[int | str] | None, local_rank: int, rank: int) -> bool:
    """Whether a filter lets this worker through; None lets all through."""
    return ranks is None or local_rank in ranks or f"g{rank}" in ranks


def to_map(val_or_map: StdMap, local_world_size: int) -> dict[int, Std]:
    """One entry per local rank; who is not named gets none. Global ranks are left out."""
    return {rank: streams_of(val_or_map, rank, -1) for rank in range(local_world_size)}


def names_any(wanted: StdMap) -> bool:
    """Whether a stream of any worker is named."""
    return bool(wanted if isinstance(wanted, Std) else any(wanted.values()))


def parse_std_map(text: str, nproc: int, *, flag: str = "--redirects") -> StdMap:
    """As `Std.from_str`, for a node of `nproc` workers.

    Raises UsageError naming `flag`, the offending part and what would be right.
    """
    try:
        wanted = Std.from_str(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None
    if not isinstance(wanted, Std):
        check_ranks(wanted, nproc, f"{flag} {shown(text)}")
    return wanted


def check_ranks(ranks: Collection[int | str], nproc: int, origin: str) -> None:
    """Raise UsageError, beginning with `origin`, if a local rank is none of this node's."""
    for rank in ranks:
        if isinstance(rank, int) and rank >= nproc:
            raise UsageError(
                f"{origin}: there is no local rank {rank}: "
                f"this node runs {count(nproc, 'worker')}, local ranks count from 0; "
                f"g{rank} is the global rank {rank}"
            )


def _std(value: str, whole: str) -> Std:
    value = value.strip()
    if len(value) != 1 or value not in "0123":
        raise ValueError(
            f"{whole}: {value!r} is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both): {_FORM}"
        )
    return Std(int(value))
