"""`rallypoint drain NODE`: makes a node leave its job.

It does what SIGTERM to that node's agent does, from wherever the coordinator can be reached.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from rallypoint.cli import access, values
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.config import DEFAULT_COORDINATOR_PORT, Endpoint, check_name
from rallypoint.coordinator.connection import ClientConnection, dial, knock
from rallypoint.coordinator.endpoint import NotYet, resolve
from rallypoint.coordinator.token import no_token_error
from rallypoint.core import messages as m
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.core.settings import Setting
from rallypoint.core.text import shown
from rallypoint.errors import PeerHungUpError, RendezvousConnectionError, UsageError
from rallypoint.observe.printing import print_text

_WHY = "it was drained (rallypoint drain)"
_CHECK = "give the job's --rdzv-endpoint HOST[:PORT]"

DRAIN = Command(
    "drain",
    """\
usage: rallypoint drain NODE [options]

Make a node leave its job, and wait until it has left. NODE is its id, as
the job's lines show it.

The workers of the whole job may save a checkpoint first; then the node stops
its workers and leaves, and the other nodes continue without it. No restart is
charged. The node's --drain-deadline limits all of this. A job whose coordinator
lives on that very node ends as preempted.

  rallypoint drain node-3 --rdzv-endpoint node-0 --rdzv-id digits
""",
    (
        (
            "Options",
            (
                Setting(
                    "--rdzv-endpoint",
                    "HOST[:PORT]",
                    "where the job's nodes connect",
                    default=f"localhost:{DEFAULT_COORDINATOR_PORT}",
                ),
                Setting("--rdzv-id", "ID", "the name of the job", default=UNNAMED_RUN_ID),
                Setting("--no-wait", "", "return once the node has the request", "switch"),
                *access.token_options("the job runs with --insecure, without a token"),
            ),
        ),
    ),
    """\
Exit codes: 0 the node has left (or has the request, with --no-wait), 2 there is
no such node or job, or wrong usage, 75 no coordinator answers there, or it went
away before the node had left.
""",
    ("NODE",),
)


class _Options(Struct, frozen=True):
    node: str
    endpoint: Endpoint
    run_id: str
    access: access.Access
    wait: bool


def run(argv: list[str]) -> int:
    """Returns 0 when the node has left. Blocks until then.

    Raises UsageError, AccessError, InfrastructureError, and HelpRequested.
    """
    options = with_hint(DRAIN, lambda: _parse(argv))
    secret = _secret(options)
    access.keep_secrets()
    asyncio.run(_drain(options, secret))
    return 0


def _secret(options: _Options) -> bytes | None:
    token = options.access.find(create=False)
    return None if token is None else token.for_job(options.run_id)


async def _drain(options: _Options, secret: bytes | None) -> None:
    found = await resolve(options.endpoint)
    if isinstance(found, NotYet):
        raise RendezvousConnectionError(
            f"can't reach the coordinator at {options.endpoint}: {found.reason}: {_CHECK}"
        )
    try:
        if secret is None and not options.access.insecure:
            await knock(found.addresses, options.run_id)
            raise no_token_error(options.endpoint)
        connection = await dial(found.addresses, options.run_id, secret)
    except (RendezvousConnectionError, PeerHungUpError) as error:
        raise RendezvousConnectionError(f"{error}: {_CHECK}") from error
    try:
        await _converse(connection, options)
    finally:
        connection.close()


async def _converse(connection: ClientConnection, options: _Options) -> None:
    answers: asyncio.Queue[m.ToAgent | str] = asyncio.Queue()
    connection.lost.add_done_callback(lambda lost: answers.put_nowait(lost.result()))
    connection.listen(answers.put_nowait)
    connection.send(m.DrainNode(options.node, _WHY))
    while True:
        answer = await answers.get()
        if isinstance(answer, str):
            raise RendezvousConnectionError(
                f"the coordinator went away before node {options.node!r} had left: {answer}"
            )
        if not isinstance(answer, m.DrainAnswer):
            continue
        if not answer.found:
            raise UsageError(f"{shown(options.node)}: {answer.text}")
        print_text(answer.text)
        if answer.done or not options.wait:
            return


def _parse(argv: list[str]) -> _Options:
    scanned = parse(DRAIN, argv, {})
    where, job = scanned.get("--rdzv-endpoint"), scanned.get("--rdzv-id")
    (node,) = scanned.words
    check_name("node", node)
    return _Options(
        node=node,
        endpoint=values.endpoint(where, least_port=1)
        if where
        else Endpoint("localhost", DEFAULT_COORDINATOR_PORT),
        run_id=job.text if job else UNNAMED_RUN_ID,
        access=access.read_access(scanned),
        wait=not scanned.on("--no-wait"),
    )
