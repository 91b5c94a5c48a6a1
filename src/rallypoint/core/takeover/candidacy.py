"""A process that would lead a job, until it does or gives that up (section L1 of the design). Pure.

It looks at the job's record again and again. Each method that is named by what happens returns what
follows: a look, a claim, a wait for so many seconds, or the end. The last effect is the one whose
end happens next, so that a candidacy does one thing at a time: it reads, or claims, or waits.

Three kinds of processes would lead. A coordinator to whose address the nodes go (`rallypoint
serve`) waits until nobody else leads: `Candidacy`. A process that is no node and whose address
nobody knows (`serve --candidate`) attaches to the leader as well, and promises what heirs promise:
`Standby`. A node looks for the leader, too: `leader_search.Search`.

Times are seconds on the clock of the hold (`leading.py`).
"""

from __future__ import annotations

from math import inf

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import messages as m
from rallypoint.core.model import Epoch
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import Claimant, rank_in
from rallypoint.core.takeover.leading import RELEASE_S, Watch, claimed, is_unheard
from rallypoint.core.takeover.memory import Memory, order_of
from rallypoint.core.takeover.record import Leader, LeadRecord
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import PositionOrder
from rallypoint.errors import (
    RallypointError,
    RecordError,
    RendezvousConnectionError,
    UnfitRecordError,
)

HURRY_S = 0.1
"""The seconds between a candidate's reads of the record just after its connection to the leader
broke: the leader may have died."""
REDIAL_S = 1.0
UNUSED_S = 60.0
"""The seconds after which a candidate gives up a job whose record it has never seen change, and
which does not list it. It looks at the job again when the register changes."""


class Present(Struct, frozen=True):
    """The part in the job that a process which would lead it has at present."""

    node: Claimant | None = None
    """The node's place in the job; None: the process is not a node."""
    is_attached: bool = False
    """Whether the process is a node that is connected to a leader."""
    leads: bool = False
    """Whether the process leads the job."""
    is_awaited: bool = False
    """Whether an agent of the job waits until this process leads the job."""


class Found(Struct, frozen=True):
    """The result of one read of a job's register: its record, and what is known of its leader."""

    at: float
    record: LeadRecord | None
    present: Present = Present()
    is_gone: bool = False
    """Whether the process of the record's leader is known to have ended, or is the reading process
    itself, which does not lead now."""
    unfit: UnfitRecordError | None = None
    """The error that says why no leader can have written the content; `record` is None then. None:
    there is no such error."""
    token: object = None
    """The register's token of the version that was read."""


class Claim(Struct, frozen=True):
    """An attempt to lead a job: the record to swap into its register, and what it is based on."""

    record: LeadRecord
    known: PositionOrder
    """The order (epoch number, incarnation, beat) of the newest record that this process knew,
    itself or by a position that it was told."""
    is_put_back: bool
    """Whether this process knew a newer record than it found in the register."""
    found: LeadRecord | None
    """The record that the claim continues; None: there is none. If the one in the register is
    outdated, this is a newer one that the process knows."""
    seen_at: float
    """When the record in the register was first seen to be as it is now, or seen again after a
    pause in looking."""
    promised_until: float


class Look(Struct, frozen=True):
    """The effect to read the job's register.

    Then `found` is called with the result, or `unread` with the error.
    """


class Swap(Struct, frozen=True):
    """The effect to claim the job by swapping this claim's record into the register.

    Then call `swapped` with the answer, or `unread` with the error.
    """

    claim: Claim


class Lead(Struct, frozen=True):
    """The effect to lead the job from now on, by this claim."""

    claim: Claim
    sent_at: float
    at: float


class Wait(Struct, frozen=True):
    """The effect to wait for at most this time, and then look at the register again (`looks`)."""

    seconds: float
    for_change: bool = False
    """Whether the wait ends early when the register changes, if the register can signal that."""


class Say(Struct, frozen=True):
    """The effect to show this text to the user."""

    text: str


class GiveUp(Struct, frozen=True):
    """The effect to end this candidacy: it is not needed, or it can't continue."""


class Dial(Struct, frozen=True):
    """The effect to connect a candidate to the leader at these addresses.

    Its connection to an earlier leader is closed.
    """

    addresses: tuple[str, ...]
    epoch: int = 0
    heartbeat_s: float = 0.0


class Listen(Struct, frozen=True):
    """The effect to open a listener on which this node could lead the job; then call `listened`."""


class Close(Struct, frozen=True):
    """The effect to close the listener of this node, on which it would have led the job."""


class TryWriting(Struct, frozen=True):
    """The effect to try whether the register accepts writes of this process; then call `tried`."""


class LeaderChanged(Struct, frozen=True):
    """The effect to break off an attempt to connect, since the leader may be another one now.

    That may be this node itself.
    """


class LookNow(Struct, frozen=True):
    """The effect to read the register before the wait for the next look is over.

    A caller that wants a connection waits a moment for the result.
    """


class Interrupt(Struct, frozen=True):
    """The effect to end a node's search at once, even in the middle of a read or a wait."""


Effect = (
    Look | Swap | Lead | Wait | Say | GiveUp | Dial | Listen | Close | TryWriting | LeaderChanged
) | (LookNow | Interrupt)


class Judged(Struct, frozen=True):
    """The conclusion from the content of the register: whether this process may claim the job."""

    record: LeadRecord | None
    claims_in_s: float
    """The least wait in seconds before a claim; 0: claim now."""
    is_behind: bool = False
    """Whether this process knows a newer record than the register holds."""
    unfit: str = ""
    """Why no leader can have written the content of the register; `record` is None then. Empty:
    nothing is wrong with it."""

    @property
    def is_newest(self) -> bool:
        """Whether this process knows no newer record than `record`, which a leader has written."""
        return not self.is_behind and not self.unfit


class Candidacy:
    """The state machine by which a coordinator with a fixed address comes to lead a job.

    It also is the base of those for other processes: `serve --candidate` (`Standby`), and nodes
    (`leader_search.Search`).
    """

    def __init__(
        self, leader: Leader, nonce: int, memory: Memory, *, is_kept: bool = False
    ) -> None:
        """`leader`: this process, as in its record.

        `nonce`: a random number for its first epoch. `memory`: the records of the job that the
        process knows. `is_kept`: a missing record does not mean that the job has ended, since no
        coordinator removes it while a node lives.
        """
        self.leader, self.memory, self._is_kept = leader, memory, is_kept
        self.record: LeadRecord | None = None
        """The record that the last look found, or that this process has just claimed with; None: no
        usable one."""
        self.claim: Claim | None = None
        """The claim that this process has sent and the register has not answered yet; None: there
        is none."""
        self.claimant: Claimant | None = None
        """The part of the process in the job, and its promises, when the last look began. None: it
        is neither a node nor a candidate."""
        self._begin(nonce)

    def _begin(self, nonce: int) -> None:
        self.watch, self.claim = Watch(), None
        self._nonce, self._attempts = nonce, 0
        self._unfit, self._unfit_token = 0, object()

    def looks(self, present: Present) -> list[Effect]:
        """Note the process's present part in the job; return the effect that reads the register."""
        self.claimant = self._claimant(present)
        return [Look()]

    def _claimant(self, present: Present) -> Claimant | None:
        return present.node

    def found(self, event: Found) -> list[Effect]:
        """Return what follows from a read of the register: a claim, or a wait and its reason.

        Raises RecordError for an unusable record. With such a record a node's search waits instead,
        and a `Standby` gives up.
        """
        try:
            return self._examine(event)
        except RecordError as error:
            return self.unread(event.at, error)

    def _examine(self, event: Found) -> list[Effect]:
        """Return a claim if this process may claim the job now, else a wait with its reason.

        Raises RecordError.
        """
        judged = self.judge(event)
        self.record = judged.record
        if not judged.claims_in_s:
            return [self.swap()]
        return [Say(_waits_for(judged)), Wait(self.watch.look_s)]

    def unread(self, at: float, error: RallypointError) -> list[Effect]:
        """Return the wait for the next look, after a failed read or a claim of unknown outcome.

        Raises the error unless it is a RendezvousConnectionError.
        """
        self.claim = None
        if not isinstance(error, RendezvousConnectionError):
            raise error
        return [Say(str(error)), Wait(self.watch.look_s)]

    def swapped(
        self, at: float, *, is_ours: bool, sent_at: float = 0.0, nonce: int = 0
    ) -> list[Effect]:
        """Handle the register's answer to a claim that was sent at `sent_at`.

        `is_ours`: the register holds the claim, so this process leads; else it looks again. `nonce`
        is a random number for the next candidacy of this process.
        """
        claim = self.claim
        self.claim = None
        if not is_ours or claim is None:
            # What was read may be as old as a cache lets it be: then the claim has failed.
            is_old = claim is not None and claim.is_put_back
            return [Wait(self.watch.look_s if is_old else 0.0)]
        self.record = claim.record
        self.memory.saw(claim.record, is_own=True)
        self._begin(nonce)
        return [Lead(claim, sent_at, at)]

    def judge(self, event: Found) -> Judged:
        """Return when this process may claim the job, and note the record that was found.

        Raises UnfitRecordError if no leader can have written the content and this process knows no
        record to continue.
        """
        memory, record, unfit, claimant = self.memory, event.record, event.unfit, self.claimant
        if claimant is not None and claimant.told is not None:
            memory.was_told(claimant.told, claimant.settings)
        if record is not None and (fault := memory.fault_in(record)):
            record, unfit = None, UnfitRecordError(fault)
        if unfit is not None:
            if memory.restored(None) is None:
                raise unfit
            if self._unfit_token != event.token:
                self._unfit, self._unfit_token = self._unfit + 1, event.token
            return Judged(None, self._behind_in_s(None, event.at), True, str(unfit))
        if record is None and not self._is_kept:
            memory.saw_none()
        if memory.is_behind(record):
            return Judged(record, self._behind_in_s(record, event.at), is_behind=True)
        if record is None:
            return Judged(None, 0.0)
        memory.saw(record)
        watch, now = self.watch, event.at
        wait_s = watch.claims_in_s(record, now, is_gone=event.is_gone, claimant=claimant)
        return Judged(record, max(wait_s, watch.begins_in_s(record, now, claimant)))

    def _behind_in_s(self, record: LeadRecord | None, now: float) -> float:
        """Return how long to wait before a claim over an outdated record, in seconds."""
        if self.memory.may_claim_at_once(record):
            return 0.0
        restored = self.memory.restored(record)
        return self.watch.claims_behind_in_s(record, restored, now, self.claimant, self._unfit)

    def swap(self, addresses: tuple[str, ...] = ()) -> Swap:
        """Return the effect that claims the job.

        Its record continues the one that was found last, or a newer one that this process knows.
        `addresses` are those on which this process listens for this job alone; empty: those of
        `leader`.
        """
        leader = replace(self.leader, addresses=addresses) if addresses else self.leader
        memory, found, claimant = self.memory, self.record, self.claimant
        number, is_behind = memory.next_number(found), memory.is_behind(found)
        known = max(memory.known, order_of(found))
        if is_behind:
            found = memory.restored(found)
        if found is not None and found.job is not None and is_unheard(found, claimant):
            found = replace(found, job=replace(found.job, is_heard=True))
        rank = -1 if found is None or claimant is None else rank_in(found, claimant)
        record = claimed(found, leader, self._nonce, rank, self._attempts, number)
        self._attempts += 1
        promised_until = -inf if claimant is None else claimant.promised_until
        seen_at = self.watch.since
        self.claim = Claim(record, known, is_behind, found, seen_at, promised_until)
        return Swap(self.claim)


class Standby(Candidacy):
    """The candidacy of a process that is not a node, and whose address no node knows.

    It is that of `serve --candidate`, and ends when the process leads the job or is not needed any
    more. It claims no job that it has not seen alive. Nor does it claim one of a coordinator with a
    fixed address (`rallypoint serve` without candidates), which lists no candidates.
    """

    def __init__(
        self, leader: Leader, nonce: int, memory: Memory, deference: Deference, number: int
    ) -> None:
        """Make the candidacy for one job.

        `number` is random. It stands for this process until its first connection to the leader
        (`has_number`). `deference`: how long others may claim first after this process has stepped
        down.
        """
        super().__init__(leader, nonce, memory, is_kept=True)
        self.promises, self._deference = Promises(0.0, number), deference
        self._number = number
        """The number by which the leader knows this process; each connection has another one."""
        self._changed_at, self._sent = inf, 0
        self._has_changed = False
        self._is_of_nodes = False
        """Whether a node has led the job, so that the nodes look for the leader in the register."""
        self._told: Epoch | None = None
        """The epoch of the leader for which readiness was last reported to the user."""
        self._dialled: Epoch | None = None
        """The epoch of the last record; its leader is dialled when that is due. None: none yet."""
        self._is_dialled = False
        """Whether the process is connected to the leader in the last record, or tries to be."""
        self._dialled_at = self._hurries_until = -inf

    def heartbeats(self, now: float, epoch: int) -> list[m.Heartbeat]:
        """Return a heartbeat with a promise for this epoch's leader; empty: none is made now."""
        promise = self.promises.next(now, epoch)
        self._sent += promise is not None  # No two heartbeats have one number.
        return [] if promise is None else [m.Heartbeat(self._sent, promise)]

    def has_number(self, number: int) -> None:
        """Note a new connection to the leader, on which the process has this number."""
        self._number = number
        self.promises.has_number(number)

    def _claimant(self, present: Present) -> Claimant:
        return Claimant(
            promised_until=self.promises.until,
            defers_until=self._deference.until,
            candidate=self._number,
        )

    def _examine(self, event: Found) -> list[Effect]:
        """Return a claim, the end of the candidacy, or a wait, perhaps with a connection.

        The connection is to the leader in the record.
        """
        judged, before = self.judge(event), self.record
        record, claimant = judged.record, self.claimant
        self.promises.saw(record, is_newest=judged.is_newest)
        if record is None or (record.job is not None and record.job.verdict is not None):
            return [GiveUp()]
        if record != before:
            self._has_changed |= before is not None
            self.record, self._changed_at = record, event.at
        self._is_of_nodes |= record.leader.has_workers
        is_listed = self._number in record.candidates
        if event.present.is_awaited and not is_listed and not self._is_of_nodes:
            return [GiveUp()]
        said: list[Effect] = []
        if is_listed and self._told != record.epoch:
            self._told = record.epoch
            said.append(Say(f"ready to take over from {', '.join(record.leader.addresses)}"))
        may_claim = is_listed or (self._is_of_nodes and self._has_changed)
        # The read may have taken long.
        assert claimant is not None
        has_promised = self.promises.until > claimant.promised_until and not record.is_vacant
        if not judged.claims_in_s and may_claim and not has_promised:
            self.promises.claiming(record)
            return [*said, self.swap()]
        said += self._follow(record, event.at)
        is_unused = event.at - self._changed_at > UNUSED_S and not is_listed
        ends = is_unused and not self._has_changed
        return [*said, GiveUp() if ends else self._pause(event.at)]

    def _follow(self, record: LeadRecord, now: float) -> list[Effect]:
        """Return the effect that connects to this record's leader, if that is due; else nothing."""
        if record.epoch != self._dialled:
            self._dialled, self._dialled_at, self._is_dialled = record.epoch, -inf, False
        is_due = not self._is_dialled and now - self._dialled_at > REDIAL_S
        if record.job is None or record.is_vacant or not is_due:
            return []
        self._dialled_at, self._is_dialled = now, True
        settings = record.job.settings
        self.promises.lease_s = settings.lease_s
        return [Dial(record.leader.addresses, record.epoch.as_int(), settings.heartbeat_s)]

    def _pause(self, now: float) -> Wait:
        return Wait(HURRY_S if now < self._hurries_until else self.watch.look_s)

    def dialled(self, at: float, *, was_connected: bool) -> None:
        """Note that the attempt to attach to the leader, or the connection, has ended.

        `was_connected`: it was a connection. For a few seconds then the register is read more
        often.
        """
        self._is_dialled = False
        if was_connected:  # The leader may have died just now.
            self._hurries_until = at + RELEASE_S

    def unread(self, at: float, error: RallypointError) -> list[Effect]:
        self.claim = None
        if isinstance(error, RendezvousConnectionError):
            return [self._pause(at)]  # The leader says that it can't write either.
        return [Say(f"this coordinator can't stand ready to lead the job: {error}"), GiveUp()]


def gone() -> RendezvousConnectionError:
    """Return the error of a process that has seen a job's record, and finds it gone.

    An unmounted directory looks the same, so a job is not begun anew there while its leader and its
    nodes may live.
    """
    return RendezvousConnectionError(
        "the job's record is gone: it was removed, or its directory is not mounted: looking for "
        "it again"
    )


def _waits_for(judged: Judged) -> str:
    """Return the reason why this process does not claim the job yet, for display."""
    if judged.unfit:
        return judged.unfit
    if judged.record is None:
        return "the job's record is gone: waiting for its leader to write it again"
    where = ", ".join(judged.record.leader.addresses)
    return f"another coordinator ({where}) leads this job: waiting until it stops"
