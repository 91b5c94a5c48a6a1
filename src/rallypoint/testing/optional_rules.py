"""The rules about what a rendezvous backend may leave out, for those that have it."""

from __future__ import annotations

import threading
import time
from functools import partial

from rallypoint.rendezvous.backend import (
    BeatingBackend,
    ForgettingBackend,
    JoinRequestBackend,
    Token,
    WakingBackend,
)
from rallypoint.testing.backend_suite import (
    COUNTED,
    INCREMENTS,
    THREADS,
    VALUES,
    BackendSuite,
    at_once,
    show,
)

NODES = ("node1", "10.0.0.1_4711_0", "a/b c", "nœud.é", "node10")
PAUSE_S = 0.2
"""A wait in which nothing happens."""


class OptionalRules(BackendSuite):
    """Waiting, beats, join requests, and deleting what was read."""

    # Waiting

    def test_a_wait_for_an_older_version_endsat_once(self) -> None:
        """Whatever was stored before it began."""
        backend, writer = self._backend(), self._backend()
        rule = "rule: wait_for_change is True if the state changed before it began"
        if isinstance(backend.inner, WakingBackend):
            token = self._store(writer, b"one", None)
            assert backend.wait_for_change(None, self.limit_s / 2), f"{rule}: from none to one"
            self._store(writer, b"two", token)
            assert backend.wait_for_change(token, self.limit_s / 2), f"{rule}: from one to two"

    def test_a_wait_ends_when_the_state_changes(self) -> None:
        """By another object, from another thread."""
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
        """A false alarm is allowed; nothing else but a false alarm is not."""
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
        """Beside the state, which they do not change."""
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
        """From one, without a gap, for all nodes."""
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
        """Eight threads write at once."""
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
        """Also those that never were."""
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
        """Others stay, and another one may be set."""
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
