"""A rendezvous by a coordinator, which one of the nodes hosts, or `rallypoint serve`.

    params = RendezvousParameters("tcp", "node0:29400", "my-job", 2, 4)
    handler = create_handler_from(params)
    store, rank, world_size = handler.next_rendezvous()

A single writer decides; each node is told its own part, in messages that do not grow with the job.
The blocking calls run on the one loop thread of the process, whatever the number of handlers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from rallypoint.coordinator.server import Coordinator
from rallypoint.core.model import Assignment, Candidate, Outcome
from rallypoint.errors import (
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.connection import dial
from rallypoint.rendezvous.coordinator_member import (
    ENROL_TIMEOUT_S,
    FAREWELL_S,
    RETRY_S,
    CoordinatorMember,
)
from rallypoint.rendezvous.coordinator_parameters import CoordinatorSettings, read_parameters
from rallypoint.rendezvous.handler import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    Unsubscribe,
)
from rallypoint.rendezvous.loop_thread import SHARED
from rallypoint.rendezvous.meeting import meet
from rallypoint.rendezvous.parameters import RendezvousParameters, RendezvousSettings
from rallypoint.rendezvous.round_listener import RoundListener
from rallypoint.rendezvous.session import CoordinatorSession, Identity
from rallypoint.store.prefix_store import PrefixStore
from rallypoint.store.tcp_store import TCPStore

_LOOK_AGAIN_S = 0.2
"""While there is nothing yet that could tell of a change."""
_LONG_S = 3600.0

T = TypeVar("T")


class CoordinatorRendezvousHandler(RendezvousHandler):
    """One node's handler. `shutdown` when the job is over; `leave` to go while it goes on.

    The coordinator lives in the process whose handler could bind the endpoint, until everybody
    has gone: that process must not end before.
    """

    def __init__(self, settings: CoordinatorSettings, name: str = "tcp") -> None:
        """`name`: what `get_backend` says."""
        self._settings, self._name = settings.rendezvous, name
        self._config, self._access = settings.config, settings.access
        self._shared = settings.shared
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._forget()

    def _forget(self) -> None:
        """Also in a forked child, whose loop is another: what the parent has is not its own."""
        self._pid = os.getpid()
        self._member: CoordinatorMember | None = None
        self._local_host = ""
        self._coordinator: Coordinator | None = None
        self._lingering: asyncio.Task[None] | None = None
        self._listener: RoundListener | None = None
        self._store: TCPStore | None = None
        self._joining: asyncio.Lock | None = None
        self._meeting: asyncio.Lock | None = None
        self._closed = ""
        """Why nothing more can be done here; empty: something can."""

    @property
    def settings(self) -> RendezvousSettings:
        """What this handler was made with."""
        return self._settings

    @property
    def use_agent_store(self) -> bool:
        return True

    @property
    def why_over(self) -> str:
        """Why this node's last round ended, one sentence; empty as long as none has."""
        return self._member.why_over if self._member is not None else ""

    def get_backend(self) -> str:
        return self._name

    def get_run_id(self) -> str:
        return self._settings.run_id

    # Blocking calls, and their twins for a running loop

    def next_rendezvous(self) -> RendezvousInfo:
        return self._connect(self._run(self._next))

    async def next_rendezvous_async(self) -> RendezvousInfo:
        """`next_rendezvous` from a running loop."""
        assignment = await self._wait_for(self._next)
        return await asyncio.to_thread(self._connect, assignment)

    def is_closed(self) -> bool:
        return self._run(self._look)[1]

    async def is_closed_async(self) -> bool:
        """`is_closed` from a running loop."""
        return (await self._wait_for(self._look))[1]

    def set_closed(self) -> None:
        self._run(self._close)

    async def set_closed_async(self) -> None:
        """`set_closed` from a running loop."""
        await self._wait_for(self._close)

    def num_nodes_waiting(self) -> int:
        return self._run(self._look)[0]

    async def num_nodes_waiting_async(self) -> int:
        """`num_nodes_waiting` from a running loop."""
        return (await self._wait_for(self._look))[0]

    def wait_for_change(self, timeout: float | None = None) -> bool:
        return self._run(partial(self._wait, timeout))

    async def wait_for_change_async(self, timeout: float | None = None) -> bool:
        """`wait_for_change` from a running loop."""
        return await self._wait_for(partial(self._wait, timeout))

    def on_change(self, callback: Callable[[], None]) -> Unsubscribe:
        key = object()
        self._callbacks[key] = callback
        return lambda: self._callbacks.pop(key, None) and None

    def leave(self) -> None:
        """Go, while the job goes on without this node. May be called again.

        A coordinator that this process hosts stays, for as long as the process and the job last.
        """
        self._run(self._drop)

    def shutdown(self) -> bool:
        """End the job for everybody, as cancelled, unless it has ended or this node has left it.

        The process that hosts the coordinator waits until all have heard, at most the close
        timeout. Whether the job has ended. May be called again.
        """
        return self._run(partial(self._shut_down, succeeded=False))

    async def shutdown_async(self) -> bool:
        """`shutdown` from a running loop."""
        return await self._wait_for(partial(self._shut_down, succeeded=False))

    def finish(self) -> bool:
        """`shutdown`, when this node's workers have succeeded: the job has, when all of them have.

        If the round is over by now there is no such success, and the job is closed.
        """
        return self._run(partial(self._shut_down, succeeded=True))

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._mind_forks()
        return SHARED.run(call())

    async def _wait_for(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._mind_forks()
        return await SHARED.wait(call())

    def _mind_forks(self) -> None:
        if self._pid != os.getpid():
            self._forget()

    # On the loop

    async def _next(self) -> Assignment:
        if self._joining is None:
            self._joining = asyncio.Lock()
        async with self._joining:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._settings.timeout.join.total_seconds()
            while True:
                if self._closed:
                    raise RendezvousClosedError(self._closed)
                try:
                    return await self._join(await self._met())
                except RendezvousTimeoutError:
                    await self._drop()  # so that the next call begins anew
                    raise
                except RendezvousConnectionError:
                    # The coordinator was lost with its node: meet where another may host by now.
                    await self._drop()
                    if loop.time() > deadline:
                        raise
                    await asyncio.sleep(RETRY_S)
                except asyncio.CancelledError:
                    await self._drop()
                    raise

    async def _join(self, member: CoordinatorMember) -> Assignment:
        self._close_round()
        address = self._config.local_addr or self._local_host
        listener = await RoundListener.bind(address)
        candidate = Candidate(
            workers=1,
            role="default",
            address=address,
            store_port=listener.port,
            topology=self._config.topology,
            stop_grace_s=self._settings.timeout.close.total_seconds(),
        )
        self._listener = listener

        def serve() -> None:
            listener.serve(self._settings.timeout.join)

        try:
            assignment = await member.join(candidate, serve)
        except BaseException:
            self._close_round()
            raise
        if assignment.group_rank:
            self._listener.close()
            self._listener = None
        return assignment

    async def _met(self) -> CoordinatorMember:
        """Attached, or about to be."""
        if self._meeting is None:
            self._meeting = asyncio.Lock()
        async with self._meeting:
            if self._member is not None:
                if not isinstance(self._member.trouble, RendezvousConnectionError):
                    return self._member
                await self._drop()
            return await self._meet()

    async def _meet(self) -> CoordinatorMember:
        # A coordinator of ours that still stands serves the same job.
        hosts = self._coordinator is not None
        config = replace(self._config, is_host=False) if hosts else self._config
        met = await meet(config, self._access, self._host, lambda text: None)
        self._coordinator = met.coordinator or self._coordinator
        self._local_host = met.connection.local_host
        timeout_s = min(ENROL_TIMEOUT_S, self._config.join_timeout_s)
        member = CoordinatorMember(self._changed, timeout_s)
        host_name = socket.gethostname().partition(".")[0] or "node"
        session = CoordinatorSession(
            Identity(self._config.node_id or "", host_name, os.urandom(8).hex()),
            self._shared,
            self._config.lease_s,
            partial(dial, met.addresses, self._config.run_id, met.token),
            member,
        )
        member.use(session)
        self._member = member
        session.open(met.connection)
        return member

    def _host(
        self, listeners: Sequence[socket.socket], lookup_token: Callable[[str], bytes | None]
    ) -> Coordinator:
        return Coordinator(
            listeners,
            lookup_token=lookup_token,
            insecure=self._access.insecure,
            only=self._shared,
            on_record=lambda run_id, record: None,
        )

    async def _look(self) -> tuple[int, bool]:
        """How many are waiting, as far as this node is concerned, and whether the job is over."""
        member = self._member
        if member is None:
            return 0, bool(self._closed)
        return int(member.is_over), member.is_closed

    async def _close(self) -> None:
        if not self._closed:
            await (await self._met()).cancel(_CLOSED_HERE)

    async def _wait(self, timeout: float | None) -> bool:
        loop = asyncio.get_running_loop()
        ends_at = None if timeout is None else loop.time() + timeout
        while not any(await self._look()):
            left_s = _LONG_S if ends_at is None else ends_at - loop.time()
            if left_s <= 0:
                return False
            member = self._member
            if member is None:
                await asyncio.sleep(min(left_s, _LOOK_AGAIN_S))
                continue
            try:
                async with asyncio.timeout(left_s):
                    await member.wait_change()
            except TimeoutError:
                pass
        return True

    async def _shut_down(self, *, succeeded: bool) -> bool:
        member, done = self._member, True
        if member is not None and not member.is_closed and not (succeeded and member.succeed()):
            try:
                async with asyncio.timeout(FAREWELL_S + self._shared.reconnect_grace_s):
                    await member.cancel(_CLOSED_HERE)
            except (RallypointError, TimeoutError):
                done = False
        self._closed = self._closed or "the rendezvous was shut down here"
        await self._drop()
        await self._end_hosting(self._settings.timeout.close.total_seconds())
        return done

    async def _drop(self) -> None:
        """Hang up. A coordinator of ours stays until everybody has gone."""
        member, self._member = self._member, None
        self._close_round()
        timed_out = False
        if member is not None:
            if member.verdict is not None:
                timed_out = member.verdict.outcome is Outcome.TIMED_OUT
                self._closed = "" if timed_out else member.verdict.text
            await member.leave()
        if self._coordinator is not None and self._lingering is None:
            self._lingering = asyncio.get_running_loop().create_task(self._linger())
        if timed_out:
            # That job is over, but not the next one that meets here.
            await self._end_hosting(FAREWELL_S)

    async def _linger(self) -> None:
        assert self._coordinator is not None
        try:
            await self._coordinator.wait_empty()
        finally:
            self._coordinator.close()
            self._coordinator = self._lingering = None

    async def _end_hosting(self, limit_s: float) -> None:
        """When all have heard how the job ended, or after so long."""
        if self._lingering is not None:
            await asyncio.wait((self._lingering,), timeout=limit_s)
        if self._lingering is not None:
            self._lingering.cancel()
            await asyncio.wait((self._lingering,))

    # Within

    def _connect(self, assignment: Assignment) -> RendezvousInfo:
        """Blocks, so it is not for the loop."""
        listener = self._listener
        if assignment.group_rank == 0 and listener is not None and listener.store is not None:
            store = listener.store
        else:
            join_timeout = self._settings.timeout.join
            host, port = assignment.master_addr, assignment.master_port
            store = self._store = TCPStore(host, port, timeout=join_timeout)
        prefix = f"rallypoint.rendezvous.{self._settings.run_id}.{assignment.round}"
        bootstrap = RendezvousStoreInfo(assignment.master_addr, assignment.master_port)
        return RendezvousInfo(
            PrefixStore(prefix, store),
            assignment.group_rank,
            assignment.group_world_size,
            bootstrap,
        )

    def _close_round(self) -> None:
        """The round's store goes with the round."""
        for part in (self._listener, self._store):
            if part is not None:
                part.close()
        self._listener = self._store = None

    def _changed(self) -> None:
        for callback in tuple(self._callbacks.values()):
            callback()


_CLOSED_HERE = "its program closed the rendezvous"


def create_handler_from(params: RendezvousParameters) -> CoordinatorRendezvousHandler:
    """The handler of `--rdzv-backend tcp`; the keys of `params` are those of docs/rendezvous.md.

    Raises ParameterError, and UsageError for names and numbers that no job can have.
    """
    return CoordinatorRendezvousHandler(read_parameters(params), params.backend)
