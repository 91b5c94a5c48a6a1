"""Agents of a job, any of which may lead it."""

from __future__ import annotations

from pathlib import Path

from tests.harness.cluster import AgentProcess, Cluster, free_port, wait_until


def cluster_of(folder: Path, nnodes: str) -> Cluster:
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
