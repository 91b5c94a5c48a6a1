"""The contract of a shared store that hosts a rendezvous: one value with compare-and-swap.

A backend holds the state of one run id as opaque bytes, with a token for each version of it. The
backend does not interpret the bytes, and must not change them.

`rallypoint.testing` has a test suite that checks a backend against this contract.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

Token = Any
"""The token of one version of a value, opaque to its users; equal tokens mean the same version."""


class RendezvousBackend(ABC):
    """One value with compare-and-swap, in a store that several processes share.

    Methods may block. A handler or a coordinator calls them from one thread, and `wait_for_change`
    from another.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of this kind of backend, such as `etcd`."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the value and its token; None if there is none yet.

        Raises RendezvousConnectionError when the store can't be reached, RendezvousStateError when
        what it holds can't be a value of this backend. May be retried.
        """

    @abstractmethod
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        """Store a value if the current version has `token`; without a token, if there is no value.

        Returns the value that is there afterwards, its token, and whether this call stored it.
        Returns None if there is no value, or if the backend does not know it; the caller then reads
        the state. Raises as `get_state` does; whether the value was stored is then unknown. A token
        that no call returned stores nothing, and is answered like an outdated one.
        """


@runtime_checkable
class WakingBackend(Protocol):
    """A backend that can wait for a change, so that it need not be polled."""

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Block until the value's token differs from `token`, or `timeout` seconds have passed.

        Called from a thread of its own. `token` None: there was no value. True: it may differ,
        which can be a false alarm. False: no change was seen. A backend may also have
        `stop_waiting()`, which ends such calls early; it is called when its user is closed.
        """


@runtime_checkable
class BeatingBackend(Protocol):
    """A backend with a separate place for each node's heartbeat counter.

    A heartbeat then rewrites nothing else.
    """

    def set_beat(self, node: str, beat: int) -> None:
        """Store the heartbeat counter of a node. The first one is stored before the node joins."""

    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        """Return the heartbeat counters of these nodes, in their order; -1 where there is none."""


@runtime_checkable
class JoinRequestBackend(Protocol):
    """A backend in which nodes leave join requests for the next node that writes the state.

    A thousand nodes that join at once would keep each other from swapping. With join requests, the
    node whose swap succeeds handles all requests that it has read before.
    """

    def post_join_request(self, request: bytes) -> int:
        """Store a join request and return its number: 1, 2, 3 and so on for this run id."""

    def join_requests_after(self, number: int) -> list[bytes | None]:
        """Return the join requests with numbers above `number`, by rising number.

        None for one whose writer is not done yet, and for one that was deleted.
        """


@runtime_checkable
class ForgettingBackend(Protocol):
    """A backend that can delete obsolete entries. Without it the store grows with each join."""

    def delete_join_requests(self, numbers: Sequence[int]) -> None:
        """Delete the requests with these numbers, which are not used again.

        Later reads return None for them.
        """

    def delete_beat(self, node: str) -> None:
        """Delete the heartbeat counter of a node that has left; later reads return -1."""


class MemoryRendezvousBackend(RendezvousBackend):
    """A backend in memory, shared by the handlers of one process; also an example. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state: bytes | None = None
        self._version = 0
        self._beats: dict[str, int] = {}
        self._requests: list[bytes | None] = []

    @property
    def name(self) -> str:
        return "memory"

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._changed:
            return None if self._state is None else (self._state, self._version)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        with self._changed:
            now = None if self._state is None else self._version
            was_set = type(token) is type(now) and token == now
            if was_set:
                self._state = state
                self._version += 1
                self._changed.notify_all()
            return None if self._state is None else (self._state, self._version, was_set)

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Wait until the version differs from `token`, and return True.

        Return False after `timeout` seconds.
        """
        known = token or 0
        with self._changed:
            return self._changed.wait_for(lambda: self._version != known, timeout)

    def set_beat(self, node: str, beat: int) -> None:
        """Set the heartbeat counter of a node."""
        with self._changed:
            self._beats[node] = beat

    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        """Return the heartbeat counters of these nodes, in their order; -1 where there is none."""
        with self._changed:
            return [self._beats.get(node, -1) for node in nodes]

    def post_join_request(self, request: bytes) -> int:
        """Store a join request and return its number."""
        with self._changed:
            self._requests.append(request)
            return len(self._requests)

    def join_requests_after(self, number: int) -> list[bytes | None]:
        """Return the join requests with higher numbers, in order; None for deleted ones."""
        with self._changed:
            return list(self._requests[number:])

    def delete_join_requests(self, numbers: Sequence[int]) -> None:
        """Delete these requests, whose numbers are not used again."""
        with self._changed:
            for number in numbers:
                self._requests[number - 1] = None

    def delete_beat(self, node: str) -> None:
        """Delete the heartbeat counter of a node."""
        with self._changed:
            self._beats.pop(node, None)
