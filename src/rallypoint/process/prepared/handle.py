"""The agent's handle of its prepared process: see `program`."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rallypoint.core.json_reader import UnreadableJsonError, read_object
from rallypoint.errors import InfrastructureError, UsageError
from rallypoint.process import signals, syscalls
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import (
    WorkerCommand,
    WorkerForkError,
    WorkerProcess,
    abandon,
    spawn_workers,
)

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")
FORK_TIMEOUT_S = 5.0
"""The time limit in seconds for each answer of the prepared process while it forks workers. One
that does not answer by then is replaced."""
KEPT_AT_ONE = ("OPENBLAS_NUM_THREADS",)
"""The variables that are 1 in a prepared process, because OpenBLAS would start its threads when it
is imported. Workers get their own values."""

_LENGTH = struct.Struct("=I")


class PreparedProcessLostError(InfrastructureError):
    """The prepared process was killed, does not answer, or sent invalid data.

    No worker of the batch is left. Worth another try.
    """


class Preparation(Struct, frozen=True):
    """The preparation of a process: an interpreter with its options, and the modules to import.

    `argv` is a worker's command, from which the first entry of sys.path follows. For a function
    there is `call_fd` instead, the call with its caller's sys.path.
    """

    interpreter: tuple[str, ...]
    preload: tuple[str, ...]
    argv: tuple[str, ...] = ()
    call_fd: int | None = None


class Readiness(Struct, frozen=True):
    """The first message of a prepared process: it can fork, or the reason why it never will."""

    ready: bool = False
    error: str = ""
    warnings: tuple[str, ...] = ()


_adopting: list[object] = []
_adopting_lock = threading.Lock()


def adopt_orphans(owner: object) -> None:
    """Make orphans of this process's descendants its children, which it then must reap.

    This applies until the last owner calls `release_orphans`. Raises UsageError where the system
    lacks this.
    """
    with _adopting_lock:
        if not syscalls.adopt_orphans(True):
            raise UsageError("workers can be forked from a prepared process on Linux only")
        _adopting.append(owner)


def release_orphans(owner: object) -> None:
    """Undo `adopt_orphans`; call exactly once for each call of it."""
    with _adopting_lock:
        _adopting.remove(owner)
        if not _adopting:
            syscalls.adopt_orphans(False)


class PreparedProcess:
    """A running process that imports modules, and then forks workers, until `stop`.

    Its owner must call `adopt_orphans` before.
    """

    def __init__(self, process: WorkerProcess, control: socket.socket, guard: Guard) -> None:
        self.pid, self._control, self._guard = process.pid, control, guard
        self._unread = b""

    @classmethod
    def start(
        cls, preparation: Preparation, environ: Mapping[str, str], guard: Guard, title: str
    ) -> PreparedProcess:
        """Execute the process, with the title for `ps -f`.

        It imports by itself; see `readiness`.

        Raises UsageError when the interpreter can't be run, InfrastructureError when the system
        can't fork, and OSError when no descriptor is left.
        """
        ours, theirs = socket.socketpair()
        try:
            argv = [*preparation.interpreter, "-u", PROGRAM, str(theirs.fileno()), title]
            argv += preparation.argv  # Room for that of a worker.
            shown = {**environ, **dict.fromkeys(KEPT_AT_ONE, "1")}
            ignored = signals.SENT_TO_EVERYBODY
            command = WorkerCommand(
                argv, shown, pass_fds=(theirs.fileno(),), ignored_signals=ignored
            )
            process = spawn_workers([command], guard)[0]
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        guard.spare(process.pid)
        prepared = cls(process, ours, guard)
        fds = [] if preparation.call_fd is None else [preparation.call_fd]
        try:
            prepared._send(fds, preload=preparation.preload, argv=preparation.argv)
        except OSError:
            pass  # It is dead already, which shows when its readiness is read.
        return prepared

    def fileno(self) -> int:
        """Return the descriptor, which is readable with a message, or when the process has died."""
        return self._control.fileno()

    def readiness(self) -> Readiness | None:
        """Return the message of the process, or None: there is none yet. Does not block.

        Raises PreparedProcessLostError when it has died, or has sent something else.
        """
        self._control.setblocking(False)
        try:
            answer = self._line()
        except BlockingIOError:
            return None
        except OSError as error:
            raise PreparedProcessLostError("the prepared process has died") from error
        return Readiness(
            bool(answer.get("ready")), answer.get("error", ""), tuple(answer.get("warnings", ()))
        )

    def fork(self, commands: Sequence[WorkerCommand], guard: Guard | None) -> list[WorkerProcess]:
        """Fork all workers, or none; they are children of this process.

        To be called once the process has said that it is ready. Blocks for some 10 ms per worker,
        as forking a large process takes.

        The `pass_fds` of a command are the descriptors of its call and of its result, then those in
        the arguments; such a command's `argv` is not used.

        Raises PreparedProcessLostError, WorkerForkError, or OSError when there is no descriptor for
        a pipe.
        """
        go_read, go_write = syscalls.pipe_above_standard_fds()
        pids: list[int] = []
        try:
            self._control.settimeout(FORK_TIMEOUT_S)
            for command in commands:
                self._send_worker(command)
            gate = [go_read] if guard is None else [go_read, guard.child_fd]
            self._send(gate, fork=os.getpid())
            while pid := self._line()["pid"]:
                pids.append(pid)
            if len(pids) < len(commands) or min(pids, default=0) < 0:
                number = -min(pids, default=-errno.EAGAIN)
                raise WorkerForkError(len(pids) - 1, OSError(number, os.strerror(number)))
            os.write(go_write, b"g" * len(commands))
        except OSError as error:
            raise PreparedProcessLostError(f"the prepared process was lost: {error}") from error
        except WorkerForkError:
            # Nobody has told them to go.
            abandon([pid for pid in pids if pid > 0], guard)
            raise
        finally:
            os.close(go_read)
            os.close(go_write)
        return [WorkerProcess(pid) for pid in pids]

    def use_guard(self, guard: Guard) -> None:
        """Register the process with the guard that replaces the former one."""
        self._guard = guard
        guard.register(self.pid)
        guard.spare(self.pid)

    def stop(self) -> None:
        """Kill and reap the process. Its workers continue. Call exactly once.

        Blocks until it has died, 5 s at most.
        """
        self._control.close()
        abandon([self.pid], self._guard)

    def _send_worker(self, command: WorkerCommand) -> None:
        streams = command.stdout_fd, command.stderr_fd
        self._send(
            [*(fd for fd in streams if fd is not None), *command.pass_fds],
            argv=[] if command.pass_fds else list(command.argv),
            env=dict(command.env),
            streams=[fd is not None for fd in streams],
            cpus=sorted(command.cpus),
            unbound_if_refused=command.unbound_if_refused,
        )

    def _send(self, fds: Sequence[int], **fields: object) -> None:
        content = json.dumps(fields).encode()
        record = _LENGTH.pack(len(content)) + content
        sent = socket.send_fds(self._control, [record], fds)
        self._control.sendall(record[sent:])

    def _line(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            read = self._control.recv(65536)
            if not read:
                raise PreparedProcessLostError("the prepared process has died")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer = read_object(line)
        except UnreadableJsonError as error:  # an imported module has written into this socket
            raise PreparedProcessLostError("the prepared process sent invalid JSON") from error
        return answer
