"""The reports of an agent: events, once each and with their reason, and the state of its job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from rallypoint.core.event_kinds import EventKind, Record
from rallypoint.core.model import Verdict
from rallypoint.core.node.events import EndState
from rallypoint.core.node.timeline import Milestone, RoundLife
from rallypoint.core.worker_exits import WorkerExit

FieldValue: TypeAlias = str | int | float


class AgentEvent(Struct, frozen=True):
    """One thing that happened to this node's part of the job.

    `message` is for a person and says why. `at` is seconds since the epoch and only ever shown,
    never compared (behaviour R6).
    """

    kind: EventKind
    message: str
    at: float
    node: str
    round: int | None = None
    fields: tuple[tuple[str, FieldValue], ...] = ()

    @property
    def name(self) -> str:
        """For programs, such as `node_lost`."""
        return self.kind.name


def event_now(
    record: Record,
    node: str = "",
    round_: int | None = None,
    fields: tuple[tuple[str, FieldValue], ...] = (),
) -> AgentEvent:
    """Return the event of this record, dated now."""
    return AgentEvent(record.kind, record.text, time.time(), node, round_, fields)


class StatusView(Struct, frozen=True):
    """The state of a job at rest, in one line. Empty `waiting_for` means that the workers run.

    `for_s` is how long the state that is shown has lasted; `nodes` counts those in the round.
    """

    round: int
    nodes: int
    max_nodes: int
    workers: int
    restarts: int
    max_restarts: int
    waiting_for: str = ""
    for_s: float = 0.0


class Observer:
    """Gets everything that an agent reports; each method does nothing unless it is overridden.

    Called in the agent's loop: none may block.
    """

    def event(self, event: AgentEvent) -> None:
        """Something happened, once."""

    def status(self, view: StatusView) -> None:
        """Where the job is; about once a second, and after every event."""

    def round_began(self, life: RoundLife, before: RoundLife | None, joined_s: float) -> None:
        """Note that this node is assigned to a round; waiting for that took `joined_s`."""

    def phase_ended(self, life: RoundLife, phase: Milestone) -> None:
        """One phase of a round is over."""

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        """All workers run."""

    def worker_exited(self, life: RoundLife, local_rank: int) -> None:
        """Note that a worker runs no more, for whatever reason."""

    def worker_ended(self, life: RoundLife, state: EndState, exit_: WorkerExit) -> None:
        """Note that a worker ended; of a failure its message is known by now."""

    def workers_failed(self, life: RoundLife) -> None:
        """Note that the first failure of a round on this node was noticed."""

    def heartbeat_acknowledged(self) -> None:
        """Note that the coordinator has answered."""

    def finished(self, succeeded: bool, reason: str, verdict: Verdict | None) -> None:
        """Note the end of this agent."""
