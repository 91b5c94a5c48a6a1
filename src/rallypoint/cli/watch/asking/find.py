"""The search for the job that a command line names, and for its coordinator.

A user gives the job's endpoint, or nothing: then it is one of the user's jobs on this machine,
whose agent has left a note (`process/scratch.py`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli import access, values
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.run_options.register import check_conf, read_place, read_register
from rallypoint.cli.values import Given
from rallypoint.config import DEFAULT_COORDINATOR_PORT, Endpoint, RegisterConfig
from rallypoint.coordinator.client.token import JobToken
from rallypoint.core.json_reader import read_as
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.core.settings import ENGINE_NAMES, FOR_DIRECTORIES, Setting
from rallypoint.core.text import job_name, names_of_jobs, shown
from rallypoint.core.watch.questions import ALL_JOBS
from rallypoint.errors import RendezvousConnectionError, UsageError
from rallypoint.files import local_path
from rallypoint.process.scratch import PLACES, LocalJob, lives, notes
from rallypoint.wire.address import split_endpoint

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
CHECK = "give the job's --rdzv-endpoint HOST[:PORT]"

HOW_TO_FIND = (
    "Where",
    (
        Setting(
            "--rdzv-endpoint", "HOST[:PORT]|DIR", "that of the job's nodes; the same as ENDPOINT"
        ),
        Setting("--job", "ID", "the name of the job: its --rdzv-id"),
        Setting("--rdzv-id", "ID", "the same as --job"),
        Setting(
            "--slurm", "JOB[.STEP]", "the number of a Slurm job, in place of its name and endpoint"
        ),
        Setting(
            "--rdzv-backend",
            "|".join(("tcp", *ENGINE_NAMES)),
            "that of the job's nodes",
            "engine",
            default="tcp",
        ),
        Setting("--rdzv-conf", "K=V,...", "that of the job's nodes: where the records are"),
        *access.token_options("the job runs with --insecure, without a token"),
    ),
)
"""The options that name a job, for all commands about one."""
EXIT_CODES = """\
Exit codes:
  0   the answer was printed
  2   no such job, or wrong usage
  75  no coordinator answers, or it went away
"""


class JobAt(Struct, frozen=True):
    """The place where a job is found: its name, and its coordinator's endpoint or its record."""

    run_id: str | None
    """The run id of the job; None: not given."""
    endpoint: Endpoint
    register: RegisterConfig | None
    """The place of the job's record, which names its coordinator; None: the coordinator is at the
    endpoint."""
    access: access.Access
    secret: bytes = b""
    """The token of this job from its agent's note on this machine, where no token of the user's
    opens it; empty: none."""
    given: str = ""
    """The words that name the place in another command, with the options for the token; empty: this
    machine."""
    is_here: bool = False
    """Whether the job was found on this machine."""
    pid: int = 0
    """The pid of the agent by which it was found on this machine; 0: it was found otherwise."""
    word: str = ""
    """The endpoint's text if it has no port, so that it may be a name; empty: it has one, or there
    is none."""

    @property
    def name(self) -> str:
        """The run id of the job; if none is given, the run id that every job without a name has."""
        return UNNAMED_RUN_ID if self.run_id is None else self.run_id

    @property
    def words(self) -> str:
        """The words that name the job and its place in any command, quoted for a shell."""
        has_name = self.run_id not in (None, UNNAMED_RUN_ID, ALL_JOBS)
        return f"{self.given} --job {quote(self.name)}".strip() if has_name else self.given


def read_job(command: Command, scanned: Scanned, where: Given | None) -> list[JobAt]:
    """Return the job that the options and `where` name, or the user's jobs on this machine.

    Of these only those with the name, if one is given; there is at least one. Raises UsageError,
    and RendezvousConnectionError if there is none on this machine. May ask Slurm, and block for
    seconds.
    """
    given = scanned.get("--job") or scanned.get("--rdzv-id")
    where = where or scanned.get("--rdzv-endpoint")
    run_id, reading = None if given is None else given.text, access.read_access(scanned)
    if (slurm := scanned.get("--slurm")) is not None:
        if given is not None or where is not None:
            raise slurm.wrong("gives the job and its endpoint: leave the other option out")
        from rallypoint.cli.watch.asking.slurm_job import locate, read_slurm_job

        run_id, endpoint, register = locate(read_slurm_job(slurm), ThisHost())
        if register is not None:
            words = _words(scanned, register.where, FOR_DIRECTORIES)
        else:
            words = _words(scanned, str(endpoint))
        endpoint = endpoint or Endpoint("localhost", DEFAULT_COORDINATOR_PORT)
        return [JobAt(run_id, endpoint, register, reading, given=words)]
    backend = str(scanned.read(command, "--rdzv-backend", "tcp"))
    if backend == "tcp" and where is not None and _is_directory(where.text):
        backend = FOR_DIRECTORIES
    if backend != "tcp":
        register = _register(scanned, backend, where, run_id)
        endpoint = Endpoint("localhost", DEFAULT_COORDINATOR_PORT)
        words = _words(scanned, "" if where is None else where.text, backend)
        return [JobAt(run_id, endpoint, register, reading, given=words)]
    if where is not None:
        endpoint = values.endpoint(where, least_port=1)
        words, word = _words(scanned, str(endpoint)), "" if ":" in where.text else where.text
        return [JobAt(run_id, endpoint, None, reading, given=words, word=word)]
    words = _words(scanned, "")
    return [_of_note(note, reading, words) for note in _local_jobs(run_id)]


def _words(scanned: Scanned, where: str, backend: str = "") -> str:
    """Return the words for a job's place and token in another command, quoted for a shell."""
    if backend == FOR_DIRECTORIES:
        words = [where if "/" in where else f"./{where}"]
    elif backend:
        words = [f"--rdzv-backend={backend}"]
        words += [f"--rdzv-endpoint={where}"] if where else []
        if (conf := scanned.get("--rdzv-conf")) is not None:
            words.append(f"--rdzv-conf={conf.text}")
    else:
        words = [where] if where else []
    if (file := scanned.get("--token-file")) is not None:
        words.append(f"--token-file={file.text}")
    if scanned.on("--insecure"):
        words.append("--insecure")
    return " ".join(map(quote, words))


def _is_directory(text: str) -> bool:
    with suppress(ValueError):
        return os.path.isdir(local_path(text))
    return False


def _register(
    scanned: Scanned, backend: str, where: Given | None, run_id: str | None
) -> RegisterConfig:
    """Read the place of records as `--rdzv-endpoint` and `--rdzv-id` of `run` are read.

    Without a name, it is the place of all jobs there. Raises UsageError.
    """
    said = dict(scanned.values)
    if where is not None:
        said["--rdzv-endpoint"] = [where]
    if run_id is not None:
        said["--rdzv-id"] = [Given(run_id, f"--job {run_id}")]
    read = read_place if run_id is None else read_register
    register, rest = read(Scanned(scanned.words, said), backend, ThisHost())
    check_conf(rest)
    if backend == FOR_DIRECTORIES and not os.path.isdir(register.where):
        raise UsageError(f"{shown(register.where)}: there is no such directory on this machine")
    return register


def _all_local_jobs() -> Iterator[LocalJob]:
    """Yield the notes of this user's running agents on this machine."""
    for text in notes((tempfile.gettempdir(), *PLACES)):
        try:
            note = read_as(text, LocalJob)
            split_endpoint(note.address, 1)
        except (UsageError, ValueError):
            continue
        if lives(note.pid):
            yield note


def _notes_of(job: JobAt) -> list[LocalJob]:
    """Return the notes of agents about jobs of this name, if it was found on this machine.

    Else none.
    """
    if not job.is_here:
        return []
    return [one for one in _all_local_jobs() if one.run_id == job.run_id]


def _local_jobs(run_id: str | None) -> list[LocalJob]:
    """Return a note for each job of this user on this machine, or for those of this name.

    Jobs with different coordinators' addresses are different ones. Raises NotOnThisMachineError.
    """
    found: dict[tuple[str, str], LocalJob] = {}
    running: set[str] = set()
    for note in _all_local_jobs():
        running.add(note.run_id)
        if run_id in (None, note.run_id):
            found[note.run_id, note.address] = note
    if found:
        return list(found.values())
    if run_id is None:
        raise NotOnThisMachineError(f"no job of yours runs on this machine: {CHECK}")
    said = f"{job_name(run_id)} does not run on this machine"
    if close := get_close_matches(run_id, running, n=1):
        raise NotOnThisMachineError(f"{said}; did you mean --job {close[0]}?")
    raise NotOnThisMachineError(f"{said}: {CHECK}")


def _of_note(note: LocalJob, reading: access.Access, words: str) -> JobAt:
    reading = replace(reading, insecure=True) if note.insecure else reading
    endpoint = _endpoint_of(note)
    return JobAt(note.run_id, endpoint, None, reading, note.secret, words, True, note.pid)


def _endpoint_of(note: LocalJob) -> Endpoint:
    return Endpoint(*split_endpoint(note.address, DEFAULT_COORDINATOR_PORT))


def only_one(jobs: Sequence[JobAt]) -> JobAt:
    """Return the only job, for a command about one. Raises UsageError for several."""
    if len(jobs) > 1:
        known = names_of_jobs({job.name for job in jobs})
        raise UsageError(f"several jobs run on this machine ({known}): say which by --job ID")
    return jobs[0]


class NotOnThisMachineError(RendezvousConnectionError):
    """The error when no job of this user, or none of this name, runs on this machine."""


def as_noted(job: JobAt, *, by_others: bool = False) -> JobAt:
    """Return the job at the address that its agent on this machine has noted last.

    `by_others`: if that agent has ended, at the address of the job's other agents here. Else the
    same job.
    """
    notes = _notes_of(job)
    own = [one for one in notes if one.pid == job.pid]
    places = {one.address: one for one in own or (notes if by_others else [])}
    if len(places) != 1:
        return job
    (note,) = places.values()
    return replace(job, endpoint=_endpoint_of(note), secret=note.secret)


def agents_run(job: JobAt) -> bool:
    """Return whether an agent of a job of this name, found on this machine, still runs."""
    return bool(_notes_of(job))


def runs_here(job: JobAt) -> bool:
    """Return whether an agent of this job, found on this machine, still runs.

    That agent counts by its pid, even if it has attached to another leader. Another one counts only
    if it has noted the job's endpoint, since another job may have the same name.
    """
    return any(one.pid == job.pid or _endpoint_of(one) == job.endpoint for one in _notes_of(job))


def token_of(job: JobAt) -> JobToken | None:
    """Return the user's token for the job. Raises AccessError.

    None: there is none, none is needed, or the job's own token is known.
    """
    return None if job.secret else job.access.find(create=False)
