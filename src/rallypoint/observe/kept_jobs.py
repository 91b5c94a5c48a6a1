"""The directories of kept jobs (`core/watch/kept_jobs.py`) in the state directory of a user.

Everything here may block on a slow disk, so it runs in a thread of its own. Tracebacks are in what
is written: it is for its user alone. No link is followed, and what others have made is left alone.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from rallypoint.core.json_reader import UnreadableJsonError, read_as
from rallypoint.core.watch import kept_jobs as rules
from rallypoint.core.watch.history_file import HistoryLine, as_object
from rallypoint.core.watch.kept_jobs import KeptDir, NodeNote
from rallypoint.files import put_whole, safe_open, write_all
from rallypoint.observe.printing import json_text

_NOTES_MAX = 2000
_NOTE_BYTES = 1_000_000
_LEAST_BYTES = 4000


def make_directory(path: str) -> None:
    """Make the directory of a job if it is missing, and then remove others. Raises OSError.

    If all together are too many or too large, `rules.to_remove` says which are removed.
    """
    root = os.path.dirname(path)
    os.makedirs(os.path.dirname(root), 0o700, exist_ok=True)
    for folder in (root, path):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            if folder == path:
                _remove_old(root, os.path.basename(path))
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{folder} is no directory of this user")


def write_note(path: str, note: NodeNote) -> None:
    """Write the note of a node, in place of an earlier one. Raises OSError.

    If it can't be written, it is written without its output; if that fails too, the earlier file is
    overwritten with that.
    """
    name, room = os.path.join(path, rules.node_file(note.node)), rules.room_of(note.nodes)
    try:
        _replace(name, msgspec.json.encode(rules.fitted(note, room)))
    except OSError:
        brief = rules.fitted(replace(note, output=()), min(room, _LEAST_BYTES))
        data = msgspec.json.encode(brief)
        try:
            _replace(name, data)
        except OSError as error:
            try:
                _overwrite(name, data)
            except OSError:
                raise error from None


def append_lines(fd: int, lines: Sequence[HistoryLine]) -> None:
    """Append lines of a history to a file, starting on a new line. Raises OSError."""
    data = "".join(json_text(as_object(line)) + "\n" for line in lines).encode()
    size = os.fstat(fd).st_size
    was_cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    write_all(fd, b"\n" * was_cut + data)


def append(path: str, lines: Sequence[HistoryLine]) -> None:
    """Append to the history in this directory. Raises OSError.

    A history that has become too long is cut.
    """
    name = os.path.join(path, rules.HISTORY)
    fd = safe_open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        append_lines(fd, lines)
        size = os.fstat(fd).st_size
        whole = os.pread(fd, size, 0) if size > rules.HISTORY_BYTES else b""
    finally:
        os.close(fd)
    if whole:
        _replace(name, rules.cut_history(whole))


def directories(root: str) -> list[KeptDir]:
    """Return the directories of kept jobs, the newest first. Never raises OSError."""
    found = []
    for name in _names(root):
        if rules.is_kept_name(name) and _is_own_directory(os.path.join(root, name)):
            files = [
                os.lstat(os.path.join(root, name, each))
                for each in _names(os.path.join(root, name))
                if rules.is_kept_file(each) and os.path.lexists(os.path.join(root, name, each))
            ]
            newest = max((each.st_mtime for each in files), default=0.0)
            found.append(KeptDir(name, newest, sum(each.st_size for each in files)))
    return sorted(found, key=lambda one: one.newest, reverse=True)


def notes_in(path: str, most: int = _NOTES_MAX) -> list[NodeNote]:
    """Read at most `most` notes of nodes in a directory. Unreadable ones are passed over."""
    found: list[NodeNote] = []
    for name in sorted(_names(path)):
        if not name.endswith(".json") or not rules.is_kept_file(name) or len(found) >= most:
            continue
        if (note := _read_note(os.path.join(path, name))) is not None:
            found.append(note)
    return found


def note_of(path: str, node: str) -> NodeNote | None:
    """Return the note of this node in a job's directory; None if there is no readable note.

    Never raises OSError.
    """
    return _read_note(os.path.join(path, rules.node_file(node)))


def _read_note(path: str) -> NodeNote | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return read_as(file.read(_NOTE_BYTES), NodeNote)
    except (OSError, UnreadableJsonError):
        return None


def find(root: str, job: str | None, endpoint: str | None) -> str:
    """Return the directory of the newest job that matches; empty if there is none.

    None as the job or the endpoint matches any.
    """
    for one in directories(root):
        path = os.path.join(root, one.name)
        notes = notes_in(path, 1)
        if notes and rules.is_meant(notes[0], job, endpoint):
            return path
    return ""


def _remove_old(root: str, own: str) -> None:
    """Remove the directories beyond the limits, unless another agent does so now.

    Never raises OSError.
    """
    try:
        lock = safe_open(os.path.join(root, ".lock"), os.O_RDWR | os.O_CREAT)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in rules.to_remove(directories(root), own):
            folder = os.path.join(root, name)
            for each in filter(rules.is_kept_file, _names(folder)):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, each))
            with suppress(OSError):
                os.rmdir(folder)  # What somebody else has put there stays.
    except OSError:
        pass  # Another agent does it.
    finally:
        os.close(lock)


def _replace(path: str, data: bytes) -> None:
    """Replace the file. Raises OSError; then nothing has changed."""
    draft = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(draft)
    put_whole(path, draft, data)


def _overwrite(path: str, data: bytes) -> None:
    """Overwrite the file. Raises OSError.

    What fits into the blocks that a file has needs no space.
    """
    with os.fdopen(safe_open(path, os.O_RDWR), "r+b") as file:
        file.write(data)
        file.truncate()


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _is_own_directory(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
