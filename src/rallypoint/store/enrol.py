"""The enrolment of an agent with the round store of its round (behaviour F9): the agent's I/O.

Enrolment detects a bad route before any worker starts, and tells the store this node's address. A
node that waits for a place only checks whether it reaches the store of the running round (`reach`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rallypoint.core.text import named
from rallypoint.errors import EnrolmentError, ProtocolError
from rallypoint.store.backoff import growing_pauses
from rallypoint.wire.enrolment import NONCE_BYTES, AgentEnrolment

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 0.5
_ATTEMPT_S = 10.0

_T = TypeVar("_T")
LookUp = Callable[[], Awaitable[Sequence[str]]]
"""The function that returns the store's numeric addresses, at least one. It raises EnrolmentError
if they are unknown now."""


async def enrol(look_up: LookUp, port: int, key: bytes, node: str, timeout_s: float) -> str:
    """Enrol this node with a round's store, and return the node's address as the store saw it.

    Retries after each failure, with growing pauses: the store's node may learn of the round and its
    key later than this one. Each time the store's addresses are looked up anew and tried in turn.
    Safe to call again. Raises EnrolmentError after `timeout_s` seconds; it names both addresses and
    the fix.
    """

    async def once(host: str) -> str:
        return await _enrol_once(host, port, key, node)

    return await _until_reached(once, look_up, port, node, timeout_s)


async def reach(look_up: LookUp, port: int, node: str, timeout_s: float) -> None:
    """Wait until a round's store has answered with its nonce, without enrolling there.

    Retries as `enrol` does, and raises the same.
    """

    async def once(host: str) -> None:
        await _reach_once(host, port)

    await _until_reached(once, look_up, port, node, timeout_s)


async def _until_reached(
    once: Callable[[str], Awaitable[_T]], look_up: LookUp, port: int, node: str, timeout_s: float
) -> _T:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    pauses = growing_pauses(_FIRST_PAUSE_S, _LAST_PAUSE_S, growth=2)
    host = "an unknown address"
    cause: Exception = TimeoutError("no answer")
    while (left_s := deadline - loop.time()) > 0:
        try:
            async with asyncio.timeout(left_s):
                hosts = await look_up()
        except (EnrolmentError, TimeoutError) as error:
            hosts, cause = (), error
        for host in hosts:
            try:
                left_s = max(0.0, min(deadline - loop.time(), _ATTEMPT_S))
                async with asyncio.timeout(left_s / len(hosts)):
                    return await once(host)
            except TimeoutError:
                cause = TimeoutError("no answer")
            except (OSError, ProtocolError) as error:
                cause = error
        await asyncio.sleep(max(0.0, min(next(pauses), deadline - loop.time())))
    raise EnrolmentError(
        f"node {node} at {_own_address(host, port)} could not reach the round store at "
        f"{host}:{port} within {timeout_s:g} s: {_reason(cause)}. "
        "Open the port in the firewall between the two, or give the store's node an address "
        f"that the others reach with {named.local_addr}"
    ) from cause


async def _enrol_once(host: str, port: int, key: bytes, node: str) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        conversation = AgentEnrolment(key, os.urandom(NONCE_BYTES), node)
        writer.write(conversation.hello)
        while conversation.result is None:
            data = await reader.read(1024)
            if not data:
                raise ConnectionResetError("the connection was closed before an answer came")
            writer.write(conversation.receive(data))
        return conversation.result
    finally:
        writer.transport.abort()


async def _reach_once(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(AgentEnrolment(b"", os.urandom(NONCE_BYTES), "").hello)
        await reader.readexactly(NONCE_BYTES)
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the connection was closed before an answer came") from None
    finally:
        writer.transport.abort()


def _reason(cause: Exception) -> str:
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause)
    return str(cause)


def _own_address(host: str, port: int) -> str:
    """Return the address from which this node would connect, or words. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return "an unknown address"
