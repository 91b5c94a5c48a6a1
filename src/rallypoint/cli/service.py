"""Listening sockets, log lines and the end of commands that serve until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from socket import AF_UNIX, SOCK_DGRAM, socket

from msgspec.structs import replace

from rallypoint.cli.render import render_event, render_event_json
from rallypoint.config import Endpoint
from rallypoint.coordinator.client.endpoint import NotYet, resolve
from rallypoint.coordinator.listen import BindRefused, ListenRefusal, try_bind
from rallypoint.core.event_kinds import EventKind, Record
from rallypoint.core.outcomes import SIGNALLED
from rallypoint.core.settings import Setting
from rallypoint.core.text import job_name, shown, signal_name
from rallypoint.errors import UsageError
from rallypoint.observe.printing import say
from rallypoint.observe.queue import BoundedQueue
from rallypoint.observe.records import FieldValue, event_now
from rallypoint.wire.address import Address

_LAST_LINES_S = 2.0


class EventLines:
    """The writer of event lines to stderr, in a thread.

    A terminal that was paused must not stop the jobs.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self._json, self._quiet = json, quiet
        self._lines: BoundedQueue[str] = BoundedQueue(say)
        self._reported_lost = 0

    def record(self, run_id: str, record: Record) -> None:
        """Report an event of a job, or (with an empty run id) one that belongs to no job."""
        text = f"{job_name(run_id)}: {record.text}" if run_id else record.text
        self.say(replace(record, text=text), run_id)

    def say(self, record: Record, run_id: str = "") -> None:
        """Queue a line about an event; nothing with `quiet`. Never blocks.

        A line that does not fit into the queue is dropped; as JSON, the next one has the number of
        them.
        """
        if self._quiet:
            return
        fields: tuple[tuple[str, FieldValue], ...] = (("job", run_id),) if run_id else ()
        lost = self._lines.lost
        if lost > self._reported_lost:
            fields += (("dropped_lines", lost - self._reported_lost),)
        event = event_now(record, record.node_id, fields=fields)
        self._lines.put(render_event_json(event) if self._json else render_event(event))
        if self._lines.lost == lost:
            self._reported_lost = lost

    def close(self) -> None:
        """Wait up to 2 s until the queued lines are written."""
        self._lines.close(_LAST_LINES_S)


def port_option(default: int) -> Setting:
    """Return the option `--port`: the port on which a command listens."""
    about = "port to listen on; 0: the system chooses"
    return Setting("--port", "PORT", about, "port", default=str(default))


async def own_addresses(host: str) -> tuple[Address, ...]:
    """Return the addresses of `--host`, a name or an address. Raises UsageError if it has none.

    `bind` leaves out those that are not this machine's.
    """
    found = await resolve(Endpoint(host, 0))
    if isinstance(found, NotYet):
        raise UsageError(f"--host {shown(host)}: {found.reason}; use an address of this machine")
    return found.addresses


def bind(host: str, addresses: tuple[Address, ...], port: int) -> list[socket]:
    """Return listening sockets on the addresses of `host` that are this machine's.

    Raises UsageError if none is this machine's, or the port is in use or not permitted. Raises
    InfrastructureError if the system refuses.
    """
    bound = try_bind(addresses, port)
    if not isinstance(bound, BindRefused):
        return bound
    if bound.refusal is ListenRefusal.NOT_MINE:
        raise UsageError(f"--host {shown(host)}: {bound.why}")
    raise UsageError(f"--port {port}: {bound.why}: choose another, or stop what uses it")


def listening_at(listeners: Sequence[socket]) -> list[Endpoint]:
    """Return the address and port on which each of the sockets listens."""
    return [Endpoint(*listener.getsockname()[:2]) for listener in listeners]


def notify(state: str) -> None:
    """Send `state`, such as READY=1, to a waiting service manager, if there is one.

    It is one such as systemd with Type=notify, which sets NOTIFY_SOCKET. Faults are ignored.
    """
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where.startswith(("/", "@")):
        return
    with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as sending:
        # A name that begins with @ is one of the abstract namespace.
        sending.sendto(state.encode(), where.replace("@", "\0", 1) if where[0] == "@" else where)


class EndingSignal:
    """The wait for SIGTERM or SIGINT, which ends a command.

    It is made in the command's event loop, which these signals no longer interrupt from then on.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._number: asyncio.Future[int] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._caught, int(number))

    def _caught(self, number: int) -> None:
        if not self._number.done():
            self._number.set_result(number)

    async def wait(self, lines: EventLines, kind: EventKind) -> int:
        """Wait for a signal, report it as an event of this kind, and return 128 + its number."""
        number = await self._number
        lines.say(kind(signal=signal_name(number)))
        return SIGNALLED + number
