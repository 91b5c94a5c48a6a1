"""A recording is read, compared or written; one of another torch is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.recordings import Recordings


def never() -> object:
    raise AssertionError("the real one is asked")


def test_what_was_recorded_is_read_without_asking(tmp_path: Path) -> None:
    record = Recordings("record", tmp_path, "2.13.0")
    assert record("subject", "one", lambda: (1, {"a": "é"})) == [1, {"a": "é"}]
    assert record("subject", "two", lambda: 2) == 2
    recorded = Recordings("recorded", tmp_path, "2.13.0")
    assert recorded("subject", "one", never) == [1, {"a": "é"}]
    assert recorded("subject", "two", never) == 2


def test_the_real_one_must_say_what_was_recorded(tmp_path: Path) -> None:
    Recordings("record", tmp_path, "2.13.0")("subject", "one", lambda: 1)
    assert Recordings("real", tmp_path, "2.13.0")("subject", "one", lambda: 1) == 1
    with pytest.raises(AssertionError, match="run `make record`"):
        Recordings("real", tmp_path, "2.13.0")("subject", "one", lambda: 2)
    with pytest.raises(AssertionError, match="run `make record`"):
        Recordings("recorded", tmp_path, "2.13.0").same("subject", "one", lambda: 2)


def test_a_recording_of_another_torch_is_refused(tmp_path: Path) -> None:
    Recordings("record", tmp_path, "2.13.0")("subject", "one", lambda: 1)
    line = r"subject\.json was recorded with torch 2.13.0, installed is 2.14.1: run `make record`"
    for mode in ("recorded", "real"):
        with pytest.raises(AssertionError, match=line):
            Recordings(mode, tmp_path, "2.14.1")("subject", "one", lambda: 1)


def test_a_question_that_was_not_recorded_is_named(tmp_path: Path) -> None:
    Recordings("record", tmp_path, "2.13.0")("subject", "one", lambda: 1)
    with pytest.raises(AssertionError, match=r"subject\.json has no 'two': run `make record`"):
        Recordings("recorded", tmp_path, "2.13.0")("subject", "two", never)
