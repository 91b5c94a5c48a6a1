"""A leader is lost between two rounds, with nodes of the last one. The next round has another
number of the job; all else goes on as it would have."""

from __future__ import annotations

import pytest
from tests.harness.takeovers import DEAD, die, take_over
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import Outcome, SharedSettings, Stamp

LAST_CALL_S = 60.0
PAUSE_S = 30.0


def started(
    nodes: int, minimum: int, *, max_restarts: int = 3, pause_s: float = 0.0
) -> tuple[Cluster, list[SimulatedAgent]]:
    """A job of so many nodes, in which more may take part. Its workers run."""
    settings = SharedSettings(
        "job",
        minimum,
        nodes + 4,
        last_call_s=LAST_CALL_S,
        max_restarts=max_restarts,
        restart_backoff_s=pause_s,
    )
    cluster = Cluster(settings, has_register=True)
    agents = cluster.add(*"abcdefgh"[:nodes])
    cluster.later(LAST_CALL_S)
    assert all(agent.running == Stamp(1, 0) for agent in agents)
    return cluster, agents


def fail_and_lose_the_leader(
    cluster: Cluster, leader: SimulatedAgent, culprit: SimulatedAgent, slow: SimulatedAgent
) -> None:
    """A worker fails. That is recorded; then the leader is lost, before this node's workers have
    ended and the failure is judged."""
    cluster.fail(culprit)
    for _ in range(50):
        if not cluster.is_recorded:
            cluster.write_record()
        if not (moves := [each for each in cluster.moves() if each != ("local", slow)]):
            break
        cluster.deliver(moves[0])
    record = cluster.record
    assert not record.is_active
    assert record.judged_round != record.round
    die(cluster, leader)


@pytest.mark.parametrize("has_stopped", [False, True])
def test_R3_a_failure_is_charged_though_the_leader_was_lost_before_it_was_judged(
    has_stopped: bool,
) -> None:
    cluster, (a, b, c) = started(3, 2)
    fail_and_lose_the_leader(cluster, a, b, c)
    if has_stopped:
        c.local_event()
        c.disconnect()
    take_over(cluster, predecessor=DEAD)
    assert b.running == c.running == Stamp(2 if has_stopped else 1, 1)
    assert cluster.job.ledger.total == 1
    assert "rank 1 (node b, local rank 0) exited with code 1" in cluster.job.assigned["b"].why


@pytest.mark.parametrize("has_stopped", [False, True])
def test_R3_a_failure_ends_a_job_without_restarts_though_the_leader_was_lost_before_it_was_judged(
    has_stopped: bool,
) -> None:
    cluster, (a, b, c) = started(3, 2, max_restarts=0)
    fail_and_lose_the_leader(cluster, a, b, c)
    if has_stopped:
        c.local_event()
        c.disconnect()
    take_over(cluster, predecessor=DEAD)
    assert cluster.outcome is Outcome.FAILED
    assert b.running is c.running is None


def test_R1_two_leaders_are_lost_in_one_pause_and_nobody_waits_for_a_last_call() -> None:
    cluster, (a, b, c, d) = started(4, 2, pause_s=PAUSE_S)
    cluster.end_badly(d)
    die(cluster, a)
    take_over(cluster, predecessor=DEAD)
    take_over(cluster)
    cluster.later(PAUSE_S)
    assert b.running == c.running == d.running == Stamp(2, 1)
    ranks = [cluster.job.assigned[agent.ref.node_id].group_rank for agent in (b, c, d)]
    assert ranks == [0, 1, 2]
    assert cluster.job.ledger.total == 1


@pytest.mark.parametrize("how", ["it is lost", "it is drained", "it leaves"])
def test_R1_a_node_goes_in_the_pause_after_a_takeover_and_nobody_waits_for_a_last_call(
    how: str,
) -> None:
    cluster, (a, b, c, d) = started(4, 2, pause_s=PAUSE_S)
    cluster.end_badly(d)
    die(cluster, a)
    take_over(cluster, predecessor=DEAD)
    if how == "it is lost":
        cluster.give_up(c)
        die(cluster, c)
    elif how == "it is drained":
        cluster.signal(c, 15)
    else:
        cluster.notice(c)
    cluster.settle()
    cluster.later(PAUSE_S)
    assert b.running == d.running == Stamp(2, 1)


def test_R1_newcomers_wait_for_a_node_that_has_succeeded_before_the_takeover() -> None:
    """No round begins without it, to be ended for it at once."""
    cluster, (a, b, c) = started(3, 1)
    cluster.end_well(a)
    die(cluster, b, c)
    cluster.take_over()
    cluster.connect(a)
    newcomers = cluster.add(*"bc")
    for _ in range(3):
        cluster.later(10.0)
    assert {agent.running for agent in (a, *newcomers)} == {Stamp(2, 1)}
    formed = [record for record in cluster.records if record.kind is kinds.ROUND_FORMED]
    assert len(formed) == 2


def test_L9_a_job_that_is_taken_over_again_and_again_between_two_rounds_uses_one_number() -> None:
    """The last eight are known, and no more are used up than rounds were formed."""
    cluster, (a, b, c) = started(3, 2, pause_s=1000.0)
    cluster.end_badly(b)
    die(cluster, a)
    take_over(cluster, predecessor=DEAD)
    for _ in range(12):
        take_over(cluster)
        cluster.later(40.0)
    for _ in range(30):
        cluster.later(40.0)
    assert b.running == c.running == Stamp(2, 1)
    assert cluster.record.earlier == (1,)
    assert cluster.job.ledger.total == 1
