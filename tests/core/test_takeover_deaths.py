"""Nodes die together with the leader, and whoever leads next is told of it."""

from __future__ import annotations

import pytest
from tests.harness.narrowed import of_kind, only
from tests.harness.takeovers import DEAD, VANISHED, die, lose_with_leader, running, said, take_over
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import messages as m
from rallypoint.core.host_effects import SendTo
from rallypoint.core.liveness import DIED
from rallypoint.core.model import EndKind, Stamp
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.record import is_set


def two_died() -> tuple[Cluster, SimulatedAgent, SimulatedAgent]:
    """Of four nodes the leader `a` and the node `b` are dead, and `c` has taken over."""
    cluster, (a, b, c, d) = running(4)
    lose_with_leader(cluster, a, b)
    assert c.running == d.running == Stamp(1, 0), "nothing is decided yet"
    return cluster, c, d


def test_L4_a_node_that_died_with_the_leader_is_not_awaited_once_its_guard_has_told() -> None:
    cluster, c, d = two_died()
    cluster.tell_dead(Stamp(1, 0), 1, "b")
    e, f = cluster.add("e", "f")
    assert {agent.running for agent in (c, d, e, f)} == {Stamp(1, 1)}
    (text,) = said(cluster)
    assert text.startswith("took over round 0 with 2 of 4 nodes: the leading node died (a)")
    assert text.endswith(", 1 other node died (b)")
    assert f"node b was lost: {DIED}" not in cluster.job.assigned["c"].why
    assert "and with it b" in cluster.job.assigned["c"].why
    assert cluster.job.ledger.total == 0


@pytest.mark.parametrize(
    ("stamp", "rank"),
    [(Stamp(1, 1), 1), (Stamp(2, 0), 1), (Stamp(0, 0), 1), (Stamp(1, 0), 4), (Stamp(1, 0), 2)],
    ids=["later round", "later life", "earlier life", "no such rank", "a node that is here"],
)
def test_L4_what_is_told_of_another_place_ends_no_wait(stamp: Stamp, rank: int) -> None:
    cluster, c, d = two_died()
    cluster.tell_dead(stamp, rank)
    cluster.settle()
    assert c.running == d.running == Stamp(1, 0)


def test_L4_the_same_death_that_is_told_twice_ends_the_wait_for_no_other_node() -> None:
    cluster, (a, b, c, d) = running(4)
    lose_with_leader(cluster, a, b, without=(c,))
    for _ in range(3):
        cluster.tell_dead(Stamp(1, 0), 1, "b")
        cluster.tell_dead(Stamp(1, 0), 0, "a")
    cluster.settle()
    assert d.running == Stamp(1, 0), "c is neither here nor dead"
    cluster.connect(c)
    cluster.add(*"ef")
    assert c.running == d.running == Stamp(1, 1)


def test_L4_who_leads_after_the_one_that_was_told_knows_of_the_death() -> None:
    cluster, (a, b, c, d) = running(4)
    lose_with_leader(cluster, a, b, without=(c,))
    cluster.tell_dead(Stamp(1, 0), 1, "b")
    cluster.settle()
    cluster.write_record()
    take_over(cluster)
    cluster.add(*"ef")
    assert c.running == d.running == Stamp(1, 1)


def test_L4_the_vanished_leader_is_not_awaited_once_a_fresh_agent_has_proved_it_dead() -> None:
    cluster, (a, b) = running(2)
    lose_with_leader(cluster, a, known_as=VANISHED)
    cluster.tell_dead(Stamp(1, 0), 0, "a")
    (c,) = cluster.add("c")
    assert b.running == c.running == Stamp(1, 1)
    assert cluster.job.assigned["b"].why == (
        "node a was lost: its agent died, and its workers with it, while it led the job"
    )


def test_L4_all_nodes_died_and_all_are_known_to_have() -> None:
    cluster, agents = running(3)
    die(cluster, *agents)
    cluster.take_over(DEAD)
    fresh = cluster.add(*"abc")
    assert all(agent.running is None for agent in fresh)
    for rank in (1, 2):
        cluster.tell_dead(Stamp(1, 0), rank, "abc"[rank])
    cluster.settle()
    stamp = Stamp(2, 1)  # No node of the record's world is here: the number of the life is new.
    assert all(agent.running == stamp for agent in fresh)


def test_L4_a_node_that_dies_when_it_has_come_to_the_next_leader_is_not_awaited() -> None:
    """It has a session there, of which its guard has the secret."""
    cluster, (a, b, c, d) = running(4)
    lose_with_leader(cluster, a, without=(d,))
    cluster.give_up(b, DIED)
    die(cluster, b)
    cluster.bring(d)
    cluster.add(*"ef")
    assert c.running == d.running == Stamp(1, 1)


def test_L4_a_node_that_was_only_cut_off_meanwhile_is_awaited() -> None:
    cluster, (a, b, c, d) = running(4)
    lose_with_leader(cluster, a, without=(d,))
    cluster.give_up(b)
    cluster.bring(d)
    assert c.running == d.running == Stamp(1, 0)
    b.running = None
    cluster.agents.remove(b)
    cluster.later(with_margin(cluster.settings.lease_s))
    assert cluster.end.kind is EndKind.LOSS


def test_L4_a_node_that_comes_though_it_was_called_dead_is_awaited_again_when_it_is_lost() -> None:
    cluster, (a, b, c, d) = running(4)
    lose_with_leader(cluster, a, without=(b, c))
    cluster.tell_dead(Stamp(1, 0), 1, "b")
    assert is_set(cluster.sessions._recovery.record.stopped, 1)  # type: ignore[union-attr]
    cluster.bring(b)
    assert b.running == d.running == Stamp(1, 0)
    cluster.give_up(b)
    cluster.bring(c)
    assert d.running == Stamp(1, 0), "b may live"


def awaits(cluster: Cluster) -> str:
    """As nodes are told with each heartbeat."""
    recovery = cluster.sessions._recovery
    return "" if recovery is None else recovery.awaits


def test_L5_nodes_are_told_whom_the_new_leader_waits_for_how_long_and_why() -> None:
    cluster, (a, b, c, d) = running(4)
    lose_with_leader(cluster, a, b, without=(c,))
    lasts = f"{with_margin(cluster.settings.lease_s):.0f} s at most"
    until = f"where workers may run until its lease is over, {lasts}"
    assert awaits(cluster) == f"group rank 1, 2 of round 0, {until}"
    cluster.tell_dead(Stamp(1, 0), 1, "b")
    assert awaits(cluster) == f"group rank 2 of round 0, {until}"
    (fresh,) = cluster.add("e")
    assert fresh.link is not None
    beat = m.Heartbeat(1)
    answer = only(SendTo, cluster.sessions.received(fresh.link.number, beat, cluster.timers.now_s))
    assert of_kind(m.HeartbeatAck, answer.message).status.awaits == awaits(cluster)
    cluster.connect(c)
    cluster.add("f")
    assert awaits(cluster) == ""
    assert d.running == Stamp(1, 1)
