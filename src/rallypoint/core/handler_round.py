"""A round of agents whose nodes meet by a handler: what they exchange, and what follows from it.

The handler says which nodes take part and in which order. Each node puts its info into the round's
store; from all infos every node computes the same stamp and its own assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from rallypoint.core import limits
from rallypoint.core.model import Assignment, Candidate, EndReason, NodeRef, Stamp, Verdict
from rallypoint.core.ranks import Participant, worker_ranks
from rallypoint.errors import MessageError, RendezvousStateError

VERDICT_KEY = "rallypoint/verdict"
END_KEY = "rallypoint/end"
"""Set by a node that ends its round: why."""
NOT_NEEDED = "this node was not needed"
"""How the verdict of a node begins whose handler says that the job goes on without it."""


class NodeInfo(Struct, frozen=True):
    """What one node brings to a round."""

    node_id: str
    workers: int
    role: str
    incarnation: int
    """Of the job as far as this node knows; a node that was in no round proposes one."""
    last_round: int
    """The last round in which this node took part; -1: none."""
    restarts: int
    """What this agent has spent of its budget."""
    address: str = ""
    port: int = 0
    """Where the workers' store listens; set by the node of rank 0."""
    secret: bytes = b""
    """With which the nodes enrol with that store; empty if it is the handler's own."""


_S = TypeVar("_S", bound=Struct)
_infos = msgspec.msgpack.Decoder(NodeInfo)
_verdicts = msgspec.msgpack.Decoder(Verdict)
_reasons = msgspec.msgpack.Decoder(EndReason)


def node_key(rank: int) -> str:
    """Where the info of this node is."""
    return f"rallypoint/node/{rank}"


def done_key(rank: int) -> str:
    """Set when all workers of a node have succeeded."""
    return f"rallypoint/done/{rank}"


def left_key(rank: int) -> str:
    """Set when a node needs the round's store no more."""
    return f"rallypoint/left/{rank}"


def encode(value: NodeInfo | Verdict | EndReason) -> bytes:
    """The value of a key."""
    return msgspec.msgpack.encode(limits.fit(value, sentence=limits.MAX_SENTENCE))


def decode_info(value: bytes) -> NodeInfo:
    """Raises RendezvousStateError."""
    try:
        info = _infos.decode(value)
        limits.check(info)
    except (msgspec.DecodeError, MessageError, UnicodeDecodeError) as error:
        raise RendezvousStateError(
            f"the store of the rendezvous holds no node info of a rallypoint agent: {error}"
        ) from error
    return info


def decode_verdict(value: bytes) -> Verdict | None:
    """None for anything else."""
    return _decode(_verdicts, value)


def decode_reason(value: bytes) -> EndReason | None:
    """None for anything else."""
    return _decode(_reasons, value)


def _decode(decoder: msgspec.msgpack.Decoder[_S], value: bytes) -> _S | None:
    try:
        decoded = decoder.decode(value)
        limits.check(decoded, sentence=limits.MAX_SENTENCE)
    except (msgspec.DecodeError, MessageError, UnicodeDecodeError):
        return None
    return decoded


def next_stamp(infos: Sequence[NodeInfo]) -> Stamp:
    """The stamp of the round that these nodes form: above all that any of them has seen.

    The node that has seen most knows the job's incarnation; of several the highest counts.
    """
    eldest = max(infos, key=lambda info: (info.last_round, info.incarnation))
    return Stamp(eldest.incarnation, eldest.last_round + 1)


def assign(infos: Sequence[NodeInfo], rank: int, why: str) -> Assignment:
    """The part of the node of this rank. O(N).

    The restart count is the most that an agent of the round has spent.
    """
    participants = [
        Participant(
            NodeRef(info.node_id, ""), Candidate(info.workers, info.role, info.address, info.port)
        )
        for info in infos
    ]
    ranks = worker_ranks(participants)[rank]
    return Assignment(
        round=next_stamp(infos).round,
        group_rank=rank,
        group_world_size=len(infos),
        base_rank=ranks.base_rank,
        world_size=sum(info.workers for info in infos),
        base_role_rank=ranks.base_role_rank,
        role_world_size=ranks.role_world_size,
        master_addr=infos[0].address,
        master_port=infos[0].port,
        restart_count=max(info.restarts for info in infos),
        why=why,
        enrol=len(infos) > 1 and bool(infos[0].secret),
    )
