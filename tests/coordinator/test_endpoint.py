"""Endpoints: what a person writes, and what the resolver says about it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.harness.narrowed import of_kind

from rallypoint.cli import values
from rallypoint.cli.values import Given
from rallypoint.config import DEFAULT_COORDINATOR_PORT, Endpoint
from rallypoint.coordinator.client.endpoint import (
    NotYet,
    Resolved,
    meant_addresses,
    numeric_address,
    resolve,
)
from rallypoint.errors import UsageError
from rallypoint.wire.address import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node0", "node0", DEFAULT_COORDINATOR_PORT),
        ("node0:1234", "node0", 1234),
        ("node0:0", "node0", 0),
        ("node0.cluster.local.:1", "node0.cluster.local.", 1),
        ("my_job-0.svc:65535", "my_job-0.svc", 65535),
        ("10.0.0.1", "10.0.0.1", DEFAULT_COORDINATOR_PORT),
        ("10.0.0.1:7", "10.0.0.1", 7),
        ("[::1]", "::1", DEFAULT_COORDINATOR_PORT),
        ("::1", "::1", DEFAULT_COORDINATOR_PORT),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_F6_endpoints_are_read(text: str, host: str, port: int) -> None:
    assert read(text) == Endpoint(host, port)


@pytest.mark.parametrize("text", ["node0:1234", "[::1]:29400", "10.0.0.1:7"])
def test_F6_an_endpoint_is_written_as_it_was_read(text: str) -> None:
    assert str(read(text)) == text


HOST, PORT, BRACKETS = (
    "needs a host name or an address",
    "is not a valid port",
    "needs \\[ADDRESS\\]:PORT",
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", HOST),
        (":29400", HOST),
        ("node0:", "the port is missing"),
        ("node0:http", PORT),
        ("node0:65536", PORT),
        ("node0:-1", PORT),
        ("node0:+1", PORT),
        ("node0:1_0", PORT),
        ("node0:\u0661", PORT),
        ("node0:" + "9" * 5000, PORT),
        ("fe80::1:29400", "brackets: \\[fe80::1\\]:29400"),
        ("[::1", BRACKETS),
        ("[::1]29400", BRACKETS),
        ("[:::1]:1", HOST),
        ("tcp://node0:1", "without a scheme"),
        ("node 0", HOST),
        ("node/0", HOST),
        ("node\x1b[2J", HOST),
        ("node..0", HOST),
        ("x" * 64, HOST),
        ("a." * 130, HOST),
    ],
)
def test_F6_a_malformed_endpoint_is_one_line_that_shows_it(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read(text)
    assert "--rdzv-endpoint" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "host"), [("node0", "node0"), ("::1", "::1"), ("[::1]", "::1"), ("1.2.3.4", "1.2.3.4")]
)
def test_F6_a_host_alone_is_read(text: str, host: str) -> None:
    assert values.host(Given(text, f"--master-addr {text}")) == host


def test_F6_a_host_alone_has_no_port() -> None:
    with pytest.raises(UsageError, match=r"^--master-addr node0:1: needs a host name"):
        values.host(Given("node0:1", "--master-addr node0:1"))


def read(text: str) -> Endpoint:
    return values.endpoint(Given(text, f"--rdzv-endpoint {text}"))


def test_F6_a_literal_address_needs_no_resolver_and_no_thread() -> None:
    assert numeric_address(Endpoint("127.0.0.1", 7)) == Address("127.0.0.1", 7)
    assert numeric_address(Endpoint("::1", 7)) == Address("::1", 7)
    assert numeric_address(Endpoint("localhost", 7)) is None
    with pytest.raises(StopIteration) as finished:
        resolve(Endpoint("::1", 7)).send(None)  # done at its first step, without a loop
    assert finished.value.value == Resolved((Address("::1", 7),))


def test_F6_a_name_is_resolved_and_no_thread_remains() -> None:
    async def look_up() -> tuple[Resolved | NotYet, list[str]]:
        found = await resolve(Endpoint("localhost", 29400))
        return found, [thread.name for thread in threading.enumerate()]

    before = [thread.name for thread in threading.enumerate()]
    found, threads = asyncio.run(look_up())
    assert threads == before, "the agent forks right after this"
    assert isinstance(found, Resolved)
    assert all(address.is_loopback and address.port == 29400 for address in found.addresses)
    assert len(set(found.addresses)) == len(found.addresses)


def test_F6_a_name_that_is_not_there_yet_is_worth_another_try() -> None:
    found = of_kind(NotYet, asyncio.run(resolve(Endpoint("not-there-yet.invalid", 29400))))
    assert "'not-there-yet.invalid' does not resolve yet (" in found.reason


async def test_F6_a_name_that_never_can_resolve_is_a_usage_error() -> None:
    before = threading.active_count()
    with pytest.raises(UsageError, match="is not a host name"):
        await resolve(Endpoint("é" * 64, 29400))
    assert threading.active_count() == before


async def test_F6_waiting_for_the_resolver_can_be_cancelled() -> None:
    looking = asyncio.create_task(resolve(Endpoint("not-there-yet.invalid", 29400)))
    await asyncio.sleep(0)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking


@pytest.mark.parametrize(
    ("address", "text", "sockaddr"),
    [
        (Address("127.0.0.1", 7), "127.0.0.1:7", ("127.0.0.1", 7)),
        (Address("fe80::1", 7, 2), "[fe80::1]:7", ("fe80::1", 7, 0, 2)),
    ],
)
def test_F7_an_address_is_what_sockets_take(
    address: Address, text: str, sockaddr: tuple[object, ...]
) -> None:
    assert str(address) == text
    assert address.sockaddr == sockaddr


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"])
def test_F6_loopback_is_known_in_all_its_spellings(host: str) -> None:
    assert Address(host, 1).is_loopback
    assert not Address("10.127.0.1", 1).is_loopback


@pytest.mark.parametrize(
    ("host", "session_host", "meant"),
    [
        ("node1", "10.0.0.1", ["10.1.0.1"]),  # Debian's 127.0.1.1 is not what peers mean
        ("node1", "127.0.0.1", ["127.0.1.1", "10.1.0.1"]),
        ("localhost", "10.0.0.1", ["127.0.1.1", "10.1.0.1"]),
        ("127.0.1.1", "10.0.0.1", ["127.0.1.1", "10.1.0.1"]),
    ],
)
def test_F7_a_name_that_is_loopback_here_alone_is_not_what_peers_mean(
    host: str, session_host: str, meant: list[str]
) -> None:
    found = [Address("127.0.1.1", 0), Address("10.1.0.1", 0)]
    assert [a.host for a in meant_addresses(host, found, session_host)] == meant
