"""What the suites for rendezvous backends have in common: how a backend is made, asked and told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rallypoint.rendezvous.backend import RendezvousBackend, Token

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


class BoundedBackend:
    """The calls of another backend, each in a thread. Raises AssertionError, which names a rule,
    for a call that does not end or returns garbage."""

    def __init__(self, inner: RendezvousBackend, limit_s: float) -> None:
        self.inner: Any = inner
        self._limit_s = limit_s

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._call("get_state")
        if found is not None:
            self._check("get_state", "None or (bytes, token)", found, 2)
        return found  # type: ignore[no-any-return]

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = self._call("set_state", state, token)
        if found is not None:
            self._check("set_state", "None or (bytes, token, was_set)", found, 3)
        return found  # type: ignore[no-any-return]

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        seen = self._call("wait_for_change", token, timeout)
        rule = "rule: wait_for_change returns True or False"
        assert isinstance(seen, bool), f"{rule}: it returned {show(seen)}"
        return seen

    def set_beat(self, node: str, beat: int) -> None:
        self._call("set_beat", node, beat)

    def get_beats(self, nodes: Any) -> Any:
        return self._call("get_beats", nodes)

    def post_join_request(self, request: bytes) -> Any:
        return self._call("post_join_request", request)

    def join_requests_after(self, number: int) -> Any:
        return self._call("join_requests_after", number)

    def delete_join_requests(self, numbers: Any) -> None:
        self._call("delete_join_requests", numbers)

    def delete_beat(self, node: str) -> None:
        self._call("delete_beat", node)

    def _check(self, call: str, wanted: str, found: object, length: int) -> None:
        fine = isinstance(found, tuple) and len(found) == length and isinstance(found[0], bytes)
        assert fine, f"rule: {call} returns {wanted}: it returned {show(found)}"

    def _call(self, name: str, *arguments: object) -> Any:
        outcome: list[Any] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                outcome.append(getattr(self.inner, name)(*arguments))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(self._limit_s)
        rule = "rule: no call waits for others"
        assert outcome or errors, f"{rule}: {name} had not returned after {self._limit_s:g} s"
        if errors:
            raise errors[0]
        return outcome[0]


def show(value: object) -> str:
    """The beginning of a value, for a message."""
    return f"{value!r:.60}"
