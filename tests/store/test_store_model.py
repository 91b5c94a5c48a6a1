"""Any requests of several clients, one after the other, are served as a plain model says.

All of it: values, counters, queues, waits and who is woken by what, barriers, clients that go away
while they wait. After each request every client is asked what it has received, so that an answer
too many shows as well as one too few.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.fuzz.store_conversation import Store
from tests.harness.properties import IS_SEARCH, explore
from tests.harness.store_model import Closed, Model
from tests.harness.store_process import VALIDATE, Field, RawClient, encode, store_process

from rallypoint.wire.c10d_fields import Opcode

CLIENTS = range(6)
STEPS = 40

KEYS = b"", b"a", b"q"

keys = st.sampled_from(KEYS[:2])
queues = st.sampled_from(KEYS[1:])
contents = st.sampled_from([b"", b"1", b"-7", b"12abc", b"\x00\xff"])
deltas = st.sampled_from([0, 1, -5, 2**63 - 1, -(2**63)])
several = st.lists(keys, max_size=3)
clients = st.sampled_from(CLIENTS)
requests = st.one_of(
    st.tuples(st.just(Opcode.SET), keys, contents),
    st.tuples(st.just(Opcode.APPEND), keys, contents),
    st.tuples(st.just(Opcode.COMPARE_SET), keys, contents, contents),
    st.tuples(st.just(Opcode.MULTI_SET), st.lists(st.tuples(keys, contents), max_size=3)),
    st.tuples(st.just(Opcode.ADD), keys, deltas),
    st.tuples(st.sampled_from([Opcode.GET, Opcode.DELETE_KEY]), keys),
    st.tuples(st.sampled_from([Opcode.MULTI_GET, Opcode.CHECK]), several),
    st.tuples(st.sampled_from([Opcode.GETNUMKEYS, Opcode.CANCEL_WAIT])),
    st.tuples(st.just(Opcode.BARRIER), keys, st.integers(-1, 4)),
    *(st.tuples(st.just(Opcode.DELETE_KEY), keys) for _ in range(3)),
    *(st.tuples(st.just(Opcode.QUEUE_PUSH), queues, contents) for _ in range(2)),
    *(st.tuples(st.just(opcode), queues) for opcode in (Opcode.QUEUE_POP, Opcode.QUEUE_LEN)),
    *(
        st.tuples(st.just(Opcode.WAIT), st.lists(awaited, min_size=1, max_size=2, unique=True))
        for awaited in (keys, queues, queues, keys | queues)
    ),
)
"""Those by which clients wait, or are woken, are asked more often."""


class Memory(RawClient):
    """A client of a store without a socket, to try very many things."""

    ids = count()

    def __init__(self, store: Store) -> None:
        self._store, self._id, self._pings = store, next(self.ids), 0
        self.send(VALIDATE)

    def send(self, data: bytes) -> None:
        self._store.deliver(self._id, data)

    def read_answers(self) -> bytes:
        found = self._store.replies[self._id]
        answers = bytes(found).removesuffix(self._pong)
        found.clear()
        return answers

    def is_closed(self) -> bool:
        return self._id in self._store.closed

    def close(self) -> None:
        """Nothing is kept of who has gone, nor of a wait that is over."""
        self._store.deliver(self._id, None)
        machine = self._store.machine
        waiting = *machine.waiting_for_key.values(), *machine._waiting_at_barrier.values()
        assert all(waiting)
        assert self._id not in {*machine.waits, *machine.reserved}.union(*waiting)
        assert machine._reservations == Counter(machine.reserved.values())


class Clients(RuleBasedStateMachine):
    """Several clients of one store; `begin` gives the way to connect to an empty one."""

    begin: Callable[[], Callable[[], RawClient]]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.connect = type(self).begin()
        self.clients: dict[int, RawClient] = {}

    @rule(asked=st.lists(st.tuples(clients, requests), min_size=4, max_size=12))
    def ask(self, asked: list[tuple[int, tuple[Opcode, *tuple[Field, ...]]]]) -> None:
        for client, request in asked:
            self.step(client, *request)

    @rule(client=clients)
    def go_away(self, client: int) -> None:
        if client in self.clients:
            self.clients.pop(client).close()
            self.wait_gone(client)
            self.model.drop(client)
            self.compare()

    @rule(client=clients)
    def list_keys(self, client: int) -> None:
        """In no promised order."""
        if self.model.is_waiting(client):
            return
        found = self.connection(client).ask(Opcode.LIST_KEYS)
        self.model.offer(self.model.reserved.pop(client, None))
        assert sorted(strings(found[8:])) == sorted(self.model.values)
        assert found[:8] == self.model.getnumkeys()
        self.compare()

    def step(self, client: int, opcode: Opcode, *fields: Field) -> None:
        """One request; nothing is asked by a client that waits, which can only cancel."""
        if self.model.is_waiting(client) and opcode is not Opcode.CANCEL_WAIT:
            return
        self.connection(client).send(encode(opcode, *fields))
        try:
            self.model.step(client, opcode, *fields)
        except Closed:
            closed = self.clients.pop(client)
            assert closed.is_closed()
            closed.close()
            self.wait_gone(client)
            self.model.drop(client)
        self.compare(first=client)

    def compare(self, first: int | None = None) -> None:
        """The one who asked comes first: once it has its answers, the others have theirs."""
        expected, self.model.outbox = self.model.outbox, {}
        assert set(expected) <= set(self.clients)
        asked = [client for client in self.clients if client == first]
        for group in asked, [client for client in self.clients if client != first]:
            for client in group:
                self.clients[client].ping()
            for client in group:
                answers = expected.get(client, b"")
                assert self.clients[client].read_answers() == answers, client

    def connection(self, client: int) -> RawClient:
        if client not in self.clients:
            self.clients[client] = self.connect()
        return self.clients[client]

    def wait_gone(self, client: int) -> None:
        """The server has noticed by the time that it serves one who came later."""
        late = self.connect()
        late.ask(Opcode.CHECK, [])
        late.close()

    def teardown(self) -> None:
        for client in self.clients.values():
            client.close()


def strings(data: bytes) -> Iterator[bytes]:
    """Those that follow one another."""
    while data:
        (size,) = struct.unpack_from("<Q", data)
        yield data[8 : 8 + size]
        data = data[8 + size :]


def emptied(port: int) -> Callable[[], RawClient]:
    """The way to connect to a store that has served others before."""
    cleaner = RawClient(port)
    left = strings(cleaner.ask(Opcode.LIST_KEYS)[8:])
    cleaner.send(b"".join(encode(Opcode.DELETE_KEY, key) for key in left))
    for key in KEYS:
        length = cleaner.ask(Opcode.QUEUE_LEN, key)[-8:]
        cleaner.send(encode(Opcode.QUEUE_POP, key) * struct.unpack("<q", length)[0])
    cleaner.ask(Opcode.GETNUMKEYS)
    cleaner.close()
    return partial(RawClient, port)


def hold(begin: Callable[[], Callable[[], RawClient]], count: int, *phases: Phase) -> None:
    """Let clients do whatever comes to mind."""
    machine = type("Begun", (Clients,), {"begin": begin})
    explore(machine, count, STEPS, phases=(Phase.generate, *phases))


def test_the_machine_does_what_a_plain_model_does() -> None:
    """What fails is made smaller in a search only: that takes minutes."""
    smaller = [Phase.shrink] if IS_SEARCH else []
    hold(staticmethod(lambda: partial(Memory, Store())), 400, *smaller)


def test_the_server_does_what_a_plain_model_does() -> None:
    """What fails is not made smaller: over sockets that takes longer, and says no more."""
    with store_process() as running:
        hold(staticmethod(partial(emptied, running.port)), 20)
