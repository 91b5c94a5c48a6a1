"""A log directory without free space: a cause, an event, a line of `status`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.harness.broken_jobs import CULPRIT, NAN, following, running

from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.process.logs.log_dir import full_place

FULL = (
    "can't write logs under /logs/train-7: No space left on device: free space there or choose "
    "another --log-dir"
)


def file_system(blocks: int, free: int, files: int = 0, files_left: int = 0) -> os.statvfs_result:
    """In blocks of 4 KiB."""
    return os.statvfs_result(
        (4096, 4096, blocks, free, free, files, files_left, files_left, 0, 255)
    )


@pytest.mark.parametrize(
    ("there", "is_full"),
    [
        (file_system(1 << 20, 0), True),
        (file_system(1 << 20, 100), True),
        (file_system(1 << 20, 1000), False),
        (file_system(16, 1), True),
        (file_system(16, 8), False),
        (file_system(1 << 20, 1000, 5000, 0), True),
        (file_system(1 << 20, 1000, 5000, 7), False),
    ],
)
def test_a_file_system_without_space_or_without_files_is_full(
    monkeypatch: pytest.MonkeyPatch, there: os.statvfs_result, is_full: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: there)
    assert full_place(("", "/logs/train-7/stderr.log")) == (FULL if is_full else "")


def test_a_directory_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert full_place((str(tmp_path / "gone" / "stderr.log"),)) == ""


def test_a_failure_for_want_of_space_is_a_cause_and_an_event() -> None:
    job = running()
    failed = replace(NAN, message=f"{FULL}; exit code 1", detail="")
    job.fail_with(CULPRIT, failed)
    job.run_workers()
    job.step(5, 10)
    text = " ".join(" ".join(job.status(200)).split())
    assert f"| {FULL}; exit code 1" in text
    assert following(job.status(200)) == [f"free space on {CULPRIT}: df -h, df -i"]
    (told,) = [one for one in job.history.entries if one.event == "log_storage"]
    assert told.text == f"node {CULPRIT}: {FULL}; exit code 1"
    assert told.is_wrong


def test_while_workers_run_a_log_that_cant_be_written_is_a_line_and_one_event() -> None:
    job = running()
    for node in (CULPRIT, "node-22"):
        stamp = job.agent(node).running
        assert stamp is not None
        for step in (21, 22):
            own = FULL.replace("train-7", f"train-7/{node}")  # Each node has its directory.
            progress = NodeProgress(stamp, 30.0, furthest=step, step=step, cant_log=own)
            record = job.history.progressed(job.job, node, progress, job.timers.now_s)
            assert (record is not None) is (step == 21)
    lines = job.status(200)
    shown = FULL.replace("train-7", f"train-7/{CULPRIT}")
    assert f"  log files   nodes node-[21-22]: {shown}" in lines
