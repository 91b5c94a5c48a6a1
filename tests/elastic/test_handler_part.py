"""A node whose rounds a handler forms: when it asks for the next one, what its agent is told."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.harness.properties import explore

from rallypoint.core import messages as m
from rallypoint.core.model import (
    Assignment,
    Candidate,
    EndKind,
    EndReason,
    Outcome,
    Stamp,
    Verdict,
)
from rallypoint.core.node.events import (
    CoordinatorRefuses,
    LeaseEnded,
    SessionGivenUp,
    SessionOpened,
)
from rallypoint.core.session import Acknowledged, OrderPushed, Suspended
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.elastic.rendezvous.plug_in import part as machine
from rallypoint.elastic.rendezvous.plug_in.part import (
    HOST_S,
    EndRound,
    HandlerSaid,
    HandlerState,
    Meet,
    Met,
    NotMet,
    Part,
    PartEffect,
    PartEvent,
    WatchHandler,
    meet,
    step,
)

LEASE_S = 15.0
CANDIDATE = Candidate(1, "default", "", 0)
LATE = EndReason(EndKind.GROWTH, "1 more node joined")
LOST = EndReason(EndKind.LOSS, "node b was lost: its agent died", "b")
FAILED = m.Failed(Stamp(7, 0), (WorkerExit(1, None, local_rank=0, rank=0, role="", pid=9),))


def assigned(round_: int = 0, restarts: int = 0) -> OrderPushed:
    place = Assignment(round_, 0, 2, 0, 2, 0, 2, "10.0.0.1", 29500, restarts, "why", True)
    return OrderPushed(m.Assigned(Stamp(7, round_), place))


def stop(reason: EndReason, round_: int = 0) -> OrderPushed:
    return OrderPushed(m.StopNow(Stamp(7, round_), reason))


def let_go(round_: int = 1) -> OrderPushed:
    return OrderPushed(m.LeaveNow(Stamp(7, round_)))


def said(state: HandlerState, reason: EndReason = LATE) -> HandlerSaid:
    return HandlerSaid(state, reason)


class Node:
    """One machine, and the time."""

    def __init__(self, *, is_host: bool = False, runs: bool = True) -> None:
        self.part, self.at = Part("theirs", LEASE_S, 3), 0.0
        self.is_host = is_host
        *_, asks = meet(self.part)
        assert asks == Meet()
        if runs:
            self.begin()

    def step(self, event: PartEvent, after_s: float = 0.0) -> list[PartEffect]:
        self.at += after_s
        return step(self.part, event, self.at)

    def begin(self, round_: int = 0) -> None:
        """The handler's round forms, and the agent gets a place in it."""
        assert self.step(Met("a", self.is_host)) == [WatchHandler()]
        assert self.step(SessionOpened(resumed=False)) == [SessionOpened(resumed=False)]
        assert self.join() == [m.Join(1, CANDIDATE)]
        assert self.step(assigned(round_)) == [assigned(round_)]

    def join(self) -> list[PartEffect]:
        return self.step(m.Join(1, CANDIDATE))

    @property
    def meets(self) -> bool:
        return self.part.met is None


def test_W12_a_worker_that_fails_here_is_restarted_by_the_coordinator_and_not_by_the_handler() -> (
    None
):
    """The agent wants to join before it has heard why its round has ended."""
    node = Node()
    assert node.step(FAILED) == [FAILED]
    assert node.join() == [m.Join(1, CANDIDATE)]
    reason = EndReason(EndKind.FAILURE, "rank 0 exited with code 1")
    assert node.step(stop(reason)) == [stop(reason)]
    assert node.step(assigned(1, restarts=1)) == [assigned(1, restarts=1)]
    assert node.part.restarts == 1
    assert not node.meets


def test_a_node_that_is_told_to_go_meets_the_others_when_nothing_runs_here() -> None:
    node = Node()
    assert node.step(stop(LOST)) == [stop(LOST)]
    assert node.step(let_go()) == []
    *_, asks = node.join()
    assert asks == Meet()
    waiting = Node()
    waiting.step(stop(LOST))
    waiting.join()
    *_, asks = waiting.step(let_go())
    assert asks == Meet(), "its workers have stopped already"
    assert node.part.ended == LOST


def test_A5_a_node_that_leaves_is_told_when_to_go_and_meets_nobody() -> None:
    node = Node()
    drain = m.Drain("it got SIGTERM", 15)
    assert node.step(drain) == [drain]
    assert node.step(let_go(0)) == [let_go(0)]
    assert not node.meets


@pytest.mark.parametrize("lost", [CoordinatorRefuses(), SessionGivenUp("no answer for 15 s")])
def test_R3_a_node_whose_coordinator_is_lost_stops_its_workers_and_meets_the_others(
    lost: PartEvent,
) -> None:
    node = Node()
    assert node.step(Suspended("broken pipe")) == [Suspended("broken pipe")]
    (told,) = node.step(lost)
    assert isinstance(told, OrderPushed)
    assert isinstance(told.message, m.StopNow)
    assert told.message.reason.text.startswith("node a was lost: it hosted the round, and ")
    assert node.step(Suspended("broken pipe")) == [], "it is not looked for any more"
    assert node.step(lost) == []
    *_, asks = node.join()
    assert asks == Meet()


def test_F2_a_node_whose_lease_is_over_ends_its_workers_and_meets_the_others() -> None:
    node = Node()
    assert node.step(LeaseEnded("waiting for the coordinator")) == [LeaseEnded("")]
    *_, asks = node.join()
    assert asks == Meet()


def test_A1_the_host_ends_a_round_that_is_over_for_the_handler_and_others_wait_for_that() -> None:
    host, other = Node(is_host=True), Node()
    assert host.step(said(HandlerState.OVER)) == [EndRound(LATE), WatchHandler(machine.LOOK_S)]
    assert other.step(said(HandlerState.OVER)) == [WatchHandler(machine.LOOK_S)]
    assert other.step(stop(LATE)) == [stop(LATE)]
    assert other.step(said(HandlerState.OVER), after_s=HOST_S * 2) == [
        WatchHandler(machine.LOOK_S)
    ], "the host has answered"
    silent = Node()
    silent.step(said(HandlerState.OVER))
    assert silent.step(said(HandlerState.OVER), after_s=HOST_S * 2) == [stop(LATE)]
    *_, asks = silent.join()
    assert asks == Meet()


def test_A1_why_the_round_before_has_ended_is_no_answer_of_the_host() -> None:
    node = Node()
    node.step(stop(EndReason(EndKind.FAILURE, "rank 0 exited with code 1")))
    node.join()
    node.step(assigned(1))
    node.step(said(HandlerState.OVER))
    assert node.step(said(HandlerState.OVER), after_s=HOST_S * 2) == [stop(LATE, 1)]


def test_a_round_that_goes_on_for_the_handler_after_all_is_left_alone() -> None:
    node = Node()
    node.step(said(HandlerState.OVER))
    assert node.step(said(HandlerState.GOES_ON)) == [WatchHandler()]
    assert node.step(said(HandlerState.OVER), after_s=HOST_S * 2) == [WatchHandler(machine.LOOK_S)]


def test_a_job_that_is_closed_waits_for_the_verdict_of_its_coordinator() -> None:
    node = Node()
    node.step(said(HandlerState.CLOSED))
    verdict = Verdict(Outcome.SUCCEEDED, "all workers exited with code 0", 0)
    ended = OrderPushed(m.Ended(Stamp(7, 0), verdict))
    assert node.step(ended) == [ended]
    assert node.step(said(HandlerState.CLOSED), after_s=HOST_S * 2) == []
    untold = Node()
    untold.step(said(HandlerState.CLOSED))
    (told,) = untold.step(said(HandlerState.CLOSED), after_s=HOST_S * 2)
    assert isinstance(told, OrderPushed)
    assert isinstance(told.message, m.Ended)
    assert told.message.verdict.text == "the job was closed by another node"
    assert untold.part.is_closed


def test_a_handler_that_can_not_be_asked_for_a_lease_is_given_up() -> None:
    node = Node()
    failed = said(HandlerState.FAILED, EndReason(EndKind.INFRASTRUCTURE, "no such file"))
    assert node.step(failed) == [WatchHandler(machine.LOOK_S)]
    node.step(said(HandlerState.GOES_ON), after_s=LEASE_S)
    assert node.step(failed) == [WatchHandler(machine.LOOK_S)]
    assert node.step(failed, after_s=LEASE_S * 2) == [
        SessionGivenUp("the rendezvous handler 'theirs' failed: no such file")
    ]


@pytest.mark.parametrize(
    ("outcome", "text", "closes"),
    [
        (Outcome.SUCCEEDED, "this node was not needed: why", False),
        (Outcome.CANCELLED, "why; give another --rdzv-id to run it again", False),
        (Outcome.TIMED_OUT, "why", False),
        (Outcome.INFRASTRUCTURE, "why", False),
    ],
)
def test_a_node_that_gets_no_round_says_why_and_lets_the_job_go_on(
    outcome: Outcome, text: str, closes: bool
) -> None:
    node = Node(runs=False)
    (told,) = node.step(NotMet(outcome, "why"))
    assert isinstance(told, OrderPushed)
    assert isinstance(told.message, m.Ended)
    assert told.message.verdict.text == text
    assert machine.closes(node.part) is closes


@pytest.mark.parametrize(
    ("outcome", "closes"),
    [
        (Outcome.SUCCEEDED, True),
        (Outcome.FAILED, True),
        (Outcome.CANCELLED, True),
        (Outcome.OUT_OF_TIME, True),
        (Outcome.TIMED_OUT, False),
        (Outcome.INFRASTRUCTURE, False),
        (Outcome.PREEMPTED, False),
    ],
)
def test_who_comes_late_is_told_of_a_job_that_has_ended(outcome: Outcome, closes: bool) -> None:
    node = Node()
    node.step(OrderPushed(m.Ended(Stamp(7, 0), Verdict(outcome, "why", 0))))
    assert machine.closes(node.part) is closes


@pytest.mark.parametrize("report", [m.Drain("it got SIGTERM", 15), m.Cancel("got SIGINT", 2)])
def test_A5_a_signal_while_this_node_meets_the_others_is_not_kept_from_it(
    report: m.Drain | m.Cancel,
) -> None:
    node = Node(runs=False)
    assert node.step(report) == [report, Acknowledged(report)]
    assert machine.closes(node.part) is False, "it never was in a round"
    back = Node()
    back.step(let_go())
    back.join()
    back.step(report)
    assert machine.closes(back.part) is isinstance(report, m.Cancel)


class AnyOrder(RuleBasedStateMachine):
    """An agent, a coordinator and a handler that say what they may, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(runs=False)
        self.runs, self.asks, self.round = False, 1, 0
        self.is_told_to_stop = self.has_ended = False

    def apply(self, event: PartEvent) -> None:
        self.node.at += 1.0
        for effect in step(self.node.part, event, self.node.at):
            match effect:
                case Meet():
                    assert not self.runs, "workers of the round before run"
                    self.asks += 1
                    assert self.asks == 1, "it waits for a round already"
                case OrderPushed(m.StopNow()) | LeaseEnded():
                    self.is_told_to_stop = True
                case OrderPushed(m.Assigned()):
                    self.runs, self.is_told_to_stop = True, False
                case OrderPushed(m.Ended()) | SessionGivenUp():
                    self.has_ended = True

    @precondition(lambda self: self.asks and not self.has_ended)
    @rule(is_host=st.booleans())
    def meets(self, is_host: bool) -> None:
        self.asks = 0
        self.apply(Met("a", is_host))
        self.apply(SessionOpened(resumed=False))
        self.apply(m.Join(1, CANDIDATE))

    @precondition(lambda self: self.asks and not self.has_ended)
    @rule(outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.TIMED_OUT]))
    def gets_none(self, outcome: Outcome) -> None:
        self.apply(NotMet(outcome, "why"))
        assert self.has_ended

    @precondition(lambda self: not self.asks and not self.runs)
    @rule()
    def is_placed(self) -> None:
        self.round += 1
        self.apply(assigned(self.round))

    @precondition(lambda self: not self.asks)
    @rule(kind=st.sampled_from(list(EndKind)))
    def round_ends(self, kind: EndKind) -> None:
        self.apply(stop(EndReason(kind, "why"), self.round))

    @precondition(lambda self: not self.asks)
    @rule()
    def is_let_go(self) -> None:
        self.apply(let_go(self.round))

    @precondition(lambda self: not self.asks)
    @rule(
        news=st.sampled_from(
            [
                CoordinatorRefuses(),
                SessionGivenUp("why"),
                LeaseEnded("why"),
                Suspended("why"),
                SessionOpened(resumed=True),
            ]
        )
    )
    def coordinator_is_lost(self, news: PartEvent) -> None:
        self.apply(news)

    @rule(state=st.sampled_from([HandlerState.GOES_ON, HandlerState.OVER, HandlerState.FAILED]))
    def handler_says(self, state: HandlerState) -> None:
        self.apply(said(state))

    @precondition(lambda self: self.runs)
    @rule()
    def workers_have_gone(self) -> None:
        self.runs = False
        if not self.has_ended:
            self.apply(m.Join(1, CANDIDATE))

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        part = self.node.part
        if part.is_over and not self.has_ended:
            assert self.asks or self.runs, "nothing runs here, and it asks for no round"


def test_a_node_asks_for_a_round_when_nothing_runs_here_whatever_comes_before() -> None:
    explore(AnyOrder, 600, 30)


def test_a_restart_that_was_asked_for_while_the_handler_says_nothing_costs_no_meeting() -> None:
    node = Node(is_host=True)
    wanted = EndReason(EndKind.REQUEST, "a person asked for a restart")
    node.step(stop(wanted))
    assert node.join() == [m.Join(1, CANDIDATE)]
    again = assigned(1)
    assert node.step(again) == [again]
    assert not node.meets
