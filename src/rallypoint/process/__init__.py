"""Processes of one node, in the vocabulary of torch's `elastic.multiprocessing`.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.errors import ChildFailedError
    from rallypoint.process.process_failure import ProcessFailure
    from rallypoint.process.streams import Std
    from rallypoint.worker.error_file import ErrorHandler, get_error_handler, record

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "ProcessFailure",
    "Std",
    "get_error_handler",
    "record",
]

_MODULES = {
    "ChildFailedError": "rallypoint.errors",
    "ErrorHandler": "rallypoint.worker.error_file",
    "ProcessFailure": "rallypoint.process.process_failure",
    "Std": "rallypoint.process.streams",
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
