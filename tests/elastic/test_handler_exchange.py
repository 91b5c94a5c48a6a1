"""What nodes of a handler's round tell each other before its coordinator begins."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.model import EndKind, EndReason, SharedSettings, Stamp
from rallypoint.core.takeover.record import JobRecord
from rallypoint.core.watch.carried import Carried
from rallypoint.elastic.rendezvous.plug_in import exchange
from rallypoint.elastic.rendezvous.plug_in.exchange import NodeInfo
from rallypoint.elastic.rendezvous.plug_in.part import Part
from rallypoint.errors import RendezvousStateError

SETTINGS = SharedSettings("job", 1, 4, max_restarts=3)
LOST = EndReason(EndKind.LOSS, "node b was lost: its agent died", "b")


def known(round_: int, incarnation: int = 7, restarts: int = 0) -> JobRecord:
    """By a node that had a place in this round."""
    part = Part("theirs", 15.0, 3, stamp=Stamp(incarnation, round_), restarts=restarts, ended=LOST)
    record = exchange.record(part, SETTINGS, None)
    assert record is not None
    return record


def started_from(*records: JobRecord | None) -> JobRecord | None:
    """Which of them a coordinator goes on with."""
    infos = [NodeInfo(f"n{rank}", record) for rank, record in enumerate(records)]
    state = exchange.newest(infos, exchange.for_nodes(SETTINGS, len(infos)))
    if state is None:
        return None
    same = [one for one in records if one is not None and one.round == state.round.round]
    return max(
        same, key=lambda one: (one.incarnation == state.incarnation, one.carried == state.carried)
    )


def test_a_node_that_was_in_no_round_knows_nothing() -> None:
    assert exchange.record(Part("theirs", 15.0, 3), SETTINGS, None) is None
    assert started_from(None, None) is None


def test_L1_a_coordinator_goes_on_with_the_newest_that_any_node_knows() -> None:
    assert started_from(known(3), None, known(5), known(4)) == known(5)
    assert started_from(known(3, incarnation=8), known(5)) == known(5)
    assert started_from(known(3, incarnation=8), known(3)) == known(3, incarnation=8)


def test_L1_the_whole_record_of_the_last_coordinator_comes_before_what_its_nodes_know() -> None:
    whole = replace(known(5), carried=Carried(1.0, 2.0, "running", "work"))
    assert started_from(known(5), whole, known(5)) == whole
    assert started_from(whole, known(6)) == known(6), "it was paused, and the others went on"


def test_L1_what_a_node_knows_gives_the_number_the_budget_and_the_reason() -> None:
    state = exchange.newest([NodeInfo("a", known(5, restarts=2))], exchange.for_nodes(SETTINGS, 3))
    assert state is not None
    assert (state.round.round, state.incarnation, state.ledger.total) == (6, 7, 2)
    assert state.end_reason == LOST
    assert (state.round.settings.min_nodes, state.round.settings.max_nodes) == (3, 3)


@given(st.integers(0, 2**31), st.integers(0, 50), st.binary(max_size=32), st.booleans())
def test_an_info_is_read_as_it_was_written(
    round_: int, restarts: int, secret: bytes, has_store: bool
) -> None:
    record = known(round_, restarts=restarts)
    info = NodeInfo("a", record, ("10.0.0.1:29400", "[fd00::1]:29400"), secret, has_store)
    assert exchange.decode(exchange.encode(info), 0) == info


class FormerInfo(Struct, frozen=True):
    """As agents told that had no coordinator."""

    node_id: str
    workers: int
    role: str
    incarnation: int
    last_round: int
    restarts: int
    address: str = ""
    port: int = 0
    secret: bytes = b""


def test_R7_nodes_of_a_version_without_coordinators_are_refused_and_refuse_this_one() -> None:
    former = FormerInfo("b", 1, "default", 7, -1, 0)
    with pytest.raises(RendezvousStateError) as refused:
        exchange.decode(msgspec.msgpack.encode(former), 1)
    assert str(refused.value).startswith(
        "the node of rank 1 in the rendezvous handler's round does not run this version of "
        "rallypoint: install the same on all nodes ("
    )
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(exchange.encode(NodeInfo("a", known(3))), type=FormerInfo)


@pytest.mark.parametrize(
    "spoilt",
    [
        NodeInfo("a", replace(known(3), round=-1)),
        NodeInfo("a", replace(known(3), leader_rank=5)),
        NodeInfo("a\x1b[2J"),
        NodeInfo("a", secret=b"x" * 10_000),
    ],
    ids=str,
)
def test_F10_what_no_node_writes_is_refused(spoilt: NodeInfo) -> None:
    with pytest.raises(RendezvousStateError, match="does not run this version"):
        exchange.decode(exchange.encode(spoilt), 1)
