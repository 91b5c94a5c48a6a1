"""Follows a simulation: keeps its lines, and tells the invariants of everything that happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from tests.simulator.coordinators import is_fault
from tests.simulator.facts import RoundFacts, Violation, parsed
from tests.simulator.invariants import Invariants
from tests.simulator.loop import Schedule
from tests.simulator.rules.rule import Rule
from tests.simulator.states import state_of
from tests.simulator.workers import Worker

from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEffect, JobEvent, JobState
from rallypoint.core.messages import ToAgent, ToCoordinator
from rallypoint.core.model import NodeRef
from rallypoint.core.node.events import Finish
from rallypoint.core.round_record import RoundRecord
from rallypoint.observe.faults import describe_fault
from rallypoint.observe.records import AgentEvent, Observer

_P = ParamSpec("_P")


class Transcript:
    """Of one simulation (`coordinators.Observer`)."""

    def __init__(self, schedule: Schedule, rules: Invariants) -> None:
        self._schedule = schedule
        self.rules = rules
        self.more: tuple[Rule, ...] = ()
        """Rules that are told after those."""
        self.lines: list[str] = []
        self.problem: Violation | None = None
        """The first rule that was broken."""
        self.rounds: dict[tuple[int, int], RoundFacts] = {}
        """Rounds that are over, as the histories of coordinators have them: by incarnation and
        number the nodes, the workers, why it was formed, and the kind and the words of its end."""
        self._job: JobState | None = None
        """As who leads knows it."""
        self._on_step: Callable[[], None] = lambda: None

    def follow_job(self, on_step: Callable[[], None]) -> None:
        """Call this when the job of who leads has been told something."""
        self._on_step = on_step

    @property
    def state(self) -> str:
        """What the job does (`states.py`); empty before anybody leads it."""
        return "" if self._job is None else state_of(self._job)

    def now(self) -> Invariants:
        """The invariants, told of the time."""
        rules = self.rules
        rules.now_s = self._schedule.now_s
        return rules

    def follow(self, name: str) -> Observer:
        """What the agent of this machine says is written down, too."""
        return _Lines(self, name)

    def say(self, who: str, text: str) -> None:
        """One line, of a machine or of none."""
        self.lines.append(f"{self._schedule.now_s:8.3f} {who:<12} {text}")

    def worker_started(self, worker: Worker) -> None:
        """The invariants are told first."""
        self.say(worker.owner.place.name, f"rank {worker.rank} starts in {_round(worker)}")
        self.now().worker_started(worker)

    def worker_ended(self, worker: Worker) -> None:
        assert worker.ended is not None
        ended = worker.ended
        how = f"signal {ended.signal}" if ended.code is None else f"code {ended.code}"
        text = f"rank {worker.rank} of {_round(worker)} ends: {how}"
        self.say(worker.owner.place.name, text)
        self.now().worker_ended(worker)

    def steps(self, job: JobState, coordinator: int) -> None:
        is_new = id(job) not in self.rules.jobs
        self._check(self.now().steps, job, coordinator)
        for rule in self.more if is_new else ():
            rule.leads(job, coordinator)

    def lost(self, incarnation: str, unread: int) -> None:
        """A coordinator is about to give this agent up, and has not read so many messages."""
        self.rules.unread[incarnation] = unread

    def promised(self, incarnation: str, *, may_claim: bool) -> None:
        """The agent is about to promise that it does not claim the job. `may_claim`: a claim that
        it has sent may still succeed."""
        for rule in self.more:
            self._check(rule.promised, incarnation, may_claim=may_claim)

    def lied(self, incarnation: str) -> None:
        """The agent makes a promise that it does not keep, or one of another node."""
        self.now().lied(incarnation)

    def contradicted(self, coordinator: int) -> None:
        """The register has answered to this leader, and holds no record of it or an older one."""
        self.now().contradicted(coordinator)

    def told_to_go(self, incarnation: str) -> None:
        """The agent has got a signal, or a notice of its end."""
        for rule in self.more:
            rule.told_to_go(incarnation)

    def stepped(self, job: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        self._check(self.now().stepped, job, event, effects)
        if self.rules.jobs[id(job)].coordinator == self.rules.leader:
            for rule in self.more:
                self._check(rule.stepped, job, event, effects)
            self._job = job
            self._on_step()

    def read(
        self, incarnation: str, coordinator: int, message: ToCoordinator, *, is_late: bool
    ) -> None:
        def tell() -> None:
            self.now().read(incarnation, coordinator, message, is_late=is_late)
            for rule in self.more:
                rule.read(incarnation, coordinator, message)

        self._check(tell)

    def held(self, coordinator: int) -> None:
        self.now().held(coordinator)

    def told(self, incarnation: str, message: ToAgent) -> None:
        self._check(self.now().told, incarnation, message)
        for rule in self.more:
            self._check(rule.told, incarnation, message)

    def closed(self, incarnation: str, coordinator: int, *, is_reset: bool) -> None:
        self.now().closed(incarnation, coordinator, is_reset=is_reset)

    def follows(self, incarnation: str, epoch: int) -> None:
        self._check(self.now().follows, incarnation, epoch)

    def stored(self, record: bytes) -> None:
        """In the register."""
        self._check(self.now().stored, record)
        for rule in self.more:
            self._check(rule.stored, parsed(record))

    def _check(self, tell: Callable[_P, None], *args: _P.args, **named: _P.kwargs) -> None:
        try:
            tell(*args, **named)
        except Violation as violation:
            self.problem = self.problem or violation

    def recorded(self, who: str, record: Record) -> None:
        self.say(who, record.text)
        if is_fault(record):
            self.problem = self.problem or Violation("crash", record.text)

    def past(self, incarnation: int, past: RoundRecord) -> None:
        facts = past.nodes, past.workers, past.why, past.end, past.end_text
        known = self.rounds.setdefault((incarnation, past.round), facts)
        if known != facts:
            text = f"two coordinators tell of round {past.round}: {known}, {facts}"
            self.problem = self.problem or Violation("history", text)

    def finished(self, host: str, ref: NodeRef, finish: Finish | None, why: str) -> None:
        how = why if finish is None else f"{finish.kind.value}: {why or _verdict_of(finish)}"
        self.say(host, f"ends: {how}")
        self._check(self.now().finished, ref.incarnation, finish)

    def crashed(self, who: str, error: BaseException) -> None:
        found = error if isinstance(error, Violation) else None
        self.problem = self.problem or found or Violation("crash", describe_fault(error))


def _round(worker: Worker) -> str:
    return f"round {worker.owner.stamp.round}"


def _verdict_of(finish: Finish) -> str:
    verdict = finish.verdict
    return f"{verdict.outcome.value}, {verdict.text}" if verdict is not None else ""


class _Lines(Observer):
    """An observer of one agent that keeps its lines."""

    def __init__(self, transcript: Transcript, name: str) -> None:
        self._transcript, self._name = transcript, name

    def event(self, event: AgentEvent) -> None:
        self._transcript.say(self._name, event.message)
