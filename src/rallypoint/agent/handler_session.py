"""An agent's part of a job whose nodes meet by a handler, without a coordinator.

It speaks to the agent as the session with a coordinator does, so that the worker group is the same:

    what the agent reports     what becomes of it
    Join                       next_rendezvous; then the nodes exchange cards through the round's
                               store, and each computes its assignment
    Enrolled                   start at once: who fails to enrol ends the job
    Failed                     charged to this agent's own budget; when that is used up, the verdict
                               goes into the store and the job is closed
    Succeeded                  a key in the store; when those of all nodes are there, so has the job
    HelperDied                 the round ends; nobody is charged
    Drain, Cancel              leave, set_closed

While workers run the handler is asked whether the round is over. The other nodes learn of a restart
by the handler, since this node joins again: that costs them no budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.agent.handler_calls import Change, HandlerCalls, Met, own_name
from rallypoint.agent.handler_meeting import HandlerMeeting
from rallypoint.agent.own_tasks import OwnTasks
from rallypoint.agent.round_store import StoreAccess
from rallypoint.config import AgentConfig
from rallypoint.coordinator.wall_clock import wall_ms
from rallypoint.core import handler_round as rounds
from rallypoint.core import messages as m
from rallypoint.core import restart
from rallypoint.core.cause import Report, describe, first_cause
from rallypoint.core.model import (
    Candidate,
    Cause,
    EndKind,
    EndReason,
    JobStatus,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
    WorkerFailure,
)
from rallypoint.errors import InfrastructureError, RendezvousClosedError, UsageError
from rallypoint.rendezvous.session import Pushed, SessionHandler

FIRST_POLL_S = 0.01
LONGEST_POLL_S = 0.25
RETRY_S = 1.0
DETAILS_S = 1.0
"""How long the end of the job may wait for what the workers said of it."""


class _Round(Struct):
    """The round that this node is in."""

    met: Met
    stamp: Stamp
    reports: list[Report] = field(default_factory=list)
    decision: restart.Decision | None = None
    ended: EndReason | None = None
    detailed: asyncio.Event = field(default_factory=asyncio.Event)
    """What the workers said of their failures is known."""


class HandlerSession:
    """For the thread of the loop. `open` when the agent has it, `close` at the end."""

    def __init__(
        self,
        calls: HandlerCalls,
        config: AgentConfig,
        settings: SharedSettings,
        agent: SessionHandler,
        access: StoreAccess,
        meeting: HandlerMeeting,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls, self._config, self._settings, self._agent = calls, config, settings, agent
        self._access, self._meeting = access, meeting
        self._ledger = restart.Ledger()
        self._incarnation = wall_ms()
        self._last_round = -1
        self._why = "the first round"
        self._round: _Round | None = None
        self._giving_up: asyncio.Task[Verdict] | None = None
        self._tasks = OwnTasks()
        self._farewell: asyncio.Task[None] | None = None
        self._verdict: Verdict | None = None
        self._leaving = self._closed = False
        self.error: Exception | None = None
        """What ended this node's part, if it was no verdict of the job."""
        self._node_id = calls.node_id or config.rendezvous.node_id or own_name()

    @property
    def node_id(self) -> str:
        """This node's id."""
        return self._node_id

    @property
    def candidate(self) -> Candidate:
        """What this node brings; where its store is shows when it is of rank 0."""
        return Candidate(self._config.workers.count, self._config.workers.role, "", 0)

    def open(self) -> None:
        """Take part from now on."""
        self._tell_waiting()
        self._agent.session_opened(resumed=False, replaced=False)

    def report(self, report: m.Report) -> None:
        """What the agent has to say; see the module's table."""
        match report:
            case m.Join():
                self._tasks.spend(self._join())
            case m.Enrolled(stamp):
                self._push(m.StartNow(stamp))
            case m.NotEnrolled(_, text):
                self._end(self._judge(Outcome.INFRASTRUCTURE, f"node {self._node_id}: {text}"))
            case m.Failed(stamp, failures):
                self._failed(stamp, failures)
            case m.HelperDied(stamp, text):
                self._end_round(stamp, EndReason(EndKind.INFRASTRUCTURE, text, self._node_id))
            case m.Detailed(stamp, failures):
                self._detailed(stamp, failures)
            case m.Succeeded(stamp):
                if self._round is not None and self._round.stamp == stamp:
                    self._tasks.spend(self._wait_all_done(self._round))
            case m.Drain():
                self._stop_taking_part()
                self._say_farewell(self._calls.leave())
                self._loop.call_soon(self._agent.acknowledged, report)
                self._push(m.LeaveNow(self._round.stamp if self._round else Stamp(0, 0)))
            case m.Cancel(why, number):
                self._cancel(report, why, number)
            case _:
                pass  # nobody is asked here, which was told when the command line was read

    async def close(self, timeout_s: float) -> None:
        """Say farewell, at most so long, and let the handler go, also when this is cancelled."""
        self._stop_taking_part()
        self._closed = True
        farewell = self._say_farewell(self._part(self._farewell))
        try:
            await asyncio.wait((farewell,), timeout=timeout_s)
        finally:
            farewell.cancel()
            await asyncio.gather(farewell, return_exceptions=True)

    async def _part(self, before: asyncio.Task[None] | None) -> None:
        """A job that has ended is closed for those who come late; else it goes on without us."""
        if before is not None:
            await before
        ended = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED)
        verdict, round_ = self._verdict, self._round
        if verdict is None or round_ is None or verdict.outcome not in ended:
            await self._calls.leave()
            return
        if verdict.outcome is Outcome.SUCCEEDED and round_.met.size > 1:
            await self._meeting.let_others_read(round_.met)
        await self._calls.shutdown()

    # Joining

    async def _join(self) -> None:
        if self._giving_up is not None:
            self._end(await self._giving_up)
            return
        last = self._round
        if last is not None and last.ended is not None and last.ended.node_id == self._node_id:
            await self._meeting.leave_reason(last.met, last.ended)
        if last is not None and isinstance(last.decision, restart.Restart):
            await asyncio.sleep(last.decision.delay_s)
        self._tasks.cancel(keep=asyncio.current_task())
        self._tell_waiting()
        try:
            await self._meet()
        except Exception as error:
            await self._could_not_meet(error)

    async def _meet(self) -> None:
        workers = self._config.workers
        card = rounds.NodeCard(
            self._node_id,
            workers.count,
            workers.role,
            self._incarnation,
            self._last_round,
            self._ledger.total,
        )
        met, cards = await self._meeting.meet(card)
        stamp = rounds.next_stamp(cards)
        secret = cards[0].secret or None
        self._access.use(secret, self._meeting.store if secret and met.rank == 0 else None)
        if stamp.round and self._last_round < 0:
            self._why = self._calls.end_reason.text
        self._incarnation, self._last_round = stamp.incarnation, stamp.round
        self._round = _Round(met, stamp)
        self._push(m.Assigned(stamp, rounds.assign(cards, met.rank, self._why)))
        self._tasks.spend(self._watch(self._round))

    async def _could_not_meet(self, error: Exception) -> None:
        """Errors of torch's handlers are known by their names."""
        names = {cls.__name__ for cls in type(error).__mro__}
        text = str(error) or type(error).__name__
        if "RendezvousGracefulExitError" in names:
            self._round = None
            self._end(self._judge(Outcome.SUCCEEDED, f"{rounds.NOT_NEEDED}: {text}"))
        elif "RendezvousClosedError" in names:
            hint = "; give another --rdzv-id to run it again" if self._last_round < 0 else ""
            await self._closed_by_another(text + hint)
        elif "RendezvousTimeoutError" in names:
            self._end(self._judge(Outcome.TIMED_OUT, text))
        elif isinstance(error, UsageError):
            self._agent.session_refused(error)
        else:
            self.error = error
            if not isinstance(error, InfrastructureError):
                what = f"{type(error).__name__}: {error}"
                text = f"the rendezvous handler {self._calls.name!r} failed: {what}"
            self._end(self._judge(Outcome.INFRASTRUCTURE, text))

    # In a round

    async def _watch(self, round_: _Round) -> None:
        """A handler that fails for a whole lease is as good as lost, and so is this node."""
        heard_at = self._loop.time()
        while True:
            try:
                change = await self._calls.wait_change()
                heard_at = self._loop.time()
            except Exception as error:
                if self._loop.time() - heard_at > self._settings.lease_s:
                    name, why = self._calls.name, str(error) or type(error).__name__
                    self._agent.session_given_up(f"the rendezvous handler {name!r} failed: {why}")
                    return
                await asyncio.sleep(RETRY_S)
                continue
            if change is Change.NONE:
                continue
            if await self._meeting.are_all_done(round_.met):
                self._succeeded(round_)
            elif change is Change.CLOSED:
                await self._closed_by_another("the job was closed by another node")
            else:
                self._end_round(round_.stamp, await self._meeting.end_reason(round_.met))
            return

    async def _closed_by_another(self, text: str) -> None:
        """Why, if whoever closed it has left a word in the store of our round."""
        left = None
        if self._round is not None:
            with suppress(Exception):  # the store may have gone with the node that closed the job
                left = await self._calls.verdict(self._round.met.store)
        self.error = None if left is not None else RendezvousClosedError(text)
        self._end(left or self._judge(Outcome.INFRASTRUCTURE, text))

    def _failed(self, stamp: Stamp, failures: tuple[WorkerFailure, ...]) -> None:
        round_ = self._round
        if round_ is None or round_.stamp != stamp or not failures or self._leaving:
            return
        if round_.ended is not None and round_.decision is None:  # it failed because of the end
            return
        now = self._loop.time()
        round_.reports += [Report(self._node_id, failure, now) for failure in failures]
        if round_.decision is not None:
            return
        cause = self._cause(round_)
        assert cause is not None
        assert cause.failure is not None
        round_.decision = restart.charge(self._ledger, self._settings, cause.failure)
        self._tasks.cancel()
        why = describe(cause)
        said = f"{why}; {round_.decision.reason}"
        self._end_round(stamp, EndReason(EndKind.FAILURE, why, self._node_id), said)
        if isinstance(round_.decision, restart.GiveUp):
            self._giving_up = self._loop.create_task(self._give_up(round_, said))
        elif window_s := self._settings.restart_window_s:
            self._loop.call_later(window_s, restart.forget, self._ledger, str(self._ledger.total))

    def _end_round(self, stamp: Stamp, reason: EndReason, said: str = "") -> None:
        """Unless it has ended. `said`: what this node tells of the reason, if it is more."""
        round_ = self._round
        if round_ is not None and round_.stamp == stamp and round_.ended is None:
            round_.ended, self._why = reason, reason.text
            self._push(m.StopNow(stamp, replace(reason, text=said or reason.text)))

    def _detailed(self, stamp: Stamp, failures: tuple[WorkerFailure, ...]) -> None:
        if self._round is None or self._round.stamp != stamp:
            return
        self._round.detailed.set()
        detailed = {failure.local_rank: failure for failure in failures}
        for report in self._round.reports:
            found = detailed.get(report.failure.local_rank)
            if found is not None:
                report.failure = replace(found, age_s=report.failure.age_s)

    async def _give_up(self, round_: _Round, text: str) -> Verdict:
        """The verdict of the job: the first that a node has left in the store."""
        with suppress(TimeoutError):  # Workers that would not stop hold up nobody else.
            await asyncio.wait_for(round_.detailed.wait(), DETAILS_S)
        mine = self._judge(Outcome.FAILED, text, self._cause(round_))
        told = mine
        with suppress(Exception):  # nobody can read it: the handler still says that it is over
            told = await self._calls.claim(round_.met.store, mine)
        try:
            await self._calls.set_closed()
        except Exception as error:
            self._push(m.StopNow(round_.stamp, EndReason(EndKind.FAILURE, str(error))))
        if told != mine:
            return told
        return self._judge(Outcome.FAILED, text, self._cause(round_))

    def _cause(self, round_: _Round) -> Cause | None:
        return first_cause(round_.stamp.round, round_.reports, ())

    async def _wait_all_done(self, round_: _Round) -> None:
        """The exit barrier."""
        met, said, pause_s = round_.met, False, FIRST_POLL_S
        while True:
            try:
                if not said:
                    await self._calls.put(met.store, rounds.done_key(met.rank), b"1")
                    said = True
            except Exception:
                # Whether it is lost for good says the handler, which is watched meanwhile.
                pause_s = LONGEST_POLL_S
            if said and await self._meeting.are_all_done(round_.met):
                self._succeeded(round_)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)

    def _succeeded(self, round_: _Round) -> None:
        if self._round is round_:
            self._end(self._judge(Outcome.SUCCEEDED, "all workers exited with code 0"))

    # Ending

    def _cancel(self, report: m.Report, why: str, number: int) -> None:
        """Others read why before they see that it is closed."""
        text = f"cancelled on node {self._node_id}: {why}"
        verdict = replace(self._judge(Outcome.CANCELLED, text), signal=number)
        self._verdict, round_ = verdict, self._round
        self._stop_taking_part()

        async def tell() -> None:
            if round_ is not None:
                await self._calls.claim(round_.met.store, verdict)
            await self._calls.set_closed()

        def told(_: asyncio.Task[None]) -> None:
            self._agent.acknowledged(report)

        self._say_farewell(tell()).add_done_callback(told)

    def _judge(self, outcome: Outcome, text: str, cause: Cause | None = None) -> Verdict:
        used, budget = self._ledger.total, self._settings.max_restarts
        return Verdict(outcome, text, max(self._last_round, 0), used, budget, cause)

    def _end(self, verdict: Verdict) -> None:
        if self._verdict is None and not self._leaving:
            self._verdict = verdict
            self._push(m.Ended(self._round.stamp if self._round else Stamp(0, 0), verdict))

    def _stop_taking_part(self) -> None:
        self._leaving = True
        self._tasks.cancel()

    def _say_farewell(self, words: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """What a handler that fails at the end has to say helps nobody."""

        async def say(words: Awaitable[None]) -> None:
            try:
                await words
            except Exception:
                return

        self._farewell = self._loop.create_task(say(words))
        return self._farewell

    def _push(self, message: Pushed) -> None:
        """Later: the agent may be in the middle of a step."""

        def push() -> None:
            if not self._closed:
                self._agent.pushed(message)

        self._loop.call_soon(push)

    def _tell_waiting(self) -> None:
        status = JobStatus("active", max(self._last_round, 0), 0, 0, 1, 0, 0, 0, 0)
        stamp = self._round.stamp if self._round else Stamp(0, 0)
        self._agent.pushed(m.HeartbeatAck(0, stamp, status))
