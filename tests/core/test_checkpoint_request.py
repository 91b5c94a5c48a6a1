"""When a node may answer that its workers have saved a checkpoint."""

from __future__ import annotations

import pytest

from rallypoint.core import checkpoint
from rallypoint.core.checkpoint import (
    GO_ON,
    JOIN,
    LEAVE,
    RequestState,
    SaveAnswer,
    SaveRequest,
    Then,
)
from rallypoint.core.model import Stamp
from rallypoint.core.worker_exits import WorkerExit

STAMP = Stamp(1, 3)
NOBODY: frozenset[int] = frozenset()
BOTH = frozenset({0, 1})
NONE: list[WorkerExit] = []


def request(then: Then = LEAVE, number: int = 1, stamp: Stamp = STAMP) -> SaveRequest:
    return SaveRequest(stamp, number, then, "node b is leaving", 20.0)


def asked(then: Then = LEAVE, *, by_signal: bool = False) -> RequestState:
    state = RequestState(STAMP, workers=2)
    assert checkpoint.asked(state, request(then), by_signal=by_signal)
    return state


def test_nobody_is_asked_for_another_round_or_twice() -> None:
    state = asked()
    assert not checkpoint.asked(state, request(), by_signal=False)
    assert not checkpoint.asked(state, request(number=2, stamp=Stamp(1, 4)), by_signal=False)
    assert checkpoint.asked(state, request(number=2), by_signal=False)
    assert not checkpoint.asked(state, request(number=1), by_signal=False), "older"


def test_A5_a_node_whose_workers_do_not_listen_answers_at_once() -> None:
    state = asked()
    assert checkpoint.answer(state, NOBODY, NOBODY, NONE) == SaveAnswer(listens=False, failed=False)
    assert checkpoint.answer(state, BOTH, BOTH, NONE) is None, "said once"


def test_A5_all_that_listen_must_have_saved_or_ended_well() -> None:
    state = asked()
    assert checkpoint.answer(state, BOTH, NOBODY, NONE) is None
    assert checkpoint.answer(state, BOTH, frozenset({1}), NONE) is None
    exits = [WorkerExit(0, None)]
    assert checkpoint.answer(state, BOTH, frozenset({1}), exits) == SaveAnswer(
        listens=True, failed=False
    )


def test_A5_who_was_asked_by_a_signal_is_waited_for() -> None:
    state = asked(by_signal=True)
    assert checkpoint.answer(state, NOBODY, NOBODY, NONE) is None
    exits = [WorkerExit(0, None), WorkerExit(0, None, local_rank=1)]
    assert checkpoint.answer(state, NOBODY, NOBODY, exits) == SaveAnswer(listens=True, failed=False)


@pytest.mark.parametrize(
    "exit_", [WorkerExit(1, None, local_rank=1), WorkerExit(None, 9, local_rank=1)]
)
def test_A5_a_worker_that_failed_saves_nothing(exit_: WorkerExit) -> None:
    state = asked()
    exits = [exit_]
    assert checkpoint.answer(state, BOTH, NOBODY, exits) == SaveAnswer(listens=True, failed=True)


def test_R2_a_growth_waits_for_who_begins_to_listen_late() -> None:
    state = asked(JOIN, by_signal=True)
    assert not state.all_asked, "no signal for this"
    assert checkpoint.answer(state, NOBODY, NOBODY, NONE) == SaveAnswer(listens=False, failed=False)
    assert checkpoint.answer(state, BOTH, NOBODY, NONE) is None
    assert checkpoint.answer(state, BOTH, BOTH, NONE) == SaveAnswer(listens=True, failed=False)
    assert checkpoint.answer(state, BOTH, BOTH, NONE) is None


def test_nothing_is_answered_that_was_withdrawn() -> None:
    state = asked()
    assert not checkpoint.withdrawn(state, 2, NOBODY)
    assert checkpoint.withdrawn(state, 1, NOBODY)
    assert checkpoint.answer(state, NOBODY, NOBODY, NONE) is None
    assert not checkpoint.withdrawn(state, 1, NOBODY)


def test_A4_what_one_worker_has_saved_is_told_though_the_question_was_withdrawn() -> None:
    """That worker may have ended because of it, while the other one of this node goes on."""
    state = asked(JOIN)
    saved = frozenset({0})
    assert not checkpoint.withdrawn(state, 1, saved)
    assert checkpoint.answer(state, BOTH, saved, [WorkerExit(0, None)]) is None
    exits = [WorkerExit(0, None), WorkerExit(0, None, local_rank=1)]
    assert checkpoint.answer(state, BOTH, saved, exits) == SaveAnswer(listens=True, failed=False)


def test_R2_who_has_ended_well_has_not_saved_a_checkpoint_for_a_growth() -> None:
    state = asked(JOIN)
    exits = [WorkerExit(0, None), WorkerExit(0, None, local_rank=1)]
    assert checkpoint.answer(state, BOTH, NOBODY, exits) == SaveAnswer(listens=False, failed=False)
    assert checkpoint.answer(state, BOTH, frozenset({1}), exits) == SaveAnswer(
        listens=True, failed=False
    )


def test_V4_a_second_checkpoint_that_a_person_wants_in_a_round_is_answered_as_the_first() -> None:
    state = asked(GO_ON)
    have_saved = SaveAnswer(listens=True, failed=False)
    assert checkpoint.answer(state, BOTH, BOTH, NONE) == have_saved
    assert checkpoint.asked(state, request(GO_ON, number=2), by_signal=False)
    assert checkpoint.answer(state, BOTH, NOBODY, NONE) is None, "they save another one"
    assert checkpoint.answer(state, BOTH, BOTH, NONE) == have_saved
