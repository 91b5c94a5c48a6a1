"""The directory of a coordinator's registers: made, checked, and swept.

It is checked before it is relied on, and rid of what no job needs any more.

The register of a job is taken away whole: it gets another name first, so that from then on nobody
writes to it, and a job of that id begins anew. If it turns out that somebody had just written to
it, it gets its name back. What is left of one that was being removed is removed later.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress

from rallypoint.errors import InfrastructureError, UsageError
from rallypoint.register.directory.files import FIXES, Files, why_not_own

GONE = "gone-"
PROBE = "probe-"
SLOW_S = 1.0
"""The seconds for writing a small file durably above which the user gets a remark."""
RETENTION_S = 7 * 86400.0
"""The seconds after which a register that did not change is removed. Its job then has neither
coordinator nor node."""
_REGISTER = re.compile(r"rallypoint-.*-[0-9a-f]{32}")
_FIXES = FIXES | {
    errno.EPERM: "its file system has no hard links: name another directory",
}
_OF_THE_PERSON = (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.ENAMETOOLONG, errno.ELOOP)


def prepare(path: str, files: Files, flag: str) -> list[str]:
    """Make the directory and its parents, and check that registers can be kept there. Blocks.

    Several nodes may do so at once. `flag` is the option that named the directory; empty: none.
    Returns remarks for the user. Raises UsageError for an error that the user can fix,
    InfrastructureError for another one of the system.
    """
    what = f"{flag} {path}".lstrip()
    try:
        _make(path)
        if why := why_not_own(os.stat(path), what, "name another directory"):
            raise UsageError(why)
        took_s = probe(path, files)
    except (NotADirectoryError, FileExistsError) as error:
        raise UsageError(
            f"{what}: {error.filename or path} is not a directory: name a directory, or a path "
            "where one can be made"
        ) from error
    except OSError as error:
        number = error.errno or 0
        fix = _FIXES.get(number, "see that it is mounted, or name another directory")
        text = f"{what}: can't keep jobs there: {os.strerror(number)}: {fix}"
        kind = UsageError if number in _OF_THE_PERSON else InfrastructureError
        raise kind(text) from error
    if took_s <= SLOW_S:
        return []
    return [f"{what}: writing to it took {took_s:.1f} s: each decision about a job takes that long"]


def _make(path: str) -> None:
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    if above != path:
        _make(above)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def probe(path: str, files: Files) -> float:
    """Write a durable file there and link it, as a register does; then remove both names.

    Return the seconds that writing and linking took. Raises OSError.
    """
    began_at = files.now()
    name = os.path.join(path, PROBE + files.random_bytes(8).hex())
    linked = name + "-linked"
    try:
        files.write(name, b"rallypoint")
        files.link(name, linked)
        files.sync(path)
        return files.now() - began_at
    finally:
        for each in (linked, name):
            with suppress(OSError):
                files.remove(each)


def remove_register(files: Files, path: str, is_old: Callable[[str], bool]) -> bool:
    """Remove the register of one job at this path, unless it turns out to be in use.

    It is moved away first, so that no other process finds it. Then `is_old` is called with its new
    path; False or an error puts the register back. Return whether it was removed. Raises OSError,
    and what `is_old` raises; what is left of a register that was moved away `sweep` removes later.
    """
    above, name = os.path.split(path)
    away = os.path.join(above, f"{GONE}{files.random_bytes(8).hex()}-{name}")
    files.rename(path, away)
    stays = True
    try:
        stays = not is_old(away)
    finally:
        if stays:
            files.rename(away, path)
    if stays:
        return False
    files.sync(above)
    _remove_tree(files, away)
    return True


def sweep(files: Files, path: str) -> int:
    """Remove the registers in this directory that have not changed for a week; return their number.

    Age is measured on the file system's clock. Left-overs of an interrupted removal or check are
    removed after the same time, because another one may be running. What can't be removed stays.
    """
    found = 0
    with suppress(OSError):
        now = _time_there(files, path)
        for name in sorted(files.names(path)):
            there = os.path.join(path, name)
            with suppress(OSError):
                if name.startswith(GONE) and _is_unused(files, there, now):
                    _remove_tree(files, there)
                elif name.startswith(PROBE) and now - files.changed_at(there) > RETENTION_S:
                    files.remove(there)
                elif _REGISTER.fullmatch(name) and _is_unused(files, there, now):
                    found += remove_register(files, there, lambda at: _is_unused(files, at, now))
    return found


def _time_there(files: Files, path: str) -> float:
    probe = os.path.join(path, PROBE + files.random_bytes(8).hex())
    try:
        return files.write(probe, b"")
    finally:
        files.remove(probe)


def _is_unused(files: Files, register: str, now: float) -> bool:
    paths = [register, *(os.path.join(register, name) for name in files.names(register))]
    return all(now - files.changed_at(path) > RETENTION_S for path in paths)


def _remove_tree(files: Files, path: str) -> None:
    for name in sorted(files.names(path)):
        below = os.path.join(path, name)
        try:
            files.remove(below)
        except (IsADirectoryError, PermissionError):  # POSIX has the latter for directories
            _remove_tree(files, below)
    files.remove_directory(path)
