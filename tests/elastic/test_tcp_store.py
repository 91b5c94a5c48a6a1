"""The store over TCP: real sockets, servers that misbehave in every way, and torch's own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed
from tests.conformance.stores import Call
from tests.harness.cluster import free_port
from tests.harness.limits import patience
from tests.harness.programs import run_program, run_python
from tests.harness.proxy import Proxy
from tests.harness.scripted_store import Act, Script, ScriptedStore

from rallypoint.elastic.stores import c10d_client as wire
from rallypoint.elastic.stores.c10d_operations import Exchange, Operation, Wait
from rallypoint.elastic.stores.tcp_client import MAX_LOSSES, TCPClient
from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.errors import StoreConnectionError, StoreQueueEmptyError, StoreTimeoutError
from rallypoint.wire import c10d_server as c10d

LIMIT_S = patience(60.0)


@pytest.fixture
def master() -> Iterator[TCPStore]:
    with TCPStore("127.0.0.1", 0, is_master=True, timeout=LIMIT_S) as store:
        yield store


def opened(server: ScriptedStore | TCPStore | Proxy, timeout: float = LIMIT_S) -> TCPStore:
    return TCPStore("127.0.0.1", server.port, timeout=timeout)


def on(kind: type[c10d.StoreRequest], act: Act | bytes, connections: int = 1) -> Script:
    """Does this to requests of one kind on the first connections, and serves everything else."""

    def script(connection: int, request: c10d.StoreRequest) -> Act | bytes:
        return act if type(request) is kind and connection < connections else Act.SERVE

    return script


def wait_until(condition: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(int(LIMIT_S / 0.005)):
        if condition():
            return
        turn.wait(0.005)
    raise AssertionError("the condition was never met")


# Connecting


def test_a_server_that_never_speaks_is_named_when_the_timeout_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StoreConnectionError, match=r"no answer.*\(tried for ") as error:
            TCPStore("127.0.0.1", port, timeout=0.3)
    assert (error.value.peer, error.value.doing) == (f"127.0.0.1:{port}", "connecting")


def test_a_store_where_nobody_listens_is_tried_until_the_timeout() -> None:
    port = free_port()
    with pytest.raises(StoreConnectionError, match="Connection refused"):
        TCPStore("127.0.0.1", port, timeout=0.2)


def test_a_server_that_comes_late_is_found() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(TCPStore, "127.0.0.1", port, timeout=LIMIT_S)
        with TCPStore("127.0.0.1", port, is_master=True) as server, client.result(LIMIT_S) as store:
            server.set("k", "v")
            assert store.get("k") == b"v"


@pytest.mark.parametrize("answer", [b"\1\2\3\4", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_store_is_told(answer: bytes) -> None:
    with (
        ScriptedStore(on(c10d.Ping, answer, connections=1000)) as server,
        pytest.raises(StoreConnectionError, match=r"not a c10d store|more than it was asked for"),
    ):
        opened(server, timeout=0.2)


# Servers that fall silent, close, or send nonsense


def test_a_server_that_falls_silent_is_an_error_for_every_call() -> None:
    def script(connection: int, request: c10d.StoreRequest) -> Act | bytes:
        return Act.SERVE if isinstance(request, c10d.Ping) else b""

    calls: dict[str, Callable[[TCPStore], object]] = {
        "get": lambda store: store.get("k"),
        "add": lambda store: store.add("k", 1),
        "wait": lambda store: store.wait(["k"]),
        "num_keys": lambda store: store.num_keys(),
    }

    def call(name: str) -> StoreConnectionError:
        with opened(server, timeout=0.1) as store:
            with pytest.raises(
                StoreConnectionError, match=f"{name} .*no answer within 5.0"
            ) as told:
                calls[name](store)
            with pytest.raises(StoreConnectionError, match="no answer"):
                store.check(["k"])
            return told.value

    with ScriptedStore(script) as server, ThreadPoolExecutor(len(calls)) as pool:
        for error in pool.map(call, calls):
            assert error.peer == f"127.0.0.1:{server.port}"


def prepared(store: TCPStore) -> None:
    store.set("k", "v")
    store.set("e", "")
    assert store.num_keys() == 2


REPEATABLE: list[tuple[type[c10d.StoreRequest], Callable[[TCPStore], object], object]] = [
    (c10d.Get, lambda store: store.get("k"), b"v"),
    (c10d.Get, lambda store: store.get("e"), b""),
    (c10d.Check, lambda store: store.check(["k", "e"]), True),
    (c10d.Check, lambda store: store.get("e"), b""),
    (c10d.MultiGet, lambda store: store.multi_get(["e", "k"]), [b"", b"v"]),
    (c10d.CountKeys, lambda store: store.num_keys(), 2),
    (c10d.ListKeys, lambda store: sorted(store.list_keys()), ["e", "k"]),
    (c10d.QueueLength, lambda store: store.queue_len("q"), 0),
]


@pytest.mark.parametrize(("kind", "call", "result"), REPEATABLE)
@pytest.mark.parametrize("act", [Act.CLOSE, Act.SERVE_AND_CLOSE])
def test_what_does_no_harm_twice_is_asked_again_elsewhere(
    kind: type[c10d.StoreRequest], call: Callable[[TCPStore], object], result: object, act: Act
) -> None:
    with ScriptedStore() as server, opened(server) as store:
        prepared(store)
        server.script = on(kind, act)
        assert call(store) == result
        assert server.connections == 2


def test_half_of_an_answer_counts_as_none() -> None:
    halves = {0: b"\x05", 1: b"\x05" + bytes(7), 2: b"\x05" + bytes(7) + b"valu"}
    gets = 0

    def script(connection: int, request: c10d.StoreRequest) -> Act | bytes:
        nonlocal gets
        if isinstance(request, c10d.Get) and connection in halves:
            gets += 1
            return halves[connection]
        return Act.SERVE

    with ScriptedStore(script) as server, opened(server) as store, ThreadPoolExecutor(1) as pool:
        store.set("k", "value")
        assert store.num_keys() == 1
        value = pool.submit(store.get, "k")
        for lost in range(len(halves)):
            wait_until(lambda expected=lost + 1: gets == expected)  # type: ignore[misc]
            server.close_connections()
        assert value.result(LIMIT_S) == b"value"
        assert server.connections == len(halves) + 1


ONCE: list[tuple[type[c10d.StoreRequest], Callable[[TCPStore], object]]] = [
    (c10d.Add, lambda store: store.add("n", 1)),
    (c10d.CompareSet, lambda store: store.compare_set("c", "", "1")),
    (c10d.DeleteKey, lambda store: store.delete_key("k")),
    (c10d.QueuePop, lambda store: store.queue_pop("q")),
    (c10d.Barrier, lambda store: store.barrier("b", 1)),
    # These two are not answered: only the next call can tell.
    (c10d.Append, lambda store: append_and_ask(store)),
    (c10d.QueuePush, lambda store: push_and_ask(store)),
]


def append_and_ask(store: TCPStore) -> None:
    store.append("k", "+")
    store.get("k")


def push_and_ask(store: TCPStore) -> None:
    store.queue_push("q", "2")
    store.queue_len("q")


@pytest.mark.parametrize(("kind", "call"), ONCE)
@pytest.mark.parametrize("act", [Act.CLOSE, Act.SERVE_AND_CLOSE])
def test_what_may_have_been_done_is_never_sent_twice(
    kind: type[c10d.StoreRequest], call: Callable[[TCPStore], object], act: Act
) -> None:
    with ScriptedStore() as server, opened(server) as store:
        prepared(store)
        store.queue_push("q", "1")
        assert store.queue_len("q") == 1
        server.script = on(kind, act, connections=100)
        before = len(server.requests(kind))
        with pytest.raises(StoreConnectionError, match=r"closed|reset|[Bb]roken"):
            call(store)
        assert len(server.requests(kind)) == before + 1
        with pytest.raises(StoreConnectionError, match=r"closed|reset|[Bb]roken"):
            store.get("k")
        assert server.connections == 1


def test_a_written_value_that_may_be_lost_is_told_by_the_next_call() -> None:
    with (
        ScriptedStore(on(c10d.Set, Act.CLOSE)) as server,
        opened(server) as store,
    ):
        store.set("k", "v")
        with pytest.raises(StoreConnectionError, match="what was written before may be lost"):
            store.num_keys()


def test_a_connection_lost_while_idle_is_replaced_for_every_call() -> None:
    with ScriptedStore() as server, opened(server) as store:
        for round_ in range(1, 4):
            server.close_connections()
            assert store.add("n", 1) == round_
            server.close_connections()
            store.set("k", str(round_))
            assert store.get("k") == str(round_).encode()
        assert server.connections == 7


def test_a_request_that_always_breaks_the_connection_is_given_up() -> None:
    with ScriptedStore(on(c10d.Check, Act.CLOSE, connections=1000)) as server:
        with opened(server) as store, pytest.raises(StoreConnectionError, match="check of 'k'"):
            store.check(["k"])
        assert server.connections == MAX_LOSSES + 1


@pytest.mark.parametrize(
    ("kind", "nonsense", "call", "told"),
    [
        (c10d.Check, b"\x07", lambda store: store.check(["k"]), "answered 7 where only 0 and 1"),
        (c10d.Check, b"\0\0", lambda store: store.check(["k"]), "more than it was asked for"),
        (c10d.Get, b"\xff" * 8, lambda store: store.get("k"), "value of 18446744073709551615 byte"),
        (c10d.ListKeys, b"\xff" * 8, lambda store: store.list_keys(), "it has -1 keys"),
        (c10d.QueuePop, b"\xff" * 8, lambda store: store.queue_pop("k"), "queue has -1 items"),
    ],
)
def test_nonsense_is_told_and_never_believed(
    kind: type[c10d.StoreRequest], nonsense: bytes, call: Callable[[TCPStore], object], told: str
) -> None:
    with (
        ScriptedStore(on(kind, nonsense, connections=1000)) as server,
        opened(server) as store,
        pytest.raises(StoreConnectionError, match=told),
    ):
        call(store)


# Waiting


@pytest.mark.parametrize("timeout_s", [0, 0.001, 0.03])
def test_a_timeout_names_what_is_missing_and_how_long_was_waited(
    master: TCPStore, timeout_s: float
) -> None:
    with opened(master, timeout_s) as store:
        store.set("k", "v")
        waits: list[Callable[[], object]] = [
            lambda: store.wait(["k", "missing"]),
            lambda: store.get("missing"),
            lambda: store.multi_get(["missing", "k"]),
            lambda: store.queue_pop("missing"),
            lambda: store.barrier("missing", 1000),
        ]
        for wait in waits:
            with pytest.raises(StoreTimeoutError) as error:
                wait()
            assert error.value.missing == ("missing",)
            assert error.value.waited_s >= timeout_s
            store.delete_key("missing")
        assert store.get("k") == b"v"
        with pytest.raises(StoreQueueEmptyError):
            store.queue_pop("missing", block=False)


def test_no_timeout_means_one_look_and_no_wait() -> None:
    with ScriptedStore() as server, opened(server) as store:
        with pytest.raises(StoreTimeoutError):
            store.wait(["missing"], timeout=0)
        store.barrier("b", 1, timeout=0)
        assert server.requests(c10d.WaitKeys) == []


@pytest.mark.parametrize(("answers", "is_over"), [(b"\1", True), (b"\0\1", False)])
def test_a_wake_that_races_with_the_cancelling_counts(answers: bytes, is_over: bool) -> None:
    def script(connection: int, request: c10d.StoreRequest) -> Act | bytes:
        match request:
            case c10d.WaitKeys() | c10d.Barrier():
                return b""
            case c10d.CancelWait():
                return answers
        return Act.SERVE

    with ScriptedStore(script) as server, opened(server) as store:
        waits: list[Callable[[], object]] = [
            lambda: store.wait(["missing"], timeout=0.01),
            lambda: store.barrier("b", 2, timeout=0.01),
        ]
        for number, wait in enumerate(waits, 1):
            while len(server.requests(c10d.CancelWait)) < number:
                # A slow machine may need the time before there is anything to cancel.
                try:
                    wait()
                except StoreTimeoutError:
                    has_timed_out = True
                else:
                    has_timed_out = False
            assert has_timed_out is is_over
            assert store.add("n", 1) > 0
        assert len(server.requests(c10d.CancelWait)) == 2
        assert server.connections == 1


def test_a_wait_survives_the_loss_of_its_connection(master: TCPStore) -> None:
    with Proxy(master.port) as proxy, opened(proxy) as store, ThreadPoolExecutor(1) as pool:
        value = pool.submit(store.get, "late")
        wait_until(lambda: is_waiting(store))
        proxy.cut()
        proxy.mend()
        master.set("late", "v")
        assert value.result(LIMIT_S) == b"v"


def is_waiting(store: TCPStore) -> bool:
    """Whether a thread has taken the connection away to wait on it."""
    return bool(store._client._lent)


def test_who_waits_holds_nobody_up(master: TCPStore) -> None:
    with ScriptedStore() as server, opened(server) as store, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(store.get, f"late{n}") for n in range(3)]
        wait_until(lambda: len(server.requests(c10d.WaitKeys)) == 3)
        store.set_timeout(LIMIT_S / 2)
        assert store.add("n", 1) == 1
        assert server.connections == 4
        store.multi_set([f"late{n}" for n in range(3)], ["0", "1", "2"])
        assert [value.result(LIMIT_S) for value in waiting] == [b"0", b"1", b"2"]
        for n in range(20):  # the connections that waited are used again
            assert store.add("n", 1) == n + 2
        again = [pool.submit(store.get, f"later{n}") for n in range(3)]
        wait_until(lambda: len(server.requests(c10d.WaitKeys)) == 6)
        store.multi_set([f"later{n}" for n in range(3)], ["0", "1", "2"])
        assert [value.result(LIMIT_S) for value in again] == [b"0", b"1", b"2"]
        with pytest.raises(StoreTimeoutError):
            store.wait(["never"], timeout=0.01)
        assert server.connections == 4


def test_eight_threads_share_one_store(master: TCPStore) -> None:
    with opened(master) as store, ThreadPoolExecutor(8) as pool:

        def work(rank: int) -> int:
            for n in range(50):
                store.add("sum", 1)
                store.set(f"{rank}/{n}", str(n))
                assert store.get(f"{(rank + 1) % 8}/{n}") == str(n).encode()
                store.append(f"log{rank}", "x")
            store.barrier("done", 8)
            return int(store.get("sum"))

        assert list(pool.map(work, range(8))) == [400] * 8
        assert store.get("log3") == b"x" * 50


class Interrupted(Exception):
    pass


def test_an_interrupted_call_leaves_no_disorder(master: TCPStore) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    with opened(master) as store:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for wait in (lambda: store.get("never"), lambda: store.barrier("b", 2)):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(Interrupted):
                    wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert store.add("n", 1) == 1
        assert store.compare_set("c", "", "1") == b"1"


# Processes, and the end


FORKS = """
import os, sys
from rallypoint.errors import StoreConnectionError
from rallypoint.elastic.stores.tcp_store import TCPStore

with TCPStore("127.0.0.1", 0, is_master=True, timeout=60) as store:
    store.set("k", "parent")
    pid = os.fork()
    if pid == 0:
        told = []
        for call in (lambda: store.get("k"), lambda: store.add("n", 1), lambda: store.set("k", "")):
            try:
                call()
            except StoreConnectionError as error:
                told.append(f"forked process can't share" in str(error))
        store.set_timeout(1)
        own = store.clone()
        told.append(own.get("k") == b"parent")
        own.set("child", str(told))
        own.num_keys()
        store.close()
        os._exit(0)
    assert store.get("child") == b"[True, True, True, True]", store.get("child")
    assert os.waitpid(pid, 0)[1] == 0
    assert store.add("n", 1) == 1 and store.get("k") == b"parent"
print("ok")
"""


def test_a_forked_child_is_told_to_open_its_own() -> None:
    done = run_program([sys.executable, "-W", "ignore", "-c", FORKS])
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_closing_ends_a_wait_and_every_later_call(master: TCPStore) -> None:
    with opened(master) as store, ThreadPoolExecutor(1) as pool:
        value = pool.submit(store.get, "never")
        wait_until(lambda: is_waiting(store))
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: value.result(LIMIT_S),
            lambda: store.get("k"),
        ]
        for call in calls:
            with pytest.raises(StoreConnectionError, match="it has been closed"):
                call()


def test_closing_ends_a_wait_that_is_about_to_begin_on_a_connection_just_replaced() -> None:
    with ScriptedStore(on(c10d.Check, Act.CLOSE)) as server:
        client = TCPClient("127.0.0.1", server.port, LIMIT_S)

        def wait() -> Operation[None]:
            yield Exchange(wire.check((b"/k",)), wire.read_check)  # loses the connection
            closing.append(Call(client.close))
            wait_until(lambda: client._failure is not None)
            yield Wait(wire.wait((b"/k",)))

        closing: list[Call[None]] = []
        waiting = Call(client.run, "wait", ("k",), wait(), 10 * LIMIT_S)
        with pytest.raises(StoreConnectionError, match="it has been closed"):
            waiting.result()
        closing[0].result()
        assert server.connections == 2


def sockets() -> int:
    names = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.readlink(name).startswith("socket:") for name in names if os.path.exists(name))


def test_a_master_leaves_neither_threads_nor_sockets() -> None:
    before = sockets(), threading.active_count()
    store = TCPStore("127.0.0.1", 0, is_master=True)
    clone = store.clone()
    clone.set("k", "v")
    assert store.get("k") == b"v"
    store.close()
    clone.set_timeout(0)
    with pytest.raises(StoreConnectionError, match="add of 'k'"):
        clone.add("k", 1)
    clone.close()
    store.close()
    assert (sockets(), threading.active_count()) == before


def test_a_forgotten_store_leaves_nothing_either() -> None:
    before = sockets(), threading.active_count()
    store = TCPStore("127.0.0.1", 0, is_master=True)
    store.set("k", "v")
    del store
    assert (sockets(), threading.active_count()) == before


# Hosting


def test_a_taken_port_is_told(master: TCPStore) -> None:
    with pytest.raises(StoreConnectionError, match=r"listening .*Address already in use") as error:
        TCPStore("127.0.0.1", master.port, is_master=True)
    assert error.value.peer == f"127.0.0.1:{master.port}"


def test_a_master_listens_where_it_was_told_and_nowhere_else() -> None:
    with TCPStore("127.0.0.2", 0, is_master=True) as store:
        assert store.host == "127.0.0.2"
        store.set("k", "v")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", store.port))
        with store.clone() as clone:
            assert clone.get("k") == b"v"


def test_a_master_takes_a_bound_socket() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with TCPStore("127.0.0.1", 0, is_master=True, listen_socket=listener) as store:
        assert store.port == port
        with opened(store) as other:
            other.set("k", "v")
            assert store.get("k") == b"v"


def test_a_master_waits_until_all_workers_have_come() -> None:
    port = free_port()

    def join(is_master: bool) -> TCPStore:
        return TCPStore("127.0.0.1", port, 3, is_master, LIMIT_S)

    with ThreadPoolExecutor(1) as pool:
        master = pool.submit(join, True)
        with join(False) as first:
            assert not master.done()
            theirs = torch.distributed.TCPStore("127.0.0.1", port, 3, False)
            with master.result(LIMIT_S) as hosted:
                assert first.num_keys() == theirs.num_keys() == hosted.num_keys() == 1
                assert hosted.list_keys() == []
                theirs.set("k", "v")
                assert hosted.get("k") == b"v"


def test_missing_workers_are_counted_and_nothing_stays_open() -> None:
    before = sockets(), threading.active_count()
    with pytest.raises(StoreTimeoutError, match="1 of 2 workers"):
        TCPStore("127.0.0.1", 0, 2, True, timeout=0.1)
    assert (sockets(), threading.active_count()) == before


def test_who_does_not_wait_for_workers_does_not_count_itself() -> None:
    with TCPStore("127.0.0.1", 0, 5, True, timeout=1, wait_for_workers=False) as store:
        assert store.num_keys() == 0


# What would be imported later may not be readable by then.
OTHER_USER = """
import encodings.idna, os, sys
from rallypoint.elastic.stores.tcp_store import TCPStore

os.setuid(65534)
print(TCPStore("127.0.0.1", int(sys.argv[1]), timeout=float(sys.argv[2])).num_keys())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("host", "allow", "is_served"),
    [
        ("127.0.0.1", None, False),
        ("127.0.0.1", ["127.0.0.0/8"], True),
        ("0.0.0.0", None, True),
        ("0.0.0.0", ["10.99.0.0/16"], False),
    ],
)
def test_another_user_is_served_where_that_was_said(
    host: str, allow: list[str] | None, is_served: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with TCPStore(host, 0, is_master=True, timeout=LIMIT_S, allow=allow) as store:
        store.set("k", "v")
        patience = LIMIT_S if is_served else 0.1
        done = run_python(OTHER_USER, str(store.port), str(patience))
        assert store.get("k") == b"v"
    assert (done.stdout == "1\n") is is_served, done.stderr
    assert ("belongs to user 65534" in capfd.readouterr().err) is not is_served


def test_a_network_that_is_none_is_refused_before_anything_is_opened() -> None:
    before = sockets(), threading.active_count()
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        TCPStore("127.0.0.1", 0, is_master=True, allow=["10.0.0.0/99"])
    with pytest.raises(ValueError, match="are for the master"):
        TCPStore("127.0.0.1", 1, allow=["10.0.0.0/8"])
    assert (sockets(), threading.active_count()) == before


# Large requests


def test_many_keys_are_set_at_once_and_read_back(master: TCPStore) -> None:
    keys = [f"key{n}" for n in range(120_000)]
    with opened(master) as store:
        store.multi_set(keys, keys)
        assert store.multi_get(keys) == [key.encode() for key in keys]
        assert store.num_keys() == len(keys) == len(store.list_keys())
        with pytest.raises(ValueError, match="131073 keys are more than the 131072"):
            store.multi_set(["k"] * 131_073, ["v"] * 131_073)
        more = keys + keys[: 131_073 - len(keys)]
        assert store.check(more)
        assert store.multi_get(more) == [key.encode() for key in more]


def test_values_of_every_size_come_back(master: TCPStore) -> None:
    with opened(master) as store:
        for size in (0, 1, 65_527, 65_528, 65_529, 3_000_000, 8 << 20):
            value = bytes([size % 251]) * size
            store.set("k", value)
            assert store.get("k") == value
        store.append("k", b"x")
        assert len(store.get("k")) == (8 << 20) + 1
        with pytest.raises(ValueError, match="8388609 bytes"):
            store.set("k", bytes((8 << 20) + 1))
        with pytest.raises(ValueError, match="8193 bytes"):
            store.get("k" * 8192)
        assert store.num_keys() == 1
