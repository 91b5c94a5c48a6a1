"""The search for a job by its number in Slurm.

`rallypoint run` in its step has chosen the job's name and endpoint (`integrations/slurm_step.py`).
"""

from __future__ import annotations

import os
import re

from msgspec import Struct

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.values import Given
from rallypoint.config import Endpoint, RegisterConfig
from rallypoint.core.settings import FOR_DIRECTORIES
from rallypoint.errors import RendezvousConnectionError
from rallypoint.integrations.slurm_nodes import node_names
from rallypoint.integrations.slurm_step import port_of, run_id_of

_NUMBER = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?")
_ASK_S = 10.0


class SlurmJob(Struct, frozen=True):
    """The number of a Slurm job, and of a step in it."""

    job: int
    step: str

    @property
    def run_id(self) -> str:
        """The run id of the job, unless Slurm has requeued it."""
        return run_id_of(self.job, self.step, 0)


def read_slurm_job(given: Given) -> SlurmJob:
    """Parse the number of a job, or of a step; without one it is step 0. Raises UsageError."""
    if (found := _NUMBER.fullmatch(given.text)) is None:
        raise given.wrong("needs the number of a Slurm job, as in 10, or of a step: 10.1")
    return SlurmJob(int(found[1]), str(int(found[2] or 0)))


def locate(job: SlurmJob, machine: ThisHost) -> tuple[str, Endpoint | None, RegisterConfig | None]:
    """Return the run id of the job, and its endpoint or the place of its record.

    Asks Slurm, and may block for seconds. Raises RendezvousConnectionError.
    """
    told = machine.ask_command(f"scontrol show job -o {job.job}", _ASK_S) or ""
    restarts = re.search(r"\bRestarts=(\d{1,9})\b", told)
    run_id = run_id_of(job.job, job.step, int(restarts[1]) if restarts else 0)
    if directory := _recorded_in(run_id, machine):
        return run_id, None, RegisterConfig(FOR_DIRECTORIES, directory)
    nodes = re.search(r"(?<!\w)NodeList=([^\s()]+)", told)
    if nodes is None or "JobState=RUNNING" not in told:
        raise RendezvousConnectionError(f"Slurm has no job {job.job} that runs")
    try:
        first = node_names(nodes[1])[0]
    except ValueError as error:
        raise RendezvousConnectionError(f"NodeList={nodes[1]}: {error}") from None
    return run_id, Endpoint(first, port_of(job.job, job.step)), None


def _recorded_in(run_id: str, machine: ThisHost) -> str:
    """Return the directory in a shared home that has the job's record; empty: there is none."""
    from rallypoint.register.version_file import register_name

    home = machine.shared_home()
    try:
        clusters = sorted(os.listdir(home)) if home else []
    except OSError:
        return ""
    places = (os.path.join(home, cluster) for cluster in clusters)
    return next((one for one in places if os.path.isdir(f"{one}/{register_name(run_id)}")), "")
