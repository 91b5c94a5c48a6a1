"""Who waits is woken by a request that came in pieces, or that had to wait itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.store_process import RawClient, encode, store_process

from rallypoint.store.server_connection import MAX_UNREAD_BYTES
from rallypoint.wire.c10d_fields import Opcode

STOP_WAITING = b"\x00"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with store_process() as running:
        yield running.port


def waiting(port: int, *keys: bytes) -> RawClient:
    """The server knows that this one waits."""
    client = RawClient(port)
    client.send(encode(Opcode.WAIT, keys))
    client.ping()
    assert client.read_answers() == b""
    return client


@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_multi_set_that_was_cut_anywhere_wakes_all_who_wait(port: int, others: int) -> None:
    writer = RawClient(port)
    filling = [(b"other %d" % number, b"value") for number in range(others)]

    def request(number: int) -> bytes:
        name = b"%d, %04d" % (others, number)
        return encode(Opcode.MULTI_SET, [*filling, (b"k " + name, b"1"), (b"l " + name, b"")])

    for cut in range(1, len(request(0))):
        data, name = request(cut), b"%d, %04d" % (others, cut)
        one = waiting(port, b"k " + name)
        several = waiting(port, b"l " + name, b"k " + name)
        writer.send(data[:cut])
        one.ping()
        assert one.read_answers() == b"", "nothing of it counts before all is there"
        writer.send(data[cut:])
        assert (one.read(1), several.read(1)) == (STOP_WAITING, STOP_WAITING), cut
        one.close()
        several.close()
    writer.close()


def test_a_multi_set_behind_answers_that_nobody_reads_wakes_once_they_are_read(port: int) -> None:
    writer, value = RawClient(port), bytes(MAX_UNREAD_BYTES)
    writer.ask(Opcode.SET, b"large", value)
    waiter = waiting(port, b"late", b"later")
    behind = encode(Opcode.GET, b"large") * 32
    writer.send(behind + encode(Opcode.MULTI_SET, [(b"late", b"1"), (b"later", b"2")]))
    waiter.ping()
    assert waiter.read_answers() == b"", "the writer is not served while it does not read"
    writer.read(32 * (8 + len(value)))
    assert waiter.read(1) == STOP_WAITING
    writer.close()
    waiter.close()
