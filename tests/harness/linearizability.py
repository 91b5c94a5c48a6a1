"""Whether a history of concurrent operations on one register could have happened one by one.

The search of Wing and Gong (Testing and Verifying Concurrent Objects, 1993), with Lowe's memory of
what was tried already (Testing for Linearizability, 2017): an operation may come next if no other
one had returned before it was called, and if what it returned is what it would return now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Call(NamedTuple):
    """One operation: when it was called and when it returned, in one order of all moments."""

    called: int
    returned: int
    name: str
    arguments: tuple[bytes | int, ...]
    result: bytes | int | None


def is_linearizable(calls: Sequence[Call], initial: bytes) -> bool:
    """Whether some order of the calls explains every result."""
    todo, tried = [(frozenset(range(len(calls))), initial)], set[tuple[frozenset[int], bytes]]()
    while todo:
        state = todo.pop()
        left, value = state
        if not left:
            return True
        if state in tried:
            continue
        tried.add(state)
        first_return = min(calls[number].returned for number in left)
        for number in left:
            if calls[number].called < first_return:
                result, following = applied(calls[number], value)
                if result == calls[number].result:
                    todo.append((left - {number}, following))
    return False


def applied(call: Call, value: bytes) -> tuple[bytes | int | None, bytes]:
    """What a call returns, and what is stored after it."""
    match call.name, call.arguments:
        case "set", (bytes(new),):
            return None, new
        case "get", ():
            return value, value
        case "add", (int(amount),):
            total = int(value) + amount
            return total, b"%d" % total
        case "compare_set", (bytes(expected), bytes(desired)):
            return (desired, desired) if value == expected else (value, value)
    raise ValueError(f"no such call: {call}")
