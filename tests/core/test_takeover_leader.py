"""A leader that lived in one of the nodes is gone, and its node may be gone with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import known
from tests.harness.takeovers import (
    DEAD,
    FENCED_IN_S,
    VANISHED,
    die,
    lose_with_leader,
    running,
    said,
    take_over,
    with_register,
)

from rallypoint.core.model import EndKind, Outcome, Stamp
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.handover import ANOTHER_NUMBER, Predecessor


def test_L4_without_the_dead_node_of_the_leader_the_job_goes_on_at_once() -> None:
    cluster, (a, b, c) = running(3)
    lose_with_leader(cluster, a)
    (d,) = cluster.add("d")
    assert b.running == c.running == d.running == Stamp(1, 1)
    assert cluster.job.ledger.total == 0
    assert cluster.job.assigned["b"].why == (
        "node a was lost: its agent died, and its workers with it, while it led the job"
    )
    assert said(cluster) == ["took over round 0 with 2 of 3 nodes: the leading node died (a)"]


def test_L4_any_other_node_that_is_missing_is_awaited_for_a_lease() -> None:
    cluster, (a, b, c) = running(3)
    die(cluster, a)
    take_over(cluster, c, predecessor=replace(DEAD, fenced_in_s=0.0))
    cluster.later(cluster.settings.lease_s)
    assert b.running == Stamp(1, 0)
    c.running = None  # its own lease has ended
    cluster.agents.remove(c)
    cluster.later(with_margin(cluster.settings.lease_s) - cluster.settings.lease_s)
    assert b.running is None
    assert cluster.end.kind is EndKind.LOSS
    assert cluster.end.text.startswith("node a was lost (its agent died")
    assert cluster.end.text.endswith(", and with it c")
    (text,) = said(cluster)
    assert text == (
        "took over round 0 with 1 of 3 nodes: the leading node died (a), 1 node did not come "
        "back (c)"
    )


def test_L4_the_vanished_node_of_the_leader_is_awaited_until_its_own_lease_has_ended() -> None:
    cluster, (a, b) = running(2)
    take_over(cluster, a, predecessor=VANISHED)
    c = cluster.start("c")
    cluster.later(FENCED_IN_S - 0.1)
    assert b.running == Stamp(1, 0)
    die(cluster, a)
    cluster.later(0.1)
    assert b.running == c.running == Stamp(1, 1)
    assert cluster.job.assigned["b"].why == (
        "node a was lost: it led the job, and did not come back"
    )
    assert said(cluster) == ["took over round 0 with 1 of 2 nodes: 1 node did not come back (a)"]
    # Nobody knows when it was lost, and nobody is told so.
    assert known(cluster.job.last_end).age_s is None


def test_L4_a_leader_that_vanished_with_others_is_one_of_those_that_are_missing() -> None:
    cluster, (a, _b, c) = running(3)
    take_over(cluster, a, c, predecessor=VANISHED)
    die(cluster, a, c)
    cluster.later(with_margin(cluster.settings.lease_s))
    assert cluster.end.text == (
        "2 of 3 nodes did not come to the coordinator that took over (a, c)"
    )


def test_L4_another_node_that_comes_after_the_leaders_own_lease_has_ended_completes_it() -> None:
    cluster, (a, b, c) = running(3)
    die(cluster, a)
    take_over(cluster, c, predecessor=VANISHED)
    cluster.later(FENCED_IN_S + 1.0)
    assert b.running == Stamp(1, 0)
    cluster.connect(c)
    (d,) = cluster.add("d")
    assert b.running == c.running == d.running == Stamp(1, 1)


@pytest.mark.parametrize("predecessor", [VANISHED, DEAD], ids=["vanished", "called dead"])
def test_L4_a_node_that_led_and_comes_back_takes_part_as_if_it_had_not_led(
    predecessor: Predecessor,
) -> None:
    """It was only stopped for a while, or cut off. If it is lost again, it is one like any other:
    this coordinator has renewed its lease."""
    cluster, (a, b) = running(2)
    take_over(cluster, b, predecessor=predecessor)
    cluster.cut(a)
    cluster.give_up(a)
    cluster.later(FENCED_IN_S + 1.0)
    cluster.bring(b)
    assert b.running == Stamp(1, 0)
    cluster.bring(a)
    assert a.running == b.running == Stamp(1, 0)
    cluster.end_well(a, b)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L4_a_node_that_led_and_comes_back_before_the_others_ends_no_wait() -> None:
    cluster, (a, b, _c) = running(3)
    take_over(cluster, a, b, predecessor=VANISHED)
    cluster.connect(a)
    cluster.later(FENCED_IN_S)
    assert a.running == Stamp(1, 0)
    cluster.bring(b)
    assert a.running == b.running == Stamp(1, 0)
    assert said(cluster) == ["took over round 0 with 3 of 3 nodes"]


def test_L4_a_success_of_the_leaders_node_that_was_recorded_counts_though_it_is_dead() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    lose_with_leader(cluster, a)
    assert b.running == Stamp(1, 0)
    assert said(cluster) == ["took over round 0 with 2 of 2 nodes"]
    cluster.end_well(b)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L4_nobody_is_awaited_where_only_the_dead_leader_worked() -> None:
    cluster, (a,) = running(1)
    die(cluster, a)
    cluster.take_over(DEAD)
    cluster.later(0.0)
    (text,) = said(cluster)
    assert text.startswith("took over round 0 with 0 of 1 node: the leading node died")
    (b,) = cluster.add("b")
    assert b.running == Stamp(2, 1)


@pytest.mark.parametrize("rank", [-1, 2])
def test_L4_a_leader_that_took_no_part_in_the_newest_round_is_not_missed(rank: int) -> None:
    cluster, (a, b) = running(2)
    take_over(cluster, b, predecessor=Predecessor(rank, is_dead=True, fenced_in_s=0.0))
    cluster.later(cluster.settings.lease_s)
    assert a.running == Stamp(1, 0)
    cluster.bring(b)
    assert a.running == b.running == Stamp(1, 0)


def test_L4_that_a_leader_was_dead_is_known_to_the_one_that_follows_the_next() -> None:
    """Though the one between them dies before any other node has come to it."""
    cluster, (a, b, c) = running(3)
    die(cluster, a)
    cluster.take_over(DEAD)
    cluster.write_record()
    die(cluster, b)
    take_over(cluster, predecessor=replace(DEAD, rank=1))
    d, e = cluster.add("d", "e")
    assert c.running == d.running == e.running == Stamp(1, 1)
    assert cluster.job.ledger.total == 0


def test_L4_a_leader_that_dies_and_was_not_said_to_be_dead_is_left_to_its_lease_by_the_next() -> (
    None
):
    """What the first knew of the one before it is not in the record: only time tells."""
    cluster, (a, b, c) = running(3)
    die(cluster, a)
    cluster.take_over(VANISHED)
    cluster.write_record()
    die(cluster, b)
    take_over(cluster, predecessor=replace(DEAD, rank=1))
    cluster.later(with_margin(cluster.settings.lease_s) - 0.1)
    assert c.running == Stamp(1, 0)
    d, e = cluster.start("d"), cluster.start("e")
    cluster.later(0.1)
    assert c.running == d.running == e.running == Stamp(1, 1)


def test_L4_a_round_whose_end_was_recorded_is_followed_without_the_dead_leader() -> None:
    cluster, (a, b) = running(2, restart_backoff_s=30.0)
    cluster.end_badly(b)
    assert cluster.job.ledger.total == 1
    lose_with_leader(cluster, a)
    c = cluster.start("c")
    cluster.later(31.0)
    assert b.running == c.running == Stamp(2, 1)
    assert cluster.job.ledger.total == 1


def test_R1_nodes_that_come_back_between_rounds_keep_ranks_and_wait_for_no_last_call() -> None:
    cluster = with_register(2, 8, last_call_s=60.0, max_restarts=3, restart_backoff_s=30.0)
    agents = cluster.add(*"dcba")
    cluster.later(60.0)
    cluster.end_badly(agents[2])
    leader, *others = sorted(
        agents, key=lambda agent: cluster.job.assigned[agent.ref.node_id].group_rank
    )
    die(cluster, leader)
    cluster.agents.sort(key=others.index, reverse=True)
    take_over(cluster, predecessor=DEAD)
    cluster.later(31.0)
    assert [agent.running for agent in others] == [Stamp(2, 1)] * 3
    ranks = [cluster.job.assigned[agent.ref.node_id].group_rank for agent in others]
    assert ranks == [0, 1, 2]


def test_R3_a_job_whose_leaders_keep_dying_ends_as_one_whose_nodes_do() -> None:
    cluster = with_register(2, 2, max_node_losses_per_hour=1)
    for name in "ab":
        cluster.start(name)
    for name in "cd":
        cluster.settle()
        first = min(cluster.job.assigned.items(), key=lambda item: item[1].group_rank)[0]
        lose_with_leader(
            cluster, next(agent for agent in cluster.agents if agent.ref.node_id == first)
        )
        cluster.start(name)
    cluster.settle()
    assert cluster.outcome is Outcome.INFRASTRUCTURE
    assert "(--max-node-losses 1)" in cluster.verdict.text


def test_L4_a_node_that_has_left_is_not_awaited() -> None:
    cluster, (a, b, c) = running(3)
    cluster.signal(a, 15)
    cluster.settle()
    assert a.is_done
    cluster.write_record()
    take_over(cluster)
    cluster.write_record()
    take_over(cluster)
    assert said(cluster) == [
        f"took over round 0 with 2 of 3 nodes: {ANOTHER_NUMBER}",
        f"took over round 0 with 2 of 3 nodes: {ANOTHER_NUMBER}",
    ]
    (d,) = cluster.add("d")
    assert b.running == c.running == d.running == Stamp(2, 1)


def test_A4_what_fails_of_the_lost_store_is_no_failure_also_after_a_takeover() -> None:
    cluster, (a, b) = running(2, max_restarts=0)
    cluster.end_well(a)
    lose_with_leader(cluster, a)
    assert b.running == Stamp(1, 0)
    cluster.later(1.0)
    cluster.fail(b)
    (d,) = cluster.add("d")
    assert cluster.job.verdict is None
    assert b.running == d.running == Stamp(1, 1)
    assert cluster.job.ledger.total == 0
    assert known(cluster.job.last_end).kind is EndKind.LOSS


def test_A4_a_failure_counts_while_the_node_of_rank_0_is_there_after_a_takeover() -> None:
    cluster, (a, b) = running(2, max_restarts=0)
    cluster.end_well(a)
    take_over(cluster)
    cluster.end_badly(b)
    assert cluster.outcome is Outcome.FAILED
