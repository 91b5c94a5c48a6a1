"""The steps of a node's rendezvous, recorded as torch's `RdzvEvent`s.

A package's event handler `dynamic_rendezvous` gets them; see
`rallypoint.elastic.events.record_rdzv_event`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.elastic.rendezvous.api import RendezvousInfo


class Steps:
    """A recorder of the steps of one rendezvous handler, for a package's handler of events.

    `source` is the file and the class in torch's form:
    `dynamic_rendezvous.py:DynamicRendezvousHandler`.
    """

    def __init__(self, source: str, run_id: str, node: str = "") -> None:
        self._source, self._run_id = source, run_id
        self._node = node or f"{socket.gethostname()}_{os.getpid()}"

    def attempts(self) -> None:
        """Record that the node is about to join."""
        self._says("next_rendezvous", "RUNNING", "attempts to join the next round of")

    def joined(self, info: RendezvousInfo) -> None:
        """Record that a round was agreed on; on rank 0, also that the round is complete."""
        place = f"as rank {info.rank} in a world of size {info.world_size}"
        self._says("next_rendezvous", "RUNNING", "has joined a round of", f" {place}", info.rank)
        if info.rank == 0:
            self._says("next_rendezvous", "SUCCEEDED", "completed the round of", rank=0)

    def closed(self, call: str) -> None:
        """Record that the node has ended the job."""
        self._says(call, "SUCCEEDED", "has closed")

    @contextmanager
    def failing(self, call: str) -> Iterator[None]:
        """Record an exception of the block, with its traceback; it is raised all the same."""
        try:
            yield
        except Exception as error:
            self.record(call, "FAILED", f"{type(error).__name__}: {error}")
            raise

    def record(self, call: str, state: str, message: str, rank: int | None = None) -> None:
        """Record one step; does nothing unless a package provides the event handler."""
        from rallypoint.elastic.events import NodeState, construct_and_record_rdzv_event

        construct_and_record_rdzv_event(
            self._run_id,
            message,
            NodeState[state],
            f"{self._source}.{call}" if call else self._source,
            hostname=socket.gethostname(),
            rank=rank,
        )

    def _says(
        self, call: str, state: str, does: str, rest: str = "", rank: int | None = None
    ) -> None:
        text = f"The node {self._node!r} {does} the rendezvous {self._run_id!r}{rest}."
        self.record(call, state, text, rank)
