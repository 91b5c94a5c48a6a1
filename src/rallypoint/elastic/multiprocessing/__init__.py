"""Processes of one node, in the vocabulary of torch's `elastic.multiprocessing`."""

from __future__ import annotations

from rallypoint.config import AffinityMode as AffinityMode, NumaOptions as NumaOptions
from rallypoint.elastic.multiprocessing.api import (
    DefaultLogsSpecs as DefaultLogsSpecs,
    LogsDest as LogsDest,
    LogsSpecs as LogsSpecs,
    MultiprocessContext as MultiprocessContext,
    PContext as PContext,
    RunProcsResult as RunProcsResult,
    SignalException as SignalException,
    Std as Std,
    SubprocessContext as SubprocessContext,
    start_processes as start_processes,
    to_map as to_map,
)
from rallypoint.elastic.multiprocessing.errors import (
    ChildFailedError as ChildFailedError,
    ErrorHandler as ErrorHandler,
    ProcessFailure as ProcessFailure,
    get_error_handler as get_error_handler,
    record as record,
)
from rallypoint.elastic.multiprocessing.redirects import (
    redirect as redirect,
    redirect_stderr as redirect_stderr,
    redirect_stdout as redirect_stdout,
)
from rallypoint.elastic.multiprocessing.tail_log import TailLog as TailLog
