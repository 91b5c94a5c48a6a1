"""Signals that come twice, and a job that can't be told at once (A5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.harness.narrowed import only
from tests.harness.node_machine import INT, PHASES, TERM, Node, ended, stamp, verdict

from rallypoint.core import messages as m
from rallypoint.core.model import Outcome
from rallypoint.core.node import events as e
from rallypoint.core.node.leave import REPEAT_S
from rallypoint.core.node.machine import NodePhase

DRAIN = e.ReportNow(m.Drain("it got SIGTERM", TERM, notice_s=20.0))


def text(effects: Sequence[e.NodeEffect]) -> str:
    finish = only(e.Finish, effects)
    assert finish.kind is e.FinishKind.SIGNAL
    return finish.text


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("phase", PHASES[:-1], ids=lambda phase: phase.name)
def test_A5_equal_signals_within_a_second_are_one(phase: NodePhase, number: int) -> None:
    """A scheduler signals the whole step, and who has started the agent forwards the same."""
    node = Node(phase)
    wait = node.step(e.SignalCaught(number))[-1]
    assert wait == e.NodeTimer(e.WaitKind.REPEAT, node.state.waits, REPEAT_S)
    for _ in range(3):
        assert node.step(e.SignalCaught(number)) == []
    assert node.said.count("signal") == 1
    assert node.step(ended(node, e.WaitKind.REPEAT)) == []
    assert e.SkipWaits() in node.step(e.SignalCaught(number)), "this one is a second"
    assert node.step(e.SignalCaught(number)) == [], "which may be forwarded, too"


def test_A5_the_first_signal_after_the_end_skips_what_is_waited_for_then() -> None:
    """Others may have yet to hear how the job ended, and a console may be blocked."""
    node = Node(NodePhase.DONE)
    skip, repeat = node.step(e.SignalCaught(TERM))
    assert (skip, repeat) == (
        e.SkipWaits(),
        e.NodeTimer(e.WaitKind.REPEAT, node.state.waits, REPEAT_S),
    )
    assert node.said[-1] == "signal"
    assert node.step(e.SignalCaught(TERM)) == []
    assert node.step(e.WaitEnded(e.WaitKind.REPEAT, 0)) == []
    assert node.step(e.SignalCaught(TERM)) == [], "another wait has ended"
    node.step(ended(node, e.WaitKind.REPEAT))
    assert node.step(e.SignalCaught(TERM)) == [e.SkipWaits()]


def test_A5_a_second_signal_counts_when_the_first_has_ended_the_agent() -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(e.SignalCaught(TERM), e.Announced(), verdict(Outcome.PREEMPTED, TERM))
    node.step(e.WorkersGone(stamp()))
    assert node.state.phase is NodePhase.DONE
    node.step(ended(node, e.WaitKind.REPEAT))
    assert node.step(e.SignalCaught(TERM)) == [e.SkipWaits()]


def telling(number: int, phase: NodePhase = NodePhase.RUNNING) -> Node:
    """It got this signal while the connection was down; its workers have gone since."""
    node = Node(phase)
    node.step(e.SignalCaught(number))
    effects = node.step(ended(node, e.WaitKind.ANNOUNCE))
    if phase >= NodePhase.RUNNING:
        assert effects[0] == e.SignalWorkers(number), "the workers do not wait for the connection"
        effects = node.step(e.WorkersGone(stamp()))
    effects = [effect for effect in effects if not isinstance(effect, e.AbandonRound)]
    assert effects == [e.NodeTimer(e.WaitKind.TELL, node.state.waits, 25.0)]
    assert node.said[-1] == "telling"
    return node


@pytest.mark.parametrize("phase", [NodePhase.IDLE, NodePhase.READY, NodePhase.RUNNING])
@pytest.mark.parametrize("number", [TERM, INT])
def test_A5_a_signal_is_told_when_the_connection_is_back(number: int, phase: NodePhase) -> None:
    node = telling(number, phase)
    assert node.step(e.SessionOpened(resumed=True)) == [], "the session sends what was not heard"
    assert "left the job" in text(node.step(e.Announced()))


def test_A5_a_cancelled_job_ends_as_soon_as_it_can_be_told() -> None:
    node = telling(INT)
    node.step(e.SessionOpened(resumed=True))
    finish = only(e.Finish, node.step(verdict(Outcome.CANCELLED, INT)))
    assert (finish.kind, finish.signal) == (e.FinishKind.VERDICT, INT)


@pytest.mark.parametrize(
    "event",
    [
        e.LeaseEnded(),
        e.CoordinatorRefuses(),
        m.Expelled(stamp(), "lost", False),
        e.SessionGivenUp("no answer"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_A5_a_node_that_is_no_member_any_more_has_nothing_to_tell(event: e.NodeEvent) -> None:
    assert text(telling(TERM).step(event)).startswith("this node left the job")
    node = Node(NodePhase.IDLE)
    if not isinstance(event, e.SessionGivenUp):
        node.steps(event, e.SignalCaught(TERM))
        assert text(node.step(ended(node, e.WaitKind.ANNOUNCE)))


def test_A5_a_cancel_is_told_also_to_a_coordinator_that_has_forgotten_this_node() -> None:
    node = telling(INT)
    assert node.step(e.LeaseEnded()) == []
    assert node.step(e.SessionOpened(resumed=False)) == [e.ReportNow(m.Cancel("got SIGINT", INT))]
    assert text(node.step(e.Announced()))
    node = telling(INT)
    assert text(node.step(e.CoordinatorRefuses())), "nobody is left to tell"


@pytest.mark.parametrize(
    ("number", "kind"), [(TERM, e.WaitKind.TELL), (INT, e.WaitKind.TELL), (TERM, e.WaitKind.DRAIN)]
)
def test_A5_telling_the_job_takes_no_longer_than_the_shutdown_timeout_and_a_drain(
    number: int, kind: e.WaitKind
) -> None:
    node = telling(number)
    assert text(node.step(ended(node, kind)))


@pytest.mark.parametrize("first", [TERM, INT])
def test_A5_a_second_signal_skips_telling_the_job(first: int) -> None:
    node = telling(first)
    node.step(ended(node, e.WaitKind.REPEAT))
    skip, *finish = node.step(e.SignalCaught(first))
    assert skip == e.SkipWaits()
    assert text(list(finish))


@pytest.mark.parametrize(
    ("number", "told"), [(TERM, DRAIN), (INT, e.ReportNow(m.Cancel("got SIGINT", INT)))]
)
def test_A5_a_signal_while_nodes_meet_is_told_when_they_have(
    number: int, told: e.NodeEffect
) -> None:
    """The node may host the coordinator that others have joined already."""
    node = Node(NodePhase.IDLE)
    node.state.is_member = node.state.has_coordinator = False  # as before the first session
    node.step(e.SignalCaught(number))
    assert node.step(e.SessionOpened(resumed=False)) == [told]
    assert text(node.step(e.Announced()))
    alone = Node(NodePhase.IDLE)
    alone.state.is_member = alone.state.has_coordinator = False
    alone.step(e.SignalCaught(number))
    assert text(alone.step(ended(alone, e.WaitKind.ANNOUNCE))), "there is nobody to tell"
