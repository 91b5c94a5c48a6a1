"""The time for which an agent looks for its coordinator after a broken connection. Pure.

No answer, no route, or a name that does not resolve may be a fault of the network: a node that was
cut off for longer than its lease comes back as a newcomer, if the job still lives. A host that
refuses the connection, or another server in its place, shows that this coordinator is gone, and its
job with it: then the search ends with the lease. A host that refuses after it did not answer may
just be restarting: that is tolerated for one lease.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.core.text import named

NO_ANSWER_S = 120.0
"""How long a host that does not answer is tried by default, in seconds after the connection
broke. Where another coordinator can take over, the join timeout replaces it."""


class DialOutcome(Enum):
    """The way in which an attempt to connect to the coordinator has failed."""

    NONE = "no answer"
    REFUSED = "refused"
    """The coordinator's host answers, but not as this job's coordinator: it refuses the connection,
    or another server answers."""


class Search(Struct):
    """The search for the coordinator since a connection broke: its limits, and the attempts."""

    broken_at: float
    lease_end: float
    """The time at which this node must have stopped its workers."""
    lease_s: float
    timeout_s: float | None
    """The time limit whatever the answer is: from `--reconnect-timeout`, or else the join timeout
    where another coordinator can take over. None: the usual limits."""
    was_unanswered: bool = False
    refused_since: float | None = None
    """When the newest row of refused attempts began; None: the last attempt had no answer, or there
    is none."""
    last_error: str = ""


def attempted(search: Search, now: float, answer: DialOutcome, error: str) -> None:
    """Note that an attempt to connect has failed, with no answer or refused."""
    search.last_error = error
    if answer is DialOutcome.NONE:
        search.was_unanswered, search.refused_since = True, None
    elif search.refused_since is None:
        search.refused_since = now


def ends_at(search: Search) -> float:
    """Return the time at which the search ends, unless another attempt has another result."""
    if search.timeout_s is not None:
        return max(search.lease_end, search.broken_at + search.timeout_s)
    no_answer_end = max(search.lease_end, search.broken_at + NO_ANSWER_S)
    if search.refused_since is None:
        return no_answer_end
    if not search.was_unanswered:
        return search.lease_end
    return max(search.lease_end, min(no_answer_end, search.refused_since + search.lease_s))


def waiting_text(search: Search, now: float) -> str:
    """Return what a node waits for after its lease, half a line; empty: the search is over."""
    left_s = ends_at(search) - now
    if left_s <= 0:
        return ""
    who = "a coordinator" if search.refused_since is not None else "the coordinator to answer"
    return f"waiting for {who}, {left_s:.0f} s more at most, to join again as a new node"


def given_up_text(search: Search, now: float) -> str:
    """Return why the search is over, one line: no answer, or refused connections."""
    waited_s = now - search.broken_at
    if search.refused_since is not None:
        return (
            "the coordinator was lost: its host refused connections, and no other coordinator "
            f"answered within {waited_s:.0f} s ({search.last_error})"
        )
    return (
        f"the coordinator was lost: no answer for {waited_s:.0f} s ({search.last_error}): check "
        f"the network between this node and its host; {named.reconnect_timeout} SECONDS waits "
        "longer"
    )
