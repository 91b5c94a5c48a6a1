"""What an agent decides whose nodes meet by a handler: one node's steps, and two nodes together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import RESTART, Record
from rallypoint.core.model import (
    Candidate,
    EndKind,
    EndReason,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.elastic.rendezvous.plug_in import round as e
from rallypoint.elastic.rendezvous.plug_in.job import (
    NO_ROUND,
    PUBLISH_S,
    RETRY_S,
    STOP_S,
    HandlerJob,
    step,
)
from rallypoint.elastic.rendezvous.plug_in.round import NodeInfo

CANDIDATE = Candidate(2, "default", "", 0)
LEASE_S = 15.0
OTHERS = Verdict(Outcome.FAILED, "another node's", 3)
LATE = EndReason(EndKind.GROWTH, "1 more node joined")


def failure(rank: int = 0, *, code: int | None = 1, peer: bool = False) -> WorkerExit:
    signal = 9 if code is None else None
    return WorkerExit(
        code, signal, local_rank=rank, rank=rank, role="default", pid=100, tells_of_lost_peer=peer
    )


class Node:
    """One machine, and what it wanted since it was asked last."""

    def __init__(self, node_id: str = "a", **settings: object) -> None:
        shared = replace(SharedSettings("job", 1, 4, lease_s=LEASE_S), **settings)
        self.job = HandlerJob("file", NodeInfo(node_id, 2, "default", 7, -1, 0), shared)
        self.now = 0.0
        self.effects: list[e.HandlerEffect] = []

    def apply(self, event: e.HandlerEvent) -> list[e.HandlerEffect]:
        self.effects = step(self.job, event, self.now)
        return self.effects

    @property
    def stamp(self) -> Stamp:
        assert self.job.round is not None
        return self.job.round.stamp

    def meet(self, *others: NodeInfo) -> m.Assigned:
        """Join, and be in a round with others that have higher ranks."""
        (wanted,) = (x for x in self.apply(m.Join(1, CANDIDATE)) if isinstance(x, e.JoinNextRound))
        nodes = (replace(wanted.info, address="host", port=5), *others)
        order, watch = self.apply(e.HandlerRoundFormed(0, nodes, "said by the handler"))
        assert isinstance(order, e.OrderAgent)
        assert isinstance(order.message, m.Assigned)
        assert watch == e.WatchRound(order.message.stamp)
        return order.message

    def fail(self, *failures: WorkerExit) -> list[e.HandlerEffect]:
        return self.apply(m.Failed(self.stamp, failures or (failure(),)))

    def orders(self) -> Iterator[object]:
        return (effect.message for effect in self.effects if isinstance(effect, e.OrderAgent))

    def verdict(self) -> Verdict:
        """What the agent was just given."""
        (ended,) = (order for order in self.orders() if isinstance(order, m.Ended))
        return ended.verdict

    def wanted(self, kind: type[e.HandlerEffect]) -> list[e.HandlerEffect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]


@pytest.fixture
def node() -> Node:
    """In its first round, alone, with three restarts."""
    node = Node(max_restarts=3)
    node.meet()
    return node


@pytest.fixture
def paired() -> Node:
    """In its first round with another node, with no restart."""
    node = Node()
    node.meet(other())
    return node


def other(node_id: str = "b", last: int = -1, job: int = 7) -> NodeInfo:
    return NodeInfo(node_id, 2, "default", job, last, 0)


# Meeting


def test_a_join_drops_what_waits_and_meets() -> None:
    node = Node()
    drop, status, meet = node.apply(m.Join(1, CANDIDATE))
    assert drop == e.DropCalls()
    assert isinstance(status, e.OrderAgent)
    assert isinstance(status.message, m.HeartbeatAck)
    assert meet == e.JoinNextRound(node.job.node)


def test_a_node_is_assigned_its_part_and_starts_when_it_has_enrolled() -> None:
    node = Node()
    assigned = node.meet(other("b"), other("c"))
    assert (assigned.assignment.world_size, assigned.assignment.why) == (6, "the first round")
    assert node.apply(m.Enrolled(node.stamp)) == [e.OrderAgent(m.StartNow(node.stamp))]


def test_a_newcomer_says_what_the_handler_knows_of_the_end_of_the_last_round() -> None:
    node = Node()
    assert node.meet(other(last=4, job=9)).assignment.why == "said by the handler"
    assert (node.job.node.incarnation, node.job.node.last_round) == (9, 5)


def test_a_node_that_could_not_enrol_ends_as_an_infrastructure_failure(node: Node) -> None:
    node.apply(m.NotEnrolled(node.stamp, "no route"))
    assert node.verdict().outcome is Outcome.INFRASTRUCTURE
    assert node.verdict().text == "node a: no route"
    assert node.apply(e.SessionEnds()) == [e.DropCalls(), e.LeaveJob()]


@pytest.mark.parametrize(
    ("kind", "outcome", "text"),
    [
        (e.NoRound.NOT_NEEDED, Outcome.SUCCEEDED, "this node was not needed: so it is"),
        (e.NoRound.TIMED_OUT, Outcome.TIMED_OUT, "so it is"),
        (e.NoRound.FAILED, Outcome.INFRASTRUCTURE, "so it is"),
    ],
)
def test_a_meeting_without_a_round_ends_this_nodes_part_alone(
    node: Node, kind: e.NoRound, outcome: Outcome, text: str
) -> None:
    node.apply(e.NextRoundFailed(kind, "so it is"))
    assert (node.verdict().outcome, node.verdict().text) == (outcome, text)
    assert node.job.closed_why == ""
    assert node.apply(e.SessionEnds()) == [e.DropCalls(), e.LeaveJob()]


@pytest.mark.parametrize("in_a_round", [True, False])
def test_a_job_that_another_node_has_closed_is_told_with_its_verdict(in_a_round: bool) -> None:
    node = Node()
    if in_a_round:
        node.meet(other())
    node.apply(e.NextRoundFailed(e.NoRound.CLOSED, "it is closed", OTHERS))
    assert node.verdict() == OTHERS
    assert node.job.closed_why == ""


def test_a_job_that_was_closed_before_this_nodes_first_round_needs_another_id() -> None:
    first, later = Node(), Node()
    later.meet(other())
    for node, hint in ((first, "; give another --rdzv-id to run it again"), (later, "")):
        node.apply(e.NextRoundFailed(e.NoRound.CLOSED, "it is closed"))
        assert node.verdict().outcome is Outcome.INFRASTRUCTURE
        assert node.verdict().text == node.job.closed_why == f"it is closed{hint}"


# In a round


def test_the_handler_is_asked_as_long_as_the_round_goes_on(node: Node) -> None:
    watched = e.RoundWatched(node.stamp, e.HandlerChange.NONE)
    assert node.apply(watched) == [e.WatchRound(node.stamp)]


def test_a_round_that_is_over_stops_and_its_reason_is_that_of_the_next(node: Node) -> None:
    over = e.RoundWatched(node.stamp, e.HandlerChange.OVER, reason=LATE)
    assert node.apply(over) == [e.OrderAgent(m.StopNow(node.stamp, LATE))]
    assert node.apply(over) == [], "it stops once"
    assert node.meet(other()).assignment.why == LATE.text
    assert node.wanted(Record) == [], "nobody is charged"
    assert node.job.ledger.total == 0


def test_A3_what_fails_after_the_round_is_over_is_charged_to_nobody(node: Node) -> None:
    node.apply(e.RoundWatched(node.stamp, e.HandlerChange.OVER, reason=LATE))
    assert node.fail() == []
    node.apply(m.Join(2, CANDIDATE))
    assert node.job.ledger.total == 0


def test_the_reason_of_another_node_is_not_written_again(node: Node) -> None:
    node.apply(e.RoundWatched(node.stamp, e.HandlerChange.OVER, reason=replace(LATE, node_id="b")))
    assert e.JoinNextRound(node.job.node) in node.apply(m.Join(2, CANDIDATE))


def test_F2_a_handler_that_fails_for_a_lease_is_given_up(node: Node) -> None:
    failed = e.WatchFailed(node.stamp, "no file")
    node.now = LEASE_S
    assert node.apply(failed) == [e.WatchRound(node.stamp, RETRY_S)]
    node.apply(e.RoundWatched(node.stamp, e.HandlerChange.NONE))
    node.now = 2 * LEASE_S
    assert node.apply(failed) == [e.WatchRound(node.stamp, RETRY_S)], "it has answered since"
    node.now += 1
    assert node.apply(failed) == [e.GiveUpHandler("the rendezvous handler 'file' failed: no file")]


def test_a_helper_that_died_ends_the_round_and_costs_nothing(node: Node) -> None:
    node.apply(m.HelperDied(node.stamp, "the store was killed"))
    reason = EndReason(EndKind.INFRASTRUCTURE, "the store was killed", "a")
    assert list(node.orders()) == [m.StopNow(node.stamp, reason)]
    assert node.fail() == [], "its workers fail because of that"
    effects = node.apply(m.Join(2, CANDIDATE))
    assert e.JoinNextRound(node.job.node, reason) in effects, "the others are told why"
    assert node.job.ledger.total == 0


def test_A3_a_failure_because_of_a_helper_that_died_is_charged_to_nobody(node: Node) -> None:
    """A worker may notice it before its agent does."""
    node.fail()
    node.now += 0.5
    assert node.apply(m.HelperDied(node.stamp, "the store was killed")) == []
    effects = node.apply(m.Join(2, CANDIDATE))
    reason = EndReason(EndKind.INFRASTRUCTURE, "the store was killed", "a")
    assert e.JoinNextRound(node.job.node, reason) in effects
    assert node.wanted(Record) == []
    assert node.job.ledger.total == 0


def test_A3_a_failure_long_before_a_helper_died_is_the_cause(node: Node) -> None:
    node.fail()
    node.now += 30.0
    node.apply(m.HelperDied(node.stamp, "the store was killed"))
    node.apply(m.Join(2, CANDIDATE))
    assert node.job.ledger.total == 1


def test_what_is_about_an_older_round_has_no_effect(node: Node) -> None:
    old = node.stamp
    node.apply(e.RoundWatched(old, e.HandlerChange.OVER, reason=LATE))
    node.meet(other())
    failed = (failure(),)
    events: list[e.HandlerEvent] = [
        m.Failed(old, failed),
        m.Detailed(old, failed),
        m.HelperDied(old, "x"),
        m.Succeeded(old),
        e.AllSucceeded(old),
        e.StopIsSlow(old),
        e.RoundWatched(old, e.HandlerChange.CLOSED),
        e.WatchFailed(old, "x"),
    ]
    assert [node.apply(event) for event in events] == [[]] * len(events)


# Failures


def test_A2_a_failure_stops_the_round_at_once_and_is_charged_when_the_workers_have_stopped(
    node: Node,
) -> None:
    drop, order, slow = node.fail(failure(1, code=9))
    why = "rank 1 (node a, local rank 1) exited with code 9"
    reason = EndReason(EndKind.FAILURE, why, "a")
    assert drop == e.DropCalls()
    assert order == e.OrderAgent(m.StopNow(node.stamp, reason))
    assert slow == e.RoundTimer(STOP_S, e.StopIsSlow(node.stamp))
    assert node.job.ledger.total == 0
    effects = node.apply(m.Join(2, CANDIDATE))
    assert effects[0] == RESTART("restart 1 of 3", node_id="a")
    assert e.JoinNextRound(node.job.node, reason) in effects
    assert (node.job.ledger.total, node.job.node.restarts) == (1, 1)


def test_A3_what_fails_while_the_workers_stop_can_be_the_first_cause(node: Node) -> None:
    """A peer's lost connection is noticed before the death that broke it."""
    node.fail(failure(0, peer=True))
    node.now += 0.5
    assert node.fail(failure(1, code=None)) == []
    effects = node.apply(m.Detailed(node.stamp, ()))
    why = "rank 1 (node a, local rank 1) was killed by SIGKILL"
    assert effects == [RESTART(f"restart 1 of 3: {why}", node_id="a")]
    (meet,) = (x for x in node.apply(m.Join(2, CANDIDATE)) if isinstance(x, e.JoinNextRound))
    assert meet.reason == EndReason(EndKind.FAILURE, why, "a"), "the others are told of this one"
    assert node.job.why == why
    assert node.job.ledger.total == 1, "both are one failure"


def test_A2_an_exit_code_that_is_not_retried_counts_only_as_the_first_cause() -> None:
    node = Node(max_restarts=1, no_restart_exit_codes=(1,))
    node.meet()
    node.fail(failure(0, peer=True))
    node.fail(failure(1, code=5))
    assert node.apply(m.Join(2, CANDIDATE))[0] == RESTART(
        "restart 1 of 1: rank 1 (node a, local rank 1) exited with code 5", node_id="a"
    )


def test_A2_a_restart_waits_for_its_back_off_and_is_forgotten_after_its_window() -> None:
    node = Node(max_restarts=2, restart_backoff_s=4.0, restart_window_s=60.0)
    for delay_s in (4.0, 8.0):
        node.meet()
        node.fail()
        effects = node.apply(m.Join(2, CANDIDATE))
        assert [x.after_s for x in effects if isinstance(x, e.JoinNextRound)] == [delay_s]
    assert e.RoundTimer(60.0, e.ChargeExpired("2")) in effects
    assert node.apply(e.ChargeExpired("1")) == []
    node.meet()
    node.fail()
    node.apply(m.Join(2, CANDIDATE))
    assert node.wanted(Record) == [RESTART("restart 2 of 2 in 8 s", node_id="a")]


# Giving up


@pytest.fixture
def given_up(paired: Node) -> Node:
    """Its only failure was final, and its workers have stopped."""
    paired.fail()
    paired.apply(m.Join(2, CANDIDATE))
    return paired


def test_a_budget_that_is_used_up_publishes_the_verdict_and_ends_the_job(given_up: Node) -> None:
    (publish,) = given_up.wanted(e.PublishVerdict)
    assert isinstance(publish, e.PublishVerdict)
    assert "no restarts were allowed" in publish.verdict.text
    assert list(given_up.orders()) == [], "another node may have been first"
    given_up.apply(e.VerdictPublished(publish.verdict, None))
    assert given_up.verdict() == publish.verdict
    assert given_up.verdict().cause is not None
    assert given_up.apply(e.SessionEnds()) == [e.DropCalls(), e.CloseJob(let_others_read=False)]


def test_the_first_verdict_that_any_node_has_published_counts(given_up: Node) -> None:
    given_up.apply(e.VerdictPublished(OTHERS, None))
    assert given_up.verdict() == OTHERS


def test_a_verdict_does_not_wait_for_workers_that_are_slow_to_stop(paired: Node) -> None:
    """But it is told here with what they have said of their failure in the end."""
    paired.fail()
    (publish,) = paired.apply(e.StopIsSlow(paired.stamp))
    assert isinstance(publish, e.PublishVerdict)
    assert paired.apply(e.VerdictPublished(publish.verdict, None)) == [], "they still run"
    said = replace(failure(), message="a ValueError")
    assert paired.apply(m.Detailed(paired.stamp, (said,))) == []
    paired.apply(m.Join(2, CANDIDATE))
    cause = paired.verdict().cause
    assert cause is not None
    assert cause.failure is not None
    assert cause.failure.message == "a ValueError"


def test_a_restart_waits_for_workers_that_are_slow_to_stop(node: Node) -> None:
    """What fails meanwhile may be the cause, and final."""
    node.fail()
    assert node.apply(e.StopIsSlow(node.stamp)) == []
    assert node.job.ledger.total == 0


def test_a_handler_that_does_not_publish_in_time_does_not_hold_up_the_end(given_up: Node) -> None:
    assert e.RoundTimer(PUBLISH_S, e.PublishIsSlow()) in given_up.effects
    given_up.apply(e.PublishIsSlow())
    assert given_up.verdict().outcome is Outcome.FAILED
    assert given_up.apply(e.VerdictPublished(OTHERS, None)) == [], "one verdict is given"


def test_a_job_that_could_not_be_closed_says_why(given_up: Node) -> None:
    given_up.apply(e.VerdictPublished(OTHERS, None, "the file is gone"))
    stop, ended = given_up.orders()
    assert stop == m.StopNow(given_up.stamp, EndReason(EndKind.FAILURE, "the file is gone"))
    assert isinstance(ended, m.Ended)


# The end


def test_A4_the_job_has_succeeded_when_every_node_has(node: Node) -> None:
    assert node.apply(m.Succeeded(node.stamp)) == [e.AwaitSuccess(node.stamp)]
    node.apply(e.AllSucceeded(node.stamp))
    assert node.verdict().outcome is Outcome.SUCCEEDED
    assert node.apply(e.SessionEnds()) == [e.DropCalls(), e.CloseJob(let_others_read=False)]


def test_A4_a_success_of_several_nodes_lets_them_all_read_it(paired: Node) -> None:
    paired.apply(e.AllSucceeded(paired.stamp))
    assert paired.apply(e.SessionEnds()) == [e.DropCalls(), e.CloseJob(let_others_read=True)]


@pytest.mark.parametrize("change", [e.HandlerChange.OVER, e.HandlerChange.CLOSED])
def test_A4_a_success_of_all_nodes_outranks_what_the_handler_says_since(
    node: Node, change: e.HandlerChange
) -> None:
    """A node that has read it closes the job and goes."""
    node.apply(e.RoundWatched(node.stamp, change, all_succeeded=True, reason=LATE))
    assert node.verdict().outcome is Outcome.SUCCEEDED


def test_a_job_that_another_node_closes_while_a_round_runs(node: Node) -> None:
    node.apply(e.RoundWatched(node.stamp, e.HandlerChange.CLOSED))
    assert node.verdict().text == node.job.closed_why == "the job was closed by another node"


def test_A5_a_node_that_drains_leaves_and_the_job_goes_on(node: Node) -> None:
    drain = m.Drain("got SIGTERM", 15, False)
    leave = e.OrderAgent(m.LeaveNow(node.stamp))
    assert node.apply(drain) == [e.DropCalls(), e.LeaveJob(), e.Acknowledge(drain), leave]
    assert node.fail() == [], "workers end because of it"
    assert node.apply(m.Succeeded(node.stamp)) == []
    assert node.apply(e.SessionEnds()) == [e.DropCalls(), e.LeaveJob()]


def test_a_node_that_drains_before_it_met_is_in_no_round() -> None:
    node = Node()
    node.apply(m.Join(1, CANDIDATE))
    node.apply(m.Drain("got SIGTERM", 15, False))
    assert list(node.orders()) == [m.LeaveNow(NO_ROUND)]
    assert node.apply(e.HandlerRoundFormed(0, (node.job.node,), "")) == []


def test_A5_a_cancel_is_acknowledged_when_the_others_can_know(node: Node) -> None:
    cancel = m.Cancel("got SIGINT", 2)
    drop, publish = node.apply(cancel)
    assert drop == e.DropCalls()
    assert isinstance(publish, e.PublishVerdict)
    assert publish.verdict.outcome is Outcome.CANCELLED
    assert (publish.verdict.signal, publish.verdict.text) == (2, "cancelled on node a: got SIGINT")
    assert node.apply(e.VerdictPublished(publish.verdict, publish.report)) == [
        e.Acknowledge(cancel)
    ]
    assert node.apply(e.SessionEnds()) == [e.DropCalls(), e.CloseJob(let_others_read=False)]


def test_one_verdict_is_given_and_nothing_follows_it(node: Node) -> None:
    node.apply(e.AllSucceeded(node.stamp))
    assert node.apply(e.RoundWatched(node.stamp, e.HandlerChange.CLOSED)) == []
    assert node.fail() == []
    assert node.apply(m.Join(2, CANDIDATE)) == []
