"""The file system of a directory, and whether other machines can see the directory.

The type of a file system is only a hint: a disk of this machine may be exported to others, and this
machine may be all that a job has. So the type leads to remarks, never to a refusal. But a directory
that is about to be mounted is waited for (`why_not_there`): in its empty mount point a node would
begin the job that the others have begun elsewhere.
"""

from __future__ import annotations

import os
import re
from enum import Enum

from msgspec import Struct

_MOUNTS = "/proc/self/mountinfo"
_TO_MOUNT = "/etc/fstab"
_OCTAL = re.compile(rb"\\([0-7]{3})")


class FileSystemReach(Enum):
    """The machines that see the files of a file system."""

    SHARED = "other machines too"
    LOCAL = "this machine alone"
    UNKNOWN = "nobody knows"


_SHARED = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "fhgfs", "cifs", "smb3", "smbfs", "9p"}
    | {"virtiofs", "afs", "orangefs", "pvfs2", "gfs2", "ocfs2", "panfs", "wekafs", "dvs", "cvfs"}
    | {"vboxsf", "vmhgfs", "prl_fs", "coda", "gluster", "glusterfs", "quobyte", "daos", "acfs"}
)
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs", "bcachefs", "nilfs2"}
    | {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs", "overlay", "aufs", "squashfs", "erofs"}
    | {"vfat", "msdos", "exfat", "ntfs", "ntfs3", "hfsplus", "iso9660", "udf", "fuseblk"}
    | {"fuse.fuse-overlayfs", "fuse.unionfs", "fuse.mergerfs", "fuse.ntfs-3g", "fuse.encfs"}
)


class FileSystem(Struct, frozen=True):
    """A mounted file system."""

    type: str
    """The type in the kernel's notation, such as `ext4` or `nfs4`."""
    mounted_on: str

    @property
    def reach(self) -> FileSystemReach:
        """The machines that see a file system of this type.

        A file system that a program serves (fuse) is nearly always on a network.
        """
        if self.type in _LOCAL:
            return FileSystemReach.LOCAL
        is_shared = self.type in _SHARED or self.type == "fuse" or self.type.startswith("fuse.")
        return FileSystemReach.SHARED if is_shared else FileSystemReach.UNKNOWN


def file_system_of(path: str, mounts: bytes) -> FileSystem | None:
    """Return the file system of an absolute path without links; None if it is unknown. Pure.

    `mounts` is the content of /proc/self/mountinfo: a later mount hides an earlier one at the same
    place.
    """
    found, name = None, os.fsencode(path)
    longest = -1
    for line in mounts.splitlines():
        before, _, after = line.partition(b" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        point = _unescaped(fields[4])
        if _is_below(name, point) and len(point) >= longest:
            longest = len(point)
            found = FileSystem(kinds[0].decode("utf-8", "replace"), os.fsdecode(point))
    return found


def not_mounted(path: str, mounts: bytes, to_mount: bytes) -> str:
    """Return the mount point of /etc/fstab, at or above a path, that is not mounted; else empty.

    Pure.

    The path is absolute and has no links. `to_mount` is the content of /etc/fstab, `mounts` that of
    /proc/self/mountinfo. An entry with `noauto` counts only if its type of file system is one that
    other machines see.
    """
    name, found = os.fsencode(path), b""
    for line in to_mount.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0].startswith(b"#"):
            continue
        point, options = _unescaped(fields[1]).rstrip(b"/"), fields[3].split(b",")
        kind = FileSystem(fields[2].decode("utf-8", "replace"), "")
        is_expected = b"noauto" not in options or kind.reach is FileSystemReach.SHARED
        if is_expected and _is_below(name, point) and len(point) > len(found):
            found = point
    there = file_system_of(path, mounts)
    is_mounted = there is None or len(os.fsencode(there.mounted_on)) >= len(found)
    return "" if is_mounted else os.fsdecode(found)


def _unescaped(point: bytes) -> bytes:
    return _OCTAL.sub(lambda octal: bytes([int(octal[1], 8) & 255]), point)


def _is_below(name: bytes, point: bytes) -> bool:
    return name == point or name.startswith(point.rstrip(b"/") + b"/")


def why_not_there(path: str, *, may_part: bool) -> str:
    """Return why a directory for several nodes must not be made or used yet; empty: it may. Blocks.

    `may_part`: some of the nodes suffice for the job, so that others could begin it elsewhere.
    """
    try:
        with open(_TO_MOUNT, "rb") as to_mount, open(_MOUNTS, "rb") as mounts:
            point = not_mounted(os.path.realpath(path), mounts.read(), to_mount.read())
    except OSError:
        point = ""
    if point:
        return f"{point} is in {_TO_MOUNT}, and is not mounted: mount it"
    if not may_part or os.path.lexists(path) or not (local := local_file_system(path)):
        return ""
    return (
        f"it does not exist, and would lie on {local}, a file system that other machines do not "
        "see: mount it. If all nodes run on this machine, make it with mkdir"
    )


def local_file_system(path: str) -> str:
    """Return the type of a path's file system if only this machine sees it; else empty.

    Empty also if it is unknown. The path need not exist yet. Blocks.
    """
    found = file_system_at(path)
    return found.type if found is not None and found.reach is FileSystemReach.LOCAL else ""


def is_shared(path: str) -> bool:
    """Return whether a path, which need not exist, is on a file system of several machines.

    Blocks.
    """
    found = file_system_at(path)
    return found is not None and found.reach is FileSystemReach.SHARED


def lies_on(path: str) -> str:
    """Return the file system of a path, in parentheses after a space; empty if unknown. Blocks."""
    found = file_system_at(path)
    return "" if found is None else f" ({found.type}, mounted on {found.mounted_on})"


def file_system_at(path: str) -> FileSystem | None:
    """Return the file system of a path, which need not exist; None if it is unknown. Blocks."""
    try:
        with open(_MOUNTS, "rb") as file:
            return file_system_of(os.path.realpath(path), file.read())
    except OSError:
        return None


def lies_here(path: str, local: str) -> str:
    """Return the remark that other machines do not see a directory that is meant to be shared.

    `local` is the type of its file system.
    """
    return f"{path} lies on {local}, a file system that other machines do not see"
