"""The traceback that ended a program, among what else it wrote to stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rallypoint.process.tracebacks import (
    detail_is_traceback,
    last_exception,
    traceback_in,
    traceback_of,
)

from rallypoint.core.worker_exits import WorkerExit

HEADER = "Traceback (most recent call last):\n"
PLAIN = HEADER + '  File "train.py", line 9, in <module>\n    main()\nValueError: bad loss'
CAUSE = HEADER + '  File "train.py", line 3, in load\n    read()\nKeyError: 1'
DIRECT = "\n\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
IGNORED = f"Exception ignored in: <function f at 0x1>\n{CAUSE}"
GROUP = (
    "  + Exception Group Traceback (most recent call last):\n"
    '  |   File "a.py", line 1, in <module>\n'
    "  | ExceptionGroup: two (1 sub-exception)\n"
    "  +-+---------------- 1 ----------------\n"
    "    | Traceback (most recent call last):\n"
    '    |   File "a.py", line 2, in f\n'
    "    | ValueError: inner\n"
    "    +------------------------------------"
)
LOADER = (
    f'{HEADER}  File "train.py", line 9, in <module>\n    raise exception\n'
    "ValueError: Caught ValueError in DataLoader worker process 0.\n"
    "Original Traceback (most recent call last):\n"
    '  File "worker.py", line 3, in fetch\n    read()\n'
    "ValueError: bad sample"
)


def ranked(text: str) -> str:
    return "\n".join(f"[rank0]: {line}" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "found", "exception"),
    [
        (PLAIN, PLAIN, "ValueError: bad loss"),
        (f"a warning\nanother\n{PLAIN}\n", PLAIN, "ValueError: bad loss"),
        (f"step 1\n{CAUSE}{DIRECT}{PLAIN}", f"{CAUSE}{DIRECT}{PLAIN}", "ValueError: bad loss"),
        (f"{CAUSE}{DURING}{PLAIN}", f"{CAUSE}{DURING}{PLAIN}", "ValueError: bad loss"),
        (f"{CAUSE}\nretrying\n\n{PLAIN}", PLAIN, "ValueError: bad loss"),
        (f"{PLAIN}\nsaved", f"{PLAIN}\nsaved", "ValueError: bad loss\nsaved"),
        (f"{PLAIN}\n{IGNORED}", PLAIN, "ValueError: bad loss"),
        (f"{PLAIN}\n{IGNORED}{DIRECT}{CAUSE}", PLAIN, "ValueError: bad loss"),
        (f"{PLAIN}\nError in atexit._run_exitfuncs:\n{CAUSE}", PLAIN, "ValueError: bad loss"),
        (IGNORED, CAUSE, "KeyError: 1"),
        (f"--- Logging error ---\n{CAUSE}\nCall stack:\n{PLAIN}", PLAIN, "ValueError: bad loss"),
        (f"a\n{ranked(PLAIN)}\nbye", PLAIN, "ValueError: bad loss"),
        (f"{ranked(CAUSE + DIRECT + PLAIN)}\n", CAUSE + DIRECT + PLAIN, "ValueError: bad loss"),
        (f"a\n{GROUP}", GROUP, "ValueError: inner\n-----------------------------------"),
        (ranked(GROUP), GROUP, "ValueError: inner\n-----------------------------------"),
        (f"a\n{LOADER}", LOADER, "ValueError: bad sample"),
        (f'n.py", line 1\n{PLAIN.removeprefix(HEADER)}', PLAIN.removeprefix(HEADER), "ValueError"),
        (ranked(PLAIN.removeprefix(HEADER)), PLAIN.removeprefix(HEADER), "ValueError: bad loss"),
        ('Stack:\n  File "a.py", line 3, in f\n    g()\nstopped by hand', "", ""),
        ('Current thread 0x1:\n  File "a.py", line 3 in f', "", ""),
        ("no such data set", "", ""),
        ("", "", ""),
    ],
)
def test_P8_the_traceback_is_told_apart_from_what_is_around_it(
    text: str, found: str, exception: str
) -> None:
    assert traceback_in(text) == found
    assert last_exception(found).startswith(exception)


PROGRAM = """
import atexit, sys
class Noisy:
    def __del__(self): raise OSError("not closed")
def load(): raise KeyError("weights")
print("a warning", file=sys.stderr)
atexit.register(print, "good bye", file=sys.stderr)
noisy = Noisy()
try:
    load()
except KeyError as error:
    raise RuntimeError("no checkpoint") from error
"""


def test_P8_what_this_python_prints_is_understood(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PROGRAM)
    ran = subprocess.run([sys.executable, str(tmp_path / "a.py")], capture_output=True, text=True)
    assert "not closed" in ran.stderr
    found = traceback_in(ran.stderr)
    assert found.startswith(HEADER)
    assert "KeyError: 'weights'\n\nThe above exception" in found
    assert last_exception(found).splitlines()[0] == "RuntimeError: no checkpoint"
    assert "not closed" not in found


@pytest.mark.parametrize(
    ("exit_", "has", "is_all"),
    [
        (WorkerExit(1, None, detail=PLAIN), True, True),
        (WorkerExit(1, None, detail=f"\n{ranked(PLAIN)}\n"), True, True),
        (WorkerExit(1, None, detail=f"a warning\n{PLAIN}"), True, False),
        (WorkerExit(None, 6, detail=PLAIN), True, True),
        (WorkerExit(None, 2, detail=PLAIN), True, True),
        (WorkerExit(None, 9, detail=PLAIN), False, False),
        (WorkerExit(1, None, detail="no such data set"), False, False),
        (WorkerExit(1, None), False, False),
    ],
)
def test_P8_a_traceback_tells_of_the_end_unless_a_fatal_signal_was_that(
    exit_: WorkerExit, has: bool, is_all: bool
) -> None:
    assert (traceback_of(exit_), detail_is_traceback(exit_)) == (PLAIN if has else "", is_all)
