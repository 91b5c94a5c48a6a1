"""The viewers of one hosted job: its history file, and the answers to people's questions."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.clocks import wall_time
from rallypoint.coordinator.connection import (
    ServerConnection,
    answer,
    answer_all,
    refuse_answer,
)
from rallypoint.core import claims, limits
from rallypoint.core import job_requests as requests
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import VERDICT, Record
from rallypoint.core.fitness import held_back
from rallypoint.core.job_rounds import presumed_cause
from rallypoint.core.job_state import PersonWants
from rallypoint.core.model import Cause
from rallypoint.core.round_record import RoundRecord
from rallypoint.core.session_state import Session
from rallypoint.core.sessions import Sessions
from rallypoint.core.text import count
from rallypoint.core.watch.askers import Askers
from rallypoint.core.watch.collection_messages import SINCE
from rallypoint.core.watch.goodput import Spending
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.watch.history import HistoryEntry, JobHistory
from rallypoint.core.watch.history_file import Begin, HistoryLine, compact
from rallypoint.core.watch.job_view import (
    Heard,
    JobView,
    goodput_view,
    job_line,
    view_of,
    waits_for,
)
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.errors import MessageError

if TYPE_CHECKING:  # Most jobs have a coordinator that nobody can take over from or asks.
    from rallypoint.coordinator.gathering import Gatherings
    from rallypoint.core.takeover.handover import Handover

STATUS_S = 60.0
"""The interval in seconds of statuses in the history file, besides those after changes."""
LOOK_S = 10.0
"""The least time in seconds between two looks for a node that holds the job up."""
LIGHT_NODES = 1000
"""The most nodes of a job for which it is cheap to make a status."""
CARRY_S = 2.0
"""The age in seconds at which `JobWatch.carry` stores the history's sums anew, at a heartbeat."""
EVENTS_MAX_BYTES, _ENTRY_BYTES = 512 * 1024, 300
"""The most bytes of past events in one answer, and the approximate size of an event without its
sentence."""
FOLLOWERS_MAX = 64
"""The most people who follow one job's events at once, and the most who follow its status."""


class HistoryFile(Struct):
    """The file of one job's history, and what was last written to it."""

    write: Callable[[HistoryLine], None]
    is_light: bool = False
    """Whether the file has to cost little, because no option asks for it."""
    status_at: float = -inf
    """When the last status was due, in seconds of the loop's clock."""
    looked_at: float = -inf
    """The time of the last look for a node that holds the job up, in seconds of the loop's
    clock."""
    behind: str = ""
    """The id of the node that held the job up in the last status; empty: none did."""
    is_due: bool = False
    """Whether a status is due: since the last one a round was formed or completed, or, in a small
    job, the activity or the presumed cause of the round's end has changed."""
    told: tuple[Spending | None, Cause | None] = (None, None)
    """The job's activity in the last status, and the presumed cause of the end of its round."""


class _End(Struct):
    """The end of the job, as far as it is known."""

    is_recorded: bool
    """Whether the verdict is recorded, so that people may see it."""
    decided_at: float | None = None
    goodput: GoodputView | None = None


def _who_is_behind(view: JobView) -> str:
    if all(node.step < 0 for node in view.nodes):
        return ""
    # Imported when steps are reported: other jobs have no use for it.
    from rallypoint.core.watch.advice import behind

    found = behind(view)
    return "" if found is None else found.node.node


def _fitting(entries: list[HistoryEntry]) -> list[HistoryEntry]:
    """Return as many of the newest entries as may be sent at once, in the same order.

    A reader with more unread data would be disconnected.
    """
    room = EVENTS_MAX_BYTES
    for index in range(len(entries) - 1, -1, -1):
        room -= len(entries[index].text) + _ENTRY_BYTES
        if room < 0:
            return entries[index + 1 :]
    return entries


class JobWatch:
    """The history of one job, and the people who ask about it or follow it.

    For the thread of the loop. Never blocks.
    """

    def __init__(
        self,
        sessions: Sessions,
        clock: Callable[[], float],
        connection_of: Callable[[int], ServerConnection | None],
    ) -> None:
        """`clock` returns the time of the loop in seconds.

        `connection_of` returns the agent's connection of a number; None: there is none.
        """
        self._sessions, self._clock = sessions, clock
        # The leader before has numbered its events from less, as what it asked of workers.
        number = sessions.job.notices
        self.history = JobHistory(clock(), lambda at: wall_time(clock() - at), number=number)
        self.carries = False
        """Whether another coordinator may take the job over."""
        self._carried_at = -inf
        self._handover: Handover | None = None
        self._followers: dict[int, ServerConnection] = {}
        """The viewers who follow the events, by the numbers of the connections."""
        is_over = sessions.verdict is not None
        self._end = _End(is_recorded=is_over)
        self._watchers: dict[int, ServerConnection] = {}
        """The viewers who follow the status, and get it once more when the job has ended, by the
        numbers of the connections."""
        self._requests = requests.Requests()
        self._people: dict[int, ServerConnection] = {}
        """The people who have made requests and are still connected, by the numbers of the
        connections."""
        self._askers = Askers()
        self._connection_of = connection_of
        self._gatherings: Gatherings | None = None
        self._file: HistoryFile | None = None

    @property
    def gatherings(self) -> Gatherings:
        """The questions of people about workers' output and stacks; made when first used."""
        if self._gatherings is None:
            from rallypoint.coordinator.gathering import Gatherings

            self._gatherings = Gatherings(self._sessions, self._connection_of)
        return self._gatherings

    def close(self) -> None:
        """Drop the open questions about workers' output and stacks: the job is hosted no more."""
        if self._gatherings is not None:
            self._gatherings.close()

    @property
    def run_id(self) -> str:
        """The run id of the job."""
        return self._sessions.job.round.settings.run_id

    @property
    def view(self) -> JobView:
        """The present view of the job, as far as people may see it."""
        view = view_of(self._sessions.job, self.history, self._heard, self._clock())
        if self._is_ending:
            return replace(
                view, state="ending", reason="", waits_for="its end to be recorded", verdict=None
            )
        return replace(view, waits_for=self._waits_for) if self._is_recovering else view

    @property
    def _is_ending(self) -> bool:
        """Whether there is a verdict that is not recorded yet, so that people may not see it.

        A coordinator that takes over now might reach another verdict.
        """
        return self._sessions.verdict is not None and not self._end.is_recorded

    @property
    def _is_recovering(self) -> bool:
        """Whether this coordinator has taken the job over, and can't know yet which workers run."""
        return self._handover is not None and self._handover.recovery is not None

    @property
    def _waits_for(self) -> str:
        """The nodes or the event that the job waits for, in words for a person."""
        if self._handover is None or (recovery := self._handover.recovery) is None:
            return waits_for(self._sessions.job, self.history)
        nodes = count(recovery.record.nodes, "node")
        text = f"{recovery.awaited} of {nodes} to come to this coordinator, which has taken it over"
        return f"{text} ({recovery.awaits})" if recovery.awaits else text

    @property
    def goodput(self) -> GoodputView:
        """The goodput of the job up to now: how its time was used."""
        return goodput_view(self.history, self._clock())

    def record(self, record: Record) -> None:
        """Add an event to the job's history, write it to the file, and send it to those who follow.

        After the event of the verdict those who follow the events or the status are told the end,
        and their answers end. Workers' last output is still collected.
        """
        is_last = record.name == VERDICT.name
        self._end.is_recorded |= is_last
        self.noted()  # It belongs to the newest round, which has perhaps just been formed.
        self.history.record(record, self.history.newest_round, self._clock())
        self._pass_on(is_last=is_last)
        if is_last:
            self.answer_requests()
            self._write_status()
            self._followers.clear()
            if self._watchers:
                answer_all(list(self._watchers.values()), self.view, is_last=True)
                self._watchers.clear()
            if self._gatherings is not None:
                self._gatherings.job_ended()

    def write_to(
        self, write: Callable[[HistoryLine], None], *, took_over: bool, is_light: bool = False
    ) -> None:
        """Pass the lines of the history file to `write` from now on.

        The first ones tell of the job and its present status, and are written at once.
        `took_over`: another coordinator had led the job. `is_light`: no status of a large job is
        written before it has ended.
        """
        self._file, job = HistoryFile(write, is_light), self._sessions.job
        write(Begin(self.run_id, job.incarnation, wall_time(0.0), took_over))
        self._write_status()

    def take_over(self, handover: Handover) -> None:
        """Continue the history of another coordinator, as far as it was handed over. Call once."""
        self._handover = handover
        recovery, newest = handover.recovery, -1
        if recovery is not None and recovery.record.newest_round is not None:
            newest = recovery.record.newest_round
        is_active = recovery is not None and recovery.record.is_active
        self._go_on(newest, is_active=is_active)

    def go_on(self) -> None:
        """Continue the history of a job whose state came from a former coordinator.

        No round is active, and all of the state is known.
        """
        self._go_on(self._sessions.job.round.round - 1, is_active=False)

    def _go_on(self, newest: int, *, is_active: bool) -> None:
        job = self._sessions.job
        self.history.take_over(newest, self._clock(), is_active=is_active)
        if job.carried is not None and job.verdict is None:
            self.history.carry_on(job.carried, self._clock())

    def carry(self) -> None:
        """Store the history's sums and newest round in the job state, for the next coordinator."""
        self._carried_at = self._clock()
        self._sessions.job.carried = self.history.carried(self._clock())

    def heard(self, connection: int, beat: m.Heartbeat) -> Record | None:
        """Note the progress and the past rounds in a heartbeat of the agent on this connection.

        O(1), except once in a while. Returns an event to show, if there is one.
        """
        if self.carries and self._carried_at <= self._clock() - CARRY_S:
            self.carry()
        if self._file is not None and self._file.looked_at <= self._clock() - LOOK_S:
            self._look_for_news(self._file)
        session = self._of_node(connection)
        if session is None:
            return None
        if beat.rounds:
            self.history.told_again(
                self._sessions.job, session.ref.node_id, beat.rounds, self._clock()
            )
        if beat.progress is None:
            return None
        return self._progressed(session.ref.node_id, beat.progress)

    def noted(self) -> None:
        """Bring the history up to date, after something happened to the job; write what is new.

        A status is not written: it only becomes due, for `write_news`. While a takeover is not
        complete, or a verdict is not recorded, the history stays as it is.
        """
        if self._is_recovering:
            return
        formed, end = self.history.rounds_formed, self._end
        if self._sessions.verdict is not None and end.decided_at is None:
            end.decided_at = self._clock()
        if self._is_ending:
            return
        at = self._clock() if end.decided_at is None else end.decided_at
        self.history.noted(self._sessions.job, at)
        is_over = self._pass_on()
        is_news = is_over or self.history.rounds_formed != formed
        if is_news and self.carries:
            self.carry()
        if self._file is not None and not self._end.is_recorded:  # Else it has the last status.
            self._file.is_due = self._file.is_due or is_news or self._has_changed(self._file)

    @property
    def has_news(self) -> bool:
        """Whether a status is due in the history file: `write_news` is to be called soon."""
        return self._file is not None and self._file.is_due

    def write_news(self) -> None:
        """Write a status into the history file, if `has_news`."""
        if self.has_news:
            self._write_status()

    def whole(self, ended: m.Ended) -> m.Ended:
        """Return the message about the job's end, with the job's goodput if a round was formed."""
        if self._end.goodput is None and self.history.rounds_formed:
            self.noted()
            self._end.goodput = limits.fit(self.goodput)
        return replace(ended, goodput=self._end.goodput)

    def _progressed(self, node_id: str, progress: NodeProgress) -> Record | None:
        if self._is_ending:
            return None
        now, job = self._clock(), self._sessions.job
        progress = claims.own_progress(job, node_id, progress)
        record = self.history.progressed(job, node_id, progress, now)
        if record is not None and self.carries:
            self.carry()
        return record

    def joined(self, connection: int) -> None:
        """Note that the agent on this connection has reported that none of its workers run."""
        session = self._of_node(connection)
        if session is not None:
            self.history.stopped(session.ref.node_id, self._clock())

    def _of_node(self, connection: int) -> Session | None:
        """Return the session of this connection.

        None: it has none, or its agent waits for a node id that another agent still has.
        """
        session = self._sessions.on(connection)
        is_holder = session is not None and self._sessions.of_node(session.ref.node_id) is session
        return session if is_holder else None

    def asked(self, connection: ServerConnection, question: Ask) -> PersonWants | None:
        """Answer the question or request of a person, who waits on this connection.

        Returns a request that is permitted, for the caller to carry out now; else None. Raises
        MessageError where 64 others follow already, or where an earlier question about workers on
        this connection is still being answered.
        """
        if self._is_recovering and (text := requests.unknown(question, self._waits_for)):
            refuse_answer(connection, text, is_final=False, recovers=True)
        elif question.is_wish:
            self._people[connection.number] = connection
            facts = question, self._waits_for, self._is_ending, self._older_node
            return self._step_requests(requests.Requested(connection.number, *facts))
        else:
            self._answer(connection, question)
        return None

    def tell_of(self, connection: ServerConnection, question: Ask) -> Record | None:
        """Return the event about a person's question on this connection, if there is to be one.

        There is none once the job has a verdict, for harmless questions (as for the status), and
        for too frequent ones (`Askers.asked`).
        """
        if self._sessions.verdict is not None:
            return None
        return self._askers.asked(question, connection.peer, connection.version, self._clock())

    @property
    def _older_node(self) -> str:
        """The id of a node of the newest world whose connected agent speaks a too old protocol.

        It knows no checkpoint requests of people. Empty: there is none. O(number of nodes).
        """
        sessions = map(self._sessions.of_node, self._sessions.job.assigned)
        found = ((each.ref.node_id, each.connection) for each in sessions if each is not None)
        known = ((node, self._connection_of(n)) for node, n in found if n is not None)
        return next((node for node, one in known if one and one.version < SINCE), "")

    def _step_requests(self, event: requests.RequestEvent) -> PersonWants | None:
        """Apply the event to people's requests, and answer those that are refused or have a result.

        Return a request to carry out now; None: there is none.
        """
        wanted = None
        for effect in requests.step(self._requests, event, self._sessions.job):
            match effect:
                case requests.Decline(number, text):
                    refuse_answer(self._people[number], text)
                case requests.Tell(number, said):
                    answer(self._people[number], said, is_last=True)
                case PersonWants():
                    wanted = effect
        return wanted

    def answer_requests(self) -> None:
        """Answer people whose requests have a result, good or bad.

        Called while the job's decisions are all recorded.
        """
        self._step_requests(requests.AllRecorded())

    def _answer(self, connection: ServerConnection, question: Ask) -> None:
        match question.subject:
            case Subject.STATUS:
                follows = question.follow and not self._end.is_recorded
                if follows:
                    self._admit(self._watchers, connection)
                answer(connection, self.view, is_last=not follows)
            case Subject.EVENTS:
                self._tell_events(connection, question)
            case Subject.NODES:
                answer(connection, tuple(held_back(self._sessions.job.round)), is_last=True)
            case Subject.JOBS:
                answer(connection, (job_line(self.view),), is_last=True)
            case Subject.STACKS | Subject.LOGS:
                self.gatherings.begin(connection, question, is_end_known=self._end.is_recorded)
            case Subject.MORE:
                self.gatherings.taken(connection.number)

    def collected(self, connection: int, piece: m.Collected) -> None:
        """Pass a piece of an answer from an agent to the person who asked for it, if any waits."""
        if self._gatherings is not None:
            self._gatherings.collected(connection, piece)

    def closed(self, connection: int) -> None:
        """Forget a connection that has ended."""
        self._followers.pop(connection, None)
        self._watchers.pop(connection, None)
        self._people.pop(connection, None)
        self._step_requests(requests.HungUp(connection))
        if self._gatherings is not None:
            self._gatherings.closed(connection)

    def _admit(self, others: dict[int, ServerConnection], connection: ServerConnection) -> None:
        """Add a viewer's connection to `others`. Raises MessageError where there are too many."""
        if len(others) >= FOLLOWERS_MAX and connection.number not in others:
            raise MessageError(f"{FOLLOWERS_MAX} others follow this job already")
        others[connection.number] = connection

    def _tell_events(self, connection: ServerConnection, question: Ask) -> None:
        follows = question.follow and not self._end.is_recorded
        if follows:
            self._admit(self._followers, connection)
        entries = _fitting([one for one in self.history.entries if one.number > question.after])
        if not entries:
            if not follows:
                answer(connection, None, is_last=True)
            return
        for entry in entries:
            answer(connection, entry, is_last=entry is entries[-1] and not follows)

    def _pass_on(self, *, is_last: bool = False) -> bool:
        """Write new events and rounds to the file, and send the events to those who follow.

        Return whether the complete record of a round was among them.
        """
        news, is_over = self.history.news, False
        while news:
            new = news.popleft()
            if self._file is not None:
                self._file.write(new)
            if isinstance(new, RoundRecord):
                is_over = True
                continue
            if self._followers:
                followers = list(self._followers.values())
                answer_all(followers, new, is_last=is_last and not news)
        return is_over

    def _look_for_news(self, file: HistoryFile) -> None:
        """Write a status if the last one was due `STATUS_S` ago or earlier.

        For a small job also if another node than in that status holds it up, or none does any more.
        O(nodes).
        """
        file.looked_at = self._clock()
        if file.status_at <= file.looked_at - STATUS_S:
            self._write_status()
        elif self._is_small and file.behind != _who_is_behind(view := self.view):
            self._write_status(view)

    @property
    def _is_small(self) -> bool:
        return len(self._sessions.job.round.members) <= LIGHT_NODES

    def _has_changed(self, file: HistoryFile) -> bool:
        """Return whether the job's activity differs from that in the last status in the file.

        Always False for a large job. True also if the presumed cause of the end of the round has
        changed: all agents may be killed before the next status.
        """
        if not self._is_small:
            return False
        return file.told != (self.history.account.now, presumed_cause(self._sessions.job))

    def _write_status(self, view: JobView | None = None) -> None:
        """Write a status into the history file; none of a large job in a light file before its end.

        `view`: the present one, if it is known.
        """
        if self._file is not None:
            self._file.status_at, self._file.is_due = self._clock(), False
            if not self._is_small and self._file.is_light and not self._end.is_recorded:
                return
            self._file.told = self.history.account.now, presumed_cause(self._sessions.job)
            view = view or self.view
            self._file.behind = _who_is_behind(view)
            self._file.write(compact(view, wall_time(0.0)))

    def _heard(self, incarnation: str) -> Heard:
        session = self._sessions.of_agent(incarnation)
        if session is None:
            return Heard(is_connected=False)
        now = self._clock()
        silent_s = now - self._sessions.liveness.last_heard_at(incarnation, now)
        return Heard(session.host, silent_s, session.connection is not None)
