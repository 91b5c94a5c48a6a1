"""The register in a directory: the contract of a backend, what it leaves, and what it refuses."""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.narrowed import known

from rallypoint.errors import (
    AccessError,
    ParameterError,
    RendezvousConnectionError,
    RendezvousStateError,
)
from rallypoint.register.contract import RendezvousBackend
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.files import LocalFiles
from rallypoint.register.version_file import register_name
from rallypoint.testing.backend_contract import RendezvousBackendContract
from rallypoint.testing.unreliable_files import Fault, FileServer, UnreliableFiles

TOKEN = b"a token of the job"
COUNT = """
import sys
from rallypoint.register.directory.backend import DirectoryBackend
class Short(DirectoryBackend):
    versions_in_a_directory = 3
backend = Short(sys.argv[1], "job", b"token")
for _ in range(int(sys.argv[2])):
    found, stored = backend.get_state(), False
    while not stored:
        value, token = found or (b"0", None)
        value, token, stored = backend.set_state(b"%d" % (int(value) + 1), token)
        found = value, token
"""


class TestDirectory(RendezvousBackendContract):
    """On the disk of this machine."""

    versions = 256

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.place = str(tmp_path)

    def make_backend(self) -> RendezvousBackend:
        return self._made("job")

    def make_backend_of_another_job(self) -> RendezvousBackend:
        return self._made("job2")

    def _made(self, run_id: str) -> DirectoryBackend:
        backend = DirectoryBackend(self.place, run_id, TOKEN)
        backend.versions_in_a_directory = self.versions
        return backend


class TestShortDirectories(TestDirectory):
    """Each version names the directory of the next."""

    versions = 1


def test_processes_that_race_lose_no_update(tmp_path: Path) -> None:
    """Three of them, on the disk of this machine."""
    command = [sys.executable, "-c", COUNT, str(tmp_path), "20"]
    counting = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in counting] == [0, 0, 0]
    assert known(DirectoryBackend(str(tmp_path), "job", b"token").get_state())[0] == b"60"
    left = os.listdir(tmp_path / register_name("job"))
    assert not [name for name in left if name.startswith("new-")]


@pytest.mark.parametrize("run_id", ["..", ".", "a/b", "/", "x" * 300, "nœud", "\n", "-", " "])
def test_any_run_id_names_a_directory_of_its_own(tmp_path: Path, run_id: str) -> None:
    """Directly in the one that is shared."""
    backend = DirectoryBackend(str(tmp_path), run_id)
    assert backend.set_state(b"x") is not None
    assert os.listdir(tmp_path) == [register_name(run_id)]
    assert DirectoryBackend(str(tmp_path), run_id + "-").get_state() is None
    assert len(os.listdir(tmp_path)) == 1


def test_run_ids_that_read_alike_do_not_meet() -> None:
    """Their directories are told apart by a hash."""
    names = {register_name(run_id) for run_id in ("a b", "a/b", "a-b", "A-b", "a.b")}
    assert len(names) == 5


def test_a_job_needs_a_name(tmp_path: Path) -> None:
    """As with all backends."""
    with pytest.raises(ParameterError, match="run_id=''"):
        DirectoryBackend(str(tmp_path), "")


# What it costs, and what it leaves


class CountedFiles(LocalFiles):
    """Which operations were asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in ("read", "write", "link", "names", "sync", "changed_at", "remove"):
            self.asked[name] += 1
        return super().__getattribute__(name)


def test_a_known_position_costs_two_operations(tmp_path: Path) -> None:
    """That nothing follows it, and that it is still there. And a set few, of which two wait for the
    disk."""
    files = CountedFiles()
    backend = DirectoryBackend(str(tmp_path), "job", None, files)
    token = stored(backend, b"0")
    token = stored(backend, b"1", token)
    files.asked.clear()
    backend.get_state()
    assert files.asked == {"read": 2}
    files.asked.clear()
    stored(backend, b"2", token)
    assert files.asked == {"write": 1, "link": 1, "remove": 1, "read": 2, "sync": 1}


# What somebody else who may write to the directory does


def removed_last(tmp_path: Path, count: int) -> None:
    """So many of the newest versions."""
    files = sorted((tmp_path / register_name("job")).glob("0*/0*"))
    for path in files[-count:]:
        path.unlink()


def test_L9_a_writer_whose_last_version_was_removed_stores_nothing(tmp_path: Path) -> None:
    """It finds the version that is the newest one now, as with any register."""
    backend, token = DirectoryBackend(str(tmp_path), "job", TOKEN), None
    for number in range(6):
        token = stored(backend, b"%d" % number, token)
    removed_last(tmp_path, 2)
    after = known(backend.set_state(b"6", token))
    assert (after[0], after[2]) == (b"3", False)
    assert stored(backend, b"7", after[1]) is not None
    assert known(DirectoryBackend(str(tmp_path), "job", TOKEN).get_state())[0] == b"7"


def test_L9_a_reader_sees_that_the_version_which_it_knows_was_removed(tmp_path: Path) -> None:
    writer, reader = (DirectoryBackend(str(tmp_path), "job", TOKEN) for _ in range(2))
    token = None
    for number in range(6):
        token = stored(writer, b"%d" % number, token)
    assert reader.get_state() == (b"5", token)
    removed_last(tmp_path, 3)
    assert known(reader.get_state())[0] == b"2"


def test_L9_a_writer_sees_that_its_directory_of_versions_was_removed(tmp_path: Path) -> None:
    backend, token = DirectoryBackend(str(tmp_path), "job", TOKEN), None
    backend.versions_in_a_directory = 3
    for number in range(9):
        token = stored(backend, b"%d" % number, token)
    shutil.rmtree(max((tmp_path / register_name("job")).glob("0*-*")))
    after = known(backend.set_state(b"9", token))
    assert not after[2]
    assert after[0] == b"6"


def test_a_reader_that_is_new_reads_few_versions(tmp_path: Path) -> None:
    """However many there are."""
    backend = DirectoryBackend(str(tmp_path), "job")
    backend.versions_in_a_directory = 20
    token = None
    for number in range(70):
        token = stored(backend, b"%d" % number, token)
    for head in ("head", "none"):
        files = CountedFiles()
        found = known(DirectoryBackend(str(tmp_path), "job", None, files).get_state())
        assert (found[0], found[1]) == (b"69", token)
        assert files.asked.total() < 8, head
        (tmp_path / register_name("job") / "head").unlink(missing_ok=True)


class Rig:
    """Writers on one file system in memory."""

    def __init__(self) -> None:
        self.server = FileServer(1)
        UnreliableFiles(self.server).make_directory("/shared")

    def backend(self, faults: Callable[[str, str], Fault | None] | None = None) -> DirectoryBackend:
        """One more process."""
        backend = DirectoryBackend("/shared", "job", TOKEN, UnreliableFiles(self.server, faults))
        backend.versions_in_a_directory = 3
        return backend

    def left(self) -> list[str]:
        """What is in the job's directory."""
        return sorted(self.server.find(f"/shared/{register_name('job')}").names)


def test_old_directories_are_removed(rig: Rig) -> None:
    """Two behind, and ten minutes old; also those of writers that lost, and temporary files."""
    backend, token = rig.backend(), None
    files = UnreliableFiles(rig.server)
    for number in range(60):
        token = stored(backend, b"%d" % number, token)
        if number == 2:
            top = f"/shared/{register_name('job')}"
            files.make_directory(f"{top}/00000002-0123456789abcdef")
            files.write(f"{top}/new-left", b"left by a process that died")
    assert len(rig.left()) == 24
    rig.server.advance(601.0)
    for number in range(3):
        token = stored(backend, b"%d" % number, token)
    *directories, first, head = rig.left()
    assert (first, head) == ("first", "head")
    assert [name[:8] for name in directories] == ["00000020", "00000021"]
    found = rig.backend().get_state()
    assert found == (b"2", token)


def test_a_first_version_is_not_written_twice_when_its_successors_were_removed(rig: Rig) -> None:
    """Not by a writer that found nothing long ago either."""
    late, backend = rig.backend(), rig.backend()
    assert late.get_state() is None
    token = stored(backend, b"first")
    old = backend.get_state()
    for number in range(20):
        rig.server.advance(100.0)
        token = stored(backend, b"%d" % number, token)
    assert "first" in rig.left()
    assert late.set_state(b"late") == (b"19", token, False)
    assert old is not None
    for stale in (rig.backend(), backend):
        after = stale.set_state(b"old", old[1])
        assert after == (b"19", token, False)


def test_a_writer_that_sleeps_between_looking_and_linking_does_not_believe_its_link(
    rig: Rig,
) -> None:
    """Its directory is being removed meanwhile: the slot that it knows as free is free again."""
    others, asleep, token = rig.backend(), [], None
    for number in range(3):
        token = stored(others, b"%d" % number, token)

    def sleep(operation: str, path: str) -> None:
        if operation == "link":
            asleep.append(path)
            rig.server.advance(900.0)
            rig.server.find(posixpath.dirname(path)).names.clear()

    slept = rig.backend(sleep)
    found = slept.get_state()
    assert found == (b"2", token)
    with pytest.raises(RendezvousConnectionError, match="what follows it has been removed"):
        slept.set_state(b"late", found[1])
    assert asleep


# What it refuses


@pytest.fixture
def rig() -> Rig:
    return Rig()


def stored(backend: DirectoryBackend, state: bytes, token: Any = None) -> Any:
    """The token of what was stored."""
    after = known(backend.set_state(state, token))
    assert after[2]
    return after[1]


NEWER = b"rallypoint register\n\0\2" + bytes(90)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: b"#!/bin/sh\n" + data, r"first was not written by Rallypoint \(it begins"),
        (lambda data: NEWER, r"first was written by a newer Rallypoint \(format 2; this one rea"),
        (lambda data: data[:-1] + b"!", "first is corrupt"),
        (lambda data: data[:-1], "first is corrupt"),
        (lambda data: data[:30], "first is corrupt"),
        (lambda data: b"", "first is corrupt"),
    ],
    ids=["foreign", "newer", "changed", "cut", "short", "empty"],
)
@pytest.mark.parametrize("token", [None, TOKEN], ids=["checksum", "token"])
def test_a_file_that_is_no_version_is_refused_and_kept(
    tmp_path: Path, spoil: Callable[[bytes], bytes], says: str, token: bytes | None
) -> None:
    """With one line that names it and the fix; nothing is overwritten."""
    stored(DirectoryBackend(str(tmp_path), "job", token), b"x")
    first = tmp_path / register_name("job") / "first"
    spoilt = spoil(first.read_bytes())
    first.write_bytes(spoilt)
    backend = DirectoryBackend(str(tmp_path), "job", token)
    for call in (backend.get_state, lambda: backend.set_state(b"y")):
        with pytest.raises(RendezvousStateError, match=says) as told:
            call()
        assert "\n" not in str(told.value)
    assert first.read_bytes() == spoilt


def test_a_version_is_bound_to_its_job_its_place_and_its_token(tmp_path: Path) -> None:
    """A copy elsewhere does not pass."""
    backend = DirectoryBackend(str(tmp_path), "job", TOKEN)
    stored(backend, b"2", stored(backend, b"1"))
    for token, says in ((None, "by a job with a token"), (b"other", "with another token")):
        with pytest.raises(RendezvousStateError, match=says):
            DirectoryBackend(str(tmp_path), "job", token).get_state()
    job, other = tmp_path / register_name("job"), tmp_path / register_name("other")
    (directory,) = (path for path in job.iterdir() if path.is_dir())
    (directory / "000002").write_bytes((directory / "000001").read_bytes())
    (directory / "000002").chmod(0o600)
    with pytest.raises(RendezvousStateError, match="000002 is corrupt"):
        backend.get_state()
    os.rename(job, other)
    with pytest.raises(RendezvousStateError, match="is corrupt"):
        DirectoryBackend(str(tmp_path), "other", TOKEN).get_state()


def test_an_endpoint_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """As a file store's endpoint is; it is left alone."""
    (tmp_path / "file").write_bytes(b"a store")
    backend = DirectoryBackend(str(tmp_path / "file"), "job")
    for call in (backend.get_state, lambda: backend.set_state(b"x")):
        with pytest.raises(ParameterError, match=r"file is a file: .* needs a directory that all"):
            call()
    assert (tmp_path / "file").read_bytes() == b"a store"


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """It may be one that is not mounted on this node."""
    backend = DirectoryBackend(str(tmp_path / "none"), "job")
    for call in (backend.get_state, lambda: backend.set_state(b"x")):
        with pytest.raises(RendezvousConnectionError, match="none does not exist: create it"):
            call()
    assert os.listdir(tmp_path) == []


class Unmounted(LocalFiles):
    """Its directory may lie on another file system from now on."""

    number = 1

    def file_system(self, path: str) -> int:
        return self.number


def test_L1_a_register_that_is_not_mounted_any_more_is_not_begun_anew_in_the_empty_directory(
    tmp_path: Path,
) -> None:
    """Other nodes see the one that is mounted, and two nodes would lead the job."""
    files, place = Unmounted(), tmp_path / "jobs"
    place.mkdir()
    backend = DirectoryBackend(str(place), "job", files=files)
    assert backend.get_state() is None
    stored(backend, b"first")
    place.rename(tmp_path / "unmounted")
    place.mkdir()
    files.number = 2
    for use in (backend.get_state, lambda: backend.set_state(b"other")):
        with pytest.raises(RendezvousConnectionError, match="another file system than before"):
            use()
    assert list(place.iterdir()) == []
    place.rmdir()
    (tmp_path / "unmounted").rename(place)
    files.number = 3  # It was mounted again.
    assert known(backend.get_state())[0] == b"first"


class MountedLate(LocalFiles):
    """The directory is away when it is looked into for the first time, and back right after."""

    def __init__(self, away: Path, there: Path) -> None:
        self._away, self._there = away, there

    def check_own(self, path: str) -> None:
        try:
            super().check_own(path)
        finally:
            if self._away.exists():
                self._away.rename(self._there)


def test_a_register_that_is_back_between_two_looks_is_not_taken_for_none(tmp_path: Path) -> None:
    there, away = tmp_path / "jobs", tmp_path / "away"
    there.mkdir()
    DirectoryBackend(str(there), "job", TOKEN).set_state(b"1")
    there.rename(away)
    found = known(DirectoryBackend(str(there), "job", TOKEN, MountedLate(away, there)).get_state())
    assert found[0] == b"1"


def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or one that others may write to."""
    stored(DirectoryBackend(str(tmp_path), "job"), b"x")
    job = tmp_path / register_name("job")
    job.chmod(0o770)
    with pytest.raises(AccessError, match="other users may write to it"):
        DirectoryBackend(str(tmp_path), "job").get_state()
    job.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(AccessError, match=r"belongs to user \d+, not to you \(user 4711\)"):
        DirectoryBackend(str(tmp_path), "job").get_state()


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "its file system is full: free some space"),
        (errno.EDQUOT, "your quota on its file system is used up"),
        (errno.EROFS, "its file system is read-only: mount it writable"),
        (errno.EACCES, "make it writable for you"),
        (errno.EOPNOTSUPP, "its file system has no hard links"),
        (errno.EIO, "see that it is mounted"),
    ],
    ids=errno.errorcode.get,
)
@pytest.mark.parametrize("operation", ["write", "link", "sync"])
def test_what_the_file_system_refuses_is_said_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, number: int, fix: str
) -> None:
    """It is not known to be stored, and what was there before stays."""
    backend = DirectoryBackend(str(tmp_path), "job")
    token = stored(backend, b"1")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(LocalFiles, operation, fail)
        with pytest.raises(RendezvousConnectionError, match=fix):
            backend.set_state(b"2", token)
    if operation != "sync":
        assert DirectoryBackend(str(tmp_path), "job").get_state() == (b"1", token)
