"""Processes of one node, in the vocabulary of torch's `elastic.multiprocessing`."""

from __future__ import annotations

from rallypoint.config import (
    AffinityMode as AffinityMode,
)
from rallypoint.config import (
    NumaOptions as NumaOptions,
)
from rallypoint.elastic.multiprocessing.failure import (
    ProcessFailure as ProcessFailure,
)
from rallypoint.elastic.multiprocessing.follow import (
    TailLog as TailLog,
)
from rallypoint.elastic.multiprocessing.follow import (
    redirect as redirect,
)
from rallypoint.elastic.multiprocessing.follow import (
    redirect_stderr as redirect_stderr,
)
from rallypoint.elastic.multiprocessing.follow import (
    redirect_stdout as redirect_stdout,
)
from rallypoint.elastic.multiprocessing.processes import (
    MultiprocessContext as MultiprocessContext,
)
from rallypoint.elastic.multiprocessing.processes import (
    PContext as PContext,
)
from rallypoint.elastic.multiprocessing.processes import (
    SubprocessContext as SubprocessContext,
)
from rallypoint.elastic.multiprocessing.processes import (
    start_processes as start_processes,
)
from rallypoint.elastic.multiprocessing.supervision import (
    RunProcsResult as RunProcsResult,
)
from rallypoint.errors import (
    ChildFailedError as ChildFailedError,
)
from rallypoint.errors import (
    SignalException as SignalException,
)
from rallypoint.process.logs.plan import (
    Std as Std,
)
from rallypoint.process.logs.plan import (
    to_map as to_map,
)
from rallypoint.process.logs.specs import (
    DefaultLogsSpecs as DefaultLogsSpecs,
)
from rallypoint.process.logs.specs import (
    LogsDest as LogsDest,
)
from rallypoint.process.logs.specs import (
    LogsSpecs as LogsSpecs,
)
from rallypoint.worker.error_file import (
    ErrorHandler as ErrorHandler,
)
from rallypoint.worker.error_file import (
    get_error_handler as get_error_handler,
)
from rallypoint.worker.error_file import (
    record as record,
)

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
