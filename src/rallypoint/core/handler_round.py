"""A round of agents that met by a handler: what they tell each other, and what follows from it.

A handler says who is there and in which order of nodes. Each node puts one card into the round's
store; from all cards every node computes the same stamp and its own assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from rallypoint.core import limits
from rallypoint.core.model import Assignment, Candidate, EndReason, NodeRef, Stamp, Verdict
from rallypoint.core.ranks import Seat, worker_ranks
from rallypoint.errors import MessageError, RendezvousStateError

VERDICT_KEY = "rallypoint/verdict"
END_KEY = "rallypoint/end"
"""Set by a node that ends its round by itself: why."""
NOT_NEEDED = "this node was not needed"
"""How the verdict of a node begins that its handler has sent home."""


class NodeCard(Struct, frozen=True):
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
_cards = msgspec.msgpack.Decoder(NodeCard)
_verdicts = msgspec.msgpack.Decoder(Verdict)
_reasons = msgspec.msgpack.Decoder(EndReason)


def node_key(rank: int) -> str:
    """Where the card of a node is."""
    return f"rallypoint/node/{rank}"


def done_key(rank: int) -> str:
    """Set when all workers of a node have succeeded."""
    return f"rallypoint/done/{rank}"


def left_key(rank: int) -> str:
    """Set when a node needs the round's store no more."""
    return f"rallypoint/left/{rank}"


def encode(value: NodeCard | Verdict | EndReason) -> bytes:
    """The value of a key."""
    return msgspec.msgpack.encode(limits.fit(value, sentence=limits.MAX_SENTENCE))


def decode_card(value: bytes) -> NodeCard:
    """Raises RendezvousStateError."""
    try:
        card = _cards.decode(value)
        limits.check(card)
    except (msgspec.DecodeError, MessageError, UnicodeDecodeError) as error:
        raise RendezvousStateError(
            f"the store of the rendezvous holds no card of a rallypoint node: {error}"
        ) from error
    return card


def decode_verdict(value: bytes) -> Verdict | None:
    """None for what is none."""
    return _decode(_verdicts, value)


def decode_reason(value: bytes) -> EndReason | None:
    """None for what is none."""
    return _decode(_reasons, value)


def _decode(decoder: msgspec.msgpack.Decoder[_S], value: bytes) -> _S | None:
    try:
        told = decoder.decode(value)
        limits.check(told, sentence=limits.MAX_SENTENCE)
    except (msgspec.DecodeError, MessageError, UnicodeDecodeError):
        return None
    return told


def next_stamp(cards: Sequence[NodeCard]) -> Stamp:
    """The stamp of the round that these nodes form: above all that any of them has seen.

    The node that has seen most knows the job's incarnation; of several the highest counts.
    """
    eldest = max(cards, key=lambda card: (card.last_round, card.incarnation))
    return Stamp(eldest.incarnation, eldest.last_round + 1)


def assign(cards: Sequence[NodeCard], rank: int, why: str) -> Assignment:
    """The part of the node of this rank. O(N).

    The restart count is the most that an agent of the round has spent.
    """
    seats = [
        Seat(NodeRef(card.node_id, ""), Candidate(card.workers, card.role, card.address, card.port))
        for card in cards
    ]
    ranks = worker_ranks(seats)[rank]
    return Assignment(
        round=next_stamp(cards).round,
        group_rank=rank,
        group_world_size=len(cards),
        base_rank=ranks.base_rank,
        world_size=sum(card.workers for card in cards),
        base_role_rank=ranks.base_role_rank,
        role_world_size=ranks.role_world_size,
        master_addr=cards[0].address,
        master_port=cards[0].port,
        restart_count=max(card.restarts for card in cards),
        why=why,
        enrol=len(cards) > 1 and bool(cards[0].secret),
    )
