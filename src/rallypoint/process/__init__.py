"""Processes of one node, in the vocabulary of torch's `elastic.multiprocessing`.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.config import AffinityMode, NumaOptions
    from rallypoint.errors import ChildFailedError, SignalException
    from rallypoint.process.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from rallypoint.process.process_context import PContext, RunProcsResult
    from rallypoint.process.process_failure import ProcessFailure
    from rallypoint.process.redirects import redirect_stderr, redirect_stdout
    from rallypoint.process.start_processes import start_processes
    from rallypoint.process.std_map import Std, to_map
    from rallypoint.process.tail_log import TailLog
    from rallypoint.worker.error_file import ErrorHandler, get_error_handler, record

__all__ = [
    "AffinityMode",
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ErrorHandler",
    "LogsDest",
    "LogsSpecs",
    "PContext",
    "NumaOptions",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "TailLog",
    "get_error_handler",
    "record",
    "redirect_stderr",
    "redirect_stdout",
    "start_processes",
    "to_map",
]

_MODULES = {
    "AffinityMode": "rallypoint.config",
    "ChildFailedError": "rallypoint.errors",
    "DefaultLogsSpecs": "rallypoint.process.logs_specs",
    "ErrorHandler": "rallypoint.worker.error_file",
    "LogsDest": "rallypoint.process.logs_specs",
    "LogsSpecs": "rallypoint.process.logs_specs",
    "PContext": "rallypoint.process.process_context",
    "NumaOptions": "rallypoint.config",
    "ProcessFailure": "rallypoint.process.process_failure",
    "RunProcsResult": "rallypoint.process.process_context",
    "SignalException": "rallypoint.errors",
    "Std": "rallypoint.process.std_map",
    "TailLog": "rallypoint.process.tail_log",
    "get_error_handler": "rallypoint.worker.error_file",
    "record": "rallypoint.worker.error_file",
    "redirect_stderr": "rallypoint.process.redirects",
    "redirect_stdout": "rallypoint.process.redirects",
    "start_processes": "rallypoint.process.start_processes",
    "to_map": "rallypoint.process.std_map",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
