"""Nodes that are lost, and nodes that only seem to be (R3, F1, F2, F3)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.fault.hosts import HostCluster, wait_count
from tests.harness.cluster import wait_until

RESETS_S = (0.4, 1.6)


def test_R3_a_rack_whose_switch_fails_counts_once_and_may_come_back(tmp_path: Path) -> None:
    with HostCluster(tmp_path, *"abcde", nnodes="1:5", max_node_losses=1) as cluster:
        a, b, *rack = cluster.agents(*"abcde")
        first = cluster.wait_workers(5, round=0)
        for node in rack:
            cluster.network.unplug(node.name)
        a.wait_event("patience", "3 of 5 nodes stopped responding at once")
        assert {worker.node for worker in cluster.wait_workers(2, round=1)} == {"a", "b"}
        for node in rack:
            node.wait_event("fenced")
        wait_until(lambda: not any(worker.is_alive for worker in first), "the fences to hold")
        for node in rack:
            cluster.network.plug(node.name)
        cluster.wait_workers(5)
        cluster.end_well(a, b, *rack)


def test_F1_resets_on_the_way_restart_nothing(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes=2, lease=9) as cluster:
        a, b = cluster.agents("a", "b")
        first = cluster.wait_workers(2, round=0)
        for number, lasts_s in enumerate(RESETS_S, start=1):
            cluster.network.refuse("b", "a")
            cluster.network.reset("b", "a")
            time.sleep(lasts_s)
            cluster.network.heal("b", "a")
            wait_count(b, "session_resumed", number)
        cluster.end_well(a, b)
        assert cluster.workers() == first


@pytest.mark.parametrize(("sender", "receiver"), [("a", "b"), ("b", "a")])
def test_F2_a_way_that_is_open_in_one_direction_only_is_none(
    tmp_path: Path, sender: str, receiver: str
) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes="1:2", lease=3) as cluster:
        a, b = cluster.agents("a", "b")
        stale = cluster.wait_workers(2, round=0)[1]
        cluster.network.cut_one_way(sender, receiver)
        cluster.wait_workers(1, round=1)
        b.wait_event("fenced")
        wait_until(lambda: not stale.is_alive, "the fence to hold")
        cluster.network.heal("a", "b")
        assert [worker.node for worker in cluster.wait_workers(2, round=2)] == ["a", "b"]
        cluster.end_well(a, b)
