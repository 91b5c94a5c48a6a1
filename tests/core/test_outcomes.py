"""The table of outcomes is the one place that knows them: pages, codes and texts read its rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.harness.node_machine import RULES, Node, verdict
from tools.outcomes_page import PAGES, written

from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import close, new_job
from rallypoint.core.node.events import NodeTimer, SignalWorkers
from rallypoint.core.node.state import NodePhase
from rallypoint.core.outcomes import (
    BY_CLASS,
    CODES,
    FINER,
    Afterwards,
    Outcome,
    Row,
    codes_of,
    exit_codes_help,
)
from rallypoint.core.settings import FLAGS, SharedSettings
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
    assert codes_of(Afterwards.BY_A_PERSON) == [124, 130]
    assert codes_of(Afterwards.AGAIN) == [75]
    assert codes_of(Afterwards.AT_NO_COST) == [143]


@pytest.mark.parametrize(
    ("outcome", "number", "grace_s"),
    [
        (Outcome.FAILED, 15, RULES.restart_grace_s),
        (Outcome.TIMED_OUT, 15, RULES.restart_grace_s),
        (Outcome.CANCELLED, 2, RULES.shutdown_grace_s),
        (Outcome.PREEMPTED, 12, RULES.shutdown_grace_s),
    ],
)
def test_A5_workers_of_a_job_that_was_stopped_get_its_signal_and_time_to_stop(
    outcome: Outcome, number: int, grace_s: float
) -> None:
    node = Node(NodePhase.RUNNING)
    stop, wait = node.step(verdict(outcome, 0 if number == 15 else number))
    assert stop == SignalWorkers(number)
    assert isinstance(wait, NodeTimer)
    assert wait.length_s == grace_s


@pytest.mark.parametrize("outcome", Outcome)
def test_an_end_that_was_wanted_is_no_warning(outcome: Outcome) -> None:
    job = new_job(SharedSettings("digits", 1, 1))
    (record,) = close(job, outcome, "a reason")
    assert isinstance(record, Record)
    was_wanted = outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.OUT_OF_TIME)
    assert record.kind is (kinds.VERDICT if was_wanted else kinds.JOB_FAILED)
