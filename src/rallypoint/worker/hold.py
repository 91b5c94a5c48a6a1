"""SIGTERM is held back for a worker that asks whether the job wants a checkpoint.

Schedulers send it to every process of a job at once. The agent then asks for the checkpoint; a
worker that has no handler of its own would be dead by then. So it gets one that does nothing while
the round goes on and the agent lives. When the agent wants to end such a worker it sends SIGKILL,
as the slot of the shared memory tells it: a handler never runs while a collective waits.
"""

from __future__ import annotations

# What `signal` wraps, at a tenth of the cost: the handler is asked for at every step.
import _signal  # type: ignore[import-not-found]
import os

from rallypoint.wire import shm_words as at
from rallypoint.worker.shm import Shm, may_hold_sigterm

SIGTERM = _signal.SIGTERM
getsignal = _signal.getsignal
_tried = False
_words: memoryview | None = None
"""The shared memory, while SIGTERM is held back."""


def look(shm: Shm) -> object:
    """Hold SIGTERM back, once, and tell the agent who handles it now; returns its handler.

    For a process with a slot. Whatever handler the program has, or sets later, is left alone. Where
    handlers can't be set, in another thread than the first, what is returned handles nothing.
    """
    global _tried
    assert shm.slot is not None
    if not _tried:
        try:
            _try_to_hold(shm.words)
        except ValueError:
            return None
        _tried = True
    handler = getsignal(SIGTERM)
    shm.slot[at.HOLDS] = handler is _ignore
    return handler


def _try_to_hold(words: memoryview) -> None:
    global _words
    if words[at.AGENT] and may_hold_sigterm() and getsignal(SIGTERM) == _signal.SIG_DFL:
        _words = words
        _signal.signal(SIGTERM, _ignore)
        _signal.siginterrupt(SIGTERM, False)  # No system call of any library fails because of it.


def _ignore(number: int, _frame: object) -> None:
    assert _words is not None
    if _words[at.CURRENT] != 1 or not _lives(_words[at.AGENT]):
        _signal.signal(number, _signal.SIG_DFL)
        _signal.raise_signal(number)


def _lives(pid: int) -> bool:
    """Not by /proc: where that is mounted with hidepid an agent, which hides, is not in it."""
    try:
        os.getpgid(pid)
    except OSError:
        return False
    return True


def _forget() -> None:
    """A process that is forked ends by SIGTERM, as its parent's program expects."""
    global _tried
    _tried = False
    if getsignal(SIGTERM) is _ignore:
        _signal.signal(SIGTERM, _signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
