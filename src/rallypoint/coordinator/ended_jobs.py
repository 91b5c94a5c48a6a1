"""Lives of jobs that are over, while somebody has yet to hear how they ended.

Of one job a few are held: it must not crowd out the others, however often it is begun and left. The
oldest make room, and who belongs to one of them hears how it ended when it comes again.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.core.model import SharedSettings

ENDED_MAX = 4
"""So many of one job."""


class EndedJobs:
    """For the thread of the loop."""

    def __init__(self) -> None:
        self._jobs: list[HostedJob] = []

    def __iter__(self) -> Iterator[HostedJob]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def hold(self, job: HostedJob) -> None:
        """Until it is empty, or newer ones of the same job need its place."""
        self._jobs.append(job)
        own = [held for held in self._jobs if held.settings.run_id == job.settings.run_id]
        for oldest in own[:-ENDED_MAX]:
            self._jobs.remove(oldest)
            oldest.close()

    def empty(self, job: HostedJob) -> bool:
        """Everybody has heard. False: it is none of these."""
        if job not in self._jobs:
            return False
        self._jobs.remove(job)
        job.close()
        return True

    def of_agent(self, run_id: str, incarnation: str) -> HostedJob | None:
        """The one that this very agent belongs to."""
        own = (job for job in self._jobs if job.settings.run_id == run_id)
        return next((job for job in own if job.knows(incarnation)), None)

    def find(self, settings: SharedSettings, incarnation: int) -> HostedJob | None:
        """The life of this number."""
        own = (job for job in self._jobs if job.settings == settings)
        return next((job for job in own if job.life.incarnation == incarnation), None)

    def close(self) -> None:
        """Drop all."""
        for job in self._jobs:
            job.close()
        self._jobs.clear()
