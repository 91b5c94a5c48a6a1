"""Whether the job wants a checkpoint, and telling it that there is one.

Schedulers send SIGTERM to every process of a job at once. The agent then asks for a checkpoint; a
worker that has no handler of its own would be dead by then. So a worker that asks here gets one
that does nothing while the round goes on and the agent lives. When the agent wants to end such a
worker it sends SIGKILL, as the slot of the shared memory tells it: a handler never runs while a
collective waits.
"""

from __future__ import annotations

# What `signal` wraps, at a tenth of the cost: the handler is asked for at every step.
import _signal  # type: ignore[import-not-found]
import os
from time import CLOCK_BOOTTIME, clock_gettime_ns

from rallypoint.wire import shm_words as at
from rallypoint.worker.shm import Shm, may_hold_sigterm, own_shm, shm

SIGTERM = _signal.SIGTERM
getsignal = _signal.getsignal
_REQUEST, _MASK, _DRAIN, _SAVE = at.REQUEST, at.KIND_MASK, at.DRAIN, at.SAVE
_words: memoryview | None = None
"""The shared memory, once the agent knows that this worker listens."""
_takes_wishes = False
"""The agent knows that this worker saves when a person asks for it."""
_handler: object = None
"""The handler of SIGTERM that the agent was informed of last."""
_tried_to_hold = False
_held_words: memoryview | None = None
"""The shared memory, while SIGTERM is held back."""


def drain_requested() -> bool:
    """Return whether a node is about to leave the job, and a checkpoint is wanted before.

    Cheap enough for every step; each rank learns it at a moment of its own, so agree on it before
    acting.
    """
    words = _words
    if words is None or getsignal(SIGTERM) is not _handler:
        words = _listen()
    return words is not None and words[_REQUEST] & _MASK == _DRAIN


def should_restart_at_checkpoint() -> bool:
    """Return whether the job would re-form at the next checkpoint.

    For any reason: a node leaves, or new ones wait to take part. Otherwise as `drain_requested`.
    """
    words = _words
    if words is None or getsignal(SIGTERM) is not _handler:
        words = _listen()
    return words is not None and 0 < words[_REQUEST] & _MASK < _SAVE


def checkpoint_requested() -> bool:
    """Return whether a checkpoint is wanted now, for any reason.

    The job is about to re-form, or a person asks for one (`rallypoint checkpoint`) and the round
    goes on. Otherwise as `drain_requested`. False again once this process has called
    `checkpoint_saved`.
    """
    words = _words
    if words is None or getsignal(SIGTERM) is not _handler:
        words = _listen()
    if not _takes_wishes:
        _take_wishes()
    if words is None or not words[_REQUEST] & _MASK:
        return False
    found = own_shm()
    slot = None if found is None else found.slot
    return slot is None or slot[at.ANSWERED] != words[_REQUEST] >> at.KIND_BITS


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
    return asked and request & _MASK != at.SAVE


def is_current() -> bool:
    """Return False once the round of this process was ended, or its node's lease is over.

    Others may have taken its place, so that it must not overwrite their checkpoint. This is known
    here also while the agent is paused. True outside of rallypoint.
    """
    found = shm()
    if found is None:
        return True
    held_until = found.words[at.HELD_UNTIL]
    in_time = held_until == 0 or clock_gettime_ns(CLOCK_BOOTTIME) < held_until
    return found.words[at.CURRENT] == 1 and in_time


def _listen() -> memoryview | None:
    """Return the words to read. The agent learns of it, if this process speaks for its worker."""
    global _words, _handler
    found = shm()
    if found is None:
        return None
    if found.slot is None:
        _handler = getsignal(SIGTERM)
    else:
        _handler = _hold_sigterm(found)
        if _words is None:
            found.slot[at.LISTENS] = 1
            found.notify("listens")
    _words = found.words
    return _words


def _take_wishes() -> None:
    """Tell the agent that this worker also saves when a person asks for it."""
    global _takes_wishes
    found = own_shm()
    if found is None or found.slot is None:
        return
    _takes_wishes = True
    found.slot[at.LISTENS] = at.TAKES_WISHES
    found.notify("listens")


def _hold_sigterm(found: Shm) -> object:
    """Hold SIGTERM back, once, and tell the agent who handles it now; returns its handler.

    For a process with a slot. Whatever handler the program has, or sets later, is left alone. Where
    handlers can't be set, in another thread than the first, what is returned handles nothing.
    """
    global _tried_to_hold
    assert found.slot is not None
    if not _tried_to_hold:
        try:
            _try_to_hold(found.words)
        except ValueError:
            return None
        _tried_to_hold = True
    handler = getsignal(SIGTERM)
    found.slot[at.HOLDS] = handler is _ignore
    return handler


def _try_to_hold(words: memoryview) -> None:
    global _held_words
    if words[at.AGENT] and may_hold_sigterm() and getsignal(SIGTERM) == _signal.SIG_DFL:
        _held_words = words
        _signal.signal(SIGTERM, _ignore)
        _signal.siginterrupt(SIGTERM, False)  # No system call of any library fails because of it.


def _ignore(number: int, _frame: object) -> None:
    assert _held_words is not None
    if _held_words[at.CURRENT] != 1 or not _lives(_held_words[at.AGENT]):
        _signal.signal(number, _signal.SIG_DFL)
        _signal.raise_signal(number)


def _lives(pid: int) -> bool:
    """Look without /proc: if that is mounted with hidepid, an agent, which hides, is not in it."""
    try:
        os.getpgid(pid)
    except OSError:
        return False
    return True


def _forget() -> None:
    """Forget the hold in a forked process.

    It ends by SIGTERM, as its parent's program expects.
    """
    global _words, _handler, _tried_to_hold, _takes_wishes
    _words = _handler = None
    _tried_to_hold = _takes_wishes = False
    if getsignal(SIGTERM) is _ignore:
        _signal.signal(SIGTERM, _signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
