"""A holder of the job's token puts a record into its register that no leader writes: the one that
leads writes its own again, no worker notices, and agents that start there are told in one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.commands import is_one_line_with
from tests.harness.leading_agents import cluster_of, led_job
from tests.harness.one_agent import agent
from tests.register.test_shared_directory import BY_DIRECTORY, WORKER

from rallypoint.coordinator.token import parse_token
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.errors import UnfitRecordError
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.record import Register, decode, encode
from rallypoint.register.version_file import register_name

MAD: dict[str, dict[str, Any]] = {
    "nodes": {"nodes": 2**40, "is_active": True, "is_started": True},
    "incarnation": {"incarnation": 2**62},
    "round": {"round": 2**62},
}


def put_mad_record(register: Register, **fields: Any) -> None:
    """Change the newest record so, by a seal that is right."""

    def is_put() -> bool:
        found = register.get_state()
        if found is None:
            return False
        try:
            record = decode(found[0])
        except UnfitRecordError:
            return False
        if record.job is None:
            return False
        epoch = Epoch(record.epoch.number + 1, 1)
        mad = replace(record, epoch=epoch, job=replace(record.job, **fields))
        after = register.set_state(encode(mad), found[1])
        return after is not None and after[2]

    wait_until(is_put, "the record to be replaced")


def survives_mad_records(
    cluster: Cluster, run_id: str, open_register: Callable[[bytes], Register]
) -> None:
    """A job of three nodes whose record is replaced again and again. `open_register`: by the
    token of this job."""
    register = open_register(parse_token(cluster.make_token(), "the test").for_job(run_id))
    leader, others = led_job(cluster, "abc")
    before = cluster.workers(0)
    for field, fields in MAD.items():
        put_mad_record(register, **fields)
        why = f"that no leader writes: record.job.{field} = "
        wait_until(partial(has_said, leader, why), why)
        wait_until(partial(is_fit, register), "the leader's own record")
    assert all(worker.is_alive for worker in before)
    cluster.end_well(leader, *others)
    assert leader.verdict["restarts"] == 0
    assert {worker.round for worker in cluster.workers()} == {0}


def has_said(agent: AgentProcess, text: str) -> bool:
    """Whether an agent has said this by now."""
    return text in agent.said


def is_fit(register: Register) -> bool:
    """Whether the register holds a record that a leader has written."""
    found = register.get_state()
    try:
        return found is not None and decode(found[0]).job is not None
    except UnfitRecordError:
        return False


def test_L9_a_leader_writes_its_record_again_over_a_mad_one_and_no_worker_notices(
    tmp_path: Path,
) -> None:
    with cluster_of(tmp_path, "2:3") as cluster:
        jobs = str(tmp_path / "jobs")
        survives_mad_records(cluster, "job", lambda token: DirectoryBackend(jobs, "job", token))


@pytest.mark.parametrize("field", MAD)
def test_L9_an_agent_that_finds_a_mad_record_says_so_and_runs_when_it_is_removed(
    tmp_path: Path, field: str
) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir(mode=0o700)
    job = replace(JobRecord(SharedSettings("job"), 5), **MAD[field])
    leader = Leader(("127.0.0.1:1",), Process("boot", 1, 1), has_workers=True)
    record = LeadRecord(1, Epoch(1, 1), leader, 0, job, is_vacant=True)
    assert DirectoryBackend(str(jobs), "job").set_state(encode(record))
    options = (*BY_DIRECTORY, "--rdzv-endpoint=jobs", "--insecure")
    with agent(tmp_path, *options, program=WORKER) as run:
        assert run.wait() == 2
    *remarks, last = run.err.splitlines()
    assert not any("Traceback" in line for line in remarks)
    assert is_one_line_with(f"{last}\n", f"record.job.{field} = ", "remove the record")
    assert not run.told("rank")
    rmtree(jobs / register_name("job"))
    with agent(tmp_path, *options, program=WORKER) as run:
        assert run.wait() == 0, run.err
    assert run.told("rank") == ["0"]
