"""The machines of one simulated job: starts them, and knows which of them live."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from random import Random

from msgspec.structs import replace
from tests.simulator.coordinators import CoordinatorProcess, Simulated
from tests.simulator.facts import Life
from tests.simulator.invariants import Invariants
from tests.simulator.leaders import LeadingProcess
from tests.simulator.leading_invariants import LeadingInvariants
from tests.simulator.led_invariants import LedInvariants
from tests.simulator.loop import MachineClock, ProcessLoop, Schedule
from tests.simulator.machines import AgentProcess, Guard, Machine, MakeProcess
from tests.simulator.network import Network
from tests.simulator.people import People
from tests.simulator.plan import FORMER, LEADER, STOP_GRACE_S, Plan
from tests.simulator.register import SimulatedRegister
from tests.simulator.rules.charges import Charges
from tests.simulator.rules.departures import Departures
from tests.simulator.rules.fitness import FitnessRules
from tests.simulator.rules.growth import Growth
from tests.simulator.rules.links import Links
from tests.simulator.serves import Serves
from tests.simulator.training import Training
from tests.simulator.transcript import Transcript
from tests.simulator.workers import Badness

from rallypoint.core.model import DeadPlace, NodeRef

MACHINES_MAX = 3000


class SimulatedCluster:
    """Of one plan; without a machine, but for the one of a stand-alone coordinator."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.network = Network(self.schedule, plan.seed)
        config = plan.config()
        settings = config.rendezvous.shared()
        self.bad: dict[str, Badness] = {}
        """The defects of each machine, by its name."""
        rules = Invariants(settings)
        self._leading: LeadingInvariants | None = None
        if plan.any_leads:
            rules = self._leading = LeadingInvariants(
                settings, is_gentle=plan.is_gentle, slow_way_s=plan.slow_way_s
            )
        elif plan.register:
            rules = LedInvariants(settings, is_gentle=plan.is_gentle)
        rules.fitness, rules.is_broken = FitnessRules(self.bad), plan.program.broken_s > 0
        self.transcript = Transcript(self.schedule, rules)
        self._departures = Departures(rules, settings)
        more = (kind(rules, settings) for kind in (Growth, Links, Charges))
        self.transcript.more = (self._departures, *more)
        self.machines: list[Machine] = []
        self.shared = Simulated(
            plan.seed,
            self.schedule,
            self.network,
            self.transcript,
            config,
            plan.program,
            Training(plan.seed, plan.program.step_s, is_prompt=plan.is_prompt),
            plan.embedded,
            plan.coordinator_host,
            [0],
            {},
            settings,
            self.bad,
            plan.wall_step_ms,
        )
        self._people: People | None = None
        register = None
        if plan.register:
            is_here = plan.register != "elsewhere"
            register = SimulatedRegister(
                self.schedule,
                self._stored,
                self._lost,
                self._put_back,
                knows_the_dead=is_here,
            )
        self.serves = Serves(self.shared, self._clock, register, lambda: self.rules.leader)
        if isinstance(rules, LedInvariants):
            rules.acting = self._acting
        self._disturbances = 0
        self._on_swap: Callable[[str], None] = lambda host: None
        if not plan.embedded and not plan.any_leads:
            self.start_serve(plan.coordinator_host)

    @property
    def rules(self) -> Invariants:
        """What must hold."""
        return self.transcript.rules

    @property
    def live(self) -> list[Machine]:
        """Those whose agent runs."""
        return [machine for machine in self.machines if not machine.is_over]

    def of(self, name: str) -> Machine | None:
        """The one of this name, or that leads, or did before, whose agent runs."""
        if name == FORMER:
            life = "" if self._leading is None else self._leading.former_life
            return next((each for each in self.live if each.ref.incarnation == life), None)
        if name == LEADER:
            name = self.leader
        return next((machine for machine in self.live if machine.name == name), None)

    @property
    def leader(self) -> str:
        """The name of the machine whose agent leads, by the register; empty: none does."""
        life = "" if self._leading is None else self._leading.leading_life
        return next((each.name for each in self.live if each.ref.incarnation == life), "")

    @property
    def is_deserted(self) -> bool:
        """No agent runs that has a place in the newest world."""
        newest = max(self.rules.worlds, key=attrgetter("incarnation", "round"), default=None)
        lives = self.rules.worlds[newest].lives if newest is not None else ()
        return all(each.ref.incarnation not in lives for each in self.live)

    def start(self, name: str, node_id: str = "") -> None:
        """A new agent on this machine, with a node id of its own or of another's."""
        if len(self.machines) >= MACHINES_MAX:
            return
        life = f"{name}-{len(self.machines) + 1}"
        hosts = self.plan.embedded and name == self.plan.coordinator_host
        ref = NodeRef(node_id or name, life)
        has_fence = self.shared.settings.max_nodes > 1
        grace_s = self.plan.graces.get(name, STOP_GRACE_S)
        rate = self.plan.rates.get(name, 1.0)
        self.rules.lives[life] = Life(ref, rate, has_fence, stop_grace_s=grace_s)
        self.transcript.say(name, f"starts as node {ref}")
        self.network.appear(name)
        shared = self.shared
        if grace_s != STOP_GRACE_S:
            stop = replace(shared.config.stop, restart_grace_s=grace_s)
            shared = replace(shared, config=replace(shared.config, stop=stop))
        machine = Machine(shared, name, ref, self._clock(name), self._maker(hosts))
        machine.process.dispatcher.subscribe(self.transcript.follow(name))
        self.machines.append(machine)
        if hosts:
            self.rules.coordinator_started(self.shared.lives[0])

    def _maker(self, hosts: bool) -> MakeProcess:
        register, rules = self.serves.register, self._leading
        if rules is None or register is None:
            return partial(AgentProcess, hosts=hosts)

        def make(machine: Machine, loop: ProcessLoop, guard: Guard) -> AgentProcess:
            dead = self._dead_on(machine.name)
            process = LeadingProcess(machine, loop, guard, register, dead)
            rules.leads_as(process.number, machine.ref.incarnation)
            return process

        return make

    def badness(self, name: str) -> Badness:
        """The defects of this machine."""
        return self.bad.setdefault(name, Badness())

    def _dead_on(self, name: str) -> tuple[DeadPlace, ...]:
        """List the places of former agents on this machine of which nothing runs."""
        before = (each for each in self.machines if each.name == name and each.is_over)
        ended = (each.process.end for each in before if not each.place.workers)
        places = (None if end is None else end.dead_place for end in ended)
        return tuple(place for place in places if place is not None)

    def start_serve(self, host: str) -> None:
        """A coordinator of its own."""
        self.serves.start(host)
        self.rules.coordinator_started(self.shared.lives[0])

    def want(self, kind: str, node_id: str) -> None:
        """A person wants this of the job, or that this node leaves it."""
        if self._people is None:
            clock = MachineClock(self.schedule, 1.0, 0.0)
            self._people = People(self.shared, clock, self._wanted_to_go)
        host = self.leader if self.plan.any_leads else self.plan.coordinator_host
        if host:
            self._people.want(kind, host, node_id)

    @property
    def waiting_people(self) -> list[str]:
        """The answers that people wait for, of coordinators whose machines have not vanished."""
        vanished = {machine.name for machine in self.machines if machine.has_vanished}
        hosts = {machine.name for machine in self.machines} - vanished
        hosts.add(self.plan.coordinator_host)
        return [] if self._people is None else self._people.waiting(hosts - vanished)

    def _wanted_to_go(self, node_id: str) -> None:
        lives = [each.ref.incarnation for each in self.live if each.ref.node_id == node_id]
        if len(lives) == 1:
            self._departures.wanted_to_go(lives[0], self.rules.leader)

    def kill_serve(self, process: CoordinatorProcess) -> None:
        """It is killed."""
        self.serves.kill(process)
        self.rules.coordinator_died()

    def _stored(self, record: bytes) -> None:
        if self._leading is not None and (text := self._leading.told_of(record)):
            self.transcript.say("register", text)
        self.transcript.stored(record)
        self.serves.direct()
        if self._leading is not None:
            self.network.reports(self.leader)
        self._on_swap(self.leader)

    def _acting(self) -> set[int]:
        """The epochs of the leaders that may act now, as far as each of them knows."""
        processes = [machine.process for machine in self.live]
        own = [each.leads for each in processes if isinstance(each, LeadingProcess)]
        serves = [each.leads for each in self.serves.running]
        leading = (each for each in (*own, *serves) if each is not None and each.is_sure)
        return {each.lead.epoch.as_int() for each in leading}

    def _lost(self) -> None:
        """What was stored last is in the register no more."""
        self.transcript.say("register", "what was stored last is lost")
        if isinstance(self.rules, LedInvariants):
            self.rules.unstored()
        self.serves.direct()

    def _put_back(self, record: bytes | None) -> None:
        what = "no value is there any more" if record is None else "an older value is there again"
        self.transcript.say("register", what)
        self.rules.put_back(record)
        self.serves.direct()

    def follow_swaps(self, on_swap: Callable[[str], None]) -> None:
        """Call this with the machine that leads when a value was stored."""
        self._on_swap = on_swap

    def disturb(self, number: int) -> None:
        """So many faults more last, or fewer."""
        self._disturbances += number
        self.rules.disturbed_at = self.schedule.now_s

    def step(self) -> bool:
        """The next thing happens; False: nothing is left."""
        went_on = self.schedule.step()
        rules, now_s = self.transcript.rules, self.schedule.now_s
        rules.now_s = now_s
        if self._disturbances:
            rules.disturbed_at = now_s
        return went_on

    def discard(self) -> None:
        """At the very end."""
        for machine in self.machines:
            machine.discard()
        for process in self.serves.running:
            process.loop.discard()
        if self._people is not None:
            self._people.discard()

    def _clock(self, name: str) -> MachineClock:
        rate = self.plan.rates.get(name, 1.0)
        return MachineClock(self.schedule, rate, Random(name).uniform(100.0, 10_000.0))
