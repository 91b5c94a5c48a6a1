"""What simulated workers train: which step each of them has done at which moment, and what of that
is done again after a restart. In true time, and drawn from the seed alone."""

from __future__ import annotations

from math import inf
from random import Random

from msgspec import Struct

from rallypoint.core.model import Stamp

SAVED_EVERY = 10
"""Steps: a round begins behind the last one of which there is a checkpoint."""
STALL_SHARE = 0.2
"""Of the rounds: all workers make no step for a while, or never again."""


class RoundOfSteps(Struct, frozen=True):
    """The steps of the workers of one round, each of which does them at the same pace."""

    first: int
    """The one that they do first."""
    startup_s: float
    """After the start of a worker that is done."""
    step_s: float
    stalls_after: float = inf
    """So many steps later the next one takes `stall_s` more."""
    stall_s: float = 0.0

    def at(self, ran_s: float) -> tuple[int, float] | None:
        """The step that a worker has done which has run for so long, and after how long it was
        done; None: it has done none."""
        if ran_s < self.startup_s:
            return None
        number = int((ran_s - self.startup_s) / self.step_s)
        if number > self.stalls_after:
            late = int((ran_s - self.startup_s - self.stall_s) / self.step_s)
            number = max(late, int(self.stalls_after))
        done_s = self.startup_s + number * self.step_s
        return self.first + number, done_s + (self.stall_s if number > self.stalls_after else 0.0)


class Run(Struct):
    """One worker that does steps."""

    steps: RoundOfSteps
    began_at: float
    ended_at: float = inf

    def at(self, now_s: float) -> tuple[int, float] | None:
        """The step that it has done by now, and when."""
        done = self.steps.at(min(now_s, self.ended_at) - self.began_at)
        return None if done is None else (done[0], self.began_at + done[1])


class Training:
    """Of one job, in all its rounds and lives."""

    def __init__(self, seed: int, step_s: float, *, is_prompt: bool) -> None:
        """`step_s`: 0 for workers that tell of no step. `is_prompt`: all clocks run alike, and
        nothing delays what nodes say."""
        self._seed, self.step_s, self.is_prompt = seed, step_s, is_prompt
        self._runs: dict[Stamp, list[Run]] = {}
        self._running, self._since, self._ran_s = 0, 0.0, 0.0

    def begin(self, stamp: Stamp, now_s: float) -> Run:
        """A worker of this round starts."""
        if not self._running:
            self._since = now_s
        self._running += 1
        others = self._runs.get(stamp)
        if others is None:
            furthest = self.furthest(now_s)
            others = self._runs[stamp] = []
            steps = self._draw(stamp, furthest // SAVED_EVERY * SAVED_EVERY if furthest >= 0 else 0)
        else:
            steps = others[0].steps
        others.append(Run(steps, now_s))
        return others[-1]

    def end(self, run: Run, now_s: float) -> None:
        """It has ended."""
        run.ended_at = now_s
        self._running -= 1
        if not self._running:
            self._ran_s += now_s - self._since

    def ran_s(self, now_s: float) -> float:
        """For how long some worker ran."""
        return self._ran_s + (now_s - self._since if self._running else 0.0)

    def furthest(self, now_s: float) -> int:
        """The largest step that was ever done; -1: none."""
        return max((self._last(runs, now_s) for runs in self._runs.values()), default=-1)

    def done(self, now_s: float) -> int:
        """How many steps were done, each as often as it was."""
        lasts = ((runs[0].steps.first, self._last(runs, now_s)) for runs in self._runs.values())
        return sum(last - first + 1 for first, last in lasts if last >= 0)

    def _last(self, runs: list[Run], now_s: float) -> int:
        return max(done[0] if (done := run.at(now_s)) else -1 for run in runs)

    def _draw(self, stamp: Stamp, first: int) -> RoundOfSteps:
        if not self.step_s:
            return RoundOfSteps(first, inf, inf)
        rng = Random(f"{self._seed} steps of {stamp}")
        startup_s = rng.choice((0.0, 0.5, 3.0)) * rng.random()
        if rng.random() >= STALL_SHARE:
            return RoundOfSteps(first, startup_s, self.step_s)
        after, stall_s = rng.randrange(20), rng.choice((5.0, 40.0, 1000.0))
        return RoundOfSteps(first, startup_s, self.step_s, after, stall_s)
