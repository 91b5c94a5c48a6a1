"""Where the versions of a register lie in a directory, and how the newest one is found.

    first                 the first version
    00000001-<random>/    a directory of versions: 000001, 000002 and so on
    00000002-<random>/    the next one, which the last version of the one before names
    head                  the name of a late directory: a hint

A version is written once, and its slot never becomes free again, so the first free slot is where
the next version goes. What a reader does not find it has failed to read: a directory with at least
one version belongs to the chain, an empty one may be left from a writer that lost, and only whole
directories are removed, in order and long after their last version.

A slot must not become free again for anybody: a directory of versions is removed as a whole, when
it is two behind and nothing was added to it for ten minutes. First it loses its name, durably, then
its files from the first to the last, and older directories go before younger ones: who still finds
a version knows that nothing after it was removed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rallypoint.errors import RecordError, RendezvousConnectionError
from rallypoint.register.directory.files import Files
from rallypoint.register.version_file import UnreadableVersionError, VersionFile, VersionFormat

BELIEVED_S = 300.0
"""The seconds after reading a version during which no directory of versions can be removed that was
not full at that time."""
HEAD = "head"
KEPT_S = 600.0
"""The seconds without a change after which a directory of versions is removed, if it is two or more
behind the newest. Longer than the sum of `BELIEVED_S`, the age of a stale listing, and the delay of
a request."""
TEMPORARY, REMOVED = "new-", "gone-"
BEHIND = 2
_DIRECTORY = re.compile(r"([0-9]{8,})-[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9]{6,}")


class VersionSlot(NamedTuple):
    """A place for one version in a job's directory. Later slots are greater."""

    serial: int
    directory: str
    number: int

    @property
    def name(self) -> str:
        """The path of the slot below the job's directory."""
        return f"{self.directory}/{self.number:06}" if self.directory else "first"


FIRST = VersionSlot(0, "", 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """The token of a version of a register in a directory, as a process has read or stored it."""

    slot: VersionSlot
    nonce: bytes
    following: VersionSlot = field(compare=False)
    """The slot of the next version."""
    seen_at: float = field(compare=False)
    """A time at which no version had followed this one yet, in seconds by `Files.now`."""
    is_durable: bool = field(compare=False)
    """Whether the version is known to survive a loss of power."""


class Version(NamedTuple):
    """A version that was read or stored: its token and its content."""

    seen: Seen
    content: bytes


def serial_of(name: str) -> int:
    """Return the number of a directory of versions, from 1.

    0 if this is the name of something else.
    """
    match = _DIRECTORY.fullmatch(name)
    return 0 if match is None else int(match[1])


def directory_name(serial: int, random: bytes) -> str:
    """Return a name for a new directory of versions, from its number and 8 random bytes."""
    return f"{serial:08}-{random.hex()}"


class VersionChain:
    """The versions of one job's register, as one process reads them. It remembers the newest one.

    Its methods that read may raise OSError, RendezvousConnectionError if something is missing that
    must exist, and RecordError for a file that is not a version of this job.
    """

    def __init__(self, files: Files, path: str, layout: VersionFormat) -> None:
        """Make the chain of a job; `path` is the job's directory; `layout` decodes versions."""
        self._files, self._path, self._layout = files, path, layout
        self.newest: Version | None = None

    def path(self, *names: str) -> str:
        """Return the path of these names, one below the other, in the job's directory."""
        return os.path.join(self._path, *names)

    def tip(self) -> Version | None:
        """Return the newest version; None if no first version was found.

        A cached view may hide the first version; only an attempt to link it decides. Two operations
        of the file system are enough if the newest version was seen within `BELIEVED_S`, and none
        followed.
        """
        known = self.newest
        if known is not None and self._files.now() - known.seen.seen_at < BELIEVED_S:
            tip = self._walk(known)
            is_cut = tip.seen == known.seen and self.is_cut(known.seen)
            if not is_cut and self._files.now() - known.seen.seen_at < BELIEVED_S:
                self.newest = tip
                return tip
        self.newest = None
        found = self._find()
        if found is not None:
            tip = self._walk(found)
            # What follows it was free, not removed: directories are emptied in order.
            self.check_unremoved(tip.seen)
            self.newest = tip
        return self.newest

    def read(self, slot: VersionSlot) -> Version | None:
        """Return the version in a slot; None if the file system finds none."""
        seen_at = self._files.now()
        path = self.path(slot.name)
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            return None
        try:
            version = self._layout.decode(slot.name, data)
        except UnreadableVersionError as error:
            raise RecordError(f"{path} {error}") from error
        following = following_slot(slot, version)
        return Version(Seen(slot, version.nonce, following, seen_at, False), version.content)

    def _walk(self, version: Version) -> Version:
        while True:
            looked_at = self._files.now()
            following = self.read(version.seen.following)
            if following is None:
                return seen_then(version, looked_at)
            version = following

    def _find(self) -> Version | None:
        """Return a version of the chain, a late one if possible; None: no version was found.

        Raises RendezvousConnectionError if there must have been some.
        """
        head = self._head()
        names = self._names("") or []
        listed = sorted((name for name in names if serial_of(name)), key=serial_of, reverse=True)
        for directory in listed if head is None else [head, *listed]:
            if (last := self._last_in(directory)) is not None:
                return last
        first = self.read(FIRST)
        if first is None and head is None:
            return None
        # Without a head nothing was removed yet.
        if first is None or head is not None:
            raise _failed(self.path(), "no directory in it has versions, though there were some")
        return first

    def _head(self) -> str | None:
        try:
            name = self._files.read(self.path(HEAD)).decode("ascii", "replace")
        except FileNotFoundError:
            return None
        return name if serial_of(name) else None

    def _names(self, directory: str) -> list[str] | None:
        try:
            return self._files.names(self.path(directory))
        except FileNotFoundError:
            return None

    def _last_in(self, directory: str) -> Version | None:
        numbers = [int(name) for name in self._names(directory) or [] if _NUMBER.fullmatch(name)]
        if not numbers:
            return None
        slot = VersionSlot(serial_of(directory), directory, max(numbers))
        if (version := self.read(slot)) is None:
            raise _failed(self.path(slot.name), "it was listed and is not there")
        return version

    def is_cut(self, seen: Seen) -> bool:
        """Return whether `seen`, the newest known version, is gone while there is a first one.

        Then the last versions were removed, an older copy of the directory was restored, or the
        register was begun anew.
        """
        again = self.read(seen.slot)
        is_there = again is not None and again.seen == seen
        return not is_there and self.read(FIRST) is not None

    def check_unremoved(self, seen: Seen) -> None:
        """Raise RendezvousConnectionError if the version that was seen has been removed.

        The very first version is never removed on its own: for it, the directory of its successor
        must exist as well.
        """
        again = self.read(seen.slot)
        is_there = again is not None and again.seen == seen
        if is_there and seen.slot == FIRST:  # which is never removed
            is_there = self._names(seen.following.directory) is not None
        if not is_there:
            raise _failed(self.path(seen.slot.name), "what follows it has been removed")


def seen_then(version: Version, seen_at: float) -> Version:
    """Return the same version, with `seen_at` as the time at which it was seen."""
    return version._replace(seen=replace(version.seen, seen_at=seen_at))


def following_slot(slot: VersionSlot, version: VersionFile) -> VersionSlot:
    """Return the slot where the successor of the version in `slot` goes."""
    if version.following:
        return VersionSlot(slot.serial + 1, version.following, 1)
    return slot._replace(number=slot.number + 1)


def _failed(path: str, why: str) -> RendezvousConnectionError:
    return RendezvousConnectionError(
        f"can't read the register: {path}: {why}: it is tried again; see that all nodes mount the "
        "same file system"
    )


def temporary(files: Files, path: str) -> str:
    """Return a new path for a temporary file in a job's directory; makes no file.

    Left-over files are removed later by `tidy`.
    """
    return os.path.join(path, TEMPORARY + files.random_bytes(8).hex())


def tidy(files: Files, path: str, directory: str, now: float) -> None:
    """Write the name of this directory of versions into the job's head file, and remove old ones.

    These are at least two behind it, and unchanged for `KEPT_S`. Temporary files of that age go,
    too. `directory` has its first version. `now` is on the file system's clock. May be interrupted,
    and run by several processes at once. Raises OSError.
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
