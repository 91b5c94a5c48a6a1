"""People who want something of a simulated job: a checkpoint, another round, its end, or that a
node leaves it. They speak to the coordinator as the commands of `rallypoint` do, from a machine of
their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from msgspec import json
from tests.simulator.coordinators import Simulated
from tests.simulator.loop import MachineClock, new_loop
from tests.simulator.machines import PORT

from rallypoint.coordinator.connection import dial
from rallypoint.core import messages as m
from rallypoint.core.watch.questions import Subject
from rallypoint.errors import RallypointError
from rallypoint.wire.address import Address

PERSON = "person"
WISHES = {
    "checkpoint": Subject.CHECKPOINT,
    "restart": Subject.RESTART,
    "cancel": Subject.CANCEL,
    "drain": Subject.DRAIN,
}
LEAVES_ALREADY = "is leaving already"


class People:
    """All of them, in one process that never ends."""

    def __init__(
        self, shared: Simulated, clock: MachineClock, on_drain: Callable[[str], None]
    ) -> None:
        """`on_drain`: called with a node's id when a person was told that it will be asked."""
        self._shared, self._on_drain = shared, on_drain
        crashed = shared.observer.crashed
        self._waiting: dict[asyncio.Task[None], tuple[str, str]] = {}
        """The answer that each person waits for, and the machine that was asked."""
        self._loop = new_loop(shared.schedule, clock, shared.network, PERSON, crashed)

    def want(self, kind: str, host: str, node_id: str) -> None:
        """Ask the coordinator on this machine for it, and wait for what it says."""
        wish = m.Ask(WISHES[kind], nodes=(node_id,) if node_id else ())
        task = self._loop.run(lambda: self._loop.create_task(self._ask(host, wish)))
        self._waiting[task] = f"{kind} {node_id}".rstrip(), host
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        task.exception()
        del self._waiting[task]

    def waiting(self, hosts: Collection[str]) -> list[str]:
        """The answers that people wait for from coordinators on these machines."""
        return [what for what, host in self._waiting.values() if host in hosts]

    def discard(self) -> None:
        """At the very end of the simulation."""
        self._loop.discard()

    async def _ask(self, host: str, wish: m.Ask) -> None:
        address = Address(host, PORT)
        try:
            connection = await dial((address,), self._shared.settings.run_id, None)
        except RallypointError:
            return

        def answered(answer: m.ToAgent) -> None:
            if isinstance(answer, m.Answer) and answer.is_last:
                connection.close()
            if wish.subject is Subject.DRAIN and isinstance(answer, m.Answer) and answer.piece:
                said = json.decode(answer.piece, type=m.DrainAnswer)
                if said.found and not said.done and LEAVES_ALREADY not in said.text:
                    self._on_drain(wish.node)

        connection.listen(answered)
        connection.send(wish)
        await connection.lost
