"""The names of this machine and of its processes.

Of its present start, the one by which a coordinator tells it from others, to hold back those on
which workers fail, and the space and the time by which a process is told from another one of the
same number.

Every agent that is started on a machine finds the same name there, until that machine boots. Where
no name can be trusted to be the same, there is none: then the id of the node stands for it.

The standard library alone.
"""

from __future__ import annotations

import os
import socket

_KERNEL_DIGITS = 16
_STARTED_AT = 19
"""The place of the start time in /proc/PID/stat, counted from the state on; see proc(5)."""
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode number that Linux gives to it (PROC_PID_INIT_INO)."""
_NODE_VARIABLE = "NODE_NAME"
"""A pod is told by this variable on which machine it runs, if its manifest says so."""
_MAX_BYTES = 255
"""The limit that `core/limits.py` sets for names in messages."""


def machine_name(given: str, address: str) -> str:
    """Return the name of this machine; empty: it has none.

    `given`: by a person. `address`: where peers reach this node.
    """
    if given:
        return given
    kernel = "" if _is_in_container() else kernel_id()
    return choose_name(address, kernel=kernel, node_name=os.environ.get(_NODE_VARIABLE, ""))


def choose_name(address: str, *, kernel: str, node_name: str) -> str:
    """Return the name of a machine without one of a person's.

    `kernel` names this start of the machine; it is empty in a container, where neither the start
    nor the address is the machine's own.
    """
    if kernel and _is_of_machine(address):
        return f"{kernel}/{address}"
    fits = node_name.isprintable() and len(node_name.encode()) <= _MAX_BYTES
    return node_name if fits else ""


def kernel_id() -> str:
    """Return the name of this start of this machine; empty where the system tells none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().replace("-", "")[:_KERNEL_DIGITS]
    except OSError:
        return ""


def process_space() -> str:
    """Return the start of this machine and the namespaces of this process.

    Within them a process has one number, and one time at which it was started. Raises OSError where
    the system does not tell.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    paths = ("/proc/self/ns/pid", "/proc/self/ns/time")  # Linux 5.5 has no second one
    return " ".join((boot_id, *(os.readlink(path) for path in paths if os.path.lexists(path))))


def started_at(pid: int) -> int:
    """Return when this process was started, in clock ticks since the boot.

    Raises OSError, of which FileNotFoundError and ProcessLookupError say that there is no such
    process.
    """
    return int(_stat(pid)[_STARTED_AT])


def _stat(pid: int) -> list[bytes]:
    """Return what the kernel tells of a process, from its state on. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def process_name(pid: int) -> str:
    """Return a name that no other process has, also after the next boot.

    Empty: there is no such process, it has ended, or the system does not tell.
    """
    try:
        stat = _stat(pid)
        has_ended = stat[0] in (b"Z", b"X")
        return "" if has_ended else f"{process_space()} {int(stat[_STARTED_AT])}"
    except OSError:
        return ""


def _is_in_container() -> bool:
    """Return whether this process has another pid namespace than the machine's first one.

    True as well where the kernel does not tell.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def _is_of_machine(address: str) -> bool:
    """Return whether it is in digits, and other machines may reach it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        packed = socket.inet_pton(family, address.partition("%")[0])
    except (OSError, ValueError):
        return False
    if family is socket.AF_INET6 and not packed.startswith(bytes(10) + b"\xff\xff"):
        return packed not in (bytes(16), bytes(15) + b"\x01")
    return packed[-4] not in (0, 127)
