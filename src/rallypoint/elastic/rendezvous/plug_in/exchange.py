"""The exchange of job state between the nodes of a handler's round.

Pure.

Before the coordinator of the round begins, each node publishes in the round's store all that it
knows of the job, and where the coordinator is.

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
    """The contribution of one node to a round."""

    node_id: str
    record: JobRecord | None = None
    """All that it knows of the job; None: it was in no round of it."""
    addresses: tuple[str, ...] = ()
    """Where the coordinator of this round listens: of the node of rank 0 alone."""
    secret: bytes = b""
    """The token of the job there."""
    has_store: bool = False
    """The handler has a store for the workers of this round."""


_infos = msgspec.msgpack.Decoder(NodeInfo)


def node_key(rank: int) -> str:
    """Return where the info of this node is.

    Agents that had no coordinator have another form of info there, and neither version takes the
    other's.
    """
    return f"rallypoint/node/{rank}"


def encode(info: NodeInfo) -> bytes:
    """Return the value of a key."""
    return msgspec.msgpack.encode(info)


def decode(value: bytes, rank: int) -> NodeInfo:
    """Decode the info of the node of a rank. Raises RendezvousStateError."""
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
    """Return all that this node knows of the job; None: it had no place in it.

    `known`: the job at the coordinator of the last round, if that has lived here.
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
    """Note that a record of a host comes after those of nodes that know as many rounds."""
    return record.round, record.incarnation, record.carried is not None


def for_nodes(settings: SharedSettings, count: int) -> SharedSettings:
    """Return the settings of the job in a round of exactly `count` nodes."""
    return replace(
        settings, min_nodes=count, max_nodes=count, last_call_s=MIN_SECONDS, world_multiple_of=1
    )
