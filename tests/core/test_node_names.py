"""R4: ids that the coordinator gives, ids that persons give, and fixed ranks."""

from __future__ import annotations

from tests.harness.narrowed import known

from rallypoint.core.claims import Contest, Contests, NodeNames
from rallypoint.core.messages import Attach, Join
from rallypoint.core.model import Candidate, NodeRef, SharedSettings

RULES = SharedSettings("job", 1, 4)
A, B = NodeRef("a", "life-a"), NodeRef("b", "life-b")


def hello(life: str, node_id: str = "", former_id: str = "") -> Attach:
    return Attach(node_id, "host", life, 1, RULES, former_id=former_id)


def join(rank: int = -1) -> Join:
    return Join(1, Candidate(1, "worker", "host", 29500, node_rank=rank))


def test_R4_ids_are_made_from_the_host_name_and_the_smallest_free_ordinal() -> None:
    names = NodeNames()
    first, second = (names.give_id(hello(life)) for life in ("1", "2"))
    assert [first.node_id, second.node_id] == ["host-0", "host-1"]
    names.forget(first)
    assert names.give_id(hello("3")).node_id == "host-0"
    assert names.give_id(hello("4", node_id="mine")).node_id == "mine"
    assert names.give_id(hello("5", former_id="host-7")).node_id == "host-7"
    assert names.give_id(hello("6", former_id="host-1")).node_id == "host-2", "it is taken"


def test_R4_an_id_belongs_to_the_agent_that_came_with_it_first() -> None:
    names = NodeNames()
    older, newer = (names.give_id(hello(life, node_id="a")) for life in ("1", "2"))
    assert names.holder("a") == older, "attached, but not joined"
    assert names.contest(older, join()) is None
    names.take(older, -1)
    assert names.contest(newer, join()) == Contest(newer, join(), older, is_of_rank=False)
    assert names.holder("a") == older
    names.forget(newer)
    assert names.holder("a") == older
    names.forget(older)
    assert names.holder("a") is None
    assert names.contest(newer, join()) is None


def test_R4_a_fixed_rank_has_one_holder_whatever_the_ids_are() -> None:
    names = NodeNames()
    assert names.contest(A, join(0)) is None
    names.take(A, 0)
    assert names.contest(A, join(0)) is None, "it has it already"
    assert names.contest(B, join(0)) == Contest(B, join(0), A, is_of_rank=True)
    assert names.contest(B, join(1)) is None
    assert names.contest(B, join()) is None, "none is asked for"
    newer = NodeRef("a", "another")
    assert names.contest(newer, join(0)) == Contest(newer, join(0), A, is_of_rank=True)
    assert names.contest(newer, join(1)) == Contest(newer, join(1), A, is_of_rank=False)
    names.forget(A)
    assert names.contest(B, join(0)) is None


def test_R4_a_rank_that_is_given_back_is_free() -> None:
    names = NodeNames()
    names.take(A, 0)
    names.yield_rank(A)
    assert names.contest(B, join(0)) is None
    names.take(B, 0)
    names.take(B, 1)  # another one instead
    assert names.contest(A, join(0)) is None
    assert names.contest(A, join(1)) == Contest(A, join(1), B, is_of_rank=True)
    names.take(A, 1)
    assert names.contest(A, join(1)) is None, "a record says that it has it"
    assert names.contest(B, join(1)) == Contest(B, join(1), A, is_of_rank=True)


def test_R4_an_agent_that_waits_is_let_in_when_the_holder_is_gone() -> None:
    names, contests = NodeNames(), Contests()
    older, first, second = (names.give_id(hello(life, node_id="a")) for life in "123")
    names.take(older, -1)
    for newcomer in (first, second):
        contest = known(names.contest(newcomer, join()))
        contests.begin(contest)
        assert contests.of(newcomer) is contest
    assert contests.take_free(names) == []
    names.forget(older)
    assert [contest.newcomer for contest in contests.take_free(names)] == [first, second]
    assert contests.of(first) is contests.of(second) is None
    assert contests.take_free(names) == []


def test_R4_a_rank_that_its_holder_gives_back_is_free_for_an_agent_that_waits() -> None:
    names, contests = NodeNames(), Contests()
    names.take(A, 0)
    contest = known(names.contest(B, join(0)))
    contests.begin(contest)
    names.yield_rank(A)
    assert contests.take_free(names) == [contest]


def test_R4_a_holder_that_is_heard_and_then_cut_off_counts_as_not_heard() -> None:
    names, contests = NodeNames(), Contests()
    names.take(A, 0)
    assert not contests.heard("life-a", yes=True), "nobody waits"
    contest = known(names.contest(B, join(0)))
    contests.begin(contest)
    assert contests.heard("life-a", yes=True)
    assert contest.is_heard
    assert contests.heard("life-a", yes=False)
    assert not contest.is_heard
    contests.end(B)
    assert not contests.heard("life-a", yes=True)


def test_R4_a_refusal_names_both_agents_and_what_to_do() -> None:
    of_id = Contest(NodeRef("it's", "2"), join(), NodeRef("it's", "1"), is_of_rank=False)
    assert of_id.refusal("10.0.0.5:41234", "10.0.0.9:51512") == (
        'node id "it\'s" is used by another running agent at 10.0.0.5:41234; this one is at '
        "10.0.0.9:51512: give each machine its own --node-id, or none"
    )
    of_rank = Contest(B, join(3), A, is_of_rank=True)
    assert of_rank.refusal("10.0.0.5:1", "10.0.0.9:2") == (
        "node rank 3 is used by another running agent (node a) at 10.0.0.5:1; this one is at "
        "10.0.0.9:2: give each node its own --node-rank"
    )
    waits = "node rank 3: it is held by an agent at h:1"
    assert of_rank.waits_for("h:1", 0.0) == waits
    assert of_rank.waits_for("h:1", 5.0) == f"{waits}, which has not been heard for 5 s"


def test_R4_the_name_of_a_host_means_its_only_node_and_no_other() -> None:
    names = NodeNames()
    first = names.give_id(hello("1"))
    for number, node_id in enumerate(("3", "host-spare", "mine-0")):
        names.give_id(hello(f"named-{number}", node_id=node_id))
    assert names.meant("host") == "host-0"
    assert names.meant("host-spare") == "host-spare"
    assert names.meant("mine") == "mine", "no host has that name"
    names.give_id(hello("2"))
    assert names.meant("host") == "host", "it may be either"
    names.forget(first)
    assert names.meant("host") == "host-1"
