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
from tests.compat.launches import plain_environ

TORCHRUN = ("-m", "torch.distributed.run")
RALLYPOINT = ("-m", "rallypoint", "run")
RECORDING = Path(__file__).with_name("recording.py")
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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `recording.py`, which has run."""
    folder = tmp_path_factory.mktemp("recorded")
    command = [sys.executable, str(RECORDING), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


def without_time_and_place(file: Path) -> list[Any]:
    """What is to be the same, order included; the last line of the traceback stands for it."""
    if not file.exists():
        return []

    def pairs(items: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return [(key, _timeless(key, value)) for key, value in items]

    found: list[Any] = json.loads(file.read_text(), object_pairs_hook=pairs)
    return found


def _timeless(key: str, value: Any) -> Any:
    if key == "timestamp" and isinstance(value, str) and value != "5":
        return re.sub(r"\d", "0", value)
    if key == "py_callstack" and value != "T":
        return [line for line in value.splitlines() if not line.startswith((" ", "+"))]
    return value


def test_P7_error_files_are_the_same_but_for_time_and_traceback(recorded: Path) -> None:
    ends = json.loads((recorded / "ends").read_text())
    assert len(ends) == 15
    for name, end in ends.items():
        theirs, mine = (recorded / f"{name}.{who}.json" for who in ("torch", "ours"))
        assert end["ours"] == end["torch"], name
        assert without_time_and_place(mine) == without_time_and_place(theirs), name
    written = {file.name.partition(".")[0] for file in recorded.glob("*.ours.json")}
    expected = {"plain", "empty", "quoted", "own", "chained", "group", "system", "child"}
    assert written == expected | {"child of the short form"}


def launch(launcher: Sequence[str], folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program of two workers."""
    script = folder / "worker.py"
    script.write_text(program)
    return subprocess.run(
        [sys.executable, *launcher, "--nproc-per-node", "2", str(script)],
        env=plain_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_P8_torchs_record_tells_our_agent(tmp_path: Path) -> None:
    program = SILENT.format(package="torch.distributed.elastic.multiprocessing.errors")
    done = launch(RALLYPOINT, tmp_path, program)
    assert done.returncode == 1
    assert re.search(r"failed: rank 1 \(.*local rank 1, pid \d+\) exited with code 1", done.stderr)
    assert "    error: ValueError: the loss is nan\n" in done.stderr
    assert "      | Traceback (most recent call last):\n" in done.stderr


def test_P10_our_record_tells_torchrun(tmp_path: Path) -> None:
    done = launch(TORCHRUN, tmp_path, SILENT.format(package="rallypoint.worker"))
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
def test_C8_exit_codes_of_a_job_are_torchruns(tmp_path: Path, program: str, code: int) -> None:
    ours, theirs = (launch(launcher, tmp_path, program) for launcher in (RALLYPOINT, TORCHRUN))
    assert (ours.returncode, theirs.returncode) == (code, code)


def test_C8_a_mistake_on_the_command_line_is_2() -> None:
    for launcher in (RALLYPOINT, TORCHRUN):
        command = [sys.executable, *launcher, "--no-such-flag", "x.py"]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert done.returncode == 2


def test_C8_after_a_signal_ours_tells_which(tmp_path: Path) -> None:
    """A departure: torchrun ends with 1, as if the job had failed."""
    script = tmp_path / "worker.py"
    script.write_text("import os, time\nos.write(1, b'up\\n')\ntime.sleep(600)")
    codes = []
    for launcher in (RALLYPOINT, TORCHRUN):
        command = [sys.executable, *launcher, str(script)]
        with subprocess.Popen(
            command, env=plain_environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
            running.send_signal(signal.SIGTERM)
            codes.append(running.wait(120))
    assert codes == [128 + signal.SIGTERM, 1]
