"""The machine of one node, in any phase."""

from __future__ import annotations

import signal

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Assignment, EndKind, EndReason, Outcome, Stamp, Verdict
from rallypoint.core.node import machine
from rallypoint.core.node.events import (
    EnrolmentDone,
    NodeEffect,
    NodeEvent,
    ReportNow,
    SessionOpened,
    WaitEnded,
    WaitKind,
    WorkerEnded,
    WorkersExited,
    WorkersGone,
)
from rallypoint.core.node.machine import NodePhase, NodeSettings, WorkersState
from rallypoint.core.worker_exits import WorkerExit

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
RULES = NodeSettings(2, 25.0, 5.0, (TERM, INT, signal.SIGHUP, signal.SIGQUIT))
REASON = EndReason(EndKind.LOSS, "node b was lost")
PHASES = list(NodePhase)


def stamp(round_: int = 0, *, life: int = 1) -> Stamp:
    return Stamp(life, round_)


def failures(exits: tuple[WorkerExit, ...], round_: int = 0) -> ReportNow:
    """The report of these."""
    return ReportNow(m.Failed(stamp(round_), exits))


def assigned(
    round_: int = 0, *, life: int = 1, enrol: bool = True, group_rank: int = 0
) -> m.Assigned:
    why = "the first round"
    assignment = Assignment(round_, group_rank, 2, 0, 4, 0, 4, "a", 1, 0, why, enrol)
    return m.Assigned(stamp(round_, life=life), assignment)


def verdict(outcome: Outcome, number: int = 0) -> m.Ended:
    return m.Ended(stamp(), Verdict(outcome, "why", 0, signal=number))


def exited(*codes: int | None, round_: int = 0) -> WorkersExited:
    """Codes by local rank; None: still there. A negative code is a signal."""
    exits = [
        WorkerExit(None if code < 0 else code, -code if code < 0 else None, local_rank=rank)
        for rank, code in enumerate(codes)
        if code is not None
    ]
    return WorkersExited(stamp(round_), tuple(exits))


class Node:
    """The machine, and its effects without what it merely reports."""

    def __init__(self, phase: NodePhase = NodePhase.IDLE, rules: NodeSettings = RULES) -> None:
        self.state = WorkersState(rules)
        self.said: list[str] = []
        self.ended: list[tuple[int, str]] = []
        """Workers whose end was reported to observers, in this order, and as what."""
        way: list[NodeEvent] = [SessionOpened(resumed=False)]
        if phase >= NodePhase.ENROLLING:
            way.append(assigned())
        if phase >= NodePhase.READY:
            way.append(EnrolmentDone(stamp()))
        if phase >= NodePhase.RUNNING:
            way.append(m.StartNow(stamp()))
        if phase is NodePhase.FINISHED:
            way.append(exited(0, 0))
        if phase >= NodePhase.STOPPING:
            way.append(m.StopNow(stamp(), REASON))
        if phase is NodePhase.DONE:
            way += [verdict(Outcome.SUCCEEDED), WorkersGone(stamp())]
        for event in way:
            self.step(event)
        assert self.state.phase is phase

    def step(self, event: NodeEvent) -> list[NodeEffect]:
        effects = machine.step(self.state, event)
        self.said += [effect.name for effect in effects if isinstance(effect, Record)]
        ended = [effect for effect in effects if isinstance(effect, WorkerEnded)]
        self.ended += [(effect.exit.local_rank, effect.state) for effect in ended]
        return [effect for effect in effects if not isinstance(effect, Record | WorkerEnded)]

    def steps(self, *events: NodeEvent) -> list[NodeEffect]:
        """The effects of the last one."""
        effects: list[NodeEffect] = []
        for event in events:
            effects = self.step(event)
        return effects


def ended(node: Node, kind: WaitKind) -> WaitEnded:
    """The newest wait of this kind."""
    return WaitEnded(kind, node.state.newest_wait[kind])
