"""The file system in memory behaves as the one that is mounted here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rallypoint.errors import AccessError
from rallypoint.register.directory.files import Files, LocalFiles
from rallypoint.testing.unreliable_files import Fault, FileServer, UnreliableFiles

Made = tuple[Files, str]


@pytest.fixture(params=["mounted", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Files, and an empty directory in them."""
    if request.param == "mounted":
        return LocalFiles(), str(tmp_path)
    files = UnreliableFiles(FileServer(1))
    files.make_directory("/tmp")
    return files, "/tmp"


def test_a_file_is_written_once_and_read(made: Made) -> None:
    """Any bytes."""
    files, top = made
    data = bytes(range(256)) * 9000
    written_at = files.write(f"{top}/a", data)
    assert files.read(f"{top}/a") == data
    assert files.changed_at(f"{top}/a") == written_at
    with pytest.raises(FileExistsError):
        files.write(f"{top}/a", b"other")
    assert files.read(f"{top}/a") == data


def test_a_link_takes_no_name_that_is_taken(made: Made) -> None:
    """And is the same file."""
    files, top = made
    files.write(f"{top}/a", b"a")
    files.write(f"{top}/b", b"b")
    files.link(f"{top}/a", f"{top}/c")
    with pytest.raises(FileExistsError):
        files.link(f"{top}/b", f"{top}/c")
    files.remove(f"{top}/a")
    assert files.read(f"{top}/c") == b"a"
    with pytest.raises(FileNotFoundError):
        files.link(f"{top}/a", f"{top}/d")
    with pytest.raises(FileNotFoundError):
        files.link(f"{top}/b", f"{top}/none/d")
    assert sorted(files.names(top)) == ["b", "c"]


def test_a_rename_replaces_a_file(made: Made) -> None:
    """Its old name is gone."""
    files, top = made
    files.write(f"{top}/a", b"a")
    files.write(f"{top}/b", b"b")
    files.rename(f"{top}/a", f"{top}/b")
    assert files.names(top) == ["b"]
    assert files.read(f"{top}/b") == b"a"
    with pytest.raises(FileNotFoundError):
        files.rename(f"{top}/a", f"{top}/b")


def test_a_directory_is_removed_when_it_is_empty(made: Made) -> None:
    """Its name may change before."""
    files, top = made
    files.make_directory(f"{top}/one")
    with pytest.raises(FileExistsError):
        files.make_directory(f"{top}/one")
    with pytest.raises(FileNotFoundError):
        files.make_directory(f"{top}/none/one")
    files.check_own(f"{top}/one")
    files.write(f"{top}/one/a", b"")
    files.rename(f"{top}/one", f"{top}/two")
    assert files.names(f"{top}/two") == ["a"]
    with pytest.raises(OSError, match="not empty"):
        files.remove_directory(f"{top}/two")
    files.remove(f"{top}/two/a")
    files.sync(f"{top}/two")
    files.remove_directory(f"{top}/two")
    assert files.names(top) == []


@pytest.mark.parametrize(
    "call",
    [Files.names, Files.read, Files.remove, Files.remove_directory, Files.sync, Files.changed_at],
    ids=lambda call: call.__name__,
)
def test_what_is_not_there_is_not_found(made: Made, call: Callable[[Files, str], object]) -> None:
    """Also below a directory that is not there."""
    files, top = made
    for path in ("none", "none/none"):
        with pytest.raises(FileNotFoundError):
            getattr(files, call.__name__)(f"{top}/{path}")


def test_a_file_is_no_directory(made: Made) -> None:
    """Nor the other way round."""
    files, top = made
    files.write(f"{top}/a", b"a")
    files.make_directory(f"{top}/one")
    for failing in (files.names, files.sync, files.remove_directory):
        with pytest.raises(NotADirectoryError):
            failing(f"{top}/a")
    with pytest.raises(AccessError, match="not a directory"):
        files.check_own(f"{top}/a")
    with pytest.raises(NotADirectoryError):
        files.read(f"{top}/a/b")
    with pytest.raises(OSError):
        files.read(f"{top}/one")
    with pytest.raises(OSError):
        files.remove(f"{top}/one")


def test_a_directory_changes_when_a_name_does(made: Made) -> None:
    """As the ages of directories are measured."""
    files, top = made
    files.make_directory(f"{top}/one")
    before = files.changed_at(f"{top}/one")
    if isinstance(files, UnreliableFiles):
        files.server.advance(5.0)
    else:
        os.utime(f"{top}/one", (before - 5.0, before - 5.0))
    written_at = files.write(f"{top}/a", b"")
    assert files.changed_at(f"{top}/one") < written_at
    files.link(f"{top}/a", f"{top}/one/a")
    assert files.changed_at(f"{top}/one") >= written_at


def test_a_file_is_durable_when_it_has_been_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, by fsync; and nobody else may read it."""
    sizes = []

    def fsync(fd: int, fsync: Callable[[int], None] = os.fsync) -> None:
        fsync(fd)
        sizes.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    LocalFiles().write(str(tmp_path / "a"), b"12345")
    assert sizes == [5]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    LocalFiles().make_directory(str(tmp_path / "one"))
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o700
    LocalFiles().sync(str(tmp_path / "one"))
    assert len(sizes) == 2


def test_a_directory_that_others_may_write_to_is_not_one_s_own(tmp_path: Path) -> None:
    """Nor is a link to one. Others may read: some file systems show one mode for all."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    LocalFiles().check_own(str(tmp_path / "open"))
    (tmp_path / "open").chmod(0o775)
    with pytest.raises(AccessError, match=r"mode 0775\): run `chmod go-w`"):
        LocalFiles().check_own(str(tmp_path / "open"))
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(AccessError, match="not a directory"):
        LocalFiles().check_own(str(tmp_path / "link"))


class Once:
    """A fault that happens to the next operation of a name."""

    def __init__(self) -> None:
        self.operation, self.fault = "", Fault.REFUSED

    def __call__(self, operation: str, path: str) -> Fault | None:
        is_next = operation == self.operation
        self.operation = "" if is_next else self.operation
        return self.fault if is_next else None


def test_the_file_system_in_memory_can_fail() -> None:
    """An answer is lost, a request is late, an entry is lost with power, a listing is old."""
    server, once = FileServer(1), Once()
    files, other = UnreliableFiles(server, once), UnreliableFiles(server)
    other.make_directory("/a")
    other.sync("/")
    other.write("/a/file", b"x")
    other.sync("/a")

    once.operation, once.fault = "link", Fault.SENT_TWICE
    with pytest.raises(FileExistsError):
        files.link("/a/file", "/a/twice")
    assert other.read("/a/twice") == b"x"

    once.operation, once.fault = "link", Fault.LATE
    with pytest.raises(OSError, match="Input/output"):
        files.link("/a/file", "/a/late")
    assert "late" not in other.names("/a")
    server.advance(120.0)
    assert "late" in other.names("/a")

    assert "new" not in files.names("/a")
    other.write("/a/new", b"")
    once.operation, once.fault = "names", Fault.CACHED
    assert "new" not in files.names("/a")
    server.advance(60.0)
    once.operation = "names"
    assert "new" in files.names("/a")

    other.sync("/a")
    for number in range(20):
        other.write(f"/a/{number}", b"")
    server.lose_power()
    names = UnreliableFiles(server).names("/a")
    assert {"file", "twice", "late", "new"} <= set(names)
    assert 4 < len(names) < 24
