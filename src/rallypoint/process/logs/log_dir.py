"""The files of a job's workers on this node.

    torchrun  <log_dir>/<run_id>_<random>/attempt_<round>/<local_rank>/{stdout.log, ...}
              <log_dir>/<run_id>_<node>_<random>/... of several nodes
    rounds    <log_dir>/<run_id>/<node>/round_<round>/<local_rank>/{stdout.log, ...}
              <log_dir>/<run_id>/<node>/latest -> round_<round>

The default is torchrun's shape, but an attempt is numbered by its round, which is never used twice,
so no restart erases what an earlier one wrote. In each layout an agent makes a directory of its
own, with mode 0700, so a shared file system can serve all nodes: with a random ending, or named
after the node alone, where who comes second (another agent of that machine, the job's next launch)
gets `<node>.2`. Without `--log-dir` the files live in a fresh directory under the temporary one,
which `close` removes when nothing in it is worth keeping. The null device as log directory means no
files at all.

On a parallel file system metadata is what costs. An agent makes its directory and one of 4 KiB to
prove that it can be written, then a directory per round, and per worker and round a directory and
the files that are asked for: nothing is listed, looked up twice, or removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from rallypoint.core.text import CANT_LOG, named, shown
from rallypoint.errors import MACHINE_ERRNOS, LogStorageError, RallypointError, UsageError, during
from rallypoint.files import (
    local_path,
    make_private_dir,
    open_named,
    prove_writable,
    remove_tree,
)
from rallypoint.process.limits import out_of_files
from rallypoint.process.logs.plan import NULL_DEVICE
from rallypoint.process.relay.remembered import RECENT_BYTES, Remembered, StreamPiece, last_pieces

_PROBE_BYTES = 4096
LEAST_FREE_BYTES = 1 << 20
"""The number of free bytes below which a file system counts as full; of a small one an eighth of
its size."""
TEMPORARY_PLACES = ("/tmp", "/var/tmp")
"""The places for a temporary directory where the usual one can't be written."""
_ERROR_FILE = "error.json"
_FIRST_REACH_BYTES, _REACH_BYTES = 64 * 1024, 8 * 1024 * 1024
"""The number of bytes at the end of a log file that are searched for tracebacks at first, and the
most that are searched until one is found."""
_PART_BYTES = 256 * 1024

Layout = Literal["torchrun", "rounds"]


class LogDir(Struct, frozen=True):
    """The directory of this agent's log files. `root` is empty when there are no files."""

    root: str
    is_temporary: bool
    layout: Layout = "torchrun"

    @classmethod
    def open(
        cls,
        log_dir: str | None,
        run_id: str,
        *,
        layout: Layout = "torchrun",
        node: str = "",
        temp_dir: str = "/tmp",
    ) -> LogDir:
        """Make this agent's directory under `log_dir`; `node`, unless empty, is a part of its name.

        When `log_dir` is None it is a temporary one under `temp_dir`, or under /tmp or /var/tmp
        when that can't be written. For the null device there is none (`root` is empty).

        A directory that was asked for is proved writable with 4 KiB that reach the disk, so that a
        full disk is noticed before any worker starts. Blocks on the file system.

        Raises LogStorageError (no space, read-only, I/O error), UsageError (not a directory, no
        permission) or InfrastructureError (no descriptor left), each one line with the fix.
        """
        job = safe_name(run_id)
        if log_dir is None:
            try:
                return cls(_make_temporary(temp_dir, f"rallypoint-{job}_"), True, layout)
            except OSError as error:
                raise storage_error(os.path.abspath(temp_dir), error) from error
        if is_null_device(log_dir):
            return cls("", False, layout)
        try:
            parent = os.path.abspath(local_path(log_dir, "needs a directory"))
        except ValueError as error:
            raise UsageError(f"{named.log_dir} {shown(log_dir)}: {error}") from None
        try:
            if layout == "rounds":
                place = os.path.join(parent, job)
                os.makedirs(place, exist_ok=True)
                root = _make_numbered(os.path.join(place, safe_name(node or "node")))
            else:
                os.makedirs(parent, exist_ok=True)
                stem = f"{job}_{safe_name(node)}_" if node else f"{job}_"
                root = make_private_dir(os.path.join(parent, stem))
        except OSError as error:
            raise storage_error(parent, error) from error
        try:
            prove_writable(root, bytes(_PROBE_BYTES))
        except OSError as error:
            os.rmdir(root)
            raise storage_error(parent, error) from error
        return cls(root, False, layout)

    def begin(self, round_number: int, local_ranks: Iterable[int]) -> str:
        """Make the directory of one round, and in it one for each local rank; return the round's.

        Empty when there are no files. In the layout `rounds` the link `latest` is set to it. Blocks
        on the disk.

        Where a round of that number was there before (a coordinator that lost its memory counts
        anew), its files are continued, but an error file is renamed, as to `error.json.1`, lest it
        be taken for this round's. Raises LogStorageError, UsageError, or InfrastructureError when
        no descriptor is left.
        """
        if not self.root:
            return ""
        name = f"{'round' if self.layout == 'rounds' else 'attempt'}_{round_number}"
        place = os.path.join(self.root, name)
        try:
            _make(place)
            for local_rank in local_ranks:
                worker = os.path.join(place, str(local_rank))
                if not _make(worker):
                    set_aside(os.path.join(worker, _ERROR_FILE))
        except OSError as error:
            raise storage_error(place, error) from error
        if self.layout == "rounds":
            _point(os.path.join(self.root, "latest"), name)
        return place

    def close(self, *, keep: bool) -> None:
        """Remove a temporary directory at the end of the job, unless `keep`.

        Never raises.

        For example files that a user asked for (redirect, tee) are kept when the job has failed.
        """
        if self.is_temporary and self.root and not keep:
            remove_tree(self.root)


def make_stacks_dir(log_dir: str | None, run_id: str, temp_dir: str) -> str:
    """Make a directory of this agent alone for its workers' stack dumps, and return its path.

    It is under `log_dir`, or without one under the temporary directory. It is not removed. Raises
    OSError.
    """
    stem = f"{safe_name(run_id)}_stacks_"
    if log_dir is None:
        return _make_temporary(temp_dir, f"rallypoint-{stem}")
    parent = os.path.abspath(log_dir)
    os.makedirs(parent, exist_ok=True)
    return make_private_dir(os.path.join(parent, stem))


def error_file(round_dir: str, local_rank: int) -> str:
    """Return the path of a worker's error file; empty without a directory."""
    return os.path.join(round_dir, str(local_rank), _ERROR_FILE) if round_dir else ""


def open_log(path: str) -> int:
    """Return a descriptor for a worker to write to; an existing file is continued.

    Raises LogStorageError, UsageError, or InfrastructureError when no descriptor is left.
    """
    try:
        return open_named(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise storage_error(path, error) from error


def read_remembered(path: str) -> tuple[StreamPiece, ...]:
    """Return the tracebacks in a log file that a relay would remember, and the file's end.

    Empty if it can't be read. Blocks on the file. Searches about the last 8 MiB at most.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ()
    try:
        size = os.fstat(fd).st_size
        reach, remembered = _FIRST_REACH_BYTES, _remembered(fd, size, _FIRST_REACH_BYTES)
        while remembered.first_at is None and reach < min(size, _REACH_BYTES):
            reach = min(8 * reach, _REACH_BYTES)
            remembered = _remembered(fd, size, reach)
        if remembered.first_at is not None and reach < size:
            # The first traceback may be chained to one before it.
            remembered = _remembered(fd, size, size - remembered.first_at + 8 * RECENT_BYTES)
        begin = max(0, size - _FIRST_REACH_BYTES)
        end = StreamPiece(begin, os.pread(fd, _FIRST_REACH_BYTES, begin))
        return last_pieces(remembered.pieces(), end)
    except OSError:
        return ()
    finally:
        os.close(fd)


def _remembered(fd: int, size: int, reach: int) -> Remembered:
    """Return what a relay would remember of the last `reach` bytes of the file. Raises OSError."""
    at = max(0, size - reach)
    remembered = Remembered(at)
    while at < size and (data := os.pread(fd, min(_PART_BYTES, size - at), at)):
        remembered.feed(data)
        at += len(data)
    return remembered


def is_null_device(path: str) -> bool:
    """Return whether `path` is the null device, by whatever name."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(NULL_DEVICE).st_rdev


def path_text(path: str) -> str:
    r"""Return `path` on one line, for a person or a peer.

    Bytes that are not UTF-8 are shown as in `\xff`, control characters as in `\n`.
    """
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def storage_error(path: str, error: OSError) -> RallypointError:
    """Return the error, one line, for a log file or directory that can't be used.

    It is a LogStorageError for a fault of the machine, an InfrastructureError for a lack of
    descriptors, else a UsageError.
    """
    if (short := out_of_files(error)) is not None:
        return short
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = f"free space there or choose another {named.log_dir}"
    elif error.errno in (errno.EACCES, errno.EPERM):
        fix = f"give this user write access or choose another {named.log_dir}"
    else:
        fix = f"choose another {named.log_dir}"
    line = f"{CANT_LOG} {path_text(path)}: {reason}: {fix}"
    made = LogStorageError(line) if error.errno in MACHINE_ERRNOS else UsageError(line)
    return during("write logs", error.errno, made)


def full_place(paths: Iterable[str]) -> str:
    """Return the line about the first of these files whose file system is full; empty: none is.

    A program that can't write its error to such a file ends without a message.
    """
    for path in filter(None, paths):
        folder = os.path.dirname(path)
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        least = min(LEAST_FREE_BYTES, found.f_blocks * found.f_frsize // 8)
        has_no_file = found.f_files > 0 and not found.f_favail
        if found.f_bavail * found.f_frsize < least or has_no_file:
            return str(storage_error(folder, OSError(errno.ENOSPC, "")))
    return ""


def _make_temporary(temp_dir: str, name: str) -> str:
    """Make a temporary directory in the first place that can be written, and return its path.

    The places are `temp_dir`, /tmp and /var/tmp. Never makes the parent: a mistake in TMPDIR must
    not fill a disk somewhere else. Raises OSError.
    """
    parent = os.path.abspath(temp_dir)
    failure: OSError | None = None
    for place in (parent, *TEMPORARY_PLACES):
        try:
            return make_private_dir(os.path.join(place, name))
        except OSError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _make_numbered(stem: str) -> str:
    number, path = 1, stem
    while True:
        try:
            os.mkdir(path, mode=0o700)
        except FileExistsError:
            number += 1
            path = f"{stem}.{number}"
            continue
        return path


def _make(path: str) -> bool:
    """Make the directory with mode 0700; return whether it was not there before."""
    try:
        os.mkdir(path, mode=0o700)
    except FileExistsError:
        return False
    return True


def set_aside(path: str) -> None:
    """Rename a file, if it exists, to `NAME.1`, or with the first free number. Raises OSError."""
    if not os.path.exists(path):
        return
    number = 1
    while os.path.exists(f"{path}.{number}"):
        number += 1
    try:
        os.rename(path, f"{path}.{number}")
    except FileNotFoundError:
        pass


def _point(link: str, target: str) -> None:
    """Make or replace a symbolic link to this target, for convenience.

    Errors are ignored: where links can't be made, there is none.
    """
    fresh = f"{link}.new"
    try:
        try:
            os.symlink(target, fresh)
        except FileExistsError:  # of an agent that was killed in between
            os.unlink(fresh)
            os.symlink(target, fresh)
        os.rename(fresh, link)
    except OSError:
        pass


def safe_name(run_id: str) -> str:
    """Return the run id with `_` for each character but ASCII letters, digits, `-`, `_` and `.`.

    At most 64 characters, without leading dots; `job` if nothing is left.
    """
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in run_id)
    return safe.lstrip(".")[:64] or "job"
