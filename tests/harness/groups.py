"""A node's group of workers, in any phase."""

from __future__ import annotations

import signal

from rallypoint.core import group
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.group import GroupSettings, GroupState, Phase
from rallypoint.core.group_events import (
    EnrolmentDone,
    GroupEffect,
    GroupEvent,
    ReportNow,
    SessionOpened,
    WaitEnded,
    WaitKind,
    WorkerEnded,
    WorkersExited,
    WorkersGone,
)
from rallypoint.core.model import Assignment, EndKind, EndReason, Outcome, Stamp, Verdict
from rallypoint.core.worker_exits import WorkerExit

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
RULES = GroupSettings(2, 25.0, 5.0, (TERM, INT, signal.SIGHUP, signal.SIGQUIT))
REASON = EndReason(EndKind.LOSS, "node b was lost")
PHASES = list(Phase)


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

    def __init__(self, phase: Phase = Phase.IDLE, rules: GroupSettings = RULES) -> None:
        self.state = GroupState(rules)
        self.said: list[str] = []
        self.ended: list[tuple[int, str]] = []
        """Workers whose end was reported to observers, in this order, and as what."""
        way: list[GroupEvent] = [SessionOpened(resumed=False)]
        if phase >= Phase.ENROLLING:
            way.append(assigned())
        if phase >= Phase.READY:
            way.append(EnrolmentDone(stamp()))
        if phase >= Phase.RUNNING:
            way.append(m.StartNow(stamp()))
        if phase is Phase.FINISHED:
            way.append(exited(0, 0))
        if phase >= Phase.STOPPING:
            way.append(m.StopNow(stamp(), REASON))
        if phase is Phase.DONE:
            way += [verdict(Outcome.SUCCEEDED), WorkersGone(stamp())]
        for event in way:
            self.step(event)
        assert self.state.phase is phase

    def step(self, event: GroupEvent) -> list[GroupEffect]:
        effects = group.step(self.state, event)
        self.said += [effect.name for effect in effects if isinstance(effect, Record)]
        ended = [effect for effect in effects if isinstance(effect, WorkerEnded)]
        self.ended += [(effect.exit.local_rank, effect.state) for effect in ended]
        return [effect for effect in effects if not isinstance(effect, Record | WorkerEnded)]

    def steps(self, *events: GroupEvent) -> list[GroupEffect]:
        """The effects of the last one."""
        effects: list[GroupEffect] = []
        for event in events:
            effects = self.step(event)
        return effects


def ended(node: Node, kind: WaitKind) -> WaitEnded:
    """The newest wait of this kind."""
    return WaitEnded(kind, node.state.newest_wait[kind])
