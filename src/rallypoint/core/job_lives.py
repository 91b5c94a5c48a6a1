"""The life of a job that an agent belongs to, and the numbers of lives (behaviours R5, F4).

A run id is used again: a job that failed begins anew, and its coordinator may be started anew. Each
life has an incarnation number, which is never used twice and never falls, so that scripts can order
what they write by it. The number begins with the wall clock, in milliseconds: the one thing that a
coordinator without a memory shares with those before it. Where that clock is behind, the numbers
that agents tell and those that are remembered raise it.

An agent that was attached before is no fresh one: it took part in a life, and that life's verdict
is its own, however late it asks. Only a fresh agent begins a job again that has ended, or that
nobody takes part in any more if it has other settings. What is remembered of lives that are over is
bounded; beyond it an agent is told that its job has ended.

A coordinator may host several lives of one job: the one that new agents join, and a few that are
over, until all their agents have heard how they ended. A job that is begun and left again and again
must not crowd out the others: its oldest lives are dropped, and an agent of one of them hears how
it ended when it attaches again. A job that all agents have left is forgotten after a while.

Pure: `now` is seconds on the caller's monotonic clock, `wall_ms` milliseconds on the wall clock.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.model import DeadPlace, Outcome, Verdict
from rallypoint.core.outcomes import Afterwards

REMEMBERED_MAX = 1000
"""The number of lives that are over and still remembered, of all jobs."""
EARLIER_MAX = 8
"""The largest number of earlier numbers of one life that are known."""
REMEMBERED_S = 24 * 3600.0
AHEAD_MAX_MS = 100 * 365 * 24 * 3600 * 1000
"""No clock is wrong by a century: a higher number than that has no life had."""
JOBS_MAX = 4096
"""The largest number of lives that a stand-alone coordinator hosts. Jobs that all agents have left
make room."""
ENDED_MAX = 4
"""The largest number of lives of one job that are hosted and over."""
EARLY_DEATHS_MAX = 10_000
"""The most deaths that are remembered for jobs which this coordinator does not lead yet."""
VERDICT_RETENTION_S = 600.0
"""A stand-alone coordinator remembers for so long a job that all agents have left."""
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
    """Whether the life's number was given to workers."""
    is_abandoned: bool = False
    """Whether no node takes part in it any more, and the agent that asks has other settings."""
    earlier: tuple[int, ...] = ()
    """Numbers that it had before: agents may know it by one of them."""


class TakePart(Struct, frozen=True):
    """In the life that is hosted; it bears this number from now on."""

    incarnation: int


class BeginLife(Struct, frozen=True):
    """A new one, with this number."""

    incarnation: int
    unheard: int = 0
    """The nodes of the former life that have not heard its verdict, as in `HostedLives`."""


class HearVerdict(Struct, frozen=True):
    """Give an agent the verdict of a life that is not hosted any more."""

    incarnation: int
    verdict: Verdict


class ComeAgain(Struct, frozen=True):
    """The agent is to attach again: the verdict of its life is not recorded yet."""


LifeDecision = TakePart | BeginLife | HearVerdict


class End(Struct, frozen=True):
    """New agents do not join the present life of this job any more."""

    run_id: str
    is_held: bool
    """Whether the life is hosted until its agents have heard how it ended."""


class DropOldest(Struct, frozen=True):
    """Host the oldest life of this job that is over no longer."""

    run_id: str


class FormerGone(Struct, frozen=True):
    """No agent of a life before is here, nor may its workers run: a first round may be formed."""

    run_id: str


class HearDeaths(Struct, frozen=True):
    """No process of these places lives: that was told before this coordinator led the job."""

    run_id: str
    places: tuple[DeadPlace, ...]


class Forget(Struct, frozen=True):
    """Forget this job (`JobLives.forgotten`)."""

    run_id: str


class NoRoom(Struct, frozen=True):
    """No other life can be hosted: what a person is told."""

    text: str


Placed = LifeDecision | ComeAgain | NoRoom
LivesEffect = Placed | End | DropOldest | FormerGone | Forget | HearDeaths


class Hosted(Struct, frozen=True):
    """The lives of one job that are hosted, as their host knows them."""

    life: Life | None = None
    """The one that new agents join; None: there is none."""
    agents: int = 0
    """The number of its agents that are here, or may come back."""
    is_recorded: bool = True
    """Whether none of its decisions waits for a record."""
    held: int = 0
    """The number of lives that are over."""


class Wait(Struct, frozen=True):
    """A wait of the host."""

    run_id: str
    is_for_nodes: bool = False
    """Nodes of the life before may run workers until then. False: the job is forgotten then."""


class _Remembered(Struct, frozen=True):
    life: Life
    at: float


class JobLives:
    """The lives of all jobs of one coordinator. What a method returns is to be done, in order."""

    def __init__(self, epoch: int, *, is_alone: bool = False, begins_anew: bool = True) -> None:
        """`epoch`: the coordinator's own.

        `is_alone`: it hosts one job, and does not forget that. `begins_anew`: it begins that more
        than once.
        """
        self._epoch, self._is_alone, self._begins_anew = epoch, is_alone, begins_anew
        self._newest = 0
        self._over: OrderedDict[tuple[str, int], _Remembered] = OrderedDict()
        """The lives that are over, by run id and incarnation, the oldest first."""
        self._unrecorded: dict[str, set[int]] = {}
        """Lives that were over before their verdict was recorded, by run id. The first record of
        the next life has it."""
        self._unheard: dict[str, tuple[int, float]] = {}
        """The number of nodes of a life that another leader has ended which may run workers yet,
        since they have not heard of its end, by run id; and the seconds until they don't."""
        self._early_deaths: dict[tuple[str, DeadPlace], None] = {}
        """Deaths that were told for jobs which it does not lead yet, each with its run id."""
        self._deserted: dict[str, float] = {}
        """The jobs that all agents have left, by run id, the longest ago first; and the seconds
        until each is forgotten."""

    @property
    def waits(self) -> dict[Wait, float]:
        """The waits that the host keeps, in seconds. One that runs already runs on."""
        waits = {Wait(run_id): wait_s for run_id, wait_s in self._deserted.items()}
        return waits | {Wait(run_id, True): wait_s for run_id, (_, wait_s) in self._unheard.items()}

    def came(
        self,
        run_id: str,
        known: Attachment | None,
        hosted: Hosted,
        now: float,
        wall_ms: int,
        *,
        differs: bool = False,
    ) -> list[LivesEffect]:
        """Note an agent that no life knows.

        `differs`: with other settings than the present life. Where it belongs is the last effect.
        """
        life = hosted.life
        if life is not None and not self._begins_anew:
            return [self.renumber(run_id, known, life, now)]
        if life is not None and not hosted.agents and life.verdict is None:
            life = replace(life, is_abandoned=differs)
        place = self.place(run_id, known, life, now, wall_ms)
        if isinstance(place, BeginLife):
            unheard, _ = self._unheard.get(run_id, (0, 0.0))
            return [*self.forgotten(run_id, hosted, now), replace(place, unheard=unheard)]
        if hosted.is_recorded:
            self._unrecorded.pop(run_id, None)
        is_early = place.incarnation in self._unrecorded.get(run_id, ())
        return [ComeAgain() if is_early else place]

    def forgotten(self, run_id: str, hosted: Hosted, now: float) -> list[LivesEffect]:
        """Return the present life of this job, if there is one, is over."""
        if (life := hosted.life) is None:
            return []
        self._deserted.pop(run_id, None)
        self.over(run_id, life, now)
        if not hosted.is_recorded:
            self._unrecorded.setdefault(run_id, set()).add(life.incarnation)
        held = self.held(run_id, hosted.held + 1) if hosted.agents else []
        return [End(run_id, hosted.agents > 0), *held]

    def held(self, run_id: str, lives: int) -> list[LivesEffect]:
        """Note how many lives of this job are hosted that are over."""
        return [DropOldest(run_id)] if lives > ENDED_MAX else []

    def room(self, run_id: str, lives: int) -> list[LivesEffect]:
        """Another life of this job is to be hosted beside so many lives."""
        if lives < JOBS_MAX:
            return []
        text = f"this coordinator hosts {JOBS_MAX} jobs already: start another one for {run_id!r}"
        return [Forget(next(iter(self._deserted))) if self._deserted else NoRoom(text)]

    def used(self, run_id: str, agents: int, *, is_wanted: bool = True) -> list[LivesEffect]:
        """Note how many agents take part in the present life of this job.

        `is_wanted`: somebody may still ask here how it ended when no agent does.
        """
        if agents:
            self._deserted.pop(run_id, None)
        elif not self._is_alone:
            self._deserted[run_id] = VERDICT_RETENTION_S if is_wanted else 0.0
        return []

    def died_early(self, run_id: str, place: DeadPlace) -> None:
        """No process of this place lives. This coordinator does not lead the job yet."""
        self._early_deaths[run_id, place] = None
        if len(self._early_deaths) > EARLY_DEATHS_MAX:
            del self._early_deaths[next(iter(self._early_deaths))]

    def taken_over(self, run_id: str, unheard: int, wait_s: float) -> list[LivesEffect]:
        """Note that this coordinator leads the job now, and has continued it.

        So many nodes of the life before may run workers for so many seconds.
        """
        if unheard:
            self._unheard[run_id] = unheard, wait_s
        told = tuple(place for run, place in self._early_deaths if run == run_id)
        for place in told:
            del self._early_deaths[run_id, place]
        return [HearDeaths(run_id, told)] if told else []

    def deposed(self, run_id: str) -> list[LivesEffect]:
        """No life of this job is hosted any more: another coordinator leads it."""
        self._deserted.pop(run_id, None)
        self._unheard.pop(run_id, None)
        return []

    def wait_ended(self, wait: Wait, held: int) -> list[LivesEffect]:
        """Note that one of `waits` is over; `held`: as in `Hosted`."""
        if wait.is_for_nodes:
            del self._unheard[wait.run_id]
            return self.gone(wait.run_id, held)
        del self._deserted[wait.run_id]
        return [Forget(wait.run_id)]

    def gone(self, run_id: str, held: int) -> list[LivesEffect]:
        """Note how many lives of this job are held after one of them has lost its last agent."""
        return [] if held or run_id in self._unheard else [FormerGone(run_id)]

    def __len__(self) -> int:
        return len(self._over)

    def first(self, wall_ms: int) -> int:
        """Return the number of the first life of a job of which nobody knows anything."""
        self._newest = max(wall_ms, self._newest + 1)
        return self._newest

    def over(self, run_id: str, life: Life, now: float) -> None:
        """Note that the life is hosted no more."""
        for number in (*life.earlier, life.incarnation):
            self._over.pop((run_id, number), None)
            self._over[run_id, number] = _Remembered(replace(life, incarnation=number), now)
        self._forget_old(now)

    def place(
        self, run_id: str, known: Attachment | None, hosted: Life | None, now: float, wall_ms: int
    ) -> LifeDecision:
        """Return where an agent belongs that has no session. `known` is None for a fresh one."""
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
        """Return the verdict for an agent that took part before.

        None: its life continues, or is not known.
        """
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
