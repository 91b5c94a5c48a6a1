"""Time that passes only when a test says so, and a host of the round machine that lives in it.

    host = RoundHost(SharedSettings("job", min_nodes=2, max_nodes=4))
    host.join("a")
    host.join("b")
    host.pass_time(30.0)                    # the last call ends
    assert host.world == ["a", "b"]

Nothing here sleeps, blocks or reads a clock, so a day of a job costs as much as its events.
"""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.core.events import (
    Effect,
    Event,
    FormWorld,
    NodeDraining,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSucceeded,
    RoundFailed,
    RoundReleased,
    RoundSettled,
    StopRound,
    Timer,
    TimerEnded,
)
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.core.round import step
from rallypoint.core.round_state import RoundState, Standing
from rallypoint.core.round_timers import timers_wanted


class VirtualTimers:
    """The timers that a machine wants, on a clock that stands still by itself."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: dict[Timer, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def keep(self, wanted: Mapping[Timer, float]) -> None:
        """Start the timers that are new, drop those that are gone; call after every step."""
        self._due = {
            timer: self._due.get(timer, self.now_s + length_s) for timer, length_s in wanted.items()
        }

    def next_until(self, end_s: float) -> Timer | None:
        """Move the clock to the next timer that is due by `end_s` and take it, or to `end_s`.

        Timers that are due at the same time come in the order in which they were wanted.
        """
        timer = min(self._due, key=lambda timer: self._due[timer], default=None)
        if timer is None or self._due[timer] > end_s:
            self.now_s = max(self.now_s, end_s)
            return None
        self.now_s = max(self.now_s, self._due.pop(timer))
        return timer


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
        return [place.node_id for place in self.state.places]

    @property
    def worlds(self) -> list[FormWorld]:
        """Every world so far."""
        return [effect for effect in self.seen if isinstance(effect, FormWorld)]

    @property
    def stops(self) -> list[StopRound]:
        """Every end of a round so far."""
        return [effect for effect in self.seen if isinstance(effect, StopRound)]

    def standing(self, node_id: str) -> Standing | None:
        """A node's standing; None: not a member."""
        member = self.state.members.get(node_id)
        return member.standing if member else None

    def apply(self, event: Event) -> list[Effect]:
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

    def lose(self, node_id: str, why: str = "its session ended") -> list[Effect]:
        """A node goes away without a farewell."""
        return self.apply(NodeLost(self.refs[node_id], why))

    def leave(self, node_id: str) -> list[Effect]:
        """A node says farewell."""
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
            if member.standing is Standing.STOPPING and member.ref.node_id not in self.slow:
                self.join(member.ref.node_id, incarnation=member.ref.incarnation.split(".")[-1])
