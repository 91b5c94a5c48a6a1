"""What a guard tells others when its agent has died and no worker of it lives any more: it reports
the death to the coordinator (behaviour F2), or, if the agent led the job itself, has the register
released (behaviour L6). The guard imports this only then: as a rule it has nothing to tell."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial

from rallypoint.core.messages import AgentDied
from rallypoint.errors import AccessError, ProtocolError
from rallypoint.process import syscalls
from rallypoint.process.forks import fork_process
from rallypoint.wire import death_notice
from rallypoint.wire.codec import encode
from rallypoint.wire.death_notice import DeathNotice, ReleaseNotice
from rallypoint.wire.frames import FrameEncoder
from rallypoint.wire.handshake import NONCE_BYTES, ClientHandshake

_LIMIT_S = 3.0
"""In all: without a report the coordinator waits for the connection's grace, no longer, and without
a release others wait for the leader's hold."""
_END_S = 1.0
"""How long an agent whose pipe has ended may take to die."""
_LOOK_S = 0.01

Release = Callable[[ReleaseNotice, float], None]
"""Marks the record that the notice names, within so many seconds if its directory answers."""


def tell(data: bytes, agent_pid: int, release: Release | None, *, out_of_memory: bool) -> None:
    """Do what this notice asks for; takes `_LIMIT_S` at most. For a child of the agent. `release`
    runs in a process of its own."""
    notice = death_notice.decode(data)
    if isinstance(notice, DeathNotice):
        report_death(notice, out_of_memory=out_of_memory)
        return
    began_at = time.monotonic()
    # The end of its pipe shows that an agent ends, not that it leads no more.
    while os.getppid() == agent_pid:
        if time.monotonic() >= began_at + _END_S:
            return
        select.select([], [], [], _LOOK_S)
    if release is not None:
        left_s = began_at + _LIMIT_S - time.monotonic()
        _run_limited(partial(release, notice, left_s), left_s)


def _run_limited(body: Callable[[], None], limit_s: float) -> None:
    """In a process that is killed after so long: a directory may hold up whoever looks at it for
    ever, and the guard has more to do."""

    is_over, held_by_it = syscalls.pipe_above_standard_fds()
    try:
        title = "rallypoint: register release"
        process = fork_process(body, name="rallypoint-rel", title=title, keep_fds=(held_by_it,))
    finally:
        os.close(held_by_it)
    select.select([is_over], [], [], limit_s)
    process.kill()
    # Not waited for: within a system call on such a directory a process may not even be killed.
    syscalls.reap_if_exited(process.pid)
    os.close(is_over)


def report_death(
    notice: DeathNotice, limit_s: float = _LIMIT_S, *, out_of_memory: bool = False
) -> bool:
    """Report this death to the coordinator, on one connection; whether it was received. Blocks for
    `limit_s` at most. A coordinator that is gone, slow or a stranger raises nothing."""
    ends_at = time.monotonic() + limit_s
    handshake = ClientHandshake(notice.run_id, notice.token, os.urandom(NONCE_BYTES))

    def receive() -> bytes:
        peer.settimeout(max(ends_at - time.monotonic(), 0.001))
        return peer.recv(4096)

    try:
        with socket.create_connection((notice.host, notice.port), limit_s) as peer:
            peer.sendall(handshake.hello())
            while handshake.result is None:
                if not (received := receive()):
                    return False
                peer.sendall(handshake.feed(received))
            keys = handshake.result.keys
            frames = FrameEncoder(keys.client_to_server if keys else None)
            life, generation = notice.incarnation, notice.generation
            died = AgentDied(life, generation, notice.secret, out_of_memory)
            peer.sendall(frames.encode(encode(died)))
            peer.shutdown(socket.SHUT_WR)
            while receive():
                pass  # The end of the connection says that the report was read.
    except (OSError, AccessError, ProtocolError):
        return False
    return True
