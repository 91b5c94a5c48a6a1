"""Finding a job's coordinator from a command line, and asking it.

A person names the endpoint as the job's nodes have it, or nothing: then it is a job of their own on
this machine, whose agent has left a note (`process/scratch.py`).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from shlex import quote
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rallypoint import __version__
from rallypoint.cli import access, values
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.run_options.register import check_conf, read_place, read_register
from rallypoint.cli.values import Given
from rallypoint.config import (
    DEFAULT_COORDINATOR_PORT,
    TOKEN_VARIABLE,
    Endpoint,
    RegisterConfig,
)
from rallypoint.coordinator.connection import ClientConnection, dial, knock
from rallypoint.coordinator.endpoint import NotYet, resolve
from rallypoint.coordinator.token import JobToken, no_token_error
from rallypoint.core import messages as m
from rallypoint.core.json_reader import UnreadableJsonError, read_as
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.core.settings import ENGINE_NAMES, FOR_DIRECTORIES, Setting
from rallypoint.core.text import job_name, names_of_jobs, shown
from rallypoint.core.watch.job_view import JobLine
from rallypoint.core.watch.questions import ALL_JOBS, Ask, Subject
from rallypoint.errors import (
    AccessError,
    PeerHungUpError,
    ProtocolError,
    RendezvousConnectionError,
    UsageError,
)
from rallypoint.files import local_path
from rallypoint.observe.printing import print_error
from rallypoint.process.scratch import PLACES, LocalJob, lives, notes
from rallypoint.register.engines import Use, make
from rallypoint.threads import run_in_thread
from rallypoint.wire.address import split_endpoint, told_addresses
from rallypoint.wire.handshake import TokenNotWanted

_T = TypeVar("_T")
QUESTIONS_SINCE = 3
"""The version of the protocol that has them."""
LOST_S = 30.0
"""So long a coordinator that went away is looked for: another node may take over."""
RETRY_S = 1.0
_CHECK = "give the job's --rdzv-endpoint HOST[:PORT]"
_GONE = "the job has ended, or its host is lost, or it has another --rdzv-endpoint"
_GONE_HERE = "it has just ended, or its host is lost, or it is in another network (a container's)"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

HOW_TO_FIND = (
    "Where",
    (
        Setting(
            "--rdzv-endpoint", "HOST[:PORT]|DIR", "as the job's nodes have it; the same as ENDPOINT"
        ),
        Setting("--job", "ID", "the name of the job: its --rdzv-id"),
        Setting("--rdzv-id", "ID", "the same as --job"),
        Setting(
            "--slurm", "JOB[.STEP]", "the number of a Slurm job, in place of its name and endpoint"
        ),
        Setting(
            "--rdzv-backend",
            "|".join(("tcp", *ENGINE_NAMES)),
            "not tcp: the job's nodes were started with it",
            "engine",
            default="tcp",
        ),
        Setting("--rdzv-conf", "K=V,...", "where the records are: as the job's nodes have it"),
        *access.token_options("the job runs with --insecure, without a token"),
    ),
)
"""The options that say which job is meant, for all commands that ask about one."""
EXIT_CODES = """\
Exit codes: 0 it was answered, 2 there is no such job there, or wrong usage, 75
no coordinator answers, or it went away.
"""


class JobAt(Struct, frozen=True):
    """Where a job is."""

    run_id: str | None
    """None: nobody said."""
    endpoint: Endpoint
    register: RegisterConfig | None
    """The job's; None: the coordinator is at the endpoint."""
    access: access.Access
    secret: bytes = b""
    """Opens this job, where no token of the user's does."""
    given: str = ""
    """The words that say where it is, for another command; empty: this machine."""
    is_here: bool = False
    """Set if the job was found on this machine."""
    pid: int = 0
    """The process id of the agent by which it was found there."""
    word: str = ""
    """The text of the endpoint if it has no port, and so may be a name; empty: it has one."""

    @property
    def name(self) -> str:
        """Its run id."""
        return UNNAMED_RUN_ID if self.run_id is None else self.run_id

    @property
    def words(self) -> str:
        """The words that name it to any command, quoted for a shell."""
        has_name = self.run_id not in (None, UNNAMED_RUN_ID, ALL_JOBS)
        return f"{self.given} --job {quote(self.name)}".strip() if has_name else self.given


def read_job(command: Command, scanned: Scanned, where: Given | None) -> list[JobAt]:
    """The job that is meant, or jobs on this machine: at least one.

    Raises UsageError, and RendezvousConnectionError for nothing on this machine.
    """
    given = scanned.get("--job") or scanned.get("--rdzv-id")
    where = where or scanned.get("--rdzv-endpoint")
    run_id, reading = None if given is None else given.text, access.read_access(scanned)
    if (slurm := scanned.get("--slurm")) is not None:
        if given is not None or where is not None:
            raise slurm.wrong("says which job is meant, and where it is: leave the other out")
        from rallypoint.cli.watch.slurm_job import locate, read_slurm_job

        run_id, endpoint, register = locate(read_slurm_job(slurm), ThisHost())
        endpoint = endpoint or Endpoint("localhost", DEFAULT_COORDINATOR_PORT)
        return [JobAt(run_id, endpoint, register, reading)]
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
    """The words that say where a job is, for another command, quoted for a shell."""
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
    """Read the place as `--rdzv-endpoint` and `--rdzv-id` of `run` say; without a name,
    of all jobs there."""
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
    """Read the notes of the agents of this user that run on this machine."""
    for text in notes((tempfile.gettempdir(), *PLACES)):
        try:
            note = read_as(text, LocalJob)
            split_endpoint(note.address, 1)
        except (UsageError, ValueError):
            continue
        if lives(note.pid):
            yield note


def _notes_of(job: JobAt) -> list[LocalJob]:
    """Notes about jobs of this name, if the job was found on this machine."""
    if not job.is_here:
        return []
    return [one for one in _all_local_jobs() if one.run_id == job.run_id]


def _local_jobs(run_id: str | None) -> list[LocalJob]:
    """The newest word of each job of this user on this machine."""
    found: dict[tuple[str, str], LocalJob] = {}
    running: set[str] = set()
    for note in _all_local_jobs():
        running.add(note.run_id)
        if run_id in (None, note.run_id):
            found[note.run_id, note.address] = note
    if found:
        return list(found.values())
    if run_id is None:
        raise NotOnThisMachineError(f"no job of yours runs on this machine: {_CHECK}")
    said = f"{job_name(run_id)} does not run on this machine"
    if close := get_close_matches(run_id, running, n=1):
        raise NotOnThisMachineError(f"{said}; did you mean --job {close[0]}?")
    raise NotOnThisMachineError(f"{said}: {_CHECK}")


def _of_note(note: LocalJob, reading: access.Access, words: str) -> JobAt:
    reading = replace(reading, insecure=True) if note.insecure else reading
    endpoint = _endpoint_of(note)
    return JobAt(note.run_id, endpoint, None, reading, note.secret, words, True, note.pid)


def _endpoint_of(note: LocalJob) -> Endpoint:
    return Endpoint(*split_endpoint(note.address, DEFAULT_COORDINATOR_PORT))


def only_one(jobs: Sequence[JobAt]) -> JobAt:
    """For a command about one job. Raises UsageError for several."""
    if len(jobs) > 1:
        known = names_of_jobs({job.name for job in jobs})
        raise UsageError(f"several jobs run on this machine ({known}): say which by --job ID")
    return jobs[0]


class NotOnThisMachineError(RendezvousConnectionError):
    """No such job of this user runs here."""


class UnreachedHereError(RendezvousConnectionError):
    """An agent of the job runs on this machine, and its coordinator can't be reached."""

    def __init__(self, text: str, why: str = "", job: JobAt | None = None) -> None:
        """`why`: the same without the name of the job."""
        super().__init__(text)
        self.why, self.job = why, job


class LostWhileFollowedError(RendezvousConnectionError):
    """The coordinator of a job that is followed went away, and no other has come."""


class NotHostedError(UsageError):
    """The coordinator there does not host the job, or not yet."""


class Asking:
    """A connection to the coordinator of a job, on which questions are asked one after another."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._answers: asyncio.Queue[m.ToAgent | str] = asyncio.Queue()
        self._pieces: list[bytes] = []
        """Of a value that is not whole yet."""
        connection.lost.add_done_callback(lambda lost: self._answers.put_nowait(lost.result()))
        connection.listen(self._answers.put_nowait)

    @classmethod
    async def open(cls, job: JobAt, token: JobToken | None) -> Asking:
        """Raises RendezvousConnectionError, AccessError, ProtocolError, and UsageError."""
        connection = await reach(job, token)
        if connection.version < QUESTIONS_SINCE:
            connection.close()
            raise UsageError(
                "the coordinator there is of a version of Rallypoint that answers no questions "
                "about its job: use that version's commands there, or upgrade the job's nodes"
            )
        return cls(connection)

    def close(self) -> None:
        """Hang up. Safe to call twice."""
        self._connection.close()

    async def ask(self, question: Ask) -> AsyncIterator[bytes]:
        """The values that answer it, as JSON. Raises UsageError for a refusal, and
        RendezvousConnectionError when the coordinator goes away."""
        self.send(question)
        is_last = False
        while not is_last:
            value, is_last = await self.next_value()
            yield value

    def send(self, question: Ask) -> None:
        """Ask, and read the answers by `next_value`."""
        self._connection.send(replace(question, release=__version__))

    async def next_value(self) -> tuple[bytes, bool]:
        """The next value of an answer, and whether it is the last one. Raises as `ask`. May be
        cancelled, and called again."""
        while True:
            said = await self._answers.get()
            if isinstance(said, str):
                raise RendezvousConnectionError(f"the coordinator went away: {said}")
            if isinstance(said, m.Refused):
                raise UsageError(said.text)
            if not isinstance(said, m.Answer):
                continue
            if said.refusal:
                raise (UsageError if said.is_final else NotHostedError)(said.refusal)
            self._pieces.append(said.piece)
            if said.is_whole:
                value = b"".join(self._pieces)
                self._pieces.clear()
                return value, said.is_last

    async def answer(self, question: Ask) -> bytes:
        """The one value that answers it."""
        answers = [value async for value in self.ask(question)]
        return answers[-1]


async def answer_within(
    job: JobAt, token: JobToken | None, question: Ask, limit_s: float, late: str
) -> bytes:
    """The one value that answers a question, on a connection of its own. Raises as `Asking.open`
    and `Asking.ask`, and RendezvousConnectionError after `limit_s`: `late`, and where to look."""
    asking = await Asking.open(await named(job, token), token)
    try:
        async with asyncio.timeout(limit_s):
            return await asking.answer(question)
    except TimeoutError:
        text = f"{late}; rallypoint status shows what the job waits for"
        raise RendezvousConnectionError(text) from None
    finally:
        asking.close()


async def named(job: JobAt, token: JobToken | None) -> JobAt:
    """For a command about one job, with its name: where nobody has said which, it is the only one
    that the coordinator hosts. Raises as `Asking.open`."""
    if job.run_id is not None:
        return job
    if job.register is not None:
        where, run_ids = job.given, await recorded_jobs(job.register)
    else:
        asking, jobs = await ask_for_all(job, token)
        asking.close()
        where, run_ids = str(job.endpoint), [line.job for line in jobs]
    if len(run_ids) != 1:
        known = names_of_jobs(run_ids)
        said = f"several jobs are there ({known}): say which by --job ID" if run_ids else "no jobs"
        raise UsageError(f"{where}: {said}")
    return replace(job, run_id=run_ids[0])


async def recorded_jobs(register: RegisterConfig) -> list[str]:
    """The names of all jobs that have a record there. A job that has just begun may be missing."""
    engine = make(register, Use())
    return sorted(await run_in_thread(engine.changed, "rallypoint-registers"))


async def ask_for_all(job: JobAt, token: JobToken | None) -> tuple[Asking, list[JobLine]]:
    """Ask about all jobs there, where nobody has said which, or about this job. Returns the
    connection, for further calls of `jobs_of`, and the answer. Raises as `Asking.open`."""
    try:
        return await _ask_for_all(job, token)
    except UsageError:
        if job.run_id is not None:
            raise
    # A coordinator of many jobs hosts none without a name.
    return await _ask_for_all(replace(job, run_id=ALL_JOBS), token)


async def _ask_for_all(job: JobAt, token: JobToken | None) -> tuple[Asking, list[JobLine]]:
    asking = await Asking.open(job, token)
    try:
        return asking, await jobs_of(asking)
    except BaseException:
        asking.close()
        raise


async def jobs_of(asking: Asking) -> list[JobLine]:
    """All jobs of the coordinator."""
    return decoded(await asking.answer(Ask(Subject.JOBS)), list[JobLine])


def decoded(value: bytes, kind: type[_T]) -> _T:
    """A value of an answer. Raises UsageError for one of another version of Rallypoint."""
    try:
        return read_as(value, kind)
    except UnreadableJsonError as error:
        raise UsageError(
            f"the coordinator answers in another form ({shown(str(error))}): it runs another "
            "version of Rallypoint: use the command of that version"
        ) from None


async def open_to_follow(job: JobAt, token: JobToken | None) -> Asking:
    """Connect to the job's coordinator. Where another node may take the job over, wait for that as
    `again`. Raises as `Asking.open`."""
    try:
        return await _hosted(job, token)
    except (RendezvousConnectionError, NotHostedError) as error:
        if job.register is None and not job.is_here:
            raise
        try:
            return await again(job, token)
        except (LostWhileFollowedError, NotHostedError):
            raise error from None


async def again(job: JobAt, token: JobToken | None) -> Asking:
    """After the coordinator went away: another one may take over, or the same be started again,
    which hosts the job once a node has come. Raises as `Asking.open`, at the latest after
    `LOST_S`."""
    print_error("rallypoint", "the coordinator went away: looking for it, or another")
    loop = asyncio.get_running_loop()
    until = loop.time() + LOST_S
    while True:
        try:
            return await _hosted(as_noted(job, by_others=True), token)
        except NotHostedError:
            if loop.time() > until:
                raise
        except RendezvousConnectionError as error:
            if loop.time() > until:
                raise LostWhileFollowedError(
                    f"no coordinator of {job_name(job.name)} answers for {LOST_S:g} s: the node "
                    "that hosted it is lost, or the job has ended"
                ) from error
        await asyncio.sleep(RETRY_S)


def as_noted(job: JobAt, *, by_others: bool = False) -> JobAt:
    """Return the job at the address that its agent on this machine has noted last; `by_others`: or
    where the other agents of it here have it, if that one has ended. Else the same job."""
    notes = _notes_of(job)
    own = [one for one in notes if one.pid == job.pid]
    places = {one.address: one for one in own or (notes if by_others else [])}
    if len(places) != 1:
        return job
    (note,) = places.values()
    return replace(job, endpoint=_endpoint_of(note), secret=note.secret)


def runs_here(job: JobAt) -> bool:
    """Whether an agent of this job, which was found on this machine, still runs. It may have
    attached to another leader meanwhile, and another job may have the same name."""
    return any(one.pid == job.pid or _endpoint_of(one) == job.endpoint for one in _notes_of(job))


async def _hosted(job: JobAt, token: JobToken | None) -> Asking:
    """A connection to a coordinator that hosts the job. Raises as `Asking.open`, and
    NotHostedError."""
    asking = await Asking.open(job, token)
    try:
        await asking.answer(Ask(Subject.STATUS))
    except BaseException:
        asking.close()
        raise
    return asking


def token_of(job: JobAt) -> JobToken | None:
    """The one that a person has, if the job needs one. Raises AccessError."""
    return None if job.secret else job.access.find(create=False)


class JobEndedError(UsageError):
    """The job that is meant has ended, as its record says."""

    def __init__(self, text: str, outcome: str = "", reason: str = "", leader: str = "") -> None:
        """`outcome` and `reason` are those of the verdict. `leader`: the node that led the job
        last; empty: unknown."""
        super().__init__(text)
        self.outcome, self.reason, self.leader = outcome, reason, leader


async def reach(job: JobAt, token: JobToken | None) -> ClientConnection:
    """A connection to the coordinator. Safe to retry. Raises RendezvousConnectionError,
    AccessError, ProtocolError, UsageError for no such record, and JobEndedError."""
    secret = job.secret or (None if token is None else token.for_job(job.name))
    if job.register is not None:
        return await _reach_leader(job, job.register, secret)
    found = await resolve(job.endpoint)
    if isinstance(found, NotYet):
        raise RendezvousConnectionError(
            f"can't reach the coordinator at {job.endpoint}: {found.reason}: {_CHECK}"
            f"{_may_be_a_name(job)}"
        )
    try:
        if secret is None and not job.access.insecure:
            await knock(found.addresses, job.name)
            raise no_token_error(job.endpoint)
        return await dial(found.addresses, job.name, secret)
    except TokenNotWanted:
        raise AccessError(
            f"the job at {job.endpoint} runs without a token: add --insecure"
        ) from None
    except AccessError as error:
        if job.run_id not in (None, ALL_JOBS):
            raise _other_token(job, error) from None
        raise AccessError(
            f"{job.endpoint}: this token opens no job without a name there: give --job ID, or the "
            "token of the job"
        ) from None
    except (RendezvousConnectionError, PeerHungUpError) as error:
        if job.is_here:
            said = f"{job_name(job.name)} runs on this machine, and does not answer: {error}"
            raise UnreachedHereError(f"{said}: {_GONE_HERE}", str(error), job) from error
        raise RendezvousConnectionError(f"{error}: {_GONE}{_may_be_a_name(job)}") from error


def _may_be_a_name(job: JobAt) -> str:
    """Hint for one word, in place of an endpoint, that may name a job or a node."""
    host = job.word
    is_address = host in LOCAL_HOSTS or host.replace(".", "").isdigit()
    if job.run_id is not None or not host or is_address:
        return ""
    return (
        f"; if {host} is the name of the job, --job {host}; if it is a node, name its job in "
        "place of it (--job ID)"
    )


def _other_token(job: JobAt, error: AccessError) -> AccessError:
    """The coordinator has refused the token of this command. A job on this machine is known by its
    name; elsewhere another job may have the port."""
    source = job.access.source
    if not job.is_here:
        return AccessError(f"{error} (the token here is that of {source})") if source else error
    ways = "give its token by --token-file or RALLYPOINT_TOKEN, as where the job was started"
    if source == TOKEN_VARIABLE:
        ways = f"unset {TOKEN_VARIABLE} in this shell, or set it as where the job was started"
    return AccessError(
        f"{job_name(job.name)} runs here with another token than that of "
        f"{source or 'your token file'}: {ways}"
    )


async def _reach_leader(
    job: JobAt, register: RegisterConfig, secret: bytes | None
) -> ClientConnection:
    from rallypoint.register.record import decode

    engine = make(register, Use(job.name))
    if secret is None and not job.access.insecure:
        raise no_token_error(engine.where)
    found = await run_in_thread(engine.open(job.name, secret).get_state, "rallypoint-register")
    if found is None:
        raise UsageError(
            f"{engine.where} has no record of {job_name(job.name)}: check --rdzv-endpoint and "
            "--rdzv-id"
        )
    record = decode(found[0], job.name)
    verdict = record.job.verdict if record.job is not None else None
    if record.is_vacant and verdict is not None:
        text, outcome = f"the job has ended: {verdict.text}", str(verdict.outcome.value)
        if record.job is not None and (node := record.job.leader_node):
            text += f" (node {shown(node)} led it last: there, the same command shows what is kept)"
            raise JobEndedError(text, outcome, verdict.text, node)
        raise JobEndedError(text, outcome, verdict.text)
    if record.is_vacant:
        raise RendezvousConnectionError("the node that led the job has gone")
    if not (addresses := told_addresses(record.leader.addresses)):
        raise RendezvousConnectionError("the leader of the job names no address")
    try:
        return await dial(addresses, job.name, secret)
    except (AccessError, ProtocolError) as error:
        # Another program may listen there by now.
        raise RendezvousConnectionError(str(error)) from error
