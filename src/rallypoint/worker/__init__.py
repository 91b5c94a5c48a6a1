"""For the programs that are launched: what a worker tells its agent, and learns from it.

Needs the standard library only. Importing this package imports nothing else; a name is imported
when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.worker.error_file import ErrorHandler, get_error_handler, record

__all__ = ["ErrorHandler", "get_error_handler", "record"]

_MODULES = {
    "ErrorHandler": "rallypoint.worker.error_file",
    "get_error_handler": "rallypoint.worker.error_file",
    "record": "rallypoint.worker.error_file",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
