"""A host of `core/job_lives.py` without connections, in virtual time; and transcripts of it.

They are written as those of `scenario.py`. The first command is `serve`:

    serve [alone=1]                 a coordinator of many jobs; or of one, which no other one leads
    attach JOB AGENT [settings=X] [recorded=0]
                                    an agent attaches, and tells where it was attached before; a
                                    life that begins with that is not recorded yet
    leave JOB AGENT                 it leaves, or is lost
    end JOB [recorded=0]            the job fails; and that is not recorded yet
    record JOB                      now it is
    take-over JOB unheard=N         this coordinator leads a job of which so many nodes of the life
                                    before may run workers yet
    die JOB NODE                    a node died, and this coordinator does not lead the job yet
    deposed JOB                     another one leads it
    tick S                          so many seconds pass
"""

from __future__ import annotations

from msgspec import Struct, field
from tests.harness.scenario import options_and_names

from rallypoint.core import job_lives as j
from rallypoint.core.model import DeadPlace, Outcome, Stamp, Verdict

EPOCH, LEASE_S = 7, 18.0
FAILED = Verdict(Outcome.FAILED, "a worker failed", 0)


class HostedLife(Struct, eq=False):
    """One life of a job, as its host keeps it."""

    number: int
    settings: str = ""
    agents: set[str] = field(default_factory=set)
    verdict: Verdict | None = None
    is_recorded: bool = True
    waits_for: int = 0
    """No round is formed beside so many nodes of the life before."""


class LivesHost:
    """All lives of the jobs of one coordinator. `run` executes one command; returns its trace."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.trace: list[str] = []
        self.serve(is_alone=is_alone)

    def serve(self, *, is_alone: bool) -> None:
        """Begin with no job."""
        self.lives = j.JobLives(EPOCH, is_alone=is_alone, begins_anew=not is_alone)
        self.now, self.wall_ms = 0.0, 1000
        self.present: dict[str, HostedLife] = {}
        self.held: dict[str, list[HostedLife]] = {}
        self.waits: dict[j.Wait, float] = {}
        """When each of them ends."""
        self.known: dict[tuple[str, str], j.Attachment] = {}
        """Where each agent of each job was attached last."""

    def run(self, command: str) -> list[str]:
        """Raises ValueError for a command that is unknown or malformed."""
        name, *words = command.split()
        options, names = options_and_names(words)
        self.trace = []
        match name, names:
            case "serve", []:
                self.serve(is_alone=options.get("alone") == "1")
            case "attach", [job, agent]:
                is_recorded = options.get("recorded") != "0"
                self.attach(job, agent, options.get("settings", ""), is_recorded=is_recorded)
            case "leave", [job, agent]:
                self.leave(job, agent)
            case "end", [job]:
                self.end(job, is_recorded=options.get("recorded") != "0")
            case "record", [job]:
                self.present[job].is_recorded = True
            case "take-over", [job]:
                self.take_over(job, int(options["unheard"]))
            case "die", [job, node]:
                self.lives.died_early(job, DeadPlace(Stamp(1, 0), 0, node))
            case "deposed", [job]:
                self.deposed(job)
            case "tick", [seconds]:
                self.tick(float(seconds))
            case _:
                raise ValueError(f"not a command: {command!r}")
        return self.trace

    def hosted(self, job: str) -> j.Hosted:
        held = len(self.held.get(job, ()))
        if (life := self.present.get(job)) is None:
            return j.Hosted(held=held)
        seen = j.Life(life.number, life.verdict)
        return j.Hosted(seen, len(life.agents), life.is_recorded, held)

    def attach(
        self, job: str, agent: str, settings: str = "", *, is_recorded: bool = True
    ) -> j.LivesEffect | None:
        """Returns where the agent belongs; None: one of the lives knows it, or it is refused."""
        life = self.present.get(job)
        known_by = [*self.held.get(job, ()), *([] if life is None else [life])]
        if any(agent in each.agents for each in known_by):
            return None
        if life is None or life.verdict is not None:
            lives = len(self.present) + sum(map(len, self.held.values()))
            if isinstance(refused := self.do(self.lives.room(job, lives)), j.NoRoom):
                self.trace.append(f"{agent} <- {refused.text}")
                return refused
        known, hosted = self.known.get((job, agent)), self.hosted(job)
        differs = life is not None and life.settings != settings
        self.wall_ms += 1
        came = self.lives.came(job, known, hosted, self.now, self.wall_ms, differs=differs)
        placed = self.do(came)
        match placed:
            case j.TakePart(number):
                self.present[job].number = number
                self.join(job, agent, self.present[job], "takes part in")
            case j.BeginLife(number, unheard):
                former = max(sum(len(each.agents) for each in self.held.get(job, ())), unheard)
                life = self.present[job] = HostedLife(
                    number, settings, is_recorded=is_recorded, waits_for=former
                )
                self.join(job, agent, life, "begins")
                if former:
                    self.trace.append(f"{job} waits for {former} of the life before")
            case j.HearVerdict(number, verdict):
                self.hear(job, agent, number, verdict)
            case j.ComeAgain():
                self.trace.append(f"{agent} <- come again")
        return placed

    def join(self, job: str, agent: str, life: HostedLife, how: str) -> None:
        life.agents.add(agent)
        self.known[job, agent] = j.Attachment(life.number, EPOCH)
        self.trace.append(f"{agent} {how} life {life.number} of {job}")
        self.do(self.lives.used(job, len(life.agents)))

    def hear(self, job: str, agent: str, number: int, verdict: Verdict) -> None:
        self.trace.append(f"{agent} <- life {number} of {job} has ended: {verdict.text}")
        held = self.held.setdefault(job, [])
        if (life := next((each for each in held if each.number == number), None)) is None:
            life = HostedLife(number, verdict=verdict)
            held.append(life)
        life.agents.add(agent)
        self.do(self.lives.held(job, len(held)))

    def leave(self, job: str, agent: str) -> None:
        """The agent leaves each life that knows it."""
        held = self.held.get(job, [])
        for life in [each for each in held if agent in each.agents]:
            life.agents.discard(agent)
            if not life.agents:
                held.remove(life)
                self.do(self.lives.gone(job, len(held)))
        present = self.present.get(job)
        if present is not None and agent in present.agents:
            present.agents.discard(agent)
            if not present.agents:
                self.do(self.lives.used(job, 0))

    def end(self, job: str, *, is_recorded: bool = True) -> None:
        self.present[job].verdict, self.present[job].is_recorded = FAILED, is_recorded

    def take_over(self, job: str, unheard: int) -> None:
        self.wall_ms += 1
        self.present[job] = HostedLife(self.wall_ms)
        self.do(self.lives.taken_over(job, unheard, LEASE_S))
        self.do(self.lives.used(job, 0))

    def deposed(self, job: str) -> None:
        self.present.pop(job, None)
        self.held.pop(job, None)
        self.do(self.lives.deposed(job))

    def tick(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [(at, wait.run_id, wait) for wait, at in self.waits.items() if at <= end]:
            self.now, job, wait = min(due, key=lambda each: each[:2])
            del self.waits[wait]
            self.do(self.lives.wait_ended(wait, len(self.held.get(job, ()))))
        self.now = end

    def do(self, effects: list[j.LivesEffect]) -> j.LivesEffect | None:
        found = None
        for effect in effects:
            match effect:
                case j.End(job, is_held):
                    life = self.present.pop(job)
                    assert is_held == bool(life.agents), "a life is held for its agents alone"
                    if is_held:
                        self.held.setdefault(job, []).append(life)
                    how = "is held for its agents" if is_held else "is over"
                    self.trace.append(f"life {life.number} of {job} {how}")
                case j.DropOldest(job):
                    oldest = self.held[job].pop(0)
                    self.trace.append(f"life {oldest.number} of {job} is dropped")
                case j.FormerGone(job):
                    if job in self.present and self.present[job].waits_for:
                        self.present[job].waits_for = 0
                        self.trace.append(f"{job} waits for no life before")
                case j.HearDeaths(job, places):
                    dead = ", ".join(place.node_id for place in places)
                    self.trace.append(f"{job} hears that {dead} died")
                case j.Forget(job):
                    self.forget(job)
                case _:
                    found = effect
        wanted = self.lives.waits
        self.waits = {w: self.waits.get(w, self.now + wait_s) for w, wait_s in wanted.items()}
        return found

    def forget(self, job: str) -> None:
        assert not self.present[job].agents, "nobody forgets a job that has agents"
        self.trace.append(f"@{self.now:g} {job} is forgotten")
        self.do(self.lives.forgotten(job, self.hosted(job), self.now))
