"""The round machine as a shared store without logic hosts it (behaviour F5). Pure.

The whole state is one value in the store. A host loads it, applies an event, and stores the
result if no other node has stored another one meanwhile; else it loads again and applies the *same
event* to the fresh state. Nothing is ever merged by hand. That works because every event is safe
to apply twice and void when what it was about has passed.

There is no ledger here, so a round that has ended is released as soon as all have stopped. A node
that is not in the state is not part of the job, whatever it believes: its events are void, but for
a new join.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from rallypoint.core import limits
from rallypoint.core.events import (
    Effect,
    FormWorld,
    JobClosed,
    NodeJoined,
    NodeLost,
    RoundEvent,
    RoundReleased,
    RoundSettled,
    StopRound,
)
from rallypoint.core.model import Candidate, EndReason, NodeRef, SharedSettings
from rallypoint.core.round import NEVER_AGAIN, step
from rallypoint.core.round_state import RoundPhase, RoundState
from rallypoint.core.text import settings_conflict
from rallypoint.errors import MessageError, RendezvousGracefulExitError, RendezvousStateError

MAGIC = b"\x00rallypoint-round\x00"
SCHEMA = 3
"""The version of the state's encoding; a state of another version is refused."""
REMEMBERED = 256
"""The largest number of departed agents that are remembered, to ignore their late joins. It is
limited because the state is sent to all nodes."""
_SHOWN_BYTES = 24
_DIGEST_BYTES = 8


class SharedState(Struct, array_like=True):
    """The state of a job, which is one value in a shared store."""

    job: str
    """A random name of this run of the job; a later run under the same key has another one."""
    version: int
    """The version of the value, which grows with every change of it."""
    writer: str
    """A random value for each write, which tells apart two writers of otherwise equal values."""
    round: RoundState
    beats: dict[str, int]
    """The heartbeat counters by node id, where the store has no place for counters."""
    bootstrap: tuple[str, int] = ("", 0)
    """The address and port of the round's own store, on the node of rank 0."""
    taken: int = 0
    """The number of the last join request that was processed."""
    why: str = ""
    """The reason why the job is closed, one sentence; empty if it is not."""
    ended: EndReason | None = None
    """The reason why the last round ended; None if none has."""


def new_state(settings: SharedSettings, job: str, writer: str, own_request: int = 0) -> SharedState:
    """Return the state of a job without nodes.

    `own_request` is the number of the join request of the node that makes the state. Earlier
    requests may be of nodes that died with an earlier life of the job, so they are ignored; live
    nodes write new ones.
    """
    taken = max(own_request - 1, 0)
    return SharedState(job, 0, writer, RoundState(settings), {}, taken=taken)


def apply(shared: SharedState, event: RoundEvent, writer: str) -> list[Effect]:
    """Apply one event and its consequences to the state; return the effects for the caller.

    Store the state only if it was loaded for this event; after a failed write it must be discarded.
    """
    effects = step(shared.round, event)
    for effect in effects:
        match effect:
            case RoundSettled(round_):
                effects += step(shared.round, RoundReleased(round_))  # the loop handles these too
            case FormWorld(_, world):
                shared.bootstrap = (world[0].candidate.address, world[0].candidate.store_port)
            case StopRound(_, reason):
                shared.ended = reason
            case _:
                pass
    if isinstance(event, JobClosed):
        shared.why = shared.why or "closed"
    _forget_departed(shared)
    shared.version += 1
    shared.writer = writer
    return effects


class JoinRequest(Struct, frozen=True, array_like=True):
    """A node's request to join the job; the node that writes the state next processes it."""

    ref: NodeRef
    seq: int
    candidate: Candidate
    settings: bytes
    """The fingerprint of the requesting node's settings."""


def fingerprint(settings: SharedSettings) -> bytes:
    """Return a short hash of the settings, to detect differences."""
    return hashlib.blake2s(_encoder.encode(settings), digest_size=8).digest()


def encode_join_request(event: NodeJoined) -> bytes:
    """Encode a join request. The node's heartbeat counter has to be stored before the request."""
    request = JoinRequest(event.ref, event.seq, event.candidate, fingerprint(event.settings))
    return _encoder.encode(request)


def take_join_requests(
    shared: SharedState, requests: Sequence[bytes | None], writer: str, *, skip_gap: bool
) -> int:
    """Add the nodes of `requests`, those after the last processed one; return how many were taken.

    It ends at a request that is not there yet (None), unless `skip_gap` is set. The writer of a
    skipped one finds that it is not a member, and writes another. An unreadable request, or one
    with different settings, counts as taken and is ignored.
    """
    taken = 0
    settings, own = shared.round.settings, fingerprint(shared.round.settings)
    for data in requests:
        if data is None:
            if not skip_gap:
                break
        elif (request := _decode_request(data)) is not None and request.settings == own:
            apply(shared, NodeJoined(request.ref, request.seq, request.candidate, settings), writer)
        taken += 1
    shared.taken += taken
    if taken and shared.writer != writer:  # None of them has joined.
        shared.version += 1
        shared.writer = writer
    return taken


def _decode_request(data: bytes) -> JoinRequest | None:
    try:
        request = _request_decoder.decode(data)
        limits.check(request)
    except (msgspec.MsgspecError, MessageError, UnicodeDecodeError, RecursionError):
        return None
    return request


def join_refused(shared: SharedState, ref: NodeRef, settings: SharedSettings) -> Exception | None:
    """Return the error if this node can never join, else None."""
    if differences := shared.round.settings.differences(settings):
        return settings_conflict(differences)
    last_seq, member = (
        shared.round.departed.get(ref.incarnation),
        shared.round.members.get(ref.node_id),
    )
    replaced = last_seq is not None and member is not None and member.ref != ref
    if replaced or last_seq == NEVER_AGAIN:
        return RendezvousGracefulExitError(f"another agent has joined as node {ref}")
    return None


def close(shared: SharedState, why: str, writer: str) -> None:
    """Close the job, for all nodes and for good."""
    if shared.round.phase is not RoundPhase.CLOSED:
        shared.why = why
    apply(shared, JobClosed(), writer)


def lose(
    shared: SharedState, suspect: NodeRef, beat: int, why: str, writer: str
) -> list[Effect] | None:
    """Remove a node as lost, and return the effects.

    Returns None, and changes nothing, if it is no member, or the state has another value than
    `beat` as its counter.
    """
    if not is_member(shared, suspect) or shared.beats.get(suspect.node_id, beat) != beat:
        return None
    return apply(shared, NodeLost(suspect, why), writer)


def beat(shared: SharedState, ref: NodeRef, number: int, writer: str) -> bool:
    """Note a member's heartbeat counter in the state itself; return whether `ref` is a member.

    If it is not, nothing is changed.
    """
    if not is_member(shared, ref):
        return False
    shared.beats[ref.node_id] = number
    shared.version += 1
    shared.writer = writer
    return True


def is_member(shared: SharedState, ref: NodeRef) -> bool:
    """Return whether this incarnation of the node is part of the job."""
    member = shared.round.members.get(ref.node_id)
    return member is not None and member.ref == ref


def encode(shared: SharedState) -> bytes:
    """Encode the state for the store."""
    body = _encoder.encode(shared)
    return MAGIC + bytes((SCHEMA,)) + _digest(body) + body


def decode(value: bytes) -> SharedState:
    """Decode the state from the store's value.

    Raises RendezvousStateError, with what was found instead, for anything but a value of `encode`
    with the same schema.
    """
    header = len(MAGIC) + 1
    if not value.startswith(MAGIC) or len(value) < header:
        raise RendezvousStateError(
            f"the rendezvous state is not Rallypoint's: it has {len(value)} bytes and begins with "
            f"{bytes(value[:_SHOWN_BYTES])!r}. It was left as it is: "
            "use another run id, or delete it"
        )
    if value[len(MAGIC)] != SCHEMA:
        raise RendezvousStateError(
            f"the rendezvous state has version {value[len(MAGIC)]}, this node uses version "
            f"{SCHEMA}: install the same version of rallypoint on every node of the job"
        )
    body = memoryview(value)[header + _DIGEST_BYTES :]
    try:
        if value[header : header + _DIGEST_BYTES] != _digest(body):
            raise msgspec.DecodeError(f"its {len(value)} bytes are not those that were written")
        shared = _decoder.decode(body)
        # What workers and people are told of it; the rest is compared, not shown.
        (host, port), why = shared.bootstrap, shared.why
        known = not host or limits.is_host(host)
        if not known or not 0 <= port <= limits.MAX_PORT or len(why) > limits.MAX_SENTENCE:
            raise msgspec.DecodeError("a value in it is out of its limits")
        return shared
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RendezvousStateError(
            f"the rendezvous state is damaged ({error}); it was left as it is: "
            "use another run id, or delete it"
        ) from error


def _digest(body: bytes | memoryview) -> bytes:
    """Return a digest that detects damage, because a flipped bit may give another valid state."""
    return hashlib.blake2s(body, digest_size=_DIGEST_BYTES).digest()


def _forget_departed(shared: SharedState) -> None:
    departed, members = shared.round.departed, shared.round.members
    while len(departed) > REMEMBERED:
        del departed[next(iter(departed))]
    for node_id in [node_id for node_id in shared.beats if node_id not in members]:
        del shared.beats[node_id]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SharedState)
_request_decoder = msgspec.msgpack.Decoder(JoinRequest)
