"""The jobs that one coordinator leads by registers, each by its own register."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rallypoint.coordinator.leading.candidacy import JobRegister, RegisterCandidacy
from rallypoint.coordinator.leading.leader_process import LocalLeader, local_leader
from rallypoint.coordinator.leading.leadership import VACATE_S, Leadership
from rallypoint.core.job_lives import REMEMBERED_MAX
from rallypoint.core.takeover.candidacy import Candidacy
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Seal
from rallypoint.core.text import quoted_job
from rallypoint.errors import RallypointError
from rallypoint.register.record import Register, RegisterRecord

T = TypeVar("T")

REMOVE_S = 60.0
ASKED_S = 5.0
"""The time limit in seconds for reading a register for a person who asks who leads the job."""


class ManyLeaderships:
    """The leaderships of many jobs. For the thread of the loop."""

    def __init__(
        self,
        open_register: Callable[[str], Register],
        addresses: tuple[str, ...],
        on_wait: Callable[[str, str], None],
        local: LocalLeader | None = None,
    ) -> None:
        """`open_register` makes the register of a run id, without I/O.

        `addresses`: where this coordinator listens. `on_wait` is told, with the run id, what a job
        waits for. `local`: None for `local_leader()`.
        """
        self._open_register, self._on_wait = open_register, on_wait
        self._local = local or local_leader()
        self._leader = self._local.leader(addresses)
        self._led: dict[str, Leadership] = {}
        self._memories: OrderedDict[str, Memory] = OrderedDict()
        """The records and positions that this process knows of the last jobs, by run id, the newest
        last."""
        self._claiming: set[str] = set()
        """The jobs for which agents wait at this coordinator."""
        self._candidacies: dict[str, asyncio.Event] = {}
        """The jobs for which this process is a candidate. Each event is set when that ends, because
        it leads the job or gives up."""
        self._ending: set[asyncio.Task[None]] = set()
        self.claims = 0
        """The number of times that this process has become the leader of a job."""

    @property
    def count(self) -> int:
        """The number of jobs that this process leads."""
        return len(self._led)

    @property
    def candidacies(self) -> int:
        """The number of jobs for which this process is a candidate."""
        return len(self._candidacies)

    def of(self, run_id: str) -> Leadership | None:
        """Return the leadership of a job; None: this coordinator does not lead the job."""
        return self._led.get(run_id)

    async def who_leads(self, run_id: str) -> tuple[str, bool]:
        """Return words about the leader of a job that this coordinator does not lead.

        The second result is whether they are final, because the job has ended.
        """
        try:
            async with asyncio.timeout(ASKED_S):
                register = self._open_register(run_id)
                record = await RegisterRecord(register, self._local.calls, run_id=run_id).read()
        except TimeoutError:
            text = f"this coordinator does not lead {quoted_job(run_id)}, and can't read its record"
            return text, False
        except RallypointError as error:
            return f"this coordinator does not lead {quoted_job(run_id)}: {error}", False
        if record is None:
            return f"this coordinator knows no {quoted_job(run_id)}: check --rdzv-id", False
        verdict = None if record.job is None else record.job.verdict
        if record.is_vacant and verdict is not None:
            return f"{quoted_job(run_id)} has ended: {verdict.text}", True
        if record.is_vacant:
            text = f"no coordinator leads {quoted_job(run_id)} now: ask again in a few seconds"
            return text, False
        where = ", ".join(record.leader.addresses)
        text = f"this coordinator only stands ready to lead {quoted_job(run_id)}, which is led at "
        return f"{text}{where}: ask there", False

    async def lead(self, run_id: str) -> Leadership:
        """Become the leader of this job, however long that takes, and return the leadership.

        Raises the register's errors for an unusable record.
        """
        self._claiming.add(run_id)
        try:
            return await self._lead(run_id)
        finally:
            self._claiming.discard(run_id)

    async def _lead(self, run_id: str) -> Leadership:
        while (settled := self._candidacies.get(run_id)) is not None and run_id not in self._led:
            await settled.wait()
        if (own := self._led.get(run_id)) is not None:
            return own
        said = ""

        def on_wait(text: str) -> None:
            nonlocal said
            if text != said:
                said = text
                self._on_wait(run_id, text)

        job = self._register_of(run_id)
        candidacy = Candidacy(job.leader, self._local.runtime.nonce(), job.memory)
        leadership = await RegisterCandidacy(candidacy, job, on_wait).run()
        assert leadership is not None
        self._leads(run_id, leadership)
        return leadership

    def stand_ready(self, run_id: str, deference: Deference) -> JobRegister | None:
        """Make this process a candidate for a job until `settle`, and return the job's register.

        None: the process leads that job, is a candidate for it, or an agent waits here for it to
        lead.
        """
        if run_id in self._led or run_id in self._claiming or run_id in self._candidacies:
            return None
        self._candidacies[run_id] = asyncio.Event()
        return self._register_of(run_id, deference)

    def is_awaited(self, run_id: str) -> bool:
        """Return whether an agent waits here until this process leads the job."""
        return run_id in self._claiming

    def settle(self, run_id: str, leadership: Leadership | None = None) -> None:
        """End the candidacy for a job. `leadership`: by which it leads the job now, if it does."""
        if leadership is not None:
            self._leads(run_id, leadership)
        self._candidacies.pop(run_id).set()

    def _leads(self, run_id: str, leadership: Leadership) -> None:
        self._led[run_id] = leadership
        self.claims += 1

    def _register_of(self, run_id: str, deference: Deference | None = None) -> JobRegister:
        memory = self._memories.setdefault(run_id, Memory())
        self._memories.move_to_end(run_id)
        if len(self._memories) > REMEMBERED_MAX:
            self._memories.popitem(last=False)
        register, seal = self._open_register(run_id), Seal(run_id, self._local.secret_of(run_id))
        return JobRegister(register, self._local, self._leader, memory, seal, deference)

    def call(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make a blocking call in the thread of the registers, before any later call to them."""
        return self._local.calls.submit(call)

    def wait_for(self, run_id: str, text: str) -> None:
        """Show the user the reason of a wait."""
        self._on_wait(run_id, text)

    def forget(self, run_id: str) -> None:
        """Note that this coordinator no longer leads the job; another one may.

        Its record is marked so in the background, unless another process leads already.
        """
        if (leadership := self._led.pop(run_id, None)) is not None:
            self._end(leadership.vacate(VACATE_S))

    def remove(self, run_id: str) -> None:
        """Give up a job whose record is no longer needed, and remove the record.

        A coordinator that is one of many leaves the record there, and marks that it goes.
        """
        if (leadership := self._led.pop(run_id, None)) is None:
            return
        self._memories.pop(run_id, None)
        if leadership.is_one_of_many:  # Its nodes leave the register where it is, too.
            job = leadership.lead.record.job
            has_ended = job is not None and job.verdict is not None
            self._end(leadership.vacate(VACATE_S, is_heard=has_ended))
        else:
            self._end(leadership.remove(REMOVE_S))

    def _end(self, call: Coroutine[Any, Any, None]) -> None:
        ending = asyncio.get_running_loop().create_task(call)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def vacate(self) -> None:
        """Give up all jobs, and record that, so that others need not wait.

        Takes a second at most.
        """
        for run_id in list(self._led):
            self.forget(run_id)
        if self._ending:
            await asyncio.wait(self._ending, timeout=VACATE_S)
        self._local.calls.close()
