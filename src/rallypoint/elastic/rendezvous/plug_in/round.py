"""A round of agents whose nodes use a rendezvous handler: what they exchange, what may happen to an
agent, and what must be done about it.

The handler says which nodes take part and in which order. Each node puts its info into the round's
store; from all infos every node computes the same stamp and its own assignment.

`handler_job.py` has the machine; what the agent reports and is ordered is in `messages.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TypeVar

import msgspec
from msgspec import Struct

from rallypoint.core import limits
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Assignment, Candidate, EndReason, NodeRef, Stamp, Verdict
from rallypoint.core.ranks import Participant, worker_ranks
from rallypoint.errors import MessageError, RendezvousStateError

VERDICT_KEY = "rallypoint/verdict"
END_KEY = "rallypoint/end"
"""Set by a node that ends its round: why."""


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
    except (msgspec.DecodeError, MessageError, UnicodeDecodeError, RecursionError) as error:
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
    except (msgspec.DecodeError, MessageError, UnicodeDecodeError, RecursionError):
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


class HandlerChange(Enum):
    """What a handler says of the round."""

    NONE = auto()
    OVER = auto()
    CLOSED = auto()


class HandlerRoundFormed(Struct, frozen=True):
    """The handler has formed a round, whose nodes have exchanged their infos (in rank order)."""

    rank: int
    nodes: tuple[NodeInfo, ...]
    why: str
    """Why the last round ended, as far as the handler knows."""


class NoRound(Enum):
    """Why this node is in no round."""

    NOT_NEEDED = auto()
    CLOSED = auto()
    TIMED_OUT = auto()
    FAILED = auto()
    """The handler, or the store of its round."""


class NextRoundFailed(Struct, frozen=True):
    """The rendezvous ended without a round."""

    kind: NoRound
    text: str
    verdict: Verdict | None = None
    """Which another node has published."""


class RoundWatched(Struct, frozen=True):
    """The handler was asked, and if anything has changed also the round's store."""

    stamp: Stamp
    change: HandlerChange
    all_succeeded: bool = False
    verdict: Verdict | None = None
    """Which another node has published."""
    reason: EndReason | None = None
    """Why the round is over."""


class WatchFailed(Struct, frozen=True):
    """The handler could not be asked."""

    stamp: Stamp
    text: str


class AllSucceeded(Struct, frozen=True):
    """Every node has reported that its workers succeeded."""

    stamp: Stamp


class VerdictPublished(Struct, frozen=True):
    """The job is closed, and `verdict` the first that any node has published."""

    verdict: Verdict
    report: m.Cancel | None
    error: str = ""
    """Why the job could not be closed."""


class StopIsSlow(Struct, frozen=True):
    """Some time has passed since a worker failed."""

    stamp: Stamp


class PublishIsSlow(Struct, frozen=True):
    """Some time has passed since this node's workers stopped."""


class ChargeExpired(Struct, frozen=True):
    """A restart counts no more."""

    entry: str


class SessionEnds(Struct, frozen=True):
    """The agent needs the handler no more."""


HandlerEvent = (
    m.Report
    | HandlerRoundFormed
    | NextRoundFailed
    | RoundWatched
    | WatchFailed
    | AllSucceeded
    | VerdictPublished
    | StopIsSlow
    | PublishIsSlow
    | ChargeExpired
    | SessionEnds
)


class OrderAgent(Struct, frozen=True):
    """Give the agent this message, after the step that it is in."""

    message: m.Order | m.HeartbeatAck


class Acknowledge(Struct, frozen=True):
    """Tell the agent that this report of its was heard, after the step that it is in."""

    report: m.Report


class JoinNextRound(Struct, frozen=True):
    """Tell the other nodes of the last round `reason`, if there is one; wait; then ask
    the handler for the next one. Answer with `HandlerRoundFormed` or `NextRoundFailed`."""

    info: NodeInfo
    reason: EndReason | None = None
    after_s: float = 0.0


class WatchRound(Struct, frozen=True):
    """After a pause, ask the handler of the round, and answer with `RoundWatched` or
    `WatchFailed`."""

    stamp: Stamp
    after_s: float = 0.0


class AwaitSuccess(Struct, frozen=True):
    """Tell the other nodes that this one has succeeded. When all have, answer `AllSucceeded`."""

    stamp: Stamp


class DropCalls(Struct, frozen=True):
    """Nothing waits for `JoinNextRound`, `WatchRound` and `AwaitSuccess` any more: they get no
    answer."""


class PublishVerdict(Struct, frozen=True):
    """Tell the other nodes the verdict, close the job, and answer with `VerdictPublished`."""

    verdict: Verdict
    report: m.Cancel | None = None


class RoundTimer(Struct, frozen=True):
    """Answer with `event` after so long."""

    length_s: float
    event: StopIsSlow | PublishIsSlow | ChargeExpired


class GiveUpHandler(Struct, frozen=True):
    """Tell the agent that the handler is lost."""

    text: str


class LeaveJob(Struct, frozen=True):
    """Let the handler go; the job goes on."""


class CloseJob(Struct, frozen=True):
    """Let the handler go; the job has ended.

    `let_others_read`: before, wait until the others need the store of rank 0 no more.
    """

    let_others_read: bool


HandlerEffect = (
    OrderAgent
    | Acknowledge
    | Record
    | JoinNextRound
    | WatchRound
    | AwaitSuccess
    | DropCalls
    | PublishVerdict
    | RoundTimer
    | GiveUpHandler
    | LeaveJob
    | CloseJob
)
"""What must be done; a `Record` is shown to people."""
