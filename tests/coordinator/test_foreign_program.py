"""F6: another program uses the port where the nodes were to meet. It is named, with the fix, before
anybody is told to care for a token."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.harness.cluster import Cluster
from tests.harness.prepared import processes

from rallypoint.coordinator.connection import ClientConnection
from rallypoint.errors import PeerHungUpError


def speaks_first(connection: socket.socket) -> None:
    connection.sendall(b"220 mail.example.org ESMTP\r\n")


def is_a_web_server(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def is_an_old_web_server(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"<!DOCTYPE HTML>\n<html lang='en'>")


def is_a_round_store(connection: socket.socket) -> None:
    """As torch's TCPStore treats an opcode that it does not know."""
    connection.recv(1)
    connection.close()


def hangs_up(connection: socket.socket) -> None:
    connection.close()


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def is_silent(connection: socket.socket) -> None:
    """Takes the connection."""


FOREIGN = ("another program answers on this port", "choose another port on every node")
NOBODY = ("no coordinator answers at 127.0.0.1:", "If another program uses that port, choose")
PROGRAMS: dict[Callable[[socket.socket], None], tuple[int, tuple[str, ...]]] = {
    speaks_first: (2, (*FOREIGN, "it began with b'220 mail.example")),
    is_a_web_server: (2, (*FOREIGN, "it looks like HTTP")),
    is_an_old_web_server: (2, (*FOREIGN, "it looks like HTTP")),
    is_a_round_store: (75, (*NOBODY, "it closes the connection without an answer")),
    hangs_up: (75, (*NOBODY, "it closes the connection without an answer")),
    resets: (75, (*NOBODY, "it closes the connection without an answer")),
    is_silent: (75, (*NOBODY, "it accepts the connection and sends nothing")),
}


@contextmanager
def program(port: int, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """One that answers every connection so."""
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
                taken.append(connection)
                answer(connection)
            except ConnectionError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    for connection in taken:
        connection.close()


@pytest.mark.parametrize("has_token", [False, True], ids=["no token", "a token"])
@pytest.mark.parametrize("hosts", [None, False], ids=["may host", "may not host"])
@pytest.mark.parametrize("answer", PROGRAMS, ids=lambda answer: answer.__name__)
def test_F6_another_program_on_the_port_is_named_with_the_fix(
    cluster: Cluster, answer: Callable[[socket.socket], None], hosts: bool | None, has_token: bool
) -> None:
    cluster.options["rdzv_conf"] = "host_timeout=0.5"
    if has_token:
        cluster.make_token()
    with program(cluster.port, answer):
        a = cluster.agent("a", hosts=hosts)
        code, words = PROGRAMS[answer]
        assert a.wait_exit() == code
    (line,) = a.lines
    assert line.startswith("rallypoint: ")
    for word in (f"127.0.0.1:{cluster.port}", "--rdzv-endpoint HOST:PORT", *words):
        assert word in line
    assert "token" not in line
    assert a.workers() == []
    if not has_token:
        assert list(cluster.home.iterdir()) == []


def test_F6_a_proxy_whose_node_starts_late_is_waited_for(cluster: Cluster) -> None:
    """It takes connections that it then resets, until the node behind it listens."""
    cluster.make_token()
    with program(cluster.port, resets):
        b = cluster.agent("b", nnodes=2, hosts=False)
        b.wait_event("meeting", "it closes the connection without an answer")
    a = cluster.agent("a", nnodes=2, hosts=True)
    cluster.wait_workers(2)
    cluster.end_well(a, b)


def test_F6_with_fixed_ranks_the_fix_is_another_master_port(cluster: Cluster) -> None:
    cluster.make_token()
    where = {"rdzv_endpoint": None, "nnodes": 2, "node_rank": 1, "master_addr": "127.0.0.1"}
    with program(cluster.port, speaks_first):
        a = cluster.agent("a", master_port=cluster.port, **where)  # type: ignore[arg-type]
        assert a.wait_exit() == 2
    (line,) = a.lines
    assert "choose another port on every node (--master-port PORT)" in line


def test_F6_drain_names_another_program_before_it_asks_for_a_token(cluster: Cluster) -> None:
    where = f"--rdzv-endpoint=127.0.0.1:{cluster.port}"
    with program(cluster.port, speaks_first):
        done = processes.run(
            [sys.executable, "-m", "rallypoint", "drain", "a", where],
            env=cluster.environ(),
            capture_output=True,
        )
    assert done.returncode == 2
    assert "another program answers on this port" in done.stderr
    assert "token" not in done.stderr


async def test_F6_a_connection_that_is_reset_before_it_is_looked_at_has_hung_up() -> None:
    class Gone(asyncio.Transport):
        def abort(self) -> None:
            """Nothing is left to end."""

    connection = ClientConnection("job", None)
    connection.connection_made(Gone())
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(PeerHungUpError):
        await connection.established


async def test_a_connection_that_is_lost_when_nobody_waits_for_it_is_no_unexpected_error() -> None:
    errors: list[dict[str, object]] = []

    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    ClientConnection("job", None).connection_lost(None)
    gc.collect()
    assert not errors
