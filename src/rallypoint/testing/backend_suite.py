"""What the suites for rendezvous backends have in common: how a backend is made, asked and told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from rallypoint.rendezvous.backend import RendezvousBackend, Token
from rallypoint.testing.bounded_backend import BoundedBackend, show

T = TypeVar("T")

THREADS = 8
INCREMENTS = 10
COUNTED = THREADS * INCREMENTS
VALUES = (b"x", b"", bytes(range(256)), b"\x00" * 17, b"\xff\xfe" * 99, bytes(range(256)) * 4096)
READ_AGAIN_S = 0.005


class BackendSuite:
    """A test is a fresh object of the subclass."""

    limit_s = 60.0
    """No call may take longer, whatever it says."""

    def make_backend(self) -> RendezvousBackend:
        """Another object for the same job in the same store, which is empty before each test."""
        raise NotImplementedError("subclass RendezvousBackendContract and give it make_backend()")

    def make_backend_of_another_job(self) -> RendezvousBackend | None:
        """The same store, another run id; None leaves the rules about several jobs unchecked."""
        return None

    def _backend(self) -> BoundedBackend:
        return BoundedBackend(self.make_backend(), self.limit_s)

    def _other(self) -> BoundedBackend | None:
        other = self.make_backend_of_another_job()
        return None if other is None else BoundedBackend(other, self.limit_s)

    def _store(self, backend: BoundedBackend, value: bytes, token: Token | None) -> Token:
        rule = "rule: a set with the current token stores the state"
        after = set_state(backend, value, token)
        assert after is not None, f"{rule}: after it nothing is there"
        stored = after[0] == value if after[2] is None else after[2]
        assert stored, f"{rule}: {show(value)} was not stored, {show(after[0])} is there"
        return after[1]

    def _soon(self, rule: str, read: Callable[[], object], wanted: object) -> None:
        """What is written beside the state may take a moment to be seen by others."""
        ends_at = time.monotonic() + self.limit_s
        while (now := read()) != wanted:
            assert time.monotonic() < ends_at, f"{rule}: {show(now)}, not {show(wanted)}"
            time.sleep(READ_AGAIN_S)

    def _has(self, rule: str, value: bytes | None) -> None:
        found = self._backend().get_state()
        now = None if found is None else found[0]
        assert now == value, f"{rule}: now {show(now)} is there, not {show(value)}"


def set_state(
    backend: BoundedBackend, state: bytes, token: Token | None = None
) -> tuple[bytes, Token, bool | None] | None:
    """What is there afterwards, and whether this call stored it; None: the backend says nothing."""
    after = backend.set_state(state, token)
    if after is not None:
        return after
    found = backend.get_state()
    return None if found is None else (*found, None)


def attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What a call returned or raised; a broken rule is raised on."""
    try:
        return call(), None
    except AssertionError:
        raise
    except Exception as error:
        return None, error


def at_once(calls: list[Callable[[], None]]) -> None:
    """Run them in threads; raises what the first of them raised."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
