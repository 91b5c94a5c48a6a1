"""The nouns of the agent API, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.refusals import refused_in_one_line

from rallypoint.elastic.agent.server import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from rallypoint.errors import UsageError

FINE = {WorkerState.SUCCEEDED, WorkerState.HEALTHY, WorkerState.INIT}


@pytest.mark.parametrize("state", list(WorkerState))
def test_W2_whatever_has_not_succeeded_and_does_not_go_on_has_failed(state: WorkerState) -> None:
    assert RunResult(state).is_failed() == (state not in FINE)


def test_results_share_nothing() -> None:
    RunResult(WorkerState.FAILED).failures[0] = "one"
    assert RunResult(WorkerState.FAILED).failures == {}


def test_who_runs_may_be_stopped() -> None:
    running = {state for state in WorkerState if WorkerState.is_running(state)}
    assert running == {WorkerState.HEALTHY, WorkerState.UNHEALTHY}


def test_a_group_has_no_place_before_a_round() -> None:
    group = WorkerGroup(WorkerSpec("trainer", 3, entrypoint="train"))
    assert [worker.local_rank for worker in group.workers] == [0, 1, 2]
    assert {worker.global_rank for worker in group.workers} == {-1}
    assert (group.group_rank, group.master_addr, group.state) == (None, None, WorkerState.INIT)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"role": ""}, "role=''"),
        ({"local_world_size": 0}, "local_world_size=0"),
        ({"local_world_size": "2"}, "local_world_size='2'"),
        ({"entrypoint": None}, "entrypoint=None"),
        ({"entrypoint": ()}, "entrypoint=()"),
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"monitor_interval": 0}, "monitor_interval=0"),
    ],
)
def test_a_mistake_in_a_spec_is_one_line(given: dict[str, Any], says: str) -> None:
    fine: dict[str, Any] = {"role": "trainer", "local_world_size": 1, "entrypoint": "train"}
    for kind in (ValueError, UsageError):
        with refused_in_one_line(kind, says):
            WorkerSpec(**fine | given)


def test_the_name_of_an_entrypoint() -> None:
    def named(entrypoint: Any) -> str:
        return WorkerSpec("trainer", 1, entrypoint=entrypoint).get_entrypoint_name()

    assert named("/usr/bin/train") == "train"
    assert named(("/usr/bin/python", "a.py")) == "python"
    assert named(test_results_share_nothing) == "test_results_share_nothing"


def test_fn_is_the_old_name_of_entrypoint() -> None:
    with pytest.warns(DeprecationWarning, match="give entrypoint="):
        spec = WorkerSpec("trainer", 1, fn=print)
    assert spec.entrypoint is print


def test_a_worker_prints_as_torchs_and_takes_no_other_attribute() -> None:
    """What torch prints is compared in tests/compat/test_signatures.py."""
    worker: Any = Worker(1, 2, 3, 4, 5)
    assert str(worker) == "local_rank=1,global_rank=2,role_rank=3,world_size=4,role_world_size=5"
    group: Any = WorkerGroup(WorkerSpec("trainer", 1, entrypoint="true"))
    for made in (worker, group):
        with pytest.raises(AttributeError):
            made.more = 1
