"""The engine of directories: all records in one, which is made if there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from rallypoint.core.text import named
from rallypoint.errors import RallypointError, RendezvousConnectionError, UsageError
from rallypoint.file_systems import (
    lies_here,
    lies_on,
    local_file_system,
    why_not_there,
)
from rallypoint.register.directory import upkeep
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.chain import VersionChain
from rallypoint.register.directory.files import LocalFiles
from rallypoint.register.engines import LifeLocks, Use, Wording
from rallypoint.register.record import ChangedRecords, recorded_run_id
from rallypoint.register.version_file import UnsealedFormat, is_register, readable_run_id


class DirectoryEngine:
    """The engine `file`, which keeps the records of jobs in one shared directory."""

    name = "file"

    def __init__(self, where: str, settings: Mapping[str, str], use: Use) -> None:
        self._path, self._use, self._files = where, use, LocalFiles()
        self._changed = ChangedRecords(self._run_id_of)

    @property
    def where(self) -> str:
        return f"the directory {self._path}"

    def prepare(self) -> list[str]:
        """Make the directory if it is missing, and check it; see `Engine`.

        Returns a remark if writing is slow. A node of a job also gets one if the directory was
        made. If the job may have several nodes, it gets one if only this machine can see the
        directory.
        """
        if not self._use.run_id:
            return upkeep.prepare(self._path, self._files, "")
        path, (least, most) = self._path, self._use.nodes
        is_shared = most > 1
        if is_shared and (why := why_not_there(path, may_part=least < most)):
            raise RendezvousConnectionError(why)
        if os.path.isfile(path):
            raise UsageError(
                f"{path}: it is a file, as earlier versions used for {named.rdzv_backend} file: "
                "name a directory that all nodes share. Only DynamicRendezvousHandler of the "
                "library takes a file"
            )
        missing = _missing(path)
        remarks = upkeep.prepare(path, self._files, "")
        if is_shared and (local := local_file_system(path)):
            remarks.append(lies_here(path, local))
        if missing:
            made = f"{path}, which was missing"
            if len(missing) > 1:
                made = f"{path}, and {missing[-1]} above it, which were missing"
            shared = ": all nodes must see this directory" if is_shared else ""
            remarks.append(f"made {made}{shared}")
        return remarks

    def open(self, run_id: str, token: bytes | None) -> DirectoryBackend:
        return DirectoryBackend(self._path, run_id, token)

    def sweep(self) -> None:
        upkeep.sweep(self._files, self._path)

    def wording(self) -> Wording:
        check = "see that its file server is up, or name another directory"
        return Wording(check, self._same, self._apart, has_fixes=True)

    def _same(self) -> str:
        return f"{self._path}{lies_on(self._path)} is the same directory on all of them"

    def _apart(self) -> str:
        if not (local := local_file_system(self._path)):
            return ""
        fix = "if other nodes run on other machines, name a directory that all of them share"
        return f"{fix}: {lies_here(self._path, local)}"

    def life_locks(self) -> LifeLocks:
        """Take a lock for this process there, and return the locks; see `LockingEngine`."""
        from rallypoint.register.directory.life_locks import DirectoryLocks  # `serve` alone has any

        return DirectoryLocks(self._path)

    def changed(self) -> list[str]:
        return self._changed.look(self._registers())

    def _registers(self) -> Iterator[tuple[str, float]]:
        names: list[str] = []
        with suppress(OSError):
            names = sorted(filter(is_register, self._files.names(self._path)))
        for name in names:
            with suppress(OSError):
                # Every version is written in it first, under a name that is removed again.
                yield name, self._files.changed_at(os.path.join(self._path, name))

    def _run_id_of(self, name: str) -> str:
        if run_id := readable_run_id(name):
            return run_id
        with suppress(OSError, RallypointError):
            path = os.path.join(self._path, name)
            self._files.check_own(path)
            tip = VersionChain(self._files, path, UnsealedFormat()).tip()
            return "" if tip is None else recorded_run_id(tip.content, name)
        return ""


def _missing(path: str) -> list[str]:
    """Return the absolute `path` and the directories above it, as far as they do not exist.

    The highest is the last.
    """
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing
