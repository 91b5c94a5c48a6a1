"""The addresses by which other nodes reach a node that leads."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster

from rallypoint.coordinator.own_addresses import (
    ipv6_addresses,
    why_unreachable,
)
from rallypoint.elastic.rendezvous.led.round_listener import RoundListener
from rallypoint.wire.address import Address

NETWORK = ("unshare", "--net")
PRINTS = (
    "from rallypoint.coordinator.own_addresses import own_addresses;"
    "print(*(each.host for each in own_addresses()))"
)
ISOLATED = """\
ip link set lo up
ip link add d0 type veth peer name d1
ip link set d0 up
ip link set d1 up
"""
IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000fc54fffffe000001 02 40 20 80     eth0
20010db8000000000000000000000009 02 40 00 01     eth0
fd000009000000000000000000000001 02 40 00 80     eth0
fd000009000000000000000000000002 02 40 00 c0     eth0
fd000009000000000000000000000003 02 40 00 88     eth0
fec00000000000000000000000000004 03 40 40 a0     eth1
a line of a kernel to come
"""


@pytest.fixture
def _namespaces() -> None:
    if subprocess.run([*NETWORK, "ip", "link"], capture_output=True).returncode:
        pytest.skip("network namespaces need root, and ip(8)")


def test_L1_addresses_of_interfaces_that_others_can_reach_are_found_stable_ones_first() -> None:
    """Neither loopback nor those of one link, nor such as are not usable."""
    found = ipv6_addresses(IF_INET6)
    assert found == ["fd00:9::1", "2001:db8::9", "fec0::4"]
    assert ipv6_addresses("") == []


def test_L1_loopback_is_remarked_on_unless_a_person_has_spelled_it_out() -> None:
    loopback, other = Address("127.0.1.1", 0), Address("10.0.0.5", 0)
    assert "--local-addr node-a is 127.0.1.1 here" in why_unreachable([loopback], "node-a")
    assert not why_unreachable([loopback, other], None)
    for written in ("127.0.1.1", "::1", "localhost"):
        assert not why_unreachable([loopback], written)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")
def test_a_round_store_at_an_address_of_a_gateway_is_reached_by_ipv6_and_ipv4() -> None:
    listener = asyncio.run(RoundListener.bind("2001:db8::1"))
    try:
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, listener.port), timeout=30).close()
    finally:
        listener.close()


@pytest.mark.usefixtures("_namespaces")
def test_L1_a_leader_without_a_default_route_has_its_ipv6_addresses_in_the_record() -> None:
    script = f'{ISOLATED}ip -6 address add fd00:9::1/64 dev d0 nodad\nexec "$@"'
    words = [*NETWORK, "sh", "-ec", script, "sh", sys.executable, "-c", PRINTS]
    assert subprocess.check_output(words, text=True) == "fd00:9::1\n"


@pytest.mark.usefixtures("_namespaces")
@pytest.mark.parametrize(("nnodes", "is_told"), [("1:2", True), ("1", False)])
def test_L1_a_leader_that_has_no_address_but_loopback_says_so(
    tmp_path: Path, nnodes: str, is_told: bool
) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir(0o700)
    with Cluster(tmp_path, nnodes=nnodes, rdzv_backend="file", rdzv_endpoint=str(jobs)) as cluster:
        cluster.make_token()
        cluster.order("sys.exit(0)")
        inside = (*NETWORK, "sh", "-ec", 'ip link set lo up; exec "$@"', "sh")
        a = cluster.agent("a", prefix=inside)
        assert a.wait_exit() == 0
        text = (
            "no other machine reaches this node, which leads the job: 127.0.0.1 is its only address"
        )
        assert (text in a.said) is is_told
        assert not is_told or "--local-addr" in a.said
