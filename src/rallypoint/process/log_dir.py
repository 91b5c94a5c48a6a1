"""The files of a job's workers on this node.

    <log_dir>/<run_id>_<random>/attempt_<round>/<local_rank>/{stdout.log, stderr.log, error.json}

The layout is torchrun's, but an attempt is numbered by its round, which is never used twice, so
no restart erases what an earlier one wrote. Each agent has its own `<run_id>_<random>`, made with
mode 0700: a shared file system can serve all nodes. Without `--log-dir` the files live in a fresh
directory under the temporary one, which `close` removes when nothing in it is worth keeping. The
null device as log directory means no files at all.
"""

from __future__ import annotations

import errno
import os
import stat

from msgspec import Struct

from rallypoint.errors import LogStorageError, RallypointError, UsageError
from rallypoint.process.relay_lines import TAIL_BYTES, last_lines
from rallypoint.process.streams import NULL_DEVICE, WorkerFiles

_PROBE_BYTES = 4096
_STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE})
_NO_FILES = WorkerFiles("", "", "")
_TEMPORARY_PLACES = ("/tmp", "/var/tmp")


class LogDir(Struct, frozen=True):
    """Where this agent's workers write. `root` is empty when there are no files."""

    root: str
    is_temporary: bool

    @classmethod
    def open(cls, log_dir: str | None, run_id: str, *, temp_dir: str = "/tmp") -> LogDir:
        """Make this agent's directory. When `log_dir` is None it is made under `temp_dir`, or as
        Python's tempfile does, under /tmp or /var/tmp when that can't be written.

        A directory that was asked for is proved writable with 4 KiB that reach the disk, so that
        a full disk is noticed before any worker starts. Blocks on the file system.

        Raises LogStorageError (no space, read-only, I/O error) or UsageError (not a directory,
        no permission), each one line with the path and the fix.
        """
        name = f"{safe_name(run_id)}_"
        if log_dir is None:
            return cls(_make_temporary(temp_dir, f"rallypoint-{name}"), True)
        if is_null_device(log_dir):
            return cls("", False)
        parent = os.path.abspath(log_dir)
        try:
            os.makedirs(parent, exist_ok=True)
            root = make_fresh(os.path.join(parent, name))
        except OSError as error:
            raise storage_error(parent, error) from error
        try:
            _probe(os.path.join(root, ".probe"))
        except OSError as error:
            os.rmdir(root)
            raise storage_error(parent, error) from error
        return cls(root, False)

    def attempt(self, round_number: int, local_rank: int) -> WorkerFiles:
        """Make the directory of one worker in one round and name its files; blocks on the disk.

        Raises LogStorageError or UsageError.
        """
        if not self.root:
            return _NO_FILES
        path = os.path.join(self.root, f"attempt_{round_number}", str(local_rank))
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise storage_error(path, error) from error
        return WorkerFiles(
            stdout=os.path.join(path, "stdout.log"),
            stderr=os.path.join(path, "stderr.log"),
            error=os.path.join(path, "error.json"),
        )

    def close(self, *, keep: bool) -> None:
        """At the end of the job: remove a temporary directory, unless `keep`. Never raises.

        `keep` is true when a person asked for files (redirect, tee) or an error file is shown.
        """
        if self.is_temporary and self.root and not keep:
            try:
                from shutil import rmtree

                rmtree(self.root, ignore_errors=True)
            except OSError:
                pass  # Without a free descriptor not even the import works.


def open_log(path: str) -> int:
    """A descriptor for a worker to write to; an existing file is continued.

    Raises LogStorageError or UsageError.
    """
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error(path, error) from error


def read_tail(path: str) -> bytes:
    """The last lines of a log file, within a tail's bounds; empty when it can't be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            # A little more than the bound shows `last_lines` that it is cutting.
            file.seek(max(0, size - TAIL_BYTES - 8))
            return last_lines(file.read(TAIL_BYTES + 8))
    except OSError:
        return b""


def is_null_device(path: str) -> bool:
    """Whether `path` is the null device, by whatever name."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(NULL_DEVICE).st_rdev


def path_text(path: str) -> str:
    """`path` for a person or a peer: bytes that are no UTF-8 are shown as in `\\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def storage_error(path: str, error: OSError) -> RallypointError:
    """The one line for a person about a log file or directory that can't be used."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free space there or choose another --log-dir"
    elif error.errno in (errno.EACCES, errno.EPERM):
        fix = "give this user write access or choose another --log-dir"
    else:
        fix = "choose another --log-dir"
    line = f"can't write logs under {path_text(path)}: {reason}: {fix}"
    return LogStorageError(line) if error.errno in _STORAGE_ERRNOS else UsageError(line)


def _make_temporary(temp_dir: str, name: str) -> str:
    """Never makes the parent: a mistake in TMPDIR must not fill a disk somewhere else."""
    parent = os.path.abspath(temp_dir)
    failure: OSError | None = None
    for place in (parent, *_TEMPORARY_PLACES):
        try:
            return make_fresh(os.path.join(place, name))
        except OSError as error:
            failure = failure or error
    assert failure is not None
    raise storage_error(parent, failure) from failure


def make_fresh(stem: str) -> str:
    """Make a directory of mode 0700 whose name begins with `stem` and was never used. Raises
    OSError."""
    while True:
        path = stem + os.urandom(4).hex()
        try:
            os.mkdir(path, mode=0o700)
        except FileExistsError:
            continue
        return path


def _probe(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        left = _PROBE_BYTES
        while left:
            left -= os.write(fd, bytes(left))
        os.fsync(fd)
    finally:
        os.close(fd)
        os.unlink(path)


def safe_name(run_id: str) -> str:
    """`run_id` with nothing in it that a file name or a shell would trip over."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in run_id)
    return safe.lstrip(".")[:64] or "job"
