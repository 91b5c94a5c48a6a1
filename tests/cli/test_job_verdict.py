"""`rallypoint verdict`: how a job has ended, whatever single nodes have ended with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from rallypoint.cli.main import main
from rallypoint.core.job_state import new_job
from rallypoint.core.model import Epoch, Outcome, SharedSettings, Verdict
from rallypoint.core.takeover.record import Leader, LeadRecord, Process, record_of
from rallypoint.register import record as register_record
from rallypoint.register.directory.backend import DirectoryBackend

LEADER = Leader(("10.0.0.1:29400",), Process("boot", 1, 10))


def said(folder: Path, node: str, outcome: str, code: int, reason: str = "because") -> None:
    """What --json-summary has written for it."""
    summary = {"outcome": outcome, "exit_code": code, "reason": reason, "node": node, "schema": 1}
    (folder / f"{node}.json").write_text(json.dumps(summary))


def verdict(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code, and the one line."""
    code = main(["verdict", *words])
    out, err = capsys.readouterr()
    assert out.count("\n") <= 1
    assert (out == "") != (err == "")
    return code, out + err


def test_the_verdict_is_that_of_the_job_and_not_of_a_node_that_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path, "n1", "succeeded", 0, "all workers exited with code 0")
    said(tmp_path, "n2", "infrastructure", 75)
    said(tmp_path, "n3", "left", 143)
    assert verdict(capsys, str(tmp_path)) == (
        0,
        "the job succeeded: all workers exited with code 0 (3 nodes have said how it ended)\n",
    )


@pytest.mark.parametrize(
    ("outcome", "code", "says"),
    [
        ("succeeded", 0, "the job succeeded: because\n"),
        ("failed", 1, "the job failed: because\n"),
        ("failed", 17, "the job failed: because\n"),
        ("preempted", 143, "the job was preempted: because\n"),
        ("infrastructure", 75, "the job could not continue: because\n"),
    ],
)
def test_the_exit_code_is_what_the_job_has_ended_with(
    outcome: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path, "n1", outcome, code)
    for where in (tmp_path, tmp_path / "n1.json"):
        assert verdict(capsys, str(where)) == (code, says)


def test_a_job_of_which_nobody_has_said_anything_is_worth_starting_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = verdict(capsys, str(tmp_path))
    assert code == 75
    assert "no summary of --json-summary is there: the job still runs, or all of its agents" in line


def test_a_file_that_is_no_summary_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n1.json"
    for text in ("", "[]", '{"outcome": 3}'):
        path.write_text(text)
        code, line = verdict(capsys, str(path))
        assert code == 2
        assert "n1.json is no summary of --json-summary" in line
    code, line = verdict(capsys, str(tmp_path / "none"))
    assert code == 2
    assert "none: can't be read: No such file or directory" in line
    code, line = verdict(capsys, str(tmp_path), "--rdzv-backend", "file")
    assert code == 2
    assert "--rdzv-backend file: needs --job" in line


def test_another_json_file_beside_the_summaries_is_passed_over_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path, "n1", "failed", 3)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "old.json").mkdir()
    assert main(["verdict", str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    assert out == "the job failed: because\n"
    named = "config.json, old.json"
    assert err == f"rallypoint verdict: ignored files that are no summary: {named}\n"


def test_a_summary_that_can_not_be_read_is_not_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path, "n1", "succeeded", 0)
    (tmp_path / "n2.json").symlink_to("n2.json")
    code, line = verdict(capsys, str(tmp_path))
    assert code == 2
    assert "n2.json: can't be read: Too many levels of symbolic links" in line


@pytest.mark.parametrize(
    ("outcome", "signal", "code", "says"),
    [
        (Outcome.SUCCEEDED, 0, 0, "the job succeeded: because"),
        (Outcome.FAILED, 0, 1, "the job failed: because"),
        (Outcome.CANCELLED, 2, 130, "the job was cancelled: because"),
        (Outcome.PREEMPTED, 12, 140, "the job was preempted: because"),
        (None, 0, 75, "job job has not ended"),
    ],
)
def test_the_record_of_a_job_says_it_too(
    outcome: Outcome | None,
    signal: int,
    code: int,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = None if outcome is None else Verdict(outcome, "because", 3, signal=signal)
    job = replace(record_of(new_job(SharedSettings("job", 1, 2), 5)), verdict=ended)
    written = register_record.encode(LeadRecord(1, Epoch(3, 7), LEADER, 12, job))
    DirectoryBackend(str(tmp_path), "job", None).set_state(written)
    got, line = verdict(capsys, str(tmp_path), "--rdzv-id", "job", "--insecure")
    assert (got, says in line) == (code, True), line


def test_a_job_that_has_no_record_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = verdict(capsys, str(tmp_path), "--rdzv-id", "other", "--insecure")
    assert code == 2
    assert "has no record of job other" in line


def test_a_directory_that_can_not_be_read_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        command = [sys.executable, "-m", "rallypoint", "verdict", folder]
        if os.geteuid() == 0:
            other = ("setpriv", "--reuid=60001", "--regid=60001", "--clear-groups")
            if subprocess.run([*other, *command[:3], "--version"], capture_output=True).returncode:
                pytest.skip("another user can't run this interpreter")
            command = [*other, *command]
        run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == f"rallypoint verdict: {folder}: can't be read: Permission denied\n"
