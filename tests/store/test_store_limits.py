"""What a client can make a store hold, and how long it can leave it waiting: real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable

import pytest
from tests.harness.store_client import (
    LIMIT_S,
    PING,
    VALIDATE,
    RawClient,
    get_key,
    in_thread,
    make_listener,
    set_key,
    text,
)

from rallypoint.store.access import EVERYBODY, AccessGate
from rallypoint.store.server import StoreLimits, StoreServer
from rallypoint.store.server_process import new_event_loop

SHORT_S = 0.5
STRANGERS = 2000

Talk = Callable[[int, list[str]], None]


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def serve(request: pytest.FixtureRequest) -> Callable[[StoreLimits, Talk], None]:
    """Runs a blocking conversation beside a server on the loop of either kind."""

    def run(limits: StoreLimits, talk: Talk) -> None:
        async def main() -> None:
            said: list[str] = []
            listener = make_listener()
            server = StoreServer(AccessGate(EVERYBODY), said.append, limits=limits)
            await server.listen(listener)
            port = listener.getsockname()[1]
            try:
                await in_thread(lambda: talk(port, said))
                assert server.stats.waiting == 0
            finally:
                server.close()
                await asyncio.sleep(0.01)

        with asyncio.Runner(loop_factory=lambda: new_event_loop(fast=request.param)) as runner:
            assert ("uvloop" in type(runner.get_loop()).__module__) is request.param
            runner.run(main())

    return run


Serve = Callable[[StoreLimits, Talk], None]


@pytest.mark.parametrize(
    ("said_first", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the first byte is 0x47, not a c10d VALIDATE"),
        (b"\x00\x01\x02\x03\x04", "the c10d VALIDATE magic is 0x04030201"),
        (VALIDATE + b"\x63", "unknown c10d opcode 99"),
        (VALIDATE + set_key(b"k", b"x") + b"\x04" + text(b"k") + bytes(8), "not a 64-bit number"),
    ],
)
def test_who_speaks_something_else_is_closed_at_once(
    serve: Serve, said_first: bytes, reason: str
) -> None:
    def talk(port: int, said: list[str]) -> None:
        with RawClient(port) as client:
            client.socket.sendall(said_first)
            assert client.is_closed()
            name = client.socket.getsockname()
        [line] = said
        assert reason in line
        assert f"{name[0]}:{name[1]}" in line

    serve(StoreLimits(handshake_s=LIMIT_S), talk)


@pytest.mark.parametrize(
    ("beginning", "reason"),
    [
        (b"", "nor an enrolment within 0.5 s"),
        (VALIDATE[:3], "nor an enrolment within 0.5 s"),
        (VALIDATE + PING + set_key(b"k", b"v")[:-1], "rest of a request did not come"),
        (VALIDATE + PING + b"\x0b" + struct.pack("<Q", 9), "rest of a request did not come"),
    ],
)
def test_who_falls_silent_in_the_middle_is_dropped(
    serve: Serve, beginning: bytes, reason: str
) -> None:
    def talk(port: int, said: list[str]) -> None:
        with RawClient(port) as client:
            client.socket.sendall(beginning)
            if PING in beginning:
                assert client.read(4) == PING[1:]
            assert client.is_closed()
        [line] = said
        assert reason in line

    serve(StoreLimits(handshake_s=SHORT_S), talk)


def test_who_waits_or_says_nothing_between_requests_is_never_dropped(serve: Serve) -> None:
    def talk(port: int, said: list[str]) -> None:
        with RawClient(port) as waiter, RawClient(port) as idle, RawClient(port) as slow:
            waiter.socket.sendall(VALIDATE + b"\x06" + struct.pack("<Q", 1) + text(b"k"))
            assert idle.ask(VALIDATE + PING, 4) == PING[1:]
            # One byte at a time, each in time: the whole takes longer than the limit.
            slow.socket.sendall(VALIDATE + PING)
            assert slow.read(4) == PING[1:]
            slow.socket.settimeout(SHORT_S / 3)
            for byte in set_key(b"s", b"v")[:8]:
                slow.socket.sendall(bytes((byte,)))
                with pytest.raises(TimeoutError):
                    slow.socket.recv(1)
            slow.socket.settimeout(LIMIT_S)
            assert slow.ask(set_key(b"s", b"v")[8:] + PING, 4) == PING[1:]
            assert idle.ask(set_key(b"k", b"v") + get_key(b"s"), 9) == text(b"v")
            assert waiter.read(1) == b"\0"
        assert said == []

    serve(StoreLimits(handshake_s=SHORT_S), talk)


def test_a_crowd_that_never_speaks_is_dropped_and_others_are_served_meanwhile(
    serve: Serve,
) -> None:
    def talk(port: int, said: list[str]) -> None:
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(STRANGERS)]
        with RawClient(port) as client:
            assert client.ask(VALIDATE + PING, 4) == PING[1:]
            for stranger in crowd:
                stranger.settimeout(LIMIT_S)
                assert stranger.recv(1) == b""
                stranger.close()
            assert client.ask(PING, 4) == PING[1:]
        assert len(said) == 1  # the same address, the same reason

    serve(StoreLimits(handshake_s=2.0), talk)


def test_a_waiting_client_whose_machine_vanishes_is_noticed_by_probes(serve: Serve) -> None:
    def talk(port: int, said: list[str]) -> None:
        with RawClient(port) as client:
            assert client.ask(VALIDATE + PING, 4) == PING[1:]
            ends = f":{port:04X}", f":{client.socket.getsockname()[1]:04X}"
            deadline = time.monotonic() + 10
            while True:  # until the answer is acknowledged
                with open("/proc/net/tcp", encoding="ascii") as table:
                    rows = [line.split() for line in table]
                timers = [row[5] for row in rows if (row[1][8:], row[2][8:]) == ends]
                if timers[0].startswith("02:"):  # the timer of keepalive probes (proc(5))
                    break
                assert time.monotonic() < deadline, f"the kernel's timer is {timers[0]}"

    serve(StoreLimits(), talk)


def test_one_connection_too_many_is_closed_and_there_is_room_again_later(serve: Serve) -> None:
    def talk(port: int, said: list[str]) -> None:
        with RawClient(port) as one:
            with RawClient(port) as two:
                assert one.ask(VALIDATE + PING, 4) == PING[1:]
                assert two.ask(VALIDATE + PING, 4) == PING[1:]
                with RawClient(port) as three:
                    assert three.is_closed()
                assert "2 connections are open, as many as are allowed: give" in said[0]
            while True:  # until the server has seen that it went
                with RawClient(port) as again:
                    try:
                        assert again.ask(VALIDATE + PING, 4) == PING[1:]
                    except ConnectionError:
                        continue
                    break
            assert one.ask(PING, 4) == PING[1:]

    serve(StoreLimits(max_connections=2), talk)


def test_who_does_not_read_is_held_to_a_bounded_backlog_then_gets_everything(serve: Serve) -> None:
    value = bytes(1 << 20)

    def talk(port: int, said: list[str]) -> None:
        with RawClient(port) as client, RawClient(port) as other:
            client.socket.sendall(VALIDATE + set_key(b"k", value) + get_key(b"k") * 40)
            assert other.ask(VALIDATE + PING, 4) == PING[1:]
            # The last request of a crowd was not served yet: it would have shown.
            client.socket.sendall(set_key(b"late", b"x"))
            assert other.ask(get_key(b"late") + PING, 12) == text(b"") + PING[1:]
            for _ in range(40):
                assert client.read(8 + len(value))[:8] == struct.pack("<Q", len(value))
            assert client.ask(get_key(b"late"), 9) == text(b"x")

    serve(StoreLimits(), talk)
