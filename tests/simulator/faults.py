"""Breaks a simulated cluster as its plan says, and mends it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from msgspec.structs import replace
from tests.simulator.cluster import SimulatedCluster
from tests.simulator.leaders import LeadingProcess
from tests.simulator.loop import ProcessLoop
from tests.simulator.machines import Machine
from tests.simulator.people import WISHES
from tests.simulator.plan import LEADER, Fault
from tests.simulator.register import TROUBLES
from tests.simulator.serves import SECOND

from rallypoint.core.model import Outcome

KINDS_OF_PEOPLE = (*WISHES, "drain")


class Faults:
    """Those of one plan."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._schedule, self._network = cluster.schedule, cluster.network
        self._random = Random(f"{cluster.plan.seed} faults")
        self._armed: list[Fault] = []
        """Those that wait for a report."""
        self._is_peace = False
        self._undo: dict[int, Callable[[], object]] = {}
        """What mends that which lasts."""
        self._lasting = 0
        self._expected: list[Fault] = []
        """Those that wait for a state of the job."""
        self._caught: list[Fault] = []
        """Those that wait for a value to be stored."""
        self.moments: list[tuple[Fault, str]] = []
        """What went wrong, and what the job did when it did."""
        self._network.follow(self._reported)
        cluster.transcript.follow_job(self._stepped)
        cluster.follow_swaps(self._swapped)
        for fault in cluster.plan.faults:
            self._schedule.at(fault.at_s, partial(self._arm, fault))

    def end(self) -> None:
        """From now on nothing goes wrong; what lasts is mended."""
        self._is_peace = True
        for bad in self._cluster.bad.values():
            bad.mend()
        for number in list(self._undo):
            self._mend(number)

    def _for(self, length_s: float, undo: Callable[[], object]) -> None:
        """What was just done is undone after so long, or at the end."""
        self._cluster.disturb(1)
        self._lasting += 1
        self._undo[self._lasting] = undo
        self._schedule.after(length_s, partial(self._mend, self._lasting))

    def _mend(self, number: int) -> None:
        if (undo := self._undo.pop(number, None)) is not None:
            self._cluster.disturb(-1)
            undo()

    def _arm(self, fault: Fault) -> None:
        """At once, or in a state or at a report to come."""
        if fault.state:
            self._expected.append(fault)
            self._stepped()
            return
        if not fault.reports:
            self._break(fault)
            return
        self._armed.append(fault)

    def _reported(self, host: str) -> None:
        waiting, self._armed = self._armed, []
        for fault in waiting:
            node = self._cluster.leader if fault.node == LEADER else fault.node
            if node not in ("", host) or fault.at_s > self._schedule.now_s:
                self._armed.append(fault)
            elif fault.reports > 1:
                self._armed.append(replace(fault, reports=fault.reports - 1))
            else:
                delay_s = self._random.choice((0.0, 0.0005, 0.002))
                self._schedule.after(delay_s, partial(self._break, fault))

    def _stepped(self) -> None:
        """The job has been told something."""
        if not self._expected:
            return
        state, waiting, self._expected = self._cluster.transcript.state, self._expected, []
        for fault in waiting:
            if fault.state != state:
                self._expected.append(fault)
            elif fault.reports:
                self._armed.append(fault)
            else:
                delay_s = self._random.choice((0.0, 0.0, 0.0005, 0.002))
                self._schedule.after(delay_s, partial(self._break, fault))

    def _swapped(self, host: str) -> None:
        """This machine has stored a value, and does not know it yet."""
        waiting, self._caught = self._caught, []
        for fault in waiting:
            machine = self._cluster.of(fault.node) if fault.kind == "catch" else None
            if fault.kind == "lose" or (machine is not None and machine.name == host):
                self._schedule.after(0.0, partial(self._break_now, fault))
            else:
                self._caught.append(fault)

    def _break(self, fault: Fault) -> None:
        if fault.kind in ("catch", "lose"):
            self._caught.append(fault)
        else:
            self._break_now(fault)

    def _break_now(self, fault: Fault) -> None:
        if self._is_peace:
            return
        if fault.node != LEADER or self._cluster.leader:
            self.moments.append((fault, self._cluster.transcript.state))
        self._cluster.transcript.say("", f"-- {str(fault).partition(' ')[2].partition(' ')[2]}")
        if fault.kind not in ("fail", "start", "done", "lame", "full", *KINDS_OF_PEOPLE):
            self._cluster.rules.disturbed_at = self._schedule.now_s
        if fault.kind in KINDS_OF_PEOPLE:
            self._want(fault)
        elif fault.kind in ("crash", "hold", "busy"):
            self._break_coordinator(fault)
        elif fault.kind in ("second", "divert", "drag", "lose", "putback", "delete", *TROUBLES):
            self._break_register(fault)
        elif fault.kind == "slow":
            self._network.slow_s += float(fault.other)
            self._for(fault.value, partial(self._hurry, float(fault.other)))
        elif fault.kind in ("lame", "full"):
            self._spoil(fault)
        elif fault.kind == "start":
            if self._cluster.of(fault.node) is None:
                self._cluster.start(fault.node)
        elif (machine := self._cluster.of(fault.node)) is not None:
            self._break_machine(fault, machine)

    def _spoil(self, fault: Fault) -> None:
        bad = self._cluster.badness(fault.node)
        if fault.kind == "full":
            bad.full_since = self._schedule.now_s
        else:
            bad.fails_after_s, bad.every = fault.value, int(fault.other or 1)

    def _break_machine(self, fault: Fault, machine: Machine) -> None:
        match fault.kind:
            case "isolate" | "deafen" | "mute":
                self._block(fault, machine.name)
            case "reset" | "cut":
                if fault.kind == "cut":
                    lives = self._cluster.rules.lives
                    lives[machine.ref.incarnation].cut_at = self._schedule.now_s
                for connection in self._network.open_connections(machine.name):
                    connection.reset() if fault.kind == "reset" else connection.cut_silently()
            case "pause" | "catch":
                self._pause(machine.loop, fault.value)
            case "orphan":
                machine.guard.reach_no_register()
                self._lose(machine, "kill")
            case "kill" | "vanish":
                self._lose(machine, fault.kind)
            case "twin" if self._cluster.of(f"{machine.name}t") is None:
                self._cluster.start(f"{machine.name}t", machine.ref.node_id)
            case "fail":
                self._fail(machine, int(fault.value), int(fault.other))
            case "done":
                for worker in machine.process.workers.all if machine.process.workers else ():
                    worker.end(0)
            case "term" | "interrupt":
                is_term = fault.kind == "term"
                self._cluster.rules.asked.add(Outcome.PREEMPTED if is_term else Outcome.CANCELLED)
                self._tell_to_go(
                    machine, partial(machine.process.agent.caught, 15 if is_term else 2)
                )
            case "lie":
                assert isinstance(machine.process, LeadingProcess)
                machine.process.lie(int(fault.value))
            case "boast":
                assert isinstance(machine.process, LeadingProcess)
                machine.process.boast()
            case "leave":
                self._cluster.rules.asked.add(Outcome.PREEMPTED)
                why = "its machine is about to go"
                self._tell_to_go(machine, partial(machine.process.agent.leave, why))
            case "preempt":
                self._preempt(machine, fault.value)
            case "noroute":
                store = machine.process.store
                store.unreachable.add(fault.other)
                self._for(fault.value, partial(store.unreachable.discard, fault.other))
            case "storeless":
                if (stamp := self._cluster.shared.stores.pop(machine.name, None)) is not None:
                    agent, why = machine.process.agent, "the round store was killed"
                    machine.loop.call_soon(
                        partial(agent.helper_died, stamp.round, why, others_need_it=True)
                    )
            case "twin":
                pass  # that machine has an agent
            case _:
                raise ValueError(f"there is no fault {fault.kind!r}: see {__name__}")

    def _preempt(self, machine: Machine, later_s: float) -> None:
        """A scheduler signals all processes, and the agent this much later."""
        self._cluster.rules.asked.add(Outcome.PREEMPTED)
        if machine.process.workers is not None:
            machine.process.workers.signal_from_outside(15)
        machine.loop.call_soon(machine.process.agent.witness_signalled, 15)
        go = partial(self._tell_to_go, machine, partial(machine.process.agent.caught, 15))
        self._schedule.after(later_s, go)

    def _tell_to_go(self, machine: Machine, tell: Callable[[], object]) -> None:
        """The agent of this machine hears it when the agent runs."""

        def told() -> None:
            self._cluster.transcript.told_to_go(machine.ref.incarnation)
            tell()

        machine.loop.call_soon(told)

    def _want(self, fault: Fault) -> None:
        """A person does."""
        outcome = {"cancel": Outcome.CANCELLED, "drain": Outcome.PREEMPTED}.get(fault.kind)
        if outcome is not None:
            self._cluster.rules.asked.add(outcome)
        self._cluster.want(fault.kind, fault.node)

    def _break_coordinator(self, fault: Fault) -> None:
        cluster = self._cluster
        any_leads = cluster.plan.any_leads
        host = cluster.of(LEADER if any_leads else cluster.plan.coordinator_host)
        if fault.kind in ("hold", "busy"):
            holder = cluster.serves.first or host
            if holder is not None and fault.kind == "busy":
                holder.loop.stop_amid(fault.value)
            elif holder is not None:
                self._pause(holder.loop, fault.value)
        elif (serve := cluster.serves.first) is not None:
            cluster.kill_serve(serve)
            self._for(fault.value, partial(cluster.start_serve, serve.loop.host))
        elif host is not None:
            self._lose(host, "kill")

    def _break_register(self, fault: Fault) -> None:
        serves, register = self._cluster.serves, self._cluster.serves.register
        if register is None:
            return
        match fault.kind:
            case "second":
                self._cluster.start_serve(SECOND)
            case "putback" | "delete" if self._cluster.rules.has_verdict:
                pass  # Whoever comes later can't know that the job has ended.
            case "putback":
                register.put_back(fault.value)
            case "delete":
                register.delete()
            case "divert":
                serves.divert(1)
                self._for(fault.value, partial(serves.divert, -1))
            case "drag":
                where, slow_s = self._machine_of(fault), float(fault.other)
                register.drag(where, slow_s)
                self._for(fault.value, partial(register.drag, where, -slow_s))
            case _:
                if fault.kind == "lose":
                    register.lose()
                troubles = register.troubles["away" if fault.kind == "lose" else fault.kind]
                where = self._machine_of(fault)
                if where or not fault.node:
                    troubles[where] += 1
                    self._for(fault.value, partial(troubles.subtract, [where]))

    def _machine_of(self, fault: Fault) -> str:
        return self._cluster.leader if fault.node == LEADER else fault.node

    def _lose(self, machine: Machine, how: str) -> None:
        if machine.process.hosted is not None:
            self._cluster.rules.coordinator_died()
        self._cluster.rules.agent_died(machine.ref.incarnation)
        self._lose_peers(machine)
        if how == "kill":
            machine.kill()
        else:
            machine.vanish()

    def _lose_peers(self, machine: Machine) -> None:
        """The workers of the other nodes may fail because of this one's."""
        workers = machine.process.workers
        if workers is None or not any(worker.runs for worker in workers.all):
            return
        for other in self._cluster.machines:
            theirs = other.process.workers
            if other is not machine and theirs is not None and theirs.stamp == workers.stamp:
                for peer in theirs.all:
                    peer.peer_is_lost()

    def _pause(self, loop: ProcessLoop, length_s: float) -> None:
        loop.stop_process()
        self._for(length_s, loop.continue_process)

    def _block(self, fault: Fault, name: str) -> None:
        cluster = self._cluster
        others = {machine.name for machine in cluster.machines}
        if not cluster.plan.any_leads:
            others.add(cluster.plan.coordinator_host)
        others |= {process.loop.host for process in cluster.serves.running}
        for other in sorted(others - {name}):
            ways = []
            if fault.kind in ("isolate", "deafen"):
                ways.append((other, name))
            if fault.kind in ("isolate", "mute"):
                ways.append((name, other))
            for way in ways:
                self._network.block(*way)
                self._for(fault.value, partial(self._network.mend, *way))

    def _fail(self, machine: Machine, rank: int, code: int) -> None:
        workers = machine.process.workers
        if workers is None or not workers.all[rank % workers.count].runs:
            return
        self._lose_peers(machine)
        workers.all[rank % workers.count].end(*((code, None) if code >= 0 else (None, -code)))

    def _hurry(self, slow_s: float) -> None:
        self._network.slow_s -= slow_s
