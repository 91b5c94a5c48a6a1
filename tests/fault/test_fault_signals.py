"""Signals while a node can't reach the coordinator (A5)."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.fault.hosts import HostCluster
from tests.harness.cluster import wait_until


@pytest.mark.quick
def test_A5_an_interrupt_while_the_connection_is_down_cancels_the_job_when_it_is_back(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes=2, lease=30) as cluster:
        a, b = cluster.agents("a", "b")
        worker = cluster.wait_workers(2, round=0)[1]
        cluster.network.cut("b")
        b.signal(signal.SIGINT)
        b.wait_event(
            "telling", "waiting up to 25 s for the coordinator to acknowledge that the job"
        )
        assert not worker.is_alive, "its own workers do not wait for the connection"
        assert a.process.poll() is None
        cluster.network.heal("b")
        assert (a.wait_exit(), b.wait_exit()) == (130, 130)
        assert "cancelled on node b: got SIGINT" in a.verdict["reason"]


def test_A5_a_node_told_to_go_while_the_connection_is_down_has_left_when_it_is_back(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes="1:2", lease=30) as cluster:
        a, b = cluster.running("a", "b")
        cluster.network.cut("b")
        b.signal(signal.SIGTERM)
        b.wait_event("telling", "for the coordinator to acknowledge that this node leaves")
        cluster.network.heal("b")
        assert b.wait_exit() == 143
        cluster.wait_workers(1, round=1)
        assert "was lost" not in a.said
        cluster.end_well(a)


def test_A5_a_second_signal_ends_the_wait_for_a_node_that_has_not_heard(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes=2, lease=600) as cluster:
        a, _ = cluster.running("a", "b")
        cluster.network.cut("b")
        a.signal(signal.SIGINT)
        a.wait_event("verdict")
        assert a.process.poll() is None, "b may still hear of it"
        a.signal_again(signal.SIGINT)
        assert a.wait_exit() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_A5_a_signal_counts_when_the_connection_is_back_that_was_reset(
    tmp_path: Path, number: signal.Signals
) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes="1:2", lease=15) as cluster:
        a, b = cluster.agents("a", "b")
        worker = cluster.wait_workers(2, round=0)[1]
        cluster.network.refuse("b", "a")
        cluster.network.reset("b", "a")
        b.wait_event("session_suspended")
        b.signal(number)
        wait_until(lambda: not worker.is_alive, "the signal to stop the worker")
        time.sleep(2)  # the agent would have ended by now that tells nobody
        cluster.network.heal("b", "a")
        assert b.wait_exit() == 128 + number
        if number == signal.SIGINT:
            assert a.wait_exit() == 128 + number
            assert a.verdict["outcome"] == "cancelled"
        else:
            assert "node b is leaving" in a.wait_event("round_ended", round=0).message
            cluster.wait_workers(1, round=1)
            cluster.end_well(a)
