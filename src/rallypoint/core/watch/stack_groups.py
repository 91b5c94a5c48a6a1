"""Stacks of many workers in few words. Pure.

Equal ones are one group, whatever their addresses and process ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|(?<=process )\d+|(?<=\[)\d+(?=\])|\b[0-9a-f]{16,}\b")
_HEAD = re.compile(r"(Current thread|Thread) 0x[0-9a-fA-F]+(.*?) \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class StackFrame(Struct, frozen=True):
    """One call of a thread."""

    function: str
    place: str
    """`FILE:LINE`; empty: the line had another form, and is the `function` as a whole."""


class Thread(Struct, frozen=True):
    """The stack of a thread, the newest call first."""

    name: str
    """The name of the thread; empty: it has none. Without frames: a text in place of a stack."""
    frames: tuple[StackFrame, ...]


class StackGroup(Struct, frozen=True):
    """Workers with equal stacks."""

    ranks: tuple[int, ...]
    threads: tuple[Thread, ...]
    """The threads of the first of these workers, the main thread first. One without frames has only
    a text as its name: the agent got no stacks."""


def fold_stacks(stacks: Mapping[int, str]) -> list[StackGroup]:
    """Group the workers with equal stacks; the texts are by rank.

    The smallest group comes first; of equally large ones that with the lowest rank.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, text in sorted(stacks.items()):
        groups.setdefault(_key(text), []).append(rank)
    found = [StackGroup(tuple(ranks), threads_of(stacks[ranks[0]])) for ranks in groups.values()]
    return sorted(found, key=lambda group: (len(group.ranks), group.ranks))


def threads_of(text: str) -> tuple[Thread, ...]:
    """Return the threads in a text of Python's faulthandler, the last one first.

    A block of another form becomes a thread without frames, with that text as its name.
    """
    threads: list[Thread] = []
    for block in reversed(_blocks(text)):
        head = _HEAD.fullmatch(block[0])
        if head is None:
            threads.append(Thread(" ".join(block), ()))
            continue
        name = head[2].strip().removeprefix("[").removesuffix("]")
        threads.append(Thread(name, tuple(map(_frame, block[1:]))))
    return tuple(threads)


def _key(text: str) -> tuple[str, ...]:
    """Return a key that is equal for equivalent stacks.

    Addresses and process ids don't count. The order of the threads is accidental, except that the
    last one is the main thread.
    """
    blocks = ["\n".join(block) for block in _blocks(_NUMBERS.sub("#", text))]
    return (*sorted(blocks[:-1]), *blocks[-1:])


def _blocks(text: str) -> list[Sequence[str]]:
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", text.strip())]
    return [block for block in blocks if block]


def _frame(line: str) -> StackFrame:
    found = _FRAME.fullmatch(line)
    if found is None:
        return StackFrame(line.strip(), "")
    return StackFrame(found[3], f"{found[1]}:{found[2]}")
