"""The variables by which a scheduler or an MPI tells a process which task it is.

Pure data.

To a scheduler an agent is a task, and all of its workers would be that same task: a library that
believes the variables (JAX on Slurm, for example) makes several worlds of one job, or waits for
tasks that are not workers. So workers do not inherit them. Variables of the whole job
(`SLURM_JOB_ID`), of resources (`SLURM_CPUS_PER_TASK`) or of an array (`SLURM_ARRAY_TASK_ID`) stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TASK_VARIABLES: dict[str, tuple[str, ...]] = {
    "Slurm": (
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_GTIDS",
        "SLURM_TASK_PID",
        "SLURM_NTASKS*",
        "SLURM_NPROCS*",
        "SLURM_TASKS_PER_NODE*",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
    "Open MPI": ("OMPI_*", "PRTE_LAUNCHED"),
    "PMI and PMIx (also by srun)": ("PMI_*", "PMI2_*", "PMIX_*"),
    "MPICH, Intel MPI, MVAPICH": (
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "HYDI_CONTROL_FD",
        "MV2_COMM_WORLD_*",
    ),
    "PALS (Cray)": ("PALS_RANKID", "PALS_NODEID", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    "jsrun (LSF)": ("JSM_NAMESPACE_*",),
    "Flux": ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
}
"""The variables by the scheduler that sets them: names, or with a `*` the beginnings of names."""
PARAMETERS = ("OMPI_MCA_*", "PMIX_MCA_*")
"""The parameters of an MPI, mostly set by users: workers keep them, though `OMPI_*` is removed."""
OF_MPIRUN = ("OMPI_MCA_orte_*", "OMPI_MCA_ess*", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir")
"""The parameters that mpirun sets for a task; workers do not get them."""


def _split(patterns: Sequence[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Split the patterns into whole names and beginnings of names."""
    begin = tuple(each[:-1] for each in patterns if each.endswith("*"))
    return frozenset(each for each in patterns if not each.endswith("*")), begin


_NAMES, _BEGIN = _split([name for names in TASK_VARIABLES.values() for name in names])
_, _PARAMETERS = _split(PARAMETERS)
_OF_MPIRUN, _MPIRUN_BEGIN = _split(OF_MPIRUN)


def describes_task(variable: str) -> bool:
    """Return whether this variable tells a process which task of a scheduler or an MPI it is."""
    if variable.startswith(_PARAMETERS):
        return variable in _OF_MPIRUN or variable.startswith(_MPIRUN_BEGIN)
    return variable in _NAMES or variable.startswith(_BEGIN)


def inherited(environ: Mapping[str, str], keep: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of an agent without variables that describe its task, for its workers.

    `keep` has names that stay nevertheless, or shell patterns of names.
    """
    left_out = {name for name in environ if describes_task(name)}
    if keep:
        from fnmatch import fnmatchcase

        kept = {name for name in left_out for pattern in keep if fnmatchcase(name, pattern)}
        left_out -= kept
    return {name: value for name, value in environ.items() if name not in left_out}
