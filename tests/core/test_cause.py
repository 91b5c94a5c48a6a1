"""A3: who is blamed, whatever the order in which reports arrive."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from rallypoint.core.cause import (
    Breakdown,
    NodeFailure,
    add_details,
    describe,
    describe_losses,
    first_cause,
)
from rallypoint.core.model import Cause, NodeLoss
from rallypoint.core.worker_exits import WorkerExit


def failure(
    *, age_s: float = 0.0, signal: int | None = None, tells: bool = False, local_rank: int = 0
) -> WorkerExit:
    code = None if signal else 1
    return WorkerExit(
        code,
        signal,
        local_rank=local_rank,
        rank=4,
        role="default",
        pid=99,
        age_s=age_s,
        tells_of_lost_peer=tells,
    )


def report(node_id: str, received_at: float, **more: float | bool | None) -> NodeFailure:
    return NodeFailure(node_id, failure(**more), received_at)  # type: ignore[arg-type]


def loss(node_id: str, last_heard_at: float) -> NodeLoss:
    return NodeLoss(node_id, last_heard_at, "its connection broke")


TABLE = {
    "nothing was reported": ([], [], None),
    "the only failure": ([report("a", 10)], [], "a"),
    "the only loss": ([], [loss("a", 10)], "a"),
    "the earlier of two failures": ([report("a", 10), report("b", 9)], [], "b"),
    "event time is receipt less age": ([report("a", 10), report("b", 12, age_s=5)], [], "b"),
    "who tells of a lost peer is a victim": (
        [report("a", 9, tells=True), report("b", 10)],
        [],
        "b",
    ),
    "a fatal signal outranks who tells of a lost peer": (
        [report("a", 9, tells=True), report("b", 10, signal=9)],
        [],
        "b",
    ),
    "only victims: the first of them": (
        [report("a", 11, tells=True), report("b", 10, tells=True)],
        [],
        "b",
    ),
    "a loss outranks failures received after it was last heard": (
        [report("a", 10.1)],
        [loss("b", 10)],
        "b",
    ),
    "even one that claims to be older": ([report("a", 10.1, age_s=3)], [loss("b", 10)], "b"),
    "a failure received before outranks a later loss": (
        [report("a", 9.9)],
        [loss("b", 10)],
        "a",
    ),
    "at the instant of the last sign of life": ([report("a", 10)], [loss("b", 10)], "a"),
    "a node that failed before it was lost, received with its last sign of life": (
        [report("a", 10.000001)],
        [loss("a", 10)],
        "failure of a",
    ),
    "and its peers, which tell later of failures that were earlier": (
        [report("a", 10.000001), report("b", 10.4, age_s=1)],
        [loss("a", 10)],
        "failure of a",
    ),
    "a lost peer that is known is the cause, though told of before it was last heard": (
        [report("b", 9, tells=True)],
        [loss("a", 10)],
        "a",
    ),
    "the node that is lost told of another one": (
        [report("a", 10, tells=True)],
        [loss("a", 10)],
        "failure of a",
    ),
    "the earliest of several losses": ([], [loss("a", 10), loss("b", 9)], "b"),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=list(TABLE))
def test_A3_the_first_cause(
    case: tuple[list[NodeFailure], list[NodeLoss], str | None],
) -> None:
    reports, losses, blamed = case
    for some in permutations(reports):
        for other in permutations(losses):
            cause = first_cause(3, some, other)
            if blamed == "failure of a":
                assert cause is not None
                assert cause.failure is not None
            assert (cause.node_id if cause else None) == (blamed and blamed[-1])
            if cause is not None:
                assert cause.round == 3
                assert cause.collateral == len(reports) + len(losses) - 1
                assert (cause.failure is None) != (cause.loss is None)


BROKEN = Breakdown("c", "the store was killed", known_at=10.0)


@pytest.mark.parametrize(
    ("report", "is_blamed"),
    [
        (report("a", 10.2), False),
        (report("a", 9.9), False),
        (report("a", 13, age_s=3.2, tells=True), False),
        (report("a", 10.2, age_s=2), True),
        (report("a", 8.9), True),
    ],
    ids=["follows", "is told first", "lost a peer", "was earlier", "was told earlier"],
)
def test_A3_what_fails_of_a_dead_helper_is_not_to_blame(
    report: NodeFailure, is_blamed: bool
) -> None:
    cause = first_cause(3, [report], [], BROKEN)
    assert (cause is not None) is is_blamed
    lost = first_cause(3, [report], [loss("b", 11)], BROKEN)
    assert lost is not None
    assert (lost.failure is not None) is is_blamed


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_A3_of_two_nodes_lost_together_the_one_that_told_of_a_lost_peer_is_not_to_blame(
    order: str,
) -> None:
    reports = [report("a", 10.0, tells=True)]
    losses = [loss(node_id, 12.0) for node_id in order]
    cause = first_cause(0, reports, losses)
    assert cause is not None
    assert (cause.node_id, cause.failure) == ("b", None)


def test_A3_a_node_that_is_lost_alone_after_it_told_of_a_lost_peer_is_blamed_for_that() -> None:
    """Nobody else is gone: the peer may be one that Rallypoint knows nothing of."""
    cause = first_cause(0, [report("a", 10.0, tells=True)], [loss("a", 12.0)])
    assert cause is not None
    assert cause.failure is not None


def test_a_cause_names_node_rank_and_how_it_ended() -> None:
    killed = Cause("b", 0, failure=failure(signal=9, local_rank=2))
    assert describe(killed) == "rank 4 (node b, local rank 2) was killed by SIGKILL"
    said = "killed by SIGKILL: out of memory (here)"
    for_memory = replace(failure(signal=9), message=said)
    assert describe(Cause("b", 0, for_memory)).endswith("was killed by SIGKILL (out of memory)")
    lost = Cause("b", 0, loss=loss("b", 1))
    assert describe(lost) == "node b was lost (its connection broke)"


def test_the_clause_of_an_exit_knows_every_number() -> None:
    assert failure().clause() == "exited with code 1"
    assert failure(signal=11).clause() == "was killed by SIGSEGV"
    assert failure(signal=200).clause() == "was killed by signal 200"


def test_nodes_that_were_lost_together_are_all_named() -> None:
    assert describe_losses([loss("b", 1)]) == "node b was lost (its connection broke)"
    two = [loss("c", 2), loss("b", 1)]
    assert describe_losses(two) == "node b was lost (its connection broke), and with it c"
    many = describe_losses([loss(f"n{n}", n) for n in range(12)])
    assert many.startswith("node n0 was lost")
    assert many.endswith("and with it n[1-11]")


def test_A3_a_traceback_is_added_to_the_failure_of_its_own_node_alone() -> None:
    reports = [report("a", 10.0), report("b", 10.1), report("b", 10.2, local_rank=1)]
    told = replace(failure(age_s=3.0), rank=0, message="CUDA error", detail="a traceback")
    add_details(reports, "b", [told])
    assert [(each.node_id, each.failure.message) for each in reports] == [
        ("a", ""),
        ("b", "CUDA error"),
        ("b", ""),
    ]
    assert reports[1].failure.rank == 4, "as its world says"
    assert reports[1].happened_at == 10.1
