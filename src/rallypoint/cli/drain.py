"""`rallypoint drain NODE`: makes a node leave its job.

It does what SIGTERM to that node's agent does, from wherever the coordinator can be reached. Where
any node may lead the job, the coordinator is found by the job's register, also when another node
takes over meanwhile.
"""

from __future__ import annotations

import asyncio
import os.path

from msgspec import Struct

from rallypoint.cli import access, values
from rallypoint.cli.machine import Machine
from rallypoint.cli.parser import Command, Scanned, parse, with_hint
from rallypoint.cli.run_options.register import BY_REGISTER, check_conf, read_register
from rallypoint.config import (
    DEFAULT_COORDINATOR_PORT,
    Endpoint,
    RegisterConfig,
    RendezvousConfig,
    check_name,
)
from rallypoint.coordinator.connection import ClientConnection, dial, knock
from rallypoint.coordinator.endpoint import NotYet, resolve
from rallypoint.coordinator.threads import run_in_thread
from rallypoint.coordinator.token import no_token_error
from rallypoint.core import messages as m
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.core.settings import Setting
from rallypoint.core.text import job_name, shown
from rallypoint.errors import (
    AccessError,
    PeerHungUpError,
    ProtocolError,
    RendezvousConnectionError,
    UsageError,
)
from rallypoint.observe.printing import print_text
from rallypoint.wire.address import Address, split_endpoint

_WHY = "it was drained (rallypoint drain)"
_CHECK = "give the job's --rdzv-endpoint HOST[:PORT]"
TAKEOVER_S = 60.0
"""So long another node may take to lead the job in place of one that is gone."""
REJOIN_S = 15.0
"""So long nodes may take to attach to the next leader. One that has not is taken for gone."""
RETRY_S = 0.5

DRAIN = Command(
    "drain",
    """\
usage: rallypoint drain NODE [options]

Make a node leave its job, and wait until it has left. NODE is its id, as
the job's lines show it.

The workers of the whole job may save a checkpoint first; then the node stops
its workers and leaves, and the other nodes continue without it. No restart is
charged. The node's --drain-deadline limits all of this. A job whose coordinator
lives on that very node ends as preempted, unless any node may lead it.

  rallypoint drain node-3 --rdzv-endpoint node-0 --rdzv-id digits
  rallypoint drain node-3 --rdzv-backend file --rdzv-endpoint /shared/jobs \\
      --rdzv-id digits
""",
    (
        (
            "Options",
            (
                Setting(
                    "--rdzv-endpoint",
                    "HOST[:PORT]|DIR",
                    "as the job's nodes have it",
                    default=f"localhost:{DEFAULT_COORDINATOR_PORT}",
                ),
                Setting("--rdzv-id", "ID", "the name of the job", default=UNNAMED_RUN_ID),
                Setting(
                    "--rdzv-backend",
                    "tcp|file|etcd|kubernetes",
                    "not tcp: the job's nodes were started with it",
                    "choice",
                    default="tcp",
                ),
                Setting(
                    "--rdzv-conf", "K=V,...", "where the records are: as the job's nodes have it"
                ),
                Setting("--no-wait", "", "return once the node has the request", "switch"),
                *access.token_options("the job runs with --insecure, without a token"),
            ),
        ),
    ),
    """\
Exit codes: 0 the node has left (or has the request, with --no-wait), 2 there is
no such node or job, the coordinator there does not lead the job (the line says
who does), or wrong usage, 75 no coordinator answers there, or it went away
before the node had left.
""",
    ("NODE",),
)


class _Options(Struct, frozen=True):
    node: str
    endpoint: Endpoint
    register: RegisterConfig | None
    """The job's; None: the coordinator is at the endpoint."""
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
    asyncio.run(
        _drain(options, secret) if options.register is None else _Search(options, secret).run()
    )
    return 0


def _secret(options: _Options) -> bytes | None:
    token = options.access.find(create=False)
    return None if token is None else token.for_job(options.run_id)


async def _drain(options: _Options, secret: bytes | None) -> None:
    connection = await _reach(options, secret)
    try:
        await _converse(connection, options)
    except _Gone as gone:
        raise RendezvousConnectionError(str(gone)) from None
    except _NotFound as unknown:
        raise UsageError(str(unknown)) from None
    finally:
        connection.close()


async def _reach(options: _Options, secret: bytes | None) -> ClientConnection:
    found = await resolve(options.endpoint)
    if isinstance(found, NotYet):
        raise RendezvousConnectionError(
            f"can't reach the coordinator at {options.endpoint}: {found.reason}: {_CHECK}"
        )
    try:
        if secret is None and not options.access.insecure:
            await knock(found.addresses, options.run_id)
            raise no_token_error(options.endpoint)
        return await dial(found.addresses, options.run_id, secret)
    except (RendezvousConnectionError, PeerHungUpError) as error:
        raise RendezvousConnectionError(f"{error}: {_CHECK}") from error


class _Gone(Exception):
    """The coordinator went away, which does not tell whether the node has left."""


class _Ended(Exception):
    """The job has ended after the node was asked to leave."""


class _NotFound(Exception):
    """The coordinator knows no such node: why."""


async def _converse(connection: ClientConnection, options: _Options) -> None:
    """Ask, and wait until the node has left, or was asked. Raises _Gone, _NotFound."""
    answers: asyncio.Queue[m.ToAgent | str] = asyncio.Queue()
    connection.lost.add_done_callback(lambda lost: answers.put_nowait(lost.result()))
    connection.listen(answers.put_nowait)
    connection.send(m.DrainNode(options.node, _WHY))
    while True:
        answer = await answers.get()
        if isinstance(answer, str):
            raise _Gone(
                f"the coordinator went away before node {options.node!r} had left: {answer}"
            )
        if not isinstance(answer, m.DrainAnswer):
            continue
        if not answer.found:
            raise _NotFound(f"{shown(options.node)}: {answer.text}")
        print_text(answer.text)
        if answer.done or not options.wait:
            return


class _Search:
    """Finds the coordinator by the job's register, again and again if need be. `run` once."""

    def __init__(self, options: _Options, secret: bytes | None) -> None:
        from rallypoint.rendezvous.places import place_of

        assert options.register is not None
        place = place_of(RendezvousConfig(options.run_id, register=options.register))
        if secret is None and not options.access.insecure:
            raise no_token_error(place.name)
        self._options, self._secret, self._where = options, secret, place.name
        self._register = place.open(secret)
        self._was_asked = False
        """By a leader that is gone."""
        self._gone_at = 0.0

    async def run(self) -> None:
        loop, options = asyncio.get_running_loop(), self._options
        found_at = loop.time()
        while True:
            try:
                connection = await self._dial_leader()
                found_at = loop.time()
                try:
                    await _converse(connection, options)
                    return
                finally:
                    connection.close()
            except _Ended as end:
                print_text(str(end))
                return
            except _NotFound as unknown:
                if not self._was_asked:
                    raise UsageError(str(unknown)) from None
                if loop.time() - self._gone_at > REJOIN_S:
                    print_text(f"node {options.node} has left")
                    return
            except _Gone:
                self._was_asked, self._gone_at = True, loop.time()
            except (RendezvousConnectionError, PeerHungUpError) as error:
                if loop.time() - found_at > TAKEOVER_S:
                    job = job_name(options.run_id)
                    raise RendezvousConnectionError(
                        f"no node leads {job}: waited {TAKEOVER_S:g} s ({error})"
                    ) from error
            await asyncio.sleep(RETRY_S)

    async def _dial_leader(self) -> ClientConnection:
        from rallypoint.coordinator.register_record import decode

        options = self._options
        found = await run_in_thread(self._register.get_state, "rallypoint-register")
        if found is None:
            raise UsageError(
                f"{self._where} has no record of {job_name(options.run_id)}: check "
                "--rdzv-endpoint and --rdzv-id"
            )
        record = decode(found[0])
        verdict = record.job.verdict if record.job is not None else None
        if record.is_vacant and verdict is not None:
            ended = f"the job has ended: {verdict.text}"
            if not self._was_asked:
                raise UsageError(f"{shown(options.node)}: {ended}")
            raise _Ended(f"node {options.node} has left, and {ended}")
        if record.is_vacant:
            raise RendezvousConnectionError("the node that led the job has gone")
        addresses = [Address(*split_endpoint(text, 0)) for text in record.leader.addresses]
        try:
            return await dial(addresses, options.run_id, self._secret)
        except (AccessError, ProtocolError) as error:
            # Another program may listen there by now.
            raise RendezvousConnectionError(str(error)) from error


def _parse(argv: list[str]) -> _Options:
    scanned = parse(DRAIN, argv, {})
    job = scanned.get("--rdzv-id")
    (node,) = scanned.words
    check_name("node", node)
    endpoint, register = Endpoint("localhost", DEFAULT_COORDINATOR_PORT), None
    if (backend := scanned.read(DRAIN, "--rdzv-backend")) in BY_REGISTER:
        register = _register(scanned, backend)
    elif (where := scanned.get("--rdzv-endpoint")) is not None:
        endpoint = values.endpoint(where, least_port=1)
    return _Options(
        node=node,
        endpoint=endpoint,
        register=register,
        run_id=job.text if job else UNNAMED_RUN_ID,
        access=access.read_access(scanned),
        wait=not scanned.on("--no-wait"),
    )


def _register(scanned: Scanned, backend: str) -> RegisterConfig:
    register, rest = read_register(scanned, backend, Machine())
    check_conf(rest)
    if (directory := register.directory) and not os.path.isdir(directory):
        raise UsageError(f"--rdzv-endpoint {directory}: there is no such directory on this machine")
    return register
