"""The jobs that a coordinator hosts, one or any: what decides for them and records them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from rallypoint.clocks import wall_ms
from rallypoint.coordinator.connection import ServerConnection, refuse_answer
from rallypoint.coordinator.watching import JobWatch
from rallypoint.core import job as machine
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobState
from rallypoint.core.model import NONCE_BITS, UNNAMED_RUN_ID, Epoch, SharedSettings
from rallypoint.core.sessions import JobStep
from rallypoint.core.text import quoted_job
from rallypoint.core.watch.history_file import HistoryLine

if TYPE_CHECKING:  # Most coordinators have no registers.
    from rallypoint.coordinator.leading.leadership import Leadership


class Leaderships(Protocol):
    """The jobs that a coordinator leads, each by a record that other coordinators see."""

    def of(self, run_id: str) -> Leadership | None:
        """Return the leadership of a job; None: this coordinator does not lead the job."""

    async def lead(self, run_id: str) -> Leadership:
        """Become the leader of this job, however long that takes. Raises RallypointError."""

    def forget(self, run_id: str) -> None:
        """Note that this coordinator no longer leads the job."""

    def remove(self, run_id: str) -> None:
        """Note that the job's record is no longer needed here.

        It is removed, unless other coordinators or late agents may still read it.
        """

    async def vacate(self) -> None:
        """Give up all jobs, and write that in their records."""


class HistorySink(Protocol):
    """Files in which the histories of jobs are kept."""

    @property
    def is_light(self) -> bool:
        """Whether the files have to cost little, because no option asks for them."""

    def write(self, run_id: str, line: HistoryLine) -> None:
        """Append the line to this job's file soon; it is lost if too many wait. Never blocks."""

    def tell_faults(
        self, call_soon: Callable[..., object], on_record: Callable[[str, Record], None]
    ) -> None:
        """Have `on_record` called, through `call_soon`, when a file can't be written.

        After one such fault the next ones may stay untold, until a line was written.
        """


def random_epoch() -> int:
    """Return a random epoch of number 0, for a coordinator that no other one can take over from.

    It is unique, so that agents notice another coordinator.
    """
    return Epoch(0, int.from_bytes(os.urandom(NONCE_BITS // 8), "big")).as_int()


class Hosting(Struct, frozen=True):
    """The jobs that a coordinator hosts, and how it hosts them."""

    on_record: Callable[[str, Record], None]
    """Called with the run id and the event; the run id is empty for an event of no single job."""
    only: SharedSettings | None = None
    """The settings of the one job to host; None: any job."""
    machine: JobStep = machine.step
    """The step function of the state machine that decides for every job."""
    led: Leaderships | None = None
    """The jobs that this coordinator leads by records in registers, so that another one can take
    them over; None: no other one can. The job `only` is among them from the beginning."""
    epoch: Callable[[], int] = random_epoch
    """Returns a unique epoch for this coordinator: the number by which agents tell coordinators
    apart."""
    wall_ms: Callable[[], int] = wall_ms
    """Returns the wall-clock time in milliseconds."""
    own_agent: str = ""
    """The unique id (incarnation) of the agent in whose process the coordinator runs; empty: there
    is none, or it is not known yet."""
    former: JobState | None = None
    """The state of the job `only` from a former coordinator that is gone; nothing runs there. None:
    the job begins."""
    history: HistorySink | None = None
    """Where histories of jobs are written; None: nowhere."""
    who_leads: Callable[[str], Awaitable[tuple[str, bool]]] | None = None
    """Returns, for the run id of a job that this coordinator does not lead, a sentence about its
    leader and whether the sentence is final. None: no other coordinator can lead."""

    def keep_history(self, watch: JobWatch, *, took_over: bool = False) -> None:
        """Write the history of this job from now on, if there is a `history`.

        `took_over`: another coordinator had led the job.
        """
        if self.history is not None:
            call_soon = asyncio.get_running_loop().call_soon_threadsafe
            self.history.tell_faults(call_soon, self.on_record)
            write, is_light = partial(self.history.write, watch.run_id), self.history.is_light
            watch.write_to(write, took_over=took_over, is_light=is_light)

    def refusal(self, run_id: str) -> str:
        """Return why a job of this name can't be hosted here; empty: it can."""
        if self.only is not None:
            other = self.only.run_id
            if run_id == other:
                return ""
            return (
                f"this port is used by {quoted_job(other)}, not {quoted_job(run_id)}: "
                f"{give_id(other)} to take part in it, or choose another port"
            )
        if run_id != UNNAMED_RUN_ID:
            return ""
        return (
            "this coordinator (rallypoint serve) serves many jobs: give every node of this job "
            "the same --rdzv-id, like --rdzv-id my-job-1"
        )


async def turn_away(hosting: Hosting, connection: ServerConnection, run_id: str) -> None:
    """Refuse a person who asks for a job that this coordinator does not host, and disconnect.

    Waits for `who_leads`, where another coordinator may lead the job.
    """
    text, is_final = f"this coordinator does not host {quoted_job(run_id)}: check --rdzv-id", False
    if hosting.only is not None:
        other = hosting.only.run_id
        text = f"this coordinator hosts {quoted_job(other)}: {give_id(other)}"
    elif hosting.who_leads is not None:
        text, is_final = await hosting.who_leads(run_id)
    if connection.reads_drain_answers:
        connection.send(m.DrainAnswer(text, done=True, found=False))
        connection.close()
    else:
        refuse_answer(connection, text, is_final=is_final)


def give_id(run_id: str) -> str:
    """Return the advice how to name this job on a command line, with or without --rdzv-id."""
    return "leave --rdzv-id out" if run_id == UNNAMED_RUN_ID else f"give --rdzv-id {run_id}"
