"""The state of the round machine, its timers, and small changes that keep its counts right.

`round.py` explains the rules, and makes the decisions.

A host calls `timers_wanted` after every step, starts the new timers and drops those that are gone;
one that ends comes back as `TimerEnded`. In the same way a host that merely loaded a state (from a
journal, from a shared store) knows the timers.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from rallypoint.core import fitness_state
from rallypoint.core.events import NodeJoined, Timer, TimerKind
from rallypoint.core.fitness_state import BadRoute, Fitness
from rallypoint.core.model import Candidate, NodeRef, SharedSettings, WorldEntry
from rallypoint.core.ranks import fitting
from rallypoint.core.settings import OnJoin

DEPARTED_MAX = 4096
"""The most agents that are gone but remembered, in order to ignore their late joins."""


class RoundPhase(Enum):
    """The phase of the job's newest round; CLOSED: the job has ended."""

    FORMING = "forming"
    LAST_CALL = "last call"
    ACTIVE = "active"
    CLOSED = "closed"


class MemberState(Enum):
    """The state of a member: what runs on its node, and whether it takes part. See `round.py`."""

    JOINED = "joined"
    RUNNING = "running"
    STOPPING = "stopping"
    LEAVING = "leaving"
    WAITING = "waiting"
    STANDBY = "standby"


class RoundMember(Struct, array_like=True):
    """A node that has joined the job, until it has left or is lost."""

    ref: NodeRef
    seq: int
    candidate: Candidate
    state: MemberState
    in_roster: bool = False
    succeeded: bool = False
    is_proven: bool = True
    """Whether the node has shown, if it must, that it can start workers and reach the store."""
    is_eager: bool = False
    """Whether the node waits, and the active round may end in order to admit it."""

    @property
    def works(self) -> bool:
        """Whether the node takes part in the active round, and not all of its workers succeeded."""
        return self.state is MemberState.RUNNING and not self.succeeded


class RoundState(Struct, array_like=True):
    """The state of the rounds' state machine (`round.py`): a job's nodes, and its newest round."""

    settings: SharedSettings
    phase: RoundPhase = RoundPhase.FORMING
    round: int = 0
    members: dict[str, RoundMember] = field(default_factory=dict)
    counts: dict[MemberState, int] = field(default_factory=lambda: dict.fromkeys(MemberState, 0))
    joined_workers: dict[int, int] = field(default_factory=dict)
    """The number of joined nodes for each number of workers."""
    world: list[WorldEntry] = field(default_factory=list)
    """The world of the newest round that was formed, in rank order."""
    roster_size: int = 0
    held: bool = False
    finishing: bool = False
    succeeded: int = 0
    largest_world: int = 0
    is_old_enough: bool = False
    settled: bool = False
    """Whether late nodes have been waited for long enough: no further one has come for a while, or
    the first of them has waited the longest time."""
    overdue: bool = False
    """Whether the first late node has waited long enough, though others keep joining."""
    arrivals: int = 0
    """The number of late nodes so far for which a round may end; the settle timers are named after
    it."""
    first_arrival: int = 0
    eager_waiting: int = 0
    """The number of waiting nodes that the round may end to admit."""
    stop_grace_s: float = 0.0
    is_patient: bool = False
    """Whether many nodes are slow to stop, and are waited for longer."""
    lossy_rounds: list[int] = field(default_factory=list)
    """The rounds of the last hour that count as having lost nodes, each once, however many."""
    fitness: Fitness = field(default_factory=Fitness)
    """The knowledge about the job's machines: which are held back, and why."""
    bad_routes: dict[str, BadRoute] = field(default_factory=dict)
    """The bad routes by the id of the node that could not reach the store of rank 0."""
    passed_over: list[str] = field(default_factory=list)
    """The ids of nodes that become rank 0 last, because others did not reach their store."""
    started_world: frozenset[str] = frozenset()
    """The agents (incarnations) of the newest world in which all nodes reached the store of rank
    0."""
    departed: dict[str, int] = field(default_factory=dict)
    """The sequence number of the last join of each agent that is gone; it and lower ones are
    void."""
    is_short: bool = False
    """Whether too few nodes have joined this forming round, so that nodes held back take part."""
    expected: int = 0
    """How many nodes suffice for the next round, without a last call. Set after a takeover, if the
    earlier coordinator had formed a world of so many, and had not told all of them. 0: as the
    settings say."""


def is_active(state: RoundState, round_: int) -> bool:
    """Return whether this round is active."""
    return state.phase is RoundPhase.ACTIVE and state.round == round_


def working(state: RoundState) -> list[NodeRef]:
    """Return the nodes of the active round whose workers have not all succeeded. O(N)."""
    return [member.ref for member in state.members.values() if member.works]


def set_member_state(state: RoundState, member: RoundMember, member_state: MemberState) -> None:
    """Change a member's state, and the number of members in each state."""
    _count(state, member, -1)
    member.state = member_state
    _count(state, member, 1)


def add(state: RoundState, member: RoundMember) -> None:
    """Add a new member, and count it."""
    state.members[member.ref.node_id] = member
    _count(state, member, 1)


def renew(state: RoundState, member: RoundMember, join: NodeJoined) -> None:
    """Note that a member has joined again, perhaps with other workers."""
    _count(state, member, -1)
    member.seq, member.candidate = join.seq, join.candidate
    _count(state, member, 1)


def remove(state: RoundState, member: RoundMember) -> None:
    """Remove a member that is gone; its late joins are void from now on."""
    withdraw(state, member)
    _count(state, member, -1)
    del state.members[member.ref.node_id]
    state.departed[member.ref.incarnation] = member.seq
    if len(state.departed) > DEPARTED_MAX:
        del state.departed[next(iter(state.departed))]


def withdraw(state: RoundState, member: RoundMember) -> None:
    """Let no round wait for this member any more, and no round end to admit it."""
    if member.in_roster:
        member.in_roster = False
        state.roster_size -= 1
    if member.is_eager:
        member.is_eager = False
        state.eager_waiting -= 1


def joined_enough(state: RoundState) -> bool:
    """Return whether the joined nodes can form a world.

    The minimum must have joined. With `world_multiple_of`, at least the minimum must also have a
    valid number of workers together.
    """
    settings, joined = state.settings, state.counts[MemberState.JOINED]
    if settings.world_multiple_of > 1 and joined >= settings.min_nodes:
        joined = fitting(state.joined_workers, settings.max_nodes, settings.world_multiple_of)
    return joined >= settings.min_nodes


def _count(state: RoundState, member: RoundMember, number: int) -> None:
    state.counts[member.state] += number
    if member.state is MemberState.JOINED:
        workers = member.candidate.workers
        state.joined_workers[workers] = state.joined_workers.get(workers, 0) + number


STOP_SLACK_S = 2.0
"""How long after the nodes' own grace one that has not stopped counts as not stopping, in
seconds."""
PATIENCE = "patience"
"""The id of the timer for the longer wait when many nodes have not stopped in time."""


def timers_wanted(state: RoundState) -> dict[Timer, float]:
    """Return every timer that the state needs, with its length in seconds. O(number of timers)."""
    wanted: dict[Timer, float] = {}
    match state.phase:
        case RoundPhase.CLOSED:
            return wanted
        case RoundPhase.ACTIVE:
            _while_active(state, wanted)
        case RoundPhase.FORMING | RoundPhase.LAST_CALL:
            _while_forming(state, wanted)
    waits = fitness_state.timers_wanted(
        state.fitness, state.bad_routes, state.lossy_rounds, state.members
    )
    return wanted | waits


def _while_active(state: RoundState, wanted: dict[Timer, float]) -> None:
    settings = state.settings
    if settings.on_join is OnJoin.HOLD:
        return
    if not state.is_old_enough:
        wanted[Timer(TimerKind.GROWTH_INTERVAL, state.round)] = settings.min_growth_interval_s
    if not state.eager_waiting:
        return
    if not state.settled:
        wanted[Timer(TimerKind.SETTLE, id=str(state.arrivals))] = settings.join_settle_s
    if not state.overdue:
        first = str(state.first_arrival)
        wanted[Timer(TimerKind.SETTLE_MAX, id=first)] = settings.join_settle_max_s


def _while_forming(state: RoundState, wanted: dict[Timer, float]) -> None:
    settings = state.settings
    if state.phase is RoundPhase.LAST_CALL:
        wanted[Timer(TimerKind.LAST_CALL, state.round)] = settings.last_call_s
    elif state.counts[MemberState.STOPPING]:
        if state.is_patient:
            wanted[Timer(TimerKind.STOP, state.round, PATIENCE)] = settings.stop_patience_s
        else:
            wanted[Timer(TimerKind.STOP, state.round)] = state.stop_grace_s + STOP_SLACK_S
    elif state.members and not joined_enough(state):
        wanted[Timer(TimerKind.JOIN, state.round)] = settings.join_timeout_s
        if state.counts[MemberState.STANDBY] and not state.held and not state.is_short:
            wanted[Timer(TimerKind.NEEDED, state.round)] = settings.last_call_s
