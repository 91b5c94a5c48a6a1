"""The small processes beside an agent: the guard, which ends every worker when the agent is
killed, and the relay, which owns the console. They are forked first, while the agent is small."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from rallypoint.process.guard import Guard
from rallypoint.process.log_dir import storage_error
from rallypoint.process.relay_client import Relay

CONSOLE_S = 10.0
"""How long the console may take for the last lines."""


class Sidecars:
    """Made by `start`, ended by `stop`, which leaves neither process behind."""

    def __init__(self) -> None:
        self._on_guard_replaced: Callable[[Guard], None] | None = None
        self.on_storage_error: Callable[[str], None] | None = None
        """Gets one line for each log file that can't be written any more."""
        self.guard = Guard.start()
        try:
            self.relay = Relay.start(on_storage_error=self._storage_error)
        except BaseException:
            self.guard.stop()
            raise

    @classmethod
    def start(cls) -> Sidecars:
        """Fork both. Before the loop runs. Raises OSError when the system can't fork."""
        return cls()

    def owns(self, pid: int) -> bool:
        """Nobody else may reap these."""
        return self.guard.owns(pid) or pid == self.relay.process.pid

    def watch_guard(self, on_replaced: Callable[[Guard], None]) -> None:
        """Replace a guard that was killed: without one, a killed agent leaves workers behind."""
        self._on_guard_replaced = on_replaced
        asyncio.get_running_loop().add_reader(self.guard.fileno(), self._replace_guard)

    def unwatch_guard(self) -> None:
        """Safe to call again, and without a watch."""
        asyncio.get_running_loop().remove_reader(self.guard.fileno())

    async def stop(self) -> None:
        """Write out what the relay holds, then end both."""
        await self.relay.stop(CONSOLE_S)
        self.guard.stop()

    def _replace_guard(self) -> None:
        self.unwatch_guard()
        self.guard.stop()
        self.guard = Guard.start()
        assert self._on_guard_replaced is not None
        self._on_guard_replaced(self.guard)
        self.watch_guard(self._on_guard_replaced)

    def _storage_error(self, path: str, number: int) -> None:
        # A console that has gone is no storage, and there is nobody to tell.
        if path not in ("stdout", "stderr") and self.on_storage_error is not None:
            self.on_storage_error(str(storage_error(path, OSError(number, os.strerror(number)))))
