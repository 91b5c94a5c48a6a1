"""What a worker is told, and what it is never told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.agent.environ import (
    WorkerContext,
    health_port_asked_for,
    own_device,
    worker_argv,
    worker_environ,
)
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.core.model import Assignment, Stamp
from rallypoint.errors import UsageError

WORKERS = WorkerConfig(count=4, role="trainer", omp_threads=1)
CONTEXT = WorkerContext(
    local_rank=1,
    error_file="/logs/1/error.json",
    stamp=Stamp(2, 9),
    assignment=Assignment(
        round=9,
        group_rank=2,
        group_world_size=3,
        base_rank=4,
        world_size=8,
        base_role_rank=2,
        role_world_size=6,
        master_addr="10.0.0.1",
        master_port=4321,
        restart_count=1,
        why="node b was lost",
        enrol=True,
    ),
    config=AgentConfig(rendezvous=RendezvousConfig("job-x", max_restarts=7), workers=WORKERS),
    node_id="host-a/0",
    shm="/tmp/x/shm",
)


def with_workers(**settings: bool) -> WorkerContext:
    """The same with these settings of the workers."""
    return replace(CONTEXT, config=replace(CONTEXT.config, workers=replace(WORKERS, **settings)))


TOLD = {
    "LOCAL_RANK": "1",
    "RANK": "5",
    "ROLE_RANK": "3",
    "ROLE_NAME": "trainer",
    "GROUP_RANK": "2",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "3",
    "ROLE_WORLD_SIZE": "6",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "4321",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_MAX_RESTARTS": "7",
    "TORCHELASTIC_RUN_ID": "job-x",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": "/logs/1/error.json",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "PYTHONFAULTHANDLER": "1",
    "OMP_NUM_THREADS": "1",
    "RALLYPOINT_RUN_ID": "job-x",
    "RALLYPOINT_INCARNATION": "2",
    "RALLYPOINT_ROUND": "9",
    "RALLYPOINT_NODE_ID": "host-a/0",
    "RALLYPOINT_LOCAL_RANK": "1",
    "RALLYPOINT_RESTART_REASON": "node b was lost",
    "RALLYPOINT_SHM": "/tmp/x/shm",
}


def test_exactly_this_is_added() -> None:
    assert worker_environ(CONTEXT, {}) == TOLD


def test_the_rest_is_inherited_and_the_outer_job_is_overwritten() -> None:
    base = {"PATH": "/bin", "PET_NNODES": "2", "RANK": "77", "TORCHELASTIC_RUN_ID": "outer"}
    assert worker_environ(CONTEXT, base) == {"PATH": "/bin", "PET_NNODES": "2"} | TOLD
    assert base["RANK"] == "77"


def test_what_the_person_set_is_kept() -> None:
    base = {"OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    base["PYTHONFAULTHANDLER"] = ""
    assert base.items() <= worker_environ(CONTEXT, base).items()


def test_what_is_to_be_read_for_progress_is_not_buffered_unless_the_person_wants_it() -> None:
    unbuffered = with_workers(unbuffered=True)
    assert worker_environ(unbuffered, {})["PYTHONUNBUFFERED"] == "1"
    assert worker_environ(unbuffered, {"PYTHONUNBUFFERED": ""})["PYTHONUNBUFFERED"] == ""
    assert "PYTHONUNBUFFERED" not in worker_environ(CONTEXT, {})


def test_the_board_of_an_outer_agent_is_nobodys() -> None:
    told = worker_environ(replace(CONTEXT, shm=""), {"RALLYPOINT_SHM": "/outer/shm"})
    assert "RALLYPOINT_SHM" not in told


def test_the_token_is_never_passed_on() -> None:
    told = worker_environ(CONTEXT, {"RALLYPOINT_TOKEN": "secret"})
    assert "RALLYPOINT_TOKEN" not in told
    assert "secret" not in told.values()


@pytest.mark.parametrize(
    ("visible", "device"), [(None, "1"), ("4,7,6,5", "7"), (" GPU-a , GPU-b ,GPU-c,GPU-d", "GPU-b")]
)
def test_a_virtual_local_rank_is_0_and_one_device_is_visible(
    visible: str | None, device: str
) -> None:
    base = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    told = worker_environ(with_workers(virtual_local_rank=True), base)
    assert told == TOLD | {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
    assert told["RALLYPOINT_LOCAL_RANK"] == "1"


@pytest.mark.parametrize(
    ("base", "devices"),
    [
        ({"HIP": "4,7,6,5", "CUDA": "0,1,2,3"}, {"HIP": "7", "CUDA": "7"}),
        ({"HIP": "4,7,6,5"}, {"HIP": "7", "CUDA": "7"}),
        ({"ROCR": "4,7,6,5"}, {"ROCR": "4,7,6,5", "CUDA": "1"}),
        ({"ROCR": "4,7,6,5", "CUDA": "3,2,1,0"}, {"ROCR": "4,7,6,5", "CUDA": "2"}),
    ],
    ids=["HIP wins", "HIP alone", "ROCR is numbered anew", "ROCR and a list"],
)
def test_a_virtual_local_rank_on_amd_gpus(base: dict[str, str], devices: dict[str, str]) -> None:
    given = {f"{name}_VISIBLE_DEVICES": value for name, value in base.items()}
    told = worker_environ(with_workers(virtual_local_rank=True), given)
    wanted = {f"{name}_VISIBLE_DEVICES": value for name, value in devices.items()}
    assert told == TOLD | {"LOCAL_RANK": "0", **wanted}


@pytest.mark.parametrize("name", ["CUDA", "HIP", "ROCR"])
def test_a_virtual_local_rank_without_a_device_is_refused(name: str) -> None:
    variable = f"{name}_VISIBLE_DEVICES"
    for visible in ("", "4", "4,7,6"):
        with pytest.raises(UsageError, match=f"--virtual-local-rank: {variable}="):
            own_device({variable: visible}, 0, 4)


def test_only_the_macro_is_replaced() -> None:
    template = ("python", "-u", "s.py", "--dev=${local_rank}", "a$$b", "$local_rank", "${rank}")
    assert worker_argv(template, 3) == [
        *("python", "-u", "s.py", "--dev=3", "a$$b", "$local_rank", "${rank}")
    ]


def test_the_port_for_health_checks_is_the_agents_and_not_that_of_a_job_in_a_worker() -> None:
    asked = {"TORCHELASTIC_HEALTH_CHECK_PORT": " 8080 "}
    assert health_port_asked_for(asked) == 8080
    assert health_port_asked_for({}) is None
    assert health_port_asked_for(dict.fromkeys(asked, "")) is None
    assert health_port_asked_for(asked | {"RALLYPOINT_INCARNATION": "1"}) is None
    for wrong in ("0", "-1", "65536", "http"):
        with pytest.raises(UsageError, match=f"^TORCHELASTIC_HEALTH_CHECK_PORT={wrong}: "):
            health_port_asked_for(dict.fromkeys(asked, wrong))
