"""A job machine and the time it is told."""

from __future__ import annotations

from typing import TypeVar

from rallypoint.core import job
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEffect, JobEvent, SessionLost
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import Candidate, NodeRef, SharedSettings, Stamp, Verdict
from rallypoint.core.worker_exits import WorkerExit

_O = TypeVar("_O", bound=m.Order)
A, B, C = (NodeRef(name, f"life-{name}") for name in "abc")
RULES = SharedSettings("job", 2, 2, max_restarts=3)
CANDIDATE = Candidate(2, "default", "10.0.0.1", 29500)


class Host:
    """Keeps the time and what was asked for."""

    def __init__(self, settings: SharedSettings = RULES) -> None:
        self.job = job.new_job(settings)
        self.at = 0.0
        self.seqs: dict[NodeRef, int] = {}
        self.records: list[Record] = []

    def step(self, event: JobEvent, at: float | None = None) -> list[JobEffect]:
        self.at = self.at if at is None else at
        effects = job.step(self.job, event, self.at)
        self.records += [effect for effect in effects if isinstance(effect, Record)]
        return [effect for effect in effects if not isinstance(effect, Record)]

    def join(self, *refs: NodeRef) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for ref in refs:
            self.seqs[ref] = self.seqs.get(ref, 0) + 1
            effects += self.step(FromNode(ref, m.Join(self.seqs[ref], CANDIDATE)))
        return effects

    def lose(self, ref: NodeRef, *, heard_at: float) -> list[JobEffect]:
        return self.step(SessionLost(ref, "its connection broke", heard_at))

    def fail(self, ref: NodeRef, failure: WorkerExit, at: float) -> list[JobEffect]:
        round_ = self.job.round.round
        return self.step(FromNode(ref, m.Failed(stamp(round_), (failure,))), at)

    @property
    def verdict(self) -> Verdict:
        assert self.job.verdict is not None
        return self.job.verdict

    @property
    def blamed(self) -> str:
        """Who the last restart or verdict was for."""
        cause = self.job.verdict.cause if self.job.verdict else None
        if cause is not None:
            return cause.node_id
        return next(r.node_id for r in reversed(self.records) if r.name == "restart")


def failed(age_s: float = 0.0, code: int = 1, local_rank: int = 0) -> WorkerExit:
    return WorkerExit(
        code, None, local_rank=local_rank, rank=local_rank, role="default", pid=9, age_s=age_s
    )


def running(settings: SharedSettings = RULES, *refs: NodeRef) -> Host:
    """A job whose first round runs on `refs`."""
    host = Host(settings)
    refs = refs or (A, B)
    host.join(*refs)
    for ref in refs:
        host.step(FromNode(ref, m.Enrolled(stamp())))
    assert host.job.started
    return host


def verdicts(effects: list[JobEffect]) -> list[NodeRef]:
    return told(effects, m.Ended)


def told(effects: list[JobEffect], kind: type[_O]) -> list[NodeRef]:
    """Who gets an order of this kind."""
    return [
        effect.ref
        for effect in effects
        if isinstance(effect, ToNode) and isinstance(effect.message, kind)
    ]


def orders(effects: list[JobEffect], kind: type[_O]) -> list[_O]:
    """The orders of this kind."""
    found = [effect.message for effect in effects if isinstance(effect, ToNode)]
    return [order for order in found if isinstance(order, kind)]


def stamp(round_: int = 0) -> Stamp:
    """A round of the job that `new_job` makes."""
    return Stamp(1, round_)
