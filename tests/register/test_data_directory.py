"""The directory of a coordinator's registers: made, checked, and swept."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.harness.narrowed import known
from tests.harness.register_contract import stored

from rallypoint.errors import (
    InfrastructureError,
    RallypointError,
    RendezvousConnectionError,
    UsageError,
)
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.files import LocalFiles
from rallypoint.register.directory.store import DirectoryEngine
from rallypoint.register.directory.upkeep import RETENTION_S, prepare, remove_register, sweep
from rallypoint.register.engines import Use
from rallypoint.register.version_file import register_name
from rallypoint.testing.unreliable_files import FileServer, UnreliableFiles

FLAG = "--rdzv-endpoint"


def test_a_directory_is_made_private_with_those_above_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    prepare(str(path), LocalFiles(), "--data-dir")
    for each in (path, path.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    assert list(path.iterdir()) == []
    prepare(str(path), LocalFiles(), "--data-dir")


def test_a_job_of_one_node_says_which_directories_it_has_made(tmp_path: Path) -> None:
    """A mistyped path is one that was missing."""
    path = f"{tmp_path}/shraed/jobs"
    place = DirectoryEngine(path, {}, Use("a"))
    made = f"made {path}, and {tmp_path}/shraed above it, which were missing"
    assert place.prepare() == [made]
    assert place.prepare() == []
    os.rmdir(path)
    assert place.prepare() == [f"made {path}, which was missing"]


def test_what_is_no_directory_is_named_with_the_fix(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for path in (file, file / "below"):
        with pytest.raises(UsageError, match=rf"^--data-dir {path}: .*not a directory: ") as at:
            prepare(str(path), LocalFiles(), "--data-dir")
        assert "\n" not in str(at.value)
    assert file.read_text() == "kept"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(UsageError, match=rf"mode {mode:04o}\): run `chmod go-w` on it"):
        prepare(str(tmp_path), LocalFiles(), "--data-dir")
    tmp_path.chmod(0o755)
    prepare(str(tmp_path), LocalFiles(), "--data-dir")


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(UsageError, match=rf"belongs to user {other - 1}, not to you"):
        prepare(str(tmp_path), LocalFiles(), "--data-dir")


def test_many_nodes_may_prepare_one_directory_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b" / "c")
    with ThreadPoolExecutor(16) as nodes:
        for made in [nodes.submit(prepare, path, LocalFiles(), FLAG) for _ in range(200)]:
            # The disk may be busy with all of them.
            assert [said for said in made.result() if "writing to it took" not in said] == []
    assert list(Path(path).iterdir()) == []
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


class Slow(LocalFiles):
    """Each write takes so long on its clock."""

    def __init__(self, write_s: float) -> None:
        self._write_s, self._now = write_s, 0.0

    def write(self, path: str, data: bytes) -> float:
        self._now += self._write_s
        return super().write(path, data)

    def now(self) -> float:
        return self._now


def test_a_directory_that_is_slow_is_remarked_with_the_time(tmp_path: Path) -> None:
    assert prepare(str(tmp_path), Slow(0.9), FLAG) == []
    assert prepare(str(tmp_path), Slow(1.46), FLAG) == [
        f"{FLAG} {tmp_path}: writing to it took 1.5 s: each decision about a job takes that long"
    ]


class Failing(LocalFiles):
    """Has an error at one operation."""

    def __init__(self, operation: str, number: int) -> None:
        self._operation, self._number = operation, number

    def write(self, path: str, data: bytes) -> float:
        written_at = super().write(path, data)
        self._fail("write")
        return written_at

    def link(self, source: str, target: str) -> None:
        self._fail("link")
        super().link(source, target)

    def _fail(self, operation: str) -> None:
        if operation == self._operation:
            raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("operation", "number", "kind", "fix"),
    [
        ("write", errno.ENOSPC, InfrastructureError, "is full: free some space"),
        ("write", errno.EROFS, InfrastructureError, "is read-only: mount it writable"),
        ("write", errno.EIO, InfrastructureError, "see that it is mounted"),
        ("write", errno.EACCES, UsageError, "make it writable for you"),
        ("link", errno.EPERM, UsageError, "has no hard links: name another directory"),
    ],
)
def test_a_directory_that_keeps_nothing_is_refused_and_left_as_it_was(
    tmp_path: Path, operation: str, number: int, kind: type[RallypointError], fix: str
) -> None:
    with pytest.raises(kind, match=rf"^--data-dir {tmp_path}: can't keep jobs there: .*{fix}"):
        prepare(str(tmp_path), Failing(operation, number), "--data-dir")
    assert list(tmp_path.iterdir()) == []


DIRECTORY = "/jobs"


def server_with(*run_ids: str) -> tuple[FileServer, UnreliableFiles]:
    """A register for each of them."""
    server = FileServer(1)
    files = UnreliableFiles(server)
    files.make_directory(DIRECTORY)
    for run_id in run_ids:
        write(files, run_id)
    return server, files


def write(files: UnreliableFiles, run_id: str) -> None:
    stored(DirectoryBackend(DIRECTORY, run_id, files=files), b"state")


def test_a_register_that_has_not_changed_for_a_week_is_removed_and_no_other() -> None:
    server, files = server_with("old", "new")
    files.write(f"{DIRECTORY}/somebody's", b"")
    files.write(f"{DIRECTORY}/probe-of-a-killed-node", b"")
    server.advance(RETENTION_S - 1)
    write(files, "new")
    assert sweep(files, DIRECTORY) == 0
    server.advance(2)
    assert sweep(files, DIRECTORY) == 1
    assert files.names(DIRECTORY) == [register_name("new"), "somebody's"]
    assert DirectoryBackend(DIRECTORY, "old", files=files).get_state() is None


def test_a_register_whose_age_can_not_be_found_out_is_put_back() -> None:
    _, files = server_with("job")
    write(files, "job")

    def fails(_path: str) -> bool:
        raise OSError(errno.EIO, "no")

    with pytest.raises(OSError, match="no"):
        remove_register(files, f"{DIRECTORY}/{register_name('job')}", fails)
    assert files.names(DIRECTORY) == [register_name("job")]


def test_what_an_interrupted_removal_has_left_is_removed() -> None:
    server, files = server_with("job")
    write(files, "job")
    failing = UnreliableFiles(server)

    def remove_directory(path: str) -> None:
        raise OSError(errno.EIO, "no")

    failing.remove_directory = remove_directory  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no"):
        remove_register(failing, f"{DIRECTORY}/{register_name('job')}", always)
    [left] = files.names(DIRECTORY)
    assert left.startswith("gone-")
    server.advance(RETENTION_S - 1)
    assert sweep(files, DIRECTORY) == 0
    assert files.names(DIRECTORY) == [left], "somebody may be about to give it its name back"
    server.advance(2)
    assert sweep(files, DIRECTORY) == 0
    assert files.names(DIRECTORY) == []


def always(path: str) -> bool:
    return True


def test_a_register_that_is_written_to_while_it_is_removed_keeps_its_job() -> None:
    server, files = server_with("job")
    server.advance(RETENTION_S + 1)
    late = UnreliableFiles(server)
    rename: Callable[[str, str], None] = late.rename

    def write_then_rename(source: str, target: str) -> None:
        if "gone-" in target:
            write(files, "job")
        rename(source, target)

    late.rename = write_then_rename  # type: ignore[method-assign]
    assert sweep(late, DIRECTORY) == 0
    assert files.names(DIRECTORY) == [register_name("job")]
    write(files, "job")


def test_a_register_is_removed_by_its_newest_version_only() -> None:
    _, files = server_with("job", "other")
    ours, theirs = (DirectoryBackend(DIRECTORY, "job", files=files) for _ in range(2))
    for _ in range(3):
        found = known(ours.get_state())
        assert theirs.set_state(b"theirs", found[1])
        assert not ours.remove(found[1])
    found = known(ours.get_state())
    assert ours.remove(found[1])
    assert files.names(DIRECTORY) == [register_name("other")]


def test_who_watches_a_register_that_is_removed_begins_the_job_anew() -> None:
    _, files = server_with("job")
    ours, theirs = (DirectoryBackend(DIRECTORY, "job", files=files) for _ in range(2))
    found, seen = ours.get_state(), theirs.get_state()
    assert found is not None
    assert seen is not None
    assert ours.remove(found[1])
    with pytest.raises(RendezvousConnectionError, match="it was removed"):
        theirs.set_state(b"claim", seen[1])
    assert theirs.get_state() is None
    after = known(theirs.set_state(b"anew", None))
    assert after[2]
    assert ours.get_state() == after[:2]
