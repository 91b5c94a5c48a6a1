"""A holder of the job's token puts a record into its register that no leader writes: the one that
leads writes its own again, no worker notices, and agents that start there are told in one line."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

import pytest
from msgspec.structs import replace
from tests.harness.commands import is_one_line_with
from tests.harness.leading_agents import cluster_of
from tests.harness.mad_records import MAD, survives_mad_records
from tests.harness.one_agent import agent

from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.record import encode
from rallypoint.register.version_file import register_name

BY_DIRECTORY = ("--rdzv-backend=file", "--rdzv-id=job", "--local-addr=127.0.0.1")
WORKER = "import os\ntell('rank', os.environ['RANK'])\n"


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
