"""Until when this node holds its place in the job, and who must know: the workers, which see it on
their board, and the guard, which ends them at that time if the agent is stopped."""

from __future__ import annotations

from collections.abc import Callable


class HeldPlace:
    """For the thread of the loop. Times are seconds on CLOCK_BOOTTIME; 0: not known, or nobody
    takes the place."""

    def __init__(self, tell_guard: Callable[[float], None]) -> None:
        self._tell_guard = tell_guard
        self._tell_workers: Callable[[float], None] | None = None
        self._until = 0.0
        self._is_fenced = False

    def tell_workers(self, told: Callable[[float], None]) -> None:
        """Have this told from now on."""
        self._tell_workers = told
        told(self._until)

    def renewed(self, until: float) -> None:
        """The coordinator grants it until then."""
        self._until = until
        if self._tell_workers is not None:
            self._tell_workers(until)
        self.fence(self._is_fenced)

    def fence(self, is_fenced: bool) -> None:
        """Whether what runs here must end when the lease does."""
        self._is_fenced = is_fenced
        self._tell_guard(self._until if is_fenced else 0.0)
