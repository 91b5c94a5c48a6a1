"""The key-value machine: who is woken, who has reserved what, and what is kept of either.

What each operation answers is shown by the conformance of the stores, and against a plain model by
test_store_model.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.properties import examples
from tests.harness.store_client import i64, text

from rallypoint.errors import ProtocolError
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_fields import NOT_READY, STOP_WAITING, WAIT_CANCELED
from rallypoint.wire.c10d_server import (
    Add,
    Append,
    Barrier,
    CancelWait,
    Check,
    CompareSet,
    CountKeys,
    DeleteKey,
    Get,
    MultiSet,
    QueueLength,
    QueuePop,
    QueuePush,
    Set,
    WaitKeys,
)

A, B, C = 1, 2, 3


class Store:
    """A machine with a short way to ask: the replies that one request causes."""

    def __init__(self) -> None:
        self.machine = KeyValueMachine()

    def __call__(self, client: int, request: c10d.StoreRequest) -> list[tuple[int, bytes]]:
        return self.machine.apply(client, request)

    def is_clean(self) -> bool:
        """Nobody waits, and nothing is kept of those who did."""
        machine = self.machine
        return not (
            machine.waits
            or machine.waiting_for_key
            or machine._waiting_at_barrier
            or machine.reserved
            or machine._reservations
        )


@pytest.fixture
def store() -> Store:
    return Store()


def test_append_grows_a_value_past_the_limit_of_a_set(store: Store) -> None:
    for _ in range(3):
        assert store(A, Append(b"k", b"x" * (4 << 20))) == []
    assert store(A, Get(b"k")) == [(A, text(b"x" * (12 << 20)))]
    store(A, Set(b"k", b"short"))
    store(A, Append(b"k", b"+"))
    assert store(A, Get(b"k")) == [(A, text(b"short+"))]
    assert store(A, CompareSet(b"k", b"short+", b"done")) == [(A, text(b"done"))]


@pytest.mark.parametrize(
    ("write", "own_reply"),
    [
        (Set(b"k", b""), []),
        (Add(b"k", 1), [(B, i64(1))]),
        (Append(b"k", b""), []),
        (MultiSet(((b"x", b""), (b"k", b""))), []),
        (CompareSet(b"k", b"", b"v"), [(B, text(b"v"))]),
    ],
)
def test_a_write_wakes_all_who_wait(
    store: Store, write: c10d.StoreRequest, own_reply: list[tuple[int, bytes]]
) -> None:
    assert store(A, WaitKeys((b"k", b"k"))) == []
    assert store(C, WaitKeys((b"k",))) == []
    assert store(B, write) == [*own_reply, (A, STOP_WAITING), (C, STOP_WAITING)]
    assert store.is_clean()
    assert store(A, WaitKeys((b"k",))) == [(A, STOP_WAITING)]


def test_cancel_is_always_answered(store: Store) -> None:
    assert store(A, CancelWait()) == [(A, WAIT_CANCELED)]
    store(A, WaitKeys((b"k", b"l")))
    assert store(A, CancelWait()) == [(A, WAIT_CANCELED)]
    assert store.is_clean()
    assert store(B, Set(b"k", b"")) == []
    store(A, Barrier(b"b", 2))
    assert store(A, CancelWait()) == [(A, WAIT_CANCELED)]
    assert store.is_clean()


def test_a_second_wait_while_one_is_pending_is_refused(store: Store) -> None:
    store(A, WaitKeys((b"k",)))
    for second in (WaitKeys((b"l",)), Barrier(b"b", 2)):
        with pytest.raises(ProtocolError, match="second wait"):
            store(A, second)
    assert store(B, CountKeys()) == [(B, i64(0))]


def test_a_client_that_is_gone_is_not_answered(store: Store) -> None:
    store(A, WaitKeys((b"k", b"l")))
    store(B, Barrier(b"b", 3))
    assert store.machine.drop(A) == []
    assert store.machine.drop(B) == []
    assert store.machine.drop(C) == []
    assert store.is_clean()
    assert store(C, Set(b"k", b"")) == []
    assert store(C, Get(b"b")) == [(C, text(b"1"))]


def test_the_next_is_woken_when_the_first_does_not_take_its_value(store: Store) -> None:
    store(A, WaitKeys((b"q",)))
    store(B, WaitKeys((b"q",)))
    store(C, WaitKeys((b"q",)))
    store(4, QueuePush(b"q", b"1"))
    assert store.machine.drop(A) == [(B, STOP_WAITING)]
    assert store(B, CancelWait()) == [(B, WAIT_CANCELED), (C, STOP_WAITING)]
    assert store(C, QueuePop(b"q")) == [(C, i64(1) + text(b"1"))]
    assert store.is_clean()


def test_what_a_push_woke_somebody_for_is_not_taken_by_another_pop(store: Store) -> None:
    store(A, WaitKeys((b"q",)))
    assert store(C, QueuePush(b"q", b"1")) == [(A, STOP_WAITING)]
    assert store(B, QueuePop(b"q")) == [(B, i64(0))]
    assert store(B, QueueLength(b"q")) == [(B, i64(0))]
    assert store(B, Check((b"q",))) == [(B, NOT_READY)]
    assert store(B, WaitKeys((b"q",))) == []
    assert store(A, QueuePop(b"q")) == [(A, i64(1) + text(b"1"))]
    assert store(C, QueuePush(b"q", b"2")) == [(B, STOP_WAITING)]
    assert store(B, QueuePop(b"q")) == [(B, i64(1) + text(b"2"))]
    assert store.is_clean()


def test_who_does_something_else_gives_up_what_it_reserved(store: Store) -> None:
    store(C, QueuePush(b"q", b"1"))
    assert store(A, WaitKeys((b"q",))) == [(A, STOP_WAITING)]
    assert store(B, WaitKeys((b"q",))) == []
    assert store(A, QueueLength(b"q")) == [(A, i64(1)), (B, STOP_WAITING)]
    assert store(A, QueuePop(b"q")) == [(A, i64(0))]
    store(A, Set(b"text", b"x"))
    store(A, WaitKeys((b"q",)))
    with pytest.raises(ProtocolError):  # whose client is closed: only its end frees the item
        store(B, Add(b"text", 1))
    assert store.machine.drop(B) == [(A, STOP_WAITING)]
    assert store(A, QueuePop(b"q")) == [(A, i64(1) + text(b"1"))]
    assert store.is_clean()


def test_what_is_stored_is_counted_and_limited() -> None:
    entry = 128
    machine = KeyValueMachine(max_bytes=2 * (entry + 10))
    machine.apply(A, Set(b"key-1", b"12345"))
    machine.apply(A, QueuePush(b"queue", b"12345"))
    assert machine.stored_bytes == 2 * (entry + 10)
    more: list[c10d.StoreRequest] = [
        Set(b"k", b""),
        Set(b"key-1", b"123456"),
        Append(b"key-1", b"6"),
        Add(b"n", 1),
        CompareSet(b"k", b"", b""),
        MultiSet(((b"k", b""),)),
        QueuePush(b"queue", b""),
        Barrier(b"b", 2),
    ]
    for request in more:
        with pytest.raises(ProtocolError, match=r"limit of 276 .*--max-memory"):
            machine.apply(A, request)
    assert machine.stored_bytes == 2 * (entry + 10)
    machine.apply(A, Set(b"key-1", b"54321"))
    machine.apply(A, QueuePop(b"queue"))
    assert machine.stored_bytes == entry + 10
    machine.apply(A, MultiSet(((b"key-2", b"1234"), (b"key-2", b"12345"))))
    assert machine.stored_bytes == 2 * (entry + 10)
    for key in (b"key-1", b"key-2"):
        machine.apply(A, DeleteKey(key))
    assert machine.stored_bytes == 0


def test_barrier_lets_all_go_at_world_size_and_is_never_reset(store: Store) -> None:
    assert store(A, Barrier(b"b", 3)) == []
    assert store(B, Barrier(b"b", 3)) == []
    store.machine.drop(B)  # stays counted
    assert store(C, Barrier(b"b", 3)) == [(C, STOP_WAITING), (A, STOP_WAITING)]
    assert store(A, Barrier(b"b", 3)) == [(A, STOP_WAITING)]
    assert store(A, Get(b"b")) == [(A, text(b"4"))]
    assert store.is_clean()


names = st.sampled_from([b"a", b"b", b"c"])
clients = st.integers(1, 4)
steps = st.one_of(
    st.builds(Set, names, names),
    st.builds(DeleteKey, names),
    st.builds(WaitKeys, st.lists(names, min_size=1, max_size=3).map(tuple)),
    st.builds(CancelWait),
    st.builds(QueuePush, names, names),
    st.builds(QueuePop, names),
    st.none(),  # the client goes away
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(clients, steps), max_size=40))
def test_every_wait_is_answered_once_and_nobody_sleeps_beside_a_full_queue(
    script: list[tuple[int, c10d.StoreRequest | None]],
) -> None:
    machine = KeyValueMachine()
    waiting: set[int] = set()
    for client, request in script:
        if request is None:
            waiting.discard(client)
            replies = machine.drop(client)
        elif client in waiting and not isinstance(request, CancelWait):
            continue  # a client of torch does nothing else while it waits
        else:
            if isinstance(request, WaitKeys):
                waiting.add(client)
            replies = machine.apply(client, request)
        for receiver, reply in replies:
            if receiver == client and isinstance(request, CancelWait) and reply == WAIT_CANCELED:
                waiting.discard(client)
            elif reply == STOP_WAITING:
                assert receiver in waiting
                waiting.remove(receiver)
        assert set(machine.waits) == waiting
        for key, queue in machine._queues.items():
            sleeping_for_it_alone = [
                who for who, wait in machine.waits.items() if getattr(wait, "missing", 0) == {key}
            ]
            reserved = list(machine.reserved.values()).count(key)
            assert machine._reservations.get(key, 0) == reserved <= len(queue)
            assert not sleeping_for_it_alone or reserved == len(queue)
            assert queue
    for client in range(1, 5):
        machine.drop(client)
    assert not machine.waits
    assert not machine.waiting_for_key
    assert not machine.reserved
    assert not machine._reservations
