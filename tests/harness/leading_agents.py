"""Agents of a job, any of which may lead it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.harness.cluster import AgentProcess, Cluster, Option, Worker, free_port, wait_until
from tests.harness.commands import drain
from tests.harness.proxy import Proxy

from rallypoint.core.outcomes import SIGNALLED


def cluster_of(folder: Path, nnodes: str, **options: Option) -> Cluster:
    """Nodes of one machine, each with the same view of the directory. The first world has as many
    as may take part."""
    jobs = folder / "jobs"
    jobs.mkdir(mode=0o700)
    return Cluster(
        folder,
        rdzv_backend="file",
        rdzv_endpoint=str(jobs),
        nnodes=nnodes,
        lease=30,
        local_addr="127.0.0.1",
        rdzv_conf="last_call_timeout=20",
        **options,
    )


def leads(agent: AgentProcess) -> bool:
    """It has led the job."""
    return any(event.name == "leads" for event in agent.events)


def leader_of(*agents: AgentProcess) -> AgentProcess:
    """The only one of these that has led the job; waits for it."""
    found = wait_until(lambda: [agent for agent in agents if leads(agent)], "a leader")
    assert len(found) == 1
    return found[0]


def led_job(cluster: Cluster, names: str) -> tuple[AgentProcess, list[AgentProcess]]:
    """Agents of these names begin the job. Returns the one that leads it and the others, when all
    workers run."""
    agents = [cluster.agent(name) for name in names]
    cluster.wait_workers(len(names), round=0)
    leader = leader_of(*agents)
    return leader, [agent for agent in agents if agent is not leader]


def candidate_of(cluster: Cluster) -> AgentProcess:
    """A coordinator that stands ready to lead; it is listed when this returns."""
    directory = str(cluster.options["rdzv_endpoint"])
    candidate = cluster.serve("--data-dir", directory, "--candidate", port=free_port())
    candidate.wait_event("waits_to_lead", "job job: ready to take over from 127.0.0.1:")
    return candidate


def lose_leader(cluster: Cluster, agents: list[AgentProcess], first: list[Worker]) -> None:
    """Kill the one of these agents that leads, and take it off the list. The others go on with the
    next round; its guard has told them that it is dead."""
    lost = leader_of(*agents)
    lost.kill()
    agents.remove(lost)
    for agent in agents:
        agent.wait_event("round_ended", f"node {lost.name} was lost")
    cluster.wait_workers(len(agents), round=1)
    assert not any(worker.is_alive for worker in first)
    leader_of(*agents).wait_event("taken_over", f"the leading node died ({lost.name})")


def drain_leader(cluster: Cluster, agents: list[AgentProcess], *words: str) -> None:
    """Have the agent that leads leave, and end the job well: it has lost nodes, and no restart."""
    led_by = leader_of(*agents)
    leaving = drain(cluster, led_by.name, *words)
    assert (leaving.returncode, leaving.stderr) == (0, "")
    assert led_by.wait_exit() == SIGNALLED + signal.SIGTERM
    agents.remove(led_by)
    wait_until(lambda: all(a.workers(2) or a.workers(3) for a in agents), "workers")
    wait_until(lambda: any(leads(agent) for agent in agents), "the next leader")
    cluster.end_well(*agents)
    assert agents[0].verdict["restarts"] == 0
    assert max(worker.round for worker in cluster.workers()) <= 3


def hand_over_unnoticed(cluster: Cluster, proxy: Proxy, **options: Any) -> None:
    """Cut the agent that leads off from the register, which it alone reaches by this proxy, given
    these options: another one leads then, and no worker notices."""
    leader = cluster.agent("a", **options)
    leader.wait_event("leads")
    others = [cluster.agent(name) for name in "bc"]
    first = cluster.wait_workers(3, round=0)
    proxy.cut()
    leader.wait_event("not_recorded")
    assert all(worker.is_alive for worker in first)
    assert not any(leads(agent) for agent in others)
    wait_until(lambda: any(leads(agent) for agent in others), "the next leader")
    leader.wait_event("session_resumed")  # It finds the next leader without the register.
    assert all(worker.is_alive for worker in first)
    proxy.mend()
    cluster.end_well(leader, *others)
    assert {worker.round for worker in cluster.workers()} == {0}
    assert leader.verdict["restarts"] == 0
