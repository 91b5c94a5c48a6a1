"""R4: ids that the coordinator gives, ids that persons give, and fixed ranks."""

from __future__ import annotations

from rallypoint.core.claims import Claimed, NodeNames
from rallypoint.core.messages import Attach
from rallypoint.core.model import NodeRef, SharedSettings
from rallypoint.core.ranks import id_of_rank

RULES = SharedSettings("job", 1, 4)
A, B = NodeRef("a", "life-a"), NodeRef("b", "life-b")


def hello(life: str, node_id: str = "", former_id: str = "") -> Attach:
    return Attach(node_id, "host", life, 1, RULES, former_id=former_id)


def nobody(ref: NodeRef) -> bool:
    return False


def everybody(ref: NodeRef) -> bool:
    return True


def test_R4_ids_are_made_from_the_host_name_and_the_smallest_free_ordinal() -> None:
    names = NodeNames()
    first, second = (names.give_id(hello(life)) for life in ("1", "2"))
    assert [first.node_id, second.node_id] == ["host-0", "host-1"]
    names.forget(first)
    assert names.give_id(hello("3")).node_id == "host-0"
    assert names.give_id(hello("4", node_id="mine")).node_id == "mine"
    assert names.give_id(hello("5", former_id="host-7")).node_id == "host-7"
    assert names.give_id(hello("6", former_id="host-1")).node_id == "host-2", "it is taken"


def test_R4_an_id_belongs_to_who_joined_with_it_last() -> None:
    names = NodeNames()
    older, newer = (names.give_id(hello(life, node_id="a")) for life in ("1", "2"))
    assert names.holder("a") == older, "attached, but not joined"
    assert names.take_id(older) is None
    assert names.take_id(newer) == older
    assert names.holder("a") == newer
    names.forget(older)
    assert names.holder("a") == newer
    names.forget(newer)
    assert names.holder("a") is None


def test_R4_a_mistyped_rank_evicts_no_healthy_node() -> None:
    names = NodeNames()
    assert names.claim_rank(A, 0, nobody, is_first=True) == Claimed()
    assert names.claim_rank(A, 0, nobody, is_first=False) == Claimed(), "it has it already"
    refused = Claimed(refused_by=A)
    assert names.claim_rank(B, 0, everybody, is_first=True) == refused
    assert names.claim_rank(B, 0, everybody, is_first=True) == refused, "it has not got it"
    assert names.claim_rank(B, 0, nobody, is_first=True) == Claimed(taken_from=A)
    assert names.claim_rank(A, 0, everybody, is_first=False) == Claimed(refused_by=B)
    names.forget(B)
    assert names.claim_rank(A, 0, everybody, is_first=False) == Claimed()
    assert names.claim_rank(B, -1, everybody, is_first=True) == Claimed(), "none is asked for"


def test_R4_a_second_agent_of_the_same_id_takes_the_rank_if_a_person_gave_the_id() -> None:
    names = NodeNames()
    made = id_of_rank(0)
    for node_id, expected in (("mine", Claimed()), (made, Claimed(NodeRef(made, "1")))):
        names = NodeNames()
        older, newer = NodeRef(node_id, "1"), NodeRef(node_id, "2")
        assert names.claim_rank(older, 0, everybody, is_first=True) == Claimed()
        assert names.claim_rank(newer, 0, everybody, is_first=True) == expected
        assert names.claim_rank(newer, 0, everybody, is_first=False) == Claimed()


def test_R4_a_rank_that_is_given_back_is_free() -> None:
    names = NodeNames()
    names.claim_rank(A, 0, everybody, is_first=True)
    names.yield_rank(A)
    assert names.claim_rank(B, 0, everybody, is_first=True) == Claimed()
    assert names.claim_rank(B, 1, everybody, is_first=False) == Claimed(), "another one instead"
    assert names.claim_rank(A, 0, everybody, is_first=False) == Claimed()
