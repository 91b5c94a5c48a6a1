"""One coordinator with thousands of nodes: the pace that it tells them, and its turns."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import known, of_kind
from tests.harness.wires import Wire

from rallypoint.clocks import CALLS_IN_A_TURN
from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.core import host_effects
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core.job_state import new_job
from rallypoint.core.liveness import FEW, pace_of
from rallypoint.core.model import Assignment, Candidate, SharedSettings, Stamp
from rallypoint.core.sessions import Sessions
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import RANKS
from rallypoint.core.watch.collection_messages import WorkerAnswer
from rallypoint.core.watch.questions import Subject
from rallypoint.core.worker_exits import WorkerExit

RULES = SharedSettings("job", 1, 20_000, lease_s=15.0, heartbeat_s=1.0)
CANDIDATE = Candidate(1, "default", "10.0.0.1", 29500)


@pytest.mark.parametrize(
    ("nodes", "seconds"), [(1, 1.0), (3000, 1.0), (6000, 2.0), (9000, 3.0), (100_000, 3.0)]
)
def test_heartbeats_are_rarer_the_more_nodes_there_are_up_to_a_fifth_of_the_lease(
    nodes: int, seconds: float
) -> None:
    assert pace_of(RULES, nodes).beat_s == seconds


def test_heartbeats_are_never_more_often_than_the_settings_say() -> None:
    rare = replace(RULES, heartbeat_s=5.0)
    assert pace_of(rare, 1).beat_s == pace_of(rare, 100_000).beat_s == 5.0


def test_nodes_come_back_before_the_coordinator_takes_them_for_lost() -> None:
    assert pace_of(RULES, 3).spread_s == 0.001
    assert pace_of(RULES, 3000).spread_s == 1.0
    assert pace_of(RULES, 100_000).spread_s == RULES.reset_grace_s / 2


def attached_node(promises: Promises | None = None) -> s.AgentEnd:
    """Of a job with so many nodes that it was told a pace."""
    end = s.AgentEnd(s.Identity("", "host", "life"), RULES, s.SessionRules(promises=promises))
    end.connected(0.0, m.Claim())
    end.received(0.0, m.Attached("host-0", 1, 1, False, True, *pace_of(RULES, 9000)))
    return end


def test_a_node_keeps_the_pace_that_it_was_told() -> None:
    assert s.AgentEnd(s.Identity("", "host", "life"), RULES).next_wake_s(0.0) == 1.0
    assert attached_node().next_wake_s(0.0) == 3.0
    assert attached_node().spread_s == RULES.reset_grace_s / 2


def test_a_node_does_not_lose_its_lease_by_the_pace_that_it_was_told() -> None:
    end = attached_node()
    end.received(0.0, m.Attached("host-0", 1, 1, True, True, 1e6, 1e6))
    assert end.next_wake_s(0.0) == RULES.lease_s / 5
    assert end.spread_s <= RULES.lease_s


@pytest.mark.parametrize(("rank", "seconds"), [(0, 1.0), (RANKS - 1, 1.0), (RANKS, 3.0)])
def test_L2_an_heir_keeps_its_own_pace_since_the_leader_needs_its_promises(
    rank: int, seconds: float
) -> None:
    promises = Promises(RULES.lease_s)
    end = attached_node(promises)
    place = Assignment(0, rank, 9000, rank, 9000, rank, 9000, "10.0.0.1", 5000, 0, "first", True)
    end.received(0.0, m.Assigned(Stamp(1, 0), place))
    assert end.next_wake_s(0.0) == seconds


def hello(number: int) -> m.Attach:
    return m.Attach("", f"host{number}", f"life{number}", 1, RULES)


def test_a_node_is_told_another_pace_when_its_job_has_grown() -> None:
    sessions = Sessions(new_job(RULES, 1), 1)
    first = of_kind(host_effects.SendTo, sessions.attach(0, "10.0.0.1", hello(0), 0.0)[0])
    assert of_kind(m.Attached, first.message).beat_s == 1.0
    for number in range(1, 6000):
        sessions.attach(number, "10.0.0.1", hello(number), 0.0)
        if number + 1 <= FEW:
            beats = sessions.received(0, m.Heartbeat(number + 1), 0.0)
            assert len(beats) == 1, "few nodes keep the pace of their settings"
    told = [
        [effect.message for effect in sessions.received(0, m.Heartbeat(beat), 0.0)]  # type: ignore[union-attr]
        for beat in (7001, 7002)
    ]
    assert [type(each) for each in told[0]] == [m.HeartbeatAck, m.Attached]
    again = of_kind(m.Attached, told[0][1])
    assert again.resumed
    assert again.beat_s == 2.0
    assert [type(each) for each in told[1]] == [m.HeartbeatAck]


def test_thousands_of_nodes_may_have_one_host_name() -> None:
    sessions = Sessions(new_job(RULES, 1), 1)
    one_host = replace(hello(0), host_name="localhost")
    for number in range(3000):
        sessions.attach(number, "10.0.0.1", replace(one_host, incarnation=f"life{number}"), 0.0)
    assert {each.ref.node_id for each in sessions.all} == {f"localhost-{n}" for n in range(3000)}
    for gone in (7, 5):
        sessions.lose(f"life{gone}", "it was silent", 0.0, 1.0)
    for number, ordinal in (3000, 5), (3001, 7), (3002, 3000):
        sessions.attach(number, "10.0.0.1", replace(one_host, incarnation=f"life{number}"), 2.0)
        session = known(sessions.of_agent(f"life{number}"))
        assert session.ref.node_id == f"localhost-{ordinal}", "the smallest that is free"


class Turn(Wire):
    """A connection that notes what is sent on it, and in which turn of the loop."""

    def __init__(self, number: int, job: ManyNodes) -> None:
        super().__init__(number)
        self._job = job

    def send(self, message: m.ToAgent | m.ToCoordinator) -> None:
        self._job.sent.append((self._job.turn, self.number, message))


class ManyNodes(HostedJob):
    """A job to which so many nodes have attached."""

    def __init__(self, nodes: int, settings: SharedSettings) -> None:
        super().__init__(Sessions(new_job(settings, 1), 1), lambda record: None, lambda: None)
        self.turn = 0
        self.sent: list[tuple[int, int, m.ToAgent | m.ToCoordinator]] = []
        """The turn, the number of the connection and the message."""
        self.wires = [Turn(number, self) for number in range(nodes)]
        for wire in self.wires:
            self.attach(wire, replace(hello(wire.number), settings=settings))
        self.sent.clear()

    def say(self, number: int, report: m.Report, *, nodes: slice = slice(None)) -> None:
        """All of these nodes report this, each as its report of that number."""
        for wire in self.wires[nodes]:
            self.received(wire, m.Numbered(number, report))

    @property
    def assigned(self) -> int:
        """The number of nodes that were told their ranks."""
        return sum(isinstance(message, m.Assigned) for *_, message in self.sent)


def for_all(nodes: int) -> SharedSettings:
    """A job that begins when all of them have come."""
    return replace(RULES, min_nodes=nodes, max_nodes=nodes)


JOIN = m.Join(1, CANDIDATE)


async def test_a_world_is_sent_in_turns_and_each_node_hears_all_in_its_order() -> None:
    nodes = 4 * CALLS_IN_A_TURN
    job = ManyNodes(nodes, for_all(nodes))
    job.say(1, JOIN)
    job.received(job.wires[-1], m.Heartbeat(1))
    while job.assigned < nodes:
        job.turn += 1
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    job.close()
    by_turn = Counter(turn for turn, _, message in job.sent if isinstance(message, m.Assigned))
    assert max(by_turn.values()) <= CALLS_IN_A_TURN
    last = [type(message) for _, number, message in job.sent if number == nodes - 1]
    assert last == [m.Assigned, m.Ack, m.HeartbeatAck]


def lines_of(act: Callable[[], object]) -> int:
    """How many lines run for this."""
    lines = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


async def lines_of_a_heartbeat(nodes: int) -> int:
    """How many lines run for one, in a job of so many nodes that is in a round."""
    job = ManyNodes(nodes, for_all(nodes))
    job.say(1, JOIN)
    for _ in range(nodes // CALLS_IN_A_TURN + 2):
        await asyncio.sleep(0)
    assert job.assigned == nodes
    one = job.wires[nodes // 2]
    job.received(one, m.Heartbeat(1))  # May tell of another pace.
    lines = lines_of(lambda: job.received(one, m.Heartbeat(2)))
    assert isinstance(job.sent[-1][2], m.HeartbeatAck)
    job.close()
    return lines


async def test_a_heartbeat_costs_as_much_with_thousands_of_nodes_as_with_ten() -> None:
    assert 0 < await lines_of_a_heartbeat(2500) <= await lines_of_a_heartbeat(10) + 10


def lines_of_logs(nodes: int) -> tuple[int, int]:
    """How many lines run when a person asks for the output of so many nodes, and for the first
    piece of the next round that the second of them sends."""
    job = ManyNodes(nodes, replace(for_all(nodes), max_restarts=1))
    job.say(1, JOIN)
    person = Turn(nodes, job)
    asking = lines_of(lambda: job.asked(person, m.Ask(Subject.LOGS, follow=True)))
    stamp = Stamp(job.life.incarnation, 0)
    exit_ = WorkerExit(1, None, local_rank=0, rank=0, role="default", pid=9, age_s=0.0)
    job.say(2, m.Failed(stamp, (exit_,)), nodes=slice(1))
    job.say(3, m.Join(2, CANDIDATE))
    assert job.round.round == 1
    pieces = 0
    for wire in job.wires[:2]:
        told = m.Collected(1, 1, (WorkerAnswer(0, "a line"),))
        job.collected(wire, m.Collected(1))
        pieces = lines_of(partial(job.collected, wire, told))
    assert sum(number == nodes for _, number, _ in job.sent) == 2
    job.close()
    return asking, pieces


async def test_output_of_many_nodes_costs_so_much_for_each_of_them() -> None:
    (few, piece), (many, piece_of_many) = lines_of_logs(10), lines_of_logs(300)
    assert 0 < many < 40 * few
    assert 0 < piece_of_many <= piece + 10


async def test_a_coordinator_that_closes_sends_first_what_waits_for_its_turn() -> None:
    nodes = 2 * CALLS_IN_A_TURN
    job = ManyNodes(nodes, RULES)
    job.say(1, JOIN, nodes=slice(1))
    job.say(2, m.Cancel("ctrl-c", 2), nodes=slice(1))
    job.say(1, JOIN, nodes=slice(1, None))
    job.close()
    assert sum(isinstance(message, m.Ended) for *_, message in job.sent) >= nodes - 1
