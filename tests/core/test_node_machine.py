"""One node's workers: what every event means in every phase (A4, A5, F1, F2)."""

from __future__ import annotations

import copy

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import only
from tests.harness.node_machine import (
    INT,
    KILL,
    PHASES,
    REASON,
    RULES,
    TERM,
    Node,
    assigned,
    exited,
    failures,
    stamp,
    verdict,
)

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import EndKind, Outcome
from rallypoint.core.node import events as e
from rallypoint.core.node import leave, machine
from rallypoint.core.node.machine import NodePhase
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import UsageError

STALE: list[e.NodeEvent] = [
    m.StartNow(stamp(5)),
    m.StartNow(stamp(life=2)),
    e.EnrolmentDone(stamp(5)),
    exited(1, round_=5),
    e.SpawnFailed(stamp(5), UsageError("there is no such program")),
    e.WorkersGone(stamp(5)),
    e.WaitEnded(e.WaitKind.GRACE, 99),
    e.WaitEnded(e.WaitKind.SUSPECT, 99),
    e.WaitEnded(e.WaitKind.ANNOUNCE, 99),
    e.SessionOpened(resumed=True),
    e.Announced(),
]
ENDING = e.RoundEnding(stamp(), REASON)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
@pytest.mark.parametrize("event", STALE, ids=lambda event: type(event).__name__)
def test_F1_what_is_about_another_round_changes_nothing(
    phase: NodePhase, event: e.NodeEvent
) -> None:
    node = Node(phase)
    before = copy.deepcopy(node.state)
    assert node.step(event) == []
    assert node.state == before


@pytest.mark.parametrize("phase", PHASES[1:], ids=lambda phase: phase.name)
def test_F1_an_order_to_stop_another_round_is_not_ours(phase: NodePhase) -> None:
    node = Node(phase)
    assert node.step(m.StopNow(stamp(5), REASON)) == []
    assert node.state.phase is phase


@pytest.mark.parametrize("phase", PHASES[1:], ids=lambda phase: phase.name)
def test_F1_a_world_is_taken_only_when_nothing_runs(phase: NodePhase) -> None:
    assert Node(phase).step(assigned(1)) == []


def without_workers(
    node: Node, effects: list[e.NodeEffect], killed: list[e.NodeEffect]
) -> list[e.NodeEffect]:
    """Of a node whose workers ran, which were killed by these: what it does when they are gone."""
    if node.state.phase is NodePhase.STOPPING:
        assert effects == killed
        return node.step(e.WorkersGone(stamp()))
    return effects


LEFT = e.Finish(e.FinishKind.SIGNAL, signal=TERM, text="this node left the job: it got SIGTERM")


def test_F1_an_older_world_is_not_taken() -> None:
    node = Node(NodePhase.STOPPING)
    assert node.step(e.WorkersGone(stamp())) == [e.JoinRound()]
    assert node.step(assigned(0)) == []
    assert node.step(assigned(1)) == [e.EnrolWithStore(stamp(1), assigned(1).assignment)]


def test_F1_another_coordinator_may_count_anew() -> None:
    node = Node(NodePhase.STOPPING)
    node.steps(e.WorkersGone(stamp()), e.SessionOpened(resumed=False))
    assert isinstance(node.step(assigned(0, life=2))[0], e.EnrolWithStore)


def test_a_round_that_ended_before_it_was_heard_of_needs_a_new_join() -> None:
    node = Node(NodePhase.IDLE)
    assert node.step(m.StopNow(stamp(3), REASON)) == [e.JoinRound()]
    assert node.step(m.StopNow(stamp(3), REASON)) == [e.RoundEnding(stamp(3), REASON)]
    assert node.step(assigned(3)) == [], "it has ended"
    assert isinstance(node.step(assigned(4))[0], e.EnrolWithStore)


def test_F9_workers_are_spawned_when_all_have_enrolled() -> None:
    node = Node(NodePhase.ENROLLING)
    assert node.step(m.StartNow(stamp())) == [], "not enrolled itself"
    assert node.step(e.EnrolmentDone(stamp())) == [e.ReportNow(m.Enrolled(stamp()))]
    assert node.step(e.EnrolmentDone(stamp())) == []
    assert node.step(m.StartNow(stamp())) == [e.SpawnWorkers(stamp(), assigned().assignment)]
    assert node.step(m.StartNow(stamp())) == []


def test_F9_a_node_alone_spawns_at_once() -> None:
    node = Node(NodePhase.IDLE)
    assert isinstance(node.step(assigned(enrol=False))[0], e.SpawnWorkers)


def test_F9_a_failed_enrolment_is_reported_and_starts_nothing() -> None:
    node = Node(NodePhase.ENROLLING)
    assert node.step(e.EnrolmentDone(stamp(), "no route")) == [
        e.ReportNow(m.NotEnrolled(stamp(), "no route"))
    ]
    assert node.step(m.StartNow(stamp())) == []


@pytest.mark.parametrize("phase", [NodePhase.ENROLLING, NodePhase.READY])
def test_a_round_that_ends_before_workers_run_is_abandoned(phase: NodePhase) -> None:
    assert Node(phase).step(m.StopNow(stamp(), REASON)) == [
        ENDING,
        e.AbandonRound(),
        e.JoinRound(),
    ]
    assert Node(phase).step(e.LeaseEnded()) == [e.AbandonRound(), e.JoinRound()]


def test_A4_success_is_reported_when_all_ended_well() -> None:
    node = Node(NodePhase.RUNNING)
    assert node.step(exited(0)) == [e.ReportNow(m.Finishing(stamp()))]
    assert node.step(exited(0)) == [], "the same exit again"
    assert node.step(exited(None, 0)) == [e.ReportNow(m.Succeeded(stamp()))]
    assert node.state.phase is NodePhase.FINISHED
    assert node.step(verdict(Outcome.SUCCEEDED))[0] == e.SignalWorkers(TERM)
    [finish] = node.step(e.WorkersGone(stamp()))
    assert finish == e.Finish(e.FinishKind.VERDICT, verdict(Outcome.SUCCEEDED).verdict)
    assert node.state.phase.name == "DONE"


def test_A4_an_early_finisher_runs_again_when_the_round_ends() -> None:
    node = Node(NodePhase.FINISHED)
    assert node.step(m.StopNow(stamp(), REASON))[1] == e.SignalWorkers(TERM)
    assert node.steps(e.WorkersGone(stamp())) == [e.JoinRound()]


def test_a_failure_stops_the_node_without_being_told() -> None:
    node = Node(NodePhase.RUNNING)
    report, stop, wait = node.step(exited(3))
    assert report == failures((WorkerExit(3, None),))
    assert stop == e.SignalWorkers(TERM)
    assert wait == e.NodeTimer(e.WaitKind.GRACE, 1, 5.0)
    assert node.step(exited(None, -TERM)) == [], "exits after one's own stop are no failures"
    assert node.step(m.StopNow(stamp(), REASON)) == [ENDING]
    assert node.step(e.WorkersGone(stamp())) == [e.JoinRound()]
    assert node.step(e.WorkersGone(stamp())) == []


def test_an_order_to_stop_counts_once() -> None:
    node = Node(NodePhase.RUNNING)
    assert node.step(m.StopNow(stamp(), REASON)) == [
        ENDING,
        e.SignalWorkers(TERM),
        e.NodeTimer(e.WaitKind.GRACE, 1, 5.0),
    ]
    assert node.step(m.StopNow(stamp(), REASON)) == [], "nothing is stopped or told again"


def test_workers_that_ignore_the_signal_are_killed_after_the_grace() -> None:
    node = Node(NodePhase.STOPPING)
    assert node.step(e.WaitEnded(e.WaitKind.GRACE, 1)) == [e.KillWorkers()]
    finish = only(e.Finish, node.step(e.WorkersGone(stamp(), (71, 72))))
    assert finish.kind is e.FinishKind.STUCK, "no other round may run beside them"
    assert "71, 72" in finish.text
    assert node.said == ["killing", "stuck"]
    assert node.step(e.WaitEnded(e.WaitKind.GRACE, 1)) == []


def patient() -> Node:
    """Its workers were killed for the next round, and do not die."""
    node = Node(NodePhase.RUNNING, replace(RULES, stop_patience_s=60.0))
    node.steps(m.StopNow(stamp(), REASON), e.WaitEnded(e.WaitKind.GRACE, 1))
    wait, kill = node.step(e.WorkersGone(stamp(), (71,)))
    assert (wait, kill) == (e.NodeTimer(e.WaitKind.STUCK, 2, 60.0), e.KillWorkers())
    assert node.step(e.WorkersGone(stamp(), (71,))) == [e.KillWorkers()], "again"
    assert node.said == ["killing", "stuck"], "told once"
    return node


def test_F3_a_node_whose_workers_die_late_takes_part_in_the_next_round() -> None:
    assert patient().step(e.WorkersGone(stamp())) == [e.JoinRound()]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (e.WaitEnded(e.WaitKind.STUCK, 2), e.FinishKind.STUCK),
        (m.Expelled(stamp(), "would not stop", final=False), e.FinishKind.STUCK),
        (e.LeaseEnded(), e.FinishKind.STUCK),
        (verdict(Outcome.FAILED), e.FinishKind.VERDICT),
    ],
    ids=["time is over", "expelled", "lease ended", "verdict"],
)
def test_a_node_whose_workers_do_not_die_waits_no_longer_than_it_is_waited_for(
    event: e.NodeEvent, kind: e.FinishKind
) -> None:
    node = patient()
    node.step(event)
    finish = only(e.Finish, node.step(e.WorkersGone(stamp(), (71,))))
    assert finish.kind is kind


def test_A5_a_worker_ended_by_a_scheduler_s_signal_is_a_suspect_first() -> None:
    node = Node(NodePhase.RUNNING)
    assert node.step(exited(-TERM)) == [e.NodeTimer(e.WaitKind.SUSPECT, 1, machine.SUSPECT_S)]
    report, *_ = node.step(e.WaitEnded(e.WaitKind.SUSPECT, 1))
    assert report == failures((WorkerExit(None, TERM),))


def test_A5_a_suspect_is_innocent_when_the_agent_gets_the_signal_too() -> None:
    node = Node(NodePhase.RUNNING)
    node.step(exited(-TERM))
    assert node.step(e.SignalCaught(TERM))[0] == e.ReportNow(
        m.Drain("it got SIGTERM", TERM, notice_s=20.0)
    )
    assert node.step(exited(None, -TERM)) == []
    assert node.step(e.WaitEnded(e.WaitKind.SUSPECT, 1)) == []
    assert node.steps(e.Announced(), m.LeaveNow(stamp()))[0] == e.SignalWorkers(TERM)
    assert node.step(e.WorkersGone(stamp())) == [LEFT]


def test_A5_a_suspect_is_named_after_the_one_to_blame() -> None:
    node = Node(NodePhase.RUNNING)
    node.step(exited(-TERM))
    report, *_ = node.step(exited(None, -KILL))
    assert report == failures((WorkerExit(None, KILL, local_rank=1), WorkerExit(None, TERM)))


def test_A5_a_drain_is_announced_before_workers_are_signalled() -> None:
    for word in (m.LeaveNow(stamp()), e.WaitEnded(e.WaitKind.ANNOUNCE, 1)):
        node = Node(NodePhase.RUNNING)
        assert node.step(e.SignalCaught(TERM)) == [
            e.ReportNow(m.Drain("it got SIGTERM", TERM, notice_s=20.0)),
            e.NodeTimer(e.WaitKind.ANNOUNCE, 1, machine.ANNOUNCE_S),
            e.NodeTimer(e.WaitKind.CHECKPOINT, 2, 22.5),
            e.NodeTimer(e.WaitKind.DRAIN, 3, 25.0),
            e.NodeTimer(e.WaitKind.REPEAT, 4, leave.REPEAT_S),
        ]
        assert node.step(word) == [e.SignalWorkers(TERM), e.NodeTimer(e.WaitKind.GRACE, 5, 25.0)]
        assert node.step(word) == []
        node.step(e.Announced())
        assert node.step(e.WorkersGone(stamp())) == [LEFT]


@pytest.mark.parametrize("word", [m.LeaveNow(stamp()), e.WaitEnded(e.WaitKind.CHECKPOINT, 2)])
def test_A5_workers_run_on_for_a_checkpoint_until_the_job_is_ready(word: e.NodeEvent) -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(e.SignalCaught(TERM))
    assert node.steps(e.Announced(), e.WaitEnded(e.WaitKind.ANNOUNCE, 1)) == []
    assert node.step(exited(0, 0)) == [], "they exit because they were asked to (A4)"
    assert node.step(word)[0] == e.SignalWorkers(TERM)
    assert node.step(e.WorkersGone(stamp())) == [LEFT]


def test_A5_the_drain_deadline_bounds_it_all() -> None:
    for words in ([e.Announced()], [e.Announced(), m.LeaveNow(stamp())], []):
        node = Node(NodePhase.RUNNING)
        node.steps(e.SignalCaught(TERM), *words)
        assert node.step(e.WaitEnded(e.WaitKind.DRAIN, 3)) == [e.KillWorkers()]
        assert node.said == ["signal", "killing"]
        assert node.step(e.WorkersGone(stamp())) == [LEFT]


def test_A5_a_round_that_ends_during_the_checkpoint_ends_the_node_s_part() -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(e.SignalCaught(TERM), e.Announced())
    assert node.step(m.StopNow(stamp(), REASON))[1] == e.SignalWorkers(TERM)
    assert node.step(e.WorkersGone(stamp())) == [LEFT], "it does not join again"


def test_A5_a_notice_is_a_drain_and_the_signal_that_follows_is_no_second_one() -> None:
    node = Node(NodePhase.RUNNING)
    drain, *_ = node.step(e.LeaveWanted("/run/preempted has appeared"))
    assert drain == e.ReportNow(m.Drain("/run/preempted has appeared", TERM, notice_s=20.0))
    assert node.step(e.LeaveWanted("/run/preempted has appeared")) == []
    node.step(e.Announced())
    assert node.step(e.SignalCaught(TERM)) == [e.NodeTimer(e.WaitKind.REPEAT, 4, leave.REPEAT_S)]
    assert node.step(m.LeaveNow(stamp()))[0] == e.SignalWorkers(TERM)
    assert node.step(e.WaitEnded(e.WaitKind.REPEAT, 4)) == []
    second = node.step(e.SignalCaught(TERM))
    assert second == [e.SkipWaits(), e.KillWorkers()]
    finish = only(e.Finish, node.step(e.WorkersGone(stamp())))
    assert finish.text == "this node left the job: /run/preempted has appeared"


def test_A5_an_interrupt_during_a_notice_cancels_the_job() -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(e.LeaveWanted("drained"), e.Announced())
    assert node.step(e.SignalCaught(INT))[0] == e.ReportNow(m.Cancel("got SIGINT", INT))
    assert node.step(e.Announced())[0] == e.SignalWorkers(INT)


@pytest.mark.parametrize("first", [e.WorkersGone(stamp()), e.Announced()])
def test_A5_a_drain_during_a_stop_never_joins_again(first: e.NodeEvent) -> None:
    node = Node(NodePhase.STOPPING)
    node.step(e.SignalCaught(TERM))
    last = e.Announced() if isinstance(first, e.WorkersGone) else e.WorkersGone(stamp())
    assert node.step(first) == []
    assert node.step(last) == [LEFT]


@pytest.mark.parametrize("phase", [NodePhase.IDLE, NodePhase.ENROLLING, NodePhase.READY])
def test_A5_a_node_without_workers_leaves_at_once(phase: NodePhase) -> None:
    node = Node(phase)
    node.step(e.SignalCaught(TERM))
    assert node.step(assigned(1)) == [], "it takes no part any more"
    drain = e.ReportNow(m.Drain("it got SIGTERM", TERM, notice_s=20.0))
    assert node.step(e.SessionOpened(resumed=False)) == (
        [drain] if phase is NodePhase.IDLE else [e.AbandonRound(), drain]
    )
    assert node.step(e.Announced()) == [LEFT]


def test_A5_a_node_that_leaves_starts_no_workers_by_an_order_that_it_reads_late() -> None:
    node = Node(NodePhase.READY)
    node.step(e.SignalCaught(TERM))
    assert node.step(m.StartNow(stamp())) == [], "others do not wait for it"
    assert node.step(e.Announced()) == [e.AbandonRound(), LEFT]


def test_A5_sigint_cancels_the_job() -> None:
    node = Node(NodePhase.RUNNING)
    assert node.step(e.SignalCaught(INT))[0] == e.ReportNow(m.Cancel("got SIGINT", INT))
    stop, wait = node.step(verdict(Outcome.CANCELLED, INT))
    assert stop == e.SignalWorkers(INT)
    assert wait == e.NodeTimer(e.WaitKind.GRACE, 3, 25.0)
    assert node.step(e.Announced()) == []
    finish = only(e.Finish, node.step(e.WorkersGone(stamp())))
    assert (finish.kind, finish.signal) == (e.FinishKind.VERDICT, INT)


@pytest.mark.parametrize("phase", PHASES[:-1], ids=lambda phase: phase.name)
def test_A5_a_second_signal_skips_the_grace(phase: NodePhase) -> None:
    node = Node(phase)
    node.step(e.SignalCaught(TERM))
    killed: list[e.NodeEffect] = [e.SkipWaits(), e.KillWorkers()]
    assert without_workers(node, node.step(e.SignalCaught(INT)), killed)[-1] == LEFT


@pytest.mark.parametrize(("first", "word"), [(TERM, "too"), (INT, "again")])
def test_A5_a_second_signal_is_said_to_come_again_if_it_does(first: int, word: str) -> None:
    node = Node(NodePhase.RUNNING)
    node.step(e.SignalCaught(first))
    node.step(e.WaitEnded(e.WaitKind.REPEAT, node.state.waits))
    said = [
        effect
        for effect in machine.step(node.state, e.SignalCaught(INT))
        if isinstance(effect, Record)
    ]
    assert said[0].text == f"got SIGINT {word}: killing the workers"


@pytest.mark.parametrize("phase", PHASES[:-1], ids=lambda phase: phase.name)
@pytest.mark.parametrize("outcome", list(Outcome), ids=lambda outcome: outcome.name)
def test_a_verdict_ends_the_agent_from_every_phase(phase: NodePhase, outcome: Outcome) -> None:
    node = Node(phase)
    given = verdict(outcome, TERM if outcome in (Outcome.CANCELLED, Outcome.PREEMPTED) else 0)
    effects = node.step(given)
    assert node.step(verdict(Outcome.FAILED)) == [], "given once"
    if phase >= NodePhase.RUNNING:
        assert not any(isinstance(effect, e.Finish) for effect in effects)
        effects = node.step(e.WorkersGone(stamp()))
    [finish] = [effect for effect in effects if isinstance(effect, e.Finish)]
    assert finish.verdict == given.verdict
    assert not any(isinstance(effect, e.JoinRound) for effect in effects)


def test_a_verdict_during_a_drain_keeps_the_signal_as_the_reason() -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(e.SignalCaught(TERM), e.Announced(), verdict(Outcome.FAILED))
    assert node.step(e.WorkersGone(stamp())) == [LEFT]


@pytest.mark.parametrize("phase", PHASES[:-1], ids=lambda phase: phase.name)
def test_F2_at_the_fence_workers_are_killed_at_once(phase: NodePhase) -> None:
    node = Node(phase)
    effects = node.step(e.LeaseEnded())
    if phase in (NodePhase.IDLE, NodePhase.FINISHED):
        assert effects == [], "no worker lives; a success may still count"
        assert node.state.phase is phase
    elif phase in (NodePhase.RUNNING, NodePhase.STOPPING):
        assert effects == [e.KillWorkers()]
        assert node.step(e.WorkersGone(stamp())) == [e.JoinRound()]
        assert node.said[0] == "fenced"
    else:
        assert effects == [e.AbandonRound(), e.JoinRound()]


EXPELLED = "another agent has joined as node a"


@pytest.mark.parametrize("phase", PHASES[:-1], ids=lambda phase: phase.name)
@pytest.mark.parametrize(
    ("event", "last"),
    [
        (e.SessionOpened(resumed=False), e.JoinRound()),
        (
            m.Expelled(stamp(), EXPELLED, final=True),
            e.Finish(e.FinishKind.EXPELLED, text=EXPELLED),
        ),
        (m.Expelled(stamp(), EXPELLED, final=False), e.JoinRound()),
        (
            e.SessionGivenUp("no answer"),
            e.Finish(e.FinishKind.COORDINATOR_LOST, text="no answer"),
        ),
    ],
    ids=["the coordinator does not know us", "expelled", "expelled for once", "no coordinator"],
)
def test_F2_a_node_without_its_place_kills_its_workers_and_joins_anew_or_gives_up(
    phase: NodePhase, event: e.NodeEvent, last: e.NodeEffect
) -> None:
    node = Node(phase)
    effects = without_workers(node, node.step(event), [e.KillWorkers()])
    if phase is NodePhase.IDLE and event == m.Expelled(stamp(), EXPELLED, final=False):
        assert effects == [], "the next session says when to join"
    else:
        assert effects[-1] == last


@pytest.mark.parametrize(
    ("restart_grace_s", "more", "ends"),
    [(60.0, [e.NodeTimer(e.WaitKind.GRACE, 6, 25.0)], (1, 6)), (5.0, [], (1,))],
    ids=["shorter", "longer"],
)
def test_A5_a_leave_may_shorten_a_stop_that_is_under_way_and_never_extends_it(
    restart_grace_s: float, more: list[e.NodeTimer], ends: tuple[int, ...]
) -> None:
    for number in ends:
        node = Node(NodePhase.RUNNING)
        node.state.settings = replace(RULES, restart_grace_s=restart_grace_s)
        assert node.step(exited(3))[-1] == e.NodeTimer(e.WaitKind.GRACE, 1, restart_grace_s)
        node.step(e.SignalCaught(TERM))
        assert node.step(e.Announced()) == more
        assert node.step(e.WaitEnded(e.WaitKind.GRACE, number)) == [e.KillWorkers()]
        assert node.said[-1] == "killing"


@pytest.mark.parametrize("others_need_it", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_A3_a_dead_helper_is_reported_and_no_worker_is(
    phase: NodePhase, others_need_it: bool
) -> None:
    """The coordinator is told even when workers have failed before: that may have been why."""
    node = Node(phase)
    done = node.step(m.HelperDied(stamp(), "it was killed", others_need_it))
    report = e.ReportNow(m.HelperDied(stamp(), "it was killed", others_need_it))
    if phase in (NodePhase.IDLE, NodePhase.DONE) or (
        phase is NodePhase.FINISHED and not others_need_it
    ):
        assert done == []
    elif phase in (NodePhase.RUNNING, NodePhase.FINISHED):
        assert done[:2] == [report, e.SignalWorkers(TERM)]
        assert node.step(exited(1, -9)) == []
    else:
        assert done == [report]
    assert node.step(m.HelperDied(stamp(9), "of another round", others_need_it)) == []


def claims(*events: e.NodeEvent, node: Node | None = None) -> m.Claim:
    node = node or Node()
    node.steps(*events)
    return machine.claim(node.state)


def test_L5_a_node_claims_what_it_does() -> None:
    asked = m.CheckpointWanted(stamp(), 1, EndKind.GROWTH, "1 more node", None)
    assert machine.claim(machine.WorkersState(RULES)) == m.Claim(m.Doing.IDLE)
    assert claims() == m.Claim(m.Doing.JOINED)
    assert claims(assigned()) == m.Claim(m.Doing.ENROLLING, stamp())
    assert claims(node=Node(NodePhase.READY)) == m.Claim(m.Doing.ENROLLED, stamp())
    assert claims(node=Node(NodePhase.RUNNING)) == m.Claim(m.Doing.RUNNING, stamp())
    assert claims(exited(0), node=Node(NodePhase.RUNNING)) == m.Claim(m.Doing.FINISHING, stamp())
    assert claims(exited(0, 0), node=Node(NodePhase.RUNNING)) == m.Claim(m.Doing.SUCCEEDED, stamp())
    when_asked = claims(asked, exited(0, 0), node=Node(NodePhase.RUNNING))
    assert when_asked == m.Claim(m.Doing.SUCCEEDED_WHEN_ASKED, stamp())
    dropped = m.CheckpointNotWanted(stamp(), 1)
    withdrawn = claims(asked, exited(0, 0), dropped, node=Node(NodePhase.RUNNING))
    assert withdrawn == m.Claim(m.Doing.SUCCEEDED, stamp())
    stopping = claims(node=Node(NodePhase.STOPPING))
    assert stopping == m.Claim(m.Doing.STOPPING, stamp(), REASON.text)
    node = Node(NodePhase.RUNNING)
    node.step(e.SignalCaught(TERM))
    draining = m.Claim(m.Doing.DRAINING, stamp(), "it got SIGTERM", TERM, 7.0)
    assert machine.claim(node.state, 7.0) == draining
    assert claims(
        m.StopNow(stamp(), REASON), e.WorkersGone(stamp()), node=Node(NodePhase.RUNNING)
    ) == (m.Claim(m.Doing.JOINED, stamp()))


def test_L0_rounds_of_a_coordinator_that_knows_nothing_of_ours_can_t_be_compared() -> None:
    node = Node(NodePhase.STOPPING)
    node.step(e.WorkersGone(stamp()))
    assert node.step(assigned(0)) == [], "it has ended"
    node.step(e.SessionOpened(resumed=True, replaced=True))
    assert node.step(assigned(0)) == [], "that coordinator has taken the job over"
    node.step(e.SessionOpened(resumed=False, replaced=True))
    assert isinstance(node.step(assigned(0))[0], e.EnrolWithStore)


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ([exited(0)], [(0, "SUCCEEDED")]),
        ([exited(0, 0), e.WorkersGone(stamp())], [(0, "SUCCEEDED"), (1, "SUCCEEDED")]),
        ([exited(None, 3)], []),
        ([exited(0, 3), e.WorkersGone(stamp())], [(0, "SUCCEEDED"), (1, "FAILED")]),
        (
            # One that catches SIGTERM and exits with 0 has not done its work.
            [m.StopNow(stamp(), REASON), exited(0), e.WorkersGone(stamp())],
            [(0, "TERMINATED"), (1, "TERMINATED")],
        ),
        (
            [
                e.SignalCaught(TERM),
                exited(-TERM, -TERM),
                m.LeaveNow(stamp()),
                e.WorkersGone(stamp()),
            ],
            [(0, "TERMINATED"), (1, "TERMINATED")],
        ),
        (
            [exited(-TERM), e.WaitEnded(e.WaitKind.SUSPECT, 1), e.WorkersGone(stamp())],
            [(0, "FAILED"), (1, "TERMINATED")],
        ),
        (
            [exited(3), e.WorkersGone(stamp(), stuck=(71,)), e.WorkersGone(stamp())],
            [(0, "FAILED"), (1, "TERMINATED")],
        ),
        (
            # What is noticed only after the end changes nothing of it.
            [m.StopNow(stamp(), REASON), e.WorkersGone(stamp()), exited(0, 0)],
            [(0, "TERMINATED"), (1, "TERMINATED")],
        ),
    ],
)
def test_each_worker_s_end_is_reported_to_observers_once_and_as_what_it_was(
    events: list[e.NodeEvent], ended: list[tuple[int, str]]
) -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(*events)
    assert node.ended == ended


def test_the_ends_of_a_round_do_not_count_for_the_next() -> None:
    node = Node(NodePhase.RUNNING)
    node.steps(exited(0, 3), e.WorkersGone(stamp()))
    node.steps(assigned(1, enrol=False), exited(0, 0, round_=1))
    assert node.ended == [(0, "SUCCEEDED"), (1, "FAILED"), (0, "SUCCEEDED"), (1, "SUCCEEDED")]
