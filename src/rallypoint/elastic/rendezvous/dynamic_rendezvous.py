"""A rendezvous over a shared store without logic: any backend that can compare and swap.

    backend = C10dRendezvousBackend(store, run_id)
    handler = DynamicRendezvousHandler.from_backend(run_id, store, backend, 2, 4)
    store, rank, world_size = handler.next_rendezvous()

The blocking calls run the same code as their asynchronous twins, on a loop in a thread of their
own. What is decided is decided in `core`; see `shared/driver.py` for how it is stored.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

from msgspec import Struct

from rallypoint.core.model import Candidate, EndReason, NodeRef
from rallypoint.core.settings import SharedSettings, parameters
from rallypoint.elastic.rendezvous.api import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    check_nodes,
)
from rallypoint.elastic.rendezvous.led.loop_handler import (
    LoopRendezvousHandler,
    check_timeout,
    weakly,
    when_dropped,
)
from rallypoint.elastic.rendezvous.led.round_listener import RoundListener, listen_here
from rallypoint.elastic.rendezvous.shared.backend_thread import BackendThread, silence_error
from rallypoint.elastic.rendezvous.shared.driver import SharedDriver
from rallypoint.elastic.rendezvous.shared.member import Closed, InWorld, Outlook
from rallypoint.elastic.stores.prefix_store import PrefixStore
from rallypoint.elastic.stores.store import check_store
from rallypoint.errors import ParameterError, RendezvousClosedError, RendezvousError
from rallypoint.register.contract import RendezvousBackend as RendezvousBackend, Token as Token

_SHUT_DOWN = "this handler was shut down"
_VOCABULARY = ("set", "get", "add", "wait", "check", "compare_set")


class NodeOptions(Struct, frozen=True):
    """The options of a handler for its own node."""

    local_addr: str | None = None
    """The address by which the other nodes reach this node; None: the local address of the store's
    connection, or this host's name if the store has no address."""
    name: str = ""
    """The name that `get_backend` returns, if it is not the backend's own."""
    use_agent_store: bool = True
    node_id: str = ""
    """The node's name, unique in the job; empty: one is made up."""


class DynamicRendezvousHandler(LoopRendezvousHandler):
    """One node's handler for a rendezvous over a shared store.

    Call `shutdown` when the job is over, and `leave` when the job continues without this node.
    """

    def __init__(
        self,
        settings: RendezvousSettings,
        backend: RendezvousBackend,
        store: Any,
        options: NodeOptions,
    ) -> None:
        super().__init__(settings, options.name or backend.name)
        self._backend, self._store, self._options = backend, store, options
        host = options.local_addr or socket.gethostname()
        node_id = options.node_id or f"{host}_{os.getpid()}_{next(_local_ids)}"
        self._ref = NodeRef(node_id, secrets.token_hex(6))
        self._driver: SharedDriver | None = None
        self._listener: RoundListener | None = None
        self._world: InWorld | None = None
        self._joining, self._starting = asyncio.Lock(), asyncio.Lock()
        self._is_shut_down = False

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: int | float = 5,
        keep_alive_max_attempt: int = 3,
    ) -> DynamicRendezvousHandler:
        """Make a handler, with the arguments of torch's method of this name.

        A node is lost after `keep_alive_interval * keep_alive_max_attempt` seconds without a
        heartbeat.

        Raises ParameterError.
        """
        if not run_id:
            raise ParameterError("run_id='': needs a name that all nodes of the job have")
        check_nodes(min_nodes, max_nodes)
        check_store(store, *_VOCABULARY)
        if not keep_alive_interval > 0 or keep_alive_max_attempt < 1:
            raise ParameterError(
                f"keep_alive_interval={keep_alive_interval}, "
                f"keep_alive_max_attempt={keep_alive_max_attempt}: "
                "need seconds above 0 and a number of 1 or more"
            )
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt,
        )
        return cls(settings, backend, store, NodeOptions(local_addr))

    @property
    def node_id(self) -> str:
        """The name of this node among the nodes of the job."""
        return self._ref.node_id

    @property
    def end_reason(self) -> EndReason | None:
        """The reason why the job's last round ended.

        None if none has ended, before this node's first call, and after it has left.
        """
        return self._driver.end_reason if self._driver is not None else None

    @property
    def use_agent_store(self) -> bool:
        return self._options.use_agent_store

    # On the loop

    async def _next(self) -> RendezvousInfo:
        async with self._joining:
            if self._is_shut_down:
                raise RendezvousClosedError(_SHUT_DOWN)
            join_s = self._settings.timeout.join.total_seconds()
            driver = await self._started()
            self._close_listener()
            self._world = None
            listener = self._listener = await listen_here(
                self._options.local_addr, self._store, join_s
            )
            candidate = Candidate(
                workers=1,
                role="default",
                address=listener.address,
                store_port=listener.port,
                stop_grace_s=self._settings.timeout.close.total_seconds(),
            )
            try:
                world = await driver.join(candidate, join_s)
            except asyncio.CancelledError:  # Ctrl-C, say: no round may form with this node
                self._close_listener()
                with suppress(RendezvousError):
                    await driver.leave()
                raise
            except BaseException:
                self._close_listener()
                raise
            if world.rank == 0 and self._options.use_agent_store:
                self._listener.serve(self._settings.timeout.join)
            else:
                self._close_listener()
            self._world = world
            return self._info(world)

    async def _started(self) -> SharedDriver:
        async with self._starting:
            if self._driver is None:
                driver = SharedDriver(
                    self._settings.shared(),
                    self._ref,
                    BackendThread(self._backend),
                    weakly(self._changed),
                )
                try:
                    async with _answer_within(self._backend, self._settings.timeout.join):
                        await driver.start()
                except BaseException:
                    await driver.stop()
                    raise
                self._driver = driver
                # A program that drops the handler without `leave` has left all the same.
                when_dropped(self, driver.abandon)
            return self._driver

    async def _look(self) -> tuple[int, bool]:
        outlook = await self._outlook()
        return self._waiting(outlook), isinstance(outlook, Closed)

    async def _outlook(self) -> Outlook:
        if self._is_shut_down:
            return Closed(_SHUT_DOWN, was_needed=True)
        driver = await self._started()
        if driver.view.trouble is not None:
            raise driver.view.trouble
        return driver.view.outlook

    async def _close(self) -> None:
        if self._is_shut_down:
            return
        driver = await self._started()
        async with _answer_within(self._backend, self._settings.timeout.close):
            await driver.close("closed by a node")

    async def _wait(self, timeout: float | None) -> bool:
        check_timeout(timeout)
        if self._is_shut_down:
            return True
        driver, loop = await self._started(), asyncio.get_running_loop()
        ends_at = None if timeout is None else loop.time() + timeout
        while True:
            if self._driver is not driver:  # left or shut down meanwhile, which must not be undone
                return True
            if any(await self._look()):
                return True
            left_s = None if ends_at is None else ends_at - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            await driver.view.wait_for_change(left_s)

    async def _leave(self) -> None:
        await self._stop(None)

    async def _shut_down(self) -> bool:
        return await self._stop("shut down")

    async def _stop(self, close_why: str | None) -> bool:
        if self._is_shut_down:
            return True
        self._is_shut_down = close_why is not None
        driver, self._driver, done = self._driver, None, True
        self._close_listener()
        self._world = None
        if driver is None and close_why is None:
            return True
        try:
            driver = driver or await self._fresh_driver()
            async with _answer_within(self._backend, self._settings.timeout.close):
                await (driver.leave() if close_why is None else driver.close(close_why))
        except RendezvousError:
            done = False
        if driver is not None:
            await driver.stop()
        return done

    async def _fresh_driver(self) -> SharedDriver:
        driver = await self._started()
        self._driver = None
        return driver

    # Within

    def _waiting(self, outlook: Outlook) -> int:
        """Return 1 if the round that this node was in is over and the job is not, else 0.

        0 for a node that was in no round yet.
        """
        if self._world is None or isinstance(outlook, Closed):
            return 0
        return 0 if outlook == self._world else 1

    def _info(self, world: InWorld) -> RendezvousInfo:
        prefix = f"rallypoint.elastic.rendezvous.{self._settings.run_id}.{world.round}"
        store = PrefixStore(prefix, self._store)
        bootstrap = RendezvousStoreInfo(*world.bootstrap)
        return RendezvousInfo(store, world.rank, world.world_size, bootstrap)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def create_handler(
    store: Any, backend: RendezvousBackend, params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """Return a handler as `params` say, over a store and a backend. Raises ParameterError."""
    check_store(store, *_VOCABULARY)
    return DynamicRendezvousHandler(
        settings_from(params, without_coordinator=True),
        backend,
        store,
        NodeOptions(
            params.local_addr,
            params.backend,
            params.get_as_bool("use_agent_store", True) is not False,
            str(params.get("node_id") or ""),
        ),
    )


@asynccontextmanager
async def _answer_within(backend: RendezvousBackend, timeout: timedelta) -> AsyncIterator[None]:
    """Cancel the block after this time, because a call of a backend may block for ever.

    Raises RendezvousTimeoutError then.
    """
    limit_s = timeout.total_seconds()
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise silence_error(backend.name, limit_s) from None


_local_ids = count()
DEFAULTS: dict[str, Any] = {"join_settle_s": 0.0, "min_growth_interval_s": 0.0}
"""The defaults of a handler that differ from those of a job: late nodes are admitted at once."""
_FURTHER = frozenset(SharedSettings.__struct_fields__) - {
    "join_timeout_s",
    "last_call_s",
    "lease_s",
}
"""The names of the settings that all nodes must agree on, without the join timeout, the last call
and the lease: `RendezvousSettings` has other fields for these."""


class RendezvousTimeout:
    """The time limits of a rendezvous. Raises ParameterError unless all are positive."""

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self._join = _positive("join", join, 600)
        self._last_call = _positive("last_call", last_call, 30)
        self._close = _positive("close", close, 30)
        self._heartbeat = _positive("heartbeat", heartbeat, 5)

    @property
    def join(self) -> timedelta:
        """The time limit for the minimum of nodes to come together."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """The wait for more nodes, once the minimum is there.

        It applies to the first round, and to one after the loss of all nodes. When too few nodes
        have come, a round waits as long before it takes nodes that were held back (for failures,
        say).
        """
        return self._last_call

    @property
    def close(self) -> timedelta:
        """The time limit for nodes to ask for the next round after one has ended.

        A node that does not is lost. With a shared store it also limits `set_closed`, `leave` and
        `shutdown`; with a coordinator, the wait of its host for the other nodes in `shutdown`.
        """
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """A value without effect, for compatibility: heartbeats have no time limit of their own."""
        return self._heartbeat


class RendezvousSettings(Struct, frozen=True):
    """The settings of a rendezvous handler."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    given: tuple[tuple[str, Any], ...] = ()
    """Further settings that all nodes must agree on: each a `SharedSettings` field and a value."""

    @property
    def lease_s(self) -> float:
        """The silence after which a node counts as lost, in seconds."""
        return self.keep_alive_interval.total_seconds() * self.keep_alive_max_attempt

    def shared(self) -> SharedSettings:
        """Return the settings that all nodes must agree on."""
        return SharedSettings(
            run_id=self.run_id,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            lease_s=self.lease_s,
            heartbeat_s=self.keep_alive_interval.total_seconds(),
            join_timeout_s=self.timeout.join.total_seconds(),
            last_call_s=self.timeout.last_call.total_seconds(),
            **DEFAULTS | dict(self.given),
        )


def settings_from(
    params: RendezvousParameters, *, without_coordinator: bool = False
) -> RendezvousSettings:
    """Return the settings that `params` describe. Raises ParameterError.

    With `without_coordinator`, parameters that only a coordinator uses are left out.
    """
    rows = parameters(without_coordinator=without_coordinator)
    given = params.read(rows.values())

    def seconds(key: str) -> timedelta | None:
        return timedelta(seconds=given[key]) if key in given else None

    fields = ((rows[name].field, value) for name, value in given.items())
    return RendezvousSettings(
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        timeout=RendezvousTimeout(
            join=seconds("join_timeout") or seconds("timeout"),
            last_call=seconds("last_call_timeout"),
            close=seconds("close_timeout"),
            heartbeat=seconds("heartbeat_timeout"),
        ),
        keep_alive_interval=seconds("keep_alive_interval") or timedelta(seconds=5),
        keep_alive_max_attempt=given.get("keep_alive_max_attempt", 3),
        given=tuple(each for each in fields if each[0] in _FURTHER),
    )


def _positive(name: str, value: timedelta | None, default_s: float) -> timedelta:
    if value is None:
        return timedelta(seconds=default_s)
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise ParameterError(f"the rendezvous timeout {name}={value!r}: needs a timedelta above 0")
    return value


def get_method_name(depth: int = 2) -> str:
    """Return the name of the function `depth` calls above this one, for events.

    `no_method_name` if there is none.
    """
    try:
        return sys._getframe(depth).f_code.co_name
    except ValueError:
        return "no_method_name"
