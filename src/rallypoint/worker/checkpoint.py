"""Requests for a checkpoint, and reports that it was saved.

Schedulers send SIGTERM to every process of a job at once. The agent then asks for a checkpoint; a
worker without a handler of its own would be dead by then. So a worker that calls these functions
gets a handler that does nothing while the round continues and the agent lives. To end such a worker
the agent sends SIGKILL, because the shared memory shows that it holds SIGTERM back: a Python
handler never runs while a collective waits.
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
"""The words of shared memory, once this process looks for requests there; None: not yet."""
_takes_wishes = False
"""Whether the agent knows that this worker saves when a person asks."""
_handler: object = None
"""The handler of SIGTERM that `_listen` saw last."""
_tried_to_hold = False
_held_words: memoryview | None = None
"""The words of shared memory, once this process has held SIGTERM back; None: it has not."""


def drain_requested() -> bool:
    """Return whether a node is about to leave the job, and a checkpoint is wanted first.

    Cheap enough for every step. Ranks learn of it at different moments, so agree on it before
    acting.
    """
    words = _words
    if words is None or getsignal(SIGTERM) is not _handler:
        words = _listen()
    return words is not None and words[_REQUEST] & _MASK == _DRAIN


def should_restart_at_checkpoint() -> bool:
    """Return whether the job would form a new round at the next checkpoint, for any reason.

    A node leaves, or new nodes wait to join. Otherwise as `drain_requested`.
    """
    words = _words
    if words is None or getsignal(SIGTERM) is not _handler:
        words = _listen()
    return words is not None and 0 < words[_REQUEST] & _MASK < _SAVE


def checkpoint_requested() -> bool:
    """Return whether a checkpoint is wanted now, for any reason.

    The job is about to form a new round, or a person asks for a checkpoint (`rallypoint
    checkpoint`) and the round continues. Otherwise as `drain_requested`. False again once this
    process has called `checkpoint_saved`.
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
    """Report that this worker has saved its part of a checkpoint, of this step if given.

    Returns True if the job waits for that: it then forms a new round, and the script may leave its
    loop (or continue until it is stopped). The report answers the requests that were made before
    the call.
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
    """Return False once this process's round has ended, or its node's lease is over.

    Other workers may have replaced it, so it must not overwrite their checkpoint. The answer is
    right even while the agent is paused. True where there is no shared memory, as outside of
    rallypoint.
    """
    found = shm()
    if found is None:
        return True
    held_until = found.words[at.HELD_UNTIL]
    in_time = held_until == 0 or clock_gettime_ns(CLOCK_BOOTTIME) < held_until
    return found.words[at.CURRENT] == 1 and in_time


def _listen() -> memoryview | None:
    """Return the words in which requests are read; None outside of rallypoint.

    If this process reports for its worker, also tells the agent that it reads them.
    """
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
    """Tell the agent that this worker also saves when a person asks."""
    global _takes_wishes
    found = own_shm()
    if found is None or found.slot is None:
        return
    _takes_wishes = True
    found.slot[at.LISTENS] = at.TAKES_WISHES
    found.notify("listens")


def _hold_sigterm(found: Shm) -> object:
    """Hold SIGTERM back, once; tell the agent whether it is held back; return the present handler.

    For a process with a slot. A handler that the program has, or sets later, is left alone. None
    outside the main thread, where handlers can't be set.
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
    """Return whether the process lives, without /proc, which may hide the agent (hidepid)."""
    try:
        os.getpgid(pid)
    except OSError:
        return False
    return True


def _forget() -> None:
    """Stop holding SIGTERM in a forked process, so that SIGTERM ends it."""
    global _words, _handler, _tried_to_hold, _takes_wishes
    _words = _handler = None
    _tried_to_hold = _takes_wishes = False
    if getsignal(SIGTERM) is _ignore:
        _signal.signal(SIGTERM, _signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
