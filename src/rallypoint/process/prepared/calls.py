"""Calls on their way to function workers, each in a file in memory: see `bootstrap`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence

from rallypoint.config import FunctionCall
from rallypoint.errors import UnguardedLaunchError, UsageError
from rallypoint.process.prepared.result_files import memory_file

BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap.py")


class PickledCall:
    """A call as a worker reads it: the caller's preparation, then the function and its arguments.

    `fds` are copies of the descriptors in the arguments. All stay open for the restarts to come,
    until `close`, or for as long as this object lives.
    """

    def __init__(self, fd: int, fds: Sequence[int]) -> None:
        self.fd, self.fds = fd, tuple(fds)
        self._is_open = True

    def close(self) -> None:
        """Safe to repeat."""
        if self._is_open:
            self._is_open = False
            for fd in (self.fd, *self.fds):
                os.close(fd)

    def __del__(self) -> None:
        self.close()


def pickle_calls(call: FunctionCall) -> list[PickledCall]:
    """Each worker's call, by local rank. Who has the same arguments as the one before shares its
    call: they may be large.

    Raises UsageError when the function or an argument can't be pickled; then none is open. Raises
    UnguardedLaunchError in a worker that is about to find its own function.
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
    """This interpreter with this process's options (-X, -W, -O ..), its streams unbuffered."""
    from multiprocessing.spawn import get_command_line

    command = [os.fsdecode(word) for word in get_command_line()]
    return [*command[: command.index("-c")], "-u"]


def bootstrap_argv(
    call: PickledCall, result_fd: int, title: str
) -> tuple[list[str], tuple[int, ...]]:
    """What to exec, and the descriptors to pass, for a worker that makes this call. The title is
    only there to be seen in `ps -f`."""
    fds = ",".join(map(str, call.fds))
    argv = [*interpreter_command(), BOOTSTRAP, str(call.fd), str(result_fd), fds, title]
    return argv, (call.fd, result_fd, *call.fds)


class _Inheritance:
    """What a pickler of `multiprocessing` asks for while a child is being made."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    def DupFd(self, place: int) -> object:  # noqa: N802  # Its name in multiprocessing.
        from rallypoint.process.prepared.inherited_fds import InheritedFd

        return InheritedFd(place)


def _pickle(call: FunctionCall, local_rank: int, args: tuple[object, ...]) -> PickledCall:
    from multiprocessing import context, spawn
    from multiprocessing.reduction import ForkingPickler

    inheritance = _Inheritance()
    context.set_spawning_popen(inheritance)  # type: ignore[arg-type]
    try:
        preparation = spawn.get_preparation_data("worker")
        content = [pickle.dumps(preparation)]
        try:
            content.append(bytes(ForkingPickler.dumps((call.function, args))))
        except Exception as error:
            raise _cant_pickle(call, local_rank, error) from error
        fd = memory_file("rallypoint-call")
    except BaseException:
        for held in inheritance.fds:
            os.close(held)
        raise
    finally:
        context.set_spawning_popen(None)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.writelines(content)
    return PickledCall(fd, inheritance.fds)


def _cant_pickle(call: FunctionCall, local_rank: int, error: Exception) -> UsageError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    if not _can_pickle(call.function):
        return UsageError(
            f"the function {call.name} can't be given to a worker: {reason}: "
            "define it at the top level of a module, or use the start method fork"
        )
    return UsageError(
        f"the arguments of {call.name} for local rank {local_rank} can't be given to a worker: "
        f"{reason}: pass what can be pickled, or use the start method fork"
    )


def _can_pickle(function: Callable[..., object]) -> bool:
    try:
        pickle.dumps(function)
    except Exception:
        return False
    return True
