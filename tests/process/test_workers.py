"""The processes that run the tests of this project: see tests/workers.py."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from tests.harness.programs import run_program

COMMAND = [sys.executable, "-m", "pytest", "-p", "tests.workers", "-p", "no:cacheprovider"]
FIXTURES = """
import os, pytest

def note(word):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{word} {os.getpid()}\\n")

@pytest.fixture(scope="session")
def of_the_session():
    note("made")
    yield os.getpid()
    note("gone")
"""


def run(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str, list[str]]:
    """The exit code, what was printed, and what the tests have noted."""
    for name, text in {"conftest.py": FIXTURES, **files}.items():
        (folder / name).write_text(text)
    notes = folder / "notes"
    notes.touch()
    ran = run_program(
        [*COMMAND, "-c", os.devnull, "--rootdir", folder, *options, folder],
        env={**os.environ, "NOTES": str(notes), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return ran.returncode, ran.stdout + ran.stderr, notes.read_text().splitlines()


def test_each_file_runs_in_one_process_and_all_that_tests_end_with_is_reported(
    tmp_path: Path,
) -> None:
    of_every_kind = """
import os, pytest, warnings
from conftest import note

def test_that_passes(of_the_session, tmp_path):
    note("passes")
    print("in vain")

def test_that_fails(of_the_session):
    print("said before")
    assert of_the_session == 0

@pytest.mark.xfail(strict=True)
def test_that_is_expected_to_fail():
    assert not os.getpid()

def test_that_is_skipped():
    pytest.skip("a reason")

def test_that_warns():
    warnings.warn("a warning")

@pytest.fixture
def broken():
    yield
    raise OSError("at its end")

def test_whose_fixture_fails(broken):
    note("passes")
"""
    meets = """
import time
from pathlib import Path
from conftest import note

def test_that_waits(tmp_path, of_the_session):
    own, others = tmp_path.parents[1] / "{own}", tmp_path.parents[1] / "{other}"
    own.touch()
    while not others.exists():
        time.sleep(0.01)
    note("waited")
"""
    files = {
        "test_a.py": meets.format(own="a", other="b"),
        "test_b.py": meets.format(own="b", other="a"),
        "test_c.py": of_every_kind,
    }
    code, output, notes = run(tmp_path, files, "--workers", "2", "-rsw")
    assert code == 1
    assert "2 passed" not in output
    assert re.search(r"1 failed, 5 passed, 1 skipped, 1 xfailed, 1 warning, 1 error in", output)
    for words in ("said before", "a reason", "a warning", "at its end", "test_that_fails"):
        assert words in output
    assert "in vain" not in output
    pids = {
        word: [note.split()[1] for note in notes if note.startswith(word)]
        for word in words_of(notes)
    }
    assert len(set(pids["waited"])) == 2
    assert len(set(pids["passes"])) == 1
    assert len(pids["made"]) == len(set(pids["made"])) == 2
    assert sorted(pids["gone"]) == sorted(pids["made"])


def words_of(notes: list[str]) -> set[str]:
    return {note.split()[0] for note in notes}


def test_a_process_that_a_test_ends_is_a_failure_of_that_test_and_all_others_run(
    tmp_path: Path,
) -> None:
    files = {
        "test_a.py": "import os\ndef test_kills():\n    os.kill(os.getpid(), 9)\n"
        "def test_follows():\n    pass\n",
        "test_b.py": "def test_runs():\n    pass\n",
    }
    code, output, _ = run(tmp_path, files, "--workers", "1")
    assert code == 1
    assert f"its process ended with {-signal.SIGKILL}" in output
    assert re.search("test_a.py.*test_kills", output)
    assert "1 failed, 2 passed in" in output


def test_the_first_failure_interrupts_the_others_whose_fixtures_end(tmp_path: Path) -> None:
    files = {
        "test_a.py": """
import time

def test_waits(of_the_session):
    time.sleep(3600)
""",
        "test_b.py": """
from pathlib import Path
import os, time

def test_fails():
    while "made" not in Path(os.environ["NOTES"]).read_text():
        time.sleep(0.01)
    raise OSError("at once")

def test_that_follows():
    pass
""",
    }
    code, output, notes = run(tmp_path, files, "--workers", "2", "-x")
    assert code == 1
    assert "1 failed in" in output
    assert [note.split()[0] for note in notes] == ["made", "gone"]


def test_a_process_that_a_failed_test_leaves_is_ended_and_fails_no_later_test(
    tmp_path: Path,
) -> None:
    """Forked or executed."""
    that_fails = """
import pytest, subprocess, sys
from tests.harness.prepared import processes

@pytest.mark.parametrize("forks", [True, False])
def test_that_fails(forks, tmp_path):
    processes.forks = forks
    (tmp_path / "program.py").write_text("import time; time.sleep(600)")
    left = processes.start([sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE)
    assert forks is None, f"left: {left.pid}."
"""
    that_collects = "import gc\ndef test_that_collects(): gc.collect()"
    files = {"test_a.py": that_fails, "test_b.py": that_collects}
    _, said, _ = run(tmp_path, files, "-p", "tests.conftest", "-W", "error")
    assert "2 failed, 1 passed" in said
    assert "ResourceWarning" not in said
    left = set(re.findall(r"left: (\d+)\.", said))
    assert len(left) == 2
    assert not any(Path("/proc", pid).exists() for pid in left)
