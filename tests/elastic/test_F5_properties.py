"""Behaviour F5 under hammer: nodes die, pause, lose the store and race; what must hold, holds."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.harness.properties import explore
from tests.harness.shared_cluster import SharedCluster, SharedNode, StoredState

from rallypoint.core.model import NodeRef, SharedSettings
from rallypoint.core.round_state import MemberState, RoundPhase
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.rendezvous.shared.member import HEADS, Closed, InWorld, Outside

LEASE_S, INTERVAL_S = 15.0, 5.0
FASTEST = 1.1
NAMES = [f"n{number}" for number in range(6)]


class SharedJob(RuleBasedStateMachine):
    """One job, up to a dozen lives of six nodes, and a store that is never kind."""

    cluster: SharedCluster

    @initialize(
        least=st.integers(1, 2),
        spread=st.integers(0, 4),
        keeps_beats=st.booleans(),
        last_call_s=st.sampled_from([1.0, 30.0]),
        settle=st.sampled_from([(0.0, 0.0), (10.0, 60.0)]),
    )
    def start(
        self,
        least: int,
        spread: int,
        keeps_beats: bool,
        last_call_s: float,
        settle: tuple[float, float],
    ) -> None:
        shared = SharedSettings(
            "job",
            least,
            least + spread,
            lease_s=LEASE_S,
            heartbeat_s=INTERVAL_S,
            last_call_s=last_call_s,
            join_settle_s=settle[0],
            min_growth_interval_s=settle[1],
        )
        self.cluster = SharedCluster(shared, keeps_beats=keeps_beats)
        self.cluster.on_stored = self.check_stored
        self.worlds: dict[int, tuple[str, ...]] = {}
        self.newest: tuple[str, ...] = ()
        self.lives: dict[str, int] = {}
        self.leaving: set[NodeRef] = set()
        self.closed: bytes | None = None

    # ---- what can happen

    @rule(
        name=st.sampled_from(NAMES),
        offset_s=st.sampled_from([0.0, -20.0, 1e6]),
        rate=st.sampled_from([1.0, 1 / FASTEST, FASTEST]),
    )
    def a_node_starts(self, name: str, offset_s: float, rate: float) -> None:
        if len(self.cluster.nodes) < 12:
            self.lives[name] = self.lives.get(name, 0) + 1
            for (
                node
            ) in self.cluster.nodes:  # its host has one agent at a time, but for a paused one
                if node.ref.node_id == name and not node.is_paused:
                    self.cluster.kill(node)
            self.cluster.join(name, life=self.lives[name], offset_s=offset_s, rate=rate)

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
    def several_start(self, names: list[str]) -> None:
        for name in names:
            if name not in self.lives:
                self.a_node_starts(name, 0.0, 1.0)
        self.cluster.pass_time(INTERVAL_S)

    @rule(data=st.data())
    def a_node_dies(self, data: st.DataObject) -> None:
        if (node := self.some(data)) is not None:
            self.cluster.kill(node)

    @rule(data=st.data())
    def a_node_leaves(self, data: st.DataObject) -> None:
        if (node := self.some(data)) is not None:
            self.leaving.add(node.ref)
            self.cluster.leave(node)

    @rule(data=st.data())
    def a_node_is_paused(self, data: st.DataObject) -> None:
        if (node := self.some(data)) is not None:
            self.cluster.pause(node)

    @rule(data=st.data())
    def a_node_goes_on(self, data: st.DataObject) -> None:
        paused = [n for n in self.cluster.nodes if n.is_paused and not n.is_dead]
        if paused:
            self.cluster.resume(data.draw(st.sampled_from(paused)))

    @rule(data=st.data())
    def a_node_loses_the_store(self, data: st.DataObject) -> None:
        if (node := self.some(data)) is not None:
            self.cluster.cut_off(node)

    @rule()
    def the_store_is_back(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.reconnect(node)

    @rule(data=st.data())
    def a_node_will_be_stopped_in_its_next_write(self, data: st.DataObject) -> None:
        if (node := self.some(data)) is not None:
            node.halts_at_write = True

    @rule(data=st.data(), was_stored=st.booleans())
    def a_write_will_seem_to_fail(self, data: st.DataObject, was_stored: bool) -> None:
        if (node := self.some(data)) is not None:
            node.fails_at_write = was_stored

    @rule(data=st.data(), after=st.booleans())
    def another_will_write_first(self, data: st.DataObject, after: bool) -> None:
        one, other = self.some(data), self.some(data)
        if one is not None and other is not None and one is not other:
            if after:
                one.after_write = lambda: self.cluster.restart_workers(other)
            else:
                one.before_write = lambda: self.cluster.restart_workers(other)

    @rule(data=st.data())
    def workers_fail(self, data: st.DataObject) -> None:
        if (node := self.some(data)) is not None:
            self.cluster.restart_workers(node)

    @rule(intervals=st.sampled_from([0.5, 1, 2, 4, 8]))
    def time_passes(self, intervals: float) -> None:
        self.cluster.pass_time(intervals * INTERVAL_S)

    @precondition(lambda self: len(self.cluster.history) > 20)
    @rule(data=st.data(), really=st.integers(0, 3))
    def the_job_is_closed(self, data: st.DataObject, really: int) -> None:
        if really == 3 and (node := self.some(data)) is not None:
            self.cluster.close(node, "done")

    @precondition(lambda self: len(self.cluster.history) > 15)
    @rule()
    def all_goes_well_for_a_while(self) -> None:
        """Then all the living are members, no dead one is, and a world is there if it can be."""
        cluster = self.cluster
        for node in cluster.nodes:
            cluster.reconnect(node)
            if node.is_paused and not node.is_dead:
                cluster.resume(node)
            node.halts_at_write, node.fails_at_write = False, None
        # Heads that are dead are replaced three at a time.
        rounds = 2 + len(cluster.nodes) // HEADS
        cluster.pass_time(rounds * FASTEST * (LEASE_S + 4 * INTERVAL_S))
        if cluster.store.value is None or self.closed is not None:
            return
        cluster.pass_time(120.0)
        well = [n.ref for n in cluster.nodes if n.is_well]  # at most one life of each node
        if not well:  # nobody is left to remove anybody
            return
        assert sorted(map(repr, cluster.members)) == sorted(map(repr, well))
        least, most = cluster.settings.min_nodes, cluster.settings.max_nodes
        assert len(cluster.world) == (min(len(well), most) if len(well) >= least else 0)
        if cluster.world:
            self.check_ranks()

    # ---- what must hold whenever somebody has stored a state

    def some(self, data: st.DataObject) -> SharedNode | None:
        well = [node for node in self.cluster.nodes if node.is_well]
        return data.draw(st.sampled_from(well)) if well else None

    def check_stored(self, stored: StoredState) -> None:
        round_ = stored.after.round
        if self.closed is not None:
            assert round_.phase is RoundPhase.CLOSED
        if round_.phase is RoundPhase.CLOSED:
            self.closed = self.closed or b"closed"
            return
        if round_.phase is RoundPhase.ACTIVE:
            self.check_world(stored)
        if stored.before is not None:
            self.check_writer(stored)
            for member in stored.before.round.members.values():
                now = round_.members.get(member.ref.node_id)
                if now is None:
                    self.check_removed(member.ref, stored, member.state)
            assert stored.after.version > stored.before.version
            assert round_.round in (stored.before.round.round, stored.before.round.round + 1)

    def check_world(self, stored: StoredState) -> None:
        round_, shared = stored.after.round, self.cluster.settings
        world = tuple(entry.incarnation for entry in round_.world)
        known = self.worlds.setdefault(round_.round, world)
        assert known == world, f"two worlds with the number {round_.round}"
        assert shared.min_nodes <= len(world) <= shared.max_nodes
        assert len(set(world)) == len(world)
        if world == self.newest:
            return
        survivors = [one for one in self.newest if one in world]
        assert [one for one in world if one in self.newest] == survivors
        assert not survivors or world[0] == survivors[0]
        self.newest = world

    def check_writer(self, stored: StoredState) -> None:
        """Who is not in the state can only join."""
        assert stored.before is not None
        if shared_round.is_member(stored.before, stored.by):
            return
        before = stored.before.round.members
        for node_id, member in before.items():
            if node_id != stored.by.node_id:
                assert stored.after.round.members[node_id].ref == member.ref
        assert shared_round.is_member(stored.after, stored.by)

    def check_removed(self, ref: NodeRef, stored: StoredState, member_state: MemberState) -> None:
        """It left, was silent for a whole lease, or would not stop."""
        if ref in self.leaving:
            return
        node = next(node for node in self.cluster.nodes if node.ref == ref)
        silent_s = max(stored.at_s - node.counted_at_s, node.longest_silence_s)
        assert silent_s >= LEASE_S / FASTEST - INTERVAL_S / 2, (
            f"{ref}, {member_state}, was silent for {silent_s} s"
        )

    def check_ranks(self) -> None:
        world, newest = self.cluster.world, self.cluster.current().round.round
        believed = [n.outlook for n in self.cluster.nodes if n.is_well]
        inside = [o for o in believed if isinstance(o, InWorld) and o.round == newest]
        assert sorted(o.rank for o in inside) == list(range(len(world)))
        assert {o.world_size for o in inside} == {len(world)}

    # ---- what holds between any two events

    @invariant()
    def who_believes_in_a_round_believes_the_truth(self) -> None:
        for node in self.cluster.nodes:
            outlook = node.outlook
            if isinstance(outlook, InWorld):
                world = self.worlds[outlook.round]
                assert world[outlook.rank] == node.ref.incarnation
                assert outlook.world_size == len(world)

    @invariant()
    def closed_is_closed(self) -> None:
        if self.closed is not None:
            assert self.cluster.current().round.phase is RoundPhase.CLOSED
            self.cluster.look_all()
            for node in self.cluster.nodes:
                if node.is_well and node.halted is None:
                    assert isinstance(node.outlook, Closed | Outside)


def test_F5_F4_R1_R3_R4_R5_whatever_happens() -> None:
    explore(SharedJob, 60, steps=50)
