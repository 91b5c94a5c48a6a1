"""The contract of `RendezvousBackend` as tests: subclass it beside your backend, run pytest.

    class TestMyBackend(RendezvousBackendContract):
        def make_backend(self):
            return MyBackend(self.store, run_id="job")

Every message of a failed test begins with the rule that is broken. A rule about what a backend
may leave out (waiting, beats, join requests, deleting) is checked if the backend has it. A backend
whose `set_state` says nothing is believed what it then reads, as the rendezvous does.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rallypoint.testing.backend_suite import (
    COUNTED,
    INCREMENTS,
    THREADS,
    VALUES,
    at_once,
    attempt,
    set_state,
    show,
)
from rallypoint.testing.optional_rules import OptionalRules

NO_TOKENS: tuple[Any, ...] = ("no token", b"no token", b"", -1, 1.5, (), object())


class RendezvousBackendContract(OptionalRules):
    """What every backend must do. A test is a fresh object of the subclass."""

    # One value

    def test_an_empty_store_has_no_state(self) -> None:
        """And nothing waits for one."""
        rule = "rule: a state that nobody has stored is None"
        found = self._backend().get_state()
        assert found is None, f"{rule}: get_state returned {show(found)}"

    def test_a_state_is_stored_without_a_token_only_if_there_is_none(self) -> None:
        """The first writer wins, and the second is told what is there."""
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
        """Whichever object it came from."""
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
        """It returns what is there, with a token that can be used."""
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
        """Only one of them has stored them."""
        one, two = self._backend(), self._backend()
        token = self._store(one, b"start", None)
        self._store(one, b"same", token)
        after = set_state(two, b"same", token)
        rule = "rule: of two sets with the same token one stores, though the bytes are equal"
        assert after is not None, f"{rule}: after the second nothing is there"
        assert not after[2], f"{rule}: both were told that they did"

    def test_every_version_has_a_token_of_its_own(self) -> None:
        """Also when the same bytes come back."""
        backend = self._backend()
        rule = "rule: every successful set gives a token that differs from all earlier ones"
        token, earlier = None, []
        for number in range(12):
            token = self._store(backend, b"odd" if number % 3 else b"even", token)
            assert token is not None, f"{rule}: set {number + 1} gave None"
            assert token not in earlier, f"{rule}: set {number + 1} gave {token!r} again"
            earlier.append(token)

    def test_a_token_that_nobody_returned_stores_nothing(self) -> None:
        """Or is refused with a clear error."""
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
        """From none to a MiB of them, of all values."""
        one, two = self._backend(), self._backend()
        token = None
        rule = "rule: a state comes back as it was stored"
        for value in VALUES:
            token = self._store(one, value, token)
            for reader in (one, two):
                found = reader.get_state()
                assert found is not None, f"{rule}: {len(value)} bytes came back as None"
                assert found[0] == value, (
                    f"{rule}: {show(value)} of {len(value)} bytes came back as "
                    f"{show(found[0])} of {len(found[0])} bytes"
                )

    def test_no_update_is_lost(self) -> None:
        """Eight threads count together, each with a backend of its own."""
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
        """Another run id is another state."""
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
