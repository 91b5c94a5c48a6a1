"""`rallypoint drain NODE`: has a node leave its job in peace.

It does what SIGTERM to that node's agent does, from wherever the coordinator can be reached.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import NoReturn

from msgspec import Struct

from rallypoint.cli import access, values
from rallypoint.cli.scan import Value
from rallypoint.config import DEFAULT_COORDINATOR_PORT, Endpoint, check_name
from rallypoint.core import messages as m
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.core.wording import shown
from rallypoint.errors import PeerHungUpError, RendezvousConnectionError, UsageError
from rallypoint.observe.printing import print_text
from rallypoint.rendezvous.connection import ClientConnection, dial, knock
from rallypoint.rendezvous.endpoint import NotYet, resolve
from rallypoint.rendezvous.token import no_token_error

_WHY = "it was drained (rallypoint drain)"
_CHECK = "is that where the job's nodes meet? Give --rdzv-endpoint HOST[:PORT]"

_DESCRIPTION = """\
Have a node leave its job in peace, and wait until it has.

The workers of the whole job may save a checkpoint first; then the node stops its workers and
leaves, and the other nodes go on without it. No restart is charged. The node's --drain-deadline
bounds it all. A job whose coordinator lives on that very node ends as preempted.

  rallypoint drain node-3 --rdzv-endpoint node-0 --rdzv-id digits
"""

_EPILOG = """\
Exit codes: 0 the node has left (or was told to, with --no-wait), 2 there is no such node or job, or
wrong usage, 75 no coordinator answers there, or it went away before the node had left.
"""


class _Options(Struct, frozen=True):
    node: str
    endpoint: Endpoint
    run_id: str
    access: access.Access
    wait: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{shown(message)} (see rallypoint drain --help)")


def run(argv: list[str]) -> int:
    """Returns 0 when the node has left. Blocks until then.

    Raises UsageError, AccessError, InfrastructureError, and SystemExit for --help.
    """
    options = _parse(argv)
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
    given = _parser().parse_args(argv)
    where = given.rdzv_endpoint
    check_name("node", given.node)
    return _Options(
        node=given.node,
        endpoint=values.endpoint(Value(where, f"--rdzv-endpoint {where}")),
        run_id=given.rdzv_id,
        access=access.read_options(given),
        wait=not given.no_wait,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rallypoint drain",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("node", metavar="NODE", help="the node's id, as the job's lines show it")
    parser.add_argument(
        "--rdzv-endpoint",
        default=f"localhost:{DEFAULT_COORDINATOR_PORT}",
        metavar="HOST[:PORT]",
        help=f"where the job's nodes meet (localhost:{DEFAULT_COORDINATOR_PORT})",
    )
    parser.add_argument(
        "--rdzv-id",
        default=UNNAMED_RUN_ID,
        metavar="ID",
        help=f"the name of the job ({UNNAMED_RUN_ID})",
    )
    parser.add_argument("--no-wait", action="store_true", help="return when the node was told")
    access.add_options(parser, insecure="the job runs with --insecure, without a token")
    return parser
