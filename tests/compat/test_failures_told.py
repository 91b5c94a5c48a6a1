"""What failed is told alike: error files, banners and exit codes, beside torch's."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.compat.launches import RALLYPOINT, TORCHRUN, plain_environ
from tests.compat.recordings import Recordings
from tests.harness.programs import run_program, said_by

FAILING = Path(__file__).with_name("failing.py")
# Nothing of the exception reaches stderr: what is told of it comes from the error file.
SILENT = """
import os, sys
from {package} import record
sys.excepthook = lambda *_: None
@record
def main():
    if os.environ["RANK"] == "1": raise ValueError("the loss is nan")
    import time
    time.sleep(600)
main()
"""


def failures_of(who: str, python: str, folder: Path) -> dict[str, Any]:
    """How each case ends with the decorator of `who`, and the error file that it leaves."""
    folder.mkdir()
    command = [python, str(FAILING), who, str(folder)]
    said_by(command, timeout=300)
    ends: dict[str, str] = json.loads((folder / "ends").read_text())
    return {
        name: {"end": end, "file": without_time_and_place(folder / f"{name}.json")}
        for name, end in ends.items()
    }


def without_time_and_place(file: Path) -> list[Any]:
    """What is to be the same, order included; the last line of the traceback stands for it."""
    if not file.exists():
        return []

    def pairs(items: list[tuple[str, Any]]) -> list[list[Any]]:
        return [[key, _timeless(key, value)] for key, value in items]

    found: list[Any] = json.loads(file.read_text(), object_pairs_hook=pairs)
    return found


def _timeless(key: str, value: Any) -> Any:
    if key == "timestamp" and isinstance(value, str) and value != "5":
        return re.sub(r"\d", "0", value)
    if key == "py_callstack" and value != "T":
        return [line for line in value.splitlines() if not line.startswith((" ", "+"))]
    return value


def test_P7_error_files_are_the_same_but_for_time_and_traceback(
    torch_said: Recordings, torch_python: str, tmp_path: Path
) -> None:
    theirs = torch_said(
        "error_files", "cases", lambda: failures_of("torch", torch_python, tmp_path / "theirs")
    )
    ours = failures_of("ours", sys.executable, tmp_path / "ours")
    assert len(theirs) == 15
    assert ours == theirs
    written = {name for name, case in ours.items() if case["file"]}
    expected = {"plain", "empty", "quoted", "own", "chained", "group", "system", "child"}
    assert written == expected | {"child of the short form"}


def launch(
    launcher: Sequence[str], folder: Path, program: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of two workers."""
    script = folder / "worker.py"
    script.write_text(program)
    words = [*launcher, "--nproc-per-node", "2", str(script)]
    return run_program(words, env=plain_environ() | env, timeout=300)


def test_P8_torchs_record_tells_our_agent(tmp_path: Path, torch_python: str) -> None:
    program = SILENT.format(package="torch.distributed.elastic.multiprocessing.errors")
    done = launch(RALLYPOINT, tmp_path, program, PYTHON_EXEC=torch_python)
    assert done.returncode == 1
    assert re.search(r"failed: rank 1 \(.*local rank 1, pid \d+\) exited with code 1", done.stderr)
    assert "    error: ValueError: the loss is nan\n" in done.stderr
    assert "      | Traceback (most recent call last):\n" in done.stderr


def test_P10_our_record_tells_torchrun(tmp_path: Path, torch_python: str) -> None:
    done = launch([torch_python, *TORCHRUN], tmp_path, SILENT.format(package="rallypoint.worker"))
    assert done.returncode == 1
    root = done.stderr.partition("Root Cause (first observed failure):")[2]
    assert re.search(r"rank +: 1 \(local_rank: 1\)", root)
    assert re.search(r"error_file: /\S+/error\.json", root)
    assert 'raise ValueError("the loss is nan")' in root
    assert "ValueError: the loss is nan\n" in root


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("", 0),
        ("import sys; sys.exit(7)", 1),
        ("import os; os.kill(os.getpid(), 9)", 1),
        ("raise ValueError('x')", 1),
    ],
    ids=["success", "exit 7", "SIGKILL", "exception"],
)
def test_C8_exit_codes_of_a_job_are_torchruns(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    program: str,
    code: int,
    torch_said: Recordings,
    torch_python: str,
) -> None:
    theirs = torch_said(
        "exit_codes",
        request.node.callspec.id,
        lambda: launch([torch_python, *TORCHRUN], tmp_path, program).returncode,
    )
    assert (launch(RALLYPOINT, tmp_path, program).returncode, theirs) == (code, code)


def test_C8_a_mistake_on_the_command_line_is_2(torch_said: Recordings, torch_python: str) -> None:
    def code(*launcher: str) -> int:
        return run_program([*launcher, "--no-such-flag", "x.py"], timeout=300).returncode

    theirs = torch_said("exit_codes", "a mistake", lambda: code(torch_python, *TORCHRUN))
    assert (code(*RALLYPOINT), theirs) == (2, 2)


def test_C8_after_a_signal_ours_tells_which(
    tmp_path: Path, torch_said: Recordings, torch_python: str
) -> None:
    """A departure: torchrun ends with 1, as if the job had failed."""
    script = tmp_path / "worker.py"
    script.write_text("import os, time\nos.write(1, b'up\\n')\ntime.sleep(600)")

    def code(*launcher: str) -> int:
        with subprocess.Popen(
            [*launcher, str(script)],
            env=plain_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
            running.send_signal(signal.SIGTERM)
            return running.wait(120)

    theirs = torch_said("exit_codes", "SIGTERM", lambda: code(torch_python, *TORCHRUN))
    assert (code(*RALLYPOINT), theirs) == (128 + signal.SIGTERM, 1)
