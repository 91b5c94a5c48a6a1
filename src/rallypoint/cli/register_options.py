"""The register of a job, by which any of its nodes may lead it: what the command line says of it.

`run` keeps the register in the directory of `--rdzv-endpoint`; other commands find the job's
coordinator by it. Pure.
"""

from __future__ import annotations

from rallypoint.cli.empty_values import was_empty
from rallypoint.cli.machine import Machine
from rallypoint.cli.parser import Scanned
from rallypoint.cli.values import Value
from rallypoint.config import RegisterConfig
from rallypoint.core.settings import FLAGS, UNNAMED_RUN_ID
from rallypoint.errors import UsageError
from rallypoint.wire.address import is_port

_OF_A_FIXED_HOST = ("--node-rank", "--master-addr", "is_host", "host_timeout")
"""What says which node hosts, or how long to wait for it."""


def read_register(scanned: Scanned, machine: Machine) -> RegisterConfig:
    """Where the register is, and where a leader listens. Raises UsageError, also without a run id:
    the records of many jobs may lie in one directory."""
    where, job = scanned.get("--rdzv-endpoint"), scanned.get("--rdzv-id")
    if where is None:
        raise UsageError(
            f"{was_empty(scanned, '--rdzv-endpoint')}--rdzv-backend file: needs --rdzv-endpoint "
            "DIR, a directory that all nodes share"
        )
    directory = _directory(where, machine)
    if job is None or job.text == UNNAMED_RUN_ID:
        raise UsageError(
            f"{was_empty(scanned, '--rdzv-id')}--rdzv-backend file: a directory may hold many "
            "jobs, and distinguishes them by their run ids: give --rdzv-id, the same for all nodes "
            "of this job, like --rdzv-id my-job-1"
        )
    return RegisterConfig(directory, **scanned.fields(RegisterConfig, FLAGS.values()))


def remarks_on(scanned: Scanned) -> list[str]:
    """A remark on each option that has no meaning where any node may lead."""
    return [
        f"{given.origin} has no effect with --rdzv-backend file: any node may host the job"
        for name in _OF_A_FIXED_HOST
        if (given := scanned.get(name)) is not None
    ]


def _directory(where: Value, machine: Machine) -> str:
    """The absolute path. What is there is not looked at: a file server may not answer."""
    host, _, port = where.text.rpartition(":")
    if host and "/" not in host and is_port(port):
        raise where.wrong(
            "--rdzv-backend file needs a directory that all nodes share, and this looks like an "
            f"address: leave --rdzv-backend out, or give the directory as ./{where.text}"
        )
    return machine.absolute_path(where.text)
