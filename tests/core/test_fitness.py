"""A bad machine does not end a job that runs well without it (R3, A11)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count

import msgspec
import pytest
from msgspec.structs import replace

from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import TimerEnded
from rallypoint.core.fitness import held_back
from rallypoint.core.job_state import JobEvent, PersonWants, SessionLost
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import (
    Assignment,
    Candidate,
    Epoch,
    Lacking,
    NodeRef,
    Outcome,
    SharedSettings,
    Stamp,
)
from rallypoint.core.round_state import MemberState, RoundPhase
from rallypoint.core.takeover.record import job_of, record_of
from rallypoint.core.watch.questions import Subject
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.testing.clock import VirtualTimers

FULL = Lacking("write to /tmp/x", errno.ENOSPC)
Fault = Callable[["Cluster", str, Assignment], float | None]
"""How many seconds after its start a worker of this node fails; None: it runs."""


def exited(local_rank: int = 0, code: int = 1, line: str = "") -> WorkerExit:
    return WorkerExit(code, None, local_rank=local_rank, message=line)


class Cluster:
    """A job whose nodes obey at once, in virtual time."""

    def __init__(self, nodes: str, *, fault: Fault | None = None, **settings: object) -> None:
        rules = replace(SharedSettings("job", 2, 4), min_growth_interval_s=0.0, join_settle_s=0.0)
        self.job = jobs.new_job(replace(rules, last_call_s=2.0, **settings))
        self.timers = VirtualTimers()
        self.fault, self.workers = fault, 1
        self.records: list[Record] = []
        self.orders: list[tuple[str, m.Order]] = []
        self.refs: dict[str, NodeRef] = {}
        self.tries: dict[str, int] = {}
        """How many rounds each node has started."""
        self.unfit: dict[str, m.Proved] = {}
        """What a node answers to `Prove`, if it is not fit."""
        self.lacking: dict[str, Lacking] = {}
        """What a node lacks when it starts workers."""
        self.silent: set[str] = set()
        """Nodes that do not answer `Prove`."""
        self._lives, self._seq = count(1), count(1)
        self._due: list[tuple[float, FromNode]] = []
        for node in nodes.split():
            self.join(node)
        self.pass_time(3.0)

    # ---- what a test does

    def join(self, node: str, **candidate: object) -> None:
        """A new agent of this node joins."""
        self.refs[node] = NodeRef(node, f"{node}.{next(self._lives)}")
        self._candidate = replace(Candidate(self.workers, "w", node, 1, proves=True), **candidate)
        self._joins(self.refs[node], self._candidate)

    def lose(self, node: str) -> None:
        self.apply(SessionLost(self.refs[node], "its machine went away", self.now))

    def fail(self, node: str, line: str = "", local_rank: int = 0) -> None:
        self._report(node, m.Failed(self.stamp, (exited(local_rank, 1, line),)))

    def step(self, node: str, step: int) -> None:
        jobs.progressed(self.job, self.stamp, step)

    def want(self, subject: Subject, node: str = "") -> None:
        self.apply(PersonWants(subject, node))

    def pass_time(self, seconds: float) -> None:
        """Let timers end and workers fail, in their order."""
        end = self.timers.now_s + seconds
        while self.job.verdict is None:
            first = min(self._due, key=lambda due: due[0], default=None)
            fault_at = end if first is None else min(first[0], end)
            if (timer := self.timers.next_until(fault_at)) is not None:
                self.apply(TimerEnded(timer))
            elif first is not None and first[0] <= end:
                self._due.remove(first)
                self.apply(first[1])
            else:
                return

    def take_over(self) -> None:
        """Another coordinator, with another clock, goes on with the record of this one."""
        record = msgspec.msgpack.decode(
            msgspec.msgpack.encode(record_of(self.job)), type=type(record_of(self.job))
        )
        former, self.job = self.job, job_of(record, Epoch(2, 1))
        state = self.job.round
        state.members, state.counts, state.world = (
            former.round.members,
            former.round.counts,
            former.round.world,
        )
        state.phase, self.job.started, self.job.assigned = (
            former.round.phase,
            former.started,
            former.assigned,
        )
        self.timers = VirtualTimers()
        self.timers.now_s = 5.0
        jobs.observe(self.job, self.now)
        self.timers.keep(jobs.timers_wanted(self.job))

    # ---- what a test looks at

    @property
    def now(self) -> float:
        return 1.0 + self.timers.now_s

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.job.incarnation, self.job.round.round)

    @property
    def world(self) -> list[str]:
        runs = self.job.round.phase is RoundPhase.ACTIVE
        return sorted(entry.node_id for entry in self.job.round.world) if runs else []

    @property
    def charged(self) -> int:
        return self.job.ledger.total

    @property
    def held(self) -> dict[str, float | None]:
        """How much longer each machine is held back, by its node."""
        return {each.node: each.left_s for each in held_back(self.job.round)}

    def said(self, name: str) -> list[str]:
        return [record.text for record in self.records if record.name == name]

    # ---- how its nodes obey

    def _joins(self, ref: NodeRef, candidate: Candidate) -> None:
        self.apply(FromNode(ref, m.Join(next(self._seq), candidate)))

    def _report(self, node: str, report: m.Report) -> None:
        self.apply(FromNode(self.refs[node], report))

    def apply(self, event: JobEvent) -> None:
        effects = jobs.step(self.job, event, self.now)
        self.records += [effect for effect in effects if isinstance(effect, Record)]
        self.timers.keep(jobs.timers_wanted(self.job))
        for effect in effects:
            if isinstance(effect, ToNode) and self.refs.get(effect.ref.node_id) == effect.ref:
                self.orders.append((effect.ref.node_id, effect.message))
                self._obey(effect.ref, effect.message)

    def _obey(self, ref: NodeRef, order: m.Order) -> None:
        node = ref.node_id
        match order:
            case m.Assigned(stamp, assignment):
                if assignment.enrol:
                    self._report(node, m.Enrolled(stamp))
                else:
                    self._start(node, stamp)
            case m.StartNow(stamp):
                self._start(node, stamp)
            case m.StopNow(stamp):
                if node in self.lacking and self.job.lacking:
                    self._report(node, self._not_started(node, stamp))
                soon = [x for at, x in self._due if x.ref == ref and at < self.timers.now_s + 0.5]
                self._due = [due for due in self._due if due[1].ref != ref]
                for event in soon:
                    self.apply(event)
                member = self.job.round.members.get(node)
                if member is not None:
                    self._joins(ref, member.candidate)
            case m.Prove(stamp, number):
                if node not in self.silent:
                    answer = self.unfit.get(node, m.Proved(stamp, number))
                    self._report(node, replace(answer, stamp=stamp, number=number))
                    if answer.unfit:
                        self._report(node, m.Leave())

    def _start(self, node: str, stamp: Stamp) -> None:
        self.tries[node] = self.tries.get(node, 0) + 1
        if node in self.lacking:
            self._report(node, self._not_started(node, stamp))
            return
        after = None if self.fault is None else self.fault(self, node, self.job.assigned[node])
        if after is not None:
            failed = m.Failed(stamp, (exited(line="broken"),))
            self._due.append((self.timers.now_s + after, FromNode(self.refs[node], failed)))

    def _not_started(self, node: str, stamp: Stamp) -> m.Failed:
        failure = exited(0, 127, "can't write to /tmp/x: No space left on device")
        return m.Failed(stamp, (failure,), lacking=self.lacking[node])


def at_once(*nodes: str) -> Fault:
    return lambda cluster, node, place: 0.1 if node in nodes else None


# ---- probation


def test_A11_a_newcomer_whose_workers_fail_at_once_neither_ends_nor_charges_the_job() -> None:
    cluster = Cluster("a b", fault=at_once("bad"), max_restarts=0)
    cluster.pass_time(100)
    cluster.join("bad")
    cluster.pass_time(1)
    assert cluster.job.verdict is None
    assert cluster.world == ["a", "b"]
    assert cluster.charged == 0
    assert list(cluster.held) == ["bad"]
    assert "not charged" in cluster.said("restart")[-1]
    assert cluster.tries["bad"] == 1


@pytest.mark.parametrize("after_s", [20.0, 59.0])
def test_A11_so_does_one_whose_workers_fail_within_a_minute(after_s: float) -> None:
    def fault(cluster: Cluster, node: str, place: Assignment) -> float | None:
        return after_s if node == "bad" else None

    cluster = Cluster("a b", fault=fault, max_restarts=0)
    cluster.pass_time(100)
    cluster.join("bad")
    cluster.pass_time(after_s + 1)
    assert cluster.world == ["a", "b"]
    assert cluster.charged == 0


def test_A11_a_failure_after_the_minute_is_charged() -> None:
    cluster = Cluster("a b", max_restarts=1)
    cluster.pass_time(100)
    cluster.join("c")
    cluster.pass_time(61)
    cluster.fail("c")
    assert cluster.charged == 1
    assert cluster.world == ["a", "b", "c"]
    assert not cluster.held


def test_A11_where_steps_are_reported_probation_lasts_until_the_first_step() -> None:
    cluster = Cluster("a b", max_restarts=0)
    cluster.step("a", 1)
    cluster.pass_time(100)
    cluster.join("bad")
    cluster.pass_time(300)  # it compiles for so long
    cluster.fail("bad")
    assert cluster.job.verdict is None
    assert cluster.charged == 0
    cluster.join("good")
    cluster.pass_time(300)
    cluster.step("good", 2)
    cluster.fail("good")
    assert cluster.job.verdict is not None


def test_A11_before_any_round_has_passed_a_failure_is_charged() -> None:
    cluster = Cluster("a b", max_restarts=3)
    cluster.pass_time(10)
    cluster.join("bad")
    cluster.fail("bad")
    assert cluster.charged == 1


def test_A11_a_failure_of_a_node_that_the_minimum_needs_is_charged() -> None:
    cluster = Cluster("a b c", min_nodes=3, max_restarts=3)
    cluster.pass_time(100)
    cluster.lose("c")
    cluster.join("d")
    cluster.fail("d")
    assert cluster.charged == 1
    assert not cluster.held


def test_A11_a_final_exit_code_ends_the_job_also_on_probation() -> None:
    cluster = Cluster("a b", max_restarts=3, no_restart_exit_codes=(1,))
    cluster.pass_time(100)
    cluster.join("bad")
    cluster.fail("bad")
    assert cluster.job.verdict is not None


# ---- counted failures


def test_A11_a_node_that_fails_every_second_round_is_held_back_at_its_second_failure() -> None:
    def fault(cluster: Cluster, node: str, place: Assignment) -> float | None:
        return 1.0 if node == "bad" and cluster.tries[node] % 2 == 0 else None

    cluster = Cluster("a b bad", fault=fault, max_restarts=3)
    for _ in range(8):
        cluster.pass_time(70)
        cluster.want(Subject.RESTART)
    cluster.pass_time(5)
    assert cluster.job.verdict is None
    assert cluster.charged == 1, "but for its first failure"
    assert cluster.world == ["a", "b"]
    assert list(cluster.held) == ["bad"]


def test_A11_failures_of_others_do_not_reset_the_count_of_a_machine() -> None:
    cluster = Cluster("a b c", max_restarts=9)
    cluster.pass_time(100)
    cluster.fail("c", "first")
    cluster.pass_time(100)
    cluster.fail("a", "another")
    cluster.pass_time(100)
    cluster.fail("c", "second")
    assert cluster.world == ["a", "b"]
    assert cluster.charged == 2


def test_A11_workers_that_fail_alike_on_two_machines_at_once_show_that_it_is_the_program() -> None:
    cluster = Cluster("a b c", fault=at_once("b", "c"), max_restarts=2)
    cluster.pass_time(300)
    assert cluster.job.verdict is not None
    assert cluster.charged == 2
    assert not cluster.held


def test_A11_a_machine_held_back_is_released_when_two_others_fail_alike_in_one_round() -> None:
    """Its failure was the program's, too: it is charged, though others have another place."""

    def fault(cluster: Cluster, node: str, place: Assignment) -> float | None:
        fails = cluster.held if node != "c" else cluster.tries["c"] <= 2
        return 0.2 if fails else None

    cluster = Cluster("a b c", fault=fault, max_restarts=9)
    cluster.pass_time(300)
    assert cluster.job.verdict is None
    assert cluster.charged == 3
    assert not cluster.held
    assert cluster.world == ["a", "b", "c"]


def test_A11_a_failure_of_an_hour_ago_does_not_count() -> None:
    cluster = Cluster("a b c", max_restarts=9)
    cluster.fail("c")
    cluster.pass_time(3700)
    cluster.fail("c")
    assert cluster.world == ["a", "b", "c"]


def test_A11_with_hold_back_after_0_no_failure_holds_a_machine_back() -> None:
    cluster = Cluster("a b", max_restarts=3, hold_back_after=0)
    cluster.pass_time(100)
    cluster.join("bad")
    for _ in range(3):
        cluster.fail("bad")
        cluster.pass_time(5)
    assert cluster.world == ["a", "b", "bad"]
    assert cluster.charged == 3


# ---- the program


def test_A11_a_program_that_fails_on_one_rank_wherever_it_is_is_charged() -> None:
    def fault(cluster: Cluster, node: str, place: Assignment) -> float | None:
        return 0.5 if place.base_rank <= 3 < place.base_rank + 2 else None

    cluster = Cluster("", fault=fault, max_restarts=3)
    cluster.workers = 2
    for node in "abcd":
        cluster.join(node)
    cluster.pass_time(60)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.outcome is Outcome.FAILED
    assert cluster.charged == 3


def test_A11_two_newcomers_that_fail_alike_at_one_place_show_that_it_is_the_program() -> None:
    cluster = Cluster("a b", max_restarts=3)
    cluster.pass_time(100)
    cluster.join("c")
    cluster.fail("c", "no such file")
    assert cluster.charged == 0
    assert list(cluster.held) == ["c"]
    cluster.join("d")
    cluster.fail("d", "no such file")
    assert cluster.charged == 2, "the first failure is charged, too"
    assert not cluster.held
    assert cluster.world == ["a", "b", "c", "d"]


def test_A11_two_newcomers_that_fail_in_different_ways_are_both_held_back() -> None:
    cluster = Cluster("a b", max_restarts=0)
    cluster.pass_time(100)
    for node in "cd":
        cluster.join(node)
        cluster.fail(node, f"device {'x' if node == 'c' else 'y'} is broken")
    assert sorted(cluster.held) == ["c", "d"]
    assert cluster.charged == 0
    assert cluster.world == ["a", "b"]


def test_A11_failures_on_three_machines_within_an_hour_only_charge() -> None:
    cluster = Cluster("a b c d", max_restarts=9)
    cluster.pass_time(100)
    for node in "abc":
        cluster.fail(node, f"line of {node}")
    cluster.fail("c", "another")
    assert cluster.world == ["a", "b", "c", "d"]
    assert cluster.charged == 4


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_A11_a_program_that_fails_everywhere_ends_within_its_budget(budget: int) -> None:
    cluster = Cluster("a b c d", fault=at_once("a", "b", "c", "d"), max_restarts=budget)
    cluster.pass_time(300)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.outcome is Outcome.FAILED
    assert set(cluster.tries.values()) == {budget + 1}


@pytest.mark.parametrize(("budget", "tries"), [(0, 1), (1, 3), (2, 3), (3, 4)])
def test_A11_a_program_that_fails_on_the_first_node_ends_as_soon_as_two_machines_have_failed(
    budget: int, tries: int
) -> None:
    fault: Fault = lambda cluster, node, place: 0.1 if place.group_rank == 0 else None  # noqa: E731
    cluster = Cluster("a b c d", fault=fault, max_restarts=budget)
    cluster.pass_time(300)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.outcome is Outcome.FAILED
    assert max(cluster.tries.values()) == tries


# ---- quarantine


def test_A11_a_machine_held_back_comes_back_only_when_a_round_begins_anyway() -> None:
    cluster = Cluster("a b", fault=at_once("bad"), max_restarts=0)
    cluster.pass_time(100)
    cluster.join("bad")
    cluster.pass_time(1)
    round_ = cluster.job.round.round
    cluster.pass_time(3000)
    assert cluster.job.round.round == round_
    cluster.want(Subject.RESTART)
    cluster.pass_time(1)
    assert cluster.world == ["a", "b"]
    assert cluster.tries["bad"] == 2
    assert cluster.charged == 0
    assert cluster.held["bad"] == pytest.approx(240, abs=2), "twice as long as the first time"


def test_A11_what_is_held_back_survives_a_takeover_with_its_remaining_time() -> None:
    cluster = Cluster("a b", fault=at_once("bad"), max_restarts=0)
    cluster.pass_time(100)
    cluster.join("bad")
    cluster.pass_time(50)
    left = cluster.held["bad"]
    cluster.apply(PersonWants(Subject.NODES))  # so that the record is of now
    left = cluster.held["bad"]
    cluster.take_over()
    assert left is not None
    assert 60 < left < 80
    assert cluster.held["bad"] == pytest.approx(left, abs=0.1)
    cluster.pass_time(left - 1)
    assert cluster.job.round.members["bad"].state is MemberState.STANDBY
    cluster.pass_time(2)
    assert cluster.job.round.members["bad"].state.value == "waiting"


# ---- proofs


def test_A11_no_round_ends_for_a_newcomer_that_can_not_start_workers() -> None:
    cluster = Cluster("a b", max_restarts=0)
    cluster.unfit["full"] = m.Proved(Stamp(1, 0), 1, "can't write to /tmp/x", FULL)
    cluster.join("full")
    cluster.pass_time(100)
    assert cluster.job.round.round == 0
    assert "full" not in cluster.job.round.members
    assert "can't write to /tmp/x" in cluster.said("node_unfit")[-1]


def test_A11_no_round_ends_for_a_newcomer_that_has_not_answered() -> None:
    cluster = Cluster("a b", max_restarts=3)
    cluster.silent.add("mute")
    cluster.join("mute")
    cluster.pass_time(1000)
    assert cluster.world == ["a", "b"]
    cluster.fail("a")
    assert cluster.world == ["a", "b"], "nor does it take part in the next one"


def test_F9_no_round_ends_for_a_newcomer_that_does_not_reach_rank_0() -> None:
    cluster = Cluster("a b", max_restarts=0)
    cut = m.Proved(Stamp(1, 0), 1, unreached="no answer from a:1")
    cluster.unfit["far"] = cut
    cluster.join("far")
    cluster.pass_time(100)
    assert cluster.job.round.round == 0
    assert "no answer from a:1" in cluster.said("node_held_back")[-1]
    asked = sum(node == "far" and isinstance(order, m.Prove) for node, order in cluster.orders)
    assert asked == 1
    cluster.pass_time(30)  # its quarantine is over: it tries again, and the round goes on
    asked = sum(node == "far" and isinstance(order, m.Prove) for node, order in cluster.orders)
    assert asked == 2
    assert cluster.job.round.round == 0
    del cluster.unfit["far"]
    cluster.pass_time(300)
    assert cluster.world == ["a", "b", "far"]


def test_A11_a_newcomer_of_an_older_version_is_taken_for_fit() -> None:
    cluster = Cluster("a b")
    cluster.join("old", proves=False)
    assert cluster.world == ["a", "b", "old"]


def test_A11_a_newcomer_is_asked_again_when_it_reconnects() -> None:
    cluster = Cluster("a b")
    cluster.silent.add("c")
    cluster.join("c")
    cluster.silent.clear()
    effects = jobs.resync(cluster.job, cluster.refs["c"], cluster.now)
    (order,) = (effect.message for effect in effects if isinstance(effect, ToNode))
    assert isinstance(order, m.Prove)
    cluster._report("c", m.Proved(order.stamp, order.number - 1))
    assert cluster.world == ["a", "b"], "an answer to the question before it says nothing"
    cluster._report("c", m.Proved(order.stamp, order.number))
    assert cluster.world == ["a", "b", "c"]


# ---- nodes that can't start workers


def test_A11_a_node_whose_disk_is_full_leaves_and_nothing_is_charged() -> None:
    cluster = Cluster("a b c", max_restarts=0)
    cluster.lacking["c"] = FULL
    cluster.want(Subject.RESTART)
    assert cluster.job.verdict is None
    assert cluster.world == ["a", "b"]
    assert cluster.charged == 0
    expelled = [order for node, order in cluster.orders if isinstance(order, m.Expelled)]
    assert [order.final for order in expelled] == [True]
    assert "No space left on device" in expelled[0].why
    assert "No space left on device" in cluster.said("round_formed")[-1]


def test_A11_what_two_machines_lack_in_one_start_is_the_job_s_failure() -> None:
    cluster = Cluster("a b c d", max_restarts=0)
    cluster.lacking = {"c": FULL, "d": FULL}
    cluster.want(Subject.RESTART)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.outcome is Outcome.FAILED


def test_A11_without_the_minimum_a_full_disk_is_charged() -> None:
    cluster = Cluster("a b", max_restarts=1)
    cluster.lacking["b"] = FULL
    cluster.want(Subject.RESTART)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.outcome is Outcome.FAILED


# ---- people


def test_A11_a_person_excludes_a_machine_for_good_and_allows_it_again() -> None:
    cluster = Cluster("a b c", max_restarts=3)
    cluster.want(Subject.EXCLUDE, "c")
    assert isinstance(cluster.orders[-1][1], m.DrainWanted)
    cluster._report("c", m.Drain("a person excluded it", 15))
    cluster._report("c", m.Leave())
    cluster.join("c")
    cluster.pass_time(100_000)
    cluster.fail("a")
    assert cluster.world == ["a", "b"]
    assert cluster.held == {"c": None}
    cluster.take_over()
    assert cluster.held == {"c": None}
    cluster.want(Subject.ALLOW, "c")
    cluster.pass_time(1)
    assert cluster.world == ["a", "b", "c"]
    assert not cluster.held


def test_A11_an_excluded_machine_does_not_take_part_even_if_the_minimum_needs_it() -> None:
    cluster = Cluster("a b c", join_timeout_s=100.0)
    cluster.want(Subject.EXCLUDE, "c")
    cluster._report("c", m.Leave())
    cluster.lose("b")
    cluster.join("c")
    cluster.pass_time(200)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.outcome is Outcome.TIMED_OUT


def test_A11_a_person_allows_a_machine_that_is_held_back_for_its_failures() -> None:
    cluster = Cluster("a b", fault=at_once("bad"), max_restarts=0)
    cluster.pass_time(100)
    cluster.join("bad")
    cluster.pass_time(1)
    cluster.fault = None
    cluster.want(Subject.ALLOW, "bad")
    assert cluster.world == ["a", "b", "bad"]
    assert not cluster.held
