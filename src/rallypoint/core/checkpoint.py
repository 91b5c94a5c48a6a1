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
    """The step that follows a requested checkpoint.

    One of `leaves`, `joins` and `goes_on` is true.
    """

    kind: EndKind
    """The kind of a round's end by which messages to nodes name this step."""
    leaves: bool = False
    """Whether nodes leave, with a checkpoint or without one."""
    joins: bool = False
    """Whether nodes join, but only once a checkpoint has really been saved."""
    goes_on: bool = False
    """Whether the round continues, because a person wants the checkpoint itself."""
    ends: bool = False
    """Whether the job ends, since its time is over (`--max-runtime`)."""


LAST_SAVE_S = 300.0
"""The time for a last checkpoint of a job whose runtime is over, in seconds."""
LEAVE = Then(EndKind.DRAIN, leaves=True)
JOIN = Then(EndKind.GROWTH, joins=True)
GO_ON = Then(EndKind.REQUEST, goes_on=True)
END = Then(EndKind.DRAIN, leaves=True, ends=True)
THEN = {then.kind: then for then in (LEAVE, JOIN, GO_ON)}
"""The step that follows a checkpoint, by the kind of end in the request that a node gets."""


class Leaver(Struct, frozen=True):
    """A node that was told to leave, and whose workers are asked for a checkpoint first."""

    ref: NodeRef
    why: str
    signal: int
    began_at: float
    """When the node was told to leave, on the coordinator's clock."""
    notice_s: float
    """The time in seconds that its workers have for the checkpoint."""
    hosts: bool
    """Whether this node runs a coordinator that no other node can take over, so that the job ends
    when the node leaves."""


class SaveNotice(Struct):
    """The coordinator's request to all nodes for a checkpoint, before nodes leave or join.

    It is also made before the job ends because its time is over. It has the nodes that will leave,
    and those that have yet to answer.
    """

    number: int
    """The number of this request for a checkpoint, which the answers to it repeat."""
    then: Then
    round: int
    reason: str
    began_at: float
    leavers: dict[str, Leaver] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    some_listen: bool = False
    """If nodes are to join: whether a node has answered that a worker has saved a checkpoint. Else:
    whether a node has answered whose workers were to save one, or have all exited with 0."""
    held: dict[str, NodeSucceeded] = field(default_factory=dict)
    """The nodes whose workers have all exited with 0 since the request, because of it or because
    their work is done."""
    finishing: bool = False
    """Whether a node has reported since the request that a worker of it has exited with 0."""

    @property
    def until(self) -> float:
        """When the time of the first leaving node is over, on the coordinator's clock.

        If no node leaves, it is `LAST_SAVE_S` after the request where the job's time is over, and
        infinite where nodes are to join.
        """
        last = self.began_at + LAST_SAVE_S if self.then.ends else inf
        return min((x.began_at + x.notice_s for x in self.leavers.values()), default=last)

    @property
    def may_be_withdrawn(self) -> bool:
        """Whether the request may be withdrawn: nodes are to join, and no node has saved yet."""
        return self.then.joins and not self.some_listen

    @property
    def is_over(self) -> bool:
        """Whether all nodes have answered, and, if nodes are to join, a checkpoint was saved."""
        return not self.awaited and (self.then.leaves or self.some_listen)


class Save(Struct):
    """A checkpoint that a person has requested, after which the round continues."""

    number: int
    """The number of this request for a checkpoint. A job's requests because nodes leave or join are
    counted together with those of people."""
    round: int
    asked: int
    """The number of nodes that were asked."""
    members: int
    """The number of nodes in the job when those that have gone were last taken out of `awaited`."""
    awaited: set[str]
    saved: set[str] = field(default_factory=set)
    """The nodes on which a worker has saved, and all others that look for such requests have saved
    or exited with 0."""
    cut_short: str = ""
    """The reason why the wait for answers ended early; empty: it did not."""

    @property
    def is_over(self) -> bool:
        """Whether no further node's answer is awaited."""
        return not self.awaited or bool(self.cut_short)

    @property
    def outcome(self) -> str:
        """The result so far, as a sentence for the person who asked."""
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
    """Return a new notice, a request for a checkpoint, to all nodes whose workers run. O(N)."""
    awaited = {ref.node_id for ref in working(state)}
    return SaveNotice(number, then, state.round, reason, began_at, awaited=awaited)


def timers_wanted(notice: SaveNotice) -> dict[Timer, float]:
    """Return the timers of a request for a checkpoint, in seconds.

    There is one for each leaving node, and one of `LAST_SAVE_S` if the job's time is over.
    """
    last = {Timer(TimerKind.NOTICE, notice.round): LAST_SAVE_S} if notice.then.ends else {}
    return last | {
        Timer(TimerKind.NOTICE, notice.round, node_id): leaver.notice_s
        for node_id, leaver in notice.leavers.items()
    }


def how_it_went(notice: SaveNotice, cut_short: str) -> str:
    """Return the result of a notice, a request for a checkpoint, for display.

    Empty if all nodes have answered, and none has workers that look for requests. `cut_short` is
    the reason of an early end, else empty.
    """
    if cut_short:
        return f"{cut_short}: continuing without a checkpoint of every worker"
    if notice.awaited:
        time_s = brief_seconds(notice.until - notice.began_at)
        late = count(len(notice.awaited), "node")
        who = names(tuple(sorted(notice.awaited)))
        return f"{late} reported no checkpoint within {time_s} s ({who}): continuing without it"
    return "the workers that were asked have saved a checkpoint" if notice.some_listen else ""


def saved_before_leaving(notice: SaveNotice, cut_short: str = "") -> str:
    """Return the result of a drain's checkpoint, as a clause for the person who drained the node.

    `cut_short` is the reason of an early end.
    """
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
    """The coordinator's request for a checkpoint to the workers of this agent."""

    stamp: Stamp
    number: int
    then: Then
    reason: str
    left_s: float | None
    """The time that is left for the checkpoint, in seconds; None: there is no deadline."""


class SaveAnswer(Struct, frozen=True):
    """A node's answer to the coordinator's request for a checkpoint."""

    listens: bool
    failed: bool


class RequestState(Struct):
    """An agent's state of the request for a checkpoint to the workers of one round."""

    stamp: Stamp
    workers: int
    request: SaveRequest | None = None
    all_asked: bool = False
    """Whether every worker of the node gets a signal that asks for the checkpoint."""
    told: SaveAnswer | None = None


def asked(state: RequestState, request: SaveRequest, *, by_signal: bool) -> bool:
    """Note the coordinator's newest request, and return True.

    Return False, and change nothing, if it is for the workers of another round, or if it or a newer
    one was noted before.

    `by_signal`: each worker gets a signal, so that each is awaited if nodes leave.
    """
    if request.stamp != state.stamp or request == state.request:
        return False
    if state.request is not None and request.number <= state.request.number:
        return False
    state.request, state.told = request, None
    state.all_asked = by_signal and request.then.leaves
    return True


def withdrawn(state: RequestState, number: int, saved: Set[int]) -> bool:
    """Withdraw the request with this number from the workers; return whether that was done.

    It was not if this request is not the open one, or if a worker has saved a checkpoint: that
    worker may end because of the request, so the request stays.
    """
    if state.request is None or state.request.number != number or saved:
        return False
    state.request = None
    return True


def answer(
    state: RequestState, listeners: Set[int], saved: Set[int], exits: Collection[WorkerExit]
) -> SaveAnswer | None:
    """Return the answer that the agent has to send now; None: nothing yet, or nothing new.

    There is one once each awaited worker has saved or exited with 0, or a worker has failed. The
    `listeners` are awaited, or all workers if a signal has asked each.

    `listeners` and `saved` are the local ranks that look for requests, and that have saved since
    the request. `exits` are the exits of workers of this round.

    While nodes wait to join, a node may answer again: first that no worker listens, later that one
    that began to listen has saved.
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
