"""What a process that leads a job knows of itself and its machine: its name in a record, which
other processes are gone, and the clock of its hold."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import Struct

from rallypoint.clocks import boot_time
from rallypoint.core.model import NONCE_BITS
from rallypoint.core.takeover.record import Process
from rallypoint.machine_name import process_space, started_at
from rallypoint.register.engines import LifeLocks


def this_process(locks: LifeLocks | None = None) -> Process:
    """The process that calls this. `locks`: where it holds a lock, if it does."""
    pid, lock = os.getpid(), None if locks is None else locks.own
    return Process(process_space(), pid, started_at(pid), lock)


def is_gone(process: Process, own: Process, locks: LifeLocks | None = None) -> bool:
    """Whether this process has ended. Known of one of the same boot and namespaces as `own`, and,
    by its lock, of one of the same boot in other namespaces (another container). Of others nothing
    is known, nor of one that can't be looked at."""
    if process.where != own.where:
        is_same_boot = process.where.split()[:1] == own.where.split()[:1]
        lock = process.lock if is_same_boot else None
        return locks is not None and lock is not None and locks.is_free(lock)
    try:
        return process == own or started_at(process.pid) != process.started_at
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def random_nonce() -> int:
    """Of one attempt to lead."""
    return int.from_bytes(os.urandom(NONCE_BITS // 8), "big")


class Runtime(Struct, frozen=True):
    """What a leader knows of the machine that it runs on."""

    clock: Callable[[], float] = boot_time
    is_gone: Callable[[Process, Process], bool] = is_gone
    """As the function of this name."""
    nonce: Callable[[], int] = random_nonce


REAL_RUNTIME = Runtime()
