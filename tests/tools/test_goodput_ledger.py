"""Where the time of a job goes that faults befall: the account of its coordinator against what its
workers noted themselves (`benchmarks/goodput.py`).

A coordinator learns late what happens, and on a busy machine nobody can say how late. So nothing is
compared that depends on it: the workers' notes bound what the account may say.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.harness.benchmarks import quick

ROUNDING_S = 1e-3
USEFUL = "useful steps"


def by_spending(account: dict[str, Any]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in account["parts"]:
        sums[part["spent"]] = sums.get(part["spent"], 0.0) + part["seconds"]
    return sums


def starting_s(account: dict[str, Any]) -> float:
    """Seconds from the orders to start workers to their first steps, by the account."""
    spent = by_spending(account)
    return spent.get("spawn", 0.0) + spent.get("start-up", 0.0)


def agrees(found: dict[str, Any]) -> None:
    """The account closes, and is what the workers' notes allow."""
    account, moments, rounds = found["account"], found["moments"], found["moments"]["rounds"]
    assert sum(by_spending(account).values()) == pytest.approx(account["wall_s"], rel=0.005)
    assert account["faults"] == sum(kind != "drain" for kind in found["faults"])
    assert account["furthest_step"] == found["furthest"]
    assert account["lost_steps"] <= found["redone"]
    at_work_s = rounds[-1]["last_at"] - rounds[0]["started_at"]
    assert at_work_s <= account["wall_s"] <= moments["ended_at"] - moments["set_up_at"]

    assert [look["round"] for look in found["looks"]] == [
        number for number in range(len(rounds)) for _ in range(2)
    ]
    accounts = [look["account"] for look in found["looks"]]
    starts_s = [one["first_step_at"] - one["started_at"] for one in rounds]
    for first, second in zip(accounts[::2], accounts[1::2], strict=True):
        only_does_new_steps(first, second)
    # Between the last look at a round and the first one at the next round workers have started.
    assert starting_s(accounts[0]) >= starts_s[0] - ROUNDING_S
    for (before, after), start_s in zip([*pairwise(accounts)][1::2], starts_s[1:], strict=True):
        assert starting_s(after) - starting_s(before) >= start_s - ROUNDING_S
    faulty_s = sum(
        part["seconds"] for part in account["parts"] if part["cause"] not in ("start", "work")
    )
    assert faulty_s >= sum(starts_s[1:]) - ROUNDING_S


def only_does_new_steps(first: dict[str, Any], second: dict[str, Any]) -> None:
    """All time between these looks, and nothing else, was added to the useful steps."""
    passed_s = second["wall_s"] - first["wall_s"]
    expected = by_spending(first)
    expected[USEFUL] = expected.get(USEFUL, 0.0) + passed_s
    assert passed_s > 0.0
    assert by_spending(second) == pytest.approx(expected, abs=ROUNDING_S)


def test_the_account_of_a_job_with_failures_agrees_with_the_ledger(tmp_path: Path) -> None:
    found = json.loads(quick(tmp_path, "goodput.py", "--kinds", "2", "--json", "--looks"))
    assert found["faults"] == ["exception", "worker killed"]
    agrees(found)
    assert not list(tmp_path.iterdir())


@pytest.mark.fault
def test_the_account_of_a_job_with_twelve_faults_of_six_kinds_agrees_with_the_ledger(
    tmp_path: Path,
) -> None:
    found = json.loads(quick(tmp_path, "goodput.py", "--json", "--looks"))
    assert len(found["faults"]) == 12
    assert len(set(found["faults"])) == 6
    agrees(found)
    causes = {(part["spent"], part["cause"]) for part in found["account"]["parts"]}
    assert {("detecting", "loss"), ("hang", "hang"), ("stopping", "drain")} <= causes
    assert {("steps done twice", "failure"), ("start-up", "loss")} <= causes
