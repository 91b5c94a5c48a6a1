"""Which life of a job an agent belongs to, and how lives are numbered (behaviours R5, F4).

A run id is used again: a job that failed begins anew, and its coordinator may be started anew. Each
life has an incarnation number, which is never used twice and never falls, so that scripts can order
what they write by it. The number begins with the wall clock, in milliseconds: the one thing that a
coordinator without a memory shares with those before it. Where that clock is behind, the numbers
that agents tell and those that are remembered raise it.

An agent that was attached before is no fresh one: it took part in a life, and that life's verdict
is its own, however late it asks. Only a fresh agent begins a job again that has ended, or that
nobody takes part in any more if it has other settings. What is remembered of lives that are over is
bounded; beyond it an agent is told that its job has ended.

Pure: `now` is seconds on the caller's monotonic clock, `wall_ms` milliseconds on the wall clock.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.model import Outcome, Verdict
from rallypoint.core.outcomes import Afterwards

REMEMBERED_MAX = 1000
"""So many lives that are over are remembered, of all jobs."""
EARLIER_MAX = 8
"""The largest number of earlier numbers of one life that are known."""
REMEMBERED_S = 24 * 3600.0
AHEAD_MAX_MS = 100 * 365 * 24 * 3600 * 1000
"""No clock is wrong by a century: a higher number than that has no life had."""
FORGOTTEN = Verdict(
    Outcome.INFRASTRUCTURE,
    "the job ended while this node was disconnected, and the coordinator did not keep the verdict",
    0,
)


class Attachment(Struct, frozen=True):
    """Where an agent was last attached: which life of the job, at which coordinator."""

    incarnation: int
    epoch: int


class Life(Struct, frozen=True):
    """One life of a job."""

    incarnation: int
    verdict: Verdict | None
    """None: it runs; or everybody has left it, and it was forgotten."""
    has_formed: bool = True
    """Its number was given to workers."""
    is_abandoned: bool = False
    """Nobody is left who takes part in it, and who asks has other settings."""
    earlier: tuple[int, ...] = ()
    """Numbers that it had before: agents may know it by one of them."""


class TakePart(Struct, frozen=True):
    """In the life that is hosted; it bears this number from now on."""

    incarnation: int


class BeginLife(Struct, frozen=True):
    """A new one, with this number."""

    incarnation: int


class HearVerdict(Struct, frozen=True):
    """Of a life that is not hosted any more."""

    incarnation: int
    verdict: Verdict


LifeDecision = TakePart | BeginLife | HearVerdict


class _Remembered(Struct, frozen=True):
    life: Life
    at: float


class JobLives:
    """The lives of all jobs of one coordinator."""

    def __init__(self, epoch: int) -> None:
        """`epoch`: the coordinator's own."""
        self._epoch = epoch
        self._newest = 0
        self._over: OrderedDict[tuple[str, int], _Remembered] = OrderedDict()
        """By run id and incarnation, the oldest first."""

    def __len__(self) -> int:
        return len(self._over)

    def first(self, wall_ms: int) -> int:
        """The number of the first life of a job of which nobody knows anything."""
        self._newest = max(wall_ms, self._newest + 1)
        return self._newest

    def over(self, run_id: str, life: Life, now: float) -> None:
        """It is hosted no more."""
        for number in (*life.earlier, life.incarnation):
            self._over.pop((run_id, number), None)
            self._over[run_id, number] = _Remembered(replace(life, incarnation=number), now)
        self._forget_old(now)

    def place(
        self, run_id: str, known: Attachment | None, hosted: Life | None, now: float, wall_ms: int
    ) -> LifeDecision:
        """Where an agent belongs that has no session. `known` is None for a fresh one."""
        self._forget_old(now)
        if known is not None and (place := self._after_absence(run_id, known, hosted)) is not None:
            return place
        verdict = None if hosted is None else hosted.verdict
        is_done = verdict is None or verdict.outcome.row.then is Afterwards.NOTHING
        if hosted is None or hosted.is_abandoned or not is_done:
            told = 0 if known is None else known.incarnation
            earlier = [life.incarnation for life in self._lives(run_id)]
            if hosted is not None:
                earlier.append(hosted.incarnation)
            return BeginLife(max(self.first(wall_ms), told + 1, *(n + 1 for n in earlier)))
        return self.renumber(run_id, known, hosted, now)

    def renumber(self, run_id: str, known: Attachment | None, hosted: Life, now: float) -> TakePart:
        """Take part in the life that is hosted, under a higher number if this agent knows of one.

        A life that has formed a round keeps its number: its workers were told.
        """
        number = hosted.incarnation
        if known is None or known.incarnation < number:
            return TakePart(number)
        if known.incarnation == number and known.epoch == self._epoch:
            return TakePart(number)
        if hosted.has_formed or hosted.verdict is not None:
            return TakePart(number)
        # Who knows the old number, and asks later, is to be a newcomer to the same life.
        self.over(run_id, Life(number, None), now)
        return TakePart(known.incarnation + 1)

    def _after_absence(
        self, run_id: str, known: Attachment, hosted: Life | None
    ) -> TakePart | HearVerdict | None:
        """The verdict of who took part before; None: its life goes on, or nobody knows of it."""
        is_hosted = hosted is not None and hosted.incarnation == known.incarnation
        found = None if is_hosted else self._over.get((run_id, known.incarnation))
        if found is not None and found.life.verdict is not None:
            # Also if it was another coordinator that this one has taken the job over from.
            return HearVerdict(known.incarnation, found.life.verdict)
        if known.epoch == self._epoch and not is_hosted and found is None:
            return HearVerdict(known.incarnation, FORGOTTEN)
        if hosted is not None:
            return None if hosted.verdict is None else TakePart(hosted.incarnation)
        newest = max(self._lives(run_id), key=lambda life: life.incarnation, default=None)
        if newest is None or newest.verdict is None:
            return None
        return HearVerdict(newest.incarnation, newest.verdict)

    def _lives(self, run_id: str) -> list[Life]:
        return [item.life for (job, _), item in self._over.items() if job == run_id]

    def _forget_old(self, now: float) -> None:
        while self._over:
            key, oldest = next(iter(self._over.items()))
            if len(self._over) <= REMEMBERED_MAX and now - oldest.at <= REMEMBERED_S:
                return
            del self._over[key]
