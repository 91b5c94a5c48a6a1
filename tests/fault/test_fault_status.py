"""`rallypoint status` names the node that a broken route keeps from the others."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fault.hosts import HostCluster
from tests.harness.cluster import wait_until
from tests.harness.finder import culprit_of, text_of
from tests.harness.programs import run_program

from rallypoint.cli.watch.status_text import LINES_MAX


def test_V1_a_node_that_does_not_reach_rank_0_is_named(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "s", "node-0", "node-1", "node-2", nnodes=3, lease=40) as cluster:
        cluster.serve()
        cluster.network.cut("node-2", "node-0")
        agents = cluster.agents("node-0", "node-1", "node-2", hosts=None)
        endpoint = str(cluster.options["rdzv_endpoint"])
        words = [*cluster.network.inside("s"), sys.executable, "-m", "rallypoint", "status"]
        lines: list[str] = []

        def is_found() -> bool:
            done = run_program([*words, endpoint, "--job", "job"], env=cluster.environ())
            lines[:] = done.stdout.splitlines()[:LINES_MAX]
            return culprit_of(lines) == "node-2"

        wait_until(is_found, "node-2 to be named")
        print(*lines, sep="\n")
        assert "waits for   node node-2 to reach the store of rank 0" in text_of(lines)
        cluster.network.heal("node-2", "node-0")
        cluster.wait_workers(3)
        cluster.end_well(*agents)
