"""What is known of one round of a job: how large it was, why it was formed, how it ended, and where
its time went. Pure data: what people are shown of a round, and what the file of `--history` has.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from rallypoint.core.model import Cause
from rallypoint.core.text import signal_name

ROUNDS_SHOWN = 3
"""So many rounds that have ended are kept for people, each with a traceback that may be long."""


class FirstCause(Struct, frozen=True, omit_defaults=True):
    """What ended a round first: a worker, or the loss of a node."""

    node: str
    text: str
    """How the worker ended, or why the node was lost."""
    rank: int | None = None
    """Of the worker; None: it was a node."""
    local_rank: int = 0
    exit_code: int | None = None
    signal: str = ""
    message: str = ""
    detail: str = ""
    """Its traceback, or the last lines of its stderr."""
    log_file: str = ""
    time: float = 0.0
    """When it ended, by its node's clock."""
    collateral: int = 0
    """How many other failures followed from it."""


def first_cause(cause: Cause | None) -> FirstCause | None:
    """For people and their programs."""
    if cause is None:
        return None
    failure = cause.failure
    if failure is None:
        why = "" if cause.loss is None else cause.loss.reason
        return FirstCause(cause.node_id, why, collateral=cause.collateral)
    return FirstCause(
        cause.node_id,
        failure.clause(),
        failure.rank,
        failure.local_rank,
        failure.code,
        "" if failure.signal is None else signal_name(failure.signal),
        failure.message,
        failure.detail,
        failure.log_file,
        failure.wall_time,
        cause.collateral,
    )


class Slowest(Struct, frozen=True):
    """The node that took longest for a phase of a round, and how long that was."""

    node: str
    seconds: float


class PastRound(Struct):
    """A round, from when it was formed."""

    round: int
    nodes: int
    workers: int
    why: str
    """Why it was formed."""
    formed: float
    """Unix seconds, as `ended`."""
    ended: float | None = None
    end: str = ""
    """The kind of its end: `failure`, `loss`, `drain`, `growth`, `infrastructure`, or the job's
    outcome."""
    end_text: str = ""
    cause: FirstCause | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """By what the job did in it, and on the way to it."""
    first_step: int = -1
    last_step: int = -1
    slowest: dict[str, Slowest] = field(default_factory=dict)
    """By phase: `rendezvous`, `spawn`, and `first_output` and `first_progress` after it, as the
    nodes have told; `detect`, of the node at which the round ended; and `stop`, from the end of the
    round until the node said that its workers run no more."""

    def took(self, node_id: str, phases: Iterable[tuple[str, float | None]]) -> None:
        """That long on this node; None: not known."""
        for phase, seconds in phases:
            if seconds is None:
                continue
            if phase not in self.slowest or seconds > self.slowest[phase].seconds:
                self.slowest[phase] = Slowest(node_id, seconds)
