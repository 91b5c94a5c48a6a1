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
    """One event of this node's part of the job.

    `message` is for a person and has the reason. `at` is seconds since the epoch, for display only;
    it is never compared (behaviour R6).
    """

    kind: EventKind
    message: str
    at: float
    node: str
    round: int | None = None
    fields: tuple[tuple[str, FieldValue], ...] = ()

    @property
    def name(self) -> str:
        """The name of the event for programs, such as `node_lost`."""
        return self.kind.name


def event_now(
    record: Record,
    node: str = "",
    round_: int | None = None,
    fields: tuple[tuple[str, FieldValue], ...] = (),
) -> AgentEvent:
    """Return the event of this record, with the present time."""
    return AgentEvent(record.kind, record.text, time.time(), node, round_, fields)


class StatusView(Struct, frozen=True):
    """The state of a job as one agent knows it, for one line to a person.

    An empty `waiting_for` means that the workers run. `for_s` is the duration of the state in
    seconds, and `nodes` the number of nodes in the round.
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
    """The base of receivers of all that an agent reports; by default each method does nothing.

    Called in the agent's loop, so no method may block.
    """

    def event(self, event: AgentEvent) -> None:
        """Note an event."""

    def status(self, view: StatusView) -> None:
        """Note the job's state: after each answer to a heartbeat, and each event of the agent."""

    def round_began(self, life: RoundLife, before: RoundLife | None, joined_s: float) -> None:
        """Note that this node was assigned to a round, `joined_s` seconds after asking for one."""

    def phase_ended(self, life: RoundLife, phase: Milestone) -> None:
        """Note that one phase of a round has ended."""

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        """Note that all workers of this node in the round were started, as these processes."""

    def worker_exited(self, life: RoundLife, local_rank: int) -> None:
        """Note that a worker has exited, for whatever reason."""

    def worker_ended(self, life: RoundLife, state: EndState, exit_: WorkerExit) -> None:
        """Note how a worker ended; the message of a failure is known by now."""

    def workers_failed(self, life: RoundLife) -> None:
        """Note that the first failure of a round on this node was noticed."""

    def heartbeat_acknowledged(self) -> None:
        """Note that the coordinator has answered a heartbeat."""

    def finished(self, succeeded: bool, reason: str, verdict: Verdict | None) -> None:
        """Note the end of this agent: if it was a success, why, and the job's verdict if known."""
