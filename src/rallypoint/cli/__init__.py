"""The commands.

A command imports this module first. From here on Ctrl-C ends its process at once, until the
command handles signals itself or wants exceptions. Python would raise KeyboardInterrupt within an
import, and show a useless traceback, or within native code that can't take it. Therefore this
module imports nothing that lies in a file, not even `__future__`.
"""

import _signal  # type: ignore[import-not-found]  # What `signal` imports takes milliseconds.
import os
import sys

_SIGINT = 2
_MODULES = frozenset({"rallypoint.__main__", "rallypoint.elastic.run"})
"""The modules by which `python -m` starts a command."""


def is_a_command() -> bool:
    """Return whether this process runs a command of Rallypoint, not a program that imports it."""
    main = sys.modules.get("__main__")
    if (spec := getattr(main, "__spec__", None)) is not None:
        return spec.name in _MODULES
    return os.path.basename(getattr(main, "__file__", None) or "") == "rallypoint"


def _end_at_interrupts() -> bool:
    """Have SIGINT end a command's process, and return whether that was changed.

    Process 1 of a container blocks SIGINT instead, and True is returned as well. A shell may have
    started this process so that it ignores SIGINT; then it still does.
    """
    if _signal.getsignal(_SIGINT) is not _signal.default_int_handler or not is_a_command():
        return False
    if os.getpid() == 1:  # The kernel would drop it.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_SIGINT,))
    else:
        _signal.signal(_SIGINT, _signal.SIG_DFL)
    return True


def raise_interrupts() -> None:
    """Have Ctrl-C raise KeyboardInterrupt in a command's process again, from now on.

    A process that ignores or handles SIGINT by itself is left as it is.
    """
    if _WAS_CHANGED and _signal.getsignal(_SIGINT) in (
        _signal.SIG_DFL,
        _signal.default_int_handler,
    ):
        _signal.signal(_SIGINT, _signal.default_int_handler)
        if os.getpid() == 1:
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_SIGINT,))


try:
    _WAS_CHANGED = _end_at_interrupts()
except KeyboardInterrupt:  # It came just before.
    _signal.signal(_SIGINT, _signal.SIG_DFL)
    _signal.raise_signal(_SIGINT)
