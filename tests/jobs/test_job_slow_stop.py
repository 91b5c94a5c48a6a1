"""Workers that can't die for a while on many nodes at once, as on a file server that hangs (F3)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, wait_until

pytestmark = pytest.mark.fault


def test_F3_nodes_whose_workers_all_die_late_are_not_lost(cluster: Cluster, freezer: Path) -> None:
    a, b, c, d = cluster.agents("a", "b", "c", "d", nnodes=4, restart_grace=0.1, max_restarts=1)
    first = cluster.wait_workers(4, round=0)
    for worker in first[1:]:
        (freezer / "cgroup.procs").write_text(str(worker.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "the freezer")
    os.kill(first[0].pid, signal.SIGKILL)
    assert "3 of 4 nodes" in a.wait_event("patience").message
    for agent in (b, c, d):
        agent.wait_event("stuck", "waiting up to 60 s more (--stop-patience)")
    (freezer / "freezer.state").write_text("THAWED")
    workers = cluster.wait_workers(4, round=1)
    assert [worker.node for worker in workers] == ["a", "b", "c", "d"]
    assert not any(worker.is_alive for worker in first)
    for agent in (a, b, c, d):
        assert not {"expelled", "node_expelled"} & {event.name for event in agent.events}
    cluster.end_well(a, b, c, d)
