"""How long a node looks for a coordinator whose connection broke. Pure.

Silence (no answer, no route, a name that does not resolve) may be the network between the two: a
node that was cut off for longer than its lease comes back as a newcomer, if the job still lives.
A host that refuses the connection, or another server in its place, says that this coordinator is
gone, and its job with it: nobody looks for it for longer than the lease.

A host that refuses after it was silent may just be starting again: that is tolerated for one lease.

All times are seconds on one clock, given by the caller.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

SILENCE_S = 120.0
"""How long silence is tolerated, from when the connection broke, unless a person said otherwise."""


class Answer(Enum):
    """What an attempt to reach the coordinator has met."""

    SILENCE = "silence"
    REFUSED = "refused"
    """Its host answers, but not with this coordinator."""


class Search(Struct):
    """The attempts since one connection broke."""

    broken_at: float
    lease_end: float
    """When this node must have stopped its workers."""
    lease_s: float
    timeout_s: float | None
    """What a person gave (`--reconnect-timeout`), for silence and refusals alike; None: nothing."""
    was_silent: bool = False
    refused_since: float | None = None
    """When the newest row of refusals began; None: the last attempt met silence."""
    last_error: str = ""


def attempted(search: Search, now: float, answer: Answer, error: str) -> None:
    """An attempt has failed."""
    search.last_error = error
    if answer is Answer.SILENCE:
        search.was_silent, search.refused_since = True, None
    elif search.refused_since is None:
        search.refused_since = now


def ends_at(search: Search) -> float:
    """When to give up, unless another attempt meets something else."""
    if search.timeout_s is not None:
        return max(search.lease_end, search.broken_at + search.timeout_s)
    silence_end = max(search.lease_end, search.broken_at + SILENCE_S)
    if search.refused_since is None:
        return silence_end
    if not search.was_silent:
        return search.lease_end
    return max(search.lease_end, min(silence_end, search.refused_since + search.lease_s))


def waiting_text(search: Search, now: float) -> str:
    """What a node whose lease is over waits for, half a line; empty: it gives up."""
    left_s = ends_at(search) - now
    if left_s <= 0:
        return ""
    who = "a coordinator" if search.refused_since is not None else "the coordinator to answer"
    return f"waiting for {who}, {left_s:.0f} s more at most, to join again as a new node"


def given_up_text(search: Search, now: float) -> str:
    """Why the search is over, one line: was it silence, or was it refused?"""
    waited_s = now - search.broken_at
    if search.refused_since is not None:
        return (
            "the coordinator was lost: its host refused connections, and no other coordinator "
            f"answered within {waited_s:.0f} s ({search.last_error})"
        )
    return (
        f"the coordinator was lost: no answer for {waited_s:.0f} s ({search.last_error}): check "
        "the network between this node and its host; --reconnect-timeout SECONDS waits longer"
    )
