"""Behaviour F5: a job over a store that can only compare and swap, told as scenarios."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.harness.shared_cluster import SharedCluster, SharedNode

from rallypoint.core.events import NodeJoined, NodeLeft, NodeLost, Timer, TimerEnded, TimerKind
from rallypoint.core.model import NodeRef, SharedSettings
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.rendezvous.shared.member import HEADS, Closed, InWorld, Outside, Pending
from rallypoint.errors import RendezvousGracefulExitError

LEASE_S, INTERVAL_S = 15.0, 5.0
SETTINGS = SharedSettings(
    "job",
    2,
    4,
    lease_s=LEASE_S,
    heartbeat_s=INTERVAL_S,
    last_call_s=30.0,
    join_settle_s=0.0,
    min_growth_interval_s=0.0,
)
SOON_S = LEASE_S + 3 * INTERVAL_S
"""A dead node is removed within this time, whoever dies with it."""


def cluster_of(
    *names: str, most: int | None = None, least: int = 2, **others: bool
) -> SharedCluster:
    """A job with these nodes in its first world."""
    most = len(names) if most is None else most
    cluster = SharedCluster(replace(SETTINGS, min_nodes=least, max_nodes=most), **others)
    for name in names:
        cluster.join(name)
    cluster.pass_time(INTERVAL_S if most == len(names) else SETTINGS.last_call_s + INTERVAL_S)
    assert cluster.world == list(names)
    return cluster


def ranks(cluster: SharedCluster) -> dict[str, int]:
    """What the nodes believe: the rank of each that is in the newest world."""
    newest = cluster.shared.round.round
    found = {}
    for node in cluster.nodes:
        if node.is_well and isinstance(node.outlook, InWorld) and node.outlook.round == newest:
            found[node.ref.node_id] = node.outlook.rank
    return found


def node_of(cluster: SharedCluster, name: str) -> SharedNode:
    return next(node for node in cluster.nodes if node.ref.node_id == name and not node.is_dead)


both_stores = pytest.mark.parametrize("keeps_beats", [True, False])


@both_stores
@pytest.mark.parametrize("dead", ["abc", "ab", "ac", "bc", "a", "b", "c", "e"])
def test_F5_R3_whoever_dies_is_removed_soon_and_the_others_re_form(
    dead: str, keeps_beats: bool
) -> None:
    """The leader, its heirs, or all of them at once; and somebody else with them."""
    cluster = cluster_of(*"abcdefg", keeps_beats=keeps_beats)
    gone = [*dead, "f"]
    for name in gone:
        cluster.kill(node_of(cluster, name))
    cluster.pass_time(SOON_S if len(dead) < HEADS else 2 * SOON_S)
    alive = [name for name in "abcdefg" if name not in gone]
    assert [ref.node_id for ref in cluster.members] == alive
    assert cluster.world == alive
    assert ranks(cluster) == {name: rank for rank, name in enumerate(alive)}


@both_stores
def test_F5_W4_a_node_paused_past_its_lease_learns_that_it_was_expelled(keeps_beats: bool) -> None:
    cluster = cluster_of("a", "b", "c", keeps_beats=keeps_beats)
    paused = node_of(cluster, "a")
    cluster.pause(paused)
    cluster.pass_time(SOON_S)
    assert cluster.world == ["b", "c"]
    before = cluster.store.value
    assert isinstance(paused.outlook, InWorld)  # what it believed when it was stopped
    cluster.resume(paused)
    paused.before_write = lambda: seen.append(paused.outlook)
    seen: list[object] = []
    cluster.look(paused)
    assert seen == [Outside()]
    assert cluster.history[-1].before == shared_round.decode(before or b"")
    assert paused.ref in cluster.members  # it has joined again, and changed nothing else
    cluster.pass_time(INTERVAL_S)
    assert cluster.world == ["b", "c", "a"]


@pytest.mark.parametrize("stopped", ["a", "b"])
def test_F5_what_a_paused_leader_was_about_to_write_is_void(stopped: str) -> None:
    """Stopped between its read and its write, when it was about to remove another node."""
    cluster = cluster_of("a", "b", "c", "d")
    cluster.kill(node_of(cluster, "d"))
    halting = node_of(cluster, stopped)
    if stopped == "b":
        cluster.pause(node_of(cluster, "a"))
    halting.halts_at_write = True
    cluster.pass_time(SOON_S + LEASE_S)
    assert halting.halted is not None
    cluster.join("d", life=2)
    cluster.pass_time(SOON_S)
    assert "d" in cluster.world
    assert stopped not in cluster.world
    before = cluster.store.token
    cluster.resume(halting)
    assert cluster.store.token == before, "it wrote though it is no member"
    cluster.pass_time(2 * INTERVAL_S)
    assert NodeRef("d", "d.2") in cluster.members
    assert stopped in cluster.world


@pytest.mark.parametrize("offset_s", [-20.0, 20.0, 86400.0])
@pytest.mark.parametrize("who", ["a", "b"])
def test_F5_R6_W3_clocks_that_differ_change_nothing(offset_s: float, who: str) -> None:
    def history(offsets: dict[str, float]) -> list[tuple[float, int, list[str]]]:
        cluster = SharedCluster(replace(SETTINGS, max_nodes=3))
        for name in "abc":
            cluster.join(name, offset_s=offsets.get(name, 0.0))
        cluster.pass_time(2 * LEASE_S)
        cluster.kill(node_of(cluster, "c"))
        cluster.pass_time(2 * LEASE_S)
        cluster.join("d", offset_s=offsets.get(who, 0.0))
        cluster.pass_time(2 * LEASE_S)
        assert cluster.world == ["a", "b", "d"]
        return [
            (stored.at_s, stored.after.round.round, sorted(stored.after.round.members))
            for stored in cluster.history
        ]

    assert history({who: offset_s}) == history({})


@both_stores
def test_F5_a_node_cut_off_from_the_store_is_removed_and_its_own_gap_accuses_nobody(
    keeps_beats: bool,
) -> None:
    cluster = cluster_of("a", "b", "c", keeps_beats=keeps_beats)
    leader = node_of(cluster, "a")
    cluster.cut_off(leader)
    cluster.pass_time(LEASE_S - INTERVAL_S)
    cluster.reconnect(leader)
    cluster.pass_time(5 * LEASE_S)
    assert cluster.shared.round.round == 0
    cluster.cut_off(leader)
    cluster.pass_time(SOON_S)
    assert cluster.world == ["b", "c"]
    cluster.reconnect(leader)
    cluster.pass_time(INTERVAL_S)
    assert cluster.world == ["b", "c", "a"]


def test_F5_everybody_paused_at_once_expels_nobody() -> None:
    """A suspended machine, a store that was down: nobody saw anything, so nobody is accused."""
    cluster = cluster_of("a", "b", "c")
    for stop, go_on in (
        (cluster.pause, cluster.resume),
        (cluster.cut_off, cluster.reconnect),
    ):
        for node in cluster.nodes:
            stop(node)
        cluster.pass_time(10 * LEASE_S)
        for node in cluster.nodes:
            go_on(node)
        cluster.pass_time(3 * LEASE_S)
        assert cluster.shared.round.round == 0
        assert cluster.world == ["a", "b", "c"]


def test_F5_a_write_that_lost_the_race_is_applied_to_the_fresh_state() -> None:
    """The last place is taken between the read and the write: who comes second stands by."""
    cluster = SharedCluster(replace(SETTINGS, max_nodes=2))
    cluster.join("a")
    late = cluster.join("b", joins=False)
    late.before_write = lambda: cluster.join("c")
    cluster.look(late)
    assert cluster.world == ["a", "c"]
    assert isinstance(late.outlook, Pending)
    assert not late.outlook.needed


def test_F5_a_writer_that_died_between_its_read_and_its_write_leaves_no_trace() -> None:
    cluster = cluster_of("a", "b", "c")
    before, dying = cluster.store.value, node_of(cluster, "c")
    dying.halts_at_write = True
    cluster.restart_workers(dying)
    assert dying.halted is not None
    assert cluster.store.value == before
    cluster.kill(dying)
    cluster.pass_time(SOON_S)
    assert cluster.world == ["a", "b"]


@pytest.mark.parametrize("was_stored", [True, False])
@pytest.mark.parametrize("race", [True, False])
def test_F5_an_unknown_outcome_is_settled_by_reading(was_stored: bool, race: bool) -> None:
    """Also when somebody else has written since: the event is applied again, and does nothing."""
    cluster = cluster_of("a", "b", most=4)
    failing = node_of(cluster, "b")
    failing.fails_at_write = was_stored
    if race:
        failing.after_write = lambda: cluster.join("c")
    cluster.restart_workers(failing)
    cluster.pass_time(2 * INTERVAL_S)
    assert cluster.world == (["a", "b", "c"] if race else ["a", "b"])
    assert cluster.shared.round.fitness.recent_losses == []
    assert cluster.shared.round.round == 1, "one restart, one round"


@both_stores
def test_F5_R5_closed_is_for_everybody_and_for_good(keeps_beats: bool) -> None:
    cluster = cluster_of("a", "b", "c", most=3, keeps_beats=keeps_beats)
    spare = cluster.join("s")
    cluster.close(node_of(cluster, "c"), "all is done")
    cluster.close(node_of(cluster, "b"), "too late")
    cluster.look_all()
    closed = Closed("all is done", was_needed=True)
    assert [node.outlook for node in cluster.nodes[:3]] == [closed] * 3
    assert spare.outlook == Closed("all is done", was_needed=False)
    value = cluster.store.value
    stranger = cluster.join("x")
    cluster.kill(node_of(cluster, "a"))
    cluster.pass_time(10 * LEASE_S)
    assert isinstance(stranger.outlook, Closed)
    assert shared_round.decode(value or b"").round == cluster.shared.round


def test_F5_R3_a_node_that_would_not_stop_is_removed_by_the_leader() -> None:
    cluster = SharedCluster(replace(SETTINGS, max_nodes=3))
    cluster.stop_grace_s = 7.0
    for name in "abc":
        cluster.join(name)
    stuck = node_of(cluster, "b")
    stuck.is_slow = True
    cluster.look_all()
    cluster.restart_workers(node_of(cluster, "a"))
    cluster.pass_time(9.0)
    assert cluster.world == []
    cluster.pass_time(2 * INTERVAL_S)
    removed = [s for s in cluster.history if stuck.ref.node_id not in s.after.round.members]
    assert [stored.by.node_id for stored in removed[-1:]] == ["a"]
    assert removed[-1].after.round.fitness.recent_losses


def test_F5_R4_a_second_life_supersedes_the_first_for_good() -> None:
    cluster = cluster_of("a", "b")
    first = node_of(cluster, "a")
    second = cluster.join("a", life=2)
    cluster.pass_time(2 * INTERVAL_S)
    assert cluster.world == ["b", "a"]
    assert second.ref in cluster.members
    assert isinstance(first.outlook, Outside)
    refused = shared_round.join_refused(cluster.shared, first.ref, cluster.settings)
    assert isinstance(refused, RendezvousGracefulExitError)
    cluster.pass_time(5 * LEASE_S)
    assert second.ref in cluster.members


@pytest.mark.parametrize("attempts", [1, 2, 3, 10])
def test_F5_a_short_lease_neither_accuses_the_living_nor_spares_the_dead(attempts: int) -> None:
    """A lease of one or two intervals: nodes then count more often."""
    settings = replace(SETTINGS, max_nodes=3, lease_s=INTERVAL_S * attempts)
    cluster = SharedCluster(settings)
    for name in "abc":
        cluster.join(name)
    cluster.pass_time(20 * settings.lease_s)
    assert cluster.shared.round.round == 0
    cluster.kill(node_of(cluster, "a"))
    cluster.pass_time(settings.lease_s + 3 * INTERVAL_S)
    assert cluster.world == ["b", "c"]


def test_F5_reads_per_heartbeat_grow_with_the_nodes_not_with_their_square() -> None:
    names = [f"n{number}" for number in range(100)]
    cluster = cluster_of(*names)
    reads = sum(len(node.member.watched()) for node in cluster.nodes)
    assert reads <= 2 * HEADS * len(names)
    assert all(node.member.watched() for node in cluster.nodes)


EVENTS: dict[str, Callable[[SharedCluster], object]] = {
    "joined": lambda c: NodeJoined(NodeRef("x", "x.1"), 1, c.nodes[0].candidate, c.settings),
    "joined again": lambda c: NodeJoined(
        c.nodes[0].ref, c.nodes[0].seq + 1, c.nodes[0].candidate, c.settings
    ),
    "lost": lambda c: NodeLost(c.nodes[0].ref, "silence"),
    "left": lambda c: NodeLeft(c.nodes[0].ref),
    "last call": lambda c: TimerEnded(Timer(TimerKind.LAST_CALL, c.shared.round.round)),
}


@pytest.mark.parametrize("last_call", [True, False])
@pytest.mark.parametrize("event", EVENTS)
def test_F5_an_event_that_is_applied_twice_does_nothing_more(event: str, last_call: bool) -> None:
    cluster = SharedCluster(replace(SETTINGS, max_nodes=4))
    cluster.join("a")
    cluster.join("b")
    if not last_call:
        cluster.pass_time(SETTINGS.last_call_s + INTERVAL_S)
    shared, what = cluster.shared, EVENTS[event](cluster)
    shared_round.apply(shared, what, "w")  # type: ignore[arg-type]
    once = shared_round.decode(shared_round.encode(shared))
    shared_round.apply(shared, what, "w")  # type: ignore[arg-type]
    assert shared.version == once.version + 1
    shared.version -= 1
    assert shared == once


def test_F5_a_suspect_that_counts_after_all_is_kept() -> None:
    cluster = cluster_of("a", "b", keeps_beats=False)
    suspect, shared = node_of(cluster, "b"), cluster.shared
    beat = shared.beats["b"]
    assert shared_round.beat(shared, suspect.ref, beat + 1, "w")
    assert shared_round.lose(shared, suspect.ref, beat, "silence", "w") is None
    assert shared_round.is_member(shared, suspect.ref)
    shared_round.lose(shared, suspect.ref, beat + 1, "silence", "w")
    assert not shared_round.is_member(shared, suspect.ref)
    assert not shared_round.beat(shared, suspect.ref, beat + 2, "w")
    assert "b" not in shared.beats


@both_stores
def test_F5_what_was_concluded_before_a_node_was_expelled_does_not_remove_it_again(
    keeps_beats: bool,
) -> None:
    """An heir that is stopped just before it removes a node, which is then expelled and rejoins."""
    cluster = cluster_of("a", "b", "c", "d", keeps_beats=keeps_beats)
    silent, leader, heir = (node_of(cluster, name) for name in "dab")
    cluster.pause(silent)
    cluster.pause(leader)
    heir.halts_at_write = keeps_beats
    cluster.pass_time(LEASE_S + INTERVAL_S)
    cluster.resume(leader)
    cluster.pass_time(INTERVAL_S)
    cluster.resume(silent)
    cluster.pass_time(INTERVAL_S)
    rejoined = cluster.shared.round.fitness.recent_losses
    if heir.is_paused:
        cluster.resume(heir)
    cluster.pass_time(INTERVAL_S)
    assert silent.ref in cluster.members
    assert cluster.shared.round.fitness.recent_losses[: len(rejoined)] == rejoined
    assert [loss.machine for loss in cluster.shared.round.fitness.recent_losses].count("d") <= 1


def test_F5_who_is_not_in_the_state_removes_nobody() -> None:
    """A leader is stopped just before it removes a dead node, and another life takes its place."""
    cluster = cluster_of("a", "b", "c", "d")
    leader = node_of(cluster, "a")
    cluster.kill(node_of(cluster, "d"))
    leader.halts_at_write = True
    while leader.halted is None:
        cluster.pass_time(INTERVAL_S / 2)
    cluster.join("a", life=2)
    assert sorted(ref.incarnation for ref in cluster.members) == ["a.2", "b.1", "c.1", "d.1"]
    before = cluster.store.value
    cluster.resume(leader)
    assert cluster.store.value == before


def test_F5_R4_an_expelled_life_that_was_replaced_meanwhile_does_not_try_for_ever() -> None:
    cluster = cluster_of("a", "b", "c")
    older = node_of(cluster, "a")
    cluster.pause(older)
    cluster.pass_time(SOON_S)
    newer = cluster.join("a", life=2)
    cluster.pass_time(INTERVAL_S)
    cluster.resume(older)
    writes = len(cluster.history)
    cluster.pass_time(4 * LEASE_S)
    assert isinstance(older.outlook, Outside)
    refused = shared_round.join_refused(cluster.shared, older.ref, cluster.settings)
    assert isinstance(refused, RendezvousGracefulExitError)
    assert [stored for stored in cluster.history[writes:] if stored.by == older.ref] == []
    assert newer.ref in cluster.members
