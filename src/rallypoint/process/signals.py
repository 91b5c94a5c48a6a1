"""Signal dispositions across a fork, and SIGCHLD shared by all waits for children.

Signals that the parent handles are blocked from before the fork until the child has set its own
dispositions. Otherwise a signal in between would run the parent's handler in the child, and wake
the parent's event loop through the shared wake-up descriptor. Other signals need no block.

An event loop has one handler per signal, so that of SIGCHLD is shared.

The prepared process loads this by its path, so it needs the standard library alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

    Handler = Callable[[int, FrameType | None], None]

# What Python itself ignores: its programs expect BrokenPipeError and OSError instead of death.
IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})

_FAULTS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
_FAULTS |= {signal.SIGSYS, signal.SIGTRAP}
_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
_REFUSED_BY_NOBODY = {signal.SIGKILL, signal.SIGSTOP}
SENT_TO_EVERYBODY = frozenset(
    set(signal.valid_signals()) - _FAULTS - _HARMLESS - _REFUSED_BY_NOBODY - IGNORED_BY_PYTHON
)
"""The signals that schedulers, shells and people may send to every process of a job, to end or stop
it. Slurm sends any signal that its user names, systemd that of `KillSignal=`. A process that serves
an agent ends with its agent, and not by these: the guard notes them, and others ignore them."""


def handled_signals() -> list[signal.Signals | int]:
    """Return the signals with a handler here, which have to be blocked across a fork.

    An ignored signal is left alone, because blocking would keep it for the child, which may not
    ignore it.
    """
    return [number for number in changed_signals() if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def blocked(signals: Iterable[signal.Signals | int]) -> Iterator[None]:
    """Block these signals in this thread; pending ones are delivered at the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def keep_dispositions() -> Iterator[None]:
    """Restore signal handlers and the wake-up descriptor at the end of the block.

    For the main thread.
    """
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    wakeup_fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup_fd)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_fd)


def _is_over(number: int, frame: FrameType | None) -> None:
    """Ignore a signal: the job has ended, and its exit code is decided."""


def hold_late_signals(signals: Iterable[signal.Signals | int]) -> None:
    """Ignore these signals from now on, except within `late_signals_interrupt`."""
    for number in signals:
        signal.signal(number, _is_over)


@contextmanager
def late_signals_interrupt() -> Iterator[None]:
    """Have the first signal of those of `hold_late_signals` raise KeyboardInterrupt in the block.

    Later ones, and those after the block, are ignored. For the main thread.
    """
    held = [number for number in signal.valid_signals() if signal.getsignal(number) is _is_over]

    def interrupt(number: int, frame: FrameType | None) -> None:
        hold_late_signals(held)
        raise KeyboardInterrupt

    for number in held:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        hold_late_signals(held)


@contextmanager
def hold_what_handlers_raise(on_error: Callable[[BaseException], None]) -> Iterator[None]:
    """Pass exceptions of the program's own signal handlers to `on_error`.

    Otherwise they would interrupt any code, for example a callback of an event loop, which would
    treat them as its own. For the main thread. Handlers that are set within the block are not
    concerned.
    """

    def holding(handler: Callable[[int, FrameType | None], object]) -> Handler:
        def run(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                on_error(error)

        return run

    held: dict[int, tuple[Handler, Handler]] = {}
    for number in signal.valid_signals():
        before = signal.getsignal(number)
        if callable(before) and number not in _REFUSED_BY_NOBODY:
            held[number] = before, holding(before)
            signal.signal(number, held[number][1])
    try:
        yield
    finally:
        for changed, (theirs, ours) in held.items():
            if signal.getsignal(changed) is ours:
                signal.signal(changed, theirs)


def changed_signals() -> list[signal.Signals | int]:
    """Return the signals whose disposition is not the default, even if foreign C code set it."""
    return [
        number for number in signal.valid_signals() if signal.getsignal(number) != signal.SIG_DFL
    ]


def reset_in_child(changed: Iterable[signal.Signals | int], ignored: frozenset[int]) -> None:
    """Set defaults for `changed`, SIG_IGN for `ignored`, and an empty mask, in a forked child."""
    signal.set_wakeup_fd(-1)
    for number in changed:
        if number not in ignored:
            signal.signal(number, signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def keep_exit_statuses() -> None:
    """Undo an inherited SIG_IGN of SIGCHLD, under which the kernel drops exit statuses."""
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def hold_early_signals() -> None:
    """Block the signals of `SENT_TO_EVERYBODY` in PID 1 of a container, until `release_signals`.

    The kernel drops a signal that a first process does not handle yet. Any other process is left
    alone: such a signal ends it, as it should.
    """
    if os.getpid() == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_EVERYBODY)


def release_signals() -> None:
    """Deliver the signals that `hold_early_signals` has blocked, now that handlers are in place.

    May be called again.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_EVERYBODY)


_subscribers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = (
    WeakKeyDictionary()
)


def subscribe(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` in the loop after children changed state; returns the function to end this.

    One call may stand for many children: look at all. The loop must run in the main thread, else
    RuntimeError is raised.
    """
    callbacks = _subscribers.setdefault(loop, [])
    if not callbacks:
        loop.add_signal_handler(signal.SIGCHLD, _notify, callbacks)
    callbacks.append(callback)
    return partial(_unsubscribe, loop, callback)


def _notify(callbacks: list[Callable[[], None]]) -> None:
    for callback in tuple(callbacks):
        callback()


def _unsubscribe(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    callbacks = _subscribers.get(loop, [])
    if callback not in callbacks:
        return
    callbacks.remove(callback)
    if not callbacks and not loop.is_closed():
        loop.remove_signal_handler(signal.SIGCHLD)
