"""Workers that are forked from a prepared process, which is replaced when it is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rallypoint.agent.environ import common_environ
from rallypoint.agent.worker_source import SourceLostError, WorkerSource
from rallypoint.config import WorkerConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.text import named
from rallypoint.errors import InfrastructureError, RallypointError, UsageError
from rallypoint.process.exits import reap_orphans_of
from rallypoint.process.guard import Guard
from rallypoint.process.limits import cant_start_process
from rallypoint.process.prepared import command_line
from rallypoint.process.prepared.handle import (
    Preparation,
    PreparedProcess,
    PreparedProcessLostError,
    Readiness,
    adopt_orphans,
    release_orphans,
)
from rallypoint.process.spawn import WorkerCommand, WorkerProcess

_ATTEMPTS = 3
"""The number of prepared processes that die in a row, while they import or at the first fork, after
which the imports count as the cause."""
_SLOW_S = 5.0
"""The duration of imports, in seconds, from which they are mentioned to the user."""


class PreparedSource(WorkerSource):
    """The source that forks workers from a process in which `preload` was imported.

    What workers import besides they import themselves.
    """

    adopts_orphans = True

    def __init__(self, config: WorkerConfig, cpus: Sequence[frozenset[int]] = ()) -> None:
        super().__init__(config, cpus)
        self._process: PreparedProcess | None = None
        self._guard: Guard | None = None
        self._title = ""
        self._ready = asyncio.Event()
        self._attempts = 0
        self._on_notice: Callable[[Record], None] = lambda record: None
        self._slow: asyncio.TimerHandle | None = None
        self._adopts = False
        self._sessions: set[int] = set()
        self._preparation = self._prepare(config)

    def start(self, guard: Guard, part_of: str) -> None:
        self._guard, self._title = guard, f"rallypoint: prepared process{part_of}"
        adopt_orphans(self)
        self._adopts = True
        self._start_process()

    def watch(
        self, on_error: Callable[[RallypointError], None], on_notice: Callable[[Record], None]
    ) -> None:
        super().watch(on_error, on_notice)
        self._on_notice = on_notice
        self._listen()
        self._slow = asyncio.get_running_loop().call_later(_SLOW_S, self._say_slow)

    def unwatch(self) -> None:
        super().unwatch()
        if self._slow is not None:
            self._slow.cancel()
        if self._process is not None:
            asyncio.get_running_loop().remove_reader(self._process.fileno())

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def owns(self, pid: int) -> bool:
        return self._process is not None and self._process.pid == pid

    def use_guard(self, guard: Guard) -> None:
        self._guard = guard
        if self._process is not None:
            self._process.use_guard(guard)

    def spawn(self, commands: Sequence[WorkerCommand], guard: Guard | None) -> list[WorkerProcess]:
        if self._process is None:
            raise SourceLostError("the prepared process was lost")
        self._reap_orphans()
        try:
            processes = self._process.fork(commands, guard)
        except PreparedProcessLostError as error:
            self._replace()
            raise SourceLostError(str(error)) from error
        self._attempts = 0
        self._sessions = {self._process.pid, *(process.pid for process in processes)}
        return processes

    def _reap_orphans(self) -> None:
        """Reap exited processes that the last round's workers left to this process."""
        reap_orphans_of(self._sessions, self.owns)

    def close(self) -> None:
        super().close()
        self._ready.clear()
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._adopts:
            self._reap_orphans()
            release_orphans(self)
            self._adopts = False

    def _prepare(self, config: WorkerConfig) -> Preparation:
        if self._calls:
            from rallypoint.process.prepared.calls import interpreter_command

            interpreter = tuple(interpreter_command())
            return Preparation(interpreter, config.preload, call_fd=self._calls[0].fd)
        line = command_line.parse(config.argv)
        if line is None:
            raise UsageError(
                f"{named.preload} {','.join(config.preload)}: {' '.join(config.argv[:2])} is not a "
                "Python script or module, so a prepared process can't run it"
            )
        return Preparation((line.python, *line.options), config.preload, config.argv)

    def _start_process(self) -> None:
        assert self._guard is not None
        self._attempts += 1
        environ = common_environ(self._config)
        self._process = PreparedProcess.start(self._preparation, environ, self._guard, self._title)

    def _listen(self) -> None:
        assert self._process is not None
        asyncio.get_running_loop().add_reader(self._process.fileno(), self._readable)

    def _readable(self) -> None:
        assert self._process is not None
        try:
            said = self._process.readiness()
        except PreparedProcessLostError:
            if self._ready.is_set():
                self._attempts = 0  # It was idle: that somebody has killed it proves nothing.
            self._replace()
        else:
            if said is not None:
                self._said(said)

    def _said(self, said: Readiness) -> None:
        if not said.ready:
            self._give_up(UsageError(said.error))
            return
        for warning in said.warnings if self._attempts == 1 else ():
            self._on_notice(kinds.PREPARED(warning))
        self._ready.set()

    def _replace(self) -> None:
        """Replace the prepared process, which was killed or was ended by its imports.

        Gives up if it has died too often.
        """
        self._ready.clear()
        if self._process is not None:
            asyncio.get_running_loop().remove_reader(self._process.fileno())
            self._process.stop()
            self._process = None
        if self._on_error is None:
            return
        if self._attempts >= _ATTEMPTS:
            modules = ", ".join(self._config.preload) or "nothing"
            text = f"the process that imports {modules} for the workers died {_ATTEMPTS} times"
            self._give_up(InfrastructureError(f"{text} meanwhile: try without preload"))
            return
        self._on_notice(kinds.PREPARED("the prepared process was lost: started another"))
        try:
            self._start_process()
        except RallypointError as error:
            self._give_up(error)
        except OSError as error:
            self._give_up(cant_start_process(error))
        else:
            self._listen()

    def _say_slow(self) -> None:
        if not self.is_ready and self._config.preload:
            self._on_notice(kinds.PREPARING(modules=", ".join(self._config.preload)))

    def _give_up(self, error: RallypointError) -> None:
        if self._process is not None:
            asyncio.get_running_loop().remove_reader(self._process.fileno())
        if self._on_error is not None:
            self._on_error(error)
