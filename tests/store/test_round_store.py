"""The round store: real processes, real sockets, real torch clients."""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from tests.harness.descriptors import open_descriptors, own_children
from tests.harness.limits import until
from tests.harness.store_client import (
    KEY,
    LIMIT_S,
    PING,
    VALIDATE,
    RawClient,
    as_remote,
    connect_from,
    get_key,
    in_thread,
    make_listener,
    set_key,
    text,
)

from rallypoint.errors import EnrolmentError
from rallypoint.process.forks import fork_process
from rallypoint.store.access import EVERYBODY, AccessGate, round_policy
from rallypoint.store.enrol import enrol, reach
from rallypoint.store.peer_owner import owner_of
from rallypoint.store.refusal_log import LINES_MAX
from rallypoint.store.round_store import RoundStore
from rallypoint.store.server import StoreServer

# The blocking clients of these tests are threads beside the loop; an agent has none.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

CROWD = 400  # more than fit into the channel to the process at once

TORCH_GLOO = """
import os
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=50))
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
assert total.item() == size * (size + 1) / 2, total
group = dist.new_group([0, size - 1])
if rank in (0, size - 1):
    pair = torch.ones(1)
    dist.all_reduce(pair, group=group)
    assert pair.item() == 2.0, pair
dist.barrier()
dist.destroy_process_group()
print("ok")
"""


async def loopback() -> list[str]:
    return ["127.0.0.1"]


def new_since(before: tuple[set[tuple[str, str]], set[int]]) -> set[tuple[str, str] | int]:
    """The descriptors and children that there were not before."""
    return {*(open_descriptors() - before[0]), *(own_children() - before[1])}


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[], str]:
    """What the store has said so far."""
    return (tmp_path / "said").read_text


@pytest.fixture
def store(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[AbstractAsyncContextManager[RoundStore]]:
    """A store with its own listener; after the test nothing of it may remain. A test may give it
    arguments."""
    said = tmp_path / "said"
    said.touch()

    def say(line: str) -> None:
        with said.open("a") as file:
            file.write(line + "\n")

    before = open_descriptors(), own_children()
    arguments = {"fork": fork_process} | getattr(request, "param", {})
    store = RoundStore(make_listener(), say=say, **arguments)
    port = store.port
    yield while_the_loop_runs(store)
    assert new_since(before) == set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@asynccontextmanager
async def while_the_loop_runs(store: RoundStore) -> AsyncIterator[RoundStore]:
    """As an agent has it, which shuts it down before the loop ends."""
    try:
        yield store
    finally:
        store.shutdown()


def check(condition: bool) -> None:
    assert condition


async def expect_answer(client: RawClient) -> None:
    await in_thread(lambda: check(client.ask(VALIDATE + PING, 4) == PING[1:]))


async def expect_end(client: RawClient) -> None:
    await in_thread(lambda: check(client.is_closed()))


def run_client(python: str, script: str, *args: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-c", script, *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_all_ok(processes: list[subprocess.Popen[str]]) -> None:
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    assert all(output.endswith("ok\n") for output in outputs), outputs


# Torch


@pytest.mark.parametrize("world_size", [2, 4])
async def test_unmodified_torch_forms_a_gloo_group(
    store: RoundStore, world_size: int, torch_python: str
) -> None:
    store.open(1, KEY, open_access=False)
    workers = [
        run_client(
            torch_python,
            TORCH_GLOO,
            RANK=str(rank),
            WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(store.port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        for rank in range(world_size)
    ]
    await in_thread(lambda: assert_all_ok(workers))


# The process of a round


async def test_the_process_is_started_by_the_first_connection(store: RoundStore) -> None:
    before = own_children()
    store.open(1, KEY, open_access=False)
    await asyncio.sleep(0)
    assert own_children() == before
    with RawClient(store.port) as client:
        await expect_answer(client)
    [process] = own_children() - before
    assert os.readlink(f"/proc/{process}/exe") == os.readlink("/proc/self/exe")
    assert os.getsid(process) == process
    store.close()
    assert own_children() == before


async def test_each_round_begins_empty_on_the_same_port(store: RoundStore) -> None:
    port = store.port
    with RawClient(port) as old:
        store.open(1, KEY, open_access=False)
        # The one who was queued before the round was opened came for an older one.
        await expect_end(old)
    for round_ in range(2, 5):
        store.open(round_, KEY, open_access=False)

        def talk() -> None:
            with RawClient(port) as client:
                assert client.ask(VALIDATE + get_key(b"k"), 8) == text(b"")
                assert client.ask(set_key(b"k", b"v") + get_key(b"k"), 9) == text(b"v")

        await in_thread(talk)
        with RawClient(port) as survivor:
            await expect_answer(survivor)
            store.close()
            await expect_end(survivor)


async def test_a_store_whose_process_dies_turns_its_clients_away(
    store: RoundStore, lines: Callable[[], str]
) -> None:
    before = own_children()
    store.open(7, KEY, open_access=False)
    with RawClient(store.port) as client:
        await expect_answer(client)
        [process] = own_children() - before
        os.kill(process, signal.SIGKILL)
        await expect_end(client)
    with RawClient(store.port) as late:
        await expect_end(late)
    assert "was killed by SIGKILL, and with it what the workers of round 7 had" in lines()
    store.open(8, KEY, open_access=False)
    with RawClient(store.port) as again:
        await expect_answer(again)


async def test_A3_who_has_opened_it_hears_once_that_what_was_stored_is_gone(
    store: RoundStore,
) -> None:
    before = own_children()
    lost: list[str] = []
    told = asyncio.Event()

    def on_lost(why: str) -> None:
        lost.append(why)
        told.set()

    store.open(7, KEY, open_access=False, on_lost=on_lost)
    with RawClient(store.port) as client:
        await expect_answer(client)
        [process] = own_children() - before
        os.kill(process, signal.SIGKILL)
        await expect_end(client)
    await told.wait()
    store.close()
    store.open(8, KEY, open_access=False, on_lost=lost.append)
    with RawClient(store.port) as client:
        await expect_answer(client)
    store.close()
    await asyncio.sleep(0)
    assert lost == ["the process of the round store was killed by SIGKILL"]


def no_process(
    body: Callable[[], None], *, name: str, title: str, keep_fds: Iterable[int]
) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.parametrize("store", [{"fork": no_process}], indirect=True)
async def test_A3_who_has_opened_it_hears_that_its_process_can_not_be_started(
    store: RoundStore,
) -> None:
    lost: list[str] = []
    store.open(7, KEY, open_access=False, on_lost=lost.append)
    with RawClient(store.port) as client:
        await expect_end(client)
    assert lost == [f"the process of the round store can't be started: {os.strerror(errno.EAGAIN)}"]


async def test_closing_ends_even_a_process_that_hangs(store: RoundStore) -> None:
    before = own_children()
    store.open(1, KEY, open_access=False)
    with RawClient(store.port) as client:
        await expect_answer(client)
        [process] = own_children() - before
        os.kill(process, signal.SIGSTOP)
        store.close()
        assert own_children() == before
        await expect_end(client)


async def test_the_loop_of_the_agent_goes_on_while_the_store_is_busy(store: RoundStore) -> None:
    """The agent's loop serves none of the store's traffic: its process does not even see it."""
    store.open(1, KEY, open_access=False)
    used = time.process_time()
    script = (
        "import socket,sys\n"
        "s=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
        "s.sendall(bytes.fromhex(sys.argv[2]))\n"
        "for _ in range(30):\n"
        "    s.sendall(bytes.fromhex(sys.argv[3])*20000)\n"
        "s.shutdown(socket.SHUT_WR)\n"
        "assert s.recv(1)==b''\n"
        "print('ok')\n"
    )
    request = set_key(b"key", b"value")
    load = run_client(sys.executable, script, str(store.port), VALIDATE.hex(), request.hex())
    await in_thread(lambda: assert_all_ok([load]))
    assert time.process_time() - used < 0.5  # the store's process used several times that


# A shared port: connections are handed over


async def test_connections_are_handed_over_where_the_port_is_shared() -> None:
    before = open_descriptors(), own_children()
    store = RoundStore(None, fork=fork_process)
    listener = make_listener()
    port = listener.getsockname()[1]
    loop = asyncio.get_running_loop()

    async def hand_over(count: int) -> None:
        for _ in range(count):
            connection, _ = await loop.sock_accept(listener)
            store.adopt(connection)

    def talk(expected: bytes) -> None:
        clients = [RawClient(port) for _ in range(CROWD)]
        try:
            for client in clients:
                client.socket.sendall(VALIDATE + get_key(b"k"))
            for client in clients:
                assert client.read(8 + len(expected)) == text(expected)
            assert clients[0].ask(set_key(b"k", b"v") + PING, 4) == PING[1:]
        finally:
            for client in clients:
                client.socket.close()

    def is_closed() -> None:
        with RawClient(port) as client:
            assert client.is_closed()

    try:
        await asyncio.gather(hand_over(1), in_thread(is_closed))  # no round is open
        store.open(1, KEY, open_access=False)
        await asyncio.gather(hand_over(CROWD), in_thread(lambda: talk(b"")))
        [process] = own_children() - before[1]
        os.kill(process, signal.SIGSTOP)  # it falls behind, and the channel fills up
        handed = asyncio.create_task(hand_over(CROWD))
        talking = asyncio.create_task(in_thread(lambda: talk(b"v")))
        await handed
        os.kill(process, signal.SIGCONT)
        await talking
        store.open(2, KEY, open_access=False)
        await asyncio.gather(hand_over(CROWD), in_thread(lambda: talk(b"")))
        assert len(own_children() - before[1]) == 1
    finally:
        store.shutdown()
        listener.close()
    assert new_since(before) == set()


# Enrolment and access


async def test_F9_enrolment_waits_for_the_round_to_be_opened(store: RoundStore) -> None:
    before = own_children()
    store.open(1, b"old" * 11, open_access=False)
    enrolling = asyncio.create_task(enrol(loopback, store.port, KEY, "node-1", LIMIT_S))
    while own_children() == before:  # noqa: ASYNC110 - the old round's store meets the agent
        await asyncio.sleep(0.01)
    store.close()
    store.open(2, KEY, open_access=False)
    assert await enrolling == "127.0.0.1"


async def test_F9_enrolment_that_fails_names_both_addresses_and_the_fix(store: RoundStore) -> None:
    store.open(1, b"other" * 7, open_access=False)
    with pytest.raises(EnrolmentError) as caught:
        await enrol(loopback, store.port, KEY, "node-1", 3.0)
    line = str(caught.value)
    assert f"at 127.0.0.1 could not reach the round store at 127.0.0.1:{store.port}" in line
    assert "another round or job" in line
    assert "--local-addr" in line
    assert "\n" not in line
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(EnrolmentError, match=r"Connection refused.*firewall"):
        await enrol(loopback, port, KEY, "node-1", 3.0)


def stranger_gate(hold_s: float) -> AccessGate:
    """Holds the connection of a stranger for so long."""
    return AccessGate(round_policy(KEY, everybody=False), hold_s=hold_s)


@asynccontextmanager
async def serve_locally(gate: AccessGate) -> AsyncIterator[tuple[StoreServer, int, list[str]]]:
    """A server on the test's own loop, its port, and what it says."""
    said: list[str] = []
    listener = make_listener()
    server = StoreServer(gate, said.append, as_remote)
    await server.listen(listener)
    try:
        yield server, listener.getsockname()[1], said
    finally:
        server.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_A10_who_looks_whether_it_reaches_the_store_is_neither_admitted_nor_refused() -> None:
    async with serve_locally(stranger_gate(0.3)) as (server, port, said):
        await reach(loopback, port, "node-1", LIMIT_S)
        await until(lambda: not server.stats.connections)
        with connect_from("127.0.0.9", port) as other:
            await expect_end(other)
        assert ["127.0.0.9" in line for line in said] == [True]
        with connect_from("127.0.0.1", port) as client:
            client.socket.sendall(VALIDATE + PING)
            await expect_end(client)
        assert len(said) == 2


async def test_A10_where_no_place_is_left_for_a_stranger_none_is_kept_by_who_looks() -> None:
    async with serve_locally(stranger_gate(LIMIT_S)) as (server, port, said):
        for _ in range(50):
            await reach(loopback, port, "node-1", LIMIT_S)
        await until(lambda: not server.stats.connections)
        assert said == []


async def test_A10_a_store_is_reached_without_its_key_and_one_that_is_not_there_is_named(
    store: RoundStore, lines: Callable[[], str]
) -> None:
    store.open(1, KEY, open_access=False)
    await reach(loopback, store.port, "node-1", LIMIT_S)
    store.close()  # Between rounds connections are closed at once.
    with pytest.raises(EnrolmentError, match=r"closed before an answer.*firewall"):
        await reach(loopback, store.port, "node-1", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(EnrolmentError, match=r"node node-1 at .*Connection refused.*firewall"):
        await reach(loopback, port, "node-1", 0.3)
    assert lines() == ""


async def test_F9_an_unknown_address_is_held_unserved_then_dropped_with_one_line() -> None:
    async with serve_locally(stranger_gate(0.3)) as (_server, port, said):

        def strangers() -> None:
            with connect_from("127.0.0.9", port) as one, connect_from("127.0.0.9", port) as two:
                one.socket.sendall(VALIDATE + set_key(b"k", b"v") + PING)
                assert one.is_closed()
                assert two.is_closed()

        await in_thread(strangers)
        assert len(said) == 1
        assert "127.0.0.9" in said[0]
        assert "--local-addr" in said[0]
        assert "--insecure" in said[0]


async def test_F9_many_strangers_do_not_fill_the_log_and_are_counted() -> None:
    async with serve_locally(stranger_gate(0.01)) as (server, port, said):

        def strangers() -> None:
            for last in range(LINES_MAX + 6):
                with connect_from(f"127.0.1.{last + 1}", port) as stranger:
                    assert stranger.is_closed()

        await in_thread(strangers)
        assert len(said) == LINES_MAX
        server.close()
        assert said[LINES_MAX:] == ["refused 6 more within 60 s"]


async def test_F9_what_a_stranger_sends_is_not_even_read() -> None:
    async with serve_locally(stranger_gate(1.0)) as (_server, port, _said):

        def flood() -> None:
            sent = 0
            with connect_from("127.0.0.9", port) as stranger:
                stranger.socket.sendall(VALIDATE)
                try:
                    while sent < 100 << 20:
                        sent += stranger.socket.send(bytes(1 << 16))
                except ConnectionError:
                    pass
            assert sent < 24 << 20  # what the kernel's buffers took

        await in_thread(flood)


async def test_F9_an_unknown_address_that_is_held_is_served_once_its_node_has_enrolled() -> None:
    async with serve_locally(stranger_gate(LIMIT_S)) as (_server, port, said):
        with connect_from("127.0.0.1", port) as client:
            client.socket.sendall(VALIDATE + PING)
            client.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                await in_thread(lambda: check(client.read(4) == b"never"))
            client.socket.settimeout(LIMIT_S)
            assert await enrol(loopback, port, KEY, "node-1", LIMIT_S) == "127.0.0.1"
            await in_thread(lambda: check(client.read(4) == PING[1:]))
            await in_thread(lambda: check(client.ask(PING, 4) == PING[1:]))
        assert said == []


@pytest.mark.parametrize("key", [b"", bytes(32)], ids=["empty", "zeros"])
async def test_F9_where_the_store_has_no_key_no_node_can_enrol(key: bytes) -> None:
    async with serve_locally(AccessGate(EVERYBODY)) as (_server, port, said):
        with pytest.raises(EnrolmentError):
            await enrol(loopback, port, key, "node-1", 2.0)
        assert "does not hold the key of this round" in said[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a client as another user")
@pytest.mark.parametrize("way_in", ["", "everybody", "--store-allow 127.0.0.0/8"])
async def test_F9_another_user_of_this_machine_is_refused(
    store: RoundStore, lines: Callable[[], str], way_in: str
) -> None:
    networks = way_in.split()[1:]
    store.open(1, KEY, open_access=way_in == "everybody", networks=networks)
    codecs.lookup("idna")  # another user may not be allowed to read it either
    pid = os.fork()
    if pid == 0:  # of this interpreter, which another user may not be allowed to execute
        os._exit(become_another_user(store.port))
    status = (await asyncio.to_thread(os.waitpid, pid, 0))[1]
    outcome = {0: "served", 1: "closed"}[os.waitstatus_to_exitcode(status)]
    assert outcome == ("served" if way_in else "closed")
    assert ("user 65534 of this machine" in lines()) is not bool(way_in)


def become_another_user(port: int) -> int:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
            client.sendall(VALIDATE + PING)
            return 0 if client.recv(4) == PING[1:] else 1
    except ConnectionError:
        return 1
    except BaseException:
        return 2


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_F9_the_kernel_names_the_owner_of_a_live_connection_only(family: int) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        with accepted:
            ours, theirs = client.getsockname()[:2], accepted.getsockname()[:2]
            assert owner_of(ours, theirs) == os.geteuid()
            assert owner_of((ours[0], 1), theirs) is None
            client.close()
            assert owner_of(ours, theirs) is None  # the kernel would call it root's


# What breaks the rules


@pytest.mark.parametrize("store", [{"max_bytes": 10_000}], indirect=True)
async def test_a_round_stores_as_much_as_its_node_has_room_for_and_no_more(
    store: RoundStore, lines: Callable[[], str]
) -> None:
    store.open(1, KEY, open_access=True)

    def talk() -> None:
        with RawClient(store.port) as witness, RawClient(store.port) as client:
            assert witness.ask(VALIDATE + set_key(b"w", b"1") + PING, 4) == PING[1:]
            client.socket.sendall(VALIDATE + set_key(b"big", bytes(10_000)))
            assert client.is_closed()
            assert witness.ask(get_key(b"big") + get_key(b"w"), 17) == text(b"") + text(b"1")

    await in_thread(talk)
    (line,) = lines().splitlines()
    grown, used = 10_000 + 3 + 128, 1 + 1 + 128
    assert line.endswith(
        f"storing {grown} bytes more would pass the limit of 10000 (half of this node's memory), "
        f"of which {used} are in use"
    )
