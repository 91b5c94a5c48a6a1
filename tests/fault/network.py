"""Small networks of Linux network namespaces: a host is a namespace, a switch is one too.

    with Network("a", "b", "c") as network:
        subprocess.run([*network.inside("a"), "ip", "address"])
        network.cut("a", "b")

Each host has `eth0` (10.5.1.0/24) and, with `data=True`, also `eth1` (10.5.2.0/24) on a switch of
its own. The first host is 1 in each network. Nothing is filtered: packets are lost because a
neighbour entry names a hardware address that nobody has. That is silent, as a broken cable is, or a
firewall that drops, and needs nothing but iproute2.

Names hold the process that made them and when it began: what a killed one left behind is found by
`remove_abandoned`, and what another one uses is left alone. Needs root; `why_impossible` tells
whether the machine allows it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.proc import birth_of

PREFIX = "rallypoint-fault"
"""What the name of every namespace begins with."""
MAIN, DATA = 1, 2
"""The networks, as in the interface `eth{network - 1}`."""
_NAMESPACES, _FILES = Path("/run/netns"), Path("/etc/netns")
_CLONE_NEWNET = 0x40000000
_NOBODY = "02:00:00:00:ff:ff"


def why_impossible() -> str:
    """Why no network can be made on this machine; empty when one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "ss"):
        if shutil.which(tool) is None:
            return f"there is no `{tool}` (the package iproute2)"
    try:
        with Network("a", "b", data=True) as network:
            network.cut("a", "b")
            subprocess.run([*network.inside("a"), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"network namespaces don't work here: {str(said).strip()}"
    return ""


class Network:
    """Hosts that reach each other. Every way is open at first, and names are those of the hosts."""

    _made = 0

    def __init__(self, *hosts: str, data: bool = False) -> None:
        Network._made += 1
        self.hosts = hosts
        self._stem = f"{PREFIX}.{_owner()}.{Network._made}"
        self._networks = (MAIN, DATA) if data else (MAIN,)
        self._names: dict[str, str] = {}

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def address(self, host: str, network: int = MAIN) -> str:
        return f"10.5.{network}.{self.hosts.index(host) + 1}"

    def inside(self, host: str) -> tuple[str, ...]:
        """What to put before a command to run it on this host; the process stays the same."""
        return ("ip", "netns", "exec", self._space(host))

    @contextmanager
    def entered(self, host: str) -> Iterator[None]:
        """What this thread connects to meanwhile it reaches from this host."""
        with (
            open("/proc/thread-self/ns/net") as before,
            open(_NAMESPACES / self._space(host)) as there,
        ):
            _set_network(there.fileno())
            try:
                yield
            finally:
                _set_network(before.fileno())

    def cut(self, host: str, *others: str, network: int = MAIN) -> None:
        """Packets between it and these (all others) vanish from now on, in both directions."""
        for other in self._others(host, others):
            self.cut_one_way(host, other, network=network)
            self.cut_one_way(other, host, network=network)

    def cut_one_way(self, sender: str, receiver: str, network: int = MAIN) -> None:
        """Packets from one to the other vanish, not those that come back."""
        self._neighbour(sender, receiver, _NOBODY, network)

    def heal(self, host: str, *others: str, network: int = MAIN) -> None:
        """The way between it and these (all others) is open again."""
        for other in self._others(host, others):
            for one, two in ((host, other), (other, host)):
                self._neighbour(one, two, self._hardware(two, network), network)
                destination = f"{self.address(two, network)}/32"
                if self._shown(one, f"route show {destination}"):
                    self._ip(f"-n {self._space(one)} route del {destination}")

    def refuse(self, sender: str, receiver: str, network: int = MAIN) -> None:
        """The sender is told at once that there is no way to the receiver (EHOSTUNREACH)."""
        self._ip(
            f"-n {self._space(sender)} route add unreachable {self.address(receiver, network)}/32"
        )

    def reset(self, host: str, other: str, network: int = MAIN) -> None:
        """Every connection between the two is aborted on both, as by a router that resets it."""
        for one, two in ((host, other), (other, host)):
            command = ["ss", "-K", "-t", "-n", "-H", "dst", self.address(two, network)]
            subprocess.run([*self.inside(one), *command], check=True, capture_output=True)

    def mute(self, host: str) -> None:
        """It does not reach itself: what it sends to its own address vanishes."""
        self._ip(f"-n {self._space(host)} link set lo down")

    def unmute(self, host: str) -> None:
        self._ip(f"-n {self._space(host)} link set lo up")

    def unplug(self, host: str, network: int = MAIN) -> None:
        """Its interface has no carrier, and keeps its address and its routes."""
        self._ip(f"-n {self._switch(network)} link set {self._port(host)} down")

    def plug(self, host: str, network: int = MAIN) -> None:
        self._ip(f"-n {self._switch(network)} link set {self._port(host)} up")

    def call(self, name: str, address: str) -> None:
        """From now on this name means this address, on every host, also for running programs."""
        self._names[name] = address
        text = "".join(f"{address} {name}\n" for name, address in self._names.items())
        for host in self.hosts:
            # The hosts see the file itself, not its place: written over, not replaced.
            (_FILES / self._space(host) / "hosts").write_text(text)

    def ask(self, server: str) -> None:
        """From now on hosts ask the name server at this address, and know no names themselves."""
        for host in self.hosts:
            (_FILES / self._space(host) / "hosts").write_text("127.0.0.1 localhost\n")
            (_FILES / self._space(host) / "resolv.conf").write_text(f"nameserver {server}\n")

    def processes(self, *hosts: str) -> list[int]:
        """All that run on these hosts, or on any."""
        return [pid for host in hosts or self.hosts for pid in _processes(self._space(host))]

    def remove(self) -> None:
        _remove(name for name in _spaces() if name.startswith(f"{self._stem}."))

    def _make(self) -> None:
        lines = [f"netns add {self._space(host)}" for host in self.hosts]
        lines += [f"netns add {self._switch(network)}" for network in self._networks]
        _run(lines)
        for network in self._networks:
            _run(["link add br0 type bridge", "link set br0 up"], self._switch(network))
            for host in self.hosts:
                self._connect(host, network)
        for host in self.hosts:
            _run(["link set lo up"], self._space(host))
            (_FILES / self._space(host)).mkdir(parents=True)
        self.call("localhost", "127.0.0.1")
        self.call(os.uname().nodename, "127.0.0.1")
        for host in self.hosts:
            self.call(host, self.address(host))

    def _connect(self, host: str, network: int) -> None:
        port, card = self._port(host), f"eth{network - 1}"
        peer = f"peer name {card} netns {self._space(host)} address {self._hardware(host, network)}"
        on_switch = [f"link add {port} type veth {peer}", f"link set {port} master br0 up"]
        _run(on_switch, self._switch(network))
        address = f"address add {self.address(host, network)}/24 dev {card}"
        _run([address, f"link set {card} up"], self._space(host))

    def _space(self, host: str) -> str:
        return f"{self._stem}.{host}"

    def _switch(self, network: int) -> str:
        return f"{self._stem}.switch-{network}"

    def _port(self, host: str) -> str:
        return f"port{self.hosts.index(host) + 1}"

    def _hardware(self, host: str, network: int) -> str:
        return f"02:00:00:00:{network:02x}:{self.hosts.index(host) + 1:02x}"

    def _others(self, host: str, others: Iterable[str]) -> list[str]:
        return list(others) or [other for other in self.hosts if other != host]

    def _neighbour(self, sender: str, receiver: str, hardware: str, network: int) -> None:
        entry = f"{self.address(receiver, network)} lladdr {hardware} dev eth{network - 1}"
        self._ip(f"-n {self._space(sender)} neigh replace {entry} nud permanent")

    def _ip(self, words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)

    def _shown(self, host: str, words: str) -> str:
        command = ["ip", "-n", self._space(host), *words.split()]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _set_network(descriptor: int) -> None:
    """Of this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def remove_abandoned() -> None:
    """Remove the networks of test processes that live no more, with what still runs there."""
    for name in _spaces():
        pid, _, began = name.removeprefix(f"{PREFIX}.").split(".")[0].partition("-")
        if began != birth_of(int(pid)):
            _remove([name])


def left() -> list[str]:
    """What this process has made and not removed: namespaces, folders of files."""
    mine = f"{PREFIX}.{_owner()}."
    return [name for name in _spaces() if name.startswith(mine)]


def _owner() -> str:
    return f"{os.getpid()}-{birth_of(os.getpid())}"


def _spaces() -> list[str]:
    found = {path.name for base in (_NAMESPACES, _FILES) for path in base.glob(f"{PREFIX}.*")}
    return sorted(found)


def _processes(space: str) -> list[int]:
    listing = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
    return [int(pid) for pid in listing.stdout.split()]


def _remove(spaces: Iterable[str]) -> None:
    for space in spaces:
        if (_NAMESPACES / space).exists():
            _clear(space)
            # Two test processes may find the same abandoned one.
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        shutil.rmtree(_FILES / space, ignore_errors=True)


def _clear(space: str) -> None:
    """A namespace lives as long as a process in it, whatever its name does."""
    deadline = time.monotonic() + 10
    while pids := _processes(space):
        assert time.monotonic() < deadline, f"{pids} in {space} can't be killed"
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def _run(lines: Iterable[str], space: str = "") -> None:
    where = ["-n", space] if space else []
    batch = "\n".join(lines)
    command = ["ip", *where, "-batch", "-"]
    subprocess.run(command, input=batch, check=True, capture_output=True, text=True)
