"""A job that any of its nodes may lead, whose directory is away for a while."""

from __future__ import annotations

import time
from pathlib import Path

from tests.harness.leading_agents import cluster_of

from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.leading import CONSENT_LEASES

LEASE_S = 6.0
AWAY_S = HOLD_S + 2 * LEASE_S
"""Without promises the leader would have been unsure for two leases."""
assert AWAY_S < HOLD_S + CONSENT_LEASES * LEASE_S


def test_L2_nobody_notices_that_the_directory_is_away_while_leader_and_heirs_live(
    tmp_path: Path,
) -> None:
    jobs, away = tmp_path / "jobs", tmp_path / "away"
    with cluster_of(tmp_path, "3") as cluster:
        cluster.options["lease"] = LEASE_S
        agents = [cluster.agent(name) for name in "abc"]
        workers = cluster.wait_workers(3, round=0)
        jobs.rename(away)
        time.sleep(AWAY_S)
        away.rename(jobs)
        cluster.end_well(*agents)
        assert cluster.workers() == workers
        for agent in agents:
            assert agent.verdict["restarts"] == 0
            assert not any(event.name == "session_suspended" for event in agent.events)
