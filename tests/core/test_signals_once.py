"""Each worker gets a signal once: from a scheduler that signals every process, or from its agent
(A5)."""

from __future__ import annotations

import signal
from itertools import permutations

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import only
from tests.harness.node_machine import (
    INT,
    REASON,
    RULES,
    TERM,
    Node,
    assigned,
    ended,
    exited,
    stamp,
    verdict,
)

from rallypoint.core import messages as m
from rallypoint.core.model import EndKind, EndReason, Outcome
from rallypoint.core.node import events as e
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
        assert node.step(e.WorkersStarted(stamp())) == []
    return node


def sent(effects: list[e.NodeEffect]) -> list[e.NodeEffect]:
    """What the workers are sent by these."""
    return [x for x in effects if isinstance(x, e.SignalWorkers | e.NotifyWorkers | e.KillWorkers)]


def all_sent(node: Node, *events: e.NodeEvent) -> list[e.NodeEffect]:
    return [effect for event in events for effect in sent(node.step(event))]


@pytest.mark.parametrize(
    "order",
    [
        events
        for events in permutations([e.WitnessSignalled(TERM), e.SignalCaught(TERM), GO])
        if events.index(e.SignalCaught(TERM)) < events.index(GO)
    ],
    ids=lambda order: "-".join(type(event).__name__ for event in order),
)
def test_A5_workers_that_a_scheduler_has_signalled_are_not_signalled_again(
    order: tuple[e.NodeEvent, ...],
) -> None:
    node = watched()
    assert all_sent(node, *order) == [e.SignalWorkers(TERM, Received.EVERYBODY)]
    for wait in e.WaitKind.WITNESS, e.WaitKind.OWN_SIGNAL:
        assert all_sent(node, e.WaitEnded(wait, node.state.newest_wait.get(wait, 0))) == []


@pytest.mark.parametrize("number", [TERM, INT])
def test_A5_workers_get_the_signal_that_their_agent_alone_got(number: int) -> None:
    """Kubernetes, `KillMode=mixed`, a person: no later than the witness' time."""
    node = watched()
    assert e.NodeTimer(e.WaitKind.WITNESS, 1, WITNESS_S) in node.step(e.SignalCaught(number))
    assert sent(node.step(GO)) == []
    assert sent(node.step(ended(node, e.WaitKind.WITNESS))) == [e.SignalWorkers(number)]


def test_A5_workers_are_signalled_at_once_when_the_witness_had_its_time() -> None:
    node = watched()
    node.step(e.SignalCaught(TERM))
    assert sent(node.step(ended(node, e.WaitKind.WITNESS))) == []
    assert e.SignalWorkers(TERM) in node.step(GO)


def test_A5_the_witness_counts_also_when_it_tells_while_a_checkpoint_is_saved() -> None:
    node = watched()
    node.step(e.SignalCaught(TERM))
    node.steps(ended(node, e.WaitKind.WITNESS), e.Announced(), e.WitnessSignalled(TERM))
    assert sent(node.step(GO)) == [e.SignalWorkers(TERM, Received.EVERYBODY)]


def test_A5_without_a_witness_workers_are_signalled_at_once() -> None:
    node = Node(NodePhase.RUNNING)
    assert e.WaitKind.WITNESS not in {
        effect.kind for effect in node.step(e.SignalCaught(TERM)) if isinstance(effect, e.NodeTimer)
    }
    assert sent(node.step(GO)) == [e.SignalWorkers(TERM)]


def test_A5_a_signal_to_the_witness_alone_does_not_count_for_long() -> None:
    node = watched()
    [wait] = node.step(e.WitnessSignalled(TERM))
    assert wait == e.NodeTimer(e.WaitKind.OWN_SIGNAL, 1, OWN_SIGNAL_S)
    assert sent(node.step(LOST)) == [], "the agent may be about to get it"
    assert sent(node.step(ended(node, e.WaitKind.OWN_SIGNAL))) == [e.SignalWorkers(TERM)]
    node = watched()
    node.step(e.WitnessSignalled(TERM))
    assert node.step(ended(node, e.WaitKind.OWN_SIGNAL)) == []
    assert e.SignalWorkers(TERM) in node.step(LOST)


def reports(effects: list[e.NodeEffect]) -> list[m.Report]:
    """What the coordinator is told by these."""
    return [effect.message for effect in effects if isinstance(effect, e.ReportNow)]


@pytest.mark.parametrize("codes", [(0, 0), (1, 1), (-TERM, 0), (0, 143)], ids=str)
def test_A5_workers_that_a_scheduler_ends_before_it_signals_the_agent_neither_succeed_nor_fail(
    codes: tuple[int, int],
) -> None:
    node = watched()
    node.step(e.WitnessSignalled(TERM))
    assert reports(node.step(exited(*codes))) == []
    told = node.step(e.SignalCaught(TERM))
    told += node.step(e.Announced()) + node.step(e.WorkersGone(stamp()))
    assert node.state.leaving
    assert not [x for x in reports(told) if isinstance(x, m.Succeeded | m.Failed | m.Finishing)]


@pytest.mark.parametrize("first", [0, 1])
def test_A5_workers_that_end_well_after_a_signal_to_the_witness_alone_succeed_in_the_end(
    first: int,
) -> None:
    node = watched()
    if first:
        assert m.Finishing(stamp()) in reports(node.step(exited(0, None)))
    node.step(e.WitnessSignalled(TERM))
    assert reports(node.step(exited(0, 0))) == []
    assert claim(node.state).doing is (m.Doing.FINISHING if first else m.Doing.RUNNING)
    told = reports(node.step(ended(node, e.WaitKind.OWN_SIGNAL)))
    assert told == [*([] if first else [m.Finishing(stamp())]), m.Succeeded(stamp())]
    assert node.state.phase is NodePhase.FINISHED


def test_A5_a_worker_that_fails_after_a_signal_to_the_witness_alone_fails_in_the_end() -> None:
    node = watched()
    node.step(e.WitnessSignalled(TERM))
    assert reports(node.step(exited(None, 3))) == []
    failed = only(m.Failed, reports(node.step(ended(node, e.WaitKind.OWN_SIGNAL))))
    assert [(exit_.local_rank, exit_.code) for exit_ in failed.failures] == [(1, 3)]


def test_A5_the_witness_alone_counts_for_a_signal_that_the_agent_leaves_to_its_program() -> None:
    node = Node(NodePhase.RUNNING, replace(WATCHED, signals=()))
    node.step(e.WitnessSignalled(TERM))
    assert sent(node.step(LOST)) == [e.SignalWorkers(TERM, Received.EVERYBODY)]


def test_A5_another_signal_than_the_scheduler_sent_is_sent() -> None:
    """`sbatch --signal=USR1`, and a round that ends by SIGTERM."""
    node = watched()
    node.step(e.WitnessSignalled(USR1))
    assert e.SignalWorkers(TERM) in node.step(LOST)


def test_A5_workers_that_a_scheduler_has_signalled_are_not_signalled_when_the_round_ends() -> None:
    node = watched()
    assert all_sent(node, e.WitnessSignalled(TERM), e.SignalCaught(TERM), LOST) == [
        e.SignalWorkers(TERM, Received.EVERYBODY)
    ]


@pytest.mark.parametrize(
    ("end", "number"),
    [(DRAINED, TERM), (verdict(Outcome.PREEMPTED, TERM), TERM), (verdict(Outcome.PREEMPTED, 1), 1)],
    ids=["drain", "preempted", "preempted by SIGHUP"],
)
def test_A5_the_scheduler_may_signal_the_next_node_a_moment_later(
    end: e.NodeEvent, number: int
) -> None:
    """The first node's agent is faster than the scheduler."""
    node = watched()
    assert sent(node.step(end)) == []
    assert all_sent(node, e.WitnessSignalled(number), e.SignalCaught(number)) == [
        e.SignalWorkers(number, Received.EVERYBODY)
    ]
    alone = watched()
    alone.step(end)
    assert sent(alone.step(ended(alone, e.WaitKind.WITNESS))) == [e.SignalWorkers(number)]


@pytest.mark.parametrize("end", [LOST, verdict(Outcome.FAILED), exited(1)])
def test_A5_a_round_that_ends_for_another_reason_stops_its_workers_at_once(
    end: e.NodeEvent,
) -> None:
    assert sent(watched().step(end)) == [e.SignalWorkers(TERM)]


def test_A5_workers_that_were_started_after_the_signal_get_it_from_their_agent() -> None:
    node = Node(NodePhase.RUNNING, WATCHED)  # They wait for their modules.
    node.steps(e.WitnessSignalled(TERM), e.SignalCaught(TERM), e.WorkersStarted(stamp()))
    assert sent(node.step(GO)) == [e.SignalWorkers(TERM)]
    ready = Node(NodePhase.READY, WATCHED)
    ready.steps(e.WitnessSignalled(TERM), m.StartNow(stamp()), e.SignalCaught(TERM))
    ready.step(ended(ready, e.WaitKind.WITNESS))
    assert e.SignalWorkers(TERM) in ready.step(GO)


def test_A5_a_second_signal_kills_workers_whatever_is_held() -> None:
    node = watched()
    node.steps(e.SignalCaught(TERM), GO)
    assert sent(node.step(e.SignalCaught(INT))) == [e.KillWorkers()]
    assert all_sent(node, ended(node, e.WaitKind.WITNESS), e.WitnessSignalled(TERM)) == []


def test_A5_nothing_is_sent_to_workers_that_have_gone_meanwhile() -> None:
    node = watched()
    node.steps(e.SignalCaught(TERM), GO, e.WorkersGone(stamp()))
    assert sent(node.step(ended(node, e.WaitKind.WITNESS))) == []


def test_A5_a_drain_signal_is_sent_once() -> None:
    """To the workers, and not to what they have started; these get it when the round ends."""
    node = watched()
    assert sent(node.step(e.DrainSignalWanted(TERM))) == []
    assert sent(node.step(ended(node, e.WaitKind.WITNESS))) == [e.NotifyWorkers(TERM)]
    assert e.SignalWorkers(TERM, Received.WORKERS) in node.step(LOST)
    other = watched()
    other.step(e.DrainSignalWanted(USR1))
    other.step(ended(other, e.WaitKind.WITNESS))
    assert e.SignalWorkers(TERM) in other.step(LOST)


def test_A5_a_drain_signal_is_not_sent_to_workers_that_a_scheduler_has_signalled() -> None:
    node = watched()
    node.step(e.DrainSignalWanted(TERM))
    assert all_sent(node, e.WitnessSignalled(TERM), e.SignalCaught(TERM)) == []
    assert sent(node.step(GO)) == [e.SignalWorkers(TERM, Received.EVERYBODY)]


def test_A5_a_drain_signal_has_come_when_the_witness_had_its_time() -> None:
    node = watched()
    node.step(e.SignalCaught(TERM))
    node.step(ended(node, e.WaitKind.WITNESS))
    assert node.step(e.DrainSignalWanted(TERM)) == [e.NotifyWorkers(TERM)]
    assert sent(node.step(GO)) == [e.SignalWorkers(TERM, Received.WORKERS)]


def test_A5_a_drain_signal_reaches_no_worker_of_a_round_that_has_ended() -> None:
    node = watched()
    node.steps(e.DrainSignalWanted(USR1), LOST)
    assert all_sent(node, ended(node, e.WaitKind.WITNESS)) == [e.SignalWorkers(TERM)]
    assert Node(NodePhase.READY, WATCHED).step(e.DrainSignalWanted(USR1)) == []


def test_A5_W7_the_grace_of_workers_begins_when_they_are_signalled() -> None:
    node = Node(NodePhase.RUNNING, replace(WATCHED, shutdown_grace_s=0.0))
    node.step(e.SignalCaught(TERM))
    assert node.step(GO) == []
    grace = e.NodeTimer(e.WaitKind.GRACE, node.state.waits + 1, 0.0)
    assert node.step(ended(node, e.WaitKind.WITNESS)) == [e.SignalWorkers(TERM), grace]
    assert node.step(ended(node, e.WaitKind.GRACE)) == [e.KillWorkers()]


def test_A5_W7_a_grace_that_is_shortened_before_it_begins_is_short() -> None:
    node = watched()
    node.steps(e.SignalCaught(TERM), GO)
    assert node.step(LOST)[1:] == [], "this round would have had 25 s"
    grace = e.NodeTimer(e.WaitKind.GRACE, node.state.waits + 1, 5.0)
    assert node.step(ended(node, e.WaitKind.WITNESS)) == [e.SignalWorkers(TERM), grace]


def test_A5_the_grace_of_a_round_before_ends_no_workers_that_are_not_signalled_yet() -> None:
    node = watched()
    node.step(m.StopNow(stamp(), EndReason(EndKind.REQUEST, "a person asked for a restart")))
    before = ended(node, e.WaitKind.GRACE)
    node.step(e.WorkersGone(stamp()))
    node.step(assigned(1))
    node.step(e.EnrolmentDone(stamp(1)))
    node.step(m.StartNow(stamp(1)))
    node.step(e.WorkersStarted(stamp(1)))
    node.step(m.StopNow(stamp(1), EndReason(EndKind.DRAIN, "node b is leaving: it got SIGTERM")))
    assert node.step(before) == []
    assert node.state.phase is NodePhase.STOPPING
