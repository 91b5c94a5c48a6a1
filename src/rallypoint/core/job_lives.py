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
"""The most numbers of ended lives (runs), of all jobs together, that are remembered."""
EARLIER_MAX = 8
"""The most earlier numbers of one life (run) of a job that are remembered."""
REMEMBERED_S = 24 * 3600.0
AHEAD_MAX_MS = 100 * 365 * 24 * 3600 * 1000
"""A century in milliseconds: how far the number of a life that an agent tells may be ahead of the
wall clock. A higher one is lowered to that."""
JOBS_MAX = 4096
"""The most lives (runs of jobs) that a coordinator hosts. For another one, a job that all agents
have left is removed; if there is none, the agent is refused."""
ENDED_MAX = 4
"""The most ended lives (runs) of one job that a coordinator still hosts."""
EARLY_DEATHS_MAX = 10_000
"""The most deaths that are remembered for jobs that this coordinator does not lead yet."""
VERDICT_RETENTION_S = 600.0
"""How long a coordinator of many jobs (`rallypoint serve`) remembers a job that all agents have
left, in seconds."""
FORGOTTEN = Verdict(
    Outcome.INFRASTRUCTURE,
    "the job ended while this node was disconnected, and the coordinator did not keep the verdict",
    0,
)


class Attachment(Struct, frozen=True):
    """The life (run) of the job that an agent last took part in, and its coordinator's epoch."""

    incarnation: int
    epoch: int


class Life(Struct, frozen=True):
    """One life (run) of a job: its number, and its verdict if it has ended."""

    incarnation: int
    verdict: Verdict | None
    """The verdict; None: the life runs, perhaps under a later number, or it was forgotten after all
    nodes had left it."""
    has_formed: bool = True
    """Whether a round was formed, so that workers know the life's number."""
    is_abandoned: bool = False
    """Whether no agent takes part any more, and the agent that comes now has other settings."""
    earlier: tuple[int, ...] = ()
    """The earlier numbers of this life, by which agents may still know it."""


class TakePart(Struct, frozen=True):
    """The decision that an agent joins the hosted life (run), which has this number from now on."""

    incarnation: int


class BeginLife(Struct, frozen=True):
    """The decision to begin a new life (run) of the job with this number, for an agent."""

    incarnation: int
    unheard: int = 0
    """The number of nodes of the former life that have not heard its verdict, and may run
    workers."""


class HearVerdict(Struct, frozen=True):
    """The decision to give an agent the verdict of a life (run) that is no longer hosted."""

    incarnation: int
    verdict: Verdict


class ComeAgain(Struct, frozen=True):
    """The decision that the agent has to attach again: its life's verdict is not recorded yet."""


LifeDecision = TakePart | BeginLife | HearVerdict


class End(Struct, frozen=True):
    """The effect to admit no more new agents to the present life (run) of this job."""

    run_id: str
    is_held: bool
    """Whether the life stays hosted until its agents have heard its verdict; else it is closed
    now."""


class DropOldest(Struct, frozen=True):
    """The effect to stop hosting the oldest ended life (run) of this job."""

    run_id: str


class FormerGone(Struct, frozen=True):
    """The effect to let the first round form, as no worker of an earlier life can be left."""

    run_id: str


class HearDeaths(Struct, frozen=True):
    """The effect to handle the deaths of nodes, reported before this coordinator led the job."""

    run_id: str
    places: tuple[DeadPlace, ...]


class Forget(Struct, frozen=True):
    """The effect to end the present life (run) of this job, and to lead the job no more."""

    run_id: str


class NoRoom(Struct, frozen=True):
    """The decision to refuse an agent with this message, as no other life can be hosted."""

    text: str


Placed = LifeDecision | ComeAgain | NoRoom
LivesEffect = Placed | End | DropOldest | FormerGone | Forget | HearDeaths


class Hosted(Struct, frozen=True):
    """The lives (runs) of one job that a coordinator hosts: the present one and ended ones."""

    life: Life | None = None
    """The present life, which new agents join; None: there is none."""
    agents: int = 0
    """The number of agents of the present life that are connected, or may return."""
    is_recorded: bool = True
    """Whether all decisions of the present life are in the job's record."""
    held: int = 0
    """The number of ended lives of the job that are still hosted."""


class Wait(Struct, frozen=True):
    """A timer that the coordinator has to keep for one job."""

    run_id: str
    is_for_nodes: bool = False
    """Whether nodes of an earlier life may run workers until the timer ends; else the job is
    forgotten at its end."""


class _Remembered(Struct, frozen=True):
    life: Life
    at: float


class JobLives:
    """The lives (runs) of all jobs of a coordinator.

    Most methods return effects to carry out, in order.
    """

    def __init__(self, epoch: int, *, is_alone: bool = False, begins_anew: bool = True) -> None:
        """Make the lives of a coordinator of this epoch.

        `is_alone`: it hosts one job, which is not forgotten when all agents have left.
        `begins_anew`: that job may have several lives; without it each agent joins the same one,
        even after its end.
        """
        self._epoch, self._is_alone, self._begins_anew = epoch, is_alone, begins_anew
        self._newest = 0
        self._over: OrderedDict[tuple[str, int], _Remembered] = OrderedDict()
        """The ended lives, and lives under numbers that they no longer have, by run id and number.
        The first is the one that was added first."""
        self._unrecorded: dict[str, set[int]] = {}
        """The numbers of lives that were replaced before their verdict was recorded, by run id. The
        first record of the next life has the verdict."""
        self._unheard: dict[str, tuple[int, float]] = {}
        """The nodes that have not heard the end of their life, which another leader ended, and may
        run workers: their number by run id, and the seconds until the workers have stopped."""
        self._early_deaths: dict[tuple[str, DeadPlace], None] = {}
        """The reported deaths for jobs that this coordinator does not lead yet: run id and place of
        each."""
        self._deserted: dict[str, float] = {}
        """The seconds until each job that all agents have left is forgotten, by run id, the longest
        left first."""

    @property
    def waits(self) -> dict[Wait, float]:
        """The timers that the coordinator has to keep, in seconds.

        One that runs already continues.
        """
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
        """Decide to which life an agent belongs that no hosted life knows.

        The decision is the last effect. `differs`: its settings are not those of the present life.
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
        """End the present life of this job, if there is one, and remember it."""
        if (life := hosted.life) is None:
            return []
        self._deserted.pop(run_id, None)
        self.over(run_id, life, now)
        if not hosted.is_recorded:
            self._unrecorded.setdefault(run_id, set()).add(life.incarnation)
        held = self.held(run_id, hosted.held + 1) if hosted.agents else []
        return [End(run_id, hosted.agents > 0), *held]

    def held(self, run_id: str, lives: int) -> list[LivesEffect]:
        """Drop the oldest ended life of this job if `lives`, the number of those, is too large."""
        return [DropOldest(run_id)] if lives > ENDED_MAX else []

    def room(self, run_id: str, lives: int) -> list[LivesEffect]:
        """Make room for another life, where a coordinator hosts `lives` lives of all jobs.

        If these are too many, forget the job that all agents left first; if there is none, refuse.
        """
        if lives < JOBS_MAX:
            return []
        text = f"this coordinator hosts {JOBS_MAX} jobs already: start another one for {run_id!r}"
        return [Forget(next(iter(self._deserted))) if self._deserted else NoRoom(text)]

    def used(self, run_id: str, agents: int, *, is_wanted: bool = True) -> list[LivesEffect]:
        """Note how many agents take part in the present life of this job.

        If none does, the job is forgotten after a while, but never by a coordinator of one job.
        `is_wanted`: a person may still ask how it ended; else it is forgotten at once.
        """
        if agents:
            self._deserted.pop(run_id, None)
        elif not self._is_alone:
            self._deserted[run_id] = VERDICT_RETENTION_S if is_wanted else 0.0
        return []

    def died_early(self, run_id: str, place: DeadPlace) -> None:
        """Note that the agent and the workers at this place, a rank in a round, have died.

        Their job is not led here yet.
        """
        self._early_deaths[run_id, place] = None
        if len(self._early_deaths) > EARLY_DEATHS_MAX:
            del self._early_deaths[next(iter(self._early_deaths))]

    def taken_over(self, run_id: str, unheard: int, wait_s: float) -> list[LivesEffect]:
        """Note that this coordinator has taken the job over, and leads it now.

        `unheard` is how many nodes of an earlier life may still run workers, for `wait_s` seconds.
        Returns the effect to handle the deaths that were reported early, if any.
        """
        if unheard:
            self._unheard[run_id] = unheard, wait_s
        told = tuple(place for run, place in self._early_deaths if run == run_id)
        for place in told:
            del self._early_deaths[run_id, place]
        return [HearDeaths(run_id, told)] if told else []

    def deposed(self, run_id: str) -> list[LivesEffect]:
        """Forget what is awaited for this job, because another coordinator leads it now."""
        self._deserted.pop(run_id, None)
        self._unheard.pop(run_id, None)
        return []

    def wait_ended(self, wait: Wait, held: int) -> list[LivesEffect]:
        """Handle the end of one of `waits`; `held` ended lives are still hosted.

        The job is forgotten, or its first round may form.
        """
        if wait.is_for_nodes:
            del self._unheard[wait.run_id]
            return self.gone(wait.run_id, held)
        del self._deserted[wait.run_id]
        return [Forget(wait.run_id)]

    def gone(self, run_id: str, held: int) -> list[LivesEffect]:
        """Note that an ended life has lost its last agent; `held` ended lives are still hosted.

        If there are none, and no node of an earlier life is waited for, the first round of the
        present life may form.
        """
        return [] if held or run_id in self._unheard else [FormerGone(run_id)]

    def __len__(self) -> int:
        return len(self._over)

    def first(self, wall_ms: int) -> int:
        """Return a number for a new life: `wall_ms`, but above the last number given."""
        self._newest = max(wall_ms, self._newest + 1)
        return self._newest

    def over(self, run_id: str, life: Life, now: float) -> None:
        """Remember a life under each of the numbers that `life` has.

        It is not hosted, or has no longer this number.
        """
        for number in (*life.earlier, life.incarnation):
            self._over.pop((run_id, number), None)
            self._over[run_id, number] = _Remembered(replace(life, incarnation=number), now)
        self._forget_old(now)

    def place(
        self, run_id: str, known: Attachment | None, hosted: Life | None, now: float, wall_ms: int
    ) -> LifeDecision:
        """Return to which life an agent without a session belongs, given the present one.

        `known` is what it last took part in; None: it is a fresh agent.
        """
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
        """Let an agent take part in the hosted life, which gets a higher number if it must.

        It must if the agent comes from a life with a higher number, or with the same number from
        another coordinator's epoch. A life that has formed a round, or has ended, keeps its number.
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
        """Return the decision about an agent that took part before; None: nothing is decided.

        It gets the verdict of its life, or hears that it was forgotten if this coordinator led that
        life. Else it joins the present life to hear its verdict, or gets that of the newest life
        that is remembered. None if the present life has not ended, or if there is none and no
        verdict is remembered.
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
