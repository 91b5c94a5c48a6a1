"""A command for one node that Slurm or MPI has started many times."""

from __future__ import annotations

import pytest
from tests.unit.command_line import parse, refusal

STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
HEAD_AND_SRUN = (
    r"""
  head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  srun rallypoint run --nnodes "$SLURM_NNODES" --rdzv-id "$SLURM_JOB_ID" \
--rdzv-endpoint "$head:29400" ...
""".replace("\\\n", "")
    .strip("\n")
    .splitlines()
)
FIRST, SECOND = STEP | {"SLURM_PROCID": "0"}, STEP | {"SLURM_PROCID": "1"}


def test_two_tasks_of_srun_are_refused_with_the_lines_that_work() -> None:
    first, *lines, last = refusal("train.py", **FIRST).splitlines()
    assert first == (
        "srun has started this command 2 times, and each would run the whole job; for one job, "
        "write in the batch script"
    )
    assert lines == HEAD_AND_SRUN
    assert last == "or give --standalone, to run a separate job in each task"


def test_the_other_tasks_are_refused_in_one_line() -> None:
    assert refusal("train.py", **SECOND) == (
        "srun has started this command 2 times, and each would run the whole job: task 0 prints "
        "what to do"
    )


@pytest.mark.parametrize(
    ("line", "workers"),
    [("train.py", "--nproc-per-node 4 "), ("--nproc-per-node 2 train.py", "")],
)
def test_where_each_node_has_many_tasks_one_agent_per_node_is_advised(
    line: str, workers: str
) -> None:
    many = FIRST | {"SLURM_STEP_NUM_TASKS": "8"}
    assert refusal(line, **many).splitlines()[2] == (
        '  srun --ntasks "$SLURM_NNODES" --ntasks-per-node 1 rallypoint run --nnodes '
        f'"$SLURM_NNODES" --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:29400" {workers}...'
    )


@pytest.mark.parametrize(
    "line",
    [
        "--standalone train.py",
        "--nnodes 1 train.py",
        "--nnodes 2 --rdzv-endpoint gpu1 train.py",
        "--master-port 29500 train.py",
    ],
)
def test_who_says_how_many_nodes_there_are_is_believed(line: str) -> None:
    assert parse(line, **FIRST).notices == ()


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1"},
        FIRST | {"SLURM_STEP_NUM_TASKS": "1"},
        FIRST | {"SLURM_PTY_PORT": "41641"},
        FIRST | {"RALLYPOINT_INCARNATION": "1"},
        FIRST | {"SLURM_STEP_NUM_TASKS": "2(x2)"},
    ],
    ids=["batch script", "one task", "shell of srun --pty", "started by a worker", "no number"],
)
def test_one_plain_command_is_let_through_where_it_is_started_once(environ: dict[str, str]) -> None:
    assert parse("train.py", **environ).rendezvous.max_nodes == 1


def test_under_mpirun_a_line_says_that_each_process_is_a_job_of_its_own() -> None:
    (notice,) = parse("train.py", OMPI_COMM_WORLD_SIZE="4", SLURM_STEP_NUM_TASKS="2").notices
    assert notice.startswith("mpirun has started this command 4 times, and each runs the whole job")
    assert parse("--standalone train.py", OMPI_COMM_WORLD_SIZE="4").notices == ()
    assert parse("train.py", OMPI_COMM_WORLD_SIZE="1").notices == ()
