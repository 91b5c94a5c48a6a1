"""One `rallypoint run` of one node, as a person starts it, and proof that nothing of it remains.

Every process of the job inherits a variable that is unique to the test, so that none can hide: the
agent, its helpers, workers and whatever these start are found in /proc by their environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tests.harness import leftovers
from tests.harness.cluster import free_port as free_port
from tests.harness.cluster import wait_until
from tests.harness.limits import patience
from tests.harness.prepared import processes
from tests.harness.proc import is_alive, name_of, processes_with

LIMIT_S = 30.0
TELL = """
def tell(*words):
    import os
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
"""What every program begins with: a line in one write, which other processes can't split."""
MARK = "ONE_AGENT_TEST"
_INHERITED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", leftovers.NAME)


def eventually(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until `condition()` is true; fail saying `what` was waited for."""
    wait_until(condition, what, limit_s)


class OneAgent:
    """A running agent. What it and its workers print is in files, which never block them."""

    def __init__(self, home: Path, command: Sequence[str], env: dict[str, str], mark: str) -> None:
        self.home, self._mark = home, mark
        self._out, self._err = home / "stdout", home / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = processes.start(
                command, cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def raw_out(self) -> bytes:
        return self._out.read_bytes()

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def said(self) -> list[str]:
        """The agent's own lines."""
        return [line for line in self.err.splitlines() if line.startswith("rallypoint")]

    def told(self, key: str) -> list[str]:
        """What followed `key` on each line of stdout that begins with it."""
        lines = self.out.splitlines()
        return [line[len(key) + 1 :] for line in lines if f"{line} ".startswith(key + " ")]

    def wait_told(self, key: str, count: int = 1) -> list[str]:
        """Wait until so many lines begin with `key`."""
        eventually(
            lambda: len(self.told(key)) >= count or self.process.poll() is not None,
            f"{count} x {key!r}",
        )
        found = self.told(key)
        assert len(found) >= count, f"ended without {count} x {key!r}:\n{self.out}\n{self.err}"
        return found

    def wait_said(self, text: str) -> None:
        """Wait until stderr has this text."""
        eventually(lambda: text in self.err or self.process.poll() is not None, repr(text))
        assert text in self.err, f"ended without {text!r}:\n{self.err}"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def send_again(self, number: int) -> None:
        """Until it counts as another: an equal signal within a second is the same one. Not once
        more: an agent that has ended its job handles no signals."""
        deadline = time.monotonic() + patience(LIMIT_S)
        while self.process.poll() is None and time.monotonic() < deadline:
            if " again: " not in self.err and " too: " not in self.err:
                self.send(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)

    def wait(self) -> int:
        """The exit code; then nothing of the job may be left."""
        try:
            code = self.process.wait(patience(LIMIT_S))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end; {self.processes()}\n{self.err}") from None
        left = self.processes()
        assert not left, f"left behind: {left}"
        return code

    def wait_gone(self) -> None:
        """Wait until nothing of the job lives, when it was killed and others clear up."""
        eventually(lambda: not self.processes(), "all of the job to go")

    def kill(self) -> None:
        """SIGKILL to the agent; then its guard has nothing of the job remain, and no file."""
        self.send(signal.SIGKILL)
        self.process.wait()
        self.wait_gone()
        eventually(lambda: not os.listdir(self.home / "tmp"), "no file is left")

    def processes(self) -> dict[int, str]:
        """All living processes of the job by pid, with their names."""
        return {pid: name_of(pid) for pid in marked(self._mark)}

    def named(self, name: str) -> list[int]:
        """Those of a name."""
        return [pid for pid, found in self.processes().items() if found == name]

    def clear(self) -> None:
        """Kill whatever a failed test has left."""
        for pid in marked(self._mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(patience(LIMIT_S))


def marked(mark: str) -> list[int]:
    """Living processes that were born with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = processes_with("environ", lambda environ: wanted in environ.split(b"\0"))
    return [pid for pid in found if is_alive(pid)]


def environment(home: Path, mark: str, **more: str) -> dict[str, str]:
    """A bare environment with private places; `more` is added."""
    base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    return base | {"HOME": str(home), "TMPDIR": str(temporary), MARK: mark} | more


@contextmanager
def agent(
    home: Path,
    *options: str,
    program: str | None = None,
    arguments: Sequence[str] = (),
    env: dict[str, str] | None = None,
    under: Sequence[str] = (),
    python: str = sys.executable,
) -> Iterator[OneAgent]:
    """`rallypoint run *options worker.py *arguments`, where worker.py holds `program`, after TELL.

    Without a program, `options` are all. `under` goes before the whole command, which `python`
    runs. At the end nothing may be left: no process of the job, no file in the temporary directory.
    """
    words = [*under, python, "-m", "rallypoint", "run", *options]
    if program is not None:
        script = home / "worker.py"
        script.write_text(TELL + program)
        words += [str(script), *arguments]
    with started(home, words, **(env or {})) as running:
        yield running


@contextmanager
def started(home: Path, command: Sequence[str], **env: str) -> Iterator[OneAgent]:
    """A command that runs a job. At the end nothing may be left: no process of it, no file in the
    temporary directory."""
    mark = uuid.uuid4().hex
    running = OneAgent(home, command, environment(home, mark, **env), mark)
    try:
        yield running
        running.wait()
        assert not os.listdir(home / "tmp"), "temporary files are left"
    finally:
        running.clear()


def ended(job: AbstractContextManager[OneAgent], code: int) -> OneAgent:
    """A job that has run to its end, with this exit code."""
    with job as running:
        found = running.wait()
        assert found == code, f"exit code {found}:\n{running.err}"
    return running
