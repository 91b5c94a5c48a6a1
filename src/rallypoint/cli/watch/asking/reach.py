"""The connection to the coordinator of a job, or to the next one after a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import json
from msgspec.structs import replace

from rallypoint import __version__
from rallypoint.cli.watch.asking.find import CHECK, LOCAL_HOSTS, JobAt, agents_run, as_noted
from rallypoint.config import TOKEN_VARIABLE, RegisterConfig
from rallypoint.coordinator.client.endpoint import NotYet, resolve
from rallypoint.coordinator.client.token import JobToken, no_token_error
from rallypoint.coordinator.connection import ClientConnection, dial, knock
from rallypoint.core import messages as m
from rallypoint.core.json_reader import UnreadableJsonError, read_as
from rallypoint.core.text import job_name, names_of_jobs, shown
from rallypoint.core.watch.job_view import JobLine
from rallypoint.core.watch.questions import ALL_JOBS, DRAINED, Ask, Subject
from rallypoint.errors import (
    AccessError,
    PeerHungUpError,
    ProtocolError,
    RendezvousConnectionError,
    UsageError,
)
from rallypoint.observe.printing import print_error
from rallypoint.register.engines import Use, make
from rallypoint.threads import run_in_thread
from rallypoint.wire.address import told_addresses
from rallypoint.wire.handshake import TokenNotWanted

_T = TypeVar("_T")
QUESTIONS_SINCE, REPEATS_SINCE = 3, 4
"""The first versions of the session protocol that have people's questions, and requests that can be
repeated. Since the latter a drain is a question, too."""
TAKEOVER_S = 60.0
"""How long to look for a coordinator that does not answer, in seconds: another node may take
over."""
RETRY_S = 0.5
_GONE = "the job has ended, or its host is lost, or it has another --rdzv-endpoint"
_GONE_HERE = "it has just ended, or its host is lost, or it is in another network (a container's)"


class UnreachedHereError(RendezvousConnectionError):
    """An agent of the job runs on this machine, and its coordinator can't be reached."""

    def __init__(self, text: str, why: str = "", job: JobAt | None = None) -> None:
        """Make the error with this text; `why` is the text without the name of the job."""
        super().__init__(text)
        self.why, self.job = why, job


class CoordinatorLostError(RendezvousConnectionError):
    """The coordinator went away before its answer was complete, or is silent."""


class NoNextCoordinatorError(RendezvousConnectionError):
    """The coordinator of a job went away, and no other has come."""


class NotHostedError(UsageError):
    """The coordinator that was asked does not host the job, or not yet."""

    def __init__(self, text: str, *, recovers: bool = False) -> None:
        """Make the error; `recovers` is as in `Answer`."""
        super().__init__(text)
        self.recovers = recovers


class Asking:
    """A connection to the coordinator of a job, for one question after another."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._answers: asyncio.Queue[m.ToAgent | str] = asyncio.Queue()
        self._pieces: list[bytes] = []
        """The first pieces of an incomplete value."""
        self.is_heard = False
        """Whether a value of an answer has been received on this connection."""
        connection.lost.add_done_callback(lambda lost: self._answers.put_nowait(lost.result()))
        connection.listen(self._answers.put_nowait)

    @classmethod
    async def open(cls, job: JobAt, token: JobToken | None) -> Asking:
        """Open a connection to the coordinator.

        Raises RendezvousConnectionError, AccessError, ProtocolError, and UsageError.
        """
        return cls(await reach(job, token))

    @property
    def version(self) -> int:
        """The version of the session protocol that both sides use."""
        return self._connection.version

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._connection.close()

    def send(self, question: Ask) -> None:
        """Send a question; its answers are read by `next_value`.

        Raises UsageError if the coordinator's version does not know such questions.
        """
        question = replace(question, release=__version__)
        if question.subject is Subject.DRAIN and self.version < REPEATS_SINCE:
            self._connection.send(m.DrainNode(question.node, DRAINED, __version__, question.asks))
        elif self.version < QUESTIONS_SINCE:
            raise UsageError(
                "the coordinator runs a version of Rallypoint that answers no questions about "
                "its job: use the commands of that version, or upgrade the job's nodes"
            )
        else:
            self._connection.send(question)

    async def next_value(self) -> tuple[bytes, bool]:
        """Wait for the next value of an answer; return it as JSON, and whether it is the last one.

        May be cancelled, and called again. Raises UsageError for a refusal (NotHostedError if
        another coordinator may know the job), and CoordinatorLostError.
        """
        while True:
            said = await self._answers.get()
            if isinstance(said, str):
                raise CoordinatorLostError(f"the coordinator went away: {said}")
            if isinstance(said, m.Refused):
                raise UsageError(said.text)
            if isinstance(said, m.DrainAnswer):
                self.is_heard = True
                return json.encode(said), said.done
            if not isinstance(said, m.Answer):
                continue
            if said.refusal and said.is_final:
                raise UsageError(said.refusal)
            if said.refusal:
                raise NotHostedError(said.refusal, recovers=said.recovers)
            self._pieces.append(said.piece)
            if said.is_whole:
                value, self.is_heard = b"".join(self._pieces), True
                self._pieces.clear()
                return value, said.is_last

    async def answer(self, question: Ask) -> bytes:
        """Ask, and return the last value of the answer. Raises as `send` and `next_value`."""
        self.send(question)
        return await self.last_value()

    async def last_value(self) -> bytes:
        """Read an answer to its end, and return its last value. Raises as `next_value`."""
        while True:
            value, is_last = await self.next_value()
            if is_last:
                return value


async def converse(
    job: JobAt, token: JobToken | None, talk: Callable[[Asking], Awaitable[_T]]
) -> _T:
    """Connect to the job's coordinator, and call `talk` with the connection.

    Where it goes away, or another node may be taking the job over, look for the one that hosts the
    job next, and call `talk` again. That is waited for `TAKEOVER_S` at most; a line on stderr says
    so. Raises as `Asking.open` and `talk`, and NoNextCoordinatorError.
    """
    wait = _Wait(job)
    while True:
        asking: Asking | None = None
        try:
            asking = await Asking.open(wait.job, token)
            return await talk(asking)
        except (RendezvousConnectionError, NotHostedError) as error:
            if asking is not None and not isinstance(error, CoordinatorLostError | NotHostedError):
                raise
            is_lost = asking is not None and asking.is_heard
            await wait.after(error, is_lost=is_lost and isinstance(error, CoordinatorLostError))
        finally:
            if asking is not None:
                asking.close()


class _Wait:
    """The wait for the coordinator of a job, or for the next one."""

    def __init__(self, job: JobAt) -> None:
        self.job = job
        """The job, with the place where to look next."""
        self._was_there = False
        self._until: float | None = None
        """The end of the wait; None: it has not begun."""

    async def after(self, error: Exception, *, is_lost: bool) -> None:
        """Wait until the next attempt after this error, and look where the job is now.

        The error is raised if no node can take over, or the time is up: then as
        NoNextCoordinatorError if a coordinator had answered. `is_lost`: the coordinator
        went away after an answer.
        """
        job, now = self.job, asyncio.get_running_loop().time()
        if is_lost:
            self._was_there, self._until = True, None
        may_come = self._was_there or job.register is not None
        if job.is_here:
            may_come = agents_run(job)
        if not (may_come or (isinstance(error, NotHostedError) and error.recovers)):
            raise error
        if self._until is None:
            self._until = now + TAKEOVER_S
            print_error("rallypoint", f"{_waits_for(job, error)}, for {TAKEOVER_S:g} s at most")
        elif now >= self._until:
            if isinstance(error, NotHostedError) or not self._was_there:
                raise error
            raise NoNextCoordinatorError(
                f"no coordinator of {job_name(job.name)} answers for {TAKEOVER_S:g} s: the node "
                "that hosted it is lost, or the job has ended"
            ) from error
        await asyncio.sleep(RETRY_S)
        self.job = as_noted(job, by_others=True)


def _waits_for(job: JobAt, error: Exception) -> str:
    what = error.why if isinstance(error, UnreachedHereError) else str(error)
    if isinstance(error, NotHostedError):
        return f"{what.partition(': try again')[0]}: waiting for that"
    if isinstance(error, CoordinatorLostError):
        what = what.partition(":")[0]
    return f"{job_name(job.name)}: {what}: looking for a coordinator"


async def named(job: JobAt, token: JobToken | None) -> JobAt:
    """Return the job with its name, which is looked up if none was given.

    Then it is the only job at that place. Raises UsageError if there is none or there are several,
    and as `Asking.open`.
    """
    if job.run_id is not None:
        return job
    if job.register is not None:
        where, run_ids = job.given, await recorded_jobs(job.register)
    else:
        where = str(job.endpoint)
        run_ids = [line.job for line in await all_jobs(job, token)]
    if len(run_ids) != 1:
        known = names_of_jobs(run_ids)
        said = f"several jobs are there ({known}): choose one by --job ID" if run_ids else "no jobs"
        raise UsageError(f"{where}: {said}")
    return replace(job, run_id=run_ids[0])


async def recorded_jobs(register: RegisterConfig) -> list[str]:
    """Return the names of all jobs with a record in this place (a directory, etcd).

    A job that has just begun may be missing.
    """
    engine = make(register, Use())
    return sorted(await run_in_thread(engine.changed, "rallypoint-registers"))


async def all_jobs(job: JobAt, token: JobToken | None) -> list[JobLine]:
    """Return the line of this job; if `job` has no name, those of all jobs of its coordinator.

    A coordinator of the job without a name hosts no other: then there is that one line. Raises as
    `Asking.open` and `Asking.answer`.
    """
    try:
        return await _jobs_at(job, token)
    except UsageError:
        if job.run_id is not None:
            raise
    # A coordinator of many jobs hosts none without a name.
    return await _jobs_at(replace(job, run_id=ALL_JOBS), token)


async def _jobs_at(job: JobAt, token: JobToken | None) -> list[JobLine]:
    asking = await Asking.open(job, token)
    try:
        return await jobs_of(asking)
    finally:
        asking.close()


async def jobs_of(asking: Asking) -> list[JobLine]:
    """Ask for the jobs of the connection's coordinator, and return a line for each.

    There is one line if the connection names a job. Raises as `Asking.answer`.
    """
    return decoded(await asking.answer(Ask(Subject.JOBS)), list[JobLine])


def decoded(value: bytes, kind: type[_T]) -> _T:
    """Parse a value of an answer. Raises UsageError for one of another version of Rallypoint."""
    try:
        return read_as(value, kind)
    except UnreadableJsonError as error:
        raise UsageError(
            f"the coordinator answers in another form ({shown(str(error))}): it runs another "
            "version of Rallypoint: use the command of that version"
        ) from None


class JobEndedError(UsageError):
    """The named job has ended, according to its record."""

    def __init__(self, text: str, outcome: str = "", reason: str = "", leader: str = "") -> None:
        """Make the error, with the verdict's `outcome` and `reason`.

        `leader` is the node that led the job last; empty: unknown.
        """
        super().__init__(text)
        self.outcome, self.reason, self.leader = outcome, reason, leader


async def reach(job: JobAt, token: JobToken | None) -> ClientConnection:
    """Return a new connection to the job's coordinator. Safe to retry.

    Raises RendezvousConnectionError, AccessError, ProtocolError, UsageError if the job has no
    record, and JobEndedError.
    """
    secret = job.secret or (None if token is None else token.for_job(job.name))
    if job.register is not None:
        return await _reach_leader(job, job.register, secret)
    found = await resolve(job.endpoint)
    if isinstance(found, NotYet):
        raise RendezvousConnectionError(
            f"can't reach the coordinator at {job.endpoint}: {found.reason}: {CHECK}"
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
    """Return the hint that a word in place of an endpoint may name a job or a node.

    Empty: it can't be one, or the job was named.
    """
    host = job.word
    is_address = host in LOCAL_HOSTS or host.replace(".", "").isdigit()
    if job.run_id is not None or not host or is_address:
        return ""
    return (
        f"; if {host} is the name of the job, give --job {host}; if it is a node, give the "
        "name of its job (--job ID)"
    )


def _other_token(job: JobAt, error: AccessError) -> AccessError:
    """Return the error for a token that the coordinator has refused.

    A job on this machine is known by its name; elsewhere another job may have the port.
    """
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
            text += f" (node {shown(node)} led it last, and keeps the rest: use this command there)"
            raise JobEndedError(text, outcome, verdict.text, node)
        raise JobEndedError(text, outcome, verdict.text)
    if record.is_vacant:
        raise RendezvousConnectionError("the node that led the job has gone")
    if not (addresses := told_addresses(record.leader.addresses)):
        raise RendezvousConnectionError("the leader of the job names no address")
    try:
        return await dial(addresses, job.name, secret)
    except (AccessError, ProtocolError) as error:  # PeerHungUpError is one.
        # Another program may listen there by now.
        raise RendezvousConnectionError(str(error)) from error
