"""A lock in the data directory, which tells whether the process that holds it lives."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from rallypoint.coordinator.leading.leader_process import is_gone, this_process
from rallypoint.core.takeover.record import LifeLock
from rallypoint.file_systems import FileSystem, local_file_system
from rallypoint.register.directory.life_locks import DirectoryLocks, are_locks_trusted

HOLDER = """
import sys, time
from rallypoint.register.directory.life_locks import DirectoryLocks
own = DirectoryLocks(sys.argv[1]).own
print(own.device, own.inode, own.place, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def directory(tmp_path: Path) -> str:
    if not local_file_system(str(tmp_path)):
        pytest.skip("temporary files lie on a file system that other machines see")
    return str(tmp_path)


def own_lock(locks: DirectoryLocks) -> LifeLock:
    assert locks.own is not None
    return locks.own


def test_L6_a_killed_process_is_known_to_be_gone_by_its_lock_and_a_stopped_one_is_not(
    directory: str,
) -> None:
    words = [sys.executable, "-c", HOLDER, directory]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            lock = LifeLock(*map(int, holder.stdout.readline().split()))
            locks = DirectoryLocks(directory)
            assert not locks.is_free(lock)
            holder.send_signal(signal.SIGSTOP)
            assert not locks.is_free(lock)
        finally:
            holder.kill()
        holder.wait()
        assert locks.is_free(lock)
        assert not DirectoryLocks(directory).is_free(own_lock(locks))


def test_L6_a_process_of_another_container_is_gone_when_its_lock_is_free(directory: str) -> None:
    locks, others = DirectoryLocks(directory), DirectoryLocks(directory)
    own = this_process(locks)
    boot, _, namespaces = own.where.partition(" ")
    elsewhere = replace(own, where=f"{boot} pid:[1]", lock=own_lock(others))
    assert not is_gone(elsewhere, own, locks)
    never_held = replace(elsewhere, lock=replace(own_lock(others), place=1))
    assert is_gone(never_held, own, locks)
    assert not is_gone(never_held, own)
    assert not is_gone(replace(never_held, where=f"another-boot {namespaces}"), own, locks)
    assert not is_gone(replace(never_held, lock=None), own, locks)


def test_L6_a_lock_on_another_file_tells_nothing(directory: str) -> None:
    """The file was removed, and made anew, or another directory has its name."""
    locks = DirectoryLocks(directory)
    with TemporaryDirectory(dir=directory) as other:
        lock = own_lock(DirectoryLocks(other))
        assert not locks.is_free(replace(lock, place=1))
    assert not locks.is_free(replace(own_lock(locks), device=own_lock(locks).device + 1, place=1))


@pytest.mark.parametrize(
    ("kinds", "are_trusted"),
    [
        ("ext4 xfs btrfs tmpfs overlay", True),
        ("nfs4 lustre fuse.mergerfs fuseblk strangefs", False),
    ],
)
def test_L6_locks_are_believed_on_file_systems_of_this_kernel_alone(
    kinds: str, are_trusted: bool
) -> None:
    for kind in kinds.split():
        assert are_locks_trusted(FileSystem(kind, "/")) is are_trusted


def test_L6_a_directory_whose_locks_tell_nothing_has_none() -> None:
    """No file can be made there, and its kind is not known to have locks of this kernel alone."""
    locks = DirectoryLocks("/proc/self")
    assert locks.own is None
    assert not locks.is_free(LifeLock(1, 1, 1))
