"""The network of the fault tests does what these rely on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.fault import network as networks
from tests.fault.network import DATA, Network
from tests.harness.cluster import wait_until
from tests.harness.proc import is_alive

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 9000), backlog=64)
print("up", flush=True)
while True:
    server.accept()[0].close()
"""
CLIENT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9000), timeout=0.3).close()
    print("reached")
except TimeoutError:
    print("silence")
except OSError as error:
    print(type(error).__name__, error.errno)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("a", "b", "c", data=True) as made:
        servers = [listen(made, "b"), listen(made, "b", DATA)]
        yield made
        for server in servers:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()


def listen(network: Network, host: str, number: int = 1) -> subprocess.Popen[str]:
    command = [*network.inside(host), sys.executable, "-c", SERVER, network.address(host, number)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    return server


def reach(network: Network, sender: str, address: str) -> str:
    command = [*network.inside(sender), sys.executable, "-c", CLIENT, address]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.quick
def test_a_way_can_be_cut_refused_unplugged_and_healed(network: Network) -> None:
    address = network.address("b")
    assert reach(network, "a", address) == "reached"
    for cut in (network.cut, network.cut_one_way):
        cut("b", "a")
        assert reach(network, "a", address) == "silence"
        assert reach(network, "a", network.address("b", DATA)) == "reached"
        assert reach(network, "c", address) == "reached"
        network.heal("b")
        assert reach(network, "a", address) == "reached"
    network.refuse("a", "b")
    assert reach(network, "a", address) == "OSError 113"
    network.heal("a", "b")
    network.unplug("b")
    assert reach(network, "a", address) == "silence"
    network.plug("b")
    assert reach(network, "a", address) == "reached"


def test_a_name_can_move_while_programs_run(network: Network) -> None:
    assert reach(network, "a", "b") == "reached"
    network.call("pod", network.address("c"))
    assert reach(network, "a", "pod") == "ConnectionRefusedError 111"
    network.call("pod", network.address("b"))
    assert reach(network, "a", "pod") == "reached"


def test_what_a_killed_run_leaves_is_removed_and_what_others_use_is_not() -> None:
    text = (
        "import os, signal, subprocess\n"
        "from tests.fault.network import Network\n"
        "network = Network('a', 'b').__enter__()\n"
        "stay = [*network.inside('a'), 'sh', '-c', 'echo; exec sleep 600']\n"
        "child = subprocess.Popen(stay, stdout=-1, stderr=-3)\n"
        "child.stdout.readline()\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with Network("a", "b") as mine:
        run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        pid, child = run.stdout.split()
        networks.remove_abandoned()
        assert not any(f".{pid}-" in name for name in networks._spaces())
        wait_until(lambda: not is_alive(int(child)), "what ran there to go")
        assert reach(mine, "a", mine.address("b")) == "ConnectionRefusedError 111"
    assert networks.left() == []
