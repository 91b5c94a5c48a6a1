"""What of a job's history the next coordinator goes on with."""

from __future__ import annotations

import pytest
from tests.harness.narrowed import known
from tests.harness.watched_cluster import NOON, WatchedCluster

from rallypoint.core.model import EndKind, EndReason, SharedSettings, Stamp
from rallypoint.core.watch import goodput
from rallypoint.core.watch.goodput import WORKING, Spending
from rallypoint.core.watch.history import JobHistory
from rallypoint.core.watch.node_progress import NodeProgress


def test_the_account_of_a_job_goes_on_with_the_next_coordinator() -> None:
    cluster = WatchedCluster(SharedSettings("job", 2, 2, max_restarts=3))
    cluster.nodes(2)
    cluster.run_workers()
    for step in range(10):
        cluster.step(step, 1.0)
    cluster.lose("node-1", "its connection was closed")
    cluster.start("node-1", 8)
    cluster.settle()
    cluster.run_workers()
    cluster.step(5, 1.0)
    before, at = cluster.history, cluster.timers.now_s
    carried = before.carried(at)
    # Half a minute later, by another clock that counts from elsewhere.
    after = JobHistory(5000.0, lambda now: NOON + at + 30.0 + now - 5000.0)
    after.take_over(1, 5000.0, is_active=True)
    after.carry_on(carried, 5000.0)
    assert goodput.wall_s(after.account, 5000.0) == pytest.approx(at + 30.0)
    spent = goodput.spent(after.account, 5000.0)
    assert sum(spent.values()) == pytest.approx(at + 30.0)
    earlier = goodput.spent(before.account, at)
    doing = known(before.account.now)
    grown = {key: spent[key] - earlier.get(key, 0.0) for key in spent}
    assert sum(seconds for (kind, _), seconds in grown.items() if kind is doing) == pytest.approx(
        30.0
    )
    assert spent[Spending.STEPS, WORKING] == pytest.approx(earlier[Spending.STEPS, WORKING])
    assert after.account.furthest == before.account.furthest == 9
    assert after.account.faults == before.account.faults == 1
    assert after.account.lost_steps == before.account.lost_steps
    assert after.rounds_formed == before.rounds_formed == 2
    assert [past.round for past in after.rounds] == [1]


def test_a_clock_that_is_behind_takes_no_time_from_the_job() -> None:
    cluster = WatchedCluster(SharedSettings("job", 1, 1))
    cluster.nodes(1)
    cluster.wait(5.0)
    carried = cluster.history.carried(cluster.timers.now_s)
    after = JobHistory(0.0, lambda now: NOON - 1000.0 + now)
    after.take_over(0, 0.0, is_active=True)
    after.carry_on(carried, 0.0)
    assert goodput.wall_s(after.account, 0.0) == pytest.approx(cluster.timers.now_s)


def restarted(step: int) -> WatchedCluster:
    """A job that had done step 9 when it lost a node, and then did steps from 5 to this one."""
    cluster = WatchedCluster(SharedSettings("job", 2, 2, max_restarts=3))
    cluster.nodes(2)
    cluster.run_workers()
    cluster.step(9, 10.0)
    cluster.lose("node-1", "its connection was closed")
    cluster.start("node-1", 8)
    cluster.settle()
    cluster.run_workers()
    for each in range(5, step + 1):
        cluster.step(each, 1.0)
    return cluster


def taken_over(cluster: WatchedCluster, *, is_active: bool = True) -> JobHistory:
    """What the next coordinator knows, at once. `is_active`: round 1 has not ended since."""
    at = cluster.timers.now_s
    after = JobHistory(at, lambda now: NOON + now)
    after.take_over(1, at, is_active=is_active)
    after.carry_on(cluster.history.carried(at), at)
    return after


def test_V3_steps_that_are_done_again_while_the_coordinator_changes_count_once() -> None:
    cluster = restarted(step=7)
    assert cluster.history.account.lost_steps == 5
    after, at = taken_over(cluster), cluster.timers.now_s
    assert after.account.lost_steps == 5
    told = NodeProgress(Stamp(cluster.job.incarnation, 1), running_s=3.0, furthest=8, quiet_s=0.0)
    after.progressed(cluster.job, "node-0", told, at)
    assert after.account.lost_steps == 5
    assert after.account.now is Spending.REDONE


def test_V3_steps_that_earlier_rounds_did_again_stay_counted_when_the_coordinator_changes() -> None:
    """Round 1 did 3 steps again before it ended, and round 2 is to do 4."""
    cluster = restarted(step=7)
    cluster.lose("node-0", "its connection was closed")
    cluster.start("node-0", 9)
    cluster.settle()
    cluster.run_workers()
    cluster.step(6, 1.0)
    before, at = cluster.history, cluster.timers.now_s
    assert before.account.lost_steps == 3 + 4
    after = JobHistory(at, lambda now: NOON + now)
    after.take_over(2, at, is_active=True)
    after.carry_on(before.carried(at), at)
    assert after.account.lost_steps == 3 + 4


def test_V3_no_more_steps_are_done_again_than_were_before_the_round_ended() -> None:
    """It was to do 5 again, and had done 3 when that was recorded last."""
    cluster = restarted(step=7)
    after, at = taken_over(cluster, is_active=False), cluster.timers.now_s
    assert after.account.lost_steps == 3
    goodput.formed(after.account, {"node-0", "node-1"}, at)
    assert after.account.lost_steps == 3


def test_V3_a_round_that_ends_before_its_nodes_tell_of_steps_has_done_those_that_were_told() -> (
    None
):
    cluster = restarted(step=7)
    after, at = taken_over(cluster), cluster.timers.now_s
    goodput.ended(after.account, EndReason(EndKind.LOSS, "a node was lost"), at, is_hang=False)
    assert after.account.lost_steps == 3


def test_a_job_that_counts_its_steps_by_epoch_does_so_under_the_next_coordinator_too() -> None:
    cluster = restarted(step=9)
    cluster.step(0, 1.0)
    assert cluster.history.account.counts_anew
    after, at = taken_over(cluster), cluster.timers.now_s
    goodput.formed(after.account, {"node-0", "node-1"}, at)
    assert after.account.steps.furthest_before == -1
