"""The exchange of job state between the nodes of a handler's round. Pure.

Before the coordinator of the round begins, each node publishes in the round's store all that it
knows of the job, and the address of the coordinator.

A node that hosted the coordinator of the last round has the whole record of the job. Others know
the number of the next round, the restarts and why the last round ended. The new coordinator starts
from the newest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import limits
from rallypoint.core.job_state import JobState
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.settings import MIN_SECONDS
from rallypoint.core.takeover.record import JobRecord, job_of, record_of
from rallypoint.core.takeover.record_limits import fault_of_job
from rallypoint.elastic.rendezvous.plug_in.part import NOWHERE, Part
from rallypoint.errors import MessageError, RendezvousStateError


class NodeInfo(Struct, frozen=True, array_like=True):
    """The data that one node publishes in the store of a handler's round, for the other nodes."""

    node_id: str
    record: JobRecord | None = None
    """The node's record of the job; None: it was in no round of the job."""
    addresses: tuple[str, ...] = ()
    """The addresses of the coordinator of this round; only the node of rank 0 has any."""
    secret: bytes = b""
    """The token for the coordinator of this round; only the node of rank 0 has one."""
    has_store: bool = False
    """Whether the workers of this round use the handler's own store; set by the node of rank 0."""


_infos = msgspec.msgpack.Decoder(NodeInfo)


def node_key(rank: int) -> str:
    """Return the key of this node's info in the round's store.

    Versions before the handler had a coordinator store another form of info under this key; the two
    versions refuse each other's.
    """
    return f"rallypoint/node/{rank}"


def encode(info: NodeInfo) -> bytes:
    """Encode the info for the round's store."""
    return msgspec.msgpack.encode(info)


def decode(value: bytes, rank: int) -> NodeInfo:
    """Decode the info of the node of this rank.

    Raises RendezvousStateError if it is not of this version of Rallypoint.
    """
    try:
        info = _infos.decode(value)
        fault = fault_of_job(info.record) if info.record is not None else ""
        limits.check(replace(info, record=None))
    except (msgspec.DecodeError, MessageError, UnicodeDecodeError, RecursionError) as error:
        fault = str(error)
    if fault:
        raise RendezvousStateError(
            f"the node of rank {rank} in the rendezvous handler's round does not run this version "
            f"of rallypoint: install the same on all nodes ({fault})"
        )
    return info


def record(part: Part, settings: SharedSettings, known: JobState | None) -> JobRecord | None:
    """Return this node's record of the job; None if it had no place in the job.

    `known` is the job state of the last round's coordinator, if that ran on this node.
    """
    if part.stamp == NOWHERE:
        return None
    number, restarts = part.stamp.round + 1, part.restarts
    if known is None:
        return JobRecord(
            settings,
            part.stamp.incarnation,
            number,
            judged_round=number,
            restarts=restarts,
            restarts_counted=tuple(range(1, restarts + 1)),
            end_reason=part.ended,
        )
    whole, ended = record_of(known), known.end_reason or known.last_end
    whole = replace(whole, is_active=False, verdict=None)
    return replace(whole, round=number, judged_round=number, end_reason=ended)


def newest(infos: Sequence[NodeInfo], settings: SharedSettings) -> JobState | None:
    """Return the newest job state of these nodes, with which the coordinator continues.

    Returns None if no node has a record of the job.
    """
    known = [info.record for info in infos if info.record is not None]
    newest = max(known, key=_age, default=None)
    return None if newest is None else job_of(replace(newest, settings=settings), Epoch(0, 0))


def _age(record: JobRecord) -> tuple[int, int, bool]:
    """Return a sort key for the age of a record: in one round, the coordinator host's is newest."""
    return record.round, record.incarnation, record.carried is not None


def for_nodes(settings: SharedSettings, count: int) -> SharedSettings:
    """Return the settings of the job in a round of exactly `count` nodes."""
    return replace(
        settings, min_nodes=count, max_nodes=count, last_call_s=MIN_SECONDS, world_multiple_of=1
    )
