"""A worker is told the same by `torchrun`, by `rallypoint run` and by `worker_environ`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.compat.launches import (
    ARGUMENTS,
    OURS_ONLY,
    RALLYPOINT,
    TOLD,
    TORCHRUN,
    TORCHRUN_ONLY,
    Worker,
    as_json,
    comparable,
    launch,
    of_json,
    plain_environ,
)
from tests.compat.recordings import Recordings
from tests.harness.cluster import free_port
from tests.harness.programs import said_by

from rallypoint.agent.environ import WorkerContext, worker_argv, worker_environ
from rallypoint.cli.options import parse_run
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.core.model import Assignment, Stamp


def context(rank: int, told: dict[str, str], *, role: str, max_restarts: int) -> WorkerContext:
    """Where `rank` of two workers on one node is; ports and ids as that run chose them."""
    address, port = told["MASTER_ADDR"], int(told["MASTER_PORT"])
    assignment = Assignment(1, 0, 1, 0, 2, 0, 2, address, port, 0, "the first round", False)
    omp_threads = None if "OMP_NUM_THREADS" in plain_environ() else 1
    config = AgentConfig(
        rendezvous=RendezvousConfig(told["TORCHELASTIC_RUN_ID"], max_restarts=max_restarts),
        workers=WorkerConfig(count=2, role=role, omp_threads=omp_threads),
    )
    error_file = told["TORCHELASTIC_ERROR_FILE"]
    return WorkerContext(rank, error_file, Stamp(1, 1), assignment, config, "n", shm="/shm")


class Case(NamedTuple):
    """A job of two workers."""

    name: str
    options: list[str]
    role: str
    max_restarts: int
    fixed: bool
    """The port and the run's id are given, not chosen."""


@pytest.fixture(params=["alone", "static"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "alone":
        return Case(request.param, ["--nproc-per-node", "2"], "default", 0, False)
    options = ["--nproc_per_node=2", "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1"]
    options += [f"--master-port={free_port()}", "--role=trainer", "--max-restarts=3"]
    return Case(request.param, options, "trainer", 3, True)


def ask_torchrun(case: Case, python: str, folder: Path) -> list[dict[str, object]]:
    """What its workers write down, with these values for what differs from run to run."""
    command = [python, *TORCHRUN, *case.options]
    workers = launch(command, folder / "torchrun", plain_environ())
    for worker in workers:
        if case.fixed:
            assert f"--master-port={worker.env['MASTER_PORT']}" in case.options
        else:
            worker.env["TORCHELASTIC_RUN_ID"] = "run"
        worker.env["MASTER_PORT"] = "29500"
    return as_json(workers)


@pytest.fixture
def torchrun_told(
    case: Case, torch_said: Recordings, torch_python: str, tmp_path: Path
) -> list[Worker]:
    def ask() -> object:
        return ask_torchrun(case, torch_python, tmp_path)

    return of_json(torch_said("worker_environment", case.name, ask))


def test_the_real_torchrun_says_what_was_recorded(
    case: Case, torch_said: Recordings, torch_python: str, tmp_path: Path
) -> None:
    """In every run of the tests: the recordings are of the torchrun that is installed."""
    torch_said.same(
        "worker_environment", case.name, lambda: ask_torchrun(case, torch_python, tmp_path)
    )


def test_worker_environ_says_what_torchrun_says(case: Case, torchrun_told: list[Worker]) -> None:
    base = plain_environ()
    for rank, worker in enumerate(torchrun_told):
        where = context(rank, worker.env, role=case.role, max_restarts=case.max_restarts)
        whole = worker_environ(where, base)
        assert base.items() <= whole.items()
        ours = {name: value for name, value in whole.items() if name not in base}
        assert set(worker.env) - set(ours) == TORCHRUN_ONLY
        assert set(ours) - set(worker.env) == OURS_ONLY
        assert {k: v for k, v in ours.items() if k not in OURS_ONLY} == {
            k: v for k, v in worker.env.items() if k not in TORCHRUN_ONLY
        }


def test_worker_argv_says_what_torchrun_says(case: Case, torchrun_told: list[Worker]) -> None:
    argv = parse_run([*case.options, str(TOLD), *ARGUMENTS], plain_environ()).workers.argv
    for rank, worker in enumerate(torchrun_told):
        assert worker_argv(argv, rank)[3:] == list(worker.argv)


def test_rallypoint_run_tells_workers_what_torchrun_does(
    case: Case, torchrun_told: list[Worker], tmp_path: Path
) -> None:
    token = {"RALLYPOINT_TOKEN": "5ec2e7" * 8}
    ours = launch([*RALLYPOINT, *case.options], tmp_path / "told", plain_environ(), token)
    for mine, theirs in zip(ours, torchrun_told, strict=True):
        assert (mine.argv, mine.path0) == (theirs.argv, theirs.path0)
        if case.fixed:
            assert f"--master-port={mine.env['MASTER_PORT']}" in case.options
            mine.env["MASTER_PORT"] = theirs.env["MASTER_PORT"]  # that of the recorded run
        fixed = case.fixed
        assert comparable(mine.env, fixed=fixed) == comparable(theirs.env, fixed=fixed)
        assert set(mine.env) >= OURS_ONLY
        assert mine.env["TORCHELASTIC_ERROR_FILE"].endswith("error.json")


def test_run_path_runs_the_script_where_rallypoint_is_not_installed(tmp_path: Path) -> None:
    """The template alone: with -I the interpreter sees the standard library only."""
    script = tmp_path / "s.py"
    script.write_text("import sys; print(__name__, __file__, sys.argv)")
    python, unbuffered, *rest = parse_run(["--run-path", str(script), "-a", "b"], {}).workers.argv
    said = said_by([python, "-I", "-S", unbuffered, *rest])
    assert said.strip() == f"__main__ {script} {[str(script), '-a', 'b']}"
