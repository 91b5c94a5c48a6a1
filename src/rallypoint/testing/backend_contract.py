"""The contract of `RendezvousBackend` as tests: subclass it beside your backend, run pytest.

    class TestMyBackend(RendezvousBackendContract):
        def make_backend(self):
            return MyBackend(self.store, run_id="job")

Every message of a failed test begins with the rule that is broken. A rule about what a backend
may leave out (waiting, beats, join requests, deleting) is checked if the backend has it. A backend
whose `set_state` says nothing is believed what it then reads, as the rendezvous does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rallypoint.register.contract import (
    BeatingBackend,
    ForgettingBackend,
    JoinRequestBackend,
    RendezvousBackend,
    Token,
    WakingBackend,
)

T = TypeVar("T")

THREADS = 8
INCREMENTS = 10
COUNTED = THREADS * INCREMENTS
VALUES = (b"x", b"", bytes(range(256)), b"\x00" * 17, b"\xff\xfe" * 99, bytes(range(256)) * 4096)
NODES = ("node1", "10.0.0.1_4711_0", "a/b c", "nœud.é", "node10")
NO_TOKENS: tuple[Any, ...] = ("no token", b"no token", b"", -1, 1.5, (), object())
PAUSE_S = 0.2
"""The timeout, in seconds, of waits during which nothing changes."""
READ_AGAIN_S = 0.005


class RendezvousBackendContract:
    """The contract that every backend must keep, as tests for pytest.

    Each test has a new object of the subclass.
    """

    limit_s = 60.0
    """The time limit of each call in seconds, whatever timeout it was given."""
    max_bytes = 1 << 20
    """The largest state, in bytes, that the backend takes. The tests store at most 1 MiB."""

    def make_backend(self) -> RendezvousBackend:
        """Return another object for the same job in the same store, which is new for each test."""
        raise NotImplementedError("subclass RendezvousBackendContract and give it make_backend()")

    def make_backend_of_another_job(self) -> RendezvousBackend | None:
        """Return a backend for another run id in the same store.

        With None, the rules about several jobs are not checked.
        """
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
        """Wait until other objects see a value that is stored beside the state.

        Raises AssertionError after `limit_s`.
        """
        ends_at = time.monotonic() + self.limit_s
        while (now := read()) != wanted:
            assert time.monotonic() < ends_at, f"{rule}: {show(now)}, not {show(wanted)}"
            time.sleep(READ_AGAIN_S)

    def _has(self, rule: str, value: bytes | None) -> None:
        found = self._backend().get_state()
        now = None if found is None else found[0]
        assert now == value, f"{rule}: now {show(now)} is there, not {show(value)}"

    # One value

    def test_an_empty_store_has_no_state(self) -> None:
        """Check that `get_state` returns None as long as no state was stored."""
        rule = "rule: a state that nobody has stored is None"
        found = self._backend().get_state()
        assert found is None, f"{rule}: get_state returned {show(found)}"

    def test_a_state_is_stored_without_a_token_only_if_there_is_none(self) -> None:
        """Check that the first writer wins, and that the second gets the stored state."""
        one, two = self._backend(), self._backend()
        rule = "rule: without a token a state is stored if there is none"
        first = set_state(one, b"one")
        assert first is not None, f"{rule}: after set_state(b'one') on an empty store it is empty"
        assert first[2] is not False, f"{rule}: set_state(b'one') on an empty store stored nothing"
        assert first[0] == b"one", f"{rule}: set_state(b'one') returned {show(first)}"
        rule = "rule: without a token nothing is stored if there is a state"
        second = set_state(two, b"two")
        assert second is not None, f"{rule}: b'one' was there, and nothing is"
        assert not second[2], f"{rule}: set_state(b'two') says that it replaced b'one'"
        self._has(rule, b"one")
        rule = "rule: a set that stores nothing returns what is there"
        assert second[0] == b"one", f"{rule}: it returned {show(second)}, but b'one' is there"

    def test_a_token_of_get_or_of_set_replaces_that_version(self) -> None:
        """Check that a token of `get_state` or `set_state` replaces its version.

        Both give the same token for it, also in different objects.
        """
        one, two = self._backend(), self._backend()
        token = self._store(one, b"one", None)
        rule = "rule: a token that set_state returned replaces that version"
        after = set_state(one, b"two", token)
        assert after is not None, f"{rule}: nothing is there"
        assert after[2] is not False, f"{rule}: nothing was stored"
        self._has(rule, b"two")
        rule = "rule: a token that get_state returned replaces that version"
        found = two.get_state()
        assert found is not None, f"{rule}: another object finds no state"
        after = set_state(two, b"three", found[1])
        assert after is not None, f"{rule}: nothing is there"
        assert after[2] is not False, f"{rule}: nothing was stored"
        self._has(rule, b"three")
        rule = "rule: the token of get_state is that of the set which stored the state"
        now = one.get_state()
        assert now is not None, f"{rule}: get_state returned None"
        assert now[1] == after[1], f"{rule}: {now[1]!r} is not {after[1]!r}"

    def test_a_stale_token_stores_nothing(self) -> None:
        """Check that a refused swap returns the present state, with a usable token."""
        one, two = self._backend(), self._backend()
        stale = self._store(one, b"one", None)
        self._store(two, b"two", stale)
        rule = "rule: a set with a stale token stores nothing"
        after = set_state(one, b"late", stale)
        self._has(rule, b"two")
        rule = "rule: a set with a stale token returns what is there"
        assert after is not None, f"{rule}: b'two' was there, and nothing is"
        assert not after[2], f"{rule}: it says that b'late' was stored"
        assert after[0] == b"two", f"{rule}: it returned {show(after)}, but b'two' is there"
        self._store(one, b"three", after[1])
        self._has("rule: the token that a failed set returns can be used", b"three")

    def test_two_writers_of_equal_bytes_are_told_apart(self) -> None:
        """Check that of two writers with the same token only the first is told that it stored."""
        one, two = self._backend(), self._backend()
        token = self._store(one, b"start", None)
        self._store(one, b"same", token)
        after = set_state(two, b"same", token)
        rule = "rule: of two sets with the same token one stores, though the bytes are equal"
        assert after is not None, f"{rule}: after the second nothing is there"
        assert not after[2], f"{rule}: both were told that they did"

    def test_every_version_has_a_token_of_its_own(self) -> None:
        """Check that each version has a new token, even when the same bytes come back."""
        backend = self._backend()
        rule = "rule: every successful set gives a token that differs from all earlier ones"
        token, earlier = None, []
        for number in range(12):
            token = self._store(backend, b"odd" if number % 3 else b"even", token)
            assert token is not None, f"{rule}: set {number + 1} gave None"
            assert token not in earlier, f"{rule}: set {number + 1} gave {token!r} again"
            earlier.append(token)

    def test_a_token_that_nobody_returned_stores_nothing(self) -> None:
        """Check that an invented token stores nothing, or is refused with a clear error."""
        backend = self._backend()
        rule = "rule: a token that no call returned is refused with an error or stores nothing"
        for is_there in (False, True):
            if is_there:
                self._store(backend, b"there", None)
            for token in NO_TOKENS:
                after, refusal = attempt(partial(backend.set_state, b"intruder", token))
                assert refusal is None or str(refusal), f"{rule}: {token!r}: {refusal!r} is empty"
                assert after is None or not after[2], f"{rule}: token={token!r} was taken"
                self._has(f"{rule}: token={token!r}", b"there" if is_there else None)

    def test_any_bytes_come_back_as_they_were(self) -> None:
        """Check states of all byte values, from empty to `max_bytes` or 1 MiB."""
        one, two = self._backend(), self._backend()
        token = None
        rule = "rule: a state comes back as it was stored"
        for value in (value[: self.max_bytes] for value in VALUES):
            token = self._store(one, value, token)
            for reader in (one, two):
                found = reader.get_state()
                assert found is not None, f"{rule}: {len(value)} bytes came back as None"
                assert found[0] == value, (
                    f"{rule}: {show(value)} of {len(value)} bytes came back as "
                    f"{show(found[0])} of {len(found[0])} bytes"
                )

    def test_no_update_is_lost(self) -> None:
        """Check that eight threads can count together, each with its own backend."""
        rule = "rule: no update is lost"

        def count() -> None:
            backend, ends_at = self._backend(), time.monotonic() + self.limit_s
            for number in range(INCREMENTS):
                found, stored = backend.get_state(), False
                while not stored:
                    assert time.monotonic() < ends_at, (
                        f"rule: of writers with the current token one gets through: "
                        f"increment {number} did not within {self.limit_s:g} s"
                    )
                    value, token = (b"0", None) if found is None else found
                    assert value.isdigit(), f"{rule}: {show(value)} is there, which nobody stored"
                    after = set_state(backend, b"%d" % (int(value) + 1), token)
                    assert after is not None, f"{rule}: after a set nothing is there"
                    found, stored = after[:2], after[2] is not False
                    says_all.append(after[2] is not None)

        says_all: list[bool] = []
        at_once([count] * THREADS)
        if all(says_all):  # else nobody knows how often it has counted
            self._has(f"{rule}: {THREADS} threads added 1 {INCREMENTS} times", b"%d" % COUNTED)

    def test_jobs_do_not_meet(self) -> None:
        """Check that another run id has another state."""
        other = self._other()
        if other is None:
            return
        backend = self._backend()
        rule = "rule: the states of two run ids do not meet"
        token = self._store(backend, b"one", None)
        found = other.get_state()
        assert found is None, f"{rule}: the other job finds {show(found)}"
        self._store(other, b"other", None)
        self._has(rule, b"one")
        self._store(backend, b"two", token)
        found = other.get_state()
        assert found is not None, f"{rule}: the other job's state is gone"
        assert found[0] == b"other", f"{rule}: the other job finds {show(found)}"

    # Waiting

    def test_a_wait_for_an_older_version_ends_at_once(self) -> None:
        """Check that a wait is told of a change that came before it began."""
        backend, writer = self._backend(), self._backend()
        rule = "rule: wait_for_change is True if the state changed before it began"
        if isinstance(backend.inner, WakingBackend):
            token = self._store(writer, b"one", None)
            assert backend.wait_for_change(None, self.limit_s / 2), f"{rule}: from none to one"
            self._store(writer, b"two", token)
            assert backend.wait_for_change(token, self.limit_s / 2), f"{rule}: from one to two"

    def test_a_wait_ends_when_the_state_changes(self) -> None:
        """Check that a wait ends when another object changes the state, in another thread."""
        backend, writer = self._backend(), self._backend()
        if not isinstance(backend.inner, WakingBackend):
            return
        rule = "rule: wait_for_change is True when the state changes"
        token = None
        for value in (b"one", b"two"):
            seen: list[bool] = []

            def wait(token: Token = token, seen: list[bool] = seen) -> None:
                seen.append(backend.wait_for_change(token, self.limit_s / 2))

            waiter = threading.Thread(target=wait, daemon=True)
            waiter.start()
            token = self._store(writer, value, token)
            waiter.join(self.limit_s)
            assert seen == [True], f"{rule}: {value!r} was stored meanwhile, and it saw {seen}"

    def test_a_wait_without_a_change_lasts_as_long_as_it_was_told(self) -> None:
        """Check that a wait in which nothing changes returns False after its timeout.

        A false alarm is allowed, but not each time.
        """
        backend, calls = self._backend(), 3
        if not isinstance(backend.inner, WakingBackend):
            return
        token = None
        for value in (None, b"one"):
            if value is not None:
                token = self._store(backend, value, token)
            began_at = time.monotonic()
            seen = [backend.wait_for_change(token, PAUSE_S) for _ in range(calls)]
            lasted_s = time.monotonic() - began_at
            rule = "rule: wait_for_change is False when nothing changes"
            assert False in seen, f"{rule}: {calls} waits were True"
            rule = "rule: wait_for_change is False only after its timeout"
            quick = f"{seen.count(False)} waits of {PAUSE_S} s lasted {lasted_s:.3f} s"
            assert lasted_s > seen.count(False) * PAUSE_S * 0.5, f"{rule}: {quick}"

    # Beats

    def test_beats_are_kept_for_each_node(self) -> None:
        """Check the nodes' counters, which are stored beside the state and do not change it."""
        one, two = self._backend(), self._backend()
        if not isinstance(one.inner, BeatingBackend):
            return
        rule = "rule: the beat of a node that has none is -1"
        absent = two.get_beats(NODES)
        assert absent == [-1] * len(NODES), f"{rule}: get_beats returned {absent}"
        token = self._store(one, b"state", None)
        rule = "rule: get_beats returns the newest beats in the order of the nodes"
        for round_ in range(2):
            for number, node in enumerate(NODES[:-1]):
                one.set_beat(node, number + 10**6 * round_)
            wanted = [number + 10**6 * round_ for number in range(len(NODES) - 1)]
            asked = [NODES[-1], *reversed(NODES[:-1])]
            self._soon(rule, partial(two.get_beats, asked), [-1, *reversed(wanted)])
        assert two.get_beats([]) == [], f"{rule}: no nodes have {two.get_beats([])}"
        rule = "rule: a beat does not change the state"
        found = two.get_state()
        assert found == (b"state", token), f"{rule}: {show(found)}, not {(b'state', token)}"
        if (other := self._other()) is not None:
            rule = "rule: the beats of two run ids do not meet"
            assert other.get_beats(NODES[:1]) == [-1], f"{rule}: {other.get_beats(NODES[:1])}"

    # Join requests

    def test_join_requests_are_numbered_and_kept_in_order(self) -> None:
        """Check that join requests are numbered from one, without a gap, and come back in order."""
        one, two = self._backend(), self._backend()
        if not isinstance(one.inner, JoinRequestBackend):
            return
        rule = "rule: join_requests_after is empty when nobody has written"
        assert two.join_requests_after(0) == [], f"{rule}: it is {show(two.join_requests_after(0))}"
        rule = "rule: join requests are numbered 1, 2, 3 and so on"
        numbers = [
            (one if n % 2 else two).post_join_request(value) for n, value in enumerate(VALUES)
        ]
        assert numbers == list(range(1, len(VALUES) + 1)), f"{rule}: {numbers}"
        rule = "rule: join_requests_after gives the later ones, as they were posted, in order"
        for after in (0, 2, len(VALUES) - 1, len(VALUES)):
            wanted = list(VALUES[after:])
            self._soon(rule, partial(two.join_requests_after, after), wanted)
        if (other := self._other()) is not None:
            rule = "rule: the join requests of two run ids do not meet"
            assert other.post_join_request(b"other") == 1, (
                f"{rule}: the first of another job is not 1"
            )
            assert one.join_requests_after(len(VALUES)) == [], f"{rule}: it arrived here too"

    def test_no_join_request_is_lost(self) -> None:
        """Check that eight threads can write join requests at once, each with its own number."""
        if not isinstance(self._backend().inner, JoinRequestBackend):
            return
        posted: dict[int, bytes] = {}

        def post(author: int) -> None:
            backend = self._backend()
            for number in range(INCREMENTS):
                request = b"%d.%d" % (author, number)
                posted[backend.post_join_request(request)] = request

        at_once([partial(post, author) for author in range(THREADS)])
        rule = "rule: every join request has a number of its own"
        assert sorted(posted) == list(range(1, COUNTED + 1)), f"{rule}: {sorted(posted)}"
        rule = "rule: no join request is lost"
        backend, wanted = self._backend(), [posted[number] for number in sorted(posted)]
        self._soon(rule, lambda: backend.join_requests_after(0), wanted)

    # Deleting

    def test_join_requests_that_are_deleted_are_gone_and_their_numbers_not_used_again(
        self,
    ) -> None:
        """Check that deleted join requests read as None, and that their numbers stay used.

        Deleting one twice is no error.
        """
        one, two = self._backend(), self._backend()
        if not (
            isinstance(one.inner, JoinRequestBackend) and isinstance(one.inner, ForgettingBackend)
        ):
            return
        for value in VALUES[:3]:
            one.post_join_request(value)
        one.delete_join_requests([1, 2])
        one.delete_join_requests([2])
        one.delete_join_requests([])
        rule = "rule: a join request that was deleted is None"
        self._soon(rule, partial(two.join_requests_after, 0), [None, None, VALUES[2]])
        rule = "rule: the number of a join request that was deleted is not used again"
        assert two.post_join_request(b"next") == 4, rule

    def test_a_beat_that_is_deleted_is_gone(self) -> None:
        """Check that a deleted counter reads as -1 and can be set again, and that others stay."""
        one, two = self._backend(), self._backend()
        if not (isinstance(one.inner, BeatingBackend) and isinstance(one.inner, ForgettingBackend)):
            return
        for node in NODES[:2]:
            one.set_beat(node, 7)
        for _ in range(2):
            one.delete_beat(NODES[0])
        self._soon(
            "rule: a beat that was deleted is -1", partial(two.get_beats, NODES[:2]), [-1, 7]
        )
        one.set_beat(NODES[0], 8)
        rule = "rule: a beat can be set again"
        self._soon(rule, partial(two.get_beats, NODES[:2]), [8, 7])


def set_state(
    backend: BoundedBackend, state: bytes, token: Token | None = None
) -> tuple[bytes, Token, bool | None] | None:
    """Set the state, and return what is there then, its token, and whether this call stored it.

    The last is None if the backend does not say. Returns None if no state is there.
    """
    after = backend.set_state(state, token)
    if after is not None:
        return after
    found = backend.get_state()
    return None if found is None else (*found, None)


def attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of a call, or its exception.

    The AssertionError of a broken rule is raised.
    """
    try:
        return call(), None
    except AssertionError:
        raise
    except Exception as error:
        return None, error


def at_once(calls: list[Callable[[], None]]) -> None:
    """Run the calls in threads, wait for them, and raise the first exception of one of them."""
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
    """The calls of another backend, each in a thread of its own, with a time limit.

    Raises AssertionError, which names the rule, for a call that does not end in time. Likewise for
    an invalid value of `get_state`, `set_state` or `wait_for_change`.
    """

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
    """Return the first 60 characters of a value's `repr`, for a message."""
    return f"{value!r:.60}"
