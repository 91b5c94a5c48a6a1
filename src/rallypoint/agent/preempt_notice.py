"""`--preempt-notice`: watches for a notice that this node is about to go.

    FILE           the notice is that this file exists; looked for once a second
    cmd:COMMAND    the notice is that the shell command ends with code 0. It may wait for that, or
                   look once and end with another code: then it is run again after 5 s

The file should lie on the node's own storage: a directory of a server that is down would hold up
the agent. What the command writes is thrown away; it gets no token, and dies with the agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from rallypoint.agent.environ import without_token
from rallypoint.errors import RallypointError
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand
from rallypoint.process.workers import WorkerSet

LOOK_EVERY_S = 1.0
RUN_EVERY_S = 5.0
KILL_TIMEOUT_S = 1.0
_COMMAND = "cmd:"
_CANT_RUN = (126, 127)
"""The exit codes of a shell for a program that can't be executed (126), or does not exist (127)."""


class PreemptNotice:
    """The watch for the notice that this node must leave.

    For the thread of the loop.

    Call `start` once, and `close` at the end.
    """

    def __init__(
        self,
        spec: str,
        guard: Guard | None,
        on_notice: Callable[[str], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        """Make the watch. `on_notice` is called once at most, with the reason to leave.

        `on_trouble` is called once at most, when the command can't be run.
        """
        self._loop = asyncio.get_running_loop()
        is_command = spec.startswith(_COMMAND)
        self._command = spec.removeprefix(_COMMAND) if is_command else ""
        self._file = "" if is_command else spec
        self._guard, self._on_notice, self._on_trouble = guard, on_notice, on_trouble
        self._timer: asyncio.TimerHandle | None = None
        self._running: WorkerSet | None = None
        self._task: asyncio.Task[None] | None = None
        self._said_trouble = False

    def start(self) -> None:
        """Start watching. A notice file that exists already is reported at once."""
        if self._file:
            self._look()
        else:
            self._task = self._loop.create_task(self._ask())

    def owns(self, pid: int) -> bool:
        """Return whether only this object may reap the process."""
        return self._running is not None and self._running.owns(pid)

    async def close(self) -> None:
        """Stop watching, and kill the command if it runs."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _look(self) -> None:
        if os.path.exists(self._file):
            self._on_notice(f"the notice file {self._file} exists")
        else:
            self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    async def _ask(self) -> None:
        while True:
            try:
                code = await self._run()
            except (RallypointError, OSError) as error:
                self._trouble(str(error))
            else:
                if code == 0:
                    self._on_notice(f"the notice command exited with code 0: {self._command}")
                    return
                if code in _CANT_RUN:
                    self._trouble(f"it exited with code {code}")
            await asyncio.sleep(RUN_EVERY_S)

    async def _run(self) -> int:
        """Run the command; return its exit code, minus its signal's number, or 255 if unknown."""
        ended = asyncio.Event()

        running = self._running = WorkerSet(self._guard)
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            argv = ("/bin/sh", "-c", self._command)
            running.start(
                [WorkerCommand(argv, without_token(), nowhere, nowhere)], lambda *_: ended.set()
            )
            if self._guard is not None:
                self._guard.spare(running.pids[0])
            await ended.wait()
            code = running.exits[0].returncode
            return 255 if code is None else code
        finally:
            os.close(nowhere)
            await asyncio.shield(running.reap(KILL_TIMEOUT_S))
            self._running = None

    def _trouble(self, why: str) -> None:
        if not self._said_trouble:
            self._said_trouble = True
            self._on_trouble(f"--preempt-notice cmd:{self._command}: {why}: trying again")
