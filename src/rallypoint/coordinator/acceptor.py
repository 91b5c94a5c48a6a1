"""The acceptor of a coordinator's connections, which limits unauthenticated peers.

The first bytes, which are looked at without being consumed, show what the peer is: sessions go to
the coordinator; where the port is shared with the round store, its clients go to the store's
process as they are; all others are closed before anything is made for them. `core/admission.py`
decides which connection is accepted, and which one is dropped for it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from socket import MSG_PEEK, SO_RCVLOWAT, SOL_SOCKET, socket

from msgspec import Struct

from rallypoint.clocks import Alarm
from rallypoint.core import event_kinds as kinds
from rallypoint.core.admission import AdmissionLimits
from rallypoint.core.event_kinds import Record
from rallypoint.observe.faults import Faults
from rallypoint.store.accept_loop import AcceptLoop, source_of
from rallypoint.store.refusal_log import WINDOW_S, RefusalLog
from rallypoint.wire.preamble import PREAMBLE_BYTES, Preamble, classify, describe_foreign

_SHOWN_BYTES = 32

TakeSession = Callable[[socket, int, str], None]
"""The function that takes over a connection whose peer speaks the session protocol. It gets the
socket, the number that the acceptor gave the connection, and the peer as HOST:PORT."""
TakeStore = Callable[[socket], None]


class Traffic(Struct, frozen=True):
    """The numbers of a coordinator's connections: accepted so far, open now, and refused so far.

    Refused ones count as accepted, too. Those given to the round store count as accepted only.
    """

    accepted: int
    open: int
    refused: dict[str, int]
    """The number of refused connections by the names of `CloseReason`, in lower case."""


class Acceptor:
    """The acceptor of connections on listening sockets, from construction to `close`.

    The listening sockets stay the caller's. For the thread of the loop.

    The object that takes a session calls `may_drop`, `proved` and `gone` for that connection.
    """

    def __init__(
        self,
        listeners: Sequence[socket],
        admission: AdmissionLimits,
        take_session: TakeSession,
        take_store: TakeStore | None,
        log: ConnectionLog,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._admission, self._log = admission, log
        self._take_session, self._take_store = take_session, take_store
        self._numbers = 0
        self._drops: dict[int, Callable[[], None]] = {}
        self._peers: dict[int, str] = {}
        self._alarm = Alarm(self._loop, self._rang)
        self._is_paused = False
        self._loops = [
            AcceptLoop(self._loop, listener, self._arrived, self._may_accept, self._on_shortage)
            for listener in listeners
        ]

    @property
    def traffic(self) -> Traffic:
        """The numbers of connections: accepted and refused up to now, and open now."""
        refused = {kind.name.lower(): count for kind, count in self._log.refusals.items()}
        return Traffic(self._numbers, self._admission.count, refused)

    def close(self) -> None:
        """Stop accepting, and drop unproven connections. May be called again."""
        for accepting in self._loops:
            accepting.close()
        self._alarm.cancel()
        for number in list(self._drops):
            self._drop(number)

    def may_drop(self, number: int, drop: Callable[[], None]) -> None:
        """Let the acceptor call `drop` for this connection while its peer is unproven.

        It does so on timeout, to make room for another connection, or in `close`.
        """
        if number in self._drops:
            self._drops[number] = drop

    def proved(self, number: int) -> None:
        """Note that the peer of a connection belongs to a job: this one is not dropped any more."""
        self._drops.pop(number, None)
        self._peers.pop(number, None)
        self._admission.proved(number)
        self._look()

    def gone(self, number: int) -> None:
        """Free the place of a connection that is closed, for another one. May be repeated."""
        self._drops.pop(number, None)
        self._peers.pop(number, None)
        self._admission.gone(number)
        self._look()

    # Accepting

    def _may_accept(self) -> bool:
        while not self._admission.has_free_slot:
            victim = self._admission.victim(self._loop.time()) if self._admission.slots else None
            if victim is None:
                self._pause()
                return False
            self._turn_away(victim)
        return True

    def _arrived(self, connection: socket, address: tuple[str, int]) -> None:
        self._numbers += 1
        number, peer = self._numbers, f"{address[0]}:{address[1]}"
        self._admission.arrived(number, source_of(address[0]), self._loop.time())
        self._peers[number] = peer
        self._drops[number] = partial(self._close, connection)
        self._arm()
        # As a rule the first bytes have come with the connection.
        if not self._decide(number, connection, peer):
            self._loop.add_reader(connection.fileno(), self._decide, number, connection, peer)

    def _pause(self) -> None:
        self._is_paused = True
        for accepting in self._loops:
            accepting.pause()
        self._look()
        self._arm()

    def _on_shortage(self, error: OSError) -> None:
        """Log that this process or the system lacks descriptors or memory for another connection.

        The `AcceptLoop` has paused accepting for a moment.
        """
        self._log.shortage(
            f"can't accept connections: {os.strerror(error.errno or 0)}: raise ulimit -n, or "
            "fs.file-max (sysctl); they wait"
        )

    # The first bytes

    def _decide(self, number: int, connection: socket, peer: str) -> bool:
        """Hand over or close the connection, if its first bytes show what the peer is.

        Return whether they do. After an unexpected exception the connection is closed.
        """
        try:
            return self._try_to_decide(number, connection, peer)
        except Exception as error:
            self._log.faults.note(f"a connection from {peer} can't be handled", error)
            self._close(connection)
            self.gone(number)
            return True

    def _try_to_decide(self, number: int, connection: socket, peer: str) -> bool:
        try:
            first = connection.recv(PREAMBLE_BYTES, MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            first = b""
        caller = classify(first) if first else Preamble.FOREIGN
        if caller is Preamble.UNDECIDED and self._wait_for_more(connection):
            return False
        if caller is Preamble.SESSION:
            self._hand_over(connection)
            self._take_session(connection, number, peer)
        elif caller is Preamble.STORE and self._take_store is not None:
            self._hand_over(connection)
            self.gone(number)
            self._take_store(connection)
        else:
            self._refuse(number, connection, peer)
        return True

    def _wait_for_more(self, connection: socket) -> bool:
        """Return whether to wait for more bytes; the second call for a connection returns False.

        Bytes that were only looked at would make the loop call again at once. So the first call has
        the socket count as readable from `PREAMBLE_BYTES` bytes on (SO_RCVLOWAT), or at an end of
        file.
        """
        if connection.getsockopt(SOL_SOCKET, SO_RCVLOWAT) == PREAMBLE_BYTES:
            return False
        connection.setsockopt(SOL_SOCKET, SO_RCVLOWAT, PREAMBLE_BYTES)
        return True

    def _hand_over(self, connection: socket) -> None:
        self._unwatch(connection)
        connection.setsockopt(SOL_SOCKET, SO_RCVLOWAT, 1)

    def _unwatch(self, connection: socket) -> None:
        # By its number: of an object that nobody watches `selectors` makes a text first.
        if (fd := connection.fileno()) >= 0:
            self._loop.remove_reader(fd)

    def _refuse(self, number: int, connection: socket, peer: str) -> None:
        try:
            # Read what came: a connection that is closed with unread bytes is reset.
            said = connection.recv(4096)[:_SHOWN_BYTES]
        except OSError:
            said = b""
        if said:  # who only looks whether somebody listens is no news
            why = f"it does not use Rallypoint's protocol ({describe_foreign(said)})"
            self._log.refused(peer, CloseReason.FOREIGN, why)
        self._close(connection)
        self.gone(number)

    # Making room

    def _close(self, connection: socket) -> None:
        self._unwatch(connection)
        connection.close()

    def _turn_away(self, number: int) -> None:
        self._log.refused(
            self._peers[number], CloseReason.SILENT, "it did not finish the handshake"
        )
        self._drop(number)

    def _drop(self, number: int) -> None:
        drop = self._drops.pop(number)
        self._peers.pop(number, None)
        self._admission.gone(number)
        drop()

    def _look(self) -> None:
        """Resume accepting after a pause if there is room, or an unproven connection can go.

        If proven connections take all the room, log a shortage. Called when a pause begins, when
        a connection was proved or closed, and when the timer has ended.
        """
        if not self._is_paused:
            return
        if self._may_go_on():
            self._is_paused = False
            for accepting in self._loops:
                accepting.resume()
        elif not self._admission.slots:
            self._log.shortage(
                "all connections that the limit of open files leaves room for are in use: raise "
                "ulimit -n; new ones wait"
            )

    def _may_go_on(self) -> bool:
        admission = self._admission
        if admission.has_free_slot:
            return True
        return bool(admission.slots) and admission.victim(self._loop.time()) is not None

    def _arm(self) -> None:
        """Set the timer to when the oldest unproven connection has to go.

        In a pause it is set to when one may be dropped for a new connection, if that is earlier.
        """
        dues = [self._admission.next_overdue_at()]
        if self._is_paused and self._admission.slots:
            dues.append(self._admission.next_victim_at())
        due_at = min((due for due in dues if due is not None), default=None)
        if due_at is not None:
            self._alarm.set(due_at)

    def _rang(self) -> None:
        for number in self._admission.overdue(self._loop.time()):
            self._turn_away(number)
        self._look()
        self._arm()


class CloseReason(Enum):
    """Why a connection was refused; the value follows a number: "3 failed the handshake"."""

    FOREIGN = "did not use Rallypoint's protocol"
    SILENT = "did not finish the handshake"
    UNPROVEN = "failed the handshake"


class ConnectionLog:
    """The lines for a person about connections that a coordinator closed for a fault, or refused.

    Each address and reason is shown once while it is remembered, so that a mistyped token is seen.
    A flood is counted by kind, and must neither fill a log nor hide what matters. For the thread of
    the loop.
    """

    def __init__(self, on_record: Callable[[Record], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_record, self._refusals = on_record, RefusalLog()
        self._more: Counter[str] = Counter()
        """The numbers of connections that were closed without a line of their own since the last
        summary line, by the words that follow the number there."""
        self.refusals: Counter[CloseReason] = Counter(dict.fromkeys(CloseReason, 0))
        """The number of connections that were refused, by reason; those of attached agents do not
        count."""
        self._last = ""
        self._alarm = Alarm(self._loop, self._show_more)
        self._shortage_at = float("-inf")
        self.faults = Faults(lambda text: on_record(kinds.FAULT(text)))

    def refused(self, peer: str, kind: CloseReason, why: str) -> None:
        """Count a refused connection from `peer`; log it unless equal ones or too many were logged.

        Equal ones have the same address and reason. `why` follows "closed the connection from
        HOST:PORT: ".
        """
        self.refusals[kind] += 1
        # What strangers send differs each time.
        self._note(peer, why if kind is CloseReason.UNPROVEN else kind.name, why, kind.value)

    def broken(self, peer: str, why: str) -> None:
        """Log that the connection of an attached agent was closed.

        Equal ones, or too many, are only counted. `why` follows "closed the connection from
        HOST:PORT: ".
        """
        self._note(peer, why, why, "were those of nodes, and broke the protocol")

    def _note(self, peer: str, reason: str, why: str, of_many: str) -> None:
        address = peer.rpartition(":")[0]
        if self._refusals.is_logged((address, reason), self._loop.time()):
            self._closed(f"closed the connection from {peer}: {why}")
            return
        self._more[of_many] += 1
        self._last = address
        self._alarm.set(self._loop.time() + WINDOW_S)

    def shortage(self, line: str) -> None:
        """Log `line`, which says that no connection can be accepted, at most once a minute."""
        now = self._loop.time()
        if now >= self._shortage_at + WINDOW_S:
            self._shortage_at = now
            self._on_record(kinds.OPEN_FILES(line))

    def close(self) -> None:
        """Log the numbers of connections and faults that were only counted. May be called twice."""
        self._show_more()
        self.faults.tell_counts()

    def _closed(self, line: str) -> None:
        self._on_record(kinds.CONNECTION_CLOSED(line))

    def _show_more(self) -> None:
        self._alarm.cancel()
        self._refusals.left_out()
        more, self._more = self._more, Counter()
        if more:
            by_kind = ", ".join(f"{count} {of_many}" for of_many, count in more.items())
            self._closed(
                f"closed {more.total()} more connections within {WINDOW_S:g} s, the last from "
                f"{self._last}: {by_kind}"
            )
