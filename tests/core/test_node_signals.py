"""Signals that come twice, and a job that can't be told at once (A5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.harness.node_machine import INT, PHASES, RULES, TERM, Node, ended, stamp, verdict

from rallypoint.core import messages as m
from rallypoint.core.model import Outcome
from rallypoint.core.node.events import (
    AbandonRound,
    Announced,
    CoordinatorRefuses,
    Finish,
    FinishKind,
    KillWorkers,
    LeaseEnded,
    NodeEffect,
    NodeEvent,
    NodeTimer,
    ReportNow,
    SessionGivenUp,
    SessionOpened,
    SignalCaught,
    SignalWorkers,
    SkipWaits,
    WaitEnded,
    WaitKind,
    WorkersGone,
)
from rallypoint.core.node.leave import REPEAT_S
from rallypoint.core.node.machine import NodePhase

DRAIN = ReportNow(m.Drain("it got SIGTERM", TERM, notice_s=20.0))


def text(effects: Sequence[NodeEffect]) -> str:
    [finish] = effects
    assert isinstance(finish, Finish)
    assert finish.kind is FinishKind.SIGNAL
    return finish.text


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("phase", PHASES[:-1], ids=lambda phase: phase.name)
def test_A5_equal_signals_within_a_second_are_one(phase: NodePhase, number: int) -> None:
    """A scheduler signals the whole step, and who has started the agent forwards the same."""
    node = Node(phase)
    wait = node.step(SignalCaught(number))[-1]
    assert wait == NodeTimer(WaitKind.REPEAT, node.state.waits, REPEAT_S)
    for _ in range(3):
        assert node.step(SignalCaught(number)) == []
    assert node.said.count("signal") == 1
    assert node.step(ended(node, WaitKind.REPEAT)) == []
    assert SkipWaits() in node.step(SignalCaught(number)), "this one is a second"
    assert node.step(SignalCaught(number)) == [], "which may be forwarded, too"


def test_A5_another_signal_is_a_second_one_at_once() -> None:
    node = Node(NodePhase.RUNNING)
    node.step(SignalCaught(TERM))
    assert node.step(SignalCaught(INT)) == [SkipWaits(), KillWorkers()]
    assert text(node.step(WorkersGone(stamp()))) == "this node left the job: it got SIGTERM"


def test_A5_the_first_signal_after_the_end_skips_what_is_waited_for_then() -> None:
    """Others may have yet to hear how the job ended, and a console may be blocked."""
    node = Node(NodePhase.DONE)
    skip, repeat = node.step(SignalCaught(TERM))
    assert (skip, repeat) == (SkipWaits(), NodeTimer(WaitKind.REPEAT, node.state.waits, REPEAT_S))
    assert node.said[-1] == "signal"
    assert node.step(SignalCaught(TERM)) == []
    assert node.step(WaitEnded(WaitKind.REPEAT, 0)) == []
    assert node.step(SignalCaught(TERM)) == [], "another wait has ended"
    node.step(ended(node, WaitKind.REPEAT))
    assert node.step(SignalCaught(TERM)) == [SkipWaits()]


def test_A5_a_second_signal_counts_when_the_first_has_ended_the_agent() -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(SignalCaught(TERM), Announced(), verdict(Outcome.PREEMPTED, TERM))
    node.step(WorkersGone(stamp()))
    assert node.state.phase is NodePhase.DONE
    node.step(ended(node, WaitKind.REPEAT))
    assert node.step(SignalCaught(TERM)) == [SkipWaits()]


def telling(number: int, phase: NodePhase = NodePhase.RUNNING) -> Node:
    """It got this signal while the connection was down; its workers have gone since."""
    node = Node(phase)
    node.step(SignalCaught(number))
    effects = node.step(ended(node, WaitKind.ANNOUNCE))
    if phase >= NodePhase.RUNNING:
        assert effects[0] == SignalWorkers(number), "the workers do not wait for the connection"
        effects = node.step(WorkersGone(stamp()))
    effects = [effect for effect in effects if not isinstance(effect, AbandonRound)]
    assert effects == [NodeTimer(WaitKind.TELL, node.state.waits, 25.0)]
    assert node.said[-1] == "telling"
    return node


@pytest.mark.parametrize("phase", [NodePhase.IDLE, NodePhase.READY, NodePhase.RUNNING])
@pytest.mark.parametrize("number", [TERM, INT])
def test_A5_a_signal_is_told_when_the_connection_is_back(number: int, phase: NodePhase) -> None:
    node = telling(number, phase)
    assert node.step(SessionOpened(resumed=True)) == [], "the session sends what was not heard"
    assert "left the job" in text(node.step(Announced()))


def test_A5_a_cancelled_job_ends_as_soon_as_it_can_be_told() -> None:
    node = telling(INT)
    node.step(SessionOpened(resumed=True))
    [finish] = node.step(verdict(Outcome.CANCELLED, INT))
    assert isinstance(finish, Finish)
    assert (finish.kind, finish.signal) == (FinishKind.VERDICT, INT)


@pytest.mark.parametrize(
    "event",
    [
        LeaseEnded(),
        CoordinatorRefuses(),
        m.Expelled(stamp(), "lost", False),
        SessionGivenUp("no answer"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_A5_a_node_that_is_no_member_any_more_has_nothing_to_tell(event: NodeEvent) -> None:
    assert text(telling(TERM).step(event)).startswith("this node left the job")
    node = Node(NodePhase.IDLE)
    if not isinstance(event, SessionGivenUp):
        node.steps(event, SignalCaught(TERM))
        assert text(node.step(ended(node, WaitKind.ANNOUNCE)))


def test_A5_a_cancel_is_told_also_to_a_coordinator_that_has_forgotten_this_node() -> None:
    node = telling(INT)
    assert node.step(LeaseEnded()) == []
    assert node.step(SessionOpened(resumed=False)) == [ReportNow(m.Cancel("got SIGINT", INT))]
    assert text(node.step(Announced()))
    node = telling(INT)
    assert text(node.step(CoordinatorRefuses())), "nobody is left to tell"


@pytest.mark.parametrize("number", [TERM, INT])
def test_A5_telling_the_job_takes_no_longer_than_the_shutdown_timeout(number: int) -> None:
    node = telling(number)
    assert text(node.step(ended(node, WaitKind.TELL)))


def test_A5_the_drain_deadline_bounds_telling_the_job_too() -> None:
    node = telling(TERM)
    assert text(node.step(ended(node, WaitKind.DRAIN)))


@pytest.mark.parametrize("first", [TERM, INT])
def test_A5_a_second_signal_skips_telling_the_job(first: int) -> None:
    node = telling(first)
    node.step(ended(node, WaitKind.REPEAT))
    skip, *finish = node.step(SignalCaught(first))
    assert skip == SkipWaits()
    assert text(list(finish))


@pytest.mark.parametrize("number", [TERM, INT])
def test_A5_a_handler_that_blocks_keeps_nobody_waiting_for_others_to_be_told(number: int) -> None:
    node = Node(NodePhase.RUNNING, replace(RULES, by_handler=True))
    node.step(SignalCaught(number))
    node.step(ended(node, WaitKind.ANNOUNCE))
    assert text(node.step(WorkersGone(stamp())))


@pytest.mark.parametrize(
    ("number", "told"), [(TERM, DRAIN), (INT, ReportNow(m.Cancel("got SIGINT", INT)))]
)
def test_A5_a_signal_while_nodes_meet_is_told_when_they_have(number: int, told: NodeEffect) -> None:
    """The node may host the coordinator that others have joined already."""
    node = Node(NodePhase.IDLE)
    node.state.is_member = node.state.has_coordinator = False  # as before the first session
    node.step(SignalCaught(number))
    assert node.step(SessionOpened(resumed=False)) == [told]
    assert text(node.step(Announced()))
    alone = Node(NodePhase.IDLE)
    alone.state.is_member = alone.state.has_coordinator = False
    alone.step(SignalCaught(number))
    assert text(alone.step(ended(alone, WaitKind.ANNOUNCE))), "there is nobody to tell"
