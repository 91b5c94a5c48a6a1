"""A job over a shared store without logic, in memory: nodes that are the real `SharedMember`.

    cluster = SharedCluster(SharedSettings("job", min_nodes=2, max_nodes=4))
    a, b = cluster.join("a"), cluster.join("b")
    cluster.pass_time(40)                   # the last call ends
    assert cluster.world == ["a", "b"]
    cluster.kill(a)

Nothing here sleeps, blocks or reads a clock. Nodes look at the store in turn, each on a clock of
its own, and a caller may stop one anywhere: before it looks, and between its read and its write.
What a node does at a look is what `rendezvous.shared_driver` does, without its waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from rallypoint.core.events import Effect, NodeJoined, NodeLeft, TimerEnded
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.core.round_state import MemberState, RoundPhase
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.rendezvous.shared.member import (
    Closed,
    InWorld,
    Outlook,
    Outside,
    SharedMember,
    Suspect,
)
from rallypoint.elastic.rendezvous.shared.round import SharedState
from rallypoint.testing.clock import Clock, FakeClock

Change = Callable[[SharedState, str], list[Effect] | None]


class StoreFailed(Exception):
    """This node can't use the store, or does not know whether its write was stored."""


class Halted(Exception):
    """This node was stopped between its read and its write."""


class StoredState(Struct, frozen=True):
    """One version of the value: who stored it, when, and what it replaced."""

    by: NodeRef
    at_s: float
    before: SharedState | None
    after: SharedState


class MemoryValue:
    """The store: one value with compare-and-swap, and a place for beats."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.token = 0
        self.beats: dict[str, int] = {}

    def swap(self, value: bytes, token: int) -> bool:
        """Store it if no other node has since `token`."""
        if token != self.token:
            return False
        self.value, self.token = value, token + 1
        return True


class SharedNode:
    """One agent: what it knows, and what befalls it."""

    def __init__(self, ref: NodeRef, member: SharedMember, clock: Clock, wait_s: float) -> None:
        self.ref, self.member, self.clock = ref, member, clock
        self.candidate = Candidate(1, "default", ref.node_id, 29500, stop_grace_s=wait_s)
        self.shared: SharedState | None = None
        self.token = 0
        self.seq = self.beat = 0
        self.counts_at = clock.now()
        self.is_dead = self.is_paused = self.is_cut_off = self.has_left = False
        self.is_refused = False
        """It was told that another agent has its place, and has ended."""
        self.is_slow = False
        """It does not stop its workers when it should."""
        self.counted_at_s = 0.0
        """On the cluster's clock."""
        self.longest_silence_s = 0.0
        """Between two counts, since it last joined as a stranger."""
        self.halted: tuple[bytes, int, Change] | None = None
        self.halts_at_write = False
        self.fails_at_write: bool | None = None
        """The next write is reported as failed; True: though it was stored."""
        self.before_write: Callable[[], object] | None = None
        """What another node does between its next read and its write."""
        self.after_write: Callable[[], object] | None = None
        """What another node does between its next write and the moment when it learns of it."""
        self.outlooks: list[Outlook] = []
        """Every change of what it was told."""

    @property
    def is_well(self) -> bool:
        """It runs, reaches the store and has not left."""
        has_ended = self.is_dead or self.has_left or self.is_refused
        return not (has_ended or self.is_paused or self.is_cut_off)

    @property
    def outlook(self) -> Outlook:
        """Where it believes to stand."""
        return self.member.outlook()


class SharedCluster:
    """The store and its nodes. `keeps_beats`: counters have a place beside the state."""

    def __init__(self, settings: SharedSettings, *, keeps_beats: bool = True) -> None:
        self.settings, self.keeps_beats = settings, keeps_beats
        self.clock = FakeClock()
        self.store = MemoryValue()
        self.nodes: list[SharedNode] = []
        self.history: list[StoredState] = []
        self.on_stored: Callable[[StoredState], object] = lambda _stored: None
        self.stop_grace_s = settings.lease_s * 2
        self.turn = 0
        """Whose turn it is first at the next look."""
        self._writes = 0
        self._read: tuple[int, SharedState] | None = None

    # What can happen

    def join(
        self,
        node_id: str,
        *,
        life: int = 1,
        offset_s: float = 0.0,
        rate: float = 1.0,
        joins: bool = True,
    ) -> SharedNode:
        """A new agent starts; its clock is `offset_s` off and `rate` times as fast.

        Without `joins` it joins when it first looks.
        """
        ref = NodeRef(node_id, f"{node_id}.{life}")
        member = SharedMember(ref, self.settings.heartbeat_s, self.settings.lease_s)
        clock = self.clock.beside(offset_s, rate)
        node = SharedNode(ref, member, clock, self.stop_grace_s)
        node.counted_at_s = self.clock.now()
        self.nodes.append(node)
        if joins:
            self.look(node)
        return node

    def kill(self, node: SharedNode) -> None:
        """It is gone, without a word."""
        node.is_dead = True

    def pause(self, node: SharedNode) -> None:
        """As by SIGSTOP: it knows nothing of the time that passes."""
        node.is_paused = True

    def resume(self, node: SharedNode) -> None:
        """It continues where it was, with what it knew, if it was between a read and a write."""
        node.is_paused = False
        if node.halted is not None and node.is_well:
            (value, token, change), node.halted = node.halted, None
            self._guarded(node, lambda: self._finish(node, value, token, change))

    def cut_off(self, node: SharedNode) -> None:
        """It can't reach the store."""
        node.is_cut_off = True

    def reconnect(self, node: SharedNode) -> None:
        """It can again."""
        node.is_cut_off = False

    def leave(self, node: SharedNode) -> None:
        """It leaves."""
        self._guarded(node, lambda: self._if_member(node, self._applies(NodeLeft(node.ref))))
        node.has_left = True

    def close(self, node: SharedNode, why: str) -> None:
        """It ends the job for all."""

        def change(shared: SharedState, writer: str) -> list[Effect]:
            shared_round.close(shared, why, writer)
            return []

        self._guarded(node, lambda: self._update(node, change))

    def restart_workers(self, node: SharedNode) -> None:
        """Its workers failed: it joins the next round."""
        if node.is_well and isinstance(node.outlook, InWorld):
            self._guarded(node, lambda: self._join(node))

    def pass_time(self, seconds: float) -> None:
        """Every node looks at the store twice in an interval, and at the end."""
        step_s = min(self.settings.heartbeat_s, self.settings.lease_s / 3) / 2
        end_s = self.clock.now() + seconds
        while self.clock.now() < end_s:
            self.clock.advance(min(step_s, end_s - self.clock.now()))
            self.look_all()

    def look_all(self) -> None:
        """Every node looks at the store once, in a turn that begins with another one each time."""
        self.turn += 1
        first = self.turn % max(len(self.nodes), 1)
        for node in [*self.nodes[first:], *self.nodes[:first]]:
            self.look(node)

    def look(self, node: SharedNode) -> None:
        """One node reads the state and does what it must."""
        if node.is_well and node.halted is None:
            self._guarded(node, lambda: self._look(node))

    # What can be seen

    @property
    def shared(self) -> SharedState:
        """A copy of the state in the store."""
        assert self.store.value is not None
        return shared_round.decode(self.store.value)

    def current(self) -> SharedState:
        """The state in the store, for reading; decoded once for all readers."""
        if self._read is None or self._read[0] != self.store.token:
            self._read = (self.store.token, self.shared)
        return self._read[1]

    @property
    def world(self) -> list[str]:
        """The node ids of the active world in rank order; empty: no round is active."""
        round_ = self.current().round
        return [p.node_id for p in round_.world] if round_.phase is RoundPhase.ACTIVE else []

    @property
    def members(self) -> list[NodeRef]:
        """All nodes in the state."""
        return [member.ref for member in self.current().round.members.values()]

    # What a node does

    def _guarded(self, node: SharedNode, call: Callable[[], object]) -> None:
        try:
            call()
        except StoreFailed:
            pass
        except Halted:
            node.is_paused = True
        if not node.outlooks or node.outlooks[-1] != node.outlook:
            node.outlooks.append(node.outlook)

    def _look(self, node: SharedNode) -> None:
        self._load(node)
        outlook = node.outlook
        if isinstance(outlook, Closed):
            return
        if isinstance(outlook, Outside):
            node.longest_silence_s, node.counted_at_s = 0.0, self.clock.now()
            self._join(node)
            return
        assert node.shared is not None
        own = node.shared.round.members[node.ref.node_id]
        if own.state is MemberState.STOPPING and not node.is_slow:
            self._join(node)
        if node.clock.now() >= node.counts_at:
            self._count(node)
            self._watch(node)
        for duty in node.member.duties(node.clock.now()):
            match duty:
                case Suspect():
                    self._lose(node, duty)
                case TimerEnded():
                    self._if_member(node, self._applies(duty))

    def _join(self, node: SharedNode) -> None:
        node.seq += 1
        node.beat += 1
        if self.keeps_beats:
            self.store.beats[node.ref.node_id] = node.beat
        event = NodeJoined(node.ref, node.seq, node.candidate, self.settings)

        def change(shared: SharedState, writer: str) -> list[Effect] | None:
            if shared_round.join_refused(shared, node.ref, self.settings) is not None:
                node.is_refused = True
                return None
            if not self.keeps_beats:
                shared.beats[node.ref.node_id] = node.beat
            return shared_round.apply(shared, event, writer)

        self._update(node, change)

    def _count(self, node: SharedNode) -> None:
        node.beat += 1
        if self.keeps_beats:
            self.store.beats[node.ref.node_id] = node.beat
        else:
            self._update(
                node,
                lambda s, w: [] if shared_round.beat(s, node.ref, node.beat, w) else None,
            )
        node.counts_at = node.clock.now() + node.member.interval_s
        silence_s = self.clock.now() - node.counted_at_s
        node.longest_silence_s = max(node.longest_silence_s, silence_s)
        node.counted_at_s = self.clock.now()

    def _watch(self, node: SharedNode) -> None:
        assert node.shared is not None
        beats = self.store.beats if self.keeps_beats else node.shared.beats
        seen = {ref: beats.get(ref.node_id, -1) for ref in node.member.watched()}
        node.member.read_beats(seen, node.clock.now())

    def _lose(self, node: SharedNode, suspect: Suspect) -> None:
        ref, beat = suspect.ref, suspect.beat
        why = f"it has sent no beat for {suspect.silent_s:.1f} s"

        def change(shared: SharedState, writer: str) -> list[Effect] | None:
            if self.keeps_beats and self.store.beats.get(ref.node_id, -1) != beat:
                return None
            return shared_round.lose(shared, ref, beat, why, writer)

        self._if_member(node, change)

    def _applies(self, event: NodeLeft | TimerEnded) -> Change:
        return lambda shared, writer: shared_round.apply(shared, event, writer)

    def _if_member(self, node: SharedNode, change: Change) -> None:
        self._update(
            node, lambda s, w: change(s, w) if shared_round.is_member(s, node.ref) else None
        )

    # How a node reads and writes

    def _load(self, node: SharedNode) -> None:
        if not node.is_well:
            raise StoreFailed
        if self.store.value is not None and node.token != self.store.token:
            node.shared, node.token = self.current(), self.store.token
            node.member.observe(node.shared, node.clock.now())

    def _update(self, node: SharedNode, change: Change) -> None:
        while True:
            self._load(node)
            shared = (
                self.shared
                if self.store.value is not None
                else shared_round.new_state(self.settings, "life", "")
            )
            token, writer = self.store.token, self._writer()
            if change(shared, writer) is None:
                return
            value = shared_round.encode(shared)
            if node.halts_at_write:
                node.halts_at_write = False
                node.halted = (value, token, change)
                raise Halted
            call, node.before_write = node.before_write, None
            if call is not None:
                call()
            if self._write(node, value, token):
                return

    def _finish(self, node: SharedNode, value: bytes, token: int, change: Change) -> None:
        if not self._write(node, value, token):
            self._update(node, change)

    def _write(self, node: SharedNode, value: bytes, token: int) -> bool:
        fails, node.fails_at_write = node.fails_at_write, None
        before = self.current() if self.store.value is not None else None
        was_stored = fails is not False and self.store.swap(value, token)
        if was_stored:
            after = shared_round.decode(value)
            stored = StoredState(node.ref, self.clock.now(), before, after)
            self.history.append(stored)
            self.on_stored(stored)
        call, node.after_write = node.after_write, None
        if call is not None:
            call()
        self._load(node)  # also settles a write that was reported as failed
        mine = shared_round.decode(value).writer
        return node.shared is not None and node.shared.writer == mine

    def _writer(self) -> str:
        self._writes += 1
        return f"write{self._writes}"
