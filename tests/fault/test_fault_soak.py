"""A soak (`make soak`) goes on where it stopped, and finds what is planted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fault.soak import ledger
from tests.fault.soak.job import RuleBroken, SoakJob
from tests.fault.soak.ledger import Entry, Ledger
from tests.harness.cluster import wait_until

ROOT = Path(__file__).resolve().parents[2]
SOME = "kill_leader,restart_by_command,checkpoint_by_command"


def soak(folder: Path, *words: object) -> subprocess.Popen[str]:
    """A process of its own."""
    command = [sys.executable, "-m", "tests.fault.soak", "--ledger", folder / "ledger", *words]
    env = os.environ | {"TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([*map(str, command)], cwd=ROOT, env=env, stdout=pipe, text=True)


def soak_job(folder: Path) -> SoakJob:
    return SoakJob(folder, "file", has_budget=False, chance=random.Random(1))


def test_a_soak_is_stopped_and_goes_on_with_the_totals(tmp_path: Path) -> None:
    first = soak(tmp_path, "--minutes", 60, "--only", SOME)
    wait_until(lambda: len(_entries(tmp_path)) >= 2 or first.poll() is not None, "two events")
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate()
    assert first.returncode == 0, told
    before = _entries(tmp_path)
    second = soak(tmp_path, "--events", 1, "--only", SOME)
    told, _ = second.communicate()
    assert second.returncode == 0, told
    entries = _entries(tmp_path)
    after = [entry for entry in entries[len(before) :] if not entry.event.startswith("end")]
    assert [entry.number for entry in after] == [before[-1].number + 1]
    assert entries[-1].job == before[-1].job + 1
    assert entries[-1].event == "end_of_run"
    assert "jobs ended wrongly       0" in told
    assert f"{len(entries)} events in" in told
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


def find_what_is_planted(folder: Path) -> None:
    """A node that nobody has told to go, and a process that outlives the job."""
    with soak_job(folder) as job:
        job.begin()
        left = subprocess.Popen(["sleep", "1000"], env=job.cluster.environ())
        ended = job.add()
        job.settle()
        job.check()
        assert job.broken == []
        ended.agent.kill()
        with pytest.raises(RuleBroken, match=f"node {ended.id} ended with -9") as found:
            job.settle()
        assert found.value.broken.rule == ledger.ENDED
        del job.good[ended.id]
        job.end(within_s=0.1)  # It waits for all of that: what is planted stays.
        found_left = [one.text for one in job.broken if one.rule == ledger.LEFT]
        assert any("sleep 1000" in text for text in found_left), job.broken
        left.kill()
        left.wait()


@pytest.mark.quick
def test_a_soak_finds_a_node_that_ended_and_a_process_that_remains(tmp_path: Path) -> None:
    find_what_is_planted(tmp_path)


def test_bad_nodes_that_never_disturb_a_job_break_no_rule_of_a_soak(tmp_path: Path) -> None:
    some = "newcomer_logs_full,newcomer_cut_from_rank_0,flapping"
    running = soak(tmp_path, "--events", 3, "--only", some)
    told, _ = running.communicate()
    assert running.returncode == 0, told
    assert {entry.event for entry in _entries(tmp_path)} == {*some.split(","), "end_of_run"}


def _entries(folder: Path) -> list[Entry]:
    return Ledger(folder / "ledger").entries
