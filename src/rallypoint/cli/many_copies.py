"""One command that a scheduler has started many times, though it describes a job of one node.

Each copy would run the whole job, with the same files and the same names. Slurm tells its steps
apart from batch scripts and from a person's shell, where one plain command is what is meant.
"""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.cli.parser import Scanned
from rallypoint.errors import UsageError

_SAYS_WHERE = (
    "--nnodes",
    "--rdzv-endpoint",
    "--rdzv-backend",
    "--node-rank",
    "--master-addr",
    "--master-port",
)
"""Whoever gave one of these knows of other nodes, or that there is none."""

_EACH_IS_WHOLE = "has started this command {tasks} times, and each would be a whole job of its own"

_BY_SRUN = f"""\
srun {_EACH_IS_WHOLE}; for one job, write in the batch script
  head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  srun {{once}}rallypoint run --nnodes "$SLURM_NNODES" --rdzv-id "$SLURM_JOB_ID" \
--rdzv-endpoint "$head:29400" {{workers}}...
or give --standalone, for a job of its own in each task"""

_BY_SRUN_BRIEFLY = f"srun {_EACH_IS_WHOLE}: task 0 says what to do"

_BY_MPI = """\
mpirun has started this command {tasks} times, and each is a whole job of its own (if that is \
meant, say so with --standalone); for one job, start it once on each node, with --nnodes and \
--rdzv-endpoint"""


def refuse_copies(scanned: Scanned, environ: Mapping[str, str], notices: list[str]) -> None:
    """Raises UsageError where this is one of several tasks of a Slurm step; under mpirun, whose
    processes can't tell as surely what is meant, a remark is added to `notices`.

    A worker may start a job of its own: what its agent was started by says nothing of that.
    """
    inside_a_worker = "RALLYPOINT_INCARNATION" in environ
    if inside_a_worker or scanned.on("--standalone") or any(map(scanned.get, _SAYS_WHERE)):
        return
    if (started := _number(environ, "OMPI_COMM_WORLD_SIZE")) > 1:
        notices.append(_BY_MPI.format(tasks=started))
    elif (tasks := _number(environ, "SLURM_STEP_NUM_TASKS")) > 1 and not _is_typed(environ):
        raise UsageError(_advice(scanned, environ, tasks))


def _is_typed(environ: Mapping[str, str]) -> bool:
    """In a shell that `srun --pty` or `salloc` has started, a person runs this once."""
    return "SLURM_PTY_PORT" in environ


def _advice(scanned: Scanned, environ: Mapping[str, str], tasks: int) -> str:
    if environ.get("SLURM_PROCID", "0") != "0":
        return _BY_SRUN_BRIEFLY.format(tasks=tasks)
    nodes, once, workers = _number(environ, "SLURM_STEP_NUM_NODES"), "", ""
    if 0 < nodes < tasks:
        once = '--ntasks "$SLURM_NNODES" --ntasks-per-node 1 '
        if scanned.get("--nproc-per-node") is None:
            workers = f"--nproc-per-node {tasks // nodes} "
    return _BY_SRUN.format(tasks=tasks, once=once, workers=workers)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else 0
