"""The relay's end of the channel to its agent, and the descriptors that it polls."""

from __future__ import annotations

import select
import socket
from collections import deque

from rallypoint.process.relay.messages import (
    MAX_PACKET,
    RelayReport,
    RelayRequest,
    WriteFailed,
    decode_request,
    encode,
)


class Channel:
    """The relay's end of the channel to its agent.

    Sending never waits: reports that do not fit are kept.
    """

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self._control = control
        self._reports: deque[bytes] = deque()
        self._failed_paths: set[bytes] = set()

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._control.fileno()

    @property
    def is_behind(self) -> bool:
        """Whether there are unsent reports; call `send` when the channel is writable."""
        return bool(self._reports)

    def receive(self) -> tuple[list[tuple[RelayRequest, list[int]]], bool]:
        """Return received requests with their descriptors, and whether the agent's end is open."""
        found: list[tuple[RelayRequest, list[int]]] = []
        while True:
            try:
                packet, fds, _, _ = socket.recv_fds(self._control, 2 * MAX_PACKET, 1)
            except BlockingIOError:
                return found, True
            except OSError:
                packet, fds = b"", []
            if not packet:
                return found, False
            found.append((decode_request(packet), fds))

    def report(self, report: RelayReport) -> None:
        """Send a report to the agent, now or when it fits."""
        self._reports.append(encode(report))
        self.send()

    def report_failure(self, path: bytes, number: int | None) -> None:
        """Report the first failure of writing to this file or console; later ones are dropped."""
        if path not in self._failed_paths:
            self._failed_paths.add(path)
            self.report(WriteFailed(path, number or 0))

    def send(self) -> None:
        """Send as many of the unsent reports as fit; drop them if the agent is gone."""
        while self._reports:
            try:
                self._control.send(self._reports[0])
            except BlockingIOError:
                return
            except OSError:
                self._reports.clear()  # the agent is gone; the next read says so too
                return
            self._reports.popleft()


class Poller:
    """The descriptors to wait for.

    The list for poll(2) changes only where the wanted events do.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, int] = {}

    def watch(self, fd: int, events: int, *, also_out: bool = False) -> None:
        """Set the events to wait for on this descriptor from now on; 0: none.

        `also_out` adds POLLOUT.
        """
        wanted = events | (select.POLLOUT if also_out else 0)
        if self._watched.get(fd, 0) == wanted:
            return
        if wanted:
            self._watched[fd] = wanted
            self._poll.register(fd, wanted)
        else:
            del self._watched[fd]
            self._poll.unregister(fd)

    def wait(self, limit_ms: int | None) -> dict[int, int]:
        """Block until there is an event, or `limit_ms` is over; return the events by descriptor.

        None: no limit.
        """
        return dict(self._poll.poll(limit_ms))
