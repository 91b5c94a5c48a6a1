"""How long a coordinator of many jobs remembers one that all its nodes have left."""

from __future__ import annotations

import asyncio

from tests.harness.led_jobs import fresh
from tests.harness.virtual_time import in_virtual_time
from tests.harness.wires import Wire

from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.core import messages as m
from rallypoint.core.job_lives import VERDICT_RETENTION_S


def come_and_go(jobs: HostedJobs, number: int) -> None:
    """A node joins the job and leaves it again."""
    connection = Wire(number)
    jobs.attach(connection, "job", fresh(f"life {number}"))
    (job,) = jobs.all
    job.received(connection, m.Numbered(1, m.Leave()))
    assert jobs.nodes == []


def test_a_job_whose_nodes_have_left_twice_is_remembered_from_the_second_time_on() -> None:
    async def body() -> None:
        jobs = HostedJobs(Hosting(lambda run_id, record: None))
        come_and_go(jobs, 1)
        await asyncio.sleep(0.9 * VERDICT_RETENTION_S)
        come_and_go(jobs, 2)
        await asyncio.sleep(0.9 * VERDICT_RETENTION_S)
        assert [job.settings.run_id for job in jobs.all] == ["job"]
        await asyncio.sleep(0.2 * VERDICT_RETENTION_S)
        assert jobs.all == []
        jobs.close()

    in_virtual_time(body)
