"""One node's workers, whatever events come in whatever order (A4, A5, F1, F2)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from msgspec.structs import replace
from tests.harness.node_machine import KILL, REASON, RULES, assigned, stamp, verdict
from tests.harness.properties import explore

from rallypoint.core import messages as m
from rallypoint.core.model import Outcome, Stamp
from rallypoint.core.node import machine
from rallypoint.core.node.events import (
    Announced,
    DrainSignalWanted,
    EnrolmentDone,
    EnrolWithStore,
    Finish,
    GiveUpNode,
    JoinRound,
    KillWorkers,
    LeaseEnded,
    NodeEffect,
    NodeEvent,
    ReportNow,
    SessionGivenUp,
    SessionOpened,
    SignalCaught,
    SignalWorkers,
    SourceFailed,
    SpawnFailed,
    SpawnWorkers,
    WaitEnded,
    WaitKind,
    WitnessSignalled,
    WorkerEnded,
    WorkersExited,
    WorkersGone,
    WorkersStarted,
)
from rallypoint.core.node.machine import Desired, NodePhase, WorkersState
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import InfrastructureError, UsageError

ROUNDS = st.integers(0, 3)

STAMPS = st.builds(stamp, ROUNDS, life=st.sampled_from([1, 1, 1, 2]))


EXITS = st.lists(
    st.builds(
        lambda rank, code: WorkerExit(code, None if code is not None else KILL, local_rank=rank),
        st.integers(0, 1),
        st.sampled_from([0, 0, 1, None]),
    ),
    max_size=2,
    unique_by=lambda exit_: exit_.local_rank,
).map(tuple)


ERRORS = st.sampled_from([UsageError("no such program"), InfrastructureError("no process left")])
EVENTS: st.SearchStrategy[NodeEvent] = st.one_of(
    st.builds(SessionOpened, st.booleans()),
    st.builds(assigned, ROUNDS, enrol=st.booleans()),
    st.builds(m.StartNow, STAMPS),
    st.builds(m.StopNow, STAMPS, st.just(REASON)),
    st.builds(verdict, st.sampled_from(Outcome), st.sampled_from([0, 2, 15])),
    st.builds(m.Expelled, STAMPS, st.just("why"), st.booleans()),
    st.just(LeaseEnded()),
    st.just(SessionGivenUp("no answer")),
    st.builds(EnrolmentDone, STAMPS, st.sampled_from(["", "", "no route"])),
    st.builds(WorkersExited, STAMPS, EXITS),
    st.builds(SpawnFailed, STAMPS, ERRORS),
    st.builds(SourceFailed, ERRORS),
    st.builds(SignalCaught, st.sampled_from([2, 15])),
    st.builds(WitnessSignalled, st.sampled_from([2, 15])),
    st.builds(DrainSignalWanted, st.sampled_from([10, 15])),
    st.builds(WorkersStarted, STAMPS),
    st.just(Announced()),
    st.builds(WaitEnded, st.sampled_from(WaitKind), st.integers(1, 6)),
)


ONCE = (JoinRound, SpawnWorkers, EnrolWithStore, Finish)
"""Effects that applying an event twice must not repeat, except where an event is new each time."""


def is_once(effect: NodeEffect) -> bool:
    if isinstance(effect, ReportNow):
        return isinstance(effect.message, m.Succeeded | m.Failed)
    return isinstance(effect, ONCE)


class Hammer(RuleBasedStateMachine):
    """Any event at any time; processes obey whenever they like."""

    @initialize(has_witness=st.booleans())
    def begin(self, has_witness: bool) -> None:
        self.state = WorkersState(replace(RULES, has_witness=has_witness))
        self.running: Stamp | None = None
        self.told_to_stop = False
        self.finishes = 0
        self.must_end = False
        self.ended: set[tuple[Stamp, int]] = set()

    @rule(event=EVENTS)
    def happens(self, event: NodeEvent) -> None:
        self.apply(event)
        if not isinstance(event, SignalCaught | SessionOpened):
            again = self.apply(event)
            assert not [effect for effect in again if is_once(effect)]

    @rule(event=st.sampled_from(["enrol", "start", "well", "told", "gone", "gone"]))
    def goes_on(self, event: str) -> None:
        """What is likely, so that rounds get somewhere."""
        current = self.state.stamp or stamp()
        match event:
            case "enrol":
                self.apply(EnrolmentDone(current))
            case "start":
                self.apply(m.StartNow(current))
            case "well":
                self.apply(
                    WorkersExited(current, (WorkerExit(0, None), WorkerExit(0, None, local_rank=1)))
                )
            case "told":
                for kind in WaitKind.WITNESS, WaitKind.OWN_SIGNAL:
                    self.apply(WaitEnded(kind, self.state.newest_wait.get(kind, 0)))
            case "gone" if self.told_to_stop and self.running is not None:
                gone, self.running, self.told_to_stop = self.running, None, False
                self.apply(WorkersGone(gone))
                assert self.apply(WorkersGone(gone)) == []

    def apply(self, event: NodeEvent) -> list[NodeEffect]:
        effects = machine.step(self.state, event)
        for effect in effects:
            match effect:
                case SpawnWorkers(new):
                    assert self.running is None, "two rounds at once"
                    assert not self.must_end, "workers after a verdict"
                    self.running = new
                case SignalWorkers() | KillWorkers():
                    assert self.running is not None
                    self.told_to_stop = True
                case JoinRound():
                    assert self.running is None, "joined with workers alive"
                    assert not self.must_end
                case Finish():
                    assert self.running is None, "ended with workers alive"
                    self.finishes += 1
                case GiveUpNode():
                    # The agent kills what runs.
                    self.running, self.told_to_stop = None, False
                    self.finishes += 1
                case WorkerEnded(_, exit_):
                    assert self.state.stamp is not None
                    end = (self.state.stamp, exit_.local_rank)
                    assert end not in self.ended, "reported twice"
                    self.ended.add(end)
        final = isinstance(event, m.Ended | SessionGivenUp)
        if final or (isinstance(event, m.Expelled) and event.final):
            self.must_end = True
        if isinstance(event, LeaseEnded) and self.state.phase is not NodePhase.FINISHED:
            assert self.running is None or self.told_to_stop
        return effects

    @invariant()
    def hold(self) -> None:
        if not hasattr(self, "state"):
            return
        assert self.finishes == (self.state.phase is NodePhase.DONE)
        if self.must_end and self.state.phase is not NodePhase.DONE:
            assert self.state.phase is NodePhase.STOPPING
            assert self.state.desired > Desired.JOIN
        stopping = self.state.phase is NodePhase.STOPPING
        told = self.told_to_stop or (stopping and self.state.signals.held_stop > 0)
        assert (self.running is not None and told) == stopping

    def teardown(self) -> None:
        """Whatever happened, one verdict and obedient processes end it."""
        if hasattr(self, "state"):
            self.apply(verdict(Outcome.FAILED))
            self.goes_on("told")
            self.goes_on("gone")
            assert self.state.phase is NodePhase.DONE
            assert self.finishes == 1


def test_the_machine_of_a_node_under_hammer() -> None:
    explore(Hammer, 200, steps=40)
