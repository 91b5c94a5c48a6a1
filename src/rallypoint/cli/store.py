"""`rallypoint store`: a store of its own for torch's `TCPStore` clients, outside any job."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli import values
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.service import (
    EndingSignal,
    EventLines,
    bind,
    listening_at,
    own_addresses,
    port_option,
)
from rallypoint.config import Endpoint
from rallypoint.core import event_kinds as kinds
from rallypoint.core.settings import Setting
from rallypoint.core.text import shown
from rallypoint.errors import UsageError
from rallypoint.observe.faults import Faults
from rallypoint.store.access import EVERYBODY, AccessGate, AccessPolicy, Who
from rallypoint.store.server import StoreLimits, StoreServer
from rallypoint.store.server_process import (
    OWN_DESCRIPTORS,
    connections_within,
    new_event_loop,
    of_open_files,
    raise_descriptor_limit,
)
from rallypoint.wire.address import Address

_DEFAULT_PORT = 29500

STORE = Command(
    "store",
    """\
usage: rallypoint store --host ADDR [options]

Host a key-value store with the protocol of torch's TCPStore, outside any job.

  rallypoint store --host 127.0.0.1                    for your own processes here
  rallypoint store --host 10.0.0.5 --allow 10.0.0.0/8  for the machines of a network

A process that can write to the store of a job can run code in that job: allow
only the machines that need it.
""",
    (
        (
            "Options",
            (
                Setting(
                    "--host",
                    "ADDR",
                    "the only address to listen on",
                    "host",
                    required=True,
                ),
                port_option(_DEFAULT_PORT),
                Setting(
                    "--allow",
                    "CIDR,...",
                    "machines that may use the store, besides your own processes here; repeatable",
                    "networks",
                    repeatable=True,
                ),
                Setting("--insecure", "", "let every host that reaches the port use it", "switch"),
                Setting(
                    "--max-connections",
                    "N",
                    "the most connections at a time",
                    "integer",
                    default="as many as the limit of open files allows",
                    least=1,
                ),
                Setting(
                    "--max-memory",
                    "SIZE",
                    "total size, like 500M or 2G, of keys, values and 128 bytes for each; a"
                    " connection that would store more is closed",
                    "bytes",
                    default="no limit",
                ),
                Setting(
                    "--stats",
                    "[SECONDS]",
                    "print every SECONDS (10): connections, keys, bytes, waiters, operations",
                    "seconds",
                    above_zero=True,
                    implied="10",
                ),
            ),
        ),
    ),
    """\
Exit codes:
  2    wrong usage: the port is in use, the address is not this machine's, or no
       machine was allowed
  75   the system refused to listen
  130  ended by SIGINT; 143: by SIGTERM
""",
)


class _Options(Struct, frozen=True):
    host: str
    port: int
    networks: tuple[str, ...]
    insecure: bool
    max_connections: int | None
    max_bytes: int | None
    stats_s: float | None


def run(argv: list[str]) -> int:
    """Serve a key-value store until a signal ends it, and return 128 + the signal's number.

    Blocks; for the main thread. Raises UsageError when it can't start, InfrastructureError when the
    system refuses, and HelpRequested.
    """
    options = with_hint(STORE, lambda: _parse(argv))
    limits = StoreLimits(
        max_connections=_max_connections(options.max_connections, raise_descriptor_limit()),
        max_bytes=options.max_bytes,
    )
    if options.max_connections is None:
        limits = replace(limits, more_connections_by=of_open_files(whose="of this process"))
    lines = EventLines()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_serve(options, limits, lines))
    finally:
        lines.close()


async def _serve(options: _Options, limits: StoreLimits, lines: EventLines) -> int:
    addresses = await own_addresses(options.host)
    policy = _policy(options, addresses)
    listeners = bind(options.host, addresses, options.port)

    def report(line: str) -> None:
        lines.say(kinds.STORE_REFUSED(line))

    asyncio.get_running_loop().set_exception_handler(Faults(report).of_loop)
    ending = EndingSignal()
    server = StoreServer(AccessGate(policy), report, limits=limits)
    try:
        for listener in listeners:
            await server.listen(listener)
        lines.say(kinds.STORE_LISTENING(_listening(listening_at(listeners), policy)))
        if options.stats_s is not None:
            _Stats(server, options.stats_s, lines)
        code = await ending.wait(lines, kinds.STORE_SIGNAL)
    finally:
        server.close()
    await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop
    return code


def _policy(options: _Options, addresses: tuple[Address, ...]) -> AccessPolicy:
    if options.insecure:
        return EVERYBODY
    if options.networks:
        return AccessPolicy(Who.ALLOWED, options.networks)
    if all(address.is_loopback for address in addresses):
        return AccessPolicy(Who.SAME_USER)
    raise UsageError(
        f"--host {shown(options.host)}: other machines can reach it: choose who may use the store "
        "with --allow 10.0.0.0/8 for a network, or --insecure for everybody"
    )


def _listening(places: list[Endpoint], policy: AccessPolicy) -> str:
    who = policy.who.value
    if policy.who is Who.ALLOWED:
        who = f"processes of this user here, and {', '.join(policy.networks)}"
    first = places[0]
    # A client can't connect to "all addresses".
    host = socket.gethostname() if ip_address(first.host).is_unspecified else first.host
    return (
        f"the store listens on {', '.join(map(str, places))} for {who}; "
        f"torch: TCPStore({host!r}, {first.port}, is_master=False)"
    )


def _max_connections(wanted: int | None, descriptors: int) -> int:
    most = connections_within(descriptors)
    if wanted is not None and wanted > most:
        raise UsageError(
            f"--max-connections {wanted}: needs {wanted + OWN_DESCRIPTORS} open files, and this "
            f"process may have {descriptors}: raise the hard limit (ulimit -Hn), or give {most}"
        )
    return most if wanted is None else wanted


class _Stats:
    """The printer of a line with the store's statistics every `every_s` seconds."""

    def __init__(self, server: StoreServer, every_s: float, lines: EventLines) -> None:
        self._server, self._every_s, self._lines = server, every_s, lines
        self._operations = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(every_s, self._say)

    def _say(self) -> None:
        now = self._server.stats
        per_second = (now.operations - self._operations) / self._every_s
        self._operations = now.operations
        text = kinds.STORE_STATS(
            connections=now.connections,
            keys=now.keys,
            bytes=now.bytes,
            waiting=now.waiting,
            per_second=per_second,
        )
        self._lines.say(text)
        self._loop.call_later(self._every_s, self._say)


def _parse(argv: list[str]) -> _Options:
    scanned = parse(STORE, argv, {})
    allowed, insecure = scanned.all("--allow"), scanned.on("--insecure")
    if allowed and insecure:
        raise allowed[0].wrong("has no effect with --insecure; give one of the two")
    return _Options(
        host=scanned.read(STORE, "--host"),
        port=scanned.read(STORE, "--port", _DEFAULT_PORT),
        networks=tuple(network for value in allowed for network in values.networks(value)),
        insecure=insecure,
        max_connections=scanned.read(STORE, "--max-connections"),
        max_bytes=scanned.read(STORE, "--max-memory"),
        stats_s=scanned.read(STORE, "--stats"),
    )
