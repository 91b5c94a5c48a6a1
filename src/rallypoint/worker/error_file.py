"""A worker's last words to its agent: the error file.

`record` writes the exception that ends a program to the file that TORCHELASTIC_ERROR_FILE names, in
torch's form, so that either launcher reads what either decorator wrote:

    {"message": {"message": "ValueError: bad loss",
                 "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}

The first failure is the one that matters, and what fails because of it must not replace it: a file
is written whole, under its name only if that is free, and left read-only. Links are replaced, never
followed. Nothing that goes wrong here hides the exception that was to be told.
"""

from __future__ import annotations

import functools
import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ParamSpec, TypeVar

from rallypoint.errors import ChildFailedError, FailedProcess
from rallypoint.files import safe_open

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
# In characters, so that a file stays below the 1 MiB that an agent reads, however it is escaped.
_MESSAGE_MAX, _CALLSTACK_MAX = 16_000, 48_000

P = ParamSpec("P")
R = TypeVar("R")


class ErrorHandler:
    """The error handler that `record` calls. Override its methods to change what it does."""

    _fn_name: str | None = None

    def initialize(self) -> None:
        """Prepare for the function, before it is called.

        Has Python write the stacks of all threads to stderr at a fatal signal; if that fails (a
        closed stderr), a warning is logged.
        """
        import faulthandler

        try:
            faulthandler.enable(all_threads=True)
        except Exception as error:
            _warn(f"no stacks will be written at a fatal signal: {error}")

    def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
        """Set the qualified name of the function, before it is called; None if it has none."""
        self._fn_name = fn_name

    def record_exception(self, e: BaseException) -> None:
        """Write the exception to the error file, unless an earlier failure is recorded there.

        Without an error file it is logged instead (level INFO, because Python prints it anyway).
        """
        data = {
            "message": {
                "message": _clip(_headline(e), _MESSAGE_MAX),
                "extraInfo": {
                    "py_callstack": _traceback_text(e)[-_CALLSTACK_MAX:],
                    "timestamp": str(int(time.time())),
                },
            }
        }
        path = os.environ.get(ERROR_FILE_VARIABLE)
        if path:
            _try_to_write(path, data, replace=False)
        else:
            _log(20, f"{ERROR_FILE_VARIABLE} is not set: {json.dumps(data)}")

    def record_success(self) -> None:
        """Do nothing: called after a function that returned."""

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """Return the log message about a process that a signal ended.

        Called with its error file, when it is the first cause in a `ChildFailedError` that the
        function raised. The result is logged if it differs from `message`; the error keeps its
        message. This method adds nothing.
        """
        return message

    def override_error_code_in_rootcause_data(
        self,
        rootcause_error_file: str,
        rootcause_error: dict[str, Any],
        error_code: int = 0,
    ) -> None:
        """Put the exit code into the content of a failed process's error file, in place.

        The short form, whose `message` is a text, has no place for it.
        """
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        elif message is None:
            _warn(f"{rootcause_error_file} has no message: its error code {error_code} is not kept")

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy the error file of the process that failed first to this process's error file.

        Its exit code, unless that is 0, is added. An earlier failure in this process's file stays.
        Nothing is written when the source can't be read. If this process has no error file, the
        content is logged.
        """
        try:
            with open(rootcause_error_file, "rb") as file:
                data = json.loads(file.read())
        except (OSError, ValueError, RecursionError) as error:
            _warn(f"the error file {rootcause_error_file!r} can't be read: {error}")
            return
        if not isinstance(data, dict):
            _warn(f"the error file {rootcause_error_file!r} holds no object")
            return
        self.dump_error_data(rootcause_error_file, data, error_code)

    def dump_error_data(
        self, rootcause_error_file: str, data: dict[str, Any], error_code: int = 0
    ) -> None:
        """Write this content of a failed process's error file to this process's error file.

        For a file that is gone or elsewhere; otherwise as `dump_error_file`.
        """
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        path = os.environ.get(ERROR_FILE_VARIABLE)
        if path:
            # A child that inherited our variable has written there already.
            _try_to_write(path, data, replace=_is_same(path, rootcause_error_file))
        else:
            _log(40, f"{ERROR_FILE_VARIABLE} is not set: {json.dumps(data)}")


def get_error_handler() -> ErrorHandler:
    """Return a new `ErrorHandler`."""
    return ErrorHandler()


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Decorate the main function of a program: what it raises is told to the agent, and raised.

    What is written, by what the function raises:

    * an `Exception`: message, traceback and time;
    * a `ChildFailedError`: what the process that failed first has told, and its exit code;
    * `SystemExit(0)`: nothing; the wrapper returns None, so that the caller may go on;
    * any other `SystemExit`: nothing. It is an end that the program chose, not a defect: the exit
      code tells it, and a text is printed on stderr by Python, where the agent reads it;
    * `KeyboardInterrupt`: nothing: whoever interrupts knows.

    Use it once per process. Outside a launcher there is no error file, and what would be written
    there is logged.
    """
    handler = error_handler or get_error_handler()
    name: str | None = getattr(fn, "__qualname__", None)

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        handler.set_entrypoint_fn_name(name)
        handler.initialize()
        try:
            result = fn(*args, **kwargs)
        except SystemExit as error:
            if error.code == 0:
                return None
            raise
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0:
                _log_enriched(handler, str(failure.message), failure.error_file)
            if not pass_on(handler, failure):
                _log(20, f"rank {rank} left no error file to pass on")
            raise
        except Exception as error:
            handler.record_exception(error)
            raise
        # After the block: what goes wrong in it is no failure of the function.
        handler.record_success()
        return result

    return wrapper


def error_file_asked_for() -> bool:
    """Return whether the parent process wants an error file."""
    return bool(os.environ.get(ERROR_FILE_VARIABLE))


def pass_on(handler: ErrorHandler, failure: FailedProcess) -> bool:
    """Copy a failed process's error into this process's error file; False if it left none."""
    data = failure.error_file_data
    if os.path.isfile(failure.error_file):
        handler.dump_error_file(failure.error_file, failure.exitcode)
    elif data.get("message", "<NONE>") != "<NONE>":
        handler.dump_error_data(failure.error_file, deepcopy(data), failure.exitcode)
    else:
        return False
    return True


def _log_enriched(handler: ErrorHandler, message: str, error_file: str) -> None:
    try:
        enriched = handler.maybe_enrich_signal_failure_message(message, error_file)
    except Exception as error:
        _warn(f"nothing could be added to {message!r}: {_headline(error)}")
        return
    if enriched != message:
        _log(40, enriched)


def _headline(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: <its text can't be made>"


def _traceback_text(error: BaseException) -> str:
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # Our own frames tell nothing of the fault.
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        return _headline(error)


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _try_to_write(path: str, data: Mapping[str, Any], *, replace: bool) -> None:
    try:
        _write(path, json.dumps(data).encode(), replace)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        _warn(f"the error file {path!r} can't be written: {why}")


def _write(path: str, content: bytes, replace: bool) -> None:
    """Write a complete, read-only file under this name at once.

    Unless `replace`, an earlier failure there stays.
    """
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = safe_open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        _put_under(path, draft, replace)
    except BaseException:
        try:
            os.unlink(draft)
        except FileNotFoundError:
            pass
        raise


def _put_under(path: str, draft: str, replace: bool) -> None:
    if not replace and (kept := _told_there(path)):
        os.unlink(draft)
        _log(20, f"{path} describes an earlier failure, which is kept: {kept}")
        return
    if replace or os.path.lexists(path):
        os.replace(draft, path)  # A link, or what is not ours: replaced itself, not followed.
        return
    try:
        os.link(draft, path)  # Of two that fail at once, the first wins.
    except FileExistsError:
        os.unlink(draft)
    except OSError:
        os.replace(draft, path)  # A file system without hard links.
    else:
        os.unlink(draft)


def _told_there(path: str) -> str:
    """Return the beginning of an earlier failure in the file; empty if there is none."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o222 or not status.st_size:
            return ""
        with open(path, errors="replace") as file:
            return file.read(200)
    except OSError:
        return ""


def _warn(text: str) -> None:
    _log(30, text)


def _log(level: int, text: str) -> None:
    import logging

    logger = logging.getLogger("rallypoint.worker")
    try:
        if logger.hasHandlers():
            logger.log(level, text)
            return
    except Exception:
        level = logging.WARNING  # It is shown in any case.
    if level >= logging.WARNING:
        from rallypoint.observe.printing import print_error

        print_error("rallypoint", text)
