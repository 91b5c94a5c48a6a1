"""What is done once in many versions of a register in a directory: a hint for readers, and
removing what none of them needs any more.

A slot must not become free again for anybody: a directory of versions is removed as a whole, when
it is two behind and nothing was added to it for ten minutes. First it loses its name, durably, then
its files from the first to the last, and older directories go before younger ones: who still finds
a version knows that nothing after it was removed.
"""

from __future__ import annotations

import os
from contextlib import suppress

from rallypoint.register.directory.chain import HEAD, serial_of
from rallypoint.register.directory.files import Files

KEPT_S = 600.0
"""Longer than a view is believed (`BELIEVED_S`), a listing may be stale, and a request on its way
may still be executed, together."""
TEMPORARY, REMOVED = "new-", "gone-"
BEHIND = 2


def temporary(files: Files, path: str) -> str:
    """The path of a new file in a job's directory, which is removed if it is left there."""
    return os.path.join(path, TEMPORARY + files.random_bytes(8).hex())


def tidy(files: Files, path: str, directory: str, now: float) -> None:
    """Have the head of a job name a directory that has its first version, and remove what is old.

    `now` is on the file system's clock. May be interrupted, and done by several at once. Raises
    OSError.
    """
    new = temporary(files, path)
    files.write(new, directory.encode())
    files.rename(new, os.path.join(path, HEAD))
    files.sync(path)  # without a head, a reader takes it that nothing was removed yet
    _collect(files, path, serial_of(directory), now)


def _collect(files: Files, path: str, serial: int, now: float) -> None:
    names = sorted(files.names(path))
    for name in names:
        if name.startswith(REMOVED):
            _empty(files, os.path.join(path, name))
        elif name.startswith(TEMPORARY):
            with suppress(FileNotFoundError):
                if now - files.changed_at(os.path.join(path, name)) > KEPT_S:
                    files.remove(os.path.join(path, name))
    old = [name for name in names if 0 < serial_of(name) <= serial - BEHIND]
    for name in sorted(old, key=serial_of):
        there, away = os.path.join(path, name), os.path.join(path, REMOVED + name)
        with suppress(FileNotFoundError):
            if now - files.changed_at(there) <= KEPT_S:
                return
            files.rename(there, away)
            files.sync(path)
            _empty(files, away)


def _empty(files: Files, path: str) -> None:
    with suppress(FileNotFoundError):
        for name in sorted(files.names(path)):
            with suppress(FileNotFoundError):
                files.remove(os.path.join(path, name))
        files.remove_directory(path)
