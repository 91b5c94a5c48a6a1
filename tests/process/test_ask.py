"""Asking another interpreter: its answer, its failures, and that nothing of it remains."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rallypoint.process.devices import ask_interpreter, ask_program


def test_the_answer_is_what_it_prints_and_the_token_is_not_shown() -> None:
    program = "import os, sys; print('no', file=sys.stderr); print(sorted(os.environ), end='')"
    shown = {"A": "1", "LC_CTYPE": "C.UTF-8", "RALLYPOINT_TOKEN": "secret"}
    answer = ask_interpreter(sys.executable, program, shown, timeout_s=60)
    assert answer == "['A', 'LC_CTYPE']"


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "import no_such_module"])
def test_a_failure_is_no_answer(program: str) -> None:
    assert ask_interpreter(sys.executable, program, {}, timeout_s=60) is None


def test_an_interpreter_that_does_not_exist_is_no_answer() -> None:
    assert ask_interpreter("/nonexistent/python", "", {}, timeout_s=60) is None


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    # It holds the pipe's writing end for as long as it lives, so that end-of-file is its death.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    program = f"import time; held = open({str(pipe)!r}, 'wb', 0); held.write(b'x'); time.sleep(600)"
    try:
        assert ask_interpreter(sys.executable, program, {}, timeout_s=3) is None
        os.set_blocking(reader, True)
        assert os.read(reader, 1) in (b"x", b"")
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_nothing_remains_of_a_shell_command_that_takes_too_long(tmp_path: Path) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = f"sleep 600 > {pipe} & sleep 600"
    try:
        assert ask_program(["/bin/sh", "-c", command], os.environ, timeout_s=1) is None
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
