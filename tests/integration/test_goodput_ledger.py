"""Where the time of a job goes that faults befall: the account of its coordinator against a ledger
of what its workers noted themselves (`benchmarks/goodput.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_benchmarks import quick
from tests.limits import load

A_ROUND_S = 0.2
"""So far may account and ledger be apart for each round, as the workers can't
see when their processes were started, nor how long the job waited for them to be gone..."""
STARTS = 4
"""...or as long as so many processes take to start now, one after the other, which is longer on
cores that have other work..."""
SHARE = 0.1
"""...and so much of the seconds themselves."""


def by_spending(account: dict[str, Any]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in account["parts"]:
        sums[part["spent"]] = sums.get(part["spent"], 0.0) + part["seconds"]
    return sums


def start_s() -> float:
    """The longest time, of three, that a Python process takes to start and end here now."""
    times = []
    for _ in range(3):
        began_at = time.monotonic()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        times.append(time.monotonic() - began_at)
    return max(times)


def agrees(found: dict[str, Any], started_s: float) -> None:
    """The account closes, and is what the ledger says. `started_s`: `start_s` before the job."""
    account, ledger = found["account"], found["ledger"]
    spent = by_spending(account)
    assert sum(spent.values()) == pytest.approx(account["wall_s"], rel=0.005)
    assert account["faults"] == sum(kind != "drain" for kind in found["faults"])
    rounds, slowness = len(found["faults"]) + 1, max(load() / 4, 1.0)
    a_round_s = max(A_ROUND_S * slowness, STARTS * max(started_s, start_s()))
    tolerance_s = a_round_s * rounds
    assert account["wall_s"] == pytest.approx(found["wall_s"], abs=tolerance_s)
    for name, seconds in ledger.items():
        if name in spent:
            assert spent.pop(name) == pytest.approx(seconds, abs=tolerance_s, rel=SHARE), name
    between_s = ledger["from a stop to the next start"]
    rest_s = sum(s for name, s in spent.items() if name not in ledger)
    assert rest_s == pytest.approx(between_s, abs=tolerance_s, rel=SHARE), spent
    lost = account["lost_steps"]
    assert abs(lost - found["redone"]) <= rounds * (1 + slowness), found


def test_the_account_of_a_job_with_failures_agrees_with_the_ledger(tmp_path: Path) -> None:
    started_s = start_s()
    found = json.loads(quick(tmp_path, "goodput.py", "--kinds", "2", "--json"))
    assert found["faults"] == ["exception", "worker killed"]
    agrees(found, started_s)
    assert not list(tmp_path.iterdir())


@pytest.mark.fault
def test_the_account_of_a_job_with_twelve_faults_of_six_kinds_agrees_with_the_ledger(
    tmp_path: Path,
) -> None:
    started_s = start_s()
    found = json.loads(quick(tmp_path, "goodput.py", "--json"))
    assert len(found["faults"]) == 12
    assert len(set(found["faults"])) == 6
    agrees(found, started_s)
    causes = {(part["spent"], part["cause"]) for part in found["account"]["parts"]}
    assert {("detecting", "loss"), ("hang", "hang"), ("stopping", "drain")} <= causes
    assert {("steps done twice", "failure"), ("start-up", "loss")} <= causes
