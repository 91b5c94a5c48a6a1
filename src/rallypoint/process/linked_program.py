"""A program whose output, end and signals go over a link: the pipes of a command under sshd.

Without a terminal sshd sends no signal when a connection ends: the only sign is the end of a pipe,
or nothing at all when a cable was cut. So the process at the link's end is separate from the
program. It notices the end, sends the program SIGTERM, and reads its output as before; otherwise a
worker that writes a line would fail before it has saved its checkpoint.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from rallypoint.process.signals import SENT_TO_EVERYBODY
from rallypoint.process.syscalls import die_with_parent, load_prctl
from rallypoint.wire.launch_link import AgentOutput, Deliver, LinkReader, ToHost, frame

_READ_BYTES = 64 * 1024
_HELD_BYTES = 256 * 1024
"""The number of unsent bytes from which on the program's output is not read, so that the program
has to wait."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
T = TypeVar("T")
FromProgram = subprocess.Popen[bytes]


class ProgramLink:
    """The link to another host, pipes in both directions, and whether it is intact.

    Once `may_be_silent` was called nothing here blocks, except `wait_for` and `flush`.
    """

    def __init__(self, read_fd: int, write_fd: int, reader: LinkReader[ToHost]) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd
        self._reader, self._out = reader, bytearray()
        self._heard_at, self._silence_s = time.monotonic(), float("inf")
        self._early: list[ToHost] = []
        self.is_broken = False

    def wait_for(self, kind: type[T]) -> T | None:
        """Return the first message of that kind; None: the link is broken.

        Blocks until it arrives. Messages before it are dropped.
        """
        while True:
            for number, message in enumerate(self._early):
                if isinstance(message, kind):
                    self._early = self._early[number + 1 :]
                    return message
            if self.is_broken:
                return None
            self._early = self.read()

    def may_be_silent(self, silence_s: float) -> None:
        """Set the longest silence of the other side, in seconds, from now on.

        The link breaks after a longer one. From now on reading and writing do not block.
        """
        self._silence_s = silence_s
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, False)

    def read(self) -> list[ToHost]:
        """Return the messages that have arrived; an end, error or invalid data breaks the link."""
        try:
            data = os.read(self.read_fd, _READ_BYTES)
            self._heard_at = time.monotonic()
            if data:
                return self._reader.feed(data)
        except BlockingIOError:
            return []
        except (OSError, ValueError):
            pass
        self.is_broken = True
        return []

    def put(self, data: bytes) -> None:
        """Queue data to send, unless the link is broken."""
        if not self.is_broken:
            self._out += data

    @property
    def is_full(self) -> bool:
        """Whether so much is unsent that the program's output should not be read for now."""
        return not self.is_broken and len(self._out) >= _HELD_BYTES

    @property
    def has_more(self) -> bool:
        """Whether there is unsent data, and the link is not broken."""
        return bool(self._out) and not self.is_broken

    def write(self) -> None:
        """Send as much of the queued data as the pipe takes; an error breaks the link."""
        try:
            del self._out[: os.write(self.write_fd, self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_broken = True

    def silent_in_s(self) -> float:
        """Return for how many seconds the other side may still be silent; at 0 the link breaks."""
        left_s = self._heard_at + self._silence_s - time.monotonic()
        if left_s <= 0:
            self.is_broken = True
        return max(left_s, 0.0)

    def flush(self) -> None:
        """Send all queued data, unless the link breaks meanwhile.

        Blocks for as long as that takes.
        """
        while self.has_more:
            poll = select.poll()
            poll.register(self.read_fd, select.POLLIN)
            poll.register(self.write_fd, select.POLLOUT)
            for fd, _ in poll.poll(min(self.silent_in_s(), 3600.0) * 1000):
                if fd == self.write_fd:
                    self.write()
                else:
                    self._early += self.read()


def start_program(
    argv: Sequence[str], environ: Mapping[str, str], token: str, log_fd: int | None
) -> FromProgram:
    """Start a program in a session of its own, with the token, if any, on its stdin.

    Its output goes to `log_fd`, or into pipes; in the second case it gets SIGTERM if this process
    dies. Raises OSError.
    """
    ends_with_us = partial(die_with_parent, load_prctl(), os.getpid(), signal.SIGTERM)
    output = subprocess.PIPE if log_fd is None else log_fd
    program = subprocess.Popen(
        argv,
        env=environ,
        stdin=subprocess.PIPE if token else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=ends_with_us if log_fd is None else None,
    )
    if program.stdin is not None:
        with suppress(OSError):  # It has ended already.
            program.stdin.write(token.encode() + b"\n")
            program.stdin.close()
    return program


class LinkedProgram:
    """A program whose output goes over a link, and its link. Call `run` once."""

    def __init__(self, program: FromProgram, link: ProgramLink) -> None:
        assert program.stdout is not None
        assert program.stderr is not None
        self._program, self._link = program, link
        self._outputs = {program.stdout.fileno(): 1, program.stderr.fileno(): 2}
        self._signals, self._wake = os.pipe()

    def run(self) -> int:
        """Run until the program has ended; return its exit code, or minus the number of a signal.

        For the main thread. The program gets SIGTERM, SIGINT, SIGHUP and SIGQUIT of this process,
        signals that the other side of the link asks for, and SIGTERM when the link breaks. The last
        output may still have to be sent by `flush`.
        """
        for fd in (*self._outputs, self._signals, self._wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake)
        for number in SENT_TO_EVERYBODY:
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        told = False
        while (code := self._program.poll()) is None:
            self._wait()
            if self._link.is_broken and not told:
                told = True
                self._program.send_signal(signal.SIGTERM)
        # What workers that have outlived it write is nobody's any more.
        for fd in tuple(self._outputs):
            while self._take(fd):
                pass
        return code

    def _wait(self) -> None:
        link, poll = self._link, select.poll()
        poll.register(self._signals, select.POLLIN)
        if not link.is_broken:
            poll.register(link.read_fd, select.POLLIN)
        if link.has_more:
            poll.register(link.write_fd, select.POLLOUT)
        if not link.is_full:
            for fd in self._outputs:
                poll.register(fd, select.POLLIN)
        limit_s = 3600.0 if link.is_broken else min(link.silent_in_s(), 3600.0)
        for fd, _ in poll.poll(limit_s * 1000):
            if fd == self._signals:
                for number in os.read(fd, 256):
                    if number in _PASSED_ON:
                        self._program.send_signal(number)
            elif fd in self._outputs:
                self._take(fd)
            elif fd == link.write_fd:
                link.write()
            else:
                for message in link.read():
                    if isinstance(message, Deliver):
                        self._program.send_signal(message.signal)

    def _take(self, fd: int) -> bool:
        """Queue some of the program's output for the link; return whether there was any."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._link.put(frame(AgentOutput(self._outputs[fd], data)))
        else:
            del self._outputs[fd]
        return bool(data)
