"""The process that leads jobs or would lead them.

Its identity in a record, the check whether other processes are gone, and the clock of its hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from rallypoint.clocks import boot_time
from rallypoint.core.model import NONCE_BITS
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.record import Leader, Process
from rallypoint.machine_name import process_space, started_at
from rallypoint.register.engines import LifeLocks
from rallypoint.register.record import Caller
from rallypoint.threads import CallThread
from rallypoint.wire.versions import SPOKEN


def this_process(locks: LifeLocks | None = None) -> Process:
    """Return the calling process. `locks` is given if it holds a lock."""
    pid, lock = os.getpid(), None if locks is None else locks.own
    return Process(process_space(), pid, started_at(pid), lock)


def is_gone(process: Process, own: Process, locks: LifeLocks | None = None) -> bool:
    """Return whether `process` is known to have ended, as seen from this process (`own`).

    That can be known of a process of the same boot and namespaces. It can also be known, by its
    lock, of one of the same boot in other namespaces (another container). Of others nothing is
    known, nor of one that can't be examined: then False. True for `own` itself, since a process
    that asks does not lead.
    """
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
    """Return a random number for one attempt to lead; it tells that attempt from all others."""
    return int.from_bytes(os.urandom(NONCE_BITS // 8), "big")


class Runtime(Struct, frozen=True):
    """The functions of the system that a leader uses: a clock, random numbers, and `is_gone`."""

    clock: Callable[[], float] = boot_time
    is_gone: Callable[[Process, Process], bool] = is_gone
    """Returns whether a process is gone, as the function of this name."""
    nonce: Callable[[], int] = random_nonce


REAL_RUNTIME = Runtime()


def no_secret(run_id: str) -> None:
    """Return None as the token of a job, because it has none (`--insecure`)."""


class LocalLeader(Struct, frozen=True):
    """A process that leads jobs, and its resources."""

    process: Process
    calls: Caller
    """The thread for the blocking calls of all registers; it makes them one after the other."""
    runtime: Runtime = REAL_RUNTIME
    hold_s: float = HOLD_S
    secret_of: Callable[[str], bytes | None] = no_secret
    """Returns the token of the job of a run id; None: it has none."""

    def leader(self, addresses: tuple[str, ...] = (), *, has_workers: bool = False) -> Leader:
        """Return this process as the leader in the record of a job."""
        versions = SPOKEN.oldest, SPOKEN.newest
        return Leader(addresses, self.process, has_workers, self.hold_s, versions)


def local_leader(
    hold_s: float = HOLD_S,
    locks: LifeLocks | None = None,
    secret_of: Callable[[str], bytes | None] = no_secret,
) -> LocalLeader:
    """Return this process as one that can lead jobs, with a new thread for calls of registers.

    `locks` are those among which this process holds one. The exit of the process does not wait for
    that thread.
    """
    calls = CallThread("rallypoint-registers")
    runtime = Runtime(is_gone=partial(is_gone, locks=locks))
    return LocalLeader(this_process(locks), calls, runtime, hold_s, secret_of)
