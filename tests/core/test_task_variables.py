"""Which variables of a scheduler reach workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.core.task_variables import OF_MPIRUN, TASK_VARIABLES, describes_task, inherited

OF_A_STEP = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_NPROCS": "2",
    "SLURM_GTIDS": "1",
    "SLURM_TASK_PID": "9",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "a@1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1",
    "OMPI_MCA_num_procs": "2",
    "MPI_LOCALRANKID": "1",
    "MV2_COMM_WORLD_RANK": "1",
}
"""As srun (also with --mpi), mpirun and mpiexec set them for the second task."""
OF_THE_JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_RESTART_COUNT": "1",
    "SLURMD_NODENAME": "n1",
    "SLURM_TOPOLOGY_ADDR": "n1",
    "OMPI_MCA_btl": "^openib",
    "PMIX_MCA_gds": "hash",
    "PATH": "/bin",
}


@pytest.mark.parametrize("name", OF_A_STEP)
def test_A13_what_describes_a_task_is_left_out(name: str) -> None:
    assert inherited(OF_A_STEP | OF_THE_JOB) == OF_THE_JOB
    assert describes_task(name)


def test_A13_a_variable_is_kept_by_its_name_or_a_pattern() -> None:
    assert inherited(OF_A_STEP, ["SLURM_PROCID"]) == {"SLURM_PROCID": "1"}
    kept = inherited(OF_A_STEP, ["PMI*", "OMPI_COMM_WORLD_RANK"])
    assert sorted(kept) == [
        "OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"
    ]  # fmt: skip
    assert inherited(OF_A_STEP | OF_THE_JOB, ["*"]) == OF_A_STEP | OF_THE_JOB


def test_no_entry_of_the_table_hides_in_another() -> None:
    patterns = [each for names in TASK_VARIABLES.values() for each in names]
    for each in patterns:
        begun = [one for one in patterns if one != each and one[-1] == "*"]
        assert not each.startswith(tuple(one[:-1] for one in begun)), each


def test_the_page_lists_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/worker.md").read_text()
    for who, names in TASK_VARIABLES.items():
        assert f"| {who} | {', '.join(f'`{name}`' for name in names)} |\n" in page
    assert ", ".join(f"`{name}`" for name in OF_MPIRUN) in page
