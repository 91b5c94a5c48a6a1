"""R4: an agent comes with the id or the fixed rank of another one. Is it refused, does it wait, or
does it take the place?"""

from __future__ import annotations

import pytest
from tests.harness.job_machine import CANDIDATE
from tests.harness.whole_job import Cluster, SimulatedAgent
from tests.harness.wires import Wire

from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.core import host_effects
from rallypoint.core import messages as m
from rallypoint.core.job_state import new_job
from rallypoint.core.model import Candidate, Outcome, SharedSettings, Stamp
from rallypoint.core.round_state import MemberState
from rallypoint.core.sessions import Sessions
from rallypoint.core.watch.node_progress import NodeProgress

USED = "node id 'b' is used by another running agent at "
FIRST = Stamp(1, 0)
Agents = tuple[Cluster, SimulatedAgent, SimulatedAgent]


def running() -> Agents:
    cluster = Cluster(SharedSettings("job", 2, 3, min_growth_interval_s=1000.0))
    a, b = cluster.add("a", "b")
    cluster.later(60.0)
    assert a.running == b.running == FIRST
    return cluster, a, b


def beat(cluster: Cluster, seconds: float = 1.0) -> None:
    """Every connected agent is heard, the oldest first."""
    cluster.later(seconds)


def check(cluster: Cluster) -> None:
    """Agents that were not heard for too long are lost."""
    for _ in range(2):
        cluster._run(cluster.sessions.check(cluster.timers.now_s))
    cluster.settle()


def silence(cluster: Cluster, agent: SimulatedAgent) -> None:
    """Nothing arrives from it any more, and its connection looks open."""
    assert agent.link is not None
    del cluster._links[agent.link.number]
    cluster.agents.remove(agent)


def test_R4_a_duplicate_is_refused_and_no_loss_is_counted() -> None:
    cluster, a, b = running()
    for _ in range(20):
        (duplicate,) = cluster.add("b")
        assert not duplicate.refused, "nothing was heard of the holder since"
        beat(cluster)
        assert duplicate.refused.startswith(USED)
    assert a.running == b.running == FIRST
    state = cluster.job.round
    assert (state.lossy_rounds, state.fitness.recent_losses, state.bad_routes) == ([], [], {})
    assert len(cluster.sessions.all) == 2


def test_R4_of_two_duplicates_of_a_machine_that_vanished_one_takes_its_place() -> None:
    cluster, a, b = running()
    silence(cluster, b)
    first, second = cluster.add("b", "b")
    for _ in range(15):
        beat(cluster)
        check(cluster)
        assert (a.running, first.running, first.refused, second.refused) == (FIRST, None, "", "")
    beat(cluster)
    check(cluster)
    assert a.running == first.running == Stamp(1, 1)
    assert len(cluster.job.round.fitness.recent_losses) == 1, "the machine was lost"
    beat(cluster)
    assert second.refused.startswith(USED)
    assert a.running == first.running == Stamp(1, 1)


@pytest.mark.parametrize("is_proven", [True, False])
def test_R4_what_a_dead_agent_had_said_before_refuses_nobody(is_proven: bool) -> None:
    """Its guard has reported its death, and its last message comes late. A report without a proof
    is none."""
    cluster, a, b = running()
    (duplicate,) = cluster.add("b")
    assert b.link is not None
    notice = m.AgentDied(b.ref.incarnation, b.end.generation, b"")
    now = cluster.timers.now_s
    cluster._run(cluster.sessions.agent_died("", notice, lambda *proof: is_proven, now))
    beat(cluster)
    assert bool(duplicate.refused) is not is_proven
    cluster.cut(b)
    cluster.agents.remove(b)
    check(cluster)
    if is_proven:
        assert a.running == duplicate.running == Stamp(1, 1)


def test_R4_a_message_that_is_followed_by_the_end_of_its_connection_refuses_nobody() -> None:
    """It was on its way when the agent was killed."""
    cluster, a, b = running()
    (duplicate,) = cluster.add("b")
    assert b.link is not None
    cluster.sessions.received(b.link.number, m.Heartbeat(0), cluster.timers.now_s)
    cluster.cut(b)
    cluster.agents.remove(b)
    beat(cluster)
    assert not duplicate.refused
    cluster.pass_time(5.0)
    check(cluster)
    assert a.running == duplicate.running == Stamp(1, 1)


def test_R4_a_holder_whose_connection_broke_and_that_is_back_keeps_its_place() -> None:
    cluster, a, b = running()
    cluster.cut(b)
    (duplicate,) = cluster.add("b")
    beat(cluster)
    assert not duplicate.refused
    cluster.bring(b)
    beat(cluster)
    assert duplicate.refused.startswith(USED)
    assert a.running == b.running == FIRST


def test_R4_a_duplicate_of_an_agent_that_leaves_takes_its_place_when_it_has_left() -> None:
    cluster, a, b = running()
    cluster.signal(b, 15)
    while cluster.job.round.members["b"].state is not MemberState.LEAVING:
        cluster.deliver(cluster.moves()[0])
    duplicate = cluster.start("b")
    for _ in range(2):  # They attach, and join.
        while moves := [move for move in cluster.moves() if move[1] is duplicate]:
            cluster.deliver(moves[0])
        cluster.pass_time(1.0)
    assert cluster.job.round.members["b"].ref == b.ref
    assert not duplicate.refused
    cluster.settle()
    assert b.is_done
    assert a.running == duplicate.running == Stamp(1, 1)


def test_R4_a_duplicate_that_waits_hears_how_the_job_ended() -> None:
    cluster, a, b = running()
    (duplicate,) = cluster.add("b")
    cluster.succeed(a)
    cluster.end_well(b)
    for agent in (a, b, duplicate):
        assert agent.finish is not None
        assert agent.finish.verdict is not None
        assert agent.finish.verdict.outcome is Outcome.SUCCEEDED


def test_R4_an_agent_that_was_replaced_is_told_so_and_does_not_wait() -> None:
    cluster, a, b = running()
    (duplicate,) = cluster.add("b")
    cluster.give_up(b)
    cluster.settle()
    assert a.running == duplicate.running == Stamp(1, 1)
    cluster.fence(b)
    cluster.bring(b)
    assert b.is_done
    assert not b.refused
    assert a.running == duplicate.running == Stamp(1, 1)


def test_R4_a_person_reads_what_an_agent_waits_for() -> None:
    sessions = Sessions(new_job(SharedSettings("job", 2, 2)), 1)
    for number, life in enumerate(("older", "newer")):
        hello = m.Attach("b", "host", life, 1, sessions.settings)
        sessions.attach(number, f"10.0.0.{number}:40000", hello, 0.0)
        sessions.received(number, m.Numbered(1, m.Join(1, CANDIDATE)), 0.0)

    def waits_for(now: float) -> list[str]:
        (ack,) = sessions.received(1, m.Heartbeat(1), now)
        assert isinstance(ack, host_effects.SendTo)
        assert isinstance(ack.message, m.HeartbeatAck)
        return ack.message.status.waits_for.split(", ")

    held = "node id 'b': it is held by an agent at 10.0.0.0:40000"
    assert waits_for(1.0) == waits_for(4.9) == [held]
    assert waits_for(5.1) == waits_for(9.0) == [held, "which has not been heard for 5 s"]
    sessions.received(0, m.Heartbeat(1), 12.0)
    refused = sessions.received(1, m.Heartbeat(2), 12.1)[0]
    assert isinstance(refused, host_effects.Refuse)
    assert refused.text.startswith(f"{USED}10.0.0.0:40000; this one is at 10.0.0.1:40000: give")


async def test_R4_the_steps_of_a_node_are_not_those_of_a_duplicate() -> None:
    """Nor have its workers stopped because the duplicate says that it has none."""
    settings = SharedSettings("job", 1, 1)
    job = HostedJob(Sessions(new_job(settings), 1), lambda record: None, lambda: None)
    wires = [Wire(number) for number in range(2)]

    def say(number: int, step: int) -> None:
        told = NodeProgress(FIRST, furthest=step, step=step)
        job.received(wires[number], m.Heartbeat(1, progress=told))

    for number, life in enumerate(("older", "newer")):
        job.attach(wires[number], m.Attach("b", "host", life, 1, settings))
        job.received(wires[number], m.Numbered(1, m.Join(1, CANDIDATE)))
        if number == 0:
            say(0, 10)
    say(1, 77)
    (told,) = job.watch.history.told.values()
    assert told.progress.furthest == 10
    say(0, 20)
    assert job.watch.view.goodput.furthest_step == 20
    job.close()


async def test_R4_an_agent_that_is_refused_makes_room_for_one_that_waits_for_its_id() -> None:
    """The last call begins with that."""
    settings = SharedSettings("job", 2, 3, last_call_s=0.0, lease_s=1000.0)
    job = HostedJob(Sessions(new_job(settings), 1), lambda record: None, lambda: None)
    wires = [Wire(number) for number in range(3)]
    for wire, node_id, rank in zip(wires, ("a", "x", "x"), (0, 0, 1), strict=True):
        candidate = Candidate(1, "default", "10.0.0.1", 5000, node_rank=rank)
        job.attach(wire, m.Attach(node_id, "host", f"life-{wire.number}", 1, settings))
        job.received(wire, m.Numbered(1, m.Join(1, candidate)))
    for wire in wires[:2]:
        job.received(wire, m.Heartbeat(1))
    assert isinstance(wires[1].sent[-1], m.Refused)
    await wires[2].told(m.Assigned)
    job.close()
