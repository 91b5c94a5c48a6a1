"""Records that no leader writes, put into the register of a job by a holder of its token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace
from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.leading_agents import led_job

from rallypoint.coordinator.client.token import parse_token
from rallypoint.core.model import Epoch
from rallypoint.errors import UnfitRecordError
from rallypoint.register.record import Register, decode, encode

MAD: dict[str, dict[str, Any]] = {
    "nodes": {"nodes": 2**40, "is_active": True, "is_started": True},
    "incarnation": {"incarnation": 2**62},
    "round": {"round": 2**62},
}


def put_mad_record(register: Register, **fields: Any) -> None:
    """Change the newest record so, by a seal that is right."""

    def is_put() -> bool:
        found = register.get_state()
        if found is None:
            return False
        try:
            record = decode(found[0])
        except UnfitRecordError:
            return False
        if record.job is None:
            return False
        epoch = Epoch(record.epoch.number + 1, 1)
        mad = replace(record, epoch=epoch, job=replace(record.job, **fields))
        after = register.set_state(encode(mad), found[1])
        return after is not None and after[2]

    wait_until(is_put, "the record to be replaced")


def survives_mad_records(
    cluster: Cluster, run_id: str, open_register: Callable[[bytes], Register]
) -> None:
    """A job of three nodes whose record is replaced again and again. `open_register`: by the
    token of this job."""
    register = open_register(parse_token(cluster.make_token(), "the test").for_job(run_id))
    leader, others = led_job(cluster, "abc")
    before = cluster.workers(0)
    for field, fields in MAD.items():
        put_mad_record(register, **fields)
        why = f"was not written by a leader: record.job.{field} = "
        wait_until(partial(has_said, leader, why), why)
        wait_until(partial(is_fit, register), "the leader's own record")
    assert all(worker.is_alive for worker in before)
    cluster.end_well(leader, *others)
    assert leader.verdict["restarts"] == 0
    assert {worker.round for worker in cluster.workers()} == {0}


def has_said(agent: AgentProcess, text: str) -> bool:
    """Whether an agent has said this by now."""
    return text in agent.said


def is_fit(register: Register) -> bool:
    """Whether the register holds a record that a leader has written."""
    found = register.get_state()
    try:
        return found is not None and decode(found[0]).job is not None
    except UnfitRecordError:
        return False
