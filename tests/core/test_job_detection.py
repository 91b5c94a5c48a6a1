"""The end of a round says how long ago what ended it had happened, on the coordinator's clock."""

from __future__ import annotations

from tests.harness.job_machine import A, B, failed, orders, running

from rallypoint.core import messages as m
from rallypoint.core.job_state import JobEffect
from rallypoint.core.messages import FromNode


def ages(effects: list[JobEffect]) -> set[float | None]:
    return {effect.reason.age_s for effect in orders(effects, m.StopNow)}


def test_a_failure_is_as_old_as_its_node_says() -> None:
    assert ages(running().fail(A, failed(age_s=0.25), at=10.0)) == {0.25}


def test_a_lost_node_is_as_old_as_its_last_word() -> None:
    host = running()
    host.at = 20.0
    assert ages(host.lose(B, heard_at=5.0)) == {15.0}


def test_a_round_that_ends_as_a_node_leaves_has_no_fault() -> None:
    assert ages(running().step(FromNode(B, m.Leave()), at=10.0)) == {None}
