"""How the workers of one round on one node have ended: the one record of it. Pure.

What watches the processes notes each exit here, when the kernel tells of it or when a look at a
worker finds it dead; all else asks this record. An exit counts once, as it was first noted.

Exits that were noted together are reported together, so that the worker that was killed and the
one that merely saw it go are judged side by side (behaviour A3).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.group_events import Exit
from rallypoint.core.text import signal_name

_SIGKILL, _SIGTERM = 9, 15


class WorkerExit(Struct, frozen=True):
    """How a process ended: an exit code or a signal. Both None: the status was lost."""

    code: int | None
    signal: int | None
    core_dumped: bool = False

    @property
    def succeeded(self) -> bool:
        return self.code == 0

    @property
    def returncode(self) -> int:
        """As torchrun and subprocess put it: the exit code, or minus the signal; 255 when lost."""
        if self.code is not None:
            return self.code
        return -self.signal if self.signal is not None else 255

    def describe(self) -> str:
        """`exit code 3`, `SIGSEGV (core dumped)`."""
        if self.code is not None:
            return f"exit code {self.code}"
        if self.signal is None:
            return "unknown exit status"
        return signal_name(self.signal) + (" (core dumped)" if self.core_dumped else "")


class NotedExit(Struct, frozen=True):
    """An exit and when it was noticed: `at` on the clock of the loop, `wall_time` for people."""

    exit: WorkerExit
    at: float
    wall_time: float


class WorkerExits:
    """By local rank, in the order in which they were noted."""

    def __init__(self) -> None:
        self._noted: dict[int, NotedExit] = {}
        self._reported: set[int] = set()
        self._killed_for_sigterm: set[int] = set()

    def __len__(self) -> int:
        return len(self._noted)

    def __iter__(self) -> Iterator[int]:
        return iter(self._noted)

    def __contains__(self, local_rank: object) -> bool:
        return local_rank in self._noted

    def __getitem__(self, local_rank: int) -> NotedExit:
        return self._noted[local_rank]

    def note(self, local_rank: int, exit_: WorkerExit, *, at: float, wall_time: float) -> None:
        """This worker has ended. Safe to repeat: the first time counts."""
        if local_rank in self._noted:
            return
        if local_rank in self._killed_for_sigterm and exit_.signal == _SIGKILL:
            exit_ = replace(exit_, signal=_SIGTERM)
        self._noted[local_rank] = NotedExit(exit_, at, wall_time)

    def killed_for_sigterm(self, local_rank: int) -> None:
        """SIGKILL was sent to this worker in place of a SIGTERM that it holds back, so its death
        counts as one by SIGTERM."""
        self._killed_for_sigterm.add(local_rank)

    def failed(self) -> list[int]:
        """Local ranks that ended, and not well."""
        return [rank for rank, noted in self._noted.items() if not noted.exit.succeeded]

    def all_succeeded(self, workers: int) -> bool:
        """Whether so many workers have ended, all of them well."""
        return len(self._noted) == workers and not self.failed()

    def has_unreported_failure(self) -> bool:
        """Whether a worker has failed that `report` has not named yet."""
        return any(rank not in self._reported for rank in self.failed())

    def report(self) -> tuple[Exit, ...]:
        """The exits that no earlier call has named."""
        fresh = [rank for rank in self._noted if rank not in self._reported]
        self._reported.update(fresh)
        noted = ((rank, self._noted[rank].exit) for rank in fresh)
        return tuple(Exit(rank, exit_.code, exit_.signal) for rank, exit_ in noted)
