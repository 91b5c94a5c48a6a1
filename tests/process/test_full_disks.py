"""A file system without any space left, wherever Rallypoint writes: the job goes on, and one line
names the place and the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.programs import run_program

NO_SPACE = "No space left on device"
FULL = (
    'for place in $PLACES; do mount -t tmpfs -o size=64k none "$place" || exit 77; '
    'dd if=/dev/zero of="$place/filler" bs=512 2>/dev/null; done; exec "$@"'
)
FAILS = "import sys; sys.exit('my last words')"
MAKES_PROGRESS = "from rallypoint.worker import progress; progress(3); print('ran')"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def without_space(
    places: str, *words: str, cwd: str, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run this while the file systems in these places have no space left."""
    done = run_program(
        ["unshare", "-rm", "sh", "-c", FULL, "sh", *words],
        env=os.environ | {"PLACES": places} | env,
        cwd=cwd,
    )
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run(
    disk: Path, *options: str, program: str, full: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """One worker, while the file system on `disk`, and those in `full`, have no space left."""
    script = disk.parent / "script.py"
    script.write_text(program)
    words = (sys.executable, "-m", "rallypoint", "run", *options, str(script))
    return without_space(f"{disk} {full}", *words, cwd=str(disk.parent), env=env)


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--history={}/h.jsonl", "--history {}/h.jsonl: can't be written: " + NO_SPACE),
        ("--history={}/", "--history {}/: can't be written: " + NO_SPACE),
        ("--json-summary={}/s.json", "--json-summary {}/s.json: can't be written: " + NO_SPACE),
        ("--event-log-handler=jsonl:{}/e", "events were lost (jsonl:{}/e): "),
    ],
)
def test_what_watches_a_job_has_no_space_and_the_job_succeeds(
    disk: Path, option: str, line: str
) -> None:
    done = run(disk, option.format(disk), program="print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert line.format(disk) in done.stderr
    assert NO_SPACE in done.stderr


def test_a_full_disk_under_the_error_file_of_the_starter_is_told_by_name(disk: Path) -> None:
    done = run(disk, program=FAILS, TORCHELASTIC_ERROR_FILE=f"{disk}/error.json")
    assert done.returncode == 1
    said = f"rallypoint: the error file {str(disk) + '/error.json'!r} can't be written: {NO_SPACE}"
    assert said in done.stderr.splitlines()
    assert "      | my last words" in done.stderr.splitlines()


def test_a_full_state_directory_keeps_no_end_and_the_report_says_why(
    disk: Path,
) -> None:
    done = run(disk, program=FAILS, RALLYPOINT_STATE_DIR=str(disk))
    assert done.returncode == 1
    assert "      | my last words" in done.stderr.splitlines()
    said = f"    its end could not be kept in {disk}/kept: {NO_SPACE}"
    assert done.stderr.splitlines()[-1] == said


def test_a_log_that_has_no_space_any_more_is_told_and_the_console_has_all(disk: Path) -> None:
    fills = (
        "import sys\n"
        "for n in range(40): print('x' * 4000)\n"
        "print('last line'); sys.exit('my last words')\n"
    )
    done = run(disk, "--tee=3", program=fills, TMPDIR=str(disk))
    assert done.returncode == 1
    assert done.stdout.endswith("last line\n")
    assert f"can't write logs under {disk}" in done.stderr
    assert "      | my last words" in done.stderr.splitlines()


@pytest.mark.parametrize("full", ["", "/dev/shm"])
def test_progress_is_seen_though_the_temporary_directory_is_full(disk: Path, full: str) -> None:
    """The agent shares memory with its workers in the next place that has space."""
    summary = disk.parent / "summary.json"
    options = (f"--json-summary={summary}",)
    done = run(disk, *options, program=MAKES_PROGRESS, full=full, TMPDIR=str(disk))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "share memory" not in done.stderr
    assert '"step": 3' in summary.read_text()


def test_workers_that_can_not_be_seen_are_told_of_and_run() -> None:
    places = "/tmp /var/tmp /dev/shm"
    if any(Path(sys.executable).is_relative_to(place) for place in places.split()):
        pytest.skip("the interpreter lies in a directory that is to be full")
    words = [sys.executable, "-m", "rallypoint", "run", "--no-python", sys.executable, "-c"]
    done = without_space(places, *words, MAKES_PROGRESS, cwd="/", env={"TMPDIR": "/tmp"})
    assert (done.returncode, done.stdout) == (0, "ran\n")
    (line,) = [line for line in done.stderr.splitlines() if "share memory" in line]
    assert "can't share memory with the workers under /tmp/rallypoint-agent-" in line
    assert f"{NO_SPACE}: progress and checkpoint requests do not work: free" in line
