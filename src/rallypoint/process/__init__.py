"""Processes of one node, in the vocabulary of torch's `elastic.multiprocessing`.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.config import AffinityMode, NumaOptions
    from rallypoint.errors import ChildFailedError, SignalException
    from rallypoint.process.logs.follow import TailLog, redirect, redirect_stderr, redirect_stdout
    from rallypoint.process.logs.plan import Std, to_map
    from rallypoint.process.logs.specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from rallypoint.process.process_failure import ProcessFailure
    from rallypoint.process.processes import (
        MultiprocessContext,
        PContext,
        SubprocessContext,
        start_processes,
    )
    from rallypoint.process.supervision import RunProcsResult
    from rallypoint.worker.error_file import ErrorHandler, get_error_handler, record

__all__ = [
    "AffinityMode",
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ErrorHandler",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "NumaOptions",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "TailLog",
    "get_error_handler",
    "record",
    "redirect",
    "redirect_stderr",
    "redirect_stdout",
    "start_processes",
    "to_map",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        "rallypoint.config": ("AffinityMode", "NumaOptions"),
        "rallypoint.errors": ("ChildFailedError", "SignalException"),
        ".logs.follow": ("TailLog", "redirect", "redirect_stderr", "redirect_stdout"),
        ".logs.plan": ("Std", "to_map"),
        ".logs.specs": ("DefaultLogsSpecs", "LogsDest", "LogsSpecs"),
        ".process_failure": ("ProcessFailure",),
        ".processes": ("MultiprocessContext", "PContext", "SubprocessContext", "start_processes"),
        ".supervision": ("RunProcsResult",),
        "rallypoint.worker.error_file": ("ErrorHandler", "get_error_handler", "record"),
    },
)
