"""A failed process in torch's vocabulary, and the banner that several of them make."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from rallypoint.elastic.multiprocessing import ChildFailedError, ProcessFailure

RECORDED = {
    "message": {
        "message": "ValueError: bad",
        "extraInfo": {"py_callstack": "Traceback ...\nValueError: bad", "timestamp": "1700"},
    }
}


def written(path: Path, content: object, at: float = 5000.0) -> str:
    path.write_text(json.dumps(content))
    os.utime(path, (at, at))
    return str(path)


def test_P8_without_a_file_a_signal_is_named() -> None:
    failure = ProcessFailure(1, 22, -signal.SIGSEGV, "/absent")
    assert failure.message == "Signal 11 (SIGSEGV) received by PID 22"
    assert (failure.signal_name(), failure.error_file) == ("SIGSEGV", "<N/A>")
    assert ProcessFailure(0, 22, -40, "").message == "Signal 40 (signal 40) received by PID 22"


def test_P8_without_a_file_an_exit_code_is_told_with_a_way_to_learn_more() -> None:
    failure = ProcessFailure(1, 22, 3, "/absent", seen_at=12.25)
    assert str(failure.message).startswith("exit code 3; ")
    assert (failure.signal_name(), failure.timestamp, failure.moment) == ("<N/A>", 12, 12.25)
    assert ProcessFailure(1, 22, 3, "", said="what stderr says").message == "what stderr says"


@pytest.mark.parametrize(
    ("content", "message", "timestamp"),
    [
        (RECORDED, RECORDED["message"], 1700.0),
        ({"message": "text", "timestamp": 12}, "text", 12.0),
        ({"message": "text", "timestamp": "12.5"}, "text", 12.5),
        ({"message": "text"}, "text", 77.0),
        ({"message": "text", "timestamp": 1e300}, "text", 77.0),
    ],
)
def test_P8_a_file_of_either_form_is_read(
    tmp_path: Path, content: object, message: object, timestamp: float
) -> None:
    path = written(tmp_path / "e", content)
    failure = ProcessFailure(1, 22, 1, path, seen_at=77.0)
    assert (failure.error_file, failure.error_file_data) == (path, content)
    assert (failure.message, failure.moment) == (message, timestamp)
    assert (type(failure.timestamp), failure.timestamp) == (int, int(timestamp))


@pytest.mark.parametrize(
    "content", [[], {}, {"message": 3}, {"message": {}}, {"message": {"message": []}}, None]
)
def test_P8_a_malformed_file_is_as_good_as_none(tmp_path: Path, content: object) -> None:
    failure = ProcessFailure(1, 22, -9, written(tmp_path / "e", content))
    assert failure.error_file == "<N/A>"
    assert failure.message == "Signal 9 (SIGKILL) received by PID 22"


def test_P9_the_files_own_date_gives_the_milliseconds(tmp_path: Path) -> None:
    near = ProcessFailure(0, 1, 1, written(tmp_path / "near", RECORDED, at=1700.875))
    far = ProcessFailure(0, 1, 1, written(tmp_path / "far", RECORDED, at=1900.5))
    assert (near.moment, far.moment) == (1700.875, 1700.0)
    assert (near.timestamp, far.timestamp) == (1700, 1700)
    assert near.timestamp_isoformat().endswith(":20.875")


def test_W9_failures_share_nothing() -> None:
    plain, killed = ProcessFailure(0, 1, 3, ""), ProcessFailure(1, 2, -9, "")
    assert "errorTraits" in plain.error_file_data
    assert killed.error_file_data == {"message": "<NONE>"}
    plain.error_file_data["more"] = 1
    assert "more" not in ProcessFailure(2, 3, 3, "").error_file_data


def test_P9_the_first_failure_is_the_earliest_unless_the_job_knows_better() -> None:
    early, late = (ProcessFailure(n, n, 1, "", seen_at=at) for n, at in ((0, 5.0), (1, 5.5)))
    error = ChildFailedError("job", {7: late, 3: early})
    assert error.get_first_failure() == (3, early)
    assert ChildFailedError("job", {7: late, 3: early}, first_rank=7).get_first_failure()[0] == 7
    assert error.followed == 1
    with pytest.raises(ValueError, match="at least one"):
        ChildFailedError("job", {})


def test_P10_the_banner_names_the_first_cause_last(tmp_path: Path) -> None:
    recorded = ProcessFailure(1, 22, 1, written(tmp_path / "e", RECORDED), node="b", log_file="/l")
    killed = ProcessFailure(0, 21, -9, "", seen_at=1800.5, node="a")
    text = str(ChildFailedError("train.py", {4: killed, 5: recorded}, followed=3))
    before, _, root = text.partition("Root Cause (first observed failure):\n")
    title, failures = before.strip().splitlines()[1], before.partition("Failures:\n")[2]
    assert title == "train.py FAILED"
    assert failures.splitlines()[:2] == ["[1]:", f"  time      : {killed.timestamp_isoformat()}"]
    assert "  rank      : 4 (local_rank: 0)\n" in failures
    assert "  exitcode  : -9 (pid: 21) (SIGKILL)\n" in failures
    assert "  and 2 more, on other nodes\n" in failures
    assert root.splitlines()[:-1] == [
        "[0]:",
        f"  time      : {recorded.timestamp_isoformat()}",
        "  host      : b",
        "  rank      : 5 (local_rank: 1)",
        "  exitcode  : 1 (pid: 22)",
        f"  error_file: {recorded.error_file}",
        "  log_file  : /l",
        "  traceback : Traceback ...",
        "  ValueError: bad",
    ]
    alone = str(ChildFailedError("train.py", {4: killed}))
    assert "Failures:\n  <NO_OTHER_FAILURES>\n---" in alone


def test_P10_without_a_file_the_banner_shows_what_stderr_told() -> None:
    trace = "Traceback (most recent call last):\nValueError: bad"
    told = ProcessFailure(0, 1, 1, "", said="ValueError: bad", detail=trace)
    assert told.message == "ValueError: bad"
    text = str(ChildFailedError("x", {0: told}))
    assert "  traceback : Traceback (most recent call last):\n  ValueError: bad\n" in text


def test_P10_a_banner_does_no_harm_to_a_terminal(tmp_path: Path) -> None:
    path = written(tmp_path / "e", {"message": "a\x1b[2Jb\x07"})
    text = str(ChildFailedError("x", {0: ProcessFailure(0, 1, 1, path)}))
    assert "  traceback : ab\n" in text
