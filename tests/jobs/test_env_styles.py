"""Workers on two nodes with the variables of other launchers (--env-style), from round to round."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, Worker
from tests.harness.leading_agents import cluster_of, lose_leader
from tests.harness.one_agent import agent, ended


@pytest.fixture
def pair(cluster: Cluster) -> Cluster:
    cluster.options |= {"nnodes": 2, "max_restarts": 1, "restart_grace": 0.5}
    return cluster


def listen_at(address: str) -> None:
    """As a server of a worker does."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen()


def coordinator(workers: list[Worker]) -> str:
    """The address that all have got, at which a server can listen."""
    (address,) = {worker.env["JAX_COORDINATOR_ADDRESS"] for worker in workers}
    assert [worker.env["JAX_PROCESS_ID"] for worker in workers] == ["0", "1", "2", "3"]
    assert {worker.env["OMPI_COMM_WORLD_SIZE"] for worker in workers} == {"4"}
    assert address != workers[0].store
    listen_at(address)
    return address


def test_A14_jax_has_a_new_coordinators_address_in_each_round(pair: Cluster) -> None:
    a, b = pair.running("a", "b", nproc=2, env_style="jax")
    first = pair.wait_workers(4, round=0)
    was_at = coordinator(first)
    pair.order(f"os.kill(os.getpid(), {signal.SIGKILL:d})", round=0, rank=3)
    assert coordinator(pair.wait_workers(4, round=1)) != was_at
    pair.end_well(a, b)


def test_A14_tensorflows_workers_have_an_address_each(pair: Cluster) -> None:
    a, b = pair.running("a", "b", nproc=2, env_style="tensorflow,mpi")
    configs = [json.loads(w.env["TF_CONFIG"]) for w in pair.wait_workers(4, round=0)]
    (addresses,) = {tuple(config["cluster"]["worker"]) for config in configs}
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": rank} for rank in range(4)
    ]
    assert len(set(addresses)) == 4
    for address in addresses:
        listen_at(address)
    pair.end_well(a, b)


@pytest.mark.parametrize("theirs", [None, "tensorflow"])
def test_R7_a_node_with_other_styles_is_refused(pair: Cluster, theirs: str | None) -> None:
    a, b = pair.running("a", "b", env_style="mpi,jax")
    line = pair.agent("c", hosts=False, env_style=theirs).wait_only_line(2)
    assert "--env-style" in line
    pair.end_well(a, b)


def test_A14_order_and_spelling_of_styles_do_not_matter(pair: Cluster) -> None:
    a = pair.agent("a", hosts=True, env_style="jax,mpi,torch")
    b = pair.agent("b", hosts=False, env={"RALLYPOINT_ENV_STYLE": "mpi,jax,jax"})
    pair.wait_workers(2, round=0)
    pair.end_well(a, b)


PRINTS = """
tell("at", os.environ["JAX_COORDINATOR_ADDRESS"], os.environ.get("CROSS_SIZE"))
"""


def test_A14_one_node_alone_needs_no_more(tmp_path: Path) -> None:
    options = ("--env-style", "deepspeed", "--env-style", "jax")
    job = ended(agent(tmp_path, *options, program="import os" + PRINTS), 0)
    (told,) = job.told("at")
    address, nodes = told.split()
    assert nodes == "1"
    listen_at(address)


def test_L1_A14_who_takes_the_job_over_tells_the_ports_of_its_rounds(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "1:2", env_style="jax,tensorflow") as cluster:
        agents = list(cluster.agents("a", "b", hosts=None))
        first = cluster.wait_workers(2, round=0)
        lose_leader(cluster, agents, first)
        (worker,) = cluster.wait_workers(1, round=1)
        address = worker.env["JAX_COORDINATOR_ADDRESS"]
        assert address != first[0].env["JAX_COORDINATOR_ADDRESS"]
        listen_at(address)
        (own,) = json.loads(worker.env["TF_CONFIG"])["cluster"]["worker"]
        assert own != address
        listen_at(own)
        cluster.end_well(*agents)
