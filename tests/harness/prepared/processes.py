"""Agents and programs of tests: forks of an interpreter that has imported Rallypoint.

A test starts hundreds of them, and starting Python and importing Rallypoint takes longer than most
do anything. What is forked is the process itself, with its own pid, and all that /proc shows of it
is what an exec would have made; only its parent is another. All are executed in tests with the mark
`executed`, and with `pytest --agents=executed`.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.prepared.interpreter import Server
from tests.harness.prepared.server import CODE_BYTES, PID_BYTES, SIZE_BYTES

import rallypoint

PACKAGE = Path(rallypoint.__file__).parent
NOT_IMPORTED = {"__main__.py", "integrations", "testing"}


def _own_modules() -> Iterator[str]:
    """Also those that are imported when they are first needed: each agent would do so again."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if not NOT_IMPORTED & {path.name, *parts}:
            yield ".".join(parts).removesuffix(".__init__")


MODULES = (
    "csv",
    "encodings.idna",
    "importlib.metadata",
    "multiprocessing.forkserver",
    "multiprocessing.popen_spawn_posix",
    "multiprocessing.pool",
    "uvloop",
    *_own_modules(),
)
READ_AT_THE_START = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "TZ")
"""With these begin the variables that a process reads when it is executed, and never again. What
PYTHONPATH adds to that of the tests the server adds."""
forks = True
"""Whether `start` may fork. For `conftest.py` to set."""
started: list[subprocess.Popen[Any]] = []
"""What the test that runs now has started. For `conftest.py` to clear."""


def prepare() -> None:
    """Start what `start` forks, if it does: for a test that counts descriptors or children."""
    if forks:
        _own_server()


def close() -> None:
    """Close the pipes to what `start` forks, which ends when nobody holds them any more."""
    if _own_server.cache_info().currsize:
        _own_server()[0].let_go()
        _own_server.cache_clear()


def start(command: Sequence[str | Path], **how: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen`, which takes `how`. A command of another interpreter, one whose
    environment an interpreter reads at its start, and one at a terminal are executed."""
    process = _started([os.fspath(word) for word in command], how)
    started.append(process)
    return process


def _started(words: list[str], how: Mapping[str, Any]) -> subprocess.Popen[Any]:
    if forks and _is_known(words) and how.keys() <= ForkedProcess.TAKES:
        env = how.get("env") or os.environ
        if _read_at_the_start(env) == _own_server()[1]:
            return ForkedProcess(words, **how)
    return subprocess.Popen(words, **how)


def end_started() -> None:
    """End and reap what is in `started`, and close its pipes."""
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):  # Nobody reads what is still to be written.
                    pipe.close()


def run(
    command: Sequence[str | Path],
    *,
    capture_output: bool = False,
    input: str | None = None,
    timeout: float | None = None,
    check: bool = False,
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with `text`."""
    how["text"] = True
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        how["stdin"] = subprocess.PIPE
    with start(command, **how) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class ForkedProcess(subprocess.Popen[Any]):
    """What `subprocess` does by an exec and by waiting for a child is done by the server."""

    TAKES = frozenset(
        ("bufsize", "cwd", "env", "start_new_session", "stderr", "stdin", "stdout", "text")
    )

    def _execute_child(self, args: Any, *given: Any) -> None:
        """`given` are the parameters of the method that this is in place of."""
        cwd, env = given[4:6]
        pipes = given[9:15]
        fds = [fd if fd >= 0 else own for own, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        no_modules: list[str] = []
        request = (
            args,
            os.path.abspath(cwd or os.getcwd()),
            {os.fsencode(name): os.fsencode(text) for name, text in (env or os.environ).items()},
            no_modules,
            int(_status("Umask"), 8),
            [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            False,
            given[20],
        )
        self._answers = socket.socket(socket.AF_UNIX)
        self._answers.connect(_own_server()[0].address)
        body = marshal.dumps(request)
        socket.send_fds(self._answers, [len(body).to_bytes(SIZE_BYTES, "little")], fds)
        self._answers.sendall(body)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        answer = self._answers.recv(PID_BYTES)
        if len(answer) < PID_BYTES:
            raise RuntimeError(f"not forked: {args}; see stderr, or run with --agents=executed")
        self.pid = int.from_bytes(answer, "little")
        self._child_created = True

    def _internal_poll(self, *_given: Any, **_named: Any) -> int | None:
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if not lock.acquire(False):
            return None  # Another thread waits.
        try:
            return self._ended(0)
        finally:
            lock.release()

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        """The exit code, for which it waits so long. The process is a zombie until then."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                answer = self._answers.recv(CODE_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            assert len(answer) == CODE_BYTES, "the process that forks has ended"
            self.returncode: int | None = int.from_bytes(answer, "little", signed=True)
            self._answers.close()
        return self.returncode


@cache
def _own_server() -> tuple[Server, dict[str, str]]:
    """That of this process, and what matters of the environment in which it was started."""
    return Server(MODULES), _read_at_the_start(os.environ)


def _is_known(words: Sequence[str]) -> bool:
    """A command or a program of Python, of this interpreter."""
    if words[0] != sys.executable or len(words) < 2:
        return False
    return words[1:3] == ["-m", "rallypoint"] or words[1].endswith(".py")


def _read_at_the_start(env: Mapping[str, str]) -> dict[str, str]:
    read = {name: text for name, text in env.items() if name.startswith(READ_AT_THE_START)}
    if "PYTHONPATH" not in os.environ:
        read.pop("PYTHONPATH", None)
    return read


def _status(name: str) -> str:
    """What /proc says of this process."""
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(f"{name}:"))
