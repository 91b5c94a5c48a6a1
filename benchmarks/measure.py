"""Jobs under some launcher, and moments on one clock.

The floor is a bare `subprocess` spawn of the same workers. Moments are `time.monotonic()`, which
all processes of a Linux machine share.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

WORKER = Path(__file__).with_name("worker.py")
LIMIT_S = 60.0


class Line(NamedTuple):
    """A worker's line: who wrote it, and its moment."""

    pid: int
    at: float


class Silence(SystemExit):
    """Fewer workers spoke than were waited for; uncaught, it ends the benchmark and says so."""


class Stage:
    """A folder with the named pipe that workers write to, and the launchers started from it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rallypoint-bench-"))
        self.pipe = self._folder / "lines"
        os.mkfifo(self.pipe)
        os.mkfifo(f"{self.pipe}.gate")
        self._fd = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK)
        self._gate = -1
        self._unread = b""
        self._command: Sequence[str | Path] = ()
        self._started: list[subprocess.Popen[bytes]] = []
        self._workers: set[int] = set()

    def start(
        self, command: Sequence[str | Path], stderr: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a launcher, or a worker; its output is thrown away, its files are kept here."""
        null, env = subprocess.DEVNULL, os.environ | {"TMPDIR": str(self._folder)}
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=stderr, env=env)
        self._command = command
        self._started.append(process)
        return process

    def folder(self, name: str) -> Path:
        """A folder of this name, which goes with the stage."""
        made = self._folder / name
        made.mkdir()
        return made

    def worker(self, mode: str) -> list[str]:
        """The script of the workers and its arguments."""
        return [str(WORKER), str(self.pipe), mode]

    def lines(self, count: int, limit_s: float = LIMIT_S) -> list[Line]:
        """Wait for so many lines. Raises: Silence."""
        found: list[Line] = []
        give_up_at = time.monotonic() + limit_s
        while len(found) < count:
            left_s = max(0.0, give_up_at - time.monotonic())
            ready, _, _ = select.select([self._fd], [], [], left_s)
            if not ready:
                whose = " ".join(str(word) for word in self._command[:4])
                spoke = f"only {len(found)} of {count} workers spoke within {limit_s:g} s"
                raise Silence(f"{spoke} ({whose} ...)")
            *whole, self._unread = (self._unread + os.read(self._fd, 65536)).split(b"\n")
            for line in whole:
                pid, at = line.split()
                found.append(Line(int(pid), float(at)))
                self._workers.add(int(pid))
        return found

    def open_gate(self) -> None:
        """Let the workers go that wait to be told."""
        self._gate = os.open(f"{self.pipe}.gate", os.O_RDWR)

    def close(self) -> None:
        """End all that was started, and forget it."""
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self._workers:  # Those of an agent that was killed may live on.
            if self._is_ours(pid):
                os.kill(pid, signal.SIGKILL)
        os.close(self._fd)
        if self._gate >= 0:
            os.close(self._gate)
        shutil.rmtree(self._folder)

    def _is_ours(self, pid: int) -> bool:
        try:
            return os.fsencode(self.pipe) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """A stage that is cleared whatever happens."""
    opened = Stage()
    try:
        yield opened
    finally:
        opened.close()


def wait_exit(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait for all to exit; the moment of the last one."""
    left = {os.pidfd_open(process.pid): process for process in processes}
    waiting = select.poll()
    for fd in left:
        waiting.register(fd, select.POLLIN)
    last = time.monotonic()
    while left:
        ready = waiting.poll(LIMIT_S * 1000)
        last = time.monotonic()
        if not ready:
            raise SystemExit(f"an agent did not exit within {LIMIT_S} s")
        for fd, _ in ready:
            waiting.unregister(fd)
            os.close(fd)
            code = left.pop(fd).wait()
            if code:
                raise SystemExit(f"an agent exited with code {code}")
    return last


def rallypoint(*options: str) -> list[str]:
    """The command line of an agent."""
    return [str(Path(sys.executable).with_name("rallypoint")), "run", *options]


def torchrun(*options: str) -> list[str]:
    """The command line of torchrun's agent, in the same interpreter."""
    return [sys.executable, "-m", "torch.distributed.run", *options]


def has_torchrun() -> bool:
    """Whether torchrun is measured too: torch is installed, and time doesn't matter."""
    return not is_quick() and importlib.util.find_spec("torch") is not None


def bare(at: Stage, count: int, mode: str) -> list[subprocess.Popen[bytes]]:
    """The floor: the same workers, started one after the other and by nothing else."""
    return [at.start([sys.executable, "-u", *at.worker(mode)]) for _ in range(count)]


def first_line(count: int, command: list[str] | None) -> float:
    """From starting so many workers to the first line of the last one. Seconds.

    Without a command they are started by nothing else.
    """
    with stage() as at:
        began_at = time.monotonic()
        if command:
            at.start([*command, *at.worker("stay")])
        else:
            bare(at, count, "stay")
        return max(line.at for line in at.lines(count)) - began_at


def loopback(run_id: str) -> tuple[str, ...]:
    """Options of agents that meet on this machine."""
    return f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={run_id}"


def free_port() -> int:
    """One that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def machine() -> str:
    """What it was measured on."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} CPUs, Python {python}, load {os.getloadavg()[0]:.1f} at the start"


def prepare(about: str, default: int = 9) -> int:
    """Read the command line; how often to measure. Makes a token, so that nothing is left."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="once, without torchrun")
    parser.add_argument(
        "-n", type=int, default=default, help=f"how often each is measured ({default})"
    )
    options = parser.parse_args()
    # An installed program has its bytecode; whether a checkout may keep it is not the question.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {
        "RALLYPOINT_TOKEN": secrets.token_hex(32),
        "OMP_NUM_THREADS": "1",
        "LOGLEVEL": "INFO",
    }
    print(f"{about}: {machine()}\n", flush=True)
    return 1 if options.quick else int(options.n)


def is_quick() -> bool:
    """`--quick` was given."""
    return "--quick" in sys.argv
