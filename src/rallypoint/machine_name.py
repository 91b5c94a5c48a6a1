"""The identity of this machine in its present boot, and of its processes.

A coordinator tells machines apart by this name, to hold back those on which workers fail. A process
is told from another one with the same number by its pid namespace and its start time.

Every agent on a machine finds the same name, until the machine boots. Where no name is reliable,
the name is empty, and the id of the node replaces it. The standard library alone.
"""

from __future__ import annotations

import os
import socket

_KERNEL_DIGITS = 16
_STARTED_AT = 19
"""The position of the start time in /proc/PID/stat, counted from the state on; see proc(5)."""
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode number of Linux's first pid namespace (PROC_PID_INIT_INO)."""
_NODE_VARIABLE = "NODE_NAME"
"""The variable that names a pod's machine, if its manifest sets it."""
_MAX_BYTES = 255
"""The limit that `core/limits.py` sets for names in messages."""


def machine_name(given: str, address: str) -> str:
    """Return the name of this machine since its boot; empty: no reliable one is known.

    `given` is a name from the user, which is returned as it is; `address` is the address by which
    peers reach this node.
    """
    if given:
        return given
    kernel = "" if _is_in_container() else kernel_id()
    return choose_name(address, kernel=kernel, node_name=os.environ.get(_NODE_VARIABLE, ""))


def choose_name(address: str, *, kernel: str, node_name: str) -> str:
    """Return the name of a machine for which the user gave none; empty: it has none.

    `kernel` is the id of the machine's boot. It is empty in a container, where neither the boot nor
    the address is the machine's own. Without it, or without a usable address, the name is
    `node_name`: the value of NODE_NAME.
    """
    if kernel and _is_of_machine(address):
        return f"{kernel}/{address}"
    fits = node_name.isprintable() and len(node_name.encode()) <= _MAX_BYTES
    return node_name if fits else ""


def kernel_id() -> str:
    """Return the id of this machine's boot; empty where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().replace("-", "")[:_KERNEL_DIGITS]
    except OSError:
        return ""


def process_space() -> str:
    """Return a text that names the machine's boot and the namespaces of this process.

    Within them a process is identified by its number and its start time. Raises OSError where the
    system does not show them.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    paths = ("/proc/self/ns/pid", "/proc/self/ns/time")  # Linux 5.5 has no second one
    return " ".join((boot_id, *(os.readlink(path) for path in paths if os.path.lexists(path))))


def started_at(pid: int) -> int:
    """Return the start time of the process with this pid, in clock ticks since the boot.

    Raises OSError; FileNotFoundError and ProcessLookupError mean that the process does not exist.
    """
    return int(_stat(pid)[_STARTED_AT])


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def process_name(pid: int) -> str:
    """Return a name that tells this process from any later one that gets the same pid.

    It does so even after the next boot. The name lacks the pid. Empty if the process does not
    exist, has ended, or the system does not show it.
    """
    try:
        stat = _stat(pid)
        has_ended = stat[0] in (b"Z", b"X")
        return "" if has_ended else f"{process_space()} {int(stat[_STARTED_AT])}"
    except OSError:
        return ""


def _is_in_container() -> bool:
    """Return whether this process is in another pid namespace than the machine's first one.

    True as well where the kernel does not show it.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def _is_of_machine(address: str) -> bool:
    """Return whether the text is a numeric address that other machines may reach."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        packed = socket.inet_pton(family, address.partition("%")[0])
    except (OSError, ValueError):
        return False
    if family is socket.AF_INET6 and not packed.startswith(bytes(10) + b"\xff\xff"):
        return packed not in (bytes(16), bytes(15) + b"\x01")
    return packed[-4] not in (0, 127)
