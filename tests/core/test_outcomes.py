"""The table of outcomes is the one place that knows them: pages, codes and texts read its rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tools.outcomes_page import PAGES, written

from rallypoint.core.outcomes import (
    BY_CLASS,
    CODES,
    FINER,
    Afterwards,
    Outcome,
    Row,
    codes_of,
    ended_text,
    exit_codes_help,
)
from rallypoint.core.settings import FLAGS
from rallypoint.errors import ExitClass


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_the_table_of_today(path: Path) -> None:
    page = path.read_text()
    assert written(page) == page
    assert written(page.replace("succeeded", "lost")) != page


def test_an_outcome_without_a_verb_is_refused() -> None:
    with pytest.raises(TypeError, match="verb"):
        Row(exits=124, then=Afterwards.NOT_AGAIN)  # type: ignore[call-arg]


def test_every_class_of_exit_codes_has_an_outcome_and_stands_in_the_help() -> None:
    assert set(ExitClass) <= set(BY_CLASS)
    about = FLAGS["--exit-code"].about
    for name, code in CODES.items():
        assert name in about
        assert f"{code} " in exit_codes_help()
    assert all(name in about for name in FINER)


def test_an_outcome_is_its_name_for_programs_and_other_nodes() -> None:
    for outcome in Outcome:
        assert msgspec.json.encode(outcome) == f'"{outcome.value}"'.encode()
        assert msgspec.json.decode(f'"{outcome.value}"', type=Outcome) is outcome


def test_a_scheduler_starts_nothing_again_that_would_end_the_same() -> None:
    assert codes_of(Afterwards.NOT_AGAIN) == [1, 2]
    assert codes_of(Afterwards.AGAIN) == [75]
    assert codes_of(Afterwards.AT_NO_COST) == [143]


def test_an_outcome_of_a_newer_version_is_told_as_it_is_written() -> None:
    assert ended_text("out of patience") == "ended: out of patience"
