"""The user's own ssh client as a child of a command, for the loop of asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

_READ_BYTES = 64 * 1024
_LINE_BYTES = 64 * 1024
_REST_S = 1.0
"""The time in seconds to wait for the rest of the client's stderr after its end. A process that it
left in the background (ControlPersist) holds that pipe open."""


class SshClient:
    """A running ssh client, made by `start`.

    It has a session of its own: Ctrl-C in the terminal does not reach it, and it can't ask for a
    password there.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said: list[str] = []
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def start(cls, argv: Sequence[str]) -> SshClient:
        """Start the client. Raises OSError where it can't be run."""
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
                limit=_LINE_BYTES,
            )
        )

    def send(self, data: bytes) -> None:
        """Send data to the command on the host; does nothing once the pipe to it is closed."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def read(self) -> bytes:
        """Return some of the command's output; empty: its end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(_READ_BYTES)

    async def wait(self) -> int:
        """Wait for the end, and return the exit code, or minus the number of a signal.

        255 is ssh's own code, others are the command's.
        """
        code = await self._process.wait()
        await asyncio.wait((self._listening,), timeout=_REST_S)
        return code

    @property
    def last_words(self) -> str:
        """The last line that is not blank on stderr, as of ssh or the login shell; empty: none."""
        return self._said[-1] if self._said else ""

    def hang_up(self) -> None:
        """Hang up: the command reads the end of its stdin; what it writes then still comes."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the ssh client without waiting for its exit.

        It also kills what a script in the place of ssh has started, because such processes hold the
        pipes open.
        """
        self._listening.cancel()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # It is longer than the limit.
                continue
            if not line:
                return
            if text := line.decode("utf-8", "replace").strip():
                self._said = [*self._said[-9:], text]
