"""The transport of calls to function workers (see `bootstrap`), and of their results.

Each call and each result has a file in memory. So a worker leaves a result of any size and exits;
nothing of it passes through the agent's loop. Only memory limits it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rallypoint.errors import UnguardedLaunchError, UsageError

if TYPE_CHECKING:
    from rallypoint.config import FunctionCall

BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap.py")


class PickledCall:
    """A pickled call for a worker: the caller's preparation, then the function and its arguments.

    `fd` is the file in memory that holds it, `fds` are copies of the descriptors in the arguments.
    They stay open for later restarts, until `close`, or for the life of this object.
    """

    def __init__(self, fd: int, fds: Sequence[int]) -> None:
        self.fd, self.fds = fd, tuple(fds)
        self._is_open = True

    def close(self) -> None:
        """Close the descriptors. May be repeated."""
        if self._is_open:
            self._is_open = False
            for fd in (self.fd, *self.fds):
                os.close(fd)

    def __del__(self) -> None:
        self.close()


def pickle_calls(call: FunctionCall) -> list[PickledCall]:
    """Return each worker's call, by local rank.

    A worker whose arguments are the same object as those of the one before shares its call: they
    may be large.

    Raises UsageError when the function or an argument can't be pickled, and OSError when no
    descriptor is left; then no call stays open. Raises UnguardedLaunchError in a worker that is
    still importing the main module in which its own function is.
    """
    from multiprocessing import process

    if getattr(process.current_process(), "_inheriting", False):
        raise UnguardedLaunchError
    pickled: list[PickledCall] = []
    try:
        for local_rank, args in enumerate(call.args):
            same = local_rank > 0 and args is call.args[local_rank - 1]
            pickled.append(pickled[-1] if same else _pickle(call, local_rank, args))
    except BaseException:
        for one in pickled:
            one.close()
        raise
    return pickled


def interpreter_command() -> list[str]:
    """Return the command of this interpreter with this process's options.

    They are -X, -W, -O and the like; its streams are unbuffered.
    """
    from multiprocessing.spawn import get_command_line

    command = [os.fsdecode(word) for word in get_command_line()]
    return [*command[: command.index("-c")], "-u"]


def bootstrap_argv(
    call: PickledCall, result_fd: int, title: str
) -> tuple[list[str], tuple[int, ...]]:
    """Return the command and the descriptors of a worker that makes this call.

    The title is only for `ps -f`.
    """
    fds = ",".join(map(str, call.fds))
    argv = [*interpreter_command(), BOOTSTRAP, str(call.fd), str(result_fd), fds, title]
    return argv, (call.fd, result_fd, *call.fds)


class _Inheritance:
    """The interface that a pickler of `multiprocessing` needs while a child is being made."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    def DupFd(self, place: int) -> object:  # noqa: N802  # Its name in multiprocessing.
        return InheritedFd(place)


def _pickle(call: FunctionCall, local_rank: int, args: tuple[object, ...]) -> PickledCall:
    import pickle
    from multiprocessing import context, spawn

    inheritance = _Inheritance()
    context.set_spawning_popen(inheritance)  # type: ignore[arg-type]
    try:
        preparation = spawn.get_preparation_data("worker")
        if not os.path.exists(preparation.get("init_main_from_path", os.devnull)):
            del preparation["init_main_from_path"]  # A program that was read from a pipe.
        content = [pickle.dumps(preparation)]
        dumps = _dumps(imports_main=any(key.startswith("init_main") for key in preparation))
        try:
            content.append(bytes(dumps((call.function, args))))
        except Exception as error:
            raise _cant_pickle(call, local_rank, error, dumps) from error
        fd = _written(content)
    except BaseException:
        for held in inheritance.fds:
            os.close(held)
        raise
    finally:
        context.set_spawning_popen(None)
    return PickledCall(fd, inheritance.fds)


def _written(content: list[bytes]) -> int:
    """Return a new memory file with this content."""
    fd = memory_file("rallypoint-call")
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.writelines(content)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _dumps(*, imports_main: bool) -> Callable[[object], memoryview]:
    """Return the function that pickles as multiprocessing does.

    Unless workers import the main program, what refers to something that is defined there can't be
    unpickled, and raises PicklingError here.
    """
    import pickle
    from multiprocessing.reduction import ForkingPickler
    from types import FunctionType

    class WithoutMain(ForkingPickler):
        def reducer_override(self, value: object) -> Any:
            if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
                where = "is defined in a notebook or at a prompt, which workers can't import"
                raise pickle.PicklingError(f"{value.__qualname__} {where}")
            return NotImplemented

    return ForkingPickler.dumps if imports_main else WithoutMain.dumps


def _cant_pickle(
    call: FunctionCall, local_rank: int, error: Exception, dumps: Callable[[object], object]
) -> UsageError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    if not _can_pickle(call.function, dumps):
        return UsageError(
            f"the function {call.name} can't be given to a worker: {reason}: "
            "define it at the top level of a module, or use the start method fork"
        )
    return UsageError(
        f"the arguments of {call.name} for local rank {local_rank} can't be given to a worker: "
        f"{reason}: pass picklable values, or use the start method fork"
    )


def _can_pickle(function: Callable[..., object], dumps: Callable[[object], object]) -> bool:
    try:
        dumps(function)
    except Exception:
        return False
    return True


def memory_file(name: str) -> int:
    """Return the descriptor of a new anonymous file (close-on-exec, above 2)."""
    import fcntl

    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    if fd > 2:
        return fd
    raised = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return raised


class ResultFiles:
    """The results of a round's workers: `open` each, then `load` or `close` all.

    Unread results are dropped with this object.
    """

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def open(self, local_rank: int) -> int:
        """Return the descriptor for the result of this worker; the caller does not close it."""
        self._fds[local_rank] = memory_file("rallypoint-result")
        return self._fds[local_rank]

    def load(self) -> dict[int, object]:
        """Return the result of each worker, by local rank; None where it left nothing. Closes all.

        To be called when all have exited with code 0. Blocks for as long as unpickling takes.
        Raises UsageError for a result that can't be loaded here.
        """
        try:
            return {local_rank: _load(local_rank, fd) for local_rank, fd in self._fds.items()}
        finally:
            self.close()

    def close(self) -> None:
        """Close the files, and so drop results that were not loaded. May be repeated."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __del__(self) -> None:
        self.close()


def _load(local_rank: int, fd: int) -> object:
    import mmap
    import pickle

    if os.fstat(fd).st_size == 0:
        return None
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as content:
        try:
            result: object = pickle.loads(content)
        except Exception as error:
            raise UsageError(
                f"the result of local rank {local_rank} can't be unpickled here: {error}: "
                "return plain data, or import its class in this process too"
            ) from error
    return result


_of_this_worker: list[int] = []


class InheritedFd:
    """A descriptor in the arguments of a function (a shared tensor, a pipe, a queue).

    It stands for what `multiprocessing.reduction.DupFd` returns. Only its place in a list of
    descriptors is pickled; the worker gets the descriptors themselves.
    """

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """Return the descriptor in the worker; the caller then owns it."""
        return _of_this_worker[self._place]


def inherit(fds: list[int]) -> None:
    """Set the inherited descriptors in a worker, before its arguments are unpickled."""
    _of_this_worker[:] = fds
