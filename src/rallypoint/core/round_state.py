"""What the round machine knows: its state, and the small moves that keep its counts true.

`round.py` has the essay and the decisions; nothing here decides anything.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from rallypoint.core.model import Candidate, NodeRef, SharedSettings, WorldEntry

DEPARTED_MAX = 4096
"""How many gone incarnations are remembered, to void their late joins."""


class Phase(Enum):
    """Where the job is between two worlds."""

    FORMING = "forming"
    LAST_CALL = "last call"
    ACTIVE = "active"
    CLOSED = "closed"


class MemberState(Enum):
    """What runs on a member's node; see the essay of `round.py`."""

    JOINED = "joined"
    RUNNING = "running"
    STOPPING = "stopping"
    LEAVING = "leaving"
    WAITING = "waiting"
    STANDBY = "standby"


class Member(Struct, array_like=True):
    """A node with a live session."""

    ref: NodeRef
    seq: int
    candidate: Candidate
    state: MemberState
    in_roster: bool = False
    succeeded: bool = False


class Loss(Struct, frozen=True, array_like=True):
    """A participant that was lost; kept for ten minutes."""

    id: int
    node_id: str


class BadRoute(Struct, frozen=True, array_like=True):
    """A node could not reach the round store of another."""

    host: NodeRef
    """Rank 0 of the last round that failed so."""
    failures: int
    """In a row."""


class RoundState(Struct, array_like=True):
    """All that the machine knows. Only `round.step` changes it."""

    settings: SharedSettings
    phase: Phase = Phase.FORMING
    round: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    counts: dict[MemberState, int] = field(default_factory=lambda: dict.fromkeys(MemberState, 0))
    places: list[WorldEntry] = field(default_factory=list)
    """The last world, in rank order."""
    roster_size: int = 0
    held: bool = False
    finishing: bool = False
    succeeded: int = 0
    largest_world: int = 0
    growth_allowed: bool = False
    settled: bool = False
    """No newcomer has come for a while."""
    overdue: bool = False
    """Newcomers keep coming, but the first of them has waited long enough."""
    arrivals: int = 0
    """Late nodes so far, ever: names the settle timers."""
    first_arrival: int = 0
    eager_waiting: int = 0
    """Waiting nodes that may trigger a growth (not quarantined)."""
    stop_grace_s: float = 0.0
    is_patient: bool = False
    """Many are slow to stop, and are waited for longer."""
    lossy_rounds: list[int] = field(default_factory=list)
    """Rounds of the last hour that have lost participants, however many."""
    recent_losses: list[Loss] = field(default_factory=list)
    loss_count: int = 0
    quarantine: dict[str, float] = field(default_factory=dict)
    """Members that trigger nothing for so many seconds, by node id."""
    bad_routes: dict[str, BadRoute] = field(default_factory=dict)
    """By the id of the node that could not reach the store of rank 0."""
    passed_over: list[str] = field(default_factory=list)
    """Nodes that are not rank 0 while there is another, since others did not reach their store."""
    started_world: frozenset[str] = frozenset()
    """The incarnations of the last world whose nodes all reached the store of rank 0."""
    departed: dict[str, int] = field(default_factory=dict)
    """The last join of each incarnation that is gone: older joins are void."""


def is_active(state: RoundState, round_: int) -> bool:
    """This very round is running."""
    return state.phase is Phase.ACTIVE and state.round == round_


def set_member_state(state: RoundState, member: Member, member_state: MemberState) -> None:
    """Change a member's state."""
    state.counts[member.state] -= 1
    state.counts[member_state] += 1
    member.state = member_state


def add(state: RoundState, member: Member) -> None:
    """A new member."""
    state.members[member.ref.node_id] = member
    state.counts[member.state] += 1


def remove(state: RoundState, member: Member) -> None:
    """A member is gone; its late joins are void from now on."""
    withdraw(state, member)
    state.counts[member.state] -= 1
    del state.members[member.ref.node_id]
    state.quarantine.pop(member.ref.node_id, None)
    state.departed[member.ref.incarnation] = member.seq
    if len(state.departed) > DEPARTED_MAX:
        del state.departed[next(iter(state.departed))]


def withdraw(state: RoundState, member: Member) -> None:
    """A member no longer counts for the roster or for growth."""
    if member.in_roster:
        member.in_roster = False
        state.roster_size -= 1
    if member.state is MemberState.WAITING and member.ref.node_id not in state.quarantine:
        state.eager_waiting -= 1
