"""A node of a job that any of its nodes may lead.

It finds the leader by the job's register, and hosts the coordinator when it leads itself
(`coordinator/leading/leader_search.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from random import SystemRandom
from socket import socket
from threading import Thread
from typing import NamedTuple

from rallypoint.agent.agent import Agent
from rallypoint.config import AccessConfig, RendezvousConfig
from rallypoint.coordinator.client.token import find_token, user_home
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.leading.leader_search import Listening
from rallypoint.coordinator.own_addresses import listen_as_leader, why_unreachable
from rallypoint.coordinator.server import Coordinator, LookupToken
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.session import AgentEnd
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import takeover_s
from rallypoint.core.text import named
from rallypoint.errors import RendezvousConnectionError, RendezvousTimeoutError
from rallypoint.register.engines import make_for, prepare, unanswered
from rallypoint.register.record import Register
from rallypoint.threads import run_in_thread
from rallypoint.wire.address import Address

DIAL_TIMEOUT_S = 2.0
"""The time limit in seconds for connecting to each address of a leader, whose machine may be gone.
The search for the next one must fit into the lease."""
FIRST_CLAIM_S = 0.002
"""The longest delay of a new node's first claim to lead, in seconds for each node that the job may
have; `FIRST_CLAIM_MAX_S` limits it."""
FIRST_CLAIM_MAX_S = 2.0
UNANSWERED_S = 2.0
"""The time in seconds after which the user is told that the place of the records does not
answer."""
RETRY_S = 1.0
"""The interval in seconds of trying again a place of records that can't be used yet."""
ALONE_S = 8.0
"""The time in seconds after which a leader without other nodes tells the user: the others may have
begun the job in another place."""


class Hosts(NamedTuple):
    """The functions with which this agent hosts a coordinator."""

    host: Callable[[Sequence[socket], LookupToken | None], Coordinator]
    reconnect: Callable[[str], None]
    """Drops the connection to another coordinator, if there is one, so that this node connects to
    its own; gets the reason."""


class LeadingNode:
    """The node of an agent in a job that any node may lead, for `leader_search.LeaderSearch`."""

    def __init__(
        self,
        agent: Agent,
        end: AgentEnd,
        rendezvous: RendezvousConfig,
        secret: bytes | None,
        hosts: Hosts,
        look: str = "",
    ) -> None:
        """Make the node. `look` is the command that shows this job; empty: there is none."""
        self._look = look
        self._agent, self._end, self._hosts = agent, end, hosts
        self._rendezvous, self._secret = rendezvous, secret
        self._spread = SystemRandom().random()
        self._has_swept = self._has_told_alone = False
        self._told_unreachable = ""
        self._alone: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def first_claim_delay_s(self) -> float:
        """The random delay in seconds of a new node's claim to lead: not all claim at once."""
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
            dead=self._end.rules.dead,
            told=self._end.told,
            settings=self._end.settings,
        )

    async def dial(self, addresses: Sequence[Address]) -> ClientConnection:
        return await dial(addresses, self._rendezvous.run_id, self._secret, DIAL_TIMEOUT_S)

    def listen(self) -> Listening:
        rendezvous = self._rendezvous
        assert rendezvous.register is not None
        local = rendezvous.local_addr
        listeners = listen_as_leader(local, rendezvous.register.ports)
        bound = [Address(*listener.getsockname()[:2]) for listener in listeners]
        why = why_unreachable(bound, local) if rendezvous.max_nodes > 1 else ""
        if why and why != self._told_unreachable:
            self._told_unreachable = why
            self.notice(why)
        return Listening(listeners, tuple(map(str, bound)))

    def host(self, listening: Listening) -> Coordinator:
        run_id, secret = self._rendezvous.run_id, self._secret
        lookup_token = None if secret is None else {run_id: secret}.get
        coordinator = self._hosts.host(listening.listeners, lookup_token)
        is_first = self._end.attached is None
        if self._look and is_first and self._rendezvous.max_nodes > 1:
            self._agent.say(kinds.LOOK(command=self._look))
        self._agent.say(kinds.LEADS(places=", ".join(listening.addresses)))
        self._hosts.reconnect("this node leads the job now")
        if self._rendezvous.register is not None:  # There is none to look after in the simulator.
            self._sweep()
            self._await_others(coordinator)
        return coordinator

    def _await_others(self, coordinator: Coordinator) -> None:
        if self._rendezvous.max_nodes > 1 and not self._has_told_alone:
            loop = asyncio.get_running_loop()
            self._alone = loop.call_later(ALONE_S, self._tell_alone, coordinator)

    def _tell_alone(self, coordinator: Coordinator) -> None:
        """Tell the user if no other node has joined this leader, and this node has no place either.

        A directory that each node has for itself looks like one in which no other node has come
        yet: the job would time out, or run several times.
        """
        if self._end.place is None and not coordinator.jobs.nodes:
            self._has_told_alone = True
            self._telling = asyncio.get_running_loop().create_task(self._say_alone())

    async def _say_alone(self) -> None:
        wording = make_for(self._rendezvous).wording()
        same = await run_in_thread(wording.same, "rallypoint-registers")
        self.notice(
            f"no other node has joined for {ALONE_S:g} s: check that all nodes have the same "
            f"{named.rdzv_id}, and that {same}"
        )

    def _sweep(self) -> None:
        """Start a thread, once, that removes the records that no job has changed for a week.

        Only a node that leads does so, in the background, because a place may be large or slow.
        """
        if self._has_swept:
            return
        self._has_swept = True
        engine = make_for(self._rendezvous)
        with suppress(RuntimeError):  # The system has no thread left.
            Thread(target=engine.sweep, name="rallypoint-sweep", daemon=True).start()

    def notice(self, text: str) -> None:
        self._agent.say(kinds.NOTICE(text))

    def leads_no_more(self) -> None:
        """Note that this node no longer leads, so that it does not report that it is alone."""
        if self._alone is not None:
            self._alone.cancel()


def secret_of(run_id: str, access: AccessConfig) -> bytes | None:
    """Return the secret of this job; None: none is needed, with `--insecure`. Raises AccessError.

    The user's token file is made if there is no token yet.
    """
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
) -> Register:
    """Return the register of this node's job, once the place of its records can be used.

    `say` is called with remarks, `on_wait` if the place does not answer. Raises UsageError or
    InfrastructureError if the register can't be kept there, and RendezvousTimeoutError when the
    join timeout is over.
    """
    engine, chosen = make_for(rendezvous), rendezvous.register
    assert chosen is not None
    limit_s, waiting = rendezvous.join_timeout_s, f"waiting for {engine.where}"
    silent = f"{waiting}, which does not answer"
    told = asyncio.get_running_loop().call_later(UNANSWERED_S, on_wait, silent)
    why = ""
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    call = partial(prepare, engine, chosen)
                    remarks = await run_in_thread(call, "rallypoint-registers")
                    break
                except RendezvousConnectionError as error:
                    told.cancel()
                    if str(error) != why:
                        why = str(error)
                        say(kinds.NOTICE(f"{waiting}: {why}"))
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise RendezvousTimeoutError(unanswered(engine, chosen, limit_s, why)) from None
    finally:
        told.cancel()
    for remark in remarks:
        say(kinds.NOTICE(remark))
    hold_s, lease_s = chosen.hold_s, rendezvous.lease_s
    if rendezvous.max_nodes > 1 and takeover_s(hold_s) >= lease_s:
        say(kinds.NOTICE(short_lease(hold_s, lease_s)))
    return engine.open(rendezvous.run_id, secret)


def short_lease(hold_s: float, lease_s: float) -> str:
    """Return the warning that the lease ends before another node can lead.

    The caller checks that this is so; `hold_s` is how long a leader may lead after its last write.
    """
    late_s = ceil(takeover_s(hold_s))
    return (
        f"{named.lease} {lease_s:g}: if the machine of the leading node vanishes, another node "
        f"leads after {late_s} s at most ({named.rdzv_conf} hold={hold_s:g}). By then all nodes "
        f"have stopped their workers: give {named.lease} {late_s + 1} or a shorter hold"
    )
