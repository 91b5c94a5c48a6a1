"""What the clients of a store may make it hold, and how long they may leave it waiting."""

from __future__ import annotations

import resource

from msgspec import Struct

HANDSHAKE_S = 10.0
OWN_DESCRIPTORS = 64
"""What a store's process opens besides its connections, with room to spare."""
_DESCRIPTORS_CAP = 1 << 20


class StoreLimits(Struct, frozen=True, kw_only=True):
    """A limit of None is none. Who breaks one is closed, with a line that names it."""

    max_connections: int | None = None
    more_connections_by: str = "give a higher --max-connections"
    """What a person does about a number of connections that is too low."""
    max_bytes: int | None = None
    """Of keys, values and queued items (`KeyValueMachine`)."""
    handshake_s: float = HANDSHAKE_S
    """From connecting to a complete VALIDATE, and between two pieces of one request. Those who
    wait for a key, or say nothing between two requests, may do so for ever."""


def raise_descriptor_limit() -> int:
    """Allows this process as many descriptors as the hard limit permits; how many it has then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS_CAP if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_CAP)
    if soft == resource.RLIM_INFINITY:
        return _DESCRIPTORS_CAP
    if soft >= most:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return soft
    return most


def of_open_files(*, whose: str) -> str:
    """What to do about a number of connections that follows from `raise_descriptor_limit`."""
    return f"raise the hard limit of open files (ulimit -Hn) {whose}"


def connections_within(descriptors: int) -> int:
    """How many connections a process with that many descriptors can hold, 1 at the least."""
    return max(1, descriptors - OWN_DESCRIPTORS)
