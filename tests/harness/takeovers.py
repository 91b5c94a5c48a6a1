"""Whole jobs in memory (`tests.harness.whole_job`) whose coordinators follow one another."""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import SharedSettings
from rallypoint.core.takeover.handover import UNKNOWN, Predecessor

DEAD = Predecessor(0, is_dead=True)
"""The leader before lived in the node of rank 0, and no worker of that lives."""
FENCED_IN_S = 6.0
VANISHED = Predecessor(0, fenced_in_s=FENCED_IN_S)
"""Nobody knows what has become of it. Its workers may run for so long."""


def cluster_of(nodes: int, max_restarts: int = 3, restart_backoff_s: float = 0.0) -> Cluster:
    """With a register; nobody has begun."""
    return with_register(
        nodes, nodes, max_restarts=max_restarts, restart_backoff_s=restart_backoff_s
    )


def running(
    nodes: int, max_restarts: int = 3, restart_backoff_s: float = 0.0
) -> tuple[Cluster, list[SimulatedAgent]]:
    """All workers run."""
    cluster = cluster_of(nodes, max_restarts, restart_backoff_s)
    agents = cluster.add(*"abcdefgh"[:nodes])
    assert all(agent.running is not None for agent in agents)
    return cluster, agents


def take_over(
    cluster: Cluster, *without: SimulatedAgent, predecessor: Predecessor = UNKNOWN
) -> None:
    """All agents but those find the new coordinator."""
    cluster.take_over(predecessor)
    cluster.bring(
        *(agent for agent in cluster.agents if agent not in without and not agent.is_done)
    )


def die(cluster: Cluster, *agents: SimulatedAgent) -> None:
    """With their workers: they are never heard again."""
    for agent in agents:
        agent.running = None
        cluster.agents.remove(agent)


def lose_with_leader(
    cluster: Cluster,
    *dead: SimulatedAgent,
    without: tuple[SimulatedAgent, ...] = (),
    known_as: Predecessor = DEAD,
) -> None:
    """The leader's agent is one of these, and dies with them: another coordinator takes over."""
    die(cluster, *dead)
    take_over(cluster, *without, predecessor=known_as)


def lose(cluster: Cluster, *agents: SimulatedAgent) -> None:
    """The coordinator has given up these, which are never heard again."""
    for agent in agents:
        cluster.cut(agent)
        cluster.give_up(agent)
        cluster.agents.remove(agent)


def with_register(min_nodes: int, max_nodes: int, **others: object) -> Cluster:
    """A job with these settings and a register; nobody has begun."""
    settings = replace(SharedSettings("job", min_nodes, max_nodes), **others)
    return Cluster(settings, has_register=True)


def said(cluster: Cluster) -> list[str]:
    """What a person has read of takeovers."""
    return [record.text for record in cluster.records if record.kind is kinds.TAKEN_OVER]
