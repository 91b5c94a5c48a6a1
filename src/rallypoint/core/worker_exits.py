"""How a worker ended: the one struct of it, and the record of one round's workers on one node.

What watches the processes notes each exit in the record, when the kernel reports it or when a look
at a worker finds it dead; everything else asks the record. An exit counts once, as first noted.
Exits that were noted together are reported together, so that the worker that was killed and the
one that only saw its peer disappear are judged side by side (behaviour A3).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.text import signal_name

OUT_OF_MEMORY = "out of memory"
"""A part of the message of a worker that the kernel killed for memory."""
_SIGKILL, _SIGTERM = 9, 15


class WorkerExit(Struct, frozen=True, array_like=True):
    """The end of one worker: an exit code or a signal, and its agent's details.

    The kernel gives the first three fields, the agent adds the others as it learns them. `code` and
    `signal` are both None when the status was lost, or for a worker that hangs and still runs.
    """

    code: int | None
    signal: int | None
    core_dumped: bool = False
    local_rank: int = 0
    rank: int = 0
    role: str = ""
    pid: int = 0
    """The worker's process id; 0: it could not be started, or its pid is not known."""
    age_s: float = 0.0
    """The seconds between the end and the sending of the report."""
    wall_time: float = 0.0
    """When it ended, in Unix seconds by the node's own clock: only shown, never compared."""
    message: str = ""
    """The exception's first line, the meaning of the signal, or the exit code with the last line of
    output; for a hang the reason."""
    detail: str = ""
    """The worker's traceback, the last lines of its stderr, or its stacks if it hung."""
    log_file: str = ""
    tells_of_lost_peer: bool = False
    """Whether the exception merely says that another worker went away."""
    reason: str = ""
    """The reason why its own agent has ended it, or why it is blamed for a hang; empty: it ended by
    itself."""

    @property
    def succeeded(self) -> bool:
        return self.code == 0

    @property
    def returncode(self) -> int | None:
        """The return code as in `subprocess`.

        The exit code, or minus the signal; None: not known.
        """
        return self.code if self.signal is None else -self.signal

    def describe(self) -> str:
        """Return the exit status in words: `exit code 3`, `SIGSEGV (core dumped)`; or: unknown."""
        if self.code is not None:
            return f"exit code {self.code}"
        if self.signal is None:
            return "unknown exit status"
        return signal_name(self.signal) + (" (core dumped)" if self.core_dumped else "")

    def clause(self) -> str:
        """Return a clause about the end, such as `was killed by SIGKILL` or `exited with code 3`.

        Others are `was ended: timer 'step' expired` and `made no progress for 300 s: at step 17`.
        """
        if self.code is None and self.signal is None and self.reason:
            return f"made {self.reason}"
        if self.reason:
            return f"was ended: {self.reason}"
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        return f"exited with code {self.code}"


class WorkerExits:
    """The exits of workers by local rank, in the order in which they were noted."""

    def __init__(self) -> None:
        self._exits: dict[int, WorkerExit] = {}
        self._noted_at: dict[int, float] = {}
        self._reported: set[int] = set()
        self._killed_for_sigterm: set[int] = set()

    def __len__(self) -> int:
        return len(self._exits)

    def __iter__(self) -> Iterator[int]:
        return iter(self._exits)

    def __contains__(self, local_rank: object) -> bool:
        return local_rank in self._exits

    def __getitem__(self, local_rank: int) -> WorkerExit:
        return self._exits[local_rank]

    def noted_at(self, local_rank: int) -> float:
        """Return when this worker's exit was noted, on the event loop's clock. Raises KeyError."""
        return self._noted_at[local_rank]

    def note(self, exit_: WorkerExit, *, at: float) -> None:
        """Note the end of a worker. Safe to repeat: the first time counts."""
        local_rank = exit_.local_rank
        if local_rank in self._exits:
            return
        if local_rank in self._killed_for_sigterm and exit_.signal == _SIGKILL:
            exit_ = replace(exit_, signal=_SIGTERM)
        self._exits[local_rank], self._noted_at[local_rank] = exit_, at

    def killed_for_sigterm(self, local_rank: int) -> None:
        """Note that this worker, which holds SIGTERM back, was sent SIGKILL in its place.

        Its death then counts as one by SIGTERM.
        """
        self._killed_for_sigterm.add(local_rank)

    def failed(self) -> list[int]:
        """Return the local ranks of the workers that ended other than with exit code 0."""
        return [rank for rank, exit_ in self._exits.items() if not exit_.succeeded]

    def all_succeeded(self, workers: int) -> bool:
        """Return whether `workers` workers have ended, all of them well."""
        return len(self._exits) == workers and not self.failed()

    def has_unreported_failure(self) -> bool:
        """Return whether a worker has failed that `report` has not returned yet."""
        return any(rank not in self._reported for rank in self.failed())

    def report(self) -> tuple[WorkerExit, ...]:
        """Return the exits that no earlier call has returned."""
        fresh = [rank for rank in self._exits if rank not in self._reported]
        self._reported.update(fresh)
        return tuple(self._exits[rank] for rank in fresh)
