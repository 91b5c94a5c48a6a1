"""Whether other machines see a directory, by the type of its file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.file_systems import (
    FileSystem,
    FileSystemReach,
    file_system_of,
    local_file_system,
    not_mounted,
)

MOUNTS = b"""\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /files rw,relatime shared:5 master:2 - nfs4 server:/files rw,vers=4.2,soft
31 30 0:41 / /files/me/local rw - xfs /dev/sdb1 rw
32 22 0:42 / /my\\040files rw - fuse.sshfs me@host:/ rw
33 22 0:43 / /twice rw - tmpfs tmpfs rw
34 22 0:44 / /twice rw - lustre mgs@tcp:/fs rw
a line of a kernel to come
35 22 0:45 /odd /odd rw - strangefs none rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "where", "reach"),
    [
        ("/", "ext4", "/", FileSystemReach.LOCAL),
        ("/jobs", "ext4", "/", FileSystemReach.LOCAL),
        ("/files", "nfs4", "/files", FileSystemReach.SHARED),
        ("/files/me/jobs", "nfs4", "/files", FileSystemReach.SHARED),
        ("/filesystem/jobs", "ext4", "/", FileSystemReach.LOCAL),
        ("/files/me/local/jobs", "xfs", "/files/me/local", FileSystemReach.LOCAL),
        ("/my files/jobs", "fuse.sshfs", "/my files", FileSystemReach.SHARED),
        ("/twice/jobs", "lustre", "/twice", FileSystemReach.SHARED),
        ("/odd/jobs", "strangefs", "/odd", FileSystemReach.UNKNOWN),
    ],
)
def test_a_path_lies_where_it_is_mounted_last(
    path: str, kind: str, where: str, reach: FileSystemReach
) -> None:
    found = file_system_of(path, MOUNTS)
    assert found == FileSystem(kind, where)
    assert found.reach is reach


@pytest.mark.parametrize(
    ("types", "reach"),
    [
        (
            "nfs nfs4 lustre gpfs ceph beegfs cifs smb3 9p virtiofs fuse.glusterfs fuse.gcsfuse",
            FileSystemReach.SHARED,
        ),
        ("ext4 xfs btrfs tmpfs overlay zfs fuseblk fuse.fuse-overlayfs", FileSystemReach.LOCAL),
        ("wonderfs fusefs", FileSystemReach.UNKNOWN),
    ],
)
def test_types_that_machines_share_and_types_of_one_machine(
    types: str, reach: FileSystemReach
) -> None:
    for each in types.split():
        assert FileSystem(each, "/").reach is reach, each


TO_MOUNT = b"""\
# <file system> <mount point> <type> <options>
UUID=1 / ext4 defaults 0 1
server:/jobs /shared nfs4 rw,_netdev 0 0
server:/deep /shared/deep/ nfs4 rw 0 0
server:/space /with\\040space nfs rw 0 0
server:/later /later nfs rw,noauto 0 0
/dev/cdrom /cdrom iso9660 ro,noauto 0 0
UUID=2 none swap sw 0 0
server:/all /files nfs4 rw 0 0
server:/all /files/me nfs4 rw 0 0
a line of something else
"""


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/jobs", ""),
        ("/shared", "/shared"),
        ("/shared/jobs", "/shared"),
        ("/shared/deep/jobs", "/shared/deep"),
        ("/sharedjobs", ""),
        ("/with space/jobs", "/with space"),
        ("/later/jobs", "/later"),
        ("/cdrom/jobs", ""),
        ("/files/jobs", ""),
        ("/files/me/jobs", "/files/me"),
        ("/files/me/local/jobs", ""),
    ],
)
def test_L1_a_directory_that_is_about_to_be_mounted_is_known(path: str, point: str) -> None:
    """Where something is mounted below the mount point, the directory is there."""
    assert not_mounted(path, MOUNTS, TO_MOUNT) == point
    assert not_mounted(path, MOUNTS, b"") == not_mounted(path, b"", TO_MOUNT) == ""


def test_nothing_is_known_without_mounts() -> None:
    assert file_system_of("/jobs", b"") is None


def test_a_link_is_followed_and_a_path_need_not_exist(tmp_path: Path) -> None:
    (tmp_path / "memory").symlink_to("/dev/shm")
    assert local_file_system(str(tmp_path / "memory" / "none" / "jobs")) == "tmpfs"
    assert local_file_system("/proc/self") == ""
