"""What of a job's history the next coordinator goes on with."""

from __future__ import annotations

import pytest
from tests.watch.watched_cluster import NOON, WatchedCluster

from rallypoint.core.model import SharedSettings, Stamp
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
    known = goodput.spent(before.account, at)
    doing = before.account.now
    assert doing is not None
    grown = {key: spent[key] - known.get(key, 0.0) for key in spent}
    assert sum(seconds for (kind, _), seconds in grown.items() if kind is doing) == pytest.approx(
        30.0
    )
    assert spent[Spending.STEPS, WORKING] == pytest.approx(known[Spending.STEPS, WORKING])
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


def test_V3_steps_that_nodes_tell_again_to_the_next_coordinator_are_not_done_again_twice() -> None:
    cluster = WatchedCluster(SharedSettings("job", 2, 2, max_restarts=3))
    cluster.nodes(2)
    cluster.run_workers()
    for step in range(10):
        cluster.step(step, 1.0)
    cluster.lose("node-1", "its connection was closed")
    cluster.start("node-1", 8)
    cluster.settle()
    cluster.run_workers()
    for step in range(5, 9):
        cluster.step(step, 1.0)
    assert cluster.history.account.lost_steps == 5
    after = JobHistory(0.0, lambda now: NOON + now)
    after.take_over(1, 0.0, is_active=True)
    after.carry_on(cluster.history.carried(cluster.timers.now_s), 0.0)
    for step in (8, 9, 10):
        goodput.told(after.account, "node-1", NodeProgress(Stamp(1, 1), furthest=step), 1.0)
        assert after.account.lost_steps == 5
