"""What Rallypoint writes, in directories that other users can write to as well."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from tests.harness.one_agent import agent, ended

from rallypoint.cli.summary import SummaryFile

NOBODY = 65534
HANGS = """
import time
from rallypoint import worker
worker.progress(1)
time.sleep(600)
"""
TOLD = "the stacks of the workers of this node are in "


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory as /tmp is."""
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    return made


def as_another(folder: Path, *command: str) -> int:
    """The exit code of a command that another user runs there; without root, this user does."""
    other: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    more = other if os.geteuid() == 0 else {}
    return subprocess.run(command, cwd=folder, capture_output=True, **more).returncode


@pytest.mark.parametrize("plant", [("mkfifo", "-m", "666"), ("ln", "-s", "../precious")])
def test_A8_stacks_go_through_nothing_that_another_user_has_put_there(
    tmp_path: Path, shared: Path, plant: tuple[str, ...]
) -> None:
    """Names that can be known before: of the job, its round and its rank."""
    (tmp_path / "precious").write_text("keep")
    names = ("mine_stacks_round0_rank0.txt", "mine_stacks", "rallypoint-mine_stacks")
    for name in names:
        assert as_another(shared, *plant, name) == 0
    options = ("--rdzv-id=mine", "--hang-timeout=1", "--restart-grace=0.5")
    env = {"TMPDIR": str(shared)}
    run = ended(agent(tmp_path, *options, program=HANGS, env=env), 1)
    (told,) = [line.partition(TOLD)[2] for line in run.said if TOLD in line]
    assert "rank 0, at step 1" in Path(told).read_text()
    assert stat.S_IMODE(os.stat(told).st_mode) == 0o600
    folder = Path(told).parent
    assert folder.parent == shared
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if os.geteuid() == 0:
        assert as_another(shared, "ls", folder.name) != 0
    rmtree(folder)
    assert {path.name for path in shared.iterdir()} == set(names)
    assert (tmp_path / "precious").read_text() == "keep"


@pytest.mark.parametrize(("workers", "ranks"), [(1, "rank0"), (2, "ranks0-1")])
def test_A8_stacks_are_kept_under_the_log_directory_and_named_after_all_ranks_in_them(
    tmp_path: Path, workers: int, ranks: str
) -> None:
    options = ("--rdzv-id=mine", "--hang-timeout=1", "--restart-grace=0.5", "--log-dir=logs")
    run = ended(agent(tmp_path, *options, f"--nproc-per-node={workers}", program=HANGS), 1)
    (kept,) = (tmp_path / "logs").glob(f"mine_stacks_*/round0_{ranks}.txt")
    assert f"{TOLD}{kept}" in run.err


def test_A8_no_stacks_are_kept_where_there_are_to_be_no_files(tmp_path: Path) -> None:
    options = ("--hang-timeout=1", "--restart-grace=0.5", "--log-dir=/dev/null")
    run = ended(agent(tmp_path, *options, program=HANGS), 1)
    assert TOLD not in run.err
    assert "what it was doing:" in run.err


@pytest.mark.parametrize("plant", [("ln", "-s", "../precious"), ("cp", "/dev/null")])
def test_A8_a_summary_goes_through_nothing_that_another_user_has_put_there(
    shared: Path, plant: tuple[str, ...]
) -> None:
    """A name that can be known before: that of the summary and the agent's process."""
    planted = f".summary.json.{os.getpid()}"
    assert as_another(shared, *plant, planted) == 0
    SummaryFile(str(shared / "summary.json"))
    assert [path.name for path in shared.iterdir()] == [planted]
