"""How an agent finds the coordinator, or becomes the node that hosts it (behaviours F6, F8).

Whoever can bind the endpoint hosts, and proves it by dialling the endpoint and meeting its own
coordinator there; else it closes what it bound and is a client. A name that does not resolve yet
and a coordinator that is not up yet are waited for, with a word about it. While nobody hosts, the
name is looked up again before each attempt: when it points elsewhere, all of this begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from socket import socket

from msgspec import Struct

from rallypoint.config import AccessConfig, RendezvousConfig
from rallypoint.coordinator.client_connection import ClientConnection, Dial, dial, knock
from rallypoint.coordinator.endpoint import NotYet, resolve
from rallypoint.coordinator.listen import (
    BindRefused,
    bind_wildcard,
    refuse_loopback_name,
    try_bind,
)
from rallypoint.coordinator.redial import LookUp, Redial
from rallypoint.coordinator.server import Coordinator
from rallypoint.coordinator.token import Token, find_token, no_token_error, user_home
from rallypoint.core.model import SharedSettings
from rallypoint.errors import (
    AccessError,
    ForeignPeerError,
    PeerHungUpError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    SilentPeerError,
    UsageError,
)
from rallypoint.wire.address import Address

RETRY_S = 0.2
RESOLVE_RETRY_S = 1.0
STRANGE_MAX = 5
"""So many answers that are not Rallypoint's are believed."""
TOKEN_TIMEOUT_S = 10.0
SELF_DIAL_TIMEOUT_S = 5.0

HostCoordinator = Callable[[Sequence[socket], Callable[[str], bytes | None]], Coordinator]
"""Makes the coordinator on sockets that were bound for it; given how to look tokens up."""
OnStatus = Callable[[str], None]


def embed(settings: SharedSettings, access: AccessConfig) -> HostCoordinator:
    """The coordinator of one job in a program that shows nothing of what happens in it."""

    def host(
        listeners: Sequence[socket], lookup_token: Callable[[str], bytes | None]
    ) -> Coordinator:
        return Coordinator(
            listeners,
            lookup_token=lookup_token,
            insecure=access.insecure,
            only=settings,
            on_record=lambda run_id, record: None,
        )

    return host


class Met(Struct, frozen=True):
    """The first connection, and how to make the next ones."""

    connection: ClientConnection
    dial: Dial
    token: bytes | None
    coordinator: Coordinator | None
    """The one that lives in this process."""


async def meet(
    config: RendezvousConfig,
    access: AccessConfig,
    host_coordinator: HostCoordinator,
    on_status: OnStatus,
    look_up: LookUp = resolve,
) -> Met:
    """Find the coordinator, or host it. May take as long as the join timeout.

    Raises UsageError, AccessError, ProtocolError, RendezvousConnectionError or
    RendezvousTimeoutError; then nothing is left open.
    """
    place = _Place(config, on_status, look_up)
    while True:
        addresses = await place.resolve()
        listeners = _bind(config, addresses)
        if listeners:
            return await _host(config, access, addresses, listeners, host_coordinator, look_up)
        joined = await _join(config, access, place, addresses)
        if joined is not None:
            connection, secret = joined
            redial = Redial(config.endpoint, addresses, config.run_id, secret, look_up)
            return Met(connection, redial, secret, None)


class _Place:
    """What the endpoint means while this node looks for a coordinator there."""

    def __init__(self, config: RendezvousConfig, on_status: OnStatus, look_up: LookUp) -> None:
        self._config, self.on_status, self._look_up = config, on_status, look_up
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + config.join_timeout_s
        self._known_since: float | None = None
        self._looked_up_at = 0.0

    @property
    def known_s(self) -> float:
        """For how long the name has resolved, to whatever: in that time somebody should host."""
        return 0.0 if self._known_since is None else self._loop.time() - self._known_since

    @property
    def is_look_up_due(self) -> bool:
        """A thousand nodes that wait for their host must not flood a name server."""
        return self._loop.time() - self._looked_up_at >= RESOLVE_RETRY_S

    async def resolve(self) -> tuple[Address, ...]:
        """Wait until the name resolves."""
        config = self._config
        while True:
            self._looked_up_at = self._loop.time()
            found = await self._look_up(config.endpoint)
            if not isinstance(found, NotYet):
                if self._known_since is None:
                    self._known_since = self._loop.time()
                if config.is_host is None or config.is_host:
                    host = config.endpoint.host
                    refuse_loopback_name(host, found.addresses, config.max_nodes)
                return found.addresses
            self._known_since = None
            if self._loop.time() > self._deadline:
                raise RendezvousTimeoutError(
                    f"{found.reason}: gave up after {config.join_timeout_s:g} s; check the host "
                    f"name of the endpoint {config.endpoint}"
                )
            self.on_status(
                f"waiting for the name of the coordinator, {config.join_timeout_s:g} s at most: "
                f"{found.reason}; check the endpoint {config.endpoint}"
            )
            await asyncio.sleep(RESOLVE_RETRY_S)


async def _host(
    config: RendezvousConfig,
    access: AccessConfig,
    addresses: tuple[Address, ...],
    listeners: Sequence[socket],
    host_coordinator: HostCoordinator,
    look_up: LookUp,
) -> Met:
    # Kept is what opens this job alone: workers can look into what forks them.
    secret = _secret(config, access, create=True)
    coordinator = host_coordinator(listeners, {config.run_id: secret}.get)
    try:
        await coordinator.start()
        if config.endpoint.port == 0:
            port = listeners[0].getsockname()[1]
            addresses = tuple(Address(a.host, port, a.scope_id) for a in addresses)
        connection, coordinator_is_ours = await _dial_own(
            config, addresses, secret, coordinator, listeners
        )
    except BaseException:
        coordinator.close()
        raise
    if coordinator_is_ours:
        # It lives in this process: whatever the name means later, it is reached as it was now.
        return Met(connection, partial(dial, addresses, config.run_id, secret), secret, coordinator)
    coordinator.close()
    redial = Redial(config.endpoint, addresses, config.run_id, secret, look_up)
    return Met(connection, redial, secret, None)


def _bind(config: RendezvousConfig, addresses: tuple[Address, ...]) -> list[socket]:
    """The listening sockets of a coordinator of our own; empty: another node hosts."""
    if config.is_host is False:
        return []
    bound = try_bind(addresses, config.endpoint.port)
    if not isinstance(bound, BindRefused):
        return bound
    if config.is_host is None:
        return []
    if bound.refusal.name == "NOT_MINE":
        # A person said that this node hosts: its address may be a service's, or behind NAT.
        bound = bind_wildcard(config.endpoint.port)
        if not isinstance(bound, BindRefused):
            return bound
    raise UsageError(
        f"this node must host the coordinator at {config.endpoint}, but {bound.why}: stop what "
        f"uses the port, or {_another_port(config)}"
    )


def _secret(config: RendezvousConfig, access: AccessConfig, *, create: bool) -> bytes | None:
    """What opens this job, and no other of the user's; None: there is no token (yet)."""
    if access.insecure:
        return None
    has_own = access.token_file is not None or access.token_text is not None
    if config.max_nodes == 1 and config.endpoint.port == 0 and not has_own:
        return Token.fresh("this job alone").value
    token = find_token(access.token_file, access.token_text, user_home(), create)
    return None if token is None else token.for_job(config.run_id)


async def _join(
    config: RendezvousConfig, access: AccessConfig, place: _Place, addresses: tuple[Address, ...]
) -> tuple[ClientConnection, bytes | None] | None:
    """Dial until somebody hosts, or until the endpoint means other addresses: None."""
    strange, secret = 0, None
    while True:
        secret = secret or _secret(config, access, create=False)
        try:
            if secret is None and not access.insecure:
                # First who is there: a token is of no use for another program.
                await knock(addresses, config.run_id)
                secret = await _awaited_secret(config, access, place)
            return await dial(addresses, config.run_id, secret), secret
        except (PeerHungUpError, RendezvousConnectionError) as error:
            if (waited_s := place.known_s) > config.host_timeout_s:
                raise RendezvousTimeoutError(_nobody_hosts(config, waited_s, error)) from error
            by_whom = f" ({error})" if isinstance(error, (PeerHungUpError, SilentPeerError)) else ""
            place.on_status(f"waiting for the coordinator at {config.endpoint}{by_whom}")
        except ForeignPeerError as error:
            # A coordinator that is just going down hangs up in the middle, too: look again.
            strange += 1
            if strange == STRANGE_MAX or place.known_s > config.host_timeout_s:
                raise ForeignPeerError(f"{error}, or {_another_port(config)}") from error
        await asyncio.sleep(RETRY_S)
        if place.is_look_up_due and set(await place.resolve()) != set(addresses):
            return None


async def _awaited_secret(config: RendezvousConfig, access: AccessConfig, place: _Place) -> bytes:
    """Of a token that the first node has just made, in a directory that this node sees later."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(TOKEN_TIMEOUT_S, config.host_timeout_s)
    while (secret := _secret(config, access, create=False)) is None:
        if loop.time() > deadline:
            raise no_token_error(config.endpoint)
        place.on_status("waiting for the first node to create the token")
        await asyncio.sleep(RETRY_S)
    return secret


async def _dial_own(
    config: RendezvousConfig,
    addresses: tuple[Address, ...],
    secret: bytes | None,
    coordinator: Coordinator,
    listeners: Sequence[socket],
) -> tuple[ClientConnection, bool]:
    """Dial the endpoint as every node does: do we meet ourselves there?"""
    try:
        connection = await dial(addresses, config.run_id, secret, SELF_DIAL_TIMEOUT_S)
    except (RendezvousConnectionError, AccessError):
        if not config.is_host:
            raise
        # Behind NAT a node often can't reach its own public address.
        own = [Address(*listener.getsockname()[:2]) for listener in listeners]
        connection = await dial(own, config.run_id, secret, SELF_DIAL_TIMEOUT_S)
    return connection, connection.server_id == coordinator.server_id


def _nobody_hosts(config: RendezvousConfig, waited_s: float, error: Exception) -> str:
    if isinstance(error, (PeerHungUpError, SilentPeerError)):
        return (
            f"no coordinator answers at {config.endpoint}: waited {waited_s:.0f} s ({error}). If "
            f"another program uses that port, {_another_port(config)}; if it is a proxy, the node "
            "behind it was not started; if it is the node that hosts, its agent is stopped"
        )
    return (
        f"nobody hosts the coordinator at {config.endpoint}: waited {waited_s:.0f} s ({error}). "
        "Usual causes: the node of that name was not started; the name is that of a Kubernetes "
        "service with a cluster IP, which no pod can bind (use a headless service, or --rdzv-conf "
        "is_host=1 on one node); the name points to another machine; a firewall drops the port"
    )


def _another_port(config: RendezvousConfig) -> str:
    option = "--master-port PORT" if config.static else "--rdzv-endpoint HOST:PORT"
    return f"choose another port on every node ({option})"
