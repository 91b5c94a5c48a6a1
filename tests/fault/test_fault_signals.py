"""Signals while a node can't reach the coordinator (A5)."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.fault.hosts import HostCluster


@pytest.mark.parametrize(
    ("number", "is_reset"),
    [
        pytest.param(signal.SIGINT, False, marks=pytest.mark.quick),
        (signal.SIGTERM, False),
        (signal.SIGINT, True),
        (signal.SIGTERM, True),
    ],
)
def test_A5_a_signal_while_the_connection_is_down_counts_when_it_is_back(
    tmp_path: Path, number: signal.Signals, is_reset: bool
) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes="1:2", lease=30) as cluster:
        a, b = cluster.agents("a", "b")
        worker = cluster.wait_workers(2, round=0)[1]
        if is_reset:
            cluster.network.refuse("b", "a")
            cluster.network.reset("b", "a")
            b.wait_event("session_suspended")
        else:
            cluster.network.cut("b")
        b.signal(number)
        what = "the job" if number == signal.SIGINT else "this node leaves"
        b.wait_event(
            "telling", f"waiting up to 25 s for the coordinator to acknowledge that {what}"
        )
        assert not worker.is_alive, "its own workers do not wait for the connection"
        if is_reset:
            time.sleep(2)  # the agent would have ended by now that tells nobody
        assert a.process.poll() is None
        cluster.network.heal("b")
        assert b.wait_exit() == 128 + number
        if number == signal.SIGINT:
            assert a.wait_exit() == 130
            assert a.verdict["outcome"] == "cancelled"
            assert "cancelled on node b: got SIGINT" in a.verdict["reason"]
        else:
            assert "node b is leaving" in a.wait_event("round_ended", round=0).message
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
