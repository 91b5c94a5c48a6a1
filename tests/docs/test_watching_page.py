"""docs/watching.md shows what the code prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.watch.broken_jobs import BROKEN

from rallypoint.core.model import Outcome
from rallypoint.core.watch import job_view

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"


def test_the_sample_of_status_is_real_output() -> None:
    make, _ = BROKEN["one rank hangs"]
    sample = "\n".join(make().status())
    command = "$ rallypoint status node-0 --job train-7\n"
    assert f"```\n{command}{sample}\n```\n" in PAGE.read_text()


@pytest.mark.parametrize("state", sorted({*job_view._STATES.values(), "no progress"}))
def test_each_state_has_a_row(state: str) -> None:
    assert f"\n| {state} | " in PAGE.read_text()


@pytest.mark.parametrize("outcome", Outcome)
def test_each_way_to_end_has_a_row(outcome: Outcome) -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith("| succeeded")]
    said = outcome.value in row.split("|")[1].replace(",", " ").strip()
    assert said or f"\n| failed ({outcome.value}) |" in PAGE.read_text()
