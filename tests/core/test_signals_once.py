"""Each worker gets a signal once: from a scheduler that signals every process, or from its agent
(A5)."""

from __future__ import annotations

import signal
from itertools import permutations

import pytest
from msgspec.structs import replace
from tests.harness.node_machine import INT, REASON, RULES, TERM, Node, ended, exited, stamp, verdict

from rallypoint.core import messages as m
from rallypoint.core.model import EndKind, EndReason, Outcome
from rallypoint.core.node.events import (
    Announced,
    DrainSignalWanted,
    KillWorkers,
    NodeEffect,
    NodeEvent,
    NodeTimer,
    NotifyWorkers,
    ReportNow,
    SignalCaught,
    SignalWorkers,
    WaitEnded,
    WaitKind,
    WitnessSignalled,
    WorkersGone,
    WorkersStarted,
)
from rallypoint.core.node.machine import NodePhase
from rallypoint.core.node.state import claim
from rallypoint.core.worker_signals import OWN_SIGNAL_S, WITNESS_S, Received

WATCHED = replace(RULES, has_witness=True)
USR1 = signal.SIGUSR1
GO = m.LeaveNow(stamp())
DRAINED = m.StopNow(stamp(), EndReason(EndKind.DRAIN, "node b leaves"))
LOST = m.StopNow(stamp(), REASON)


def watched(phase: NodePhase = NodePhase.RUNNING) -> Node:
    node = Node(phase, WATCHED)
    if phase is NodePhase.RUNNING:
        assert node.step(WorkersStarted(stamp())) == []
    return node


def sent(effects: list[NodeEffect]) -> list[NodeEffect]:
    """What the workers are sent by these."""
    return [x for x in effects if isinstance(x, SignalWorkers | NotifyWorkers | KillWorkers)]


def all_sent(node: Node, *events: NodeEvent) -> list[NodeEffect]:
    return [effect for event in events for effect in sent(node.step(event))]


@pytest.mark.parametrize(
    "order",
    [
        events
        for events in permutations([WitnessSignalled(TERM), SignalCaught(TERM), GO])
        if events.index(SignalCaught(TERM)) < events.index(GO)
    ],
    ids=lambda order: "-".join(type(event).__name__ for event in order),
)
def test_A5_workers_that_a_scheduler_has_signalled_are_not_signalled_again(
    order: tuple[NodeEvent, ...],
) -> None:
    node = watched()
    assert all_sent(node, *order) == [SignalWorkers(TERM, Received.EVERYBODY)]
    for wait in WaitKind.WITNESS, WaitKind.OWN_SIGNAL:
        assert all_sent(node, WaitEnded(wait, node.state.newest_wait.get(wait, 0))) == []


@pytest.mark.parametrize("number", [TERM, INT])
def test_A5_workers_get_the_signal_that_their_agent_alone_got(number: int) -> None:
    """Kubernetes, `KillMode=mixed`, a person: no later than the witness' time."""
    node = watched()
    assert NodeTimer(WaitKind.WITNESS, 1, WITNESS_S) in node.step(SignalCaught(number))
    assert sent(node.step(GO)) == []
    assert sent(node.step(ended(node, WaitKind.WITNESS))) == [SignalWorkers(number)]


def test_A5_workers_are_signalled_at_once_when_the_witness_had_its_time() -> None:
    node = watched()
    node.step(SignalCaught(TERM))
    assert sent(node.step(ended(node, WaitKind.WITNESS))) == []
    assert SignalWorkers(TERM) in node.step(GO)


def test_A5_the_witness_counts_also_when_it_tells_while_a_checkpoint_is_saved() -> None:
    node = watched()
    node.step(SignalCaught(TERM))
    node.steps(ended(node, WaitKind.WITNESS), Announced(), WitnessSignalled(TERM))
    assert sent(node.step(GO)) == [SignalWorkers(TERM, Received.EVERYBODY)]


def test_A5_without_a_witness_workers_are_signalled_at_once() -> None:
    node = Node(NodePhase.RUNNING)
    assert WaitKind.WITNESS not in {
        effect.kind for effect in node.step(SignalCaught(TERM)) if isinstance(effect, NodeTimer)
    }
    assert sent(node.step(GO)) == [SignalWorkers(TERM)]


def test_A5_a_signal_to_the_witness_alone_does_not_count_for_long() -> None:
    node = watched()
    [wait] = node.step(WitnessSignalled(TERM))
    assert wait == NodeTimer(WaitKind.OWN_SIGNAL, 1, OWN_SIGNAL_S)
    assert sent(node.step(LOST)) == [], "the agent may be about to get it"
    assert sent(node.step(ended(node, WaitKind.OWN_SIGNAL))) == [SignalWorkers(TERM)]
    node = watched()
    node.step(WitnessSignalled(TERM))
    assert node.step(ended(node, WaitKind.OWN_SIGNAL)) == []
    assert SignalWorkers(TERM) in node.step(LOST)


def reports(effects: list[NodeEffect]) -> list[m.Report]:
    """What the coordinator is told by these."""
    return [effect.message for effect in effects if isinstance(effect, ReportNow)]


@pytest.mark.parametrize("codes", [(0, 0), (1, 1), (-TERM, 0), (0, 143)], ids=str)
def test_A5_workers_that_a_scheduler_ends_before_it_signals_the_agent_neither_succeed_nor_fail(
    codes: tuple[int, int],
) -> None:
    node = watched()
    node.step(WitnessSignalled(TERM))
    assert reports(node.step(exited(*codes))) == []
    told = node.step(SignalCaught(TERM))
    told += node.step(Announced()) + node.step(WorkersGone(stamp()))
    assert node.state.leaving
    assert not [x for x in reports(told) if isinstance(x, m.Succeeded | m.Failed | m.Finishing)]


@pytest.mark.parametrize("first", [0, 1])
def test_A5_workers_that_end_well_after_a_signal_to_the_witness_alone_succeed_in_the_end(
    first: int,
) -> None:
    node = watched()
    if first:
        assert m.Finishing(stamp()) in reports(node.step(exited(0, None)))
    node.step(WitnessSignalled(TERM))
    assert reports(node.step(exited(0, 0))) == []
    assert claim(node.state).doing is (m.Doing.FINISHING if first else m.Doing.RUNNING)
    told = reports(node.step(ended(node, WaitKind.OWN_SIGNAL)))
    assert told == [*([] if first else [m.Finishing(stamp())]), m.Succeeded(stamp())]
    assert node.state.phase is NodePhase.FINISHED


def test_A5_a_worker_that_fails_after_a_signal_to_the_witness_alone_fails_in_the_end() -> None:
    node = watched()
    node.step(WitnessSignalled(TERM))
    assert reports(node.step(exited(None, 3))) == []
    [failed] = reports(node.step(ended(node, WaitKind.OWN_SIGNAL)))
    assert isinstance(failed, m.Failed)
    assert [(exit_.local_rank, exit_.code) for exit_ in failed.failures] == [(1, 3)]


def test_A5_the_witness_alone_counts_for_a_signal_that_the_agent_leaves_to_its_program() -> None:
    node = Node(NodePhase.RUNNING, replace(WATCHED, signals=()))
    node.step(WitnessSignalled(TERM))
    assert sent(node.step(LOST)) == [SignalWorkers(TERM, Received.EVERYBODY)]


def test_A5_another_signal_than_the_scheduler_sent_is_sent() -> None:
    """`sbatch --signal=USR1`, and a round that ends by SIGTERM."""
    node = watched()
    node.step(WitnessSignalled(USR1))
    assert SignalWorkers(TERM) in node.step(LOST)


def test_A5_workers_that_a_scheduler_has_signalled_are_not_signalled_when_the_round_ends() -> None:
    node = watched()
    assert all_sent(node, WitnessSignalled(TERM), SignalCaught(TERM), LOST) == [
        SignalWorkers(TERM, Received.EVERYBODY)
    ]


@pytest.mark.parametrize(
    ("end", "number"),
    [(DRAINED, TERM), (verdict(Outcome.PREEMPTED, TERM), TERM), (verdict(Outcome.PREEMPTED, 1), 1)],
    ids=["drain", "preempted", "preempted by SIGHUP"],
)
def test_A5_the_scheduler_may_signal_the_next_node_a_moment_later(
    end: NodeEvent, number: int
) -> None:
    """The first node's agent is faster than the scheduler."""
    node = watched()
    assert sent(node.step(end)) == []
    assert all_sent(node, WitnessSignalled(number), SignalCaught(number)) == [
        SignalWorkers(number, Received.EVERYBODY)
    ]
    alone = watched()
    alone.step(end)
    assert sent(alone.step(ended(alone, WaitKind.WITNESS))) == [SignalWorkers(number)]


@pytest.mark.parametrize("end", [LOST, verdict(Outcome.FAILED), exited(1)])
def test_A5_a_round_that_ends_for_another_reason_stops_its_workers_at_once(end: NodeEvent) -> None:
    assert sent(watched().step(end)) == [SignalWorkers(TERM)]


def test_A5_workers_that_were_started_after_the_signal_get_it_from_their_agent() -> None:
    node = Node(NodePhase.RUNNING, WATCHED)  # They wait for their modules.
    node.steps(WitnessSignalled(TERM), SignalCaught(TERM), WorkersStarted(stamp()))
    assert sent(node.step(GO)) == [SignalWorkers(TERM)]
    ready = Node(NodePhase.READY, WATCHED)
    ready.steps(WitnessSignalled(TERM), m.StartNow(stamp()), SignalCaught(TERM))
    ready.step(ended(ready, WaitKind.WITNESS))
    assert SignalWorkers(TERM) in ready.step(GO)


def test_A5_a_second_signal_kills_workers_whatever_is_held() -> None:
    node = watched()
    node.steps(SignalCaught(TERM), GO)
    assert sent(node.step(SignalCaught(INT))) == [KillWorkers()]
    assert all_sent(node, ended(node, WaitKind.WITNESS), WitnessSignalled(TERM)) == []


def test_A5_nothing_is_sent_to_workers_that_have_gone_meanwhile() -> None:
    node = watched()
    node.steps(SignalCaught(TERM), GO, WorkersGone(stamp()))
    assert sent(node.step(ended(node, WaitKind.WITNESS))) == []


def test_A5_a_drain_signal_is_sent_once() -> None:
    """To the workers, and not to what they have started; these get it when the round ends."""
    node = watched()
    assert sent(node.step(DrainSignalWanted(TERM))) == []
    assert sent(node.step(ended(node, WaitKind.WITNESS))) == [NotifyWorkers(TERM)]
    assert SignalWorkers(TERM, Received.WORKERS) in node.step(LOST)
    other = watched()
    other.step(DrainSignalWanted(USR1))
    other.step(ended(other, WaitKind.WITNESS))
    assert SignalWorkers(TERM) in other.step(LOST)


def test_A5_a_drain_signal_is_not_sent_to_workers_that_a_scheduler_has_signalled() -> None:
    node = watched()
    node.step(DrainSignalWanted(TERM))
    assert all_sent(node, WitnessSignalled(TERM), SignalCaught(TERM)) == []
    assert sent(node.step(GO)) == [SignalWorkers(TERM, Received.EVERYBODY)]


def test_A5_a_drain_signal_has_come_when_the_witness_had_its_time() -> None:
    node = watched()
    node.step(SignalCaught(TERM))
    node.step(ended(node, WaitKind.WITNESS))
    assert node.step(DrainSignalWanted(TERM)) == [NotifyWorkers(TERM)]
    assert sent(node.step(GO)) == [SignalWorkers(TERM, Received.WORKERS)]


def test_A5_a_drain_signal_reaches_no_worker_of_a_round_that_has_ended() -> None:
    node = watched()
    node.steps(DrainSignalWanted(USR1), LOST)
    assert all_sent(node, ended(node, WaitKind.WITNESS)) == [SignalWorkers(TERM)]
    assert Node(NodePhase.READY, WATCHED).step(DrainSignalWanted(USR1)) == []


def test_A5_W7_the_grace_of_workers_begins_when_they_are_signalled() -> None:
    node = Node(NodePhase.RUNNING, replace(WATCHED, shutdown_grace_s=0.0))
    node.step(SignalCaught(TERM))
    assert node.step(GO) == []
    grace = NodeTimer(WaitKind.GRACE, node.state.waits + 1, 0.0)
    assert node.step(ended(node, WaitKind.WITNESS)) == [SignalWorkers(TERM), grace]
    assert node.step(ended(node, WaitKind.GRACE)) == [KillWorkers()]


def test_A5_W7_a_grace_that_is_shortened_before_it_begins_is_short() -> None:
    node = watched()
    node.steps(SignalCaught(TERM), GO)
    assert node.step(LOST)[1:] == [], "this round would have had 25 s"
    grace = NodeTimer(WaitKind.GRACE, node.state.waits + 1, 5.0)
    assert node.step(ended(node, WaitKind.WITNESS)) == [SignalWorkers(TERM), grace]
