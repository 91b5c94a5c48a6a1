"""The job's machine at a coordinator that serves one round of a handler. Pure.

The nodes of that round are the job's, neither more nor fewer. As long as all are there they restart
their workers without the handler, unless that has a store for the workers of each of its rounds.
When a node was lost or leaves, or the handler says that its round is over, the end is judged as any
other. Then each node is told to go (`LeaveNow`), and asks the handler for the next round.
"""

from __future__ import annotations

from rallypoint.core import event_kinds as kinds
from rallypoint.core import job as jobs
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_departures import leave_now
from rallypoint.core.job_state import (
    JobEffect,
    JobEvent,
    JobState,
    RoundIsOver,
    SessionLost,
)
from rallypoint.core.messages import Assigned, FromNode, Leave, ToNode
from rallypoint.core.model import EndKind
from rallypoint.core.round_state import RoundPhase
from rallypoint.core.watch.turns import RoundFormed

_OF_OTHER_NODES = (EndKind.LOSS, EndKind.DRAIN, EndKind.GROWTH)
"""The kinds of end after which the next round has other nodes."""


class OneRound:
    """The state machine of a coordinator that serves only one round of a rendezvous handler.

    When the handler has to form the next round, for example because that will have other nodes, it
    tells all nodes to leave.
    """

    def __init__(self, *, has_store: bool) -> None:
        """Make the machine; `has_store`: the workers of the round use the handler's own store."""
        self._has_store, self._has_formed = has_store, False
        self._is_over = self._has_let_go = False

    def step(self, job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
        """Apply one event to the job's state, and return what the caller must do, in order.

        That may be to tell all nodes to leave, as the class says.
        """
        if self._has_let_go and _goes(event):
            return []  # As it was told: why the round has ended is known.
        nodes = len(job.round.members)
        effects = jobs.step(job, event, at)
        # A node that was lost before it has joined is missing all the same.
        if isinstance(event, RoundIsOver | SessionLost) or len(job.round.members) < nodes:
            self._is_over = True
        ended = job.end_reason if self._has_formed else None
        if ended is not None and ended.kind in _OF_OTHER_NODES:
            self._is_over = True
        if job.verdict is not None or job.round.held:
            return effects
        if job.round.phase is RoundPhase.ACTIVE:
            return self._formed(job, effects)
        return [*effects, *self._let_go(job)] if self._is_over else effects

    def _formed(self, job: JobState, effects: list[JobEffect]) -> list[JobEffect]:
        """Return the effects of a round that forms, without the nodes' places if it must not run.

        The first round runs. A further one must be formed by the handler if the handler's round is
        over, or has a store of its own: all nodes are told to leave instead.
        """
        places = [each for each in effects if isinstance(each, ToNode)]
        if not any(isinstance(each.message, Assigned) for each in places):
            return effects
        if not (self._has_formed and (self._has_store or self._is_over)):
            self._has_formed = True
            return effects
        if job.turns and isinstance(job.turns[-1], RoundFormed):
            job.turns.pop()
        return [*(each for each in effects if not _tells_of_it(each)), *self._let_go(job)]

    def _let_go(self, job: JobState) -> list[JobEffect]:
        self._has_let_go = True
        return [leave_now(job, member.ref) for member in job.round.members.values()]


def _tells_of_it(effect: JobEffect) -> bool:
    if isinstance(effect, ToNode):
        return isinstance(effect.message, Assigned)
    return isinstance(effect, Record) and effect.kind is kinds.ROUND_FORMED


def _goes(event: JobEvent) -> bool:
    leaves = isinstance(event, FromNode) and isinstance(event.message, Leave)
    return leaves or isinstance(event, SessionLost)
