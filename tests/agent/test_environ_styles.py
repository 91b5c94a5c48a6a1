"""The variables of other launchers that a worker has (--env-style)."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from rallypoint.agent.environ import WorkerContext, worker_environ
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.core.model import Assignment, Stamp
from rallypoint.errors import UsageError

PLACE = Assignment(
    round=3,
    group_rank=1,
    group_world_size=2,
    base_rank=2,
    world_size=4,
    base_role_rank=2,
    role_world_size=4,
    master_addr="10.0.0.1",
    master_port=4321,
    restart_count=1,
    why="node b was lost",
    enrol=True,
    coordinator_port=5000,
    worker_addresses=("10.0.0.1:5001", "10.0.0.1:5002", "10.0.0.2:6001", "10.0.0.2:6002"),
)


PAIR = WorkerConfig(count=2)


def context(*styles: str, local_rank: int = 1, workers: WorkerConfig = PAIR) -> WorkerContext:
    """The place of a worker on the second of two nodes, in a job of these styles."""
    config = AgentConfig(rendezvous=RendezvousConfig("job", env_styles=styles), workers=workers)
    return WorkerContext(local_rank, "", Stamp(2, 3), PLACE, config, "b")


def added(place: WorkerContext, **base: str) -> dict[str, str]:
    """What the worker has besides torch's variables and ours, and what it inherits."""
    config = place.config
    plain = replace(
        place, config=replace(config, rendezvous=replace(config.rendezvous, env_styles=()))
    )
    usual = worker_environ(plain, base)
    return {n: v for n, v in worker_environ(place, base).items() if usual.get(n) != v}


OF_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_UNIVERSE_SIZE": "4",
}


def test_A14_torchs_variables_are_there_in_any_style() -> None:
    assert added(context()) == {}
    assert {"RANK", "MASTER_PORT"} <= worker_environ(context("jax", "mpi"), {}).keys()


def test_A14_an_mpi_program_reads_its_place_and_not_its_agents() -> None:
    task = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_FILE_LOCATION": "/tmp/x", "PMIX_RANK": "1"}
    assert added(context("mpi")) == OF_MPI
    environ = worker_environ(context("mpi"), task)
    assert {n: v for n, v in environ.items() if n.startswith(("OMPI_", "PMIX_"))} == OF_MPI


def test_A14_jax_gets_its_coordinators_address_and_its_place() -> None:
    assert added(context("jax")) == OF_MPI | {
        "OMPI_MCA_orte_hnp_uri": "0.0;tcp://10.0.0.1:5000",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:5000",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "3",
        "JAX_LOCAL_DEVICE_IDS": "1",
    }
    place = replace(context("jax"), assignment=replace(PLACE, master_addr="fd00::1"))
    assert added(place)["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:5000"


@pytest.mark.parametrize(
    ("workers", "inherited", "devices"),
    [
        (WorkerConfig(count=2, devices=8), "", "1"),
        (WorkerConfig(count=2, devices=8), "0,1,2,3", "1"),
        (WorkerConfig(count=2, virtual_local_rank=True), "", "0"),
        (WorkerConfig(devices=4), "", "0,1,2,3"),
        (WorkerConfig(devices=4), "2,3", "2,3"),
        (WorkerConfig(), "", None),
    ],
    ids=["one each", "also where a person has said others", "hidden", "all", "chosen", "none"],
)
def test_A14_jax_takes_the_devices_of_its_worker(
    workers: WorkerConfig, inherited: str, devices: str | None
) -> None:
    base = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    if inherited:
        base["JAX_LOCAL_DEVICE_IDS"] = inherited
    place = context("jax", local_rank=workers.count - 1, workers=workers)
    environ = worker_environ(place, base)
    assert environ.get("JAX_LOCAL_DEVICE_IDS") == devices


def test_A14_tensorflow_gets_the_address_of_each_worker() -> None:
    (config,) = added(context("tensorflow")).values()
    assert json.loads(config) == {
        "cluster": {"worker": list(PLACE.worker_addresses)},
        "task": {"type": "worker", "index": 3},
    }


def test_A14_more_workers_than_tf_config_can_name_are_refused() -> None:
    place = replace(PLACE, world_size=5000, worker_addresses=())
    with pytest.raises(UsageError) as refused:
        worker_environ(replace(context("tensorflow"), assignment=place), {})
    says = "--env-style tensorflow: TF_CONFIG has no room for the addresses of 5000 workers"
    assert str(refused.value) == says


def test_A14_deepspeed_gets_what_its_launcher_sets() -> None:
    assert added(context("deepspeed")) == {
        "LOCAL_SIZE": "2",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "2",
    }


def test_A14_styles_are_together() -> None:
    both = added(context("deepspeed", "jax", "mpi", "tensorflow"))
    assert {"CROSS_SIZE", "JAX_PROCESS_ID", "TF_CONFIG", *OF_MPI} <= both.keys()
