"""The round machine under hammer: whatever happens in whatever order, what must hold, holds."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace
from tests.harness.properties import explore

from rallypoint.core.events import (
    Effect,
    ExpelNode,
    FormWorld,
    GrowthReady,
    JobClosed,
    JoinTimedOut,
    NodeDraining,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSucceeded,
    RefuseNode,
    RoundEvent,
    RoundFailed,
    RoundReleased,
    RoundSettled,
    StopRound,
    Timer,
    TimerEnded,
    TimerKind,
    TooManyLosses,
    WorkersFinishing,
    WorldSucceeded,
)
from rallypoint.core.fitness import is_trusted, may_take_part
from rallypoint.core.model import Candidate, NodeRef, SharedSettings, WorldEntry
from rallypoint.core.ranks import worker_ranks
from rallypoint.core.round import step
from rallypoint.core.round_state import (
    MemberState,
    RoundMember,
    RoundPhase,
    RoundState,
    timers_wanted,
)
from rallypoint.core.settings import OnJoin

NODES = [f"n{number}" for number in range(8)] + ["n10", "n11"]


def members_of(state: RoundState, member_state: MemberState) -> list[RoundMember]:
    return [member for member in state.members.values() if member.state is member_state]


HARMLESS_TWICE = (RoundSettled, RefuseNode, ExpelNode, JoinTimedOut)
"""Effects that may be asked for again: none of them changes who takes part."""


TIMERS = st.builds(
    Timer,
    st.sampled_from(TimerKind),
    st.integers(0, 6),
    st.sampled_from(["", "1", "2", "7", *NODES]),
)

nodes = st.sampled_from(NODES)


candidates = st.builds(
    Candidate,
    workers=st.integers(1, 3),
    role=st.sampled_from(["trainer", "reader"]),
    address=st.just("a"),
    store_port=st.just(1),
    topology=st.sampled_from(["", "rack2", "rack10"]),
    stop_grace_s=st.sampled_from([0.0, 5.0]),
)


def copy_of(state: RoundState) -> RoundState:
    """Through bytes, as a journal or a shared store would keep it; and faster than `deepcopy`."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=RoundState)


class RoundMachine(RuleBasedStateMachine):
    """One job, ten nodes, and a host that may do anything at any time."""

    state: RoundState
    past: list[RoundEvent]

    @initialize(
        min_nodes=st.integers(1, 3),
        spread=st.integers(0, 3),
        others=st.fixed_dictionaries(
            {
                "on_join": st.sampled_from([OnJoin.RESTART, OnJoin.RESTART, OnJoin.HOLD]),
                "min_growth_interval_s": st.sampled_from([0.0, 60.0]),
                "join_settle_s": st.sampled_from([0.0, 10.0]),
                "max_node_losses_per_hour": st.sampled_from([2, 10, 1000]),
            }
        ),
    )
    def start(self, min_nodes: int, spread: int, others: dict[str, Any]) -> None:
        base = SharedSettings("job", min_nodes, min_nodes + spread)
        self.state = RoundState(replace(base, **others))
        self.past = []
        self.lives: dict[str, int] = {}
        self.seqs: dict[NodeRef, int] = {}
        self.barred: set[NodeRef] = set()
        """Incarnations that have been superseded."""
        self.worlds: list[FormWorld] = []
        self.ended: set[int] = set()
        self.succeeded: set[int] = set()
        self.was_closed = False

    # ---- what can happen

    @rule(node=nodes, candidate=candidates)
    def a_new_agent_joins(self, node: str, candidate: Candidate) -> None:
        if node not in self.state.members and node in self.lives:
            life = self.lives[node] + 1
        elif node in self.lives:
            return self.a_member_joins_again(node, candidate)
        else:
            life = 1
        return self.join(node, life, candidate)

    @rule(node=nodes, candidate=candidates)
    def a_duplicate_supersedes(self, node: str, candidate: Candidate) -> None:
        self.join(node, self.lives.get(node, 0) + 1, candidate)

    @rule(node=nodes, candidate=candidates)
    def a_member_joins_again(self, node: str, candidate: Candidate) -> None:
        if node in self.lives:
            self.join(node, self.lives[node], candidate)

    @rule(data=st.data())
    def who_was_told_to_stop_is_back(self, data: st.DataObject) -> None:
        stopping = [m for m in self.state.members.values() if m.state is MemberState.STOPPING]
        if stopping:
            member = data.draw(st.sampled_from(stopping))
            self.join(member.ref.node_id, self.life(member.ref), member.candidate)

    @rule(joining=st.lists(nodes, min_size=1, max_size=6, unique=True), judged=st.booleans())
    def the_job_goes_well(self, joining: list[str], judged: bool) -> None:
        """Who was told to stop is back, more nodes join, the gate opens, the last call ends."""
        for member in list(self.state.members.values()):
            if member.state is MemberState.STOPPING:
                self.join(member.ref.node_id, self.life(member.ref), member.candidate)
        if judged:
            self.apply(RoundReleased(self.state.round))
        for node in joining:
            if node not in self.state.members:
                self.join(node, self.lives.get(node, 0) + 1, Candidate(1, "trainer", "a", 1))
        self.apply(TimerEnded(Timer(TimerKind.LAST_CALL, self.state.round)))

    @precondition(lambda self: self.state.phase is RoundPhase.ACTIVE)
    @rule()
    def the_round_grows_old(self) -> None:
        for timer in timers_wanted(self.state):
            if timer.kind is not TimerKind.LOSS_HOUR:
                self.apply(TimerEnded(timer))

    @rule(node=nodes, life=st.integers(1, 3), candidate=candidates)
    def an_older_agent_joins(self, node: str, life: int, candidate: Candidate) -> None:
        if life <= self.lives.get(node, 0):
            self.join(node, life, candidate)

    @rule(node=nodes, change=st.sampled_from(["min_nodes", "max_nodes", "lease_s", "max_restarts"]))
    def somebody_joins_with_other_settings(self, node: str, change: str) -> None:
        ours = getattr(self.state.settings, change)
        theirs = replace(self.state.settings, **{change: ours + 1})
        ref = NodeRef(node, f"{node}.{self.lives.get(node, 0) + 1}")
        before = copy_of(self.state)
        effects = self.apply(NodeJoined(ref, 1, Candidate(1, "trainer", "a", 1), theirs))
        assert self.state == before
        refused = [RefuseNode(ref, ((change, ours, ours + 1),))]
        assert effects == ([] if self.was_closed else refused)

    @rule(data=st.data())
    def a_node_is_lost(self, data: st.DataObject) -> None:
        ref = self.some_member(data)
        self.apply(NodeLost(ref, "silence"))

    @rule(data=st.data())
    def a_node_leaves(self, data: st.DataObject) -> None:
        ref = self.some_member(data)
        self.apply(NodeLeft(ref))

    @rule(data=st.data())
    def a_node_drains(self, data: st.DataObject) -> None:
        ref = self.some_member(data)
        self.apply(NodeDraining(ref, "told to"))

    @rule(data=st.data(), offset=st.sampled_from([0, 0, -1, 1]))
    def a_worker_fails(self, data: st.DataObject, offset: int) -> None:
        node = self.some_member(data).node_id
        self.apply(RoundFailed(self.state.round + offset, "exit code 1", node))

    @rule(data=st.data(), offset=st.sampled_from([0, 0, 0, 0, -1, 1]))
    def a_node_succeeds(self, data: st.DataObject, offset: int) -> None:
        entry = data.draw(st.sampled_from(self.state.world or [WorldEntry("n0", "n0.1", 1, "")]))
        ref = NodeRef(entry.node_id, entry.incarnation)
        self.apply(NodeSucceeded(ref, self.state.round + offset))

    @rule(offset=st.sampled_from([0, 0, -1, 1]))
    def the_first_worker_ends_well(self, offset: int) -> None:
        self.apply(WorkersFinishing(self.state.round + offset))

    @rule(offset=st.sampled_from([0, 0, -1, 1]))
    def a_checkpoint_was_saved_for_late_nodes(self, offset: int) -> None:
        self.apply(GrowthReady(self.state.round + offset))

    @rule(data=st.data())
    def all_but_some_succeed(self, data: st.DataObject) -> None:
        for entry in list(self.state.world):
            if data.draw(st.integers(0, 4)):
                ref = NodeRef(entry.node_id, entry.incarnation)
                self.apply(NodeSucceeded(ref, self.state.round))

    @rule(offset=st.sampled_from([0, 0, 0, -1, 1]))
    def the_gate_opens(self, offset: int) -> None:
        self.apply(RoundReleased(self.state.round + offset))

    @rule(data=st.data())
    def a_wanted_timer_ends(self, data: st.DataObject) -> None:
        wanted = sorted(timers_wanted(self.state), key=repr)
        if wanted:
            self.apply(TimerEnded(data.draw(st.sampled_from(wanted))))

    @rule(timer=TIMERS)
    def some_timer_ends(self, timer: Timer) -> None:
        self.apply(TimerEnded(timer))

    @rule(data=st.data())
    def an_old_event_comes_again(self, data: st.DataObject) -> None:
        if self.past:
            self.apply(data.draw(st.sampled_from(self.past[-30:])))

    @precondition(lambda self: len(self.past) > 25)
    @rule(really=st.integers(0, 9))
    def the_job_is_closed(self, really: int) -> None:
        if really == 9:
            self.apply(JobClosed())
            self.was_closed = True

    # ---- how it is applied and what is checked at each step

    def join(self, node: str, life: int, candidate: Candidate) -> None:
        ref = NodeRef(node, f"{node}.{life}")
        self.lives[node] = max(life, self.lives.get(node, 0))
        self.seqs[ref] = self.seqs.get(ref, 0) + 1
        self.apply(NodeJoined(ref, self.seqs[ref], candidate, self.state.settings))

    def some_member(self, data: st.DataObject) -> NodeRef:
        refs = sorted((m.ref for m in self.state.members.values()), key=str)
        return data.draw(st.sampled_from([*refs, NodeRef("n0", "stranger")]))

    @staticmethod
    def life(ref: NodeRef) -> int:
        return int(ref.incarnation.rpartition(".")[2])

    def apply(self, event: RoundEvent) -> list[Effect]:
        before = copy_of(self.state)
        effects = step(self.state, event)
        self.past.append(event)
        if self.was_closed:
            assert effects == []
            assert self.state == before
        for effect in effects:
            self.check(effect, before)
        once = copy_of(self.state)
        again = step(self.state, event)
        assert all(isinstance(effect, HARMLESS_TWICE) for effect in again), again
        assert self.state == once, "the same event, applied twice"
        return effects

    def check(self, effect: Effect, before: RoundState) -> None:
        match effect:
            case FormWorld():
                self.check_world(effect, before)
            case StopRound(round_):
                assert self.worlds
                assert round_ == self.worlds[-1].round
                assert round_ not in self.ended
                self.ended.add(round_)
            case WorldSucceeded(round_):
                assert round_ == self.worlds[-1].round
                assert round_ not in self.ended | self.succeeded
                self.succeeded.add(round_)
            case ExpelNode(ref, _, final):
                if final:
                    self.barred.add(ref)
                member = self.state.members.get(ref.node_id)
                assert member is None or member.ref != ref
            case TooManyLosses(count):
                assert count > self.state.settings.max_node_losses_per_hour
            case JoinTimedOut(_, joined, _):
                assert len(joined) < self.state.settings.min_nodes
            case _:
                pass

    def check_world(self, formed: FormWorld, before: RoundState) -> None:
        world, settings_ = formed.world, self.state.settings
        assert all(formed.round > earlier.round for earlier in self.worlds)
        assert settings_.min_nodes <= len(world) <= settings_.max_nodes
        assert len({seat.ref.node_id for seat in world}) == len(world)
        ranks = worker_ranks(world)
        numbers = [
            rank
            for r, s in zip(ranks, world, strict=True)
            for rank in range(r.base_rank, r.base_rank + s.candidate.workers)
        ]
        assert numbers == list(range(sum(s.candidate.workers for s in world)))
        for seat in world:
            member = self.state.members[seat.ref.node_id]
            assert member.ref == seat.ref
            assert member.state is MemberState.RUNNING
            assert seat.ref not in self.barred
            old = before.members.get(seat.ref.node_id)
            assert old is None or old.ref != seat.ref or old.state is not MemberState.LEAVING
        last = [seat.ref for seat in self.worlds[-1].world] if self.worlds else []
        now = [seat.ref for seat in world]
        survivors = [ref for ref in last if ref in now]
        assert [ref for ref in now if ref in last] == survivors
        assert not survivors or now[0] == survivors[0]
        self.worlds.append(formed)

    # ---- what holds between any two events

    @invariant()
    def counts_are_what_a_recount_finds(self) -> None:
        state = self.state
        members = list(state.members.values())
        for member_state in MemberState:
            assert state.counts[member_state] == sum(m.state is member_state for m in members)
        if state.phase is RoundPhase.CLOSED:
            return
        assert state.roster_size == sum(m.in_roster for m in members)
        waiting = [m for m in members if m.state is MemberState.WAITING]
        eager = [m for m in waiting if is_trusted(state, m)]
        assert eager == [m for m in members if m.is_eager]
        assert state.eager_waiting == len(eager)

    @invariant()
    def states_fit_the_phase(self) -> None:
        state, counts = self.state, self.state.counts
        if state.phase is RoundPhase.ACTIVE:
            assert not counts[MemberState.JOINED]
            assert not counts[MemberState.STOPPING]
            assert state.roster_size == 0
            free = state.settings.max_nodes - len(state.world) - counts[MemberState.WAITING]
            assert free >= 0
            spares = [m for m in members_of(state, MemberState.STANDBY) if may_take_part(state, m)]
            assert not (free and spares), "a standby beside a free place"
            if counts[MemberState.WAITING] > state.eager_waiting:
                assert not any(is_trusted(state, m) for m in spares), "kept from the job"
        elif state.phase is not RoundPhase.CLOSED:
            assert not counts[MemberState.RUNNING]
            assert not counts[MemberState.WAITING]
            assert not any(may_take_part(state, m) for m in members_of(state, MemberState.STANDBY))
        if state.phase is RoundPhase.LAST_CALL:
            assert counts[MemberState.JOINED] >= state.settings.min_nodes
            assert counts[MemberState.JOINED] < state.settings.max_nodes

    @invariant()
    def a_forming_round_waits_for_something(self) -> None:
        state = self.state
        if (
            state.phase in (RoundPhase.FORMING, RoundPhase.LAST_CALL)
            and state.members
            and not state.held
        ):
            kinds = {timer.kind for timer in timers_wanted(state)}
            assert kinds & {TimerKind.LAST_CALL, TimerKind.STOP, TimerKind.JOIN}

    @invariant()
    def a_closed_job_wants_nothing(self) -> None:
        if self.was_closed:
            assert self.state.phase is RoundPhase.CLOSED
            assert timers_wanted(self.state) == {}

    @invariant()
    def it_is_never_stuck(self) -> None:
        """Enough fresh nodes, an open gate and time always make a world, then admit who waits."""
        if self.was_closed:
            return
        state = copy_of(self.state)
        roomy = state.settings
        for number in range(roomy.min_nodes):
            ref = NodeRef(f"fresh{number}", f"fresh{number}")
            step(state, NodeJoined(ref, 1, Candidate(1, "trainer", "a", 1), roomy))
        if state.phase is not RoundPhase.ACTIVE:
            let_time_pass(state)
        assert state.phase is RoundPhase.ACTIVE
        if not state.finishing and roomy.on_join is not OnJoin.HOLD:
            let_time_pass(state)
            assert state.counts[MemberState.WAITING] == 0


def let_time_pass(state: RoundState) -> None:
    """All who were told to stop are back, the gate opens, and every other wait ends."""
    for _ in range(4):
        for member in list(state.members.values()):
            if member.state is MemberState.STOPPING:
                again = NodeJoined(member.ref, member.seq + 1, member.candidate, state.settings)
                step(state, again)
        step(state, RoundReleased(state.round))
        for timer in timers_wanted(state):
            if timer.kind is not TimerKind.STOP:
                step(state, TimerEnded(timer))


def test_R1_R2_R3_R4_R5_F4_whatever_happens() -> None:
    explore(RoundMachine, 100, steps=80)
