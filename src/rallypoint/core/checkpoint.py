"""The last checkpoint before a job loses nodes, or gains some. Pure.

What the job asks its nodes for (a notice), and when a node may answer.

A notice belongs to one round. It is open from the first `NodeDrains` (or the first wish to grow at
a checkpoint) until every participant has answered, the first leaver's time for it is over, or the
round has ended for another reason. Then those that leave are drained, or late nodes admitted.

Workers that end well while it is open may do so because they were asked, so that is held back. A
notice ends in one of two ways: the round ends with it, and what was held is void, for everybody
starts again; or it is withdrawn, and what was held counts. A wish to grow is withdrawn only while
no node has reported a saved checkpoint: nobody has ended because of it then.

A job whose workers know nothing of this must not wait for them: a node on which no worker listens
answers at once. Else it answers when each worker that listens has saved its checkpoint, or has
ended well. For a growth, which nobody needs to wait for, only a checkpoint that was really saved
counts.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from math import inf

from msgspec import Struct, field

from rallypoint.core.events import NodeSucceeded, Timer, TimerKind
from rallypoint.core.model import EndKind, NodeRef, Stamp
from rallypoint.core.round_state import RoundState, working
from rallypoint.core.text import brief_seconds, count, names
from rallypoint.core.worker_exits import WorkerExit


class Then(Struct, frozen=True):
    """The step that follows a checkpoint which is asked for.

    One of `leaves`, `joins` and `goes_on` is true.
    """

    kind: EndKind
    """The kind of end that the peer and the workers are told."""
    leaves: bool = False
    """Nodes leave, with a checkpoint or without one."""
    joins: bool = False
    """Nodes join, once a checkpoint has been saved: nobody needs to wait for that."""
    goes_on: bool = False
    """The round goes on: a person wants the checkpoint itself."""
    ends: bool = False
    """All nodes leave, since the time of the job is over (`--max-runtime`)."""


LAST_SAVE_S = 300.0
"""A job whose time is over waits this long for a last checkpoint."""
LEAVE = Then(EndKind.DRAIN, leaves=True)
JOIN = Then(EndKind.GROWTH, joins=True)
GO_ON = Then(EndKind.REQUEST, goes_on=True)
END = Then(EndKind.DRAIN, leaves=True, ends=True)
THEN = {then.kind: then for then in (LEAVE, JOIN, GO_ON)}
"""The three plans, by the kind that a message tells."""


class Leaver(Struct, frozen=True):
    """A node that has been told to go."""

    ref: NodeRef
    why: str
    signal: int
    began_at: float
    """On the host's clock."""
    notice_s: float
    """How long its workers may take."""
    hosts: bool
    """The coordinator lives there: the job ends with it."""


class SaveNotice(Struct):
    """A request for a checkpoint.

    Its purpose, the nodes that asked, and those that have yet to answer.
    """

    number: int
    """Counts the notices of a job: older answers are void."""
    then: Then
    round: int
    reason: str
    began_at: float
    leavers: dict[str, Leaver] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    some_listen: bool = False
    """Workers have been asked and have saved a checkpoint, of at least one node."""
    held: dict[str, NodeSucceeded] = field(default_factory=dict)
    """The nodes whose workers have all ended well meanwhile: because they were asked, or for
    good."""
    finishing: bool = False
    """A first worker has, in the same way."""

    @property
    def until(self) -> float:
        """When it ends at the latest; a growth has all the time of the world."""
        last = self.began_at + LAST_SAVE_S if self.then.ends else inf
        return min((x.began_at + x.notice_s for x in self.leavers.values()), default=last)

    @property
    def may_be_withdrawn(self) -> bool:
        """Whether nothing has been done for the notice yet."""
        return self.then.joins and not self.some_listen

    @property
    def is_over(self) -> bool:
        """Everybody has answered.

        Nobody's restart is worth more than a checkpoint: a growth waits until somebody has really
        saved one.
        """
        return not self.awaited and (self.then.leaves or self.some_listen)


class Save(Struct):
    """A checkpoint that a person asks for: the round goes on."""

    number: int
    """The number of the request, counted together with those of notices."""
    round: int
    asked: int
    """The number of nodes that were asked."""
    members: int
    """The members of the job when the ones that are gone were looked for last."""
    awaited: set[str]
    saved: set[str] = field(default_factory=set)
    """Nodes of which all workers that listen have saved one."""
    cut_short: str = ""
    """Why nobody is waited for any more."""

    @property
    def is_over(self) -> bool:
        """Whether no answer is awaited any more."""
        return not self.awaited or bool(self.cut_short)

    @property
    def outcome(self) -> str:
        """For a person, once it is over."""
        if self.cut_short:
            missed = f", not {names(tuple(self.awaited))}" if self.awaited else ""
            saved = f"{len(self.saved)} of {count(self.asked, 'node')} saved{missed}"
            return f"{saved}: {self.cut_short}"
        if not self.saved:
            return (
                "no worker checks for checkpoint requests: call"
                " rallypoint.worker.checkpoint_requested() in the training loop; drain_requested()"
                " and should_restart_at_checkpoint() are for other requests"
            )
        others = self.asked - len(self.saved)
        rest = f"; on {count(others, 'node')} no worker checks for that request" if others else ""
        return f"the workers of {count(len(self.saved), 'node')} have saved a checkpoint{rest}"


def open_notice(
    state: RoundState, number: int, then: Then, reason: str, began_at: float
) -> SaveNotice:
    """Everybody whose workers run is asked. O(N)."""
    awaited = {ref.node_id for ref in working(state)}
    return SaveNotice(number, then, state.round, reason, began_at, awaited=awaited)


def timers_wanted(notice: SaveNotice) -> dict[Timer, float]:
    """Return how long the workers have, for each node that leaves, or for the end of the job."""
    last = {Timer(TimerKind.NOTICE, notice.round): LAST_SAVE_S} if notice.then.ends else {}
    return last | {
        Timer(TimerKind.NOTICE, notice.round, node_id): leaver.notice_s
        for node_id, leaver in notice.leavers.items()
    }


def how_it_went(notice: SaveNotice, cut_short: str) -> str:
    """For a person; empty when no worker has anything to do with it. `cut_short`: by what."""
    if cut_short:
        return f"{cut_short}: continuing without a checkpoint of every worker"
    if notice.awaited:
        time_s = brief_seconds(notice.until - notice.began_at)
        late = count(len(notice.awaited), "node")
        who = names(tuple(sorted(notice.awaited)))
        return f"{late} reported no checkpoint within {time_s} s ({who}): continuing without it"
    return "the workers that were asked have saved a checkpoint" if notice.some_listen else ""


def saved_before_leaving(notice: SaveNotice, cut_short: str = "") -> str:
    """Return the same for a person who has drained a node."""
    missed = "not every worker has saved a checkpoint"
    if cut_short:
        return f"{missed}: {cut_short}"
    if notice.awaited:
        time_s = brief_seconds(notice.until - notice.began_at)
        who = names(tuple(sorted(notice.awaited)))
        return f"{missed}: nothing from {who} within {time_s} s"
    if notice.some_listen:
        return "the workers that were asked have saved a checkpoint"
    return "no checkpoint was saved: no worker checks for such requests"


class SaveRequest(Struct, frozen=True):
    """The coordinator's request to this node's workers."""

    stamp: Stamp
    number: int
    then: Then
    reason: str
    left_s: float | None
    """None: there is no hurry."""


class SaveAnswer(Struct, frozen=True):
    """The answer of this node to the request."""

    listens: bool
    failed: bool


class RequestState(Struct):
    """The workers of one round, and what they are asked."""

    stamp: Stamp
    workers: int
    request: SaveRequest | None = None
    all_asked: bool = False
    """Every worker has got a signal that asks for the checkpoint."""
    told: SaveAnswer | None = None


def asked(state: RequestState, request: SaveRequest, *, by_signal: bool) -> bool:
    """Note a question, new or heard before; False when it is not for these workers."""
    if request.stamp != state.stamp or request == state.request:
        return False
    if state.request is not None and request.number <= state.request.number:
        return False
    state.request, state.told = request, None
    state.all_asked = by_signal and request.then.leaves
    return True


def withdrawn(state: RequestState, number: int, saved: Set[int]) -> bool:
    """Note that the coordinator waits for this answer no more; False when a newer one is asked.

    Once a worker has saved a checkpoint, that worker may end because of it, so the question stands.
    """
    if state.request is None or state.request.number != number or saved:
        return False
    state.request = None
    return True


def answer(
    state: RequestState, listeners: Set[int], saved: Set[int], exits: Collection[WorkerExit]
) -> SaveAnswer | None:
    """Return the answer to send now; None: nothing yet, or nothing new.

    `exits`: of the round's workers.

    Who began to listen late may still be asked for a growth, which waits for a real checkpoint.
    """
    if state.request is None:
        return None
    awaited = frozenset(range(state.workers)) if state.all_asked else frozenset(listeners)
    ended_well = {exit_.local_rank for exit_ in exits if exit_.code == 0}
    failed = len(ended_well) < len(exits)
    if awaited - saved - ended_well and not failed:
        return None
    counted = awaited if state.request.then.leaves else awaited & saved
    found = SaveAnswer(bool(counted), failed)
    may_change = state.request.then.joins and not (state.told and state.told.listens)
    if state.told is not None and not (may_change and found.listens):
        return None
    state.told = found
    return found
