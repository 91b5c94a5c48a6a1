"""A rendezvous through a coordinator, which one of the nodes or `rallypoint serve` hosts.

    params = RendezvousParameters("tcp", "node0:29400", "my-job", 2, 4)
    handler = create_handler_from(params)
    store, rank, world_size = handler.next_rendezvous()

A single writer decides. Each node gets only its own part, in messages whose size does not grow with
the job. All handlers of a process run their blocking calls on one loop thread.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from rallypoint.config import DEFAULT_STATIC_PORT, Endpoint
from rallypoint.core.model import Assignment, Candidate
from rallypoint.core.ranks import id_of_rank
from rallypoint.core.text import naming_parameters
from rallypoint.elastic.agent.embedded.parameters import OF_A_HANDLER
from rallypoint.elastic.rendezvous.api import (
    LazyRendezvousInfo,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from rallypoint.elastic.rendezvous.led.loop_handler import (
    LoopRendezvousHandler,
    check_timeout,
    weakly,
    when_dropped,
)
from rallypoint.elastic.rendezvous.led.parameters import CoordinatorSettings, read_parameters
from rallypoint.elastic.rendezvous.led.round_listener import RoundListener
from rallypoint.elastic.rendezvous.led.tcp_member import CLOSE_S, HandlerMembership, TcpMember
from rallypoint.elastic.rendezvous.utils import parse_rendezvous_endpoint
from rallypoint.elastic.stores.prefix_store import PrefixStore
from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.errors import (
    ParameterError,
    RallypointError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from rallypoint.machine_name import machine_name

RETRY_S = 0.2
_LOOK_AGAIN_S = 0.2
"""The polling interval, in seconds, while no member exists that could report a change."""
_LONG_S = 3600.0


class CoordinatorRendezvousHandler(LoopRendezvousHandler):
    """One node's handler, whose rounds a coordinator forms.

    Call `shutdown` when the job is over, and `leave` when the job continues without this node.

    The coordinator is that of `rallypoint serve` at the endpoint, or lives in the process whose
    handler could bind the endpoint, until every node has gone. That process must not end earlier,
    and `leave` keeps the coordinator. `shutdown` ends the
    job as cancelled, unless the job has ended or this node has left it. In the process that hosts
    the coordinator, `shutdown` waits until every node has gone, at most the close timeout.
    """

    def __init__(self, settings: CoordinatorSettings, name: str = "tcp") -> None:
        """Make a handler; `name` is the result of `get_backend`."""
        super().__init__(settings.rendezvous, name)
        self._given = settings
        self._forget()

    def _forget(self) -> None:
        """Reset the connection to the coordinator, without closing it.

        A forked child does so before its first call: the connection is the parent's.
        """
        self._pid = os.getpid()
        self._membership: HandlerMembership | None = None
        self._joining = asyncio.Lock()
        self._listener: RoundListener | None = None
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        return True

    @property
    def why_over(self) -> str:
        """The reason why this node's last round ended, one sentence.

        Empty if none has ended, and once this node has left the job.
        """
        member = self._member
        return member.state.why_over if member is not None else ""

    @property
    def is_attached(self) -> bool:
        """Whether this node has attached to the coordinator, and has not left since."""
        member = self._member
        return member is not None and member.state.is_attached

    def finish(self) -> bool:
        """Report the success of this node's workers, and shut down.

        The job succeeds when the workers of all nodes have. The process that hosts the coordinator
        waits without a limit until the other nodes have gone. If the round is over already, but
        the job is not, the workers' success does not count, and the job is closed as cancelled.
        Returns False only if the job could not be closed.
        """
        return self._run(partial(self._shut_down, succeeded=True))

    def _before_call(self) -> None:
        if self._pid != os.getpid():
            self._forget()

    # On the loop

    async def _next(self) -> RendezvousInfo:
        async with self._joining:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._settings.timeout.join.total_seconds()
            while True:
                try:
                    return self._info(await self._join(await self._own_membership.connect()))
                except RendezvousTimeoutError:
                    await self._leave()  # so that the next call begins anew
                    raise
                except RendezvousConnectionError:
                    # The coordinator was lost with its node: another one may host it by now.
                    await self._leave()
                    if loop.time() > deadline:
                        raise
                    await asyncio.sleep(RETRY_S)
                except asyncio.CancelledError:
                    await self._leave()
                    raise

    async def _join(self, member: TcpMember) -> Assignment:
        self._close_round()
        config = self._given.config
        session_host = self._own_membership.local_host
        address = config.local_addr or session_host
        listener = await RoundListener.bind(address, session_host)
        candidate = Candidate(
            workers=1,
            role="default",
            address=address,
            store_port=listener.port,
            topology=config.topology,
            node_rank=-1 if config.node_rank is None else config.node_rank,
            stop_grace_s=self._settings.timeout.close.total_seconds(),
            machine=machine_name(config.machine_id, address),
        )
        self._listener = listener
        # What the member keeps must not keep this handler.
        serve = partial(listener.serve, self._settings.timeout.join)
        try:
            assignment = await member.join(candidate, serve)
        except BaseException:
            self._close_round()
            raise
        if assignment.group_rank:
            self._listener.close()
            self._listener = None
        return assignment

    @property
    def _own_membership(self) -> HandlerMembership:
        if self._membership is None:
            self._membership = HandlerMembership(self._given, weakly(self._changed))
            when_dropped(self, self._membership.leave)
        return self._membership

    @property
    def _member(self) -> TcpMember | None:
        return self._membership.member if self._membership is not None else None

    async def _look(self) -> tuple[int, bool]:
        member = self._member
        if member is None:
            return 0, self._membership is not None and bool(self._membership.closed)
        return int(member.is_over), member.state.verdict is not None

    async def _close(self) -> None:
        if not self._own_membership.closed:
            await (await self._own_membership.connect()).cancel(_CLOSED_HERE)

    async def _wait(self, timeout: float | None) -> bool:
        check_timeout(timeout)
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

    async def _shut_down(self, *, succeeded: bool = False) -> bool:
        member, membership, done = self._member, self._own_membership, True
        is_open = member is not None and member.state.verdict is None
        waits = member is not None and is_open and succeeded and member.succeed()
        if member is not None and is_open and not waits:
            try:
                async with asyncio.timeout(CLOSE_S + self._given.shared.reconnect_grace_s):
                    await member.cancel(_CLOSED_HERE)
            except (RallypointError, TimeoutError):
                done = False
        await self._leave()
        membership.closed = membership.closed or "the rendezvous was shut down here"
        await membership.end_hosting(
            None if waits else self._settings.timeout.close.total_seconds()
        )
        return done

    async def _leave(self) -> None:
        self._close_round()
        if self._membership is not None:
            await self._membership.leave()

    # Within

    def _info(self, assignment: Assignment) -> RendezvousInfo:
        bootstrap = RendezvousStoreInfo(assignment.master_addr, assignment.master_port)
        return LazyRendezvousInfo(
            partial(self._connect, assignment),
            assignment.group_rank,
            assignment.group_world_size,
            bootstrap,
        )

    def _connect(self, assignment: Assignment) -> PrefixStore:
        """Connect to the store of the round. Blocks, so it must not run on the loop."""
        listener = self._listener
        if assignment.group_rank == 0 and listener is not None and listener.store is not None:
            store = listener.store
        else:
            join_timeout = self._settings.timeout.join
            host, port = assignment.master_addr, assignment.master_port
            store = self._store = TCPStore(host, port, timeout=join_timeout)
        prefix = f"rallypoint.elastic.rendezvous.{self._settings.run_id}.{assignment.round}"
        return PrefixStore(prefix, store)

    def _close_round(self) -> None:
        """Close the listener and the connection of the last round's store, if there are any."""
        for part in (self._listener, self._store):
            if part is not None:
                part.close()
        self._listener = self._store = None


_CLOSED_HERE = "its program closed the rendezvous"


@naming_parameters(OF_A_HANDLER)
def create_handler_from(params: RendezvousParameters) -> CoordinatorRendezvousHandler:
    """Return the handler of `--rdzv-backend tcp`.

    The keys of `params` are those of docs/rendezvous.md.

    Raises ParameterError, and UsageError for names and numbers that no job can have.
    """
    return CoordinatorRendezvousHandler(read_parameters(params), params.backend)


class StaticRendezvousHandler(CoordinatorRendezvousHandler):
    """A handler with fixed ranks: `--node-rank K` of a fixed number of nodes.

    The node of rank 0 hosts the coordinator at the endpoint. Unlike with torchrun's static
    rendezvous, the loss of a node or a restart on one node begins a new round of all nodes, under
    the same ranks, with a fresh store.
    """


class StaticTCPRendezvous(StaticRendezvousHandler):
    """A handler with fixed ranks, with torch's parameters.

    `timeout` is the join timeout in seconds; `config` has further keys of `RendezvousParameters`,
    such as `token`. Raises ParameterError.
    """

    def __init__(
        self,
        master_addr: str,
        master_port: int,
        rank: int,
        world_size: int,
        run_id: str,
        timeout: float,
        **config: Any,
    ) -> None:
        self.master_addr, self.master_port = master_addr, master_port
        self.rank, self.world_size, self.run_id = rank, world_size, run_id
        self.timeout = timedelta(seconds=timeout)
        where = str(Endpoint(master_addr, master_port))
        given = {"rank": rank, "join_timeout": timeout} | config
        super().__init__(
            _static_settings(
                RendezvousParameters("static", where, run_id, world_size, world_size, **given)
            ),
            "static",
        )


def create_static_handler_from(params: RendezvousParameters) -> StaticRendezvousHandler:
    """Return the handler of `--rdzv-backend static`, which needs the parameter `rank`.

    Its other parameters are those of the coordinator's handler. Raises ParameterError.
    """
    return StaticRendezvousHandler(_static_settings(params), params.backend)


create_rdzv_handler = create_static_handler_from
"""Torch's name of `create_static_handler_from`."""


@naming_parameters(OF_A_HANDLER)
def _static_settings(params: RendezvousParameters) -> CoordinatorSettings:
    rank = params.get_as_int("rank")
    if rank is None:
        raise ParameterError("the static rendezvous needs rank=K, from 0: every node its own")
    if params.min_nodes != params.max_nodes:
        raise ParameterError(
            f"min_nodes={params.min_nodes}, max_nodes={params.max_nodes}: the static rendezvous "
            "needs a fixed number of nodes"
        )
    if not 0 <= rank < params.max_nodes:
        raise ParameterError(f"rank={rank}: needs 0..{params.max_nodes - 1}")
    where = Endpoint(*parse_rendezvous_endpoint(params.endpoint, DEFAULT_STATIC_PORT))
    config = {"is_host": rank == 0, "node_id": id_of_rank(rank)} | params.config
    del config["rank"]
    settings = read_parameters(
        RendezvousParameters(
            params.backend,
            str(where),
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            **config,
        )
    )
    return replace(settings, config=replace(settings.config, static=True, node_rank=rank))
