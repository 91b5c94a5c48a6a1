"""`rallypoint drain NODE`: makes a node leave its job.

It does what SIGTERM to that node's agent does, from wherever the coordinator can be reached. Where
any node may lead the job, the coordinator is found by the job's register, also when another node
takes over meanwhile.
"""

from __future__ import annotations

import asyncio
import os

from msgspec import Struct
from msgspec.structs import replace

from rallypoint import __version__
from rallypoint.cli import access
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.values import word
from rallypoint.cli.watch.kept import answer_or_kept
from rallypoint.cli.watch.reach import (
    HOW_TO_FIND,
    JobAt,
    JobEndedError,
    named,
    only_one,
    reach,
    read_job,
    token_of,
)
from rallypoint.cli.watch.terminal import can_ask, says_yes
from rallypoint.cli.watch.workers import is_endpoint
from rallypoint.config import check_name
from rallypoint.coordinator.connection import ClientConnection
from rallypoint.coordinator.token import JobToken
from rallypoint.core import messages as m
from rallypoint.core.settings import Setting
from rallypoint.core.text import job_name, shown
from rallypoint.core.watch.questions import Said
from rallypoint.errors import PeerHungUpError, PortableError, RendezvousConnectionError, UsageError
from rallypoint.observe.printing import JsonLine, json_text, print_text
from rallypoint.wire.handshake import printable

_NOT_DONE = 1
_WHY = "it was drained (rallypoint drain)"
TAKEOVER_S = 60.0
"""So long another node may take to lead the job in place of one that is gone."""
REJOIN_S = 15.0
"""So long nodes may take to attach to the next leader. One that has not is taken for gone."""
RETRY_S = 0.5
_WHERE = ("--rdzv-endpoint", "--rdzv-backend", "--slurm")
"""Options that say where the job is: then the first word is a node, whatever it looks like."""

DRAIN = Command(
    "drain",
    """\
usage: rallypoint drain NODE [ENDPOINT] [options]

Make a node leave its job, and wait until it has left; the last line says whether
a checkpoint was saved before. NODE is its id, as the job's lines show it, or the
name of its host, where one node runs there.

The workers of the whole job may save a checkpoint first; then the node stops
its workers and leaves, and the other nodes continue without it. No restart is
charged. The node's --drain-deadline limits all of this. A job whose coordinator
lives on that very node ends as preempted, unless any node may lead it: in a
terminal a question comes first, elsewhere the first line says so. ENDPOINT is
what the job's nodes have as --rdzv-endpoint; without one, it is your job on this
machine.

  rallypoint drain node-3 node-0:29400 --job digits
  rallypoint drain node-3 /shared/jobs --job digits
""",
    (
        (
            "Options",
            (
                Setting("--yes", "", "do not ask, also where the job ends with the node", "switch"),
                Setting("--no-wait", "", "return once the node has the request", "switch"),
                Setting("--json", "", "print JSON, one line for each step", "switch"),
            ),
        ),
        HOW_TO_FIND,
    ),
    """\
Exit codes: 0 the node has left (or has the request, with --no-wait), 1 you have
not answered y, and nothing was done, 2 there is no such node or job, the
coordinator there does not lead the job (the line says who does), or wrong
usage, 75 no coordinator answers there, or it went away before the node had left.
""",
    ("NODE",),
    ("ENDPOINT",),
)


class _Options(Struct, frozen=True):
    node: str
    job: JobAt
    wait: bool
    as_json: bool
    asks: bool
    """A person in a terminal decides whether the job is to end."""

    def tell(self, text: str, *, is_done: bool = True) -> None:
        """Print what has come of it."""
        said = Said(text, is_done)
        print_text(JsonLine(json_text(said)) if self.as_json else text)


def run(argv: list[str]) -> int:
    """Returns 0 when the node has left. Blocks until then.

    Raises UsageError, AccessError, InfrastructureError, and HelpRequested.
    """
    options = with_hint(DRAIN, lambda: _parse(argv))
    token = token_of(options.job)
    access.keep_secrets()
    return answer_or_kept(DRAIN, argv, lambda: _ask_and_drain(options, token))


def _ask_and_drain(options: _Options, token: JobToken | None) -> int:
    try:
        asyncio.run(_drain(options, token))
    except _EndsJobError as error:
        if not says_yes(f"node {shown(options.node)}: {error}; drain it?"):
            return _NOT_DONE
        asyncio.run(_drain(replace(options, asks=False), token))
    return 0


async def _drain(options: _Options, token: JobToken | None) -> None:
    options = replace(options, job=await named(options.job, token))
    if options.job.register is not None:
        await _Search(options, token).run()
        return
    connection = await reach(options.job, token)
    try:
        await _converse(connection, options)
    except _Gone as gone:
        raise RendezvousConnectionError(str(gone)) from None
    except _NotFound as unknown:
        raise UsageError(str(unknown)) from None
    finally:
        connection.close()


class _EndsJobError(PortableError):
    """The job would end with the node: ask a person first."""


class _Gone(Exception):
    """The coordinator went away, which does not tell whether the node has left."""


class _NotFound(PortableError):
    """The coordinator knows no such node: why."""

    def __init__(self, why: str, gone: str) -> None:
        """`gone`: as in `DrainAnswer`."""
        super().__init__(why)
        self.gone = gone


async def _converse(connection: ClientConnection, options: _Options) -> None:
    """Ask, and wait until the node has left, or was asked. Raises _Gone, _NotFound,
    _EndsJobError."""
    answers: asyncio.Queue[m.ToAgent | str] = asyncio.Queue()
    connection.lost.add_done_callback(lambda lost: answers.put_nowait(lost.result()))
    connection.listen(answers.put_nowait)
    connection.send(m.DrainNode(options.node, _WHY, __version__, options.asks))
    while True:
        answer = await answers.get()
        if isinstance(answer, str):
            raise _Gone(
                f"the coordinator went away before node {options.node!r} had left: {answer}"
            )
        if not isinstance(answer, m.DrainAnswer):
            continue
        if answer.ends_job:
            raise _EndsJobError(printable(answer.text.encode()))
        if not answer.found:
            raise _NotFound(f"{shown(options.node)}: {answer.text}", answer.gone)
        options.tell(answer.text, is_done=answer.done)
        if answer.done or not options.wait:
            return


class _Search:
    """Finds the coordinator by the job's register, again and again if need be. `run` once."""

    def __init__(self, options: _Options, token: JobToken | None) -> None:
        self._options, self._token = options, token
        self._was_asked = False
        """By a leader that is gone."""
        self._gone_at = 0.0

    async def run(self) -> None:
        loop, options = asyncio.get_running_loop(), self._options
        found_at = loop.time()
        while True:
            try:
                connection = await reach(options.job, self._token)
                found_at = loop.time()
                try:
                    await _converse(connection, options)
                    return
                finally:
                    connection.close()
            except JobEndedError as end:
                if not self._was_asked:
                    raise UsageError(f"{shown(options.node)}: {end}") from None
                ended = f"the job has ended: {end.reason}"
                options.tell(f"node {options.node} has left, and {ended}")
                return
            except _NotFound as unknown:
                if not self._was_asked:
                    raise UsageError(str(unknown)) from None
                if unknown.gone or loop.time() - self._gone_at > REJOIN_S:
                    options.tell(unknown.gone or f"node {options.node} has left")
                    return
            except _Gone:
                self._was_asked, self._gone_at = True, loop.time()
            except (RendezvousConnectionError, PeerHungUpError) as error:
                if loop.time() - found_at > TAKEOVER_S:
                    job = job_name(options.job.name)
                    raise RendezvousConnectionError(
                        f"no node leads {job}: waited {TAKEOVER_S:g} s ({error})"
                    ) from error
            await asyncio.sleep(RETRY_S)


def _is_a_place(name: str) -> bool:
    """Whether this is HOST:PORT or a directory, which hardly names a node; `rack-1/n3` may."""
    may_be_a_node = "/" in name and name[0] not in "/." and not os.path.isdir(name)
    return is_endpoint(name) and not may_be_a_node


def _parse(argv: list[str]) -> _Options:
    scanned = parse(DRAIN, argv, {})
    node, *where = scanned.words
    check_name("node", node)
    says_where = bool(where) and is_endpoint(where[0])
    says_where = says_where or any(scanned.get(flag) is not None for flag in _WHERE)
    if _is_a_place(node) and not says_where:
        other = where[0] if where else "NODE"
        raise UsageError(
            f"{shown(node)}: an endpoint, and no node: write drain {shown(other)} {shown(node)}"
        )
    endpoint = word(where[0]) if where else None
    job = only_one(read_job(DRAIN, scanned, endpoint))
    as_json = scanned.on("--json")
    asks = can_ask() and not (as_json or scanned.on("--yes"))
    return _Options(node, job, not scanned.on("--no-wait"), as_json, asks)
