"""What agents that attach claim of the round that a coordinator has taken over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.harness.takeovers import running, take_over
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import messages as m
from rallypoint.core.model import Outcome, SharedSettings, Stamp
from rallypoint.core.round_state import RoundPhase


def hello_of(cluster: Cluster, agent: SimulatedAgent) -> m.Attach:
    """What this agent would say, on a connection that it makes now."""
    cluster.connect(agent)
    assert agent.link is not None
    found = agent.link.up.popleft()
    assert isinstance(found, m.Attach)
    return found


def attach(cluster: Cluster, hello: m.Attach) -> bool:
    """On a connection that nobody reads. Whether its session goes on."""
    effects = cluster.sessions.attach(99, "", hello, cluster.timers.now_s)
    answers = (getattr(effect, "message", None) for effect in effects)
    return next(answer.resumed for answer in answers if isinstance(answer, m.Attached))


def goes_on(cluster: Cluster) -> bool:
    """The round of the last coordinator."""
    return cluster.job.round.phase is RoundPhase.ACTIVE


def with_place(hello: m.Attach, round_: int = 0, rank: int = 1, address: str = "b") -> m.Attach:
    assert hello.place is not None
    joined = hello.place.joined
    candidate = replace(joined.candidate, address=address)
    assignment = replace(hello.place.assignment, round=round_, group_rank=rank)
    return replace(hello, place=m.Place(replace(joined, candidate=candidate), assignment))


def with_stamp(hello: m.Attach, stamp: Stamp | None) -> m.Attach:
    return replace(hello, claim=replace(hello.claim, stamp=stamp))


@pytest.mark.parametrize(
    ("changed", "resumed"),
    [
        (with_place, True),
        (lambda hello: with_stamp(hello, Stamp(2, 0)), False),
        (lambda hello: with_stamp(hello, Stamp(1, 1)), False),
        (lambda hello: with_stamp(hello, None), False),
        (lambda hello: with_place(hello, round_=1), False),
        (lambda hello: with_place(hello, rank=2), False),
        (lambda hello: with_place(hello, address=""), False),
        (lambda hello: replace(hello, place=None), False),
    ],
    ids=[
        "its place",
        "another incarnation",
        "another round",
        "no round",
        "a place in another round",
        "a rank that there is not",
        "a node that could not have joined",
        "no place",
    ],
)
def test_L5_only_a_node_of_the_newest_round_goes_on(
    changed: Callable[[m.Attach], m.Attach], resumed: bool
) -> None:
    """And nobody else is counted as one of its nodes."""
    cluster, (a, b) = running(2)
    take_over(cluster, b)
    assert attach(cluster, changed(hello_of(cluster, b))) is resumed
    assert goes_on(cluster) is resumed
    assert a.running == Stamp(1, 0)


@pytest.mark.parametrize("same", ["node id", "group rank", "fixed rank"])
def test_L5_two_agents_that_claim_the_same_are_not_two_nodes(same: str) -> None:
    """The round does not go on with the second one, and never without the node that is missing."""
    cluster, (_a, b) = running(2)
    cluster.take_over()
    hello = hello_of(cluster, b)
    assert hello.place is not None
    fixed = replace(hello.place.joined.candidate, node_rank=1)
    hello = replace(hello, place=replace(hello.place, joined=m.Join(1, fixed)))
    assert attach(cluster, hello)
    false = with_place(hello, rank=1 if same == "group rank" else 0)
    assert false.place is not None
    candidate = replace(fixed, node_rank=1 if same == "fixed rank" else 0)
    false = replace(
        false,
        node_id="b" if same == "node id" else "c",
        incarnation="false",
        place=replace(false.place, joined=m.Join(1, candidate)),
    )
    assert not attach(cluster, false)
    assert not goes_on(cluster)


def test_L5_a_node_that_has_succeeded_and_is_lost_again_is_not_awaited() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    take_over(cluster, b)
    cluster.cut(a)
    cluster.give_up(a)
    cluster.bring(b)
    assert goes_on(cluster)
    cluster.end_well(b)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L5_a_node_that_is_lost_before_all_have_come_is_awaited_again() -> None:
    cluster, (a, b) = running(2)
    take_over(cluster, b)
    cluster.cut(a)
    cluster.give_up(a)
    cluster.bring(b)
    assert not goes_on(cluster)
    cluster.bring(a)
    assert goes_on(cluster)
    assert a.running == b.running == Stamp(1, 0)


def test_L5_a_node_that_has_succeeded_begins_anew_if_its_round_has_ended_meanwhile() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    take_over(cluster, a)
    cluster.fail(b)
    b.local_event()
    cluster.deliver(("up", b))
    assert not goes_on(cluster)
    cluster.bring(a)
    assert a.running == b.running == Stamp(1, 1)
    state = cluster.job.round
    assert sum(state.counts.values()) == len(state.members) == 2


def test_L5_a_node_that_succeeded_and_does_something_else_now_begins_anew() -> None:
    cluster, (a, _) = running(2)
    cluster.end_well(a)
    take_over(cluster, a)
    hello = hello_of(cluster, a)
    assert not attach(cluster, replace(hello, claim=replace(hello.claim, doing=m.Doing.JOINED)))
    assert len(cluster.job.round.members) == 1


def test_R4_an_agent_that_joins_under_the_id_of_a_node_takes_its_place_after_a_takeover() -> None:
    """It is the same machine, whose former agent is lost."""
    cluster, (a, b) = running(2)
    take_over(cluster)
    cluster.cut(a)
    cluster.agents.remove(a)
    (again,) = cluster.add("a")
    assert (again.running, b.running) == (None, Stamp(1, 0)), "it waits"
    cluster.give_up(a)
    cluster.settle()
    assert again.running == b.running == Stamp(1, 1)
    assert cluster.sessions.of_agent(a.ref.incarnation) is None
    assert cluster.sessions.of_node("a") is cluster.sessions.of_agent(again.ref.incarnation)


def test_R4_the_fixed_rank_of_a_node_stays_its_own_after_a_takeover() -> None:
    settings = SharedSettings("job", 2, 2)
    cluster = Cluster(settings, has_register=True)
    for rank, name in enumerate("ab"):
        agent = cluster.start(name)
        agent.candidate = replace(agent.candidate, node_rank=rank)
    cluster.settle()
    take_over(cluster)
    late = cluster.start("c")
    late.candidate = replace(late.candidate, node_rank=1)
    cluster.settle()
    cluster.later(1.0)
    assert late.refused.startswith("node rank 1 is used by another running agent (node b) at ")
    assert goes_on(cluster)


def test_R4_the_id_of_a_node_that_comes_back_is_its_own_though_another_agent_came_first() -> None:
    """That agent waits until it is known what runs, and is refused then."""
    cluster, (a, b) = running(2)
    take_over(cluster, b)
    (other,) = cluster.add("b")
    cluster.later(1.0)
    assert not other.refused
    cluster.bring(b)
    assert cluster.sessions.of_node("b") is cluster.sessions.of_agent(b.ref.incarnation)
    cluster.later(1.0)
    assert other.refused.startswith("node id 'b' is used by another running agent at ")
    assert a.running == b.running == Stamp(1, 0)
    assert goes_on(cluster)


def test_R4_an_agent_that_had_succeeded_is_not_taken_back_while_another_has_its_id() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    take_over(cluster, a)
    (other,) = cluster.add("a")
    assert cluster.holds(other)
    cluster.bring(a)
    assert cluster.holds(other)
    cluster.later(1.0)
    assert a.refused.startswith("node id 'a' is used by another running agent at ")
    assert cluster.holds(other)
    assert b.running == Stamp(1, 0)
