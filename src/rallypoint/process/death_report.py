"""The last actions of a guard, when its agent and all workers are dead.

It reports the death to the coordinator (behaviour F2). If the agent led the job itself, the guard
marks the record in the register (behaviour L6). If that coordinator may have died with the agent,
the guard reports to the next one (behaviour L4).

The guard imports this module only then, because most guards have nothing to report.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from rallypoint.core.messages import AgentDied
from rallypoint.errors import AccessError, ProtocolError
from rallypoint.process import syscalls
from rallypoint.process.forks import fork_process
from rallypoint.wire import death_notice
from rallypoint.wire.address import split_endpoint
from rallypoint.wire.codec import encode
from rallypoint.wire.death_notice import ByRegister, DeathNotice, Notice, ReleaseNotice
from rallypoint.wire.frames import FrameEncoder
from rallypoint.wire.handshake import NONCE_BYTES, ClientHandshake

_LIMIT_S = 3.0
"""The time limit in seconds of the report to the agent's coordinator, or of the release of the
job's record. Without a report the coordinator waits for the connection's grace; without a release
of the record other nodes wait for the leader's hold."""
_END_S = 1.0
"""How long an agent whose pipe to the guard has ended may take to die, in seconds."""
_LOOK_S = 0.01

NEXT_LEADER_S = 40.0
"""The time limit in seconds for reporting to the coordinator that leads next. With the default hold
of a job's record another node leads after 14 s at most, and waits for a lease. Until then it has to
be found, and it may die as well."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.5
_ATTEMPT_S = 1.0


def tell(
    data: bytes, agent_pid: int, by_register: ByRegister | None, *, out_of_memory: bool
) -> Callable[[], None] | None:
    """Do what the dead agent's notice asks for: report the death, or release the job's record.

    For a child of the agent, its guard. Takes `_LIMIT_S` at most. `data` is the encoded notice.
    Nothing is released while the agent lives. Returns a function that reports to the coordinator
    that leads next, for `NEXT_LEADER_S` at most; None: there is nothing to do later.
    """
    notice, began_at = death_notice.decode(data), time.monotonic()
    is_told = False
    if isinstance(notice, DeathNotice):
        is_told = report_death(notice, out_of_memory=out_of_memory)
        if notice.register is None and (is_told or not notice.may_follow):
            return None
    if notice.place is None and isinstance(notice, DeathNotice):
        return None
    # The end of its pipe shows that an agent ends, not that it is dead, or no longer leads.
    while os.getppid() == agent_pid:
        if time.monotonic() >= began_at + _END_S:
            return None
        select.select([], [], [], _LOOK_S)
    if isinstance(notice, ReleaseNotice) and by_register is not None:
        left_s = began_at + _LIMIT_S - time.monotonic()
        release = partial(by_register.release, notice, left_s)
        _run_limited(release, left_s, "rallypoint: register release")
    if notice.place is None:
        return None
    body = partial(tell_next, notice, by_register, out_of_memory=out_of_memory)
    return partial(_run_limited, body, NEXT_LEADER_S, "rallypoint: death report")


def tell_next(notice: Notice, by_register: ByRegister | None, *, out_of_memory: bool) -> None:
    """Report the death to the coordinator that leads next, as soon as one does.

    Without a register it tries the notice's address until one report is received; with one, until
    nobody needs the report. Blocks for `NEXT_LEADER_S` at most, unless a register hangs.
    """
    ends_at, pause_s = time.monotonic() + NEXT_LEADER_S, _PAUSE_S
    look = None
    if notice.register is not None:
        if by_register is None:
            return
        look = by_register.who_hears(notice, _ATTEMPT_S)
    while time.monotonic() < ends_at:
        if look is None:
            if report_death(notice, _ATTEMPT_S, out_of_memory=out_of_memory):
                return
        elif (where := look()) is None:
            return
        else:
            for each in where:
                at = split_endpoint(each, 0)
                if report_death(notice, _ATTEMPT_S, at=at, out_of_memory=out_of_memory):
                    break
        select.select([], [], [], pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def _run_limited(body: Callable[[], None], limit_s: float, title: str) -> None:
    """Run a function in a forked process, and kill that process after `limit_s` seconds.

    Returns earlier if it ends. The function asks a register (the place of a job's record), which
    may hang, and the guard has more to do.
    """

    is_over, held_by_it = syscalls.pipe_above_standard_fds()
    try:
        process = fork_process(body, name="rallypoint-rel", title=title, keep_fds=(held_by_it,))
    finally:
        os.close(held_by_it)
    select.select([is_over], [], [], limit_s)
    process.kill()
    # Not waited for: within a system call on a directory a process may not even be killed.
    syscalls.reap_if_exited(process.pid)
    os.close(is_over)


def report_death(
    notice: Notice,
    limit_s: float = _LIMIT_S,
    *,
    at: tuple[str, int] | None = None,
    out_of_memory: bool = False,
) -> bool:
    """Report an agent's death to the coordinator on one connection; return whether it was received.

    Blocks for about `limit_s` seconds at most. A coordinator that is gone, slow or foreign raises
    nothing. `at` is its address; None: that of the notice.
    """
    died = AgentDied(notice.incarnation, 0, b"", out_of_memory)
    if isinstance(notice, DeathNotice):
        at = at or (notice.host, notice.port)
        died = replace(died, generation=notice.generation, secret=notice.secret)
    assert at is not None
    if notice.place is not None:
        died = replace(died, place=replace(notice.place, out_of_memory=out_of_memory))
    ends_at = time.monotonic() + limit_s
    handshake = ClientHandshake(notice.run_id, notice.token, os.urandom(NONCE_BYTES))

    def receive() -> bytes:
        peer.settimeout(max(ends_at - time.monotonic(), 0.001))
        return peer.recv(4096)

    try:
        with socket.create_connection(at, limit_s) as peer:
            peer.sendall(handshake.hello())
            while handshake.result is None:
                if not (received := receive()):
                    return False
                peer.sendall(handshake.feed(received))
            keys = handshake.result.keys
            frames = FrameEncoder(keys.client_to_server if keys else None)
            peer.sendall(frames.encode(encode(died)))
            peer.shutdown(socket.SHUT_WR)
            while receive():
                pass  # The end of the connection says that the report was read.
    except (OSError, AccessError, ProtocolError):
        return False
    return True
