"""Whether the job wants a checkpoint, and telling it that there is one."""

from __future__ import annotations

import os
from time import CLOCK_BOOTTIME, clock_gettime_ns

from rallypoint.wire import shm_words as at
from rallypoint.worker import hold
from rallypoint.worker.hold import SIGTERM, getsignal
from rallypoint.worker.shm import own_shm, shm

_REQUEST, _MASK, _DRAIN = at.REQUEST, at.KIND_MASK, at.DRAIN
_words: memoryview | None = None
"""The shared memory, once the agent knows that this worker listens."""
_handler: object = None
"""What handled SIGTERM when the agent was last told."""


def drain_requested() -> bool:
    """Whether a node is about to leave the job, and a checkpoint is wanted before. Cheap enough
    for every step; each rank learns it at a moment of its own, so agree on it before acting."""
    words = _words
    if words is None or getsignal(SIGTERM) is not _handler:
        words = _listen()
    return words is not None and words[_REQUEST] & _MASK == _DRAIN


def should_restart_at_checkpoint() -> bool:
    """Whether the job would re-form at the next checkpoint, for any reason: a node leaves, or new
    ones wait to take part. Otherwise as `drain_requested`."""
    words = _words
    if words is None or getsignal(SIGTERM) is not _handler:
        words = _listen()
    return words is not None and words[_REQUEST] & _MASK != 0


def checkpoint_saved(step: int | None = None) -> bool:
    """Tell that this worker has saved its part of a checkpoint, of this step if given.

    True when that is what the job waits for: it re-forms now, and the script may leave its loop (or
    go on until it is stopped). It is the answer to what has been asked for before this call.
    """
    found = own_shm()
    if found is None or found.slot is None:
        return False
    request = found.words[_REQUEST]
    asked = request & _MASK != at.NONE
    number = -1 if step is None else int(step)
    found.slot[at.CHECKPOINT] = number + 1 if 0 <= number < at.MAX_WORD else 0
    if asked:
        found.slot[at.ANSWERED] = request >> at.KIND_BITS
    found.notify("checkpoint")
    return asked


def is_current() -> bool:
    """False once the round of this process was ended, or the lease of its node is over: others may
    have taken its place, so that it must not overwrite their checkpoint. This is known here also
    while the agent is paused. True outside of rallypoint."""
    found = shm()
    if found is None:
        return True
    held_until = found.words[at.HELD_UNTIL]
    in_time = held_until == 0 or clock_gettime_ns(CLOCK_BOOTTIME) < held_until
    return found.words[at.CURRENT] == 1 and in_time


def _listen() -> memoryview | None:
    """What there is to read. Where this process speaks for its worker, the agent learns of it."""
    global _words, _handler
    found = shm()
    if found is None:
        return None
    if found.slot is None:
        _handler = getsignal(SIGTERM)
    else:
        _handler = hold.look(found)
        if _words is None:
            found.slot[at.LISTENS] = 1
            found.notify("listens")
    _words = found.words
    return _words


def _forget() -> None:
    global _words, _handler
    _words = _handler = None


os.register_at_fork(after_in_child=_forget)
