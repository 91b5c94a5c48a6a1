"""Whatever is lost between the processes of a job and its register: no promise is broken, no two
processes lead, and somebody leads in the end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.leading_world import World
from tests.harness.properties import examples

from rallypoint.core.settings import HOLD_S

LEASE_S = 15.0
FATES = st.lists(st.sampled_from(["ok", "ok", "ok", "ok", "slow", "lost", "unknown"]), max_size=60)
TURNS = st.lists(
    st.sampled_from(["1", "5", "20", "vanish", "leave", "away", "back", "alone"]), max_size=12
)


def played(world: World, turns: list[str]) -> None:
    """The leader vanishes, leaves, or can't reach the register, and so on."""
    for turn in turns:
        leader = world.leader
        match turn:
            case "vanish" if leader is not None and len(alive(world)) > 1:
                leader.vanish()
            case "leave" if leader is not None:
                leader.leave()
            case "alone" if leader is not None:
                leader.is_away = True
            case "away" | "back":
                for each in world.processes.values():
                    each.is_away = turn == "away"
            case _ if turn.isdigit():
                world.tick(float(turn))


def alive(world: World) -> list[str]:
    return [each.name for each in world.processes.values() if not each.is_gone]


@settings(deadline=None, max_examples=examples(600))
@given(FATES, TURNS, st.integers(2, 5), st.booleans())
def test_L2_nobody_breaks_a_promise_and_somebody_leads_whatever_is_lost(
    fates: list[str], turns: list[str], nodes: int, has_candidate: bool
) -> None:
    left = iter(fates)
    world = World(nodes, lambda message: next(left, "ok"))
    for rank in range(nodes):
        world.node(rank)
    if has_candidate:
        world.candidate("other")
    world.tick(5.0)
    played(world, turns)
    for each in world.processes.values():
        each.is_away = False
    world.tick(2 * HOLD_S + 8 * LEASE_S)
    assert world.leader is not None, world.trace
    assert world.leader.is_sure
