"""An agent's search for the coordinator, or its decision to host it (behaviours F6, F8).

The node that can bind the endpoint hosts, and proves it by dialling the endpoint and reaching its
own coordinator there; else it closes its sockets and is a client. A name that does not resolve yet
and a coordinator that is not up yet are waited for, with a line about it. While no node hosts, the
name is looked up again about once a second: when it has other addresses, the search begins anew.

When the coordinator is lost, an agent only dials again (`Redial`); the rendezvous plug-in for
torchrun searches anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from socket import socket

from msgspec import Struct

from rallypoint.config import AccessConfig, Endpoint, RendezvousConfig
from rallypoint.coordinator.client.endpoint import NotYet, Resolved, resolve
from rallypoint.coordinator.client.token import JobToken, find_token, no_token_error, user_home
from rallypoint.coordinator.connection import ClientConnection, Dial, dial, knock
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.listen import (
    BindRefused,
    bind_wildcard,
    refuse_loopback_name,
    try_bind,
)
from rallypoint.coordinator.server import Coordinator, LookupToken
from rallypoint.core.model import SharedSettings
from rallypoint.core.text import named
from rallypoint.errors import (
    AccessError,
    ForeignPeerError,
    PeerHungUpError,
    ProtocolError,
    RendezvousConnectionError,
    RendezvousRefusedError,
    RendezvousTimeoutError,
    SilentPeerError,
    UsageError,
)
from rallypoint.wire.address import Address

RETRY_S = 0.2
RESOLVE_RETRY_S = 1.0
FOREIGN_MAX = 5
"""The number of attempts answered by another program than a coordinator after which the search
ends."""
TOKEN_TIMEOUT_S = 10.0
SELF_DIAL_TIMEOUT_S = 5.0
FIRST_LOOK_UP_S = 1.0
LONGEST_LOOK_UP_S = 32.0
"""The longest time limit of a lookup by `Redial`, in seconds. The limit doubles each time it is
exceeded, since a slow name server answers in the end."""

HostCoordinator = Callable[[Sequence[socket], LookupToken | None], Coordinator]
"""The function that makes the coordinator on sockets that were bound for it."""
OnStatus = Callable[[str], None]
EndpointLookUp = Callable[[Endpoint], Awaitable[Resolved | NotYet]]
DialAny = Callable[[Sequence[Address]], Awaitable[ClientConnection]]
"""The function that makes one attempt to reach the coordinator at any of these addresses. Raises as
`dial` does."""


def embed(settings: SharedSettings) -> HostCoordinator:
    """Return the function that makes the coordinator of one job, whose events are dropped."""
    hosting = Hosting(lambda run_id, record: None, settings)
    return lambda listeners, lookup_token: Coordinator(listeners, hosting, lookup_token)


class Connected(Struct, frozen=True):
    """A node's first connection to the coordinator, and the function that makes further ones."""

    connection: ClientConnection
    dial: Dial
    token: bytes | None
    coordinator: Coordinator | None
    """The coordinator, if it lives in this process; else None."""


async def discover(
    config: RendezvousConfig,
    access: AccessConfig,
    host_coordinator: HostCoordinator,
    on_status: OnStatus,
    look_up: EndpointLookUp = resolve,
) -> Connected:
    """Find the coordinator, or host it in this process; return the connection to it.

    Waits for the name to resolve for the join timeout at most, and for a host for the host
    timeout. Raises UsageError, AccessError, ProtocolError, RendezvousConnectionError,
    RendezvousTimeoutError or InfrastructureError; then nothing is left open.
    """
    return await _Discovery(config, access, on_status, look_up).run(host_coordinator)


class _Discovery:
    """One node's search for the coordinator."""

    def __init__(
        self,
        config: RendezvousConfig,
        access: AccessConfig,
        on_status: OnStatus,
        look_up: EndpointLookUp,
    ) -> None:
        self._config, self._access = config, access
        self._on_status, self._look_up = on_status, look_up
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + config.join_timeout_s
        self._known_since: float | None = None
        self._looked_up_at = 0.0

    async def run(self, host_coordinator: HostCoordinator) -> Connected:
        while True:
            addresses = await self._resolve()
            if listeners := self._bind(addresses):
                return await self._host(addresses, listeners, host_coordinator)
            if (joined := await self._join(addresses)) is not None:
                return joined

    # The name

    @property
    def _known_s(self) -> float:
        """The seconds since the name first resolved: within the host timeout some node has to host.

        A failed lookup begins the count anew. 0: the last lookup failed.
        """
        return 0.0 if self._known_since is None else self._loop.time() - self._known_since

    async def _resolve(self) -> tuple[Address, ...]:
        """Wait until the name resolves, and return its addresses.

        Raises RendezvousTimeoutError after the join timeout, and UsageError.
        """
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
            self._on_status(
                f"waiting for the name of the coordinator, {config.join_timeout_s:g} s at most: "
                f"{found.reason}; check the endpoint {config.endpoint}"
            )
            await asyncio.sleep(RESOLVE_RETRY_S)

    async def _has_moved(self, addresses: tuple[Address, ...]) -> bool:
        """Return whether the name has other addresses now.

        False within a second of the last lookup: a thousand waiting nodes must not flood a name
        server. Waits and raises as `_resolve` does if the name no longer resolves.
        """
        if self._loop.time() - self._looked_up_at < RESOLVE_RETRY_S:
            return False
        return set(await self._resolve()) != set(addresses)

    # Hosting

    def _bind(self, addresses: tuple[Address, ...]) -> list[socket]:
        """Return the listening sockets of a coordinator of our own; empty: another node is to host.

        Raises UsageError if this node has to host and can't.
        """
        config = self._config
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

    async def _host(
        self,
        addresses: tuple[Address, ...],
        listeners: Sequence[socket],
        host_coordinator: HostCoordinator,
    ) -> Connected:
        config = self._config
        # Kept is what opens this job alone: workers can look into what forks them.
        secret = self._secret(create=True)
        lookup_token = None if self._access.insecure else {config.run_id: secret}.get
        coordinator = host_coordinator(listeners, lookup_token)
        try:
            if config.endpoint.port == 0:
                port = listeners[0].getsockname()[1]
                addresses = tuple(Address(a.host, port, a.scope_id) for a in addresses)
            connection = await self._dial_own(addresses, secret, listeners)
        except BaseException:
            coordinator.close()
            raise
        if connection.server_id == coordinator.server_id:
            # It lives in this process: whatever the name means later, it is reached as it was now.
            dial_own = partial(dial, addresses, config.run_id, secret)
            return Connected(connection, dial_own, secret, coordinator)
        coordinator.close()
        return self._connected(connection, addresses, secret)

    async def _dial_own(
        self, addresses: tuple[Address, ...], secret: bytes | None, listeners: Sequence[socket]
    ) -> ClientConnection:
        """Dial the endpoint as every node does: it may lead to another coordinator.

        A node that has to host dials its own sockets if the endpoint can't be reached, or refuses.
        """
        run_id = self._config.run_id
        try:
            return await dial(addresses, run_id, secret, SELF_DIAL_TIMEOUT_S)
        except (RendezvousConnectionError, AccessError):
            if not self._config.is_host:
                raise
            # Behind NAT a node often can't reach its own public address.
            own = [Address(*listener.getsockname()[:2]) for listener in listeners]
            return await dial(own, run_id, secret, SELF_DIAL_TIMEOUT_S)

    # Joining

    async def _join(self, addresses: tuple[Address, ...]) -> Connected | None:
        """Dial until some node hosts, and return the connection to it.

        None: the name has other addresses now. Raises RendezvousTimeoutError after the host
        timeout, ForeignPeerError, AccessError and other errors of `dial`.
        """
        config, access = self._config, self._access
        foreign, secret = 0, None
        while True:
            secret = secret or self._secret(create=False)
            try:
                if secret is None and not access.insecure:
                    # First what is there: a token is of no use for another program.
                    await knock(addresses, config.run_id)
                    secret = await self._awaited_secret()
                connection = await dial(addresses, config.run_id, secret)
                return self._connected(connection, addresses, secret)
            except (PeerHungUpError, RendezvousConnectionError) as error:
                if (waited_s := self._known_s) > config.host_timeout_s:
                    raise RendezvousTimeoutError(_no_host(config, waited_s, error)) from error
                by = f" ({error})" if isinstance(error, (PeerHungUpError, SilentPeerError)) else ""
                self._on_status(f"waiting for the coordinator at {config.endpoint}{by}")
            except ForeignPeerError as error:
                # A coordinator that is just going down hangs up in the middle, too: look again.
                foreign += 1
                if foreign == FOREIGN_MAX or self._known_s > config.host_timeout_s:
                    raise ForeignPeerError(f"{error}, or {_another_port(config)}") from error
            await asyncio.sleep(RETRY_S)
            if await self._has_moved(addresses):
                return None

    def _connected(
        self, connection: ClientConnection, addresses: tuple[Address, ...], secret: bytes | None
    ) -> Connected:
        """Return the connection to another process's coordinator, and how to dial it again."""
        config = self._config
        dial_any = partial(dial, run_id=config.run_id, token=secret)
        redial = Redial(config.endpoint, addresses, dial_any, self._look_up)
        return Connected(connection, redial, secret, None)

    # The token

    def _secret(self, *, create: bool) -> bytes | None:
        """Return the secret of this job, which opens no other job.

        None: there is no token (yet), or the job needs none. `create`: make the user's token if
        none is given or found.
        """
        config, access = self._config, self._access
        if access.insecure:
            return None
        if has_own_token(config, access):
            return JobToken.fresh("this job alone").value
        token = find_token(access.token_file, access.token_text, user_home(), create)
        return None if token is None else token.for_job(config.run_id)

    async def _awaited_secret(self) -> bytes:
        """Wait for the token that the first node has just created, and return its secret.

        It lies in a shared directory where this node may see it later. Raises AccessError after at
        most ten seconds.
        """
        deadline = self._loop.time() + min(TOKEN_TIMEOUT_S, self._config.host_timeout_s)
        while (secret := self._secret(create=False)) is None:
            if self._loop.time() > deadline:
                raise no_token_error(self._config.endpoint)
            self._on_status(
                "waiting for a token: in a shared home directory the first node creates it"
            )
            await asyncio.sleep(RETRY_S)
        return secret


def has_own_token(config: RendezvousConfig, access: AccessConfig) -> bool:
    """Return whether a job makes a token for itself alone, which no file keeps.

    It does if it has one node that others can't find, and the user has given neither a token nor
    `--insecure`.
    """
    is_given = access.token_file is not None or access.token_text is not None
    is_alone = config.max_nodes == 1 and config.endpoint.port == 0 and config.register is None
    return is_alone and not is_given and not access.insecure


class Redial:
    """The way to dial an endpoint again, once for each call.

    The addresses that the name had last are tried first. A broken connection has little time to
    come back, and a name server may be out of reach with the coordinator. If they fail, the name is
    looked up anew: a pod that was replaced has its old name and another address. A name server that
    does not answer does not delay the next attempt for long.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: Sequence[Address],
        dial_any: DialAny,
        look_up: EndpointLookUp,
        look_up_s: float = FIRST_LOOK_UP_S,
    ) -> None:
        """Make the function; `addresses` are those that the endpoint was found to have last.

        `look_up_s`: how many seconds the first look-up may take.
        """
        self._endpoint, self._addresses = endpoint, tuple(addresses)
        self._dial_any, self._look_up, self._look_up_s = dial_any, look_up, look_up_s

    async def __call__(self) -> ClientConnection:
        """Dial the coordinator at the known addresses, and if that fails, at new ones of its name.

        Raises as `dial` does, and RendezvousConnectionError also when the name does not resolve. A
        new address that refuses is not reported as RendezvousRefusedError the first time: its
        program may be starting.
        """
        try:
            return await self._dial_any(self._addresses)
        except (RendezvousConnectionError, AccessError, ProtocolError):
            found = await self._looked_up()
            if found is None:
                raise
            if isinstance(found, NotYet):
                raise RendezvousConnectionError(
                    f"can't reach the coordinator at {self._endpoint}: {found.reason}"
                ) from None
            untried = set(found.addresses) - set(self._addresses)
            self._addresses = found.addresses
            if not untried:
                raise
        try:
            return await self._dial_any([each for each in found.addresses if each in untried])
        except RendezvousRefusedError as error:
            # What has just got the name may be starting, however long another one refused before.
            raise RendezvousConnectionError(str(error)) from error

    async def _looked_up(self) -> Resolved | NotYet | None:
        """Look the name up again; return None if there is no answer in time.

        Then the next look-up may take twice as long.
        """
        try:
            async with asyncio.timeout(self._look_up_s):
                return await self._look_up(self._endpoint)
        except TimeoutError:
            self._look_up_s = min(2 * self._look_up_s, LONGEST_LOOK_UP_S)
            return None


def _no_host(config: RendezvousConfig, waited_s: float, error: Exception) -> str:
    if isinstance(error, (PeerHungUpError, SilentPeerError)):
        return (
            f"no coordinator answers at {config.endpoint}: waited {waited_s:.0f} s ({error}). If "
            f"another program uses that port, {_another_port(config)}. If it is a proxy, the node "
            "behind it was not started. If it is the node that hosts, its agent is stopped"
        )
    return (
        f"no node hosts the coordinator at {config.endpoint}: waited {waited_s:.0f} s ({error}). "
        "Usual causes: the node of that name was not started; the name points to another machine; "
        "a firewall drops the port. No pod can bind the cluster IP of a Kubernetes service: use a "
        f"headless service, or {named.rdzv_conf} is_host=1 on one node"
    )


def _another_port(config: RendezvousConfig) -> str:
    option = f"{named.master_port} PORT" if config.static else f"{named.rdzv_endpoint} HOST:PORT"
    return f"choose another port on every node ({option})"
