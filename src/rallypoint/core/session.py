"""The agent's end of a session with the coordinator. Pure; `sessions.py` is the other end.

It outlives connections, and it knows when the agent may no longer act.

* Reports are numbered, kept until acknowledged, and sent again on a new connection, in their order.
* Each connection has a generation. It carries reports only once the coordinator has attached it.
* A heartbeat that was acknowledged extends the lease, counted from when it was *sent*.
* Without a connection the agent is *suspended*: its workers run on, nothing new starts. When the
  lease is over its workers must die (`LeaseEnded`), because its place may be given away (F2).
* A coordinator that knows nothing of this session gets no report that was meant for another. One
  that has taken over the job resumes it, and is told again what the last one may have acknowledged
  and not have passed on (`Outbox.again`).
* A coordinator of a lower epoch than one that has attached this node no longer leads.
* A connection on which a heartbeat waits too long for its answer is dropped, while there is time
  for another.

Every method takes the time, in seconds on one clock that also counts suspend, and returns what its
host must do, in order. A host tells of each connection in this order: `connected`, `received`,
`disconnected`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import limits
from rallypoint.core import messages as m
from rallypoint.core.liveness import BEAT_SHARE, DEAF_SHARE, Lease
from rallypoint.core.model import DeadPlace, Promise, SharedSettings, Stamp, epoch_number
from rallypoint.core.node.events import (
    CoordinatorRefuses,
    LeaseEnded,
    SessionGivenUp,
    SessionOpened,
)
from rallypoint.core.round_record import ReportedRound
from rallypoint.core.search import (
    DialOutcome,
    Search,
    attempted,
    ends_at,
    given_up_text,
    waiting_text,
)
from rallypoint.core.takeover.told import Position
from rallypoint.core.text import settings_unknown
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.errors import InfrastructureError, RallypointError, UsageError

if TYPE_CHECKING:  # Most nodes never lead.
    from rallypoint.core.takeover.consent import Promises


class Identity(Struct, frozen=True):
    """The identity of an agent, as `Attach` names it."""

    node_id: str
    """The node id; empty: the coordinator makes one from the host name."""
    host_name: str
    incarnation: str


class SessionRules(Struct, frozen=True):
    """The rules for the session of one agent, by what its node does in the job."""

    reconnect_timeout_s: float | None = None
    """How long to look for a lost coordinator, in seconds; None: the join timeout where another one
    can take over, else the usual time (see `search.py`)."""
    has_fence: bool = True
    """Whether the lease can end; False where no other node can take this node's place."""
    vouched_at: Callable[[], float] = lambda: inf
    """The function that returns the latest time from which a lease may count; infinite: no limit.
    For a node that leads the job itself, it is just before its last confirmed write of the job's
    record, or before the last promises of the nodes that may lead next not to claim it began."""
    promises: Promises | None = None
    """The promises not to claim the job, of a node that may lead it next; None: it never does."""
    dead: tuple[DeadPlace, ...] = ()
    """The places of dead agents that each `Attach` of this agent names."""


USUAL_RULES = SessionRules()


class Send(Struct, frozen=True):
    """The effect to send a message on the present connection."""

    message: m.ToCoordinator


class Drop(Struct, frozen=True):
    """The effect to abort the present connection."""

    why: str


class Suspended(Struct, frozen=True):
    """The connection broke; reports are kept from now on."""

    why: str


class OrderPushed(Struct, frozen=True):
    """The coordinator has sent this order, or this answer to a heartbeat with the job's status."""

    message: m.Order | m.HeartbeatAck


class CollectionAsked(Struct, frozen=True):
    """A person asks something about the workers of this node."""

    message: m.Collecting


class Acknowledged(Struct, frozen=True):
    """The coordinator has acknowledged this report."""

    report: m.Report


class Rejected(Struct, frozen=True):
    """The node gets no session: the coordinator refuses it, or is too old for its settings."""

    error: RallypointError


class Held(Struct, frozen=True):
    """The node's lease has been renewed; `until` is its end, in seconds on the agent's clock."""

    until: float


SessionNews = (
    SessionOpened
    | Suspended
    | OrderPushed
    | Acknowledged
    | LeaseEnded
    | CoordinatorRefuses
    | Rejected
    | SessionGivenUp
)
"""The effects that tell the agent itself something."""

AgentEffect = Send | Drop | CollectionAsked | Held | SessionNews


class SessionLink(Enum):
    """The state of the connection to the coordinator."""

    NONE = "no connection"
    CONNECTED = "a connection"
    ATTACHED = "a connection that the coordinator has attached"


_LASTING = m.Enrolled | m.Finishing | m.Succeeded | m.Drain


def _lasts(report: m.Report) -> bool:
    """Return whether the report stays valid until the round ends, or for good."""
    if isinstance(report, m.CheckpointAnswered):
        # Workers may have ended because of that.
        return report.listens and not report.drains and not report.goes_on
    return isinstance(report, _LASTING)


class Outbox:
    """The reports of this agent, numbered and kept until they are acknowledged."""

    def __init__(self) -> None:
        self._numbers = 0
        self._unacknowledged: deque[tuple[m.Numbered, float]] = deque()
        """The unacknowledged reports, each with the time when it was made."""
        self._lasting: dict[type[m.Report], tuple[m.Report, float]] = {}
        """The newest reports that stay valid after their acknowledgement, by kind, with the times
        of making."""
        self._joined: m.Join | None = None
        self.placed_in: Stamp | None = None
        """The round of `place`; None: there is no place."""
        self.place: m.Place | None = None
        """The newest place that a coordinator gave this node, with the join that it answers."""

    @property
    def is_empty(self) -> bool:
        """Whether every report was acknowledged."""
        return not self._unacknowledged

    def add(self, report: m.Report, now: float) -> m.Numbered:
        """Keep a report under the next number, and return it; the caller sends it if it can.

        A join ends the validity of earlier reports, except that of a drain.
        """
        if isinstance(report, m.Join):
            self._joined = report
            drain = self._lasting.get(m.Drain)
            self._lasting = {} if drain is None else {m.Drain: drain}
        elif _lasts(report):
            self._lasting[type(report)] = report, now
        return self._keep(report, now)

    def answered(self, assigned: m.Assigned) -> None:
        """Note the place to which the newest join has led; the same round again changes nothing."""
        if self._joined is not None and assigned.stamp != self.placed_in:
            self.placed_in = assigned.stamp
            self.place = _brief(m.Place(self._joined, assigned.assignment))

    def acknowledged(self, number: int) -> list[m.Report]:
        """Drop the reports up to this number, and return them."""
        found: list[m.Report] = []
        while self._unacknowledged and self._unacknowledged[0][0].number <= number:
            found.append(self._unacknowledged.popleft()[0].report)
        return found

    def forget(self) -> None:
        """Forget the kept reports, because the coordinator has opened a new session."""
        self._unacknowledged.clear()
        self._lasting.clear()

    def unsent(self, now: float) -> list[m.Numbered]:
        """Return the unacknowledged reports, with their present ages."""
        return [
            m.Numbered(numbered.number, aged(numbered.report, now - made_at))
            for numbered, made_at in self._unacknowledged
        ]

    def again(self, now: float) -> list[m.Numbered]:
        """Return all reports that another coordinator needs, in order, with new numbers.

        They are the acknowledged ones that are still valid, and the unacknowledged ones.
        """
        waiting = [(numbered.report, made_at) for numbered, made_at in self._unacknowledged]
        lasting = [kept for kept in self._lasting.values() if kept not in waiting]
        self._unacknowledged.clear()
        for report, made_at in (*lasting, *waiting):
            self._keep(report, made_at)
        return self.unsent(now)

    def _keep(self, report: m.Report, made_at: float) -> m.Numbered:
        self._numbers += 1
        numbered = m.Numbered(self._numbers, report)
        self._unacknowledged.append((numbered, made_at))
        return numbered


def _brief(place: m.Place) -> m.Place:
    """Return the place without its ports and worker addresses.

    A node sends its place when it attaches, and those two grow with the number of workers. The
    programs of this world have their ports already, and the next join brings others.
    """
    joined, assignment = place.joined, place.assignment
    if not joined.candidate.ports:
        return place
    candidate = replace(joined.candidate, ports=())
    return m.Place(replace(joined, candidate=candidate), replace(assignment, worker_addresses=()))


def aged(report: m.Report, seconds: float) -> m.Report:
    """Return the report with its ages raised by `seconds`."""
    if seconds <= 0:
        return report
    match report:
        case m.Failed(failures=failures) | m.Detailed(failures=failures):
            older = tuple(replace(each, age_s=each.age_s + seconds) for each in failures)
            return limits.fit(replace(report, failures=older))
        case m.Drain(age_s=age_s) | m.HelperDied(age_s=age_s):
            return limits.fit(replace(report, age_s=age_s + seconds))
    return report


class AgentEnd:
    """The agent's end of its session with the coordinator of one job."""

    def __init__(
        self,
        identity: Identity,
        settings: SharedSettings,
        rules: SessionRules = USUAL_RULES,
        former: m.Attached | None = None,
    ) -> None:
        """Begin without a connection. `former`: the last `Attached` of an earlier session, if any.

        It is of the same node in the same job.
        """
        self.identity, self.settings = identity, settings
        self.rules = rules
        self.attached = former
        """The newest `Attached` of a coordinator; None: there was none."""
        self._link, self.is_closed = SessionLink.NONE, False
        self.generation = self._opened = 0
        """The number of the newest connection."""
        self._attach_sent_at = 0.0
        self._lease = Lease(settings.lease_s, settings.heartbeat_s, has_fence=rules.has_fence)
        self._reports = Outbox()
        self._search: Search | None = None
        """The search since the connection broke; None while this node is attached, and before the
        first break."""
        self.told: Position | None = None
        """The newest position of the job's record that a leader has sent; None: none has."""

    @property
    def is_attached(self) -> bool:
        """Whether the coordinator has attached the present connection."""
        return self._link is SessionLink.ATTACHED

    @property
    def place(self) -> m.Place | None:
        """The newest place that was assigned to this node; None: none was."""
        return self._reports.place

    @property
    def dead_place(self) -> DeadPlace | None:
        """The place to report if this agent dies; None: it has had none."""
        placed = self._reports.placed_in
        if self.place is None or placed is None:
            return None
        node_id = self.identity.node_id if self.attached is None else self.attached.node_id
        return DeadPlace(placed, self.place.assignment.group_rank, node_id)

    @property
    def is_all_acknowledged(self) -> bool:
        """Whether no report waits for an acknowledgement."""
        return self._reports.is_empty

    def connected(self, now: float, claim: m.Claim, commitment: bytes = b"") -> list[AgentEffect]:
        """Note a new connection; send `Attach` on it. `commitment`: `Attach.death_commitment`."""
        self.generation += 1
        self._link, self._attach_sent_at = SessionLink.CONNECTED, now
        identity, former, place = self.identity, self.attached, self._reports.place
        attach = m.Attach(
            identity.node_id,
            identity.host_name,
            identity.incarnation,
            self.generation,
            self.settings,
            self._opened,
            former.node_id if former else "",
            former.incarnation if former else 0,
            former.epoch if former else 0,
            commitment,
            limits.fit(claim),
            place and limits.fit(place),
            self.rules.dead[: limits.MAX_FAILURES],
            self.told,
        )
        return [Send(attach)]

    def disconnected(self, now: float, why: str) -> list[AgentEffect]:
        """Note that the connection broke: keep reports from now on; look for the coordinator."""
        self._link = SessionLink.NONE
        self._lease.disconnected()
        if self._search is None:
            self._search = self._begun(now)
        else:
            attempted(self._search, now, DialOutcome.NONE, why)
        return [] if self.is_closed else [Suspended(why)]

    def before_attempt(self, now: float) -> list[AgentEffect]:
        """Return `SessionGivenUp` if the search for the coordinator is over; else nothing."""
        search = self._search
        if search is None or not search.last_error or now <= ends_at(search):
            return []
        return [SessionGivenUp(given_up_text(search, now))]

    def attempt_failed(self, now: float, answer: DialOutcome, error: str) -> list[AgentEffect]:
        """Note that an attempt to connect has failed, with or without an answer.

        Returns `CoordinatorRefuses` if the host refused it, or another server answered there.
        """
        if self._search is not None:
            attempted(self._search, now, answer, error)
        return [CoordinatorRefuses()] if answer is DialOutcome.REFUSED else []

    def report(self, report: m.Report, now: float) -> list[AgentEffect]:
        """Keep a report until it is acknowledged, and send it if this agent is attached.

        If not, it is sent when this agent is attached again.
        """
        numbered = self._reports.add(report, now)
        return [Send(numbered)] if self._link is SessionLink.ATTACHED else []

    def woke_up(self, now: float) -> list[AgentEffect]:
        """Return `LeaseEnded`, once, if the lease has ended, and drop the connection.

        To be called after every wake-up, before anything that arrived is processed.
        """
        if not self._lease.has_ended(now) or self.is_closed:
            return []
        return [*self._drop(self._lease.silent_s(now)), LeaseEnded(self._waits_for(now))]

    def received(self, now: float, message: m.ToAgent) -> list[AgentEffect]:
        """Handle a message of the coordinator on the present connection."""
        if self.is_closed:
            return []
        if isinstance(message, m.Positioned):
            self._note(message.told)
        match message:
            case m.Attached():
                if self._link is SessionLink.ATTACHED:
                    # The job has another number now, before its first round.
                    self.attached = message
                    return []
                if unknown := settings_unknown(self.settings, message.settings_known):
                    self.is_closed = True
                    return [Rejected(UsageError(unknown))]
                return self._was_attached(now, message)
            case m.Refused(text, is_fault):
                self.is_closed = True
                error = InfrastructureError(text) if is_fault else UsageError(text)
                return [Rejected(error)]
            case m.Ack(number):
                known = self._reports.acknowledged(number)
                # The coordinator has no session of this agent any more: a new connection would open
                # one, of a node that is about to be gone.
                self.is_closed = any(isinstance(report, m.Leave) for report in known)
                return [Acknowledged(report) for report in known]
            case m.HeartbeatAck(number, stamp):
                if not self._is_current(stamp):
                    return []
                if self.rules.promises is not None:
                    self.rules.promises.answered(number, now)
                renewed = self._renewed(now, self._lease.answered(number))
                return [*renewed, OrderPushed(message)]
            case m.HandsOver(addresses):
                if self.rules.promises is not None and self.attached is not None:
                    self.rules.promises.handed_over(self.attached.epoch, addresses)
                return []
            case m.DrainAnswer() | m.Answer():
                return []  # for a person who asked instead of taking part
            case m.Collect() | m.CollectMore():
                return [CollectionAsked(message)] if self._link is SessionLink.ATTACHED else []
            case _:
                if not self._is_current(message.stamp):
                    return []
                renewed = self._vouched(now)
                if not isinstance(message, m.Assigned):
                    return [*renewed, OrderPushed(message)]
                self._reports.answered(message)
                if self.rules.promises is not None:
                    rank = message.assignment.group_rank
                    self.rules.promises.assigned(message.stamp, rank)
                # Workers that start when the lease is over would be killed, and that would count.
                over = [LeaseEnded(self._waits_for(now))] if self._lease.is_over else []
                return [*renewed, OrderPushed(message), *over]

    def beat(
        self,
        now: float,
        *,
        is_short_of_memory: bool = False,
        progress: NodeProgress | None = None,
        rounds: tuple[ReportedRound, ...] = (),
    ) -> list[AgentEffect]:
        """Send a heartbeat, because it is due or there is news.

        If an earlier one has waited too long for its answer, the connection is dropped instead.
        Without a connection nothing happens.
        """
        if self._link is SessionLink.NONE:
            return []
        unanswered_s = self._lease.unanswered_s(now)
        if unanswered_s > self.settings.lease_s * DEAF_SHARE:
            return self._drop(unanswered_s)
        number = self._lease.beat(now)
        said = progress and limits.fit(progress)
        told = tuple(map(limits.fit, rounds))
        return [Send(m.Heartbeat(number, self._promise(now), is_short_of_memory, said, told))]

    def next_wake_s(self, now: float) -> float:
        """Return the seconds after which to call `woke_up` and `beat` again.

        That is when a heartbeat is due or, if sooner, just after the end of the lease.
        """
        attached, promises = self.attached, self.rules.promises
        if attached is None or (promises is not None and promises.is_heir):
            return self._lease.next_wake_s(now)
        return self._lease.next_wake_s(
            now, min(attached.beat_s, BEAT_SHARE * self.settings.lease_s)
        )

    @property
    def spread_s(self) -> float:
        """The longest random wait in seconds before the next connection; 0: none is wanted.

        It applies if this node did not end the last connection.
        """
        return 0.0 if self.attached is None else min(self.attached.spread_s, self.settings.lease_s)

    def _promise(self, now: float) -> Promise | None:
        """Return the promise (not to claim the job) for a heartbeat; None: this node makes none."""
        promises, attached = self.rules.promises, self.attached
        if promises is None or self._link is not SessionLink.ATTACHED:
            return None
        assert attached is not None
        return promises.next(now, attached.epoch) if attached.is_replaceable else None

    def _note(self, told: Position | None) -> None:
        if told is not None and (self.told is None or told.order > self.told.order):
            self.told = told

    def _drop(self, unanswered_s: float) -> list[AgentEffect]:
        """Drop a connection on which nothing is answered.

        A new one may get through, or be refused by the host.
        """
        if self._link is SessionLink.NONE:
            return []
        return [Drop(f"no answer from the coordinator for {unanswered_s:.1f} s")]

    def _waits_for(self, now: float) -> str:
        return waiting_text(self._search or self._begun(now), now)

    def _begun(self, now: float) -> Search:
        lease_s, timeout_s = self.settings.lease_s, self.rules.reconnect_timeout_s
        if timeout_s is None and self.attached is not None and self.attached.is_replaceable:
            timeout_s = self.settings.join_timeout_s
        return Search(now, self._lease.ends_at(now), lease_s, timeout_s)

    def _was_attached(self, now: float, message: m.Attached) -> list[AgentEffect]:
        former = self.attached
        replaced = former is not None and former.epoch != message.epoch
        if former is not None and epoch_number(message.epoch) < epoch_number(former.epoch):
            return [Drop("it was answered by a coordinator that no longer leads")]
        self.attached, self._link, self._search = message, SessionLink.ATTACHED, None
        self._lease.attached(now)
        if not message.resumed:
            self._opened = self.generation
            # A coordinator that knows nothing of us can't use what was meant for another.
            self._reports.forget()
        # First: what the end of the lease has this node report comes after what it reported before.
        reports = self._reports.again(now) if replaced else self._reports.unsent(now)
        sends = [Send(numbered) for numbered in reports]
        renewed = self._renewed(now, self._attach_sent_at)
        return [*sends, *renewed, SessionOpened(message.resumed, replaced)]

    def _renewed(self, now: float, sent_at: float | None) -> list[AgentEffect]:
        if sent_at is None:
            return []
        # If this process was stopped since it woke up, the guard may have kept the fence.
        woke_up = self.woke_up(now)
        return [*woke_up, Held(self._lease.renew(now, sent_at, self.rules.vouched_at()))]

    def _vouched(self, now: float) -> list[AgentEffect]:
        """Extend the lease of a node that leads the job itself.

        It counts from when certainly no other node led.
        """
        vouched_at = self.rules.vouched_at()
        if vouched_at == inf or self._link is not SessionLink.ATTACHED:
            return []
        return [*self.woke_up(now), Held(self._lease.vouch(now, vouched_at))]

    def _is_current(self, stamp: Stamp) -> bool:
        attached = self.attached
        return attached is not None and stamp.incarnation == attached.incarnation
