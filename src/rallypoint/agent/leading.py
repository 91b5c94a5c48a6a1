"""A node of a job that any of its nodes may lead: how it finds the leader by the job's register,
and what it hosts when it leads itself (`coordinator/succession.py`)."""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from random import SystemRandom
from socket import socket
from threading import Thread
from typing import NamedTuple, TypeVar

from rallypoint.agent.agent import Agent
from rallypoint.config import AccessConfig, RendezvousConfig
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.own_addresses import addresses_of, bind_for_leader, own_addresses
from rallypoint.coordinator.server import Coordinator, LookupToken
from rallypoint.coordinator.succession import Listening
from rallypoint.coordinator.threads import run_in_thread
from rallypoint.coordinator.token import find_token, user_home
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.session import AgentEnd
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import takeover_s
from rallypoint.errors import RendezvousTimeoutError, UsageError
from rallypoint.rendezvous.data_directory import prepare, sweep
from rallypoint.rendezvous.directory_backend import DirectoryBackend
from rallypoint.rendezvous.directory_files import LocalFiles
from rallypoint.rendezvous.file_systems import (
    lies_here,
    local_file_system,
    place_of,
    why_not_there,
)
from rallypoint.wire.address import Address

T = TypeVar("T")

DIAL_TIMEOUT_S = 2.0
"""A leader whose machine is gone must not use up the lease of those that look for the next one."""
FIRST_CLAIM_S = 0.002
"""For each node of the job."""
FIRST_CLAIM_MAX_S = 2.0
MOUNT_LOOK_S = 1.0
"""How often it is looked whether a directory is mounted by now."""
UNANSWERED_S = 2.0
"""A directory that takes longer to be looked at is said to be waited for."""
ALONE_S = 8.0
"""A leader that no other node has reached for so long says so: the others may have begun the job in
another directory."""
FLAG = "--rdzv-endpoint"


class Hosts(NamedTuple):
    """How this agent hosts a coordinator."""

    host: Callable[[Sequence[socket], LookupToken | None], Coordinator]
    reconnect: Callable[[str], None]
    """Drop the connection to another coordinator, if there is one."""


class LeadingNode:
    """A `succession.Node`."""

    def __init__(
        self,
        agent: Agent,
        end: AgentEnd,
        rendezvous: RendezvousConfig,
        secret: bytes | None,
        hosts: Hosts,
    ) -> None:
        self._agent, self._end, self._hosts = agent, end, hosts
        self._rendezvous, self._secret = rendezvous, secret
        self._spread = SystemRandom().random()
        self._has_swept = self._has_told_alone = False
        self._alone: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def first_claim_delay_s(self) -> float:
        """So long a node that has just started waits: thousands must not claim at once."""
        return self._spread * min(FIRST_CLAIM_S * self._rendezvous.max_nodes, FIRST_CLAIM_MAX_S)

    @property
    def is_attached(self) -> bool:
        return self._end.is_attached

    def claimant(self) -> Claimant:
        claim, place = self._agent.claim(), self._end.place
        is_placed = (
            claim.stamp is not None
            and place is not None
            and place.assignment.round == claim.stamp.round
        )
        return Claimant(
            stamp=claim.stamp if is_placed else None,
            rank=place.assignment.group_rank if is_placed and place is not None else -1,
            is_leaving=self._agent.is_leaving,
            spread=self._spread,
            is_fresh=self._end.attached is None,
        )

    async def dial(self, addresses: Sequence[Address]) -> ClientConnection:
        return await dial(addresses, self._rendezvous.run_id, self._secret, DIAL_TIMEOUT_S)

    def listen(self) -> Listening:
        rendezvous = self._rendezvous
        assert rendezvous.register is not None
        local = rendezvous.local_addr
        addresses = own_addresses() if local is None else addresses_of(local)
        listeners = bind_for_leader(addresses, rendezvous.register.ports, f"--local-addr {local}")
        bound = (listener.getsockname() for listener in listeners)
        return Listening(listeners, tuple(str(Address(*name[:2])) for name in bound))

    def host(self, listening: Listening) -> Coordinator:
        run_id, secret = self._rendezvous.run_id, self._secret
        lookup_token = None if secret is None else {run_id: secret}.get
        coordinator = self._hosts.host(listening.listeners, lookup_token)
        self._agent.say(kinds.LEADS(places=", ".join(listening.addresses)))
        self._hosts.reconnect("this node leads the job now")
        self._sweep()
        if self._rendezvous.max_nodes > 1 and not self._has_told_alone:
            loop = asyncio.get_running_loop()
            self._alone = loop.call_later(ALONE_S, self._tell_alone, coordinator)
        return coordinator

    def _tell_alone(self, coordinator: Coordinator) -> None:
        """A directory that every node has for itself looks like one in which nobody else has come
        yet, and nobody would say so before the job times out, or runs several times."""
        if self._end.place is None and not coordinator.jobs.nodes:
            self._has_told_alone = True
            self._telling = asyncio.get_running_loop().create_task(self._say_alone())

    async def _say_alone(self) -> None:
        assert self._rendezvous.register is not None
        directory = self._rendezvous.register.directory
        there = await _in_thread(partial(place_of, directory))
        self.notice(
            f"no other node has come for {ALONE_S:g} s: see that all nodes have the same "
            f"--rdzv-id, and that {directory}{there} is the same directory on all of them"
        )

    def _sweep(self) -> None:
        """Of a job that has ended its register is left, which somebody must remove. Beside all
        else, since the directory may be large or slow, and by one node of each job."""
        register = self._rendezvous.register
        if self._has_swept or register is None:
            return
        self._has_swept = True
        there = LocalFiles(), register.directory
        with suppress(RuntimeError):  # The system has no thread left.
            Thread(target=sweep, args=there, name="rallypoint-sweep", daemon=True).start()

    def notice(self, text: str) -> None:
        self._agent.say(kinds.NOTICE(text))

    def leads_no_more(self) -> None:
        """The connection of this node to its own coordinator is closed with that."""
        if self._alone is not None:
            self._alone.cancel()


def secret_of(run_id: str, access: AccessConfig) -> bytes | None:
    """What opens this job; None: nothing is needed. Raises AccessError."""
    if access.insecure:
        return None
    token = find_token(access.token_file, access.token_text, user_home(), create=True)
    assert token is not None
    return token.for_job(run_id)


async def register_of(
    rendezvous: RendezvousConfig,
    secret: bytes | None,
    say: Callable[[Record], None],
    on_wait: Callable[[str], None],
) -> DirectoryBackend:
    """The register of this node's job, in a directory that is made if there is none. `say` is
    called with remarks on it, `on_wait` if it does not answer.

    Raises UsageError or InfrastructureError if the register can't be kept there, and
    RendezvousTimeoutError.
    """
    assert rendezvous.register is not None
    directory, limit_s = rendezvous.register.directory, rendezvous.join_timeout_s
    waiting = f"waiting for the directory {directory}, which does not answer"
    told = asyncio.get_running_loop().call_later(UNANSWERED_S, on_wait, waiting)
    why = said = ""
    try:
        async with asyncio.timeout(limit_s):
            while why := await _in_thread(partial(_why_not_there, rendezvous)):
                told.cancel()
                if why != said:
                    said = why
                    say(kinds.NOTICE(f"waiting for the directory {directory}: {why}"))
                await asyncio.sleep(MOUNT_LOOK_S)
            remarks = await _in_thread(partial(_prepared, rendezvous))
    except TimeoutError:
        waited = f"waited {limit_s:g} s"
        if why:
            raise RendezvousTimeoutError(f"{FLAG} {directory}: {why} ({waited})") from None
        raise RendezvousTimeoutError(
            f"{FLAG} {directory} does not answer: {waited}; see that its file server "
            "is up, or name another directory"
        ) from None
    finally:
        told.cancel()
    for remark in remarks:
        say(kinds.NOTICE(remark))
    return DirectoryBackend(directory, rendezvous.run_id, secret)


async def _in_thread(call: Callable[[], T]) -> T:
    return await run_in_thread(call, "rallypoint-registers")


def _why_not_there(rendezvous: RendezvousConfig) -> str:
    assert rendezvous.register is not None
    if rendezvous.max_nodes == 1:
        return ""
    may_part = rendezvous.min_nodes < rendezvous.max_nodes
    return why_not_there(rendezvous.register.directory, may_part=may_part)


def _prepared(rendezvous: RendezvousConfig) -> list[str]:
    assert rendezvous.register is not None
    directory = rendezvous.register.directory
    if os.path.isfile(directory):
        raise UsageError(
            f"{FLAG} {directory}: it is a file, as earlier versions used for --rdzv-backend file: "
            "name a directory that all nodes share (a file between peers is for a program's "
            "DynamicRendezvousHandler)"
        )
    remarks = prepare(directory, LocalFiles(), FLAG)
    if rendezvous.max_nodes > 1 and (local := local_file_system(directory)):
        remarks.append(lies_here(directory, local))
    hold_s, lease_s = rendezvous.register.hold_s, rendezvous.lease_s
    if rendezvous.max_nodes > 1 and takeover_s(hold_s) >= lease_s:
        remarks.append(short_lease(hold_s, lease_s))
    return remarks


def short_lease(hold_s: float, lease_s: float) -> str:
    """What to say if no other node leads before the leases end."""
    late_s = ceil(takeover_s(hold_s))
    return (
        f"--lease {lease_s:g}: if the machine of the leading node vanishes, another node leads "
        f"after {late_s} s at most (--rdzv-conf hold={hold_s:g}), and all nodes have stopped their "
        f"workers by then: --lease {late_s + 1} or a shorter hold keeps them running"
    )
