"""A worker is told the same by `torchrun`, by `rallypoint run` and by `worker_environ`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compat.launches import (
    ARGUMENTS,
    OURS_ONLY,
    TOLD,
    TORCHRUN_ONLY,
    Worker,
    comparable,
    launch,
    plain_environ,
)
from tests.integration.cluster import free_port

from rallypoint.agent.environ import WorkerContext, worker_argv, worker_environ
from rallypoint.cli.options import parse_run


def context(rank: int, told: dict[str, str], *, role: str, max_restarts: int) -> WorkerContext:
    """Where `rank` of two workers on one node is; ports and ids as that run chose them."""
    return WorkerContext(
        local_rank=rank,
        rank=rank,
        role_rank=rank,
        role=role,
        group_rank=0,
        local_world_size=2,
        world_size=2,
        group_world_size=1,
        role_world_size=2,
        master_addr=told["MASTER_ADDR"],
        master_port=int(told["MASTER_PORT"]),
        restart_count=0,
        max_restarts=max_restarts,
        run_id=told["TORCHELASTIC_RUN_ID"],
        incarnation=1,
        round=1,
        node_id="n",
        error_file=told["TORCHELASTIC_ERROR_FILE"],
        omp_threads=None if "OMP_NUM_THREADS" in plain_environ() else 1,
        shm="/board",
    )


@pytest.fixture(scope="module", params=["alone", "static"])
def case(request: pytest.FixtureRequest) -> tuple[list[str], str, int, bool]:
    """(options, role, restart budget, port and run id are fixed)."""
    if request.param == "alone":
        return ["--nproc-per-node", "2"], "default", 0, False
    options = ["--nproc_per_node=2", "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1"]
    options += [f"--master-port={free_port()}", "--role=trainer", "--max-restarts=3"]
    return options, "trainer", 3, True


@pytest.fixture(scope="module")
def torchrun_told(
    case: tuple[list[str], str, int, bool], tmp_path_factory: pytest.TempPathFactory
) -> list[Worker]:
    folder = tmp_path_factory.mktemp("torchrun") / "told"
    return launch(["-m", "torch.distributed.run", *case[0]], folder, plain_environ())


def test_worker_environ_says_what_torchrun_says(
    case: tuple[list[str], str, int, bool], torchrun_told: list[Worker]
) -> None:
    _, role, max_restarts, _ = case
    for rank, worker in enumerate(torchrun_told):
        where = context(rank, worker.env, role=role, max_restarts=max_restarts)
        base = plain_environ() | {"TOLD_DIR": worker.env["TOLD_DIR"]}
        ours = worker_environ(where, base)
        assert set(worker.env) - set(ours) == TORCHRUN_ONLY
        assert set(ours) - set(worker.env) == OURS_ONLY
        assert {k: v for k, v in ours.items() if k not in OURS_ONLY} == {
            k: v for k, v in worker.env.items() if k not in TORCHRUN_ONLY
        }


def test_worker_argv_says_what_torchrun_says(
    case: tuple[list[str], str, int, bool], torchrun_told: list[Worker]
) -> None:
    argv = parse_run([*case[0], str(TOLD), *ARGUMENTS], plain_environ()).workers.argv
    for rank, worker in enumerate(torchrun_told):
        assert worker_argv(argv, rank)[3:] == list(worker.argv)


def test_rallypoint_run_tells_workers_what_torchrun_does(
    case: tuple[list[str], str, int, bool], torchrun_told: list[Worker], tmp_path: Path
) -> None:
    options, _, _, fixed = case
    base = plain_environ() | {"RALLYPOINT_TOKEN": "5ec2e7" * 8}
    ours = launch(["-m", "rallypoint", "run", *options], tmp_path / "told", base)
    for mine, theirs in zip(ours, torchrun_told, strict=True):
        assert (mine.argv, mine.path0) == (theirs.argv, theirs.path0)
        assert comparable(mine.env, fixed=fixed) == comparable(theirs.env, fixed=fixed)
        assert set(mine.env) >= OURS_ONLY
        assert mine.env["TORCHELASTIC_ERROR_FILE"].endswith("error.json")


def test_run_path_runs_the_script_where_rallypoint_is_not_installed(tmp_path: Path) -> None:
    """The template alone: with -I the interpreter sees the standard library only."""
    script = tmp_path / "s.py"
    script.write_text("import sys; print(__name__, __file__, sys.argv)")
    python, unbuffered, *rest = parse_run(["--run-path", str(script), "-a", "b"], {}).workers.argv
    said = subprocess.run(
        [python, "-I", "-S", unbuffered, *rest], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == f"__main__ {script} {[str(script), '-a', 'b']}"
