"""What a file of `--history` tells, whatever became of it and of who wrote it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.harness.cluster import wait_until
from tests.harness.watched_cluster import WatchedCluster

from rallypoint.core.model import SharedSettings
from rallypoint.core.watch.history import SCHEMA, HistoryEntry
from rallypoint.core.watch.history_file import (
    NODES_WRITTEN,
    Begin,
    HistoryLine,
    LinesLost,
    NoHistoryError,
    as_object,
    compact,
    read,
)
from rallypoint.errors import UsageError
from rallypoint.observe.history_log import HistoryLogs

BEGIN = Begin("job", 1, 1000.0)


def entry(number: int) -> HistoryEntry:
    return HistoryEntry(number, 1000.0 + number, "restart", "WARNING", 0, "restart 1 of 2")


def encoded(*lines: HistoryLine) -> list[bytes]:
    return [json.dumps(as_object(line)).encode() for line in lines]


def test_what_is_written_is_read_again() -> None:
    cluster = WatchedCluster(SharedSettings("job", 2, 2))
    cluster.nodes(2)
    cluster.run_workers()
    cluster.lose("node-1", "its connection was closed")
    status = compact(cluster.view, 1010.0)
    past = cluster.history.rounds[0]
    assert past.end == "loss"
    found = read([*encoded(BEGIN, entry(1), past, status, LinesLost(3)), b""])
    assert found.begins == [BEGIN]
    assert found.entries == [entry(1)]
    assert found.rounds == [past]
    assert found.status == status
    assert found.lost == 3


def test_a_status_of_many_nodes_has_those_that_stand_out() -> None:
    cluster = WatchedCluster(SharedSettings("job", 64, 64))
    cluster.nodes(64)
    cluster.wait(1.0)
    cluster.fall_silent("node-40")
    cluster.wait(5.0)
    view = compact(cluster.view, 1010.0).view
    assert view.nodes[0].node == "node-40"
    assert len(view.nodes) == NODES_WRITTEN
    assert view.nodes_left_out == 64 - NODES_WRITTEN


def test_a_last_line_that_is_cut_is_no_error() -> None:
    lines = encoded(BEGIN, entry(1), entry(2))
    assert read([*lines[:2], lines[2][:20]]).entries == [entry(1)]


def test_a_line_that_a_dead_leader_has_cut_is_no_error() -> None:
    lines = encoded(BEGIN, entry(1), Begin("job", 1, 1020.0, took_over=True), entry(2))
    found = read([lines[0], lines[1][:20], lines[2], lines[3]])
    assert found.entries == [entry(2)]
    assert [begin.took_over for begin in found.begins] == [False, True]


def test_another_life_of_the_job_forgets_how_the_one_before_ended() -> None:
    cluster = WatchedCluster(SharedSettings("job", 1, 1))
    cluster.nodes(1)
    status = compact(cluster.view, 1010.0)
    found = read(encoded(BEGIN, entry(1), status, Begin("job", 2, 1100.0), entry(2)))
    assert found.status is None
    assert found.entries == [entry(1), entry(2)]
    goes_on = Begin("job", 1, 1100.0, took_over=True)
    assert read(encoded(BEGIN, status, goes_on)).status == status


def test_kinds_and_fields_that_this_version_does_not_know_are_passed_over() -> None:
    newer = {"kind": "weather", "rain": True}
    begin = as_object(BEGIN) | {"weather": "fine"}
    found = read([json.dumps(begin).encode(), json.dumps(newer).encode(), *encoded(entry(1))])
    assert found.entries == [entry(1)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is not a file that --history has written: it has no header"),
        ([b"\x00\xff\xfe garbage", b"more"], "has no header"),
        (encoded(entry(1)), "is not a file that --history has written: it has no header"),
        ([*encoded(BEGIN), b"garbage", *encoded(entry(1))], "is damaged: line 2 is not JSON"),
        ([*encoded(BEGIN), b'{"kind": "event"}'], "is damaged: line 2 is not what --history"),
        ([b'{"kind": "begin", "job": 3}'], "is damaged: line 1 is not what --history"),
        (
            encoded(Begin("job", 1, 0.0, schema=SCHEMA + 1)),
            (
                f"has schema {SCHEMA + 1}, and this version of Rallypoint reads 1 to {SCHEMA}: "
                "read it with the version that wrote it"
            ),
        ),
        (encoded(Begin("job", 1, 0.0, schema=0)), "has schema 0, and this version"),
    ],
)
def test_what_is_no_history_is_refused_in_one_sentence(lines: list[bytes], said: str) -> None:
    with pytest.raises(NoHistoryError) as refused:
        read(lines)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def texts_in(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def logs_in(folder: Path) -> tuple[HistoryLogs, list[tuple[str, str]]]:
    """The histories of this directory, and the faults that a person is told, each with its job."""
    told: list[tuple[str, str]] = []
    logs = HistoryLogs(f"{folder}/")
    logs.tell_faults(
        lambda tell, run_id, record: tell(run_id, record),
        lambda run_id, record: told.append((run_id, record.text)),
    )
    return logs, told


def test_a_file_that_can_not_be_written_is_told_of_once_and_what_is_missing_counted(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "histories"
    logs, told = logs_in(folder)
    path = Path(logs.file_of("a/b"))
    assert path == folder / "a%2Fb.jsonl"
    logs.write("a/b", BEGIN)
    wait_until(path.exists, "the file")
    path.unlink()
    folder.rmdir()
    for number in range(3):
        logs.write("a/b", entry(number))
    wait_until(lambda: logs.lost == 3, "the lines to be lost")
    folder.mkdir()
    logs.write("a/b", entry(4))
    assert "3 failed: No such file or directory" in logs.close(10.0)
    assert told == [
        (
            "a/b",
            (
                f"--history {folder}/: can't be written: No such file or directory; what happens "
                "meanwhile is missing there"
            ),
        )
    ]
    assert texts_in(path) == ["begin", "lost", "event"]
    assert read(path.read_bytes().split(b"\n")).lost == 3


def test_a_line_that_was_cut_is_ended_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(encoded(BEGIN)[0] + b'\n{"kind":"ev')
    logs = HistoryLogs(str(path))
    logs.write("job", Begin("job", 1, 1020.0, took_over=True))
    assert logs.close(10.0) == ""
    assert len(read(path.read_bytes().split(b"\n")).begins) == 2


def test_jobs_with_long_names_have_files_of_their_own(tmp_path: Path) -> None:
    logs = HistoryLogs(f"{tmp_path}/")
    names = {logs.file_of("x" * 250 + end) for end in "ab"} | {logs.file_of("/" * 255)}
    assert len(names) == 3
    assert all(len(os.path.basename(name)) < 250 for name in names)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/history", "can't be written: No such file or directory"),
        ("folder", "is a directory: for a file of the job in it, give {path}/"),
        ("file/x/", "can't be written: Not a directory"),
    ],
)
def test_what_can_not_be_written_is_refused_at_the_start(
    tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as refused:
        HistoryLogs(f"{tmp_path}/{name}")
    path = f"{tmp_path}/{name}"
    assert str(refused.value) == f"--history {path}: {why.format(path=path)}"
    assert not (tmp_path / "missing").exists()


def faults_of(folder: Path, run_id: str = "job") -> list[str]:
    """What a person is told when the first line of this job can't be written there."""
    logs, told = logs_in(folder)
    logs.write(run_id, BEGIN)
    logs.close(10.0)
    return [text for _, text in told]


def test_V2_a_link_in_a_directory_of_histories_is_not_followed(tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "histories"
    precious.write_text("keep")
    folder.mkdir()
    said = "{0} is a symbolic link there, which is not followed: remove it"
    for run_id, target in (("job", precious), ("other", tmp_path / "never")):
        name = f"{run_id}.jsonl"
        (folder / name).symlink_to(target)
        (fault,) = faults_of(folder, run_id)
        head = f"--history {folder}/: can't be written: {said.format(name)}"
        assert fault == f"{head}; what happens meanwhile is missing there"
    assert precious.read_text() == "keep"
    assert not (tmp_path / "never").exists()


def test_V2_a_pipe_in_a_directory_of_histories_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "job.jsonl"
    os.mkfifo(pipe)
    with pipe.open("r+b", buffering=0):
        (fault,) = faults_of(tmp_path)
    assert "job.jsonl is not a regular file there: remove it" in fault


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_V2_a_history_of_another_user_is_not_written_to(tmp_path: Path) -> None:
    planted = tmp_path / "job.jsonl"
    planted.touch(0o666)
    os.chown(planted, 65534, 65534)
    (fault,) = faults_of(tmp_path)
    assert "job.jsonl belongs there to user 65534, not to you (user 0): name a directory" in fault
    assert planted.read_bytes() == b""


@pytest.mark.parametrize("name", ["histories/", "history.jsonl"])
def test_V2_only_its_user_can_read_a_history(name: str, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        logs = HistoryLogs(f"{tmp_path}/{name}")
        logs.write("job", BEGIN)
        assert logs.close(10.0) == ""
    finally:
        os.umask(before)
    assert Path(logs.file_of("job")).stat().st_mode & 0o777 == 0o600


def test_V2_a_link_that_a_person_named_is_followed(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").touch()
    (tmp_path / "link").symlink_to(tmp_path / "history.jsonl")
    logs = HistoryLogs(f"{tmp_path}/link")
    logs.write("job", BEGIN)
    assert logs.close(10.0) == ""
    assert texts_in(tmp_path / "history.jsonl") == ["begin"]
