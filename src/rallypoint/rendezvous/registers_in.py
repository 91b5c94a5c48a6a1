"""Which jobs have their registers in a directory, for a process that is no node of any, and stands
ready to lead them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from rallypoint.coordinator.candidates import Candidates
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.coordinator.led_jobs import LedJobs
from rallypoint.coordinator.register_record import decode
from rallypoint.errors import RallypointError
from rallypoint.rendezvous.directory_backend import job_directory
from rallypoint.rendezvous.directory_files import Files, LocalFiles
from rallypoint.rendezvous.version_chain import VersionChain
from rallypoint.wire.address import Address
from rallypoint.wire.version_file import UnsealedFormat

PREFIX = "rallypoint-"
DIAL_TIMEOUT_S = 2.0
"""A leader whose machine is gone does not answer."""
_HASH = 33  # with the hyphen before it


class RegistersIn:
    """The registers in one directory."""

    def __init__(self, directory: str, files: Files) -> None:
        self._directory, self._files = directory, files
        self._changed_at: dict[str, float] = {}

    def changed(self) -> list[str]:
        """The run ids of the jobs whose registers have changed since the last call. What can't be
        read is left out. Blocks."""
        before, self._changed_at = self._changed_at, {}
        found: list[str] = []
        with suppress(OSError):
            for name in sorted(self._files.names(self._directory)):
                if not name.startswith(PREFIX) or len(name) <= len(PREFIX) + _HASH:
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
        readable = name[len(PREFIX) : -_HASH]
        if job_directory(readable) == name:
            return readable
        with suppress(RallypointError):
            path = os.path.join(self._directory, name)
            self._files.check_own(path)
            # Nobody relies on what is not authenticated: a register is opened by the name found.
            tip = VersionChain(self._files, path, UnsealedFormat()).tip()
            job = None if tip is None else decode(tip.content).job
            if job is not None and job_directory(job.settings.run_id) == name:
                return job.settings.run_id
        return ""


def stand_ready(
    directory: str,
    led: LedJobs,
    jobs: HostedJobs,
    lookup_token: Callable[[str], bytes] | None,
) -> Candidates:
    """For the jobs with registers in this directory. `jobs` hosts those that this process comes to
    lead. `lookup_token`: the token of a run id; None: nothing is proved."""

    async def dial_leader(run_id: str, addresses: Sequence[Address]) -> ClientConnection:
        token = None if lookup_token is None else lookup_token(run_id)
        return await dial(addresses, run_id, token, DIAL_TIMEOUT_S)

    return Candidates(led, jobs, RegistersIn(directory, LocalFiles()).changed, dial_leader)
