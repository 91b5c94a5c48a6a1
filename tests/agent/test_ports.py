"""Ports that are kept for servers of workers."""

from __future__ import annotations

import errno
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

from rallypoint.agent.ports import ReservedPorts, ports_wanted
from rallypoint.errors import InfrastructureError

LOCAL_PORT_RANGE = 51
"""IP_LOCAL_PORT_RANGE, which Python has no name for."""


@pytest.fixture
def ports() -> Iterator[ReservedPorts]:
    reserved = ReservedPorts(3)
    yield reserved
    reserved.close()


def bound(port: int, host: str = "127.0.0.1", *, reuse: bool = True) -> socket.socket:
    made = socket.socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


def test_a_server_can_listen_there_although_it_is_reserved(ports: ReservedPorts) -> None:
    for port in ports.renew():
        with bound(port) as server, socket.socket() as client:
            server.listen()
            client.connect(("127.0.0.1", port))
            server.accept()[0].close()


def test_the_system_gives_them_to_nobody_else(ports: ReservedPorts) -> None:
    """To a socket that would share it, and may have this port only."""
    port = ports.renew()[0]
    free = bound(0)
    own = free.getsockname()[1]
    free.close()
    for only, is_given in ((own, True), (port, False)):
        with socket.socket() as asks:
            asks.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                asks.setsockopt(socket.IPPROTO_IP, LOCAL_PORT_RANGE, struct.pack("=HH", only, only))
            except OSError:
                pytest.skip("Linux before 6.3 has no range of ports for one socket")
            if is_given:
                asks.bind(("127.0.0.1", 0))
                assert asks.getsockname()[1] == only
                continue
            with pytest.raises(OSError, match="in use"):
                asks.bind(("127.0.0.1", 0))


def test_each_round_has_others_and_frees_the_former(ports: ReservedPorts) -> None:
    first = ports.renew()
    second = ports.renew()
    assert len(set(first + second)) == 6
    bound(first[0], reuse=False).close()
    with pytest.raises(OSError, match="in use"):
        bound(second[0], reuse=False)
    ports.close()
    bound(second[0], reuse=False).close()


def test_none_left_is_one_error_and_nothing_stays_open(ports: ReservedPorts) -> None:
    first = ports.renew()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as newest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest.fileno() + 2, hard))
        try:
            with pytest.raises(InfrastructureError) as refused:
                ports.renew()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.EMFILE
    bound(first[0], reuse=False).close()


@pytest.mark.parametrize(
    ("styles", "count"),
    [((), 0), (("deepspeed", "mpi"), 0), (("jax",), 1), (("tensorflow",), 5), (("jax", "mpi"), 1)],
)
def test_a_node_reserves_no_more_than_its_styles_need(styles: tuple[str, ...], count: int) -> None:
    assert ports_wanted(styles, 4) == count
