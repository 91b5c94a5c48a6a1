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
from tests.harness.narrowed import known
from tests.harness.node_machine import KILL, REASON, RULES, assigned, stamp, verdict
from tests.harness.properties import explore

from rallypoint.core import messages as m
from rallypoint.core.model import Outcome, Stamp
from rallypoint.core.node import events as e
from rallypoint.core.node import machine
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
EVENTS: st.SearchStrategy[e.NodeEvent] = st.one_of(
    st.builds(e.SessionOpened, st.booleans()),
    st.builds(assigned, ROUNDS, enrol=st.booleans()),
    st.builds(m.StartNow, STAMPS),
    st.builds(m.StopNow, STAMPS, st.just(REASON)),
    st.builds(verdict, st.sampled_from(Outcome), st.sampled_from([0, 2, 15])),
    st.builds(m.Expelled, STAMPS, st.just("why"), st.booleans()),
    st.just(e.LeaseEnded()),
    st.just(e.SessionGivenUp("no answer")),
    st.builds(e.EnrolmentDone, STAMPS, st.sampled_from(["", "", "no route"])),
    st.builds(e.WorkersExited, STAMPS, EXITS),
    st.builds(e.SpawnFailed, STAMPS, ERRORS),
    st.builds(e.SourceFailed, ERRORS),
    st.builds(e.SignalCaught, st.sampled_from([2, 15])),
    st.builds(e.WitnessSignalled, st.sampled_from([2, 15])),
    st.builds(e.DrainSignalWanted, st.sampled_from([10, 15])),
    st.builds(e.WorkersStarted, STAMPS),
    st.just(e.Announced()),
    st.builds(e.WaitEnded, st.sampled_from(e.WaitKind), st.integers(1, 6)),
)


ONCE = (e.JoinRound, e.SpawnWorkers, e.EnrolWithStore, e.Finish)
"""Effects that applying an event twice must not repeat, except where an event is new each time."""


def is_once(effect: e.NodeEffect) -> bool:
    if isinstance(effect, e.ReportNow):
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
    def happens(self, event: e.NodeEvent) -> None:
        self.apply(event)
        if not isinstance(event, e.SignalCaught | e.SessionOpened):
            again = self.apply(event)
            assert not [effect for effect in again if is_once(effect)]

    @rule(event=st.sampled_from(["enrol", "start", "well", "told", "gone", "gone"]))
    def goes_on(self, event: str) -> None:
        """What is likely, so that rounds get somewhere."""
        current = self.state.stamp or stamp()
        match event:
            case "enrol":
                self.apply(e.EnrolmentDone(current))
            case "start":
                self.apply(m.StartNow(current))
            case "well":
                self.apply(
                    e.WorkersExited(
                        current, (WorkerExit(0, None), WorkerExit(0, None, local_rank=1))
                    )
                )
            case "told":
                for kind in e.WaitKind.WITNESS, e.WaitKind.OWN_SIGNAL:
                    self.apply(e.WaitEnded(kind, self.state.newest_wait.get(kind, 0)))
            case "gone" if self.told_to_stop and self.running is not None:
                gone, self.running, self.told_to_stop = self.running, None, False
                self.apply(e.WorkersGone(gone))
                assert self.apply(e.WorkersGone(gone)) == []

    def apply(self, event: e.NodeEvent) -> list[e.NodeEffect]:
        effects = machine.step(self.state, event)
        for effect in effects:
            match effect:
                case e.SpawnWorkers(new):
                    assert self.running is None, "two rounds at once"
                    assert not self.must_end, "workers after a verdict"
                    self.running = new
                case e.SignalWorkers() | e.KillWorkers():
                    assert self.running is not None
                    self.told_to_stop = True
                case e.JoinRound():
                    assert self.running is None, "joined with workers alive"
                    assert not self.must_end
                case e.Finish():
                    assert self.running is None, "ended with workers alive"
                    self.finishes += 1
                case e.GiveUpNode():
                    # The agent kills what runs.
                    self.running, self.told_to_stop = None, False
                    self.finishes += 1
                case e.WorkerEnded(_, exit_):
                    end = (known(self.state.stamp), exit_.local_rank)
                    assert end not in self.ended, "reported twice"
                    self.ended.add(end)
        final = isinstance(event, m.Ended | e.SessionGivenUp)
        if final or (isinstance(event, m.Expelled) and event.final):
            self.must_end = True
        if isinstance(event, e.LeaseEnded) and self.state.phase is not NodePhase.FINISHED:
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
