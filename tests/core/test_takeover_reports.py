"""What agents have told a coordinator that dies, and tell the next one."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.harness.takeovers import running, take_over
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import event_kinds as kinds
from rallypoint.core import fitness, limits
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core.events import RoundNotStarted, Timer, TimerEnded, TimerKind
from rallypoint.core.host_effects import Faulted, SendTo
from rallypoint.core.job_state import new_job
from rallypoint.core.model import (
    Assignment,
    Candidate,
    NodeRef,
    Outcome,
    SharedSettings,
    Stamp,
    WorldEntry,
)
from rallypoint.core.round_state import MemberState, RoundMember, add
from rallypoint.core.settings import OnJoin
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import Handover, Predecessor
from rallypoint.core.takeover.record import record_of
from rallypoint.core.worker_exits import WorkerExit

ROUND_0 = Stamp(1, 0)


def hear(cluster: Cluster, agent: SimulatedAgent) -> None:
    """All that this agent and the coordinator tell each other, and what its processes tell it."""
    while moves := [move for move in cluster.moves() if move[1] is agent]:
        cluster.deliver(moves[0])


def test_L3_a_report_that_is_kept_is_not_acknowledged_to_an_agent_that_comes_again() -> None:
    cluster, (a, b) = running(2)
    cluster.take_over()
    cluster.connect(b)
    cluster.fail(b)
    hear(cluster, b)
    cluster.cut(b)
    cluster.connect(b)
    hear(cluster, b)
    assert not b.end.is_all_acknowledged
    take_over(cluster)
    assert cluster.job.ledger.total == 1
    assert a.running == b.running == Stamp(1, 1)


def test_A4_a_success_that_a_checkpoint_had_caused_does_not_count_at_the_next_coordinator() -> None:
    settings = SharedSettings(
        "job", 2, 3, on_join=OnJoin.AT_CHECKPOINT, min_growth_interval_s=0.0, join_settle_s=0.0
    )
    cluster = Cluster(settings, has_register=True)
    a, b = cluster.start("a"), cluster.start("b")
    a.ends_when_asked = b.ends_when_asked = True
    cluster.settle()
    cluster.later(settings.last_call_s)
    assert a.running == b.running == ROUND_0
    c = cluster.start("c")
    for agent in (c, a, b):
        hear(cluster, agent)
    hear(cluster, c)
    assert a.state.stamp == b.state.stamp == ROUND_0
    take_over(cluster)
    cluster.later(settings.last_call_s)
    assert cluster.job.verdict is None
    assert a.running == b.running == c.running == Stamp(1, 1)


def assert_next_round_costs_nothing(cluster: Cluster, a: SimulatedAgent, b: SimulatedAgent) -> None:
    """With another node c, when nobody is waited for any longer."""
    cluster.add("c")
    cluster.later(18.5)
    assert a.running == b.running == Stamp(1, 1)
    assert cluster.job.ledger.total == 0


def test_A3_a_failure_that_is_kept_is_dated_by_when_it_happened() -> None:
    cluster, (a, b, c) = running(3, max_restarts=0)
    cluster.take_over()
    cluster.connect(a)
    cluster.fail(a)
    hear(cluster, a)
    cluster.pass_time(2.0)
    cluster.fail(b)
    b.local_event()
    cluster.pass_time(3.0)
    cluster.bring(b, c)
    assert cluster.outcome is Outcome.FAILED
    assert cluster.verdict.cause is not None
    assert cluster.verdict.cause.node_id == "a"


def test_A3_what_fails_of_a_helper_that_died_is_no_failure_however_late_all_is_told() -> None:
    cluster, (a, b) = running(2)
    for agent in (a, b):
        cluster.cut(agent)
    b.local.append(m.HelperDied(ROUND_0, "the round store was killed"))
    b.local_event()
    cluster.fail(a)
    a.local_event()
    cluster.pass_time(5.0)
    cluster.bring(a, b)
    assert a.running == b.running == Stamp(1, 1)
    assert cluster.job.ledger.total == 0


def test_A5_what_fails_of_a_drain_is_no_failure_however_late_both_are_told() -> None:
    cluster, (a, b) = running(2)
    cluster.take_over()
    cluster.notice(b)
    cluster.pass_time(1.0)
    cluster.fail(a)
    a.local_event()
    cluster.pass_time(5.0)
    cluster.connect(a)
    hear(cluster, a)
    cluster.bring(b)
    assert b.is_done
    assert cluster.job.ledger.total == 0


def test_A3_what_fails_after_a_recorded_loss_costs_nothing_at_the_next_coordinator() -> None:
    cluster, (a, b, c) = running(3)
    cluster.cut(c)
    cluster.give_up(c)
    cluster.agents.remove(c)
    cluster.write_record()
    cluster.fail(a)
    a.local_event()
    take_over(cluster)
    assert_next_round_costs_nothing(cluster, a, b)


@pytest.mark.parametrize("is_known", [True, False])
def test_A3_what_tells_of_a_lost_peer_costs_nothing_though_it_was_heard_before_the_loss(
    is_known: bool,
) -> None:
    """The first coordinator may have known of the loss, which the record does not hold."""
    cluster, (a, b, c) = running(3)
    cluster.cut(c)
    cluster.lose_peer(a)
    hear(cluster, a)
    if is_known:
        cluster.give_up(c)
    cluster.agents.remove(c)
    cluster.write_record()
    assert cluster.job.judged_round == 0
    take_over(cluster)
    assert_next_round_costs_nothing(cluster, a, b)


def test_A3_what_fails_of_a_node_that_is_lost_with_its_coordinator_costs_nothing() -> None:
    cluster, (a, b, c) = running(3)
    cluster.agents.remove(c)
    cluster.take_over()
    cluster.fail(a)
    for agent in (a, b):
        cluster.connect(agent)
    assert_next_round_costs_nothing(cluster, a, b)


@pytest.mark.parametrize("is_first", [True, False])
def test_A3_what_fails_of_a_leaders_node_whose_lease_was_over_costs_nothing_though_it_is_back(
    is_first: bool,
) -> None:
    """Its guard has killed its workers while it was stopped; those of the others failed of that."""
    cluster, (a, b, c) = running(3)
    cluster.take_over(Predecessor(0, fenced_in_s=9.0))
    cluster.pass_time(3.0)
    for agent in (b, c):
        cluster.connect(agent)
    cluster.fail(b)
    hear(cluster, b)
    cluster.fence(a)
    if is_first:
        hear(cluster, a)  # None of its workers lives any more.
    cluster.bring(a)
    assert a.running == b.running == c.running == Stamp(1, 1)
    assert cluster.job.ledger.total == 0


def test_A3_a_failure_of_a_node_that_stops_because_of_it_counts_at_the_next_coordinator() -> None:
    cluster, (a, b) = running(2)
    cluster.take_over()
    cluster.pass_time(3.0)
    cluster.fail(a)
    hear(cluster, a)
    cluster.bring(a, b)
    assert a.running == b.running == Stamp(1, 1)
    assert cluster.job.ledger.total == 1
    ended = [record.text for record in cluster.records if record.kind is kinds.ROUND_ENDED]
    assert ended == ["round 0 ended: rank 0 (node a, local rank 0) exited with code 1"]


def failed_and_recorded(max_restarts: int = 3) -> tuple[Cluster, list[SimulatedAgent]]:
    """The node of the leader, and the others have not stopped yet."""
    cluster, agents = running(3, max_restarts=max_restarts)
    cluster.job.own_agent = agents[0].ref.incarnation
    cluster.fail(agents[0])
    hear(cluster, agents[0])
    cluster.write_record()
    assert cluster.job.judged_round == 0
    return cluster, agents


def test_A3_a_failure_on_the_leaders_node_counts_though_its_agent_dies_before_the_others_stop() -> (
    None
):
    """As that of any other node that dies: who leads next knows of it by the record."""
    cluster, (a, _, _) = failed_and_recorded()
    cluster.agents.remove(a)
    cluster.take_over(Predecessor(0, is_dead=True))
    cluster.write_record()
    take_over(cluster, predecessor=Predecessor(1))  # which dies as well
    cluster.add("d")
    assert cluster.job.ledger.total == 1
    assert cluster.job.assigned["d"].why == "rank 0 (node a, local rank 0) exited with code 1"


@pytest.mark.parametrize("is_other_lost", [True, False])
def test_A3_a_lost_peer_of_the_leaders_node_is_known_by_its_absence(is_other_lost: bool) -> None:
    cluster, (a, _, c) = running(3)
    cluster.job.own_agent = a.ref.incarnation
    cluster.lose_peer(a)
    hear(cluster, a)
    cluster.write_record()
    cluster.agents.remove(a)
    if is_other_lost:
        cluster.agents.remove(c)
    cluster.take_over(Predecessor(0, is_dead=True, node_id="a"))
    for agent in cluster.agents:
        cluster.connect(agent)
    for name in "de"[: 3 - len(cluster.agents)]:
        cluster.start(name)
    cluster.settle()
    cluster.later(18.5)
    assert cluster.job.round.round == 1
    assert cluster.job.ledger.total == (0 if is_other_lost else 1)


def test_A3_a_failure_on_the_leaders_node_counts_once_if_it_tells_of_it_itself() -> None:
    cluster, _ = failed_and_recorded()
    take_over(cluster)
    assert cluster.job.ledger.total == 1
    cluster, (a, b, c) = failed_and_recorded(max_restarts=0)
    cluster.agents.remove(a)
    take_over(cluster, predecessor=Predecessor(0, is_dead=True))
    assert cluster.outcome is Outcome.FAILED
    assert b.finishes == c.finishes == 1


@pytest.mark.parametrize(("node_id", "of"), [("other", "a"), ("a", "b"), ("b", "b")])
@pytest.mark.parametrize("is_first", [True, False])
def test_L5_who_claims_the_place_of_another_gets_it_not(
    node_id: str, of: str, is_first: bool
) -> None:
    """Nor does the job hang of it, nor does anybody work in a world to which he does not belong.
    The false agent says nothing more, and is lost by its lease."""
    cluster, agents = running(2)
    a, b = agents
    cluster.take_over()
    cluster.connect(a if of == "a" else b)
    link = (a if of == "a" else b).link
    assert link is not None
    hello = link.up[0]
    assert isinstance(hello, m.Attach)
    false = replace(hello, node_id=node_id, incarnation="false")
    for agent in agents if not is_first else []:
        cluster.connect(agent)
        cluster.deliver(("up", agent))
    cluster._run(cluster.sessions.attach(99, "", false, cluster.timers.now_s))
    for agent in agents if is_first else []:
        cluster.connect(agent)
    for _ in range(4):
        cluster.settle()
        cluster.pass_time(12.0)
        for _ in range(2):  # Nobody is lost before the sockets were polled once more.
            cluster._run(cluster.sessions.check(cluster.timers.now_s))
    cluster.settle()
    assert a.running == b.running
    assert a.running is not None
    state = cluster.job.round
    assert sum(state.counts.values()) == len(state.members)
    assert {entry.node_id for entry in state.world} == {"a", "b"}


def test_L3_who_leaves_is_not_kept_waiting_by_what_the_next_coordinator_would_need() -> None:
    cluster, (_, b) = running(2)
    cluster.fail(b)
    b.local_event()
    b._report(m.Leave())
    while ("up", b) in cluster.moves():
        cluster.deliver(("up", b))
    cluster.write_record()
    while ("down", b) in cluster.moves():
        cluster.deliver(("down", b))
    assert b.end.is_all_acknowledged


def test_L5_what_an_agent_brings_fits_whatever_the_coordinator_had_said() -> None:
    """The reason of a round is a sentence of the coordinator's, longer than those of agents."""
    end = s.AgentEnd(s.Identity("a", "a", "x"), SharedSettings("job", 1, 1))
    end.connected(0.0, m.Claim())
    end.received(0.0, m.Attached("a", 1, 0, False))
    end.report(m.Join(1, Candidate(1, "default", "a", 29500)), 0.0)
    assignment = Assignment(0, 0, 1, 0, 1, 0, 1, "a", 29500, 0, "why\n" * 3000, False)
    end.received(0.0, m.Assigned(ROUND_0, assignment))
    end.disconnected(1.0, "it broke")
    (sent,) = end.connected(2.0, m.Claim())
    assert isinstance(sent, s.Send)
    assert isinstance(sent.message, m.Attach)
    assert sent.message.place is not None
    limits.check(sent.message)


def test_L5_what_held_before_is_told_before_what_was_not_heard() -> None:
    outbox = s.Outbox()
    drain, failed = m.Drain("told to", 15), m.Failed(ROUND_0, (WorkerExit(1, None),))
    outbox.acknowledged(outbox.add(drain, 0.0).number)
    outbox.add(failed, 1.0)
    first, second = outbox.again(4.0)
    assert first == m.Numbered(3, replace(drain, age_s=4.0))
    assert second == m.Numbered(4, replace(failed, failures=(WorkerExit(1, None, age_s=3.0),)))
    assert outbox.unsent(5.0)[0].report == replace(drain, age_s=5.0)


def test_L2_a_fault_is_tried_again_also_while_the_leader_is_unsure() -> None:
    durable = Durable(new_job(SharedSettings("job", 1, 1)), Handover(), is_recorded=True)
    faulted = Faulted(TimerEnded(Timer(TimerKind.JOIN)), ValueError())
    answer = SendTo(1, m.Ack(1))
    assert durable.after([faulted, answer], is_sure=False) == [faulted]
    durable.begin()
    assert durable.written() == [answer]


def test_a_record_stays_small_however_many_nodes_are_lost_or_reach_nobody() -> None:
    job = new_job(SharedSettings("job", 1, 10_000, max_node_losses_per_hour=1000))
    job.round.world = [WorldEntry("host", "life", 1, "default")]
    for number in range(5000):
        ref = NodeRef(f"node-{number}-{'x' * 30}", "life")
        fitness.count_loss(job.round, ref.node_id, ref.node_id)
        add(job.round, RoundMember(ref, 1, Candidate(1, "default", "a", 1), MemberState.RUNNING))
        fitness.give_up_on(job.round, RoundNotStarted(0, "unreached", ((ref, "it was"),)))
    assert len(msgspec.msgpack.encode(record_of(job))) < 250_000
    assert {loss.machine for loss in job.round.fitness.recent_losses} == set(job.round.bad_routes)
    assert ref.node_id in job.round.bad_routes


def test_L5_what_held_in_a_round_is_not_told_in_the_next() -> None:
    outbox = s.Outbox()
    outbox.add(m.Enrolled(ROUND_0), 0.0)
    join = m.Join(2, Candidate(1, "default", "a", 29500))
    outbox.acknowledged(outbox.add(join, 0.0).number)
    assert outbox.again(1.0) == []


def test_A5_a_node_that_was_told_to_leave_says_so_to_the_next_leader_though_it_joined_since() -> (
    None
):
    outbox = s.Outbox()
    drain, join = m.Drain("told to", 15), m.Join(2, Candidate(1, "default", "a", 29500))
    outbox.add(drain, 0.0)
    outbox.add(m.Enrolled(ROUND_0), 0.0)
    outbox.acknowledged(outbox.add(join, 0.0).number)
    assert [told.report for told in outbox.again(4.0)] == [replace(drain, age_s=4.0)]


def test_A4_a_success_that_is_told_again_counts_once() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    take_over(cluster)
    assert cluster.job.verdict is None
    cluster.end_well(b)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L5_a_round_whose_end_was_judged_is_followed_by_the_next() -> None:
    cluster, (a, b) = running(2)
    cluster.cut(b)
    cluster.give_up(b)
    cluster.agents.remove(b)
    cluster.settle()
    assert cluster.record.judged_round == 1
    take_over(cluster)
    (c,) = cluster.add("c")
    cluster.later(18.5)
    assert a.running == c.running == Stamp(2, 1)


def test_L3_that_a_store_was_not_reached_is_kept_until_it_is_judged() -> None:
    settings = SharedSettings("job", 3, 3)
    cluster = Cluster(settings, has_register=True)
    _, b, _ = (cluster.start(name) for name in "abc")
    b.unreachable.add("a")
    while ("local", b) not in cluster.moves():
        if not cluster.is_recorded:
            cluster.write_record()
        cluster.deliver(next(x for x in cluster.moves() if x[0] != "local"))
    hear(cluster, b)
    assert not cluster.job.started
    assert not b.end.is_all_acknowledged


def test_L3_a_failure_is_acknowledged_when_it_is_judged() -> None:
    cluster, (_, b) = running(2, max_restarts=0)
    cluster.fail(b)
    for _ in range(3):
        hear(cluster, b)
        if not cluster.is_recorded:
            cluster.write_record()
    assert cluster.job.verdict is None
    assert not b.end.is_all_acknowledged
    take_over(cluster)
    assert cluster.outcome is Outcome.FAILED
