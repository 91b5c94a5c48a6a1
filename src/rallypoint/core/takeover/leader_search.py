"""The search of a node for the leader, and its own candidacy (section L1). Pure.

A node without a leader reads the register. It dials the leader in the record, or claims the job
when it is its turn. An heir reads the register all the time, since it is the first to claim, and
offers to lead in place of a leader that answers but can't write its record. Other nodes do not read
the register while all is well. A node needs a listener before it claims.

Times are seconds on the clock of the hold (`leading.py`).
"""

from __future__ import annotations

from math import inf
from typing import Literal

from msgspec.structs import replace

from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover.candidacy import Candidacy, Effect, Say, Wait, gone
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import RANKS, Claimant
from rallypoint.core.takeover.leading import VersionRefusals
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.text import versions_text
from rallypoint.errors import (
    RallypointError,
    RecordError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    VersionMismatchError,
)

FRESH_S = 0.2
"""The age in seconds up to which a record is reused for another attempt to connect."""
AFTER_CLAIM_S = 5.0
RETRY_S = 0.2
JUDGED_S = 5.0
"""The seconds after which a new node usually knows whether a leader of another version stays."""
TOLD_S = 3.0
"""The shortest wait in seconds, of a node for its turn to claim the job, that is reported to the
user."""


Purpose = Literal["probe", "offer", "claim"]
"""The reason for which the node listens: to find out whether it could lead, to offer to lead in
place of a leader that can't write its record, or to lead."""


class Search(Candidacy):
    """The search of one node for the job's leader, and its own candidacy."""

    def __init__(
        self, leader: Leader, nonce: int, memory: Memory, promises: Promises, deference: Deference
    ) -> None:
        super().__init__(leader, nonce, memory, is_kept=True)
        self.promises, self._deference = promises, deference
        self._is_stopped = False
        self.claims_at = inf
        """When this node may claim the job, if the register does not change; infinite: not
        known."""
        self.hindrance = ""
        """Why this node could not claim the job when it was its turn; empty: nothing hindered
        it."""
        self._error: RallypointError | None = None
        """The error of the last look at the register; None: the look succeeded."""
        self._looked_at = -inf
        self._present = c.Present()
        self._wait_s = 0.0
        self._purpose: Purpose = "probe"
        self._offered: tuple[str, ...] = ()
        """The addresses at which this node listens and offers to lead the job; empty: it does
        not."""
        self._is_late = False
        """Whether the user was told that this node sees new records late."""
        self._has_probed = False
        """Whether this node has tried to listen, in case it has to lead the job."""
        self._unusable = ""
        """The last line that was reported about a register without a usable record; empty: it has
        one."""

    def looks(self, present: c.Present) -> list[Effect]:
        is_first = present.node is not None and 0 <= present.node.rank < RANKS
        if self._is_stopped:
            return []
        if present.leads or not (is_first or not present.is_attached):
            return [Wait(self.watch.look_s)]
        return super().looks(present)

    def _claimant(self, present: c.Present) -> Claimant:
        """Return the node as a claimant, with its promises and deferences."""
        return replace(
            present.node or Claimant(),
            promised_until=self.promises.until,
            defers_until=self._deference.until,
            freed_epoch=self.promises.freed_epoch,
        )

    def _examine(self, event: c.Found) -> list[Effect]:
        judged, before, now = self.judge(event), self.record, event.at
        effects: list[Effect] = []
        if not judged.unfit:
            self._unusable = ""
        elif judged.claims_in_s:  # A node that claims at once has just said why.
            effects += self._tell_unusable(judged.unfit)
        if judged.record is None and before is not None and not judged.is_behind:
            return [*effects, *self.unread(now, gone())]
        record = self.record = judged.record
        self._error, self._looked_at, self._present = None, now, event.present
        self.claims_at = now + judged.claims_in_s
        if before is None or record is None or before.epoch != record.epoch:
            effects.append(c.LeaderChanged())
        self.promises.saw(record, is_newest=judged.is_newest)
        effects += self._compare_views(now)
        self._wait_s = min(self.watch.look_s, judged.claims_in_s)
        if not judged.claims_in_s:
            return [*effects, *self._claim_unless_bound(judged)]
        if self._present.is_attached and self.promises.is_heir and not self._has_probed:
            self._has_probed = True
            if not self._offered:
                return [*effects, self._listen("probe")]
        return [*effects, *self._offer(now)]

    def _claim_unless_bound(self, judged: c.Judged) -> list[Effect]:
        """Return a claim, or first a listener for it.

        Only a wait if the node was bound by a new promise or position during the read, which may
        have taken long. Nothing if the node stops.
        """
        claimant, node = self.claimant or Claimant(), self._present.node or Claimant()
        record = judged.record
        is_vacant = record is not None and record.is_vacant
        has_promised = self.promises.until > claimant.promised_until and not is_vacant
        told = node.told
        is_told = told is not None and (claimant.told is None or told.epoch != claimant.told.epoch)
        if self._is_stopped:
            return []
        if has_promised or is_told:
            return [self._rest(RETRY_S)]
        if not self._offered:
            return [self._listen("claim")]
        return self._claim(self._offered)

    def _claim(self, addresses: tuple[str, ...]) -> list[Effect]:
        self._offered = ()
        self.promises.claiming(self.record)
        return [self.swap(addresses)]

    def _rest(self, seconds: float) -> Wait:
        return Wait(seconds, for_change=True)

    def _listen(self, purpose: Purpose) -> c.Listen:
        self._purpose = purpose
        return c.Listen()

    def listened(self, at: float, addresses: tuple[str, ...], why: str = "") -> list[Effect]:
        """Note whether the node listens: do what it listens for, or leave that to other nodes.

        `addresses`: where it listens. `why`: the reason why it does not; empty: it does.
        """
        text = f"this node can't lead the job: {why}"
        match self._purpose, not why:
            case "claim", True:
                return self._claim(addresses)
            case "claim", _:
                self.hindrance = text
                return self.unread(at, RendezvousConnectionError(text))
            case "offer", True:
                self._offered = addresses
                self.promises.offer(self._offered, at)
            case "probe", True:
                return [c.Close(), *self._offer(at)]
            case "probe", _:
                text += (
                    "; it is one of the first four nodes, which take over if the leading node is "
                    "lost. Another one has to; if none can, all nodes stop their workers"
                )
                return [Say(text), *self._offer(at)]
        return [self._rest(self._wait_s)]

    def _offer(self, now: float) -> list[Effect]:
        """Return a test whether this node can write the register, if the leader seems unable to.

        It seems so if the leader answers, but its record has stood still. Else withdraws the offer
        to lead.
        """
        if self._present.is_attached and now - self.watch.since > self.watch.late_s:
            return [c.TryWriting()]
        return self.tried(now, is_writable=False)

    def tried(self, at: float, *, is_writable: bool) -> list[Effect]:
        """Offer to lead if the register accepts writes of this node; else withdraw the offer."""
        if is_writable and not self._offered:
            return [self._listen("offer")]
        closing: list[Effect] = []
        if not is_writable:
            closing = [c.Close()] if self._offered else []
            self._offered = ()
        self.promises.offer(self._offered, at)
        return [*closing, self._rest(self._wait_s)]

    def unread(self, at: float, error: RallypointError) -> list[Effect]:
        effects = list[Effect]()
        self._error = error
        if self.claim is not None:
            self.claim = None
            effects.append(c.Close())
        if isinstance(error, RecordError):
            no_node = "no node can lead the job with this record"
            effects += self._tell_unusable(f"{no_node}: {error}")
        return [*effects, self._rest(self.watch.look_s)]

    def swapped(
        self, at: float, *, is_ours: bool, sent_at: float = 0.0, nonce: int = 0
    ) -> list[Effect]:
        effects = super().swapped(at, is_ours=is_ours, sent_at=sent_at, nonce=nonce)
        if not is_ours:
            return [c.Close(), *effects]
        after = [] if self._is_stopped else [Wait(self.watch.look_s)]
        return [*effects, c.LeaderChanged(), *after]

    def _tell_unusable(self, why: str) -> list[Effect]:
        """Report once, for each reason, that the register holds no usable record.

        A node that has just started does not report it, since it ends with that line anyway.
        """
        is_fresh = self.claimant is not None and self.claimant.is_fresh
        if is_fresh or why == self._unusable:
            return []
        self._unusable = why
        return [Say(why)]

    def _compare_views(self, now: float) -> list[Effect]:
        """Report once if new records come late: the leader answers, but its record stands still."""
        still_s, silent_s = now - self.watch.since, now - self.promises.answered_at
        # It has answered when its record was late already.
        is_late = self._present.is_attached and still_s - silent_s > self.watch.late_s
        if not is_late or self._is_late:
            return []
        self._is_late = True
        return [
            Say(
                f"the leader of the job answers, but nothing new was seen in its register for "
                f"{still_s:.0f} s. Either it can't write there, or this node reads old data (NFS "
                "caches: mount with actimeo=1). A takeover then takes that much longer"
            )
        ]

    def wanted(self, at: float) -> list[Effect]:
        """Return the effect that looks for the leader now, because a connection to it is wanted.

        Empty: the last look was just now, or the search has stopped.
        """
        is_stale = at - self._looked_at > FRESH_S
        return [c.LookNow()] if is_stale and not self._is_stopped else []

    def whom(self) -> tuple[str, ...]:
        """Return the addresses of the leader, or of the node to which it has handed the job over.

        If the register is away, they are those of the leader that was known last, which may lead by
        promises. Raises RendezvousConnectionError if no process leads, and any other error of the
        last look.
        """
        error, record = self._error, self.record
        is_away = isinstance(error, RendezvousConnectionError)
        if error is not None and (record is None or not is_away):
            raise error
        if record is None:
            raise RendezvousConnectionError("no node leads the job yet")
        if record.is_vacant:
            raise RendezvousConnectionError("the node that led the job has gone")
        following = self.promises.next_leader
        is_handed_over = following.epoch == record.epoch.as_int()
        return following.addresses if is_handed_over else record.leader.addresses

    def stops(self) -> list[Effect]:
        """Look and claim no more; return the effect that interrupts the search.

        A claim that has begun is carried through: the register may hold it already. Then nothing is
        returned.
        """
        self._is_stopped = True
        return [] if self.claim is not None else [c.Interrupt()]


class FirstWait:
    """The wait of a new node for its first leader, which may be itself."""

    def __init__(self, search: Search, at: float, timeout_s: float) -> None:
        """Make the wait, which begins at `at`.

        It lasts `timeout_s` seconds, or longer if this node's own turn to lead comes later.
        """
        self._search, self._timeout_s = search, timeout_s
        self._ends_at, self._judged_by, self._is_extended = at + timeout_s, at + JUDGED_S, False
        self._own = search.leader.versions or (0, 0)
        self._refusals = VersionRefusals(self._own)
        self._said: set[str] = set()

    def unreached(self, error: RendezvousConnectionError, now: float) -> list[Say | Wait]:
        """Return the wait after a failed attempt to reach the leader, perhaps after a line to show.

        Raises RendezvousTimeoutError when the time is over, or VersionMismatchError if the leader
        stays and has no common version.
        """
        search, refusal = self._search, error.__cause__
        if isinstance(refusal, VersionMismatchError):
            record = search.record
            if record is not None and self._refusals.is_final(record):
                theirs = record.leader.versions
                if theirs is None:
                    raise refusal
                raise VersionMismatchError(versions_text(*self._own), versions_text(*theirs))
            if now < self._judged_by:
                return [Wait(RETRY_S)]
        if now > self._ends_at and not self._is_extended and search.claims_at < inf:
            # All that led before may be gone: then it is this node's turn at last.
            self._ends_at = max(self._ends_at, search.claims_at + AFTER_CLAIM_S)
            self._is_extended = True
        if now > self._ends_at:
            why = search.hindrance or error
            text = f"no node led the job within {self._timeout_s:g} s ({why})"
            raise RendezvousTimeoutError(text) from error
        text = f"waiting for a node that leads the job ({error})"
        if text in self._said:  # Each reason is said once, though they may take turns.
            return [Wait(RETRY_S)]
        self._said.add(text)
        left_s = search.claims_at - now
        if TOLD_S <= left_s < inf:
            text += f": if no other node leads it by then, this one does in about {left_s:.0f} s"
        return [Say(text), Wait(RETRY_S)]
