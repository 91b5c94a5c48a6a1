"""The round store for its agent: a listening socket for life, a process for each round.

The socket is bound before the agent joins, so that its port is known before any node needs it. When
a round makes this node rank 0 the store is *opened*: the first connection forks a process that
accepts from the same socket (or, where the coordinator owns the port, gets connections passed on).
Closing it kills that process. No key, client or half-open connection survives into the next round:
between rounds new and queued connections are closed at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rallypoint.core.text import signal_name
from rallypoint.errors import InvariantError
from rallypoint.observe.printing import say_directly
from rallypoint.store.accept_loop import AcceptLoop
from rallypoint.store.access import round_policy

_MAX_HANDED_OVER = 1024
_ONE_BYTE = b"c"  # descriptors travel with at least one byte

Say = Callable[[str], None]
OnLost = Callable[[str], None]
"""The function that is called with the reason when the store of a round has ended unexpectedly, or
its process can't be started."""


class StoreProcess(Protocol):
    """The process of one round's store, as `Fork` returns it."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class Fork(Protocol):
    """A function that runs `body` in a forked child, and returns the child's process.

    The child keeps no descriptor but 0, 1, 2 and `keep_fds`.
    """

    def __call__(
        self, body: Callable[[], None], *, name: str, title: str, keep_fds: Iterable[int]
    ) -> StoreProcess: ...


def say_on_stderr(line: str) -> None:
    """Print a line to stderr, for a process without a console."""
    say_directly(f"rallypoint: round store: {line}")


class RoundStore:
    """The round store of an agent.

    For the thread of the agent's loop; no method blocks for long.

    `listener` is bound, listening and non-blocking, and belongs to this object. Without one the
    coordinator accepts on a shared port, and passes connections on (`adopt`). `say` gets lines
    about refused peers, for which it is called in the store's process. `part_of` is added to the
    title of that process. `max_bytes` limits the keys and values of a round; None: no limit.
    """

    def __init__(
        self,
        listener: socket.socket | None,
        *,
        fork: Fork,
        say: Say = say_on_stderr,
        part_of: str = "",
        max_bytes: int | None = None,
    ) -> None:
        self._listener = listener
        self._max_bytes = max_bytes
        self._fork, self._say, self._part_of = fork, say, part_of
        self._loop: asyncio.AbstractEventLoop | None = None
        self._served: _RoundProcess | None = None
        self._turning_away: AcceptLoop | None = None

    @property
    def address(self) -> str:
        """The address that the listener is bound to. Raises InvariantError without a listener."""
        return str(self._own_listener().getsockname()[0])

    @property
    def port(self) -> int:
        """The port that workers connect to if this node is rank 0.

        Raises InvariantError without a listener.
        """
        return int(self._own_listener().getsockname()[1])

    def owns(self, pid: int) -> bool:
        """Return whether the pid is that of the store's process, which only the store reaps."""
        return self._served is not None and self._served.pid == pid

    def open(
        self,
        round_: int,
        key: bytes,
        *,
        open_access: bool,
        networks: Sequence[str] = (),
        on_lost: OnLost | None = None,
    ) -> None:
        """Open the store of one round; `key` is the round's enrolment key.

        Needs the running loop.

        `open_access` admits all peers; else `networks` (CIDRs) are admitted besides enrolled nodes.
        `on_lost` is called from the loop, at most once, when the process can't be started or has
        ended unexpectedly; without it `say` gets a line. The first connection starts the process.
        """
        self.close()
        self._loop = loop = asyncio.get_running_loop()
        listener, say, max_bytes = self._listener, self._say, self._max_bytes
        policy = round_policy(key, everybody=open_access, networks=networks)

        def start(channel: socket.socket) -> StoreProcess:
            def serve() -> None:
                from rallypoint.store.server_process import serve_round

                serve_round(listener, channel, policy, say, max_bytes)

            self._watch_listener(None)
            return self._fork(
                serve,
                name=f"rally-store-{round_}",
                title=f"rallypoint: store of round {round_}{self._part_of}",
                keep_fds=[channel.fileno()] + ([] if listener is None else [listener.fileno()]),
            )

        def lost(why: str) -> None:
            # An empty store in its place would leave its clients waiting.
            self._keep_turning_away()
            if on_lost is not None:
                loop.call_soon(on_lost, why)
            else:
                say(f"{why}, and with it what the workers of round {round_} had stored")

        self._served = _RoundProcess(loop, start, lost)
        self._watch_listener(self._served.start)

    def adopt(self, connection: socket.socket) -> None:
        """Take over a connection that the coordinator accepted on the shared port.

        None of its bytes may have been consumed. It is closed if no round is open here, its process
        can't be started or has died, or too many wait: torch's clients and enrolling agents retry.
        """
        if self._served is None:
            connection.close()
        else:
            self._served.adopt(connection)

    def close(self) -> None:
        """End the round's store with its content: kill its process, and wait for the end.

        May be called again, and without a round. New connections are closed at once until the next
        round is opened.
        """
        if self._served is not None:
            self._served.close()
            self._served = None
        self._turn_away()
        self._keep_turning_away()

    def shutdown(self) -> None:
        """Close the store and its listener for good."""
        self.close()
        self._watch_listener(None)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _own_listener(self) -> socket.socket:
        if self._listener is None:
            raise InvariantError("this round store has no listener (any more)")
        return self._listener

    def _watch_listener(self, callback: Callable[[], None] | None) -> None:
        if self._listener is None or self._loop is None or self._loop.is_closed():
            return
        if self._turning_away is not None:
            self._turning_away.close()
            self._turning_away = None
        if callback is None:
            self._loop.remove_reader(self._listener)
        else:
            self._loop.add_reader(self._listener, callback)

    def _keep_turning_away(self) -> None:
        self._watch_listener(None)
        if self._listener is None or self._loop is None or self._loop.is_closed():
            return
        self._turning_away = AcceptLoop(self._loop, self._listener, _hang_up)

    def _turn_away(self) -> None:
        """Close the queued connections; peers of a round that opens next try again."""
        while self._listener is not None:
            try:
                self._listener.accept()[0].close()
            except ConnectionAbortedError:
                continue
            except OSError:
                return


class _RoundProcess:
    """The process of one round's store, and the channel on which connections are passed to it.

    `fork` starts it with its end of the channel. `on_lost` is called once, with the reason why it
    could not be started or has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fork: Callable[[socket.socket], StoreProcess],
        on_lost: OnLost,
    ) -> None:
        self._loop, self._fork = loop, fork
        self._on_lost: OnLost | None = on_lost
        self._process: StoreProcess | None = None
        self._channel: socket.socket | None = None
        self._handing_over: deque[socket.socket] = deque()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                self._process = self._fork(theirs)
        except OSError as error:
            ours.close()
            self._lost(f"the process of the round store can't be started: {error.strerror}")
            return
        self._channel = ours
        self._loop.add_reader(ours, self._ended)

    def adopt(self, connection: socket.socket) -> None:
        if len(self._handing_over) >= _MAX_HANDED_OVER:
            connection.close()
            return
        if self._process is None:
            self.start()
        if self._channel is None:  # the process could not be started, or has died
            connection.close()
            return
        self._handing_over.append(connection)
        if len(self._handing_over) == 1:
            self._hand_over()

    def close(self) -> None:
        self._on_lost = None
        self._close_channel()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> None:
        """Report that the process has ended unexpectedly, with its content."""
        assert self._process is not None
        self._close_channel()
        self._process.kill()  # Unless it has gone already, it is about to.
        self._lost(f"the process of the round store {_how_it_ended(self._process.wait())}")

    def _lost(self, why: str) -> None:
        if self._on_lost is not None:
            self._on_lost(why)
            self._on_lost = None

    def _hand_over(self) -> None:
        """Send connections to the process; continue when it can take more."""
        assert self._channel is not None
        while self._handing_over:
            connection = self._handing_over[0]
            try:
                socket.send_fds(self._channel, [_ONE_BYTE], [connection.fileno()])
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._hand_over)
                return
            except OSError:
                pass  # the process is dying, and its end will be noticed
            self._handing_over.popleft().close()
        self._loop.remove_writer(self._channel)

    def _close_channel(self) -> None:
        if self._channel is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._channel)
                self._loop.remove_writer(self._channel)
            self._channel.close()
            self._channel = None
        while self._handing_over:
            self._handing_over.popleft().close()


def _how_it_ended(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {signal_name(-exit_code)}"
    return f"exited with code {exit_code}"


def _hang_up(connection: socket.socket, _: tuple[str, int]) -> None:
    connection.close()
