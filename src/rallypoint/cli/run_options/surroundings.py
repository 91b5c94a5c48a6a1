"""The values that a scheduler's environment gives for options left out (`--scheduler`).

A scheduler starts the same command on every node. Its variables become further values of the
options, each with its variable as the source: the command line and the variables of Rallypoint and
torchrun take precedence. Unless `--scheduler slurm` asks for them, Slurm's are used only if the
command line does not say itself how the nodes find each other. Kubernetes gives only the number of
a pod, as the node rank for --master-addr or the static backend.
"""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Scanned
from rallypoint.cli.values import Given, choice, is_by_register
from rallypoint.core.settings import FLAGS, FOR_DIRECTORIES
from rallypoint.core.text import shown

_SAYS_HOW = ("--rdzv-endpoint", "--node-rank", "--master-addr", "--master-port")
"""The options that say how the nodes find each other."""
_INDEX = "JOB_COMPLETION_INDEX"
"""The variable with the number of a pod of an Indexed Job."""
_BY_MPI = """\
mpirun has started this command {tasks} times, and each runs the whole job (if that is \
wanted, add --standalone). For one job, start it once on each node, with --nnodes and \
--rdzv-endpoint"""

_SLURM_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_WITHOUT_SRUN = """\
Slurm has given this job {nodes} nodes, and this trains on one of them: write \
srun rallypoint run ... to train on all (if one is wanted, add --standalone)"""


def with_surroundings(
    scanned: Scanned, environ: Mapping[str, str], machine: ThisHost, notices: list[str]
) -> Scanned:
    """Return the command line with the scheduler's values for options that were left out.

    Remarks are added to `notices`. In a worker that starts another job, the scheduler's variables
    describe its agent, so they are ignored, as with `--scheduler none`. Raises UsageError, and
    RendezvousPlugInError for an unusable plug-in.
    """
    asked = scanned.get("--scheduler")
    scheduler = choice(asked, FLAGS["--scheduler"].metavar.split("|")) if asked else "auto"
    if scheduler == "none" or "RALLYPOINT_INCARNATION" in environ:
        return scanned
    is_slurm = scheduler == "slurm"
    if not is_slurm and _lacks_a_rank(scanned) and (index := environ.get(_INDEX)):
        rank = Given(index, f"{_INDEX}={shown(index)}")
        return scanned.plus({"--node-rank": rank})
    if not is_slurm and _says_how(scanned):
        return scanned
    if not is_slurm and (started := _number(environ, "OMPI_COMM_WORLD_SIZE")) > 1:
        notices.append(_BY_MPI.format(tasks=started))
    elif is_slurm or (_number(environ, "SLURM_STEP_NUM_TASKS") > 1 and not _is_typed(environ)):
        return _with_slurm(scanned, environ, machine, notices)
    elif not environ.get("SLURM_STEP_NUM_TASKS"):
        found = (_number(environ, name) for name in _SLURM_NODES)
        if (number := next(filter(None, found), 0)) > 1:
            notices.append(_WITHOUT_SRUN.format(nodes=number))
    return scanned


def _says_how(scanned: Scanned) -> bool:
    nnodes, backend = scanned.get("--nnodes"), scanned.get("--rdzv-backend")
    if scanned.on("--standalone") or (nnodes is not None and scanned.nodes == (1, 1)):
        return True
    if backend is not None and is_by_register(backend.text):
        return False  # Their endpoint is a place where many jobs are.
    return (backend is not None and backend.text not in ("tcp", "c10d")) or any(
        map(scanned.get, _SAYS_HOW)
    )


def _lacks_a_rank(scanned: Scanned) -> bool:
    """Return whether there are several nodes with fixed ranks, and this one's is missing."""
    backend = scanned.get("--rdzv-backend")
    if scanned.nodes[1] == 1 or scanned.get("--node-rank") is not None:
        return False
    if backend is not None:
        return backend.text == "static"
    return scanned.get("--master-addr") is not None


def _is_typed(environ: Mapping[str, str]) -> bool:
    """Return whether a user runs this once, in a shell that `srun --pty` or `salloc` started."""
    return "SLURM_PTY_PORT" in environ


def _with_slurm(
    scanned: Scanned, environ: Mapping[str, str], machine: ThisHost, notices: list[str]
) -> Scanned:
    from rallypoint.integrations.slurm_step import (
        options_of,
        read_step,
        refuse_a_task_for_each_worker,
    )

    step = read_step(environ)
    if scanned.get("--nproc-per-node") is None:
        refuse_a_task_for_each_worker(step)
    said = options_of(step)
    backend = scanned.get("--rdzv-backend")
    in_home = backend is None or backend.text == FOR_DIRECTORIES
    if in_home and (home := machine.shared_home()):
        where = Given(f"{home}/{step.cluster}", "the shared home directory")
        said |= _recorded_in(where, backend, machine, notices)
    elif backend is not None and is_by_register(backend.text):
        del said["--rdzv-endpoint"]
    return scanned.plus({flag: each for flag, each in said.items() if scanned.get(flag) is None})


def _recorded_in(
    where: Given, backend: Given | None, machine: ThisHost, notices: list[str]
) -> dict[str, Given]:
    """Return the options that keep the job's record in this place; none if that is impossible."""
    if backend is None and (why := machine.why_no_records(where.text)):
        notices.append(f"the job ends with its first node, as its record can't be kept: {why}")
        return {}
    if backend is None:
        notices.append(
            f"the record of the job lies in {where.text}, so that any node may be lost"
            " (--rdzv-backend tcp: the first node hosts the job instead)"
        )
    return {"--rdzv-backend": Given(FOR_DIRECTORIES, where.origin), "--rdzv-endpoint": where}


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else 0
