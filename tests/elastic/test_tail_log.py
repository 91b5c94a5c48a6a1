"""Log files that are followed by a program."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from tests.harness.one_agent import eventually

from rallypoint.elastic.multiprocessing import TailLog


def append(path: Path, text: str) -> None:
    with path.open("ab") as file:
        file.write(text.encode())


def test_W19_lines_of_files_that_come_later_are_passed_on_whole(tmp_path: Path) -> None:
    first, second, shown = tmp_path / "first", tmp_path / "second", io.StringIO()
    files = {0: str(first), 1: str(second), 2: str(tmp_path / "never")}
    before = threading.active_count()
    tail = TailLog("trainer", files, shown, {1: "<one> "}, interval_sec=0.01).start()
    assert threading.active_count() == before + 1  # for all files
    assert not tail.stopped()
    append(first, "a\nsnow")
    eventually(lambda: "a\n" in shown.getvalue(), "the first line")
    append(second, "b\n")
    eventually(lambda: "b\n" in shown.getvalue(), "a line after it")
    append(first, "man \N{SNOWMAN}\nopen")
    tail.stop()
    tail.stop()
    assert tail.stopped()
    assert threading.active_count() == before
    assert shown.getvalue() == (
        "[trainer0]:a\n<one> b\n[trainer0]:snowman \N{SNOWMAN}\n[trainer0]:open\n"
    )


def test_only_the_lines_that_a_filter_accepts_are_passed_on(tmp_path: Path) -> None:
    log, shown, seen = tmp_path / "log", io.StringIO(), list[str]()

    def wanted(line: str) -> bool:
        seen.append(line)
        return "loss" in line

    append(log, "loss 1\nstep 2\nloss 3")
    TailLog("w", {0: str(log)}, shown, log_line_filter=wanted).start().stop()
    assert seen == ["loss 1\n", "step 2\n", "loss 3\n"]
    assert shown.getvalue() == "[w0]:loss 1\n[w0]:loss 3\n"


def test_a_destination_that_fails_is_told_when_it_is_stopped(tmp_path: Path) -> None:
    append(tmp_path / "log", "line\n")
    closed = io.StringIO()
    closed.close()
    tail = TailLog("w", {0: str(tmp_path / "log")}, closed).start()
    with pytest.raises(ValueError, match="closed file"):
        tail.stop()
    tail.stop()
    TailLog("w", {}, closed).start().stop()
