"""The registers of all jobs in one directory, for a process that is no node of any
(`rallypoint serve`)."""

from __future__ import annotations

import os
from contextlib import suppress

from rallypoint.coordinator.register_record import decode
from rallypoint.errors import RallypointError
from rallypoint.rendezvous import data_directory
from rallypoint.rendezvous.directory_backend import DirectoryBackend, job_directory
from rallypoint.rendezvous.directory_files import LocalFiles
from rallypoint.rendezvous.version_chain import VersionChain
from rallypoint.wire.version_file import UnsealedFormat

PREFIX = "rallypoint-"
_HASH = 33  # with the hyphen before it


class RegistersIn:
    """The registers in one directory: `places.Registers`."""

    def __init__(self, directory: str, flag: str) -> None:
        """`flag`: how a person gave the directory."""
        self._directory, self._files, self._flag = directory, LocalFiles(), flag
        self._changed_at: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The directory."""
        return self._directory

    def prepare(self) -> list[str]:
        """See `data_directory.prepare`."""
        return data_directory.prepare(self._directory, self._files, self._flag)

    def open(self, run_id: str, token: bytes | None) -> DirectoryBackend:
        """See `places.Registers`, also for the other methods."""
        return DirectoryBackend(self._directory, run_id, token)

    def sweep(self) -> None:
        data_directory.sweep(self._files, self._directory)

    def changed(self) -> list[str]:
        """The run ids of the jobs whose registers have changed since the last call. What can't be
        read is left out. Blocks."""
        before, self._changed_at = self._changed_at, {}
        found: list[str] = []
        with suppress(OSError):
            for name in sorted(self._files.names(self._directory)):
                if not is_register(name):
                    continue
                with suppress(OSError):
                    # Every version is written in it first, under a name that is removed again.
                    changed_at = self._files.changed_at(os.path.join(self._directory, name))
                    if before.get(name) != changed_at and (run_id := self._run_id(name)):
                        found.append(run_id)
                    elif before.get(name) != changed_at:
                        continue  # The record of a job that has just begun does not name it yet.
                    self._changed_at[name] = changed_at
        return found

    def _run_id(self, name: str) -> str:
        """Of the job with this directory; empty: it is not known."""
        if readable := readable_run_id(name):
            return readable
        with suppress(RallypointError):
            path = os.path.join(self._directory, name)
            self._files.check_own(path)
            tip = VersionChain(self._files, path, UnsealedFormat()).tip()
            run_id = "" if tip is None else recorded_run_id(tip.content)
            return run_id if job_directory(run_id) == name else ""
        return ""


def is_register(name: str) -> bool:
    """Whether a job's register may have this name."""
    return name.startswith(PREFIX) and len(name) > len(PREFIX) + _HASH


def readable_run_id(name: str) -> str:
    """Of the job whose register has this name; empty: the name does not tell."""
    readable = name[len(PREFIX) : -_HASH]
    return readable if job_directory(readable) == name else ""


def recorded_run_id(content: bytes) -> str:
    """Of the job with this record, which nobody has authenticated: the name of its register has to
    agree. Empty: of a job that has just begun. Raises RallypointError for what is no record."""
    job = decode(content).job
    return "" if job is None else job.settings.run_id
