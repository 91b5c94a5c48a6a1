"""The worker's side of a function worker: get the call, make it, send back what it returns.

Exec'd by its path, so that it starts where `rallypoint` is not in the interpreter's own path, and
imports the standard library only until the caller's path is in place. Everything of the user's is
imported here, in the worker, whose environment was there from the start.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(OWN_FOLDER)) + os.sep


def main() -> None:
    """Make the call of the command `bootstrap.py CALL_FD RESULT_FD FD,... TITLE`.

    `FD,...`, which may be empty, are the descriptors in the arguments of the function.
    """
    forget_own_folder()
    call_fd, result_fd, fds = sys.argv[1:4]
    inherited = [int(fd) for fd in fds.split(",") if fd]
    for fd in (int(call_fd), int(result_fd), *inherited):
        os.set_inheritable(fd, False)
    run_pickled_call(int(call_fd), int(result_fd), inherited)


def run_pickled_call(call_fd: int, result_fd: int, inherited: list[int]) -> None:
    """Make the call in a `calls.PickledCall`, and write its result to `result_fd`.

    Closes `call_fd`, and no other descriptor. An exception of the function, or of an import for it,
    is written to the error file, and raised. A launch during the import of the main module is
    written there too, and ends in SystemExit(1).
    """
    import io
    import pickle
    from multiprocessing import process

    content = io.BytesIO(_read(call_fd))
    os.close(call_fd)
    current = process.current_process()
    current._inheriting = True  # type: ignore[attr-defined]  # A launch from an import is refused.
    try:
        main_module = _prepare_paths(pickle.load(content))

        def load_and_call() -> None:
            try:
                import_main(main_module)
            except UnguardedLaunchError as error:  # All that a traceback would show is our way.
                from rallypoint.observe.printing import print_error
                from rallypoint.worker.error_file import ErrorHandler

                ErrorHandler().record_exception(error.with_traceback(None))
                print_error("rallypoint", str(error))
                raise SystemExit(1) from None
            function, args = _load(content)
            assert callable(function)
            del current._inheriting  # type: ignore[attr-defined]
            _call(function, args, result_fd)

        from rallypoint.errors import UnguardedLaunchError
        from rallypoint.process.prepared.calls import inherit

        inherit(inherited)
        _recorded(load_and_call)
    finally:
        current.__dict__.pop("_inheriting", None)


def prepare_from(call_fd: int) -> dict[str, object]:
    """Take over the sys.path and directory of a call's caller, and close `call_fd`.

    For a prepared process. Returns the data for `import_main`.
    """
    import io
    import pickle

    content = io.BytesIO(_read(call_fd))
    os.close(call_fd)
    return _prepare_paths(pickle.load(content))


def import_main(main_module: dict[str, object]) -> None:
    """Import the caller's main module, as `multiprocessing` does, unless it was imported before."""
    from multiprocessing import process, spawn

    current = process.current_process()
    outer = hasattr(current, "_inheriting")
    current._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(main_module)
    finally:
        if not outer:
            del current._inheriting  # type: ignore[attr-defined]


def run_call(
    function: Callable[..., object],
    args: tuple[object, ...],
    result_fd: int,
    environ: Mapping[str, str],
) -> None:
    """Call the function in this worker, a fork of its launcher; write the result to `result_fd`.

    The environment becomes `environ`. An exception is written to the error file, and raised.
    """
    from rallypoint.process import titles

    set_environ(environ)
    if {"RANK", "TORCHELASTIC_RUN_ID"} <= environ.keys():
        titles.overwrite([titles.of_worker(environ)])
    _recorded(lambda: _call(function, args, result_fd))


def run_command(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run a Python command line to its end in this worker, a fork of its launcher.

    The environment becomes `environ`, and the title the command line.
    """
    from rallypoint.process import titles
    from rallypoint.process.prepared import command_line

    set_environ(environ)
    titles.overwrite(argv)
    line = command_line.parse(argv)
    assert line is not None
    command_line.add_first_path(line)
    show_users_frames()
    command_line.run(line, argv)


def set_environ(environ: Mapping[str, str]) -> None:
    """Replace this process's environment by `environ`."""
    os.environ.clear()
    os.environ.update(environ)


def _recorded(body: Callable[[], None]) -> None:
    """Run `body`; write its exception to the error file, and raise it, without internal frames."""
    from rallypoint.worker.error_file import ErrorHandler, record

    class Handler(ErrorHandler):
        def record_exception(self, e: BaseException) -> None:
            super().record_exception(e.with_traceback(users_frames(e.__traceback__)))

    show_users_frames()
    record(body, Handler())()


def show_users_frames() -> None:
    """Have uncaught exceptions printed without the frames that led to the user's program."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        trace = users_frames(trace)
        usual(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the leading frames of ours and of the import system.

    All of it if nothing else remains.
    """
    inner = trace
    while inner is not None:
        name = inner.tb_frame.f_code.co_filename
        if not name.startswith((_PACKAGE, "<frozen ")):
            return inner
        inner = inner.tb_next
    return trace


def _prepare_paths(preparation: dict[str, object]) -> dict[str, object]:
    """Take over the caller's sys.path and directory; return the data about its main module."""
    from multiprocessing import spawn

    main_module: dict[str, object] = {
        name: preparation.pop(name)
        for name in ("init_main_from_name", "init_main_from_path")
        if name in preparation
    }
    spawn.prepare(preparation)
    return main_module


def _load(content: object) -> tuple[object, tuple[object, ...]]:
    import pickle

    try:
        function, args = pickle.load(content)  # type: ignore[arg-type]
    except (AttributeError, ImportError) as error:
        raise RuntimeError(
            f"the function can't be found in the worker: {error}. Define it at the top level of a "
            "file that can be imported, or use the start method fork"
        ) from error
    return function, args


def _call(function: Callable[..., object], args: tuple[object, ...], result_fd: int) -> None:
    worker = os.getpid()
    result = function(*args)
    if os.getpid() == worker:  # The function has forked, and this is its child: no worker.
        _leave_result(result_fd, function, result)


def _leave_result(result_fd: int, function: object, result: object) -> None:
    import pickle

    try:
        with os.fdopen(result_fd, "wb", buffering=1 << 20, closefd=False) as file:
            pickle.dump(result, file, protocol=pickle.HIGHEST_PROTOCOL)
    except OSError as error:
        raise OSError(f"{_what(function, result)} can't be handed over: {error}") from error
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        os.ftruncate(result_fd, 0)
        raise TypeError(
            f"{_what(function, result)} can't be pickled: {error}: return plain data"
        ) from error


def _what(function: object, result: object) -> str:
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"the result of {name} ({type(result).__qualname__})"


def _read(fd: int) -> bytes:
    """Read a whole file without moving its position, which other processes share."""
    size, chunks, offset = os.fstat(fd).st_size, [], 0
    while offset < size:
        chunks.append(os.pread(fd, size - offset, offset))
        offset += len(chunks[-1])
    return b"".join(chunks)


def forget_own_folder() -> None:
    """Remove this module's folder from sys.path, if it is the first one.

    Its file names must not shadow a module of the user's.
    """
    if sys.path and os.path.abspath(sys.path[0]) == OWN_FOLDER:
        del sys.path[0]


if __name__ == "__main__":
    main()
