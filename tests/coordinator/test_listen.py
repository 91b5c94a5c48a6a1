"""F6: whoever can bind the endpoint hosts. Real sockets, on loopback only."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from rallypoint.coordinator.listen import (
    BindRefused,
    ListenRefusal,
    bind_wildcard,
    listen_backlog,
    raise_open_files_limit,
    refuse_loopback_name,
    try_bind,
)
from rallypoint.errors import UsageError
from rallypoint.wire.address import Address

V4, V6 = Address("127.0.0.1", 0), Address("::1", 0)
ELSEWHERE = Address("192.0.2.1", 0)  # RFC 5737: documentation, on no machine


def _has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")


@contextmanager
def _bound(*addresses: Address, port: int = 0) -> Iterator[list[socket.socket]]:
    sockets = try_bind(addresses, port)
    assert not isinstance(sockets, BindRefused), sockets.why
    try:
        yield sockets
    finally:
        for listener in sockets:
            listener.close()


def _port(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def _open_sockets() -> int:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sum(link.startswith("socket:") for link in links)


def test_F6_the_first_to_bind_hosts_and_the_second_is_a_client() -> None:
    with _bound(V4) as first:
        before = _open_sockets()
        second = try_bind((V4,), _port(first))
        assert isinstance(second, BindRefused)
        assert second.refusal is ListenRefusal.IN_USE
        assert f"127.0.0.1:{_port(first)} is in use" in second.why
        assert _open_sockets() == before


def test_F6_a_connection_is_accepted_and_nothing_blocks() -> None:
    with _bound(V4) as (listener,):
        with pytest.raises(BlockingIOError):
            listener.accept()
        with closing(socket.create_connection(listener.getsockname())):
            listener.setblocking(True)
            listener.settimeout(30)
            accepted, _ = listener.accept()
            accepted.close()


def test_F6_only_the_asked_address_is_bound() -> None:
    with _bound(V4) as (listener,):
        assert listener.getsockname()[0] == "127.0.0.1"
        with closing(socket.socket()) as other:
            other.settimeout(30)
            assert other.connect_ex(("127.0.0.2", _port([listener]))) == errno.ECONNREFUSED


def test_F6_an_address_of_another_machine_makes_a_client() -> None:
    before = _open_sockets()
    refused = try_bind((ELSEWHERE,), 29400)
    assert isinstance(refused, BindRefused)
    assert refused.refusal is ListenRefusal.NOT_MINE
    assert "192.0.2.1 is not an address of this machine" in refused.why
    assert _open_sockets() == before


def test_F6_one_local_address_of_several_is_enough() -> None:
    with _bound(ELSEWHERE, V4) as sockets:
        assert [listener.getsockname()[0] for listener in sockets] == ["127.0.0.1"]


@needs_ipv6
def test_F6_both_families_share_one_port() -> None:
    with _bound(V4, V6) as sockets:
        names = [listener.getsockname() for listener in sockets]
        assert [name[0] for name in names] == ["127.0.0.1", "::1"]
        assert names[0][1] == names[1][1] != 0


@needs_ipv6
def test_F6_when_one_address_is_taken_none_stays_bound() -> None:
    with _bound(V6) as taken:
        port = _port(taken)
        before = _open_sockets()
        refused = try_bind((V4, V6), port)
        assert isinstance(refused, BindRefused)
        assert refused.refusal is ListenRefusal.IN_USE
        assert _open_sockets() == before
        with _bound(V4, port=port):
            pass


def test_F6_a_port_is_free_again_at_once_after_its_connections() -> None:
    with _bound(V4) as (listener,):
        port = _port([listener])
        client = socket.create_connection(("127.0.0.1", port))
        listener.setblocking(True)
        accepted, _ = listener.accept()
        accepted.close()  # the server's side closes first: its port is in TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    with _bound(V4, port=port):
        pass


@needs_ipv6
def test_F6_a_wildcard_is_reached_over_both_families() -> None:
    sockets = bind_wildcard(0)
    assert not isinstance(sockets, BindRefused)
    try:
        port = _port(sockets)
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=30).close()
        again = bind_wildcard(port)
        assert isinstance(again, BindRefused)
        assert again.refusal is ListenRefusal.IN_USE
    finally:
        for listener in sockets:
            listener.close()


def test_F6_a_forbidden_port_is_a_usage_error_with_the_fix() -> None:
    """In a process of its own: it gives up root for good."""
    program = (
        "import os\n"
        "from rallypoint.coordinator.listen import try_bind\n"
        "from rallypoint.errors import UsageError\n"
        "from rallypoint.wire.address import Address\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: print('bound', try_bind((Address('127.0.0.1', 1),), 1))\n"
        "except UsageError as error: print(error)\n"
    )
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="ascii") as setting:
        if int(setting.read()) < 2:
            pytest.skip("this machine lets everybody use every port")
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert "can't listen on 127.0.0.1:1: this user may not use port 1" in ended.stdout, ended
    assert "above 1023" in ended.stdout


@needs_ipv6
def test_F6_a_link_local_address_needs_its_interface() -> None:
    with pytest.raises(UsageError, match=r"like \[fe80::1%eth0\]:29400"):
        try_bind((Address("fe80::1", 0),), 29400)


def test_F6_the_backlog_is_the_kernels_limit() -> None:
    with open("/proc/sys/net/core/somaxconn", encoding="ascii") as setting:
        assert listen_backlog() == int(setting.read())


def test_F6_a_name_that_means_loopback_is_refused_with_the_fix() -> None:
    with pytest.raises(UsageError) as caught:
        refuse_loopback_name("node0", (Address("127.0.1.1", 29400),), max_nodes=2)
    line = str(caught.value)
    assert "'node0' is 127.0.1.1 here" in line
    assert "/etc/hosts" in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("host", "address", "max_nodes"),
    [
        ("node0", "127.0.1.1", 1),
        ("localhost", "127.0.0.1", 2),
        ("localhost", "::1", 2),
        ("127.0.0.1", "127.0.0.1", 2),
        ("::1", "::1", 2),
        ("node0", "10.0.0.1", 2),
    ],
)
def test_F6_loopback_that_was_meant_is_allowed(host: str, address: str, max_nodes: int) -> None:
    refuse_loopback_name(host, (Address(address, 29400),), max_nodes)


def test_F6_the_limit_of_open_files_is_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(before[0], 256)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
        raised = raise_open_files_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, before[1])
        assert raised == (1 << 20 if before[1] < 0 else min(before[1], 1 << 20))
        assert raise_open_files_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
