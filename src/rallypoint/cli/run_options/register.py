"""The register of a job that any of its nodes may lead, from the command line.

`run` keeps the register where `--rdzv-backend` and `--rdzv-endpoint` say; other commands find the
job's coordinator through it.
"""

from __future__ import annotations

from functools import partial

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Scanned
from rallypoint.cli.run_options.empty_values import was_empty
from rallypoint.cli.values import Given, place
from rallypoint.config import RegisterConfig, password_variable
from rallypoint.core.settings import FOR_DIRECTORIES, UNNAMED_RUN_ID
from rallypoint.core.text import named
from rallypoint.errors import UsageError
from rallypoint.register.engines import PASSWORD, PASSWORD_FILE, Row, chosen, find
from rallypoint.wire.address import is_port

BESIDE_FILE = ".rallypoint"
"""The end of the name of the directory beside the file of `store_type=file`."""
OF_A_FIXED_HOST = ("is_host", "host_timeout")
"""The keys of `--rdzv-conf` that choose the host of the coordinator, or the time to wait for it."""


def read_register(
    scanned: Scanned, backend: str, machine: ThisHost
) -> tuple[RegisterConfig, Scanned]:
    """Return where the job's register is, and the command line without the keys that say so.

    These are keys of `--rdzv-conf`. Raises UsageError, also without a run id (but for
    `store_type=file`): the records of many jobs may lie in one place. Raises RendezvousPlugInError
    for an unusable engine of a package.
    """
    register, rest = read_place(scanned, backend, machine)
    job = scanned.get("--rdzv-id")
    if (job is None or job.text == UNNAMED_RUN_ID) and not _is_file_store(scanned):
        raise UsageError(
            f"{was_empty(scanned, '--rdzv-id')}{_by(scanned, backend)}: {_row(backend).holds} may "
            f"hold many jobs: give {named.rdzv_id}, the same for all nodes of this job, like "
            f"{named.rdzv_id} my-job-1"
        )
    return register, rest


def _is_file_store(scanned: Scanned) -> bool:
    return any(key == "store_type" and value.text == "file" for key, value in scanned.conf())


def with_shared_path(scanned: Scanned, backend: str | None) -> tuple[Scanned, str | None]:
    """Return the options and the backend, with `store_type=file` turned into a shared path.

    The path is that of one job: its record lies in a directory beside the file that torch would
    make. Without a path (`--rdzv-endpoint`) a job of one node stays as it is, and one of several
    raises UsageError, as does an address in its place.
    """
    where = scanned.get("--rdzv-endpoint")
    if not _is_file_store(scanned) or (where is None and scanned.nodes[1] == 1):
        return scanned, backend
    if where is None:
        raise UsageError(
            f"store_type=file: needs {named.rdzv_endpoint} PATH, the same on all nodes"
        )
    host, _, port = where.text.rpartition(":")
    if host and "/" not in host and is_port(port):
        raise where.wrong(f"store_type=file needs a path: as a file, this is ./{where.text}")
    directory = Given(f"{where.text.rstrip('/')}{BESIDE_FILE}", where.origin)
    return scanned.plus({"--rdzv-endpoint": directory}), FOR_DIRECTORIES


def read_place(scanned: Scanned, backend: str, machine: ThisHost) -> tuple[RegisterConfig, Scanned]:
    """Return where the register of any job is, and the command line without the keys that say so.

    These are keys of `--rdzv-conf`. Raises UsageError, and RendezvousPlugInError for an unusable
    engine of a package.
    """
    row, where = _row(backend), scanned.get("--rdzv-endpoint")
    if where is None and row.needs:
        raise UsageError(
            f"{was_empty(scanned, '--rdzv-endpoint')}{_by(scanned, backend)}: needs "
            f"{named.rdzv_endpoint} {row.needs}"
        )
    text = "" if where is None else where.text
    if where is not None and row.is_directory:
        text = _directory(where, backend, machine)
    said = dict(scanned.conf())
    conf = {key: value.text for key, value in said.items() if key in row.keys}
    if PASSWORD in row.keys:
        by_words = scanned.get("--rdzv-conf") is not None
        _add_password(conf, row, backend, machine, is_on_command_line=by_words)
    register = chosen(backend, text, conf, partial(_absolute, machine))
    try:
        if row.keys or not row.is_directory:  # A directory has been checked, without its engine.
            machine.check_register(register)
    except UsageError as error:
        raise UsageError(f"{_by(scanned, backend)}: {error}") from None
    rest = {key: value for key, value in said.items() if key not in row.keys}
    return register, scanned.minus({"--rdzv-conf", *said}).plus(rest)


def _by(scanned: Scanned, backend: str) -> str:
    """Return the option by which the backend was given, as it was written, or as it would be."""
    given = scanned.get("--rdzv-backend")
    return f"{named.rdzv_backend} {backend}" if given is None else given.origin


def _row(backend: str) -> Row:
    row = find(backend)
    assert row is not None
    return row


def _add_password(
    conf: dict[str, str], row: Row, backend: str, machine: ThisHost, *, is_on_command_line: bool
) -> None:
    if PASSWORD in conf and is_on_command_line:
        ways = [f"{key}=FILE" for key in row.keys if key == PASSWORD_FILE]
        ways.append(f"{password_variable(backend)} in the environment")
        raise UsageError(
            f"--rdzv-conf {PASSWORD}: a command line is seen by others: give {', or '.join(ways)}"
        )
    if PASSWORD not in conf and PASSWORD_FILE not in conf and (secret := machine.password(backend)):
        conf[PASSWORD] = secret


def check_conf(rest: Scanned) -> None:
    """Raise UsageError for a key of `--rdzv-conf` that `read_place` has left: it has no effect.

    For commands that use `--rdzv-conf` only for the place of the records.
    """
    for _, other in rest.conf():
        raise other.wrong("only keys of the backend have an effect here")


def remarks_on(scanned: Scanned, backend: str) -> list[str]:
    """Return a remark on each key given of `OF_A_FIXED_HOST`: any node may lead the job."""
    return [
        f"{given.origin} has no effect with {_by(scanned, backend)}: any node may host the job"
        for name in OF_A_FIXED_HOST
        if (given := scanned.get(name)) is not None
    ]


def _directory(where: Given, backend: str, machine: ThisHost) -> str:
    """Return the absolute path of the directory. Raises UsageError for what looks like an address.

    What is there is not looked at: a file server may not answer.
    """
    host, _, port = where.text.rpartition(":")
    if host and "/" not in host and is_port(port):
        raise where.wrong(
            f"{named.rdzv_backend} {backend} needs a directory that all nodes share, and "
            f"this looks like an address: leave {named.rdzv_backend} out, or give the "
            f"directory as ./{where.text}"
        )
    return machine.absolute_path(place(where, "a directory that all nodes share"))


def _absolute(machine: ThisHost, path: str) -> str:
    return machine.absolute_path(place(Given(path, path), "a file"))
