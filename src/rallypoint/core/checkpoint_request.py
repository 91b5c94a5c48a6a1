"""One node's part of a last call for a checkpoint: when it may answer. Pure.

A job that knows nothing of this must not wait for it: a node on which no worker listens answers at
once. Else it answers when each worker that listens has saved its checkpoint, or has ended well. For
a growth, which nobody needs to wait for, only a checkpoint that was really saved counts.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from msgspec import Struct

from rallypoint.core.model import EndKind, Stamp
from rallypoint.core.worker_exits import WorkerExit


class Request(Struct, frozen=True):
    """What the coordinator asks for."""

    stamp: Stamp
    number: int
    kind: EndKind
    reason: str
    left_s: float | None
    """None: there is no hurry."""


class Answer(Struct, frozen=True):
    """What this node says to it."""

    listens: bool
    failed: bool


class RequestState(Struct):
    """The workers of one round, and what they are asked."""

    stamp: Stamp
    workers: int
    request: Request | None = None
    all_asked: bool = False
    """Every worker has got a signal that asks for the checkpoint."""
    told: Answer | None = None


def asked(state: RequestState, request: Request, *, by_signal: bool) -> bool:
    """A new question, or one that was heard before; False when it is not for these workers."""
    if request.stamp != state.stamp or request == state.request:
        return False
    if state.request is not None and request.number <= state.request.number:
        return False
    state.request, state.told = request, None
    state.all_asked = by_signal and request.kind is EndKind.DRAIN
    return True


def withdrawn(state: RequestState, number: int) -> bool:
    """Nobody waits for it any more; False when something newer is asked."""
    if state.request is None or state.request.number != number:
        return False
    state.request = None
    return True


def answer(
    state: RequestState, listeners: Set[int], saved: Set[int], exits: Collection[WorkerExit]
) -> Answer | None:
    """What to say now; None: nothing yet, or nothing new. `exits`: of the round's workers.

    Who began to listen late may still be asked for a growth, which waits for a real checkpoint.
    """
    if state.request is None:
        return None
    awaited = frozenset(range(state.workers)) if state.all_asked else frozenset(listeners)
    ended_well = {exit_.local_rank for exit_ in exits if exit_.code == 0}
    failed = len(ended_well) < len(exits)
    if awaited - saved - ended_well and not failed:
        return None
    grows = state.request.kind is EndKind.GROWTH
    found = Answer(bool(awaited & saved if grows else awaited), failed)
    may_change = grows and not (state.told and state.told.listens)
    if state.told is not None and not (may_change and found.listens):
        return None
    state.told = found
    return found
