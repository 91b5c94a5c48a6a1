"""A host of the round machine in virtual time, and jobs before their first round and in it.

host = RoundHost(SharedSettings("job", min_nodes=2, max_nodes=4))
host.join("a")
host.join("b")
host.pass_time(30.0)                    # the last call ends
assert host.world == ["a", "b"]
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.core.events import (
    Effect,
    FormWorld,
    NodeDraining,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSucceeded,
    RoundEvent,
    RoundFailed,
    RoundReleased,
    RoundSettled,
    StopRound,
    TimerEnded,
    TimerKind,
)
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.core.round import step
from rallypoint.core.round_state import MemberState, RoundState, timers_wanted
from rallypoint.testing.clock import VirtualTimers


class RoundHost:
    """Hosts one round machine in virtual time, with nodes that obey at once.

    A node that is told to stop joins again in the same instant, unless `slow` names it. The gate
    opens as soon as the machine asks, unless `judge` is False.
    """

    def __init__(self, settings: SharedSettings) -> None:
        self.settings = settings
        self.state = RoundState(settings)
        self.timers = VirtualTimers()
        self.slow: set[str] = set()
        self.judge = True
        self.seen: list[Effect] = []
        """Every effect so far."""
        self.refs: dict[str, NodeRef] = {}
        """The newest incarnation of each node."""
        self._seqs: dict[NodeRef, int] = {}
        self._candidates: dict[NodeRef, Candidate] = {}

    @property
    def world(self) -> list[str]:
        """The node ids of the newest world, in rank order."""
        return [entry.node_id for entry in self.state.world]

    @property
    def worlds(self) -> list[FormWorld]:
        """Every world so far."""
        return [effect for effect in self.seen if isinstance(effect, FormWorld)]

    @property
    def stops(self) -> list[StopRound]:
        """Every end of a round so far."""
        return [effect for effect in self.seen if isinstance(effect, StopRound)]

    def member_state(self, node_id: str) -> MemberState | None:
        """A node's state; None: not a member."""
        member = self.state.members.get(node_id)
        return member.state if member else None

    def apply(self, event: RoundEvent) -> list[Effect]:
        """One step, and whatever the nodes and the judge answer to it; its own effects."""
        effects = step(self.state, event)
        self.timers.keep(timers_wanted(self.state))
        self.seen += effects
        for effect in effects:
            match effect:
                case RoundSettled(round_) if self.judge:
                    self.apply(RoundReleased(round_))
                case StopRound():
                    self._obey()
        return effects

    def join(
        self,
        node_id: str,
        *,
        incarnation: str = "1",
        candidate: Candidate | None = None,
        settings: SharedSettings | None = None,
    ) -> list[Effect]:
        """A node joins, for the first time or again."""
        ref = NodeRef(node_id, f"{node_id}.{incarnation}")
        self.refs[node_id] = ref
        self._seqs[ref] = self._seqs.get(ref, 0) + 1
        if candidate is not None or ref not in self._candidates:
            self._candidates[ref] = candidate or Candidate(1, "worker", node_id, 29500)
        seq, chosen = self._seqs[ref], self._candidates[ref]
        return self.apply(NodeJoined(ref, seq, chosen, settings or self.settings))

    def come(self, *node_ids: str) -> None:
        """These join, one after the other."""
        for node_id in node_ids:
            self.join(node_id)

    def lose(self, node_id: str, why: str = "its session ended") -> list[Effect]:
        """A node goes away without leaving."""
        return self.apply(NodeLost(self.refs[node_id], why))

    def leave(self, node_id: str) -> list[Effect]:
        """A node leaves."""
        return self.apply(NodeLeft(self.refs[node_id]))

    def drain(self, node_id: str) -> list[Effect]:
        """A node is told to go."""
        return self.apply(NodeDraining(self.refs[node_id], "told to"))

    def fail(self, node_id: str) -> list[Effect]:
        """A worker of the active round fails."""
        return self.apply(RoundFailed(self.state.round, "exit code 1", node_id))

    def succeed(self, node_id: str) -> list[Effect]:
        """All workers of a node end well."""
        return self.apply(NodeSucceeded(self.refs[node_id], self.state.round))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; timers run out in their order."""
        end_s = self.timers.now_s + seconds
        while (timer := self.timers.next_until(end_s)) is not None:
            self.apply(TimerEnded(timer))

    def _obey(self) -> None:
        for member in list(self.state.members.values()):
            if member.state is MemberState.STOPPING and member.ref.node_id not in self.slow:
                self.join(member.ref.node_id, incarnation=member.ref.incarnation.split(".")[-1])


def job(min_nodes: int, max_nodes: int, **others: object) -> RoundHost:
    settings = SharedSettings("job", min_nodes, max_nodes)
    return RoundHost(replace(settings, **others))


def running(min_nodes: int, max_nodes: int, nodes: str, **others: object) -> RoundHost:
    """A job whose first world consists of `nodes`."""
    host = job(min_nodes, max_nodes, **others)
    for node in nodes.split():
        host.join(node)
    host.pass_time(host.settings.last_call_s)
    assert host.world == nodes.split()
    return host


def kinds(host: RoundHost) -> set[TimerKind]:
    return {timer.kind for timer in timers_wanted(host.state)}
