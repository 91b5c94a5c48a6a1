"""What nodes that met by a handler compute from each other's infos."""

from __future__ import annotations

import pytest

from rallypoint.core.model import EndKind, EndReason, Outcome, Stamp, Verdict
from rallypoint.elastic.rendezvous.plug_in.round import (
    NodeInfo,
    assign,
    decode_info,
    decode_reason,
    decode_verdict,
    encode,
    next_stamp,
)
from rallypoint.errors import RendezvousStateError


def info(
    node_id: str,
    workers: int = 2,
    role: str = "default",
    *,
    job: int = 7,
    last: int = -1,
    restarts: int = 0,
    secret: bytes = b"s",
) -> NodeInfo:
    return NodeInfo(node_id, workers, role, job, last, restarts, f"host-{node_id}", 5, secret)


def test_workers_are_ranked_by_node_and_role() -> None:
    infos = [info("a", 2, "actor"), info("b", 1, "learner"), info("c", 3, "actor")]
    parts = [assign(infos, rank, "why") for rank in range(3)]
    assert [part.base_rank for part in parts] == [0, 2, 3]
    assert [part.base_role_rank for part in parts] == [0, 0, 2]
    assert [part.role_world_size for part in parts] == [5, 1, 5]
    assert {part.world_size for part in parts} == {6}
    assert {(part.master_addr, part.master_port) for part in parts} == {("host-a", 5)}
    assert [part.group_rank for part in parts] == [0, 1, 2]


def test_the_first_round_is_round_0_of_the_highest_job_that_is_proposed() -> None:
    """Which later jobs begin above, on whatever node."""
    assert next_stamp([info("a", job=1), info("b", job=2)]) == Stamp(2, 0)


def test_F4_a_round_is_above_all_that_any_of_its_nodes_has_seen() -> None:
    """A newcomer may be of rank 0: it learns the job's incarnation and number."""
    infos = [info("new", job=1), info("old", job=2, last=4), info("older", job=2, last=3)]
    assert next_stamp(infos) == Stamp(2, 5)
    assert {assign(infos, rank, "").round for rank in range(3)} == {5}


def test_the_restart_count_is_the_most_that_one_agent_has_spent() -> None:
    infos = [info("a", restarts=1), info("b", restarts=2), info("c")]
    assert {assign(infos, rank, "").restart_count for rank in range(3)} == {2}


@pytest.mark.parametrize(
    ("infos", "enrol"),
    [
        ([info("a"), info("b")], True),
        ([info("a", secret=b""), info("b")], False),
        ([info("a")], False),
    ],
    ids=["its own store", "the handler's store", "alone"],
)
def test_nodes_enrol_with_an_agents_store_alone(infos: list[NodeInfo], enrol: bool) -> None:
    assert assign(infos, 0, "").enrol is enrol


def test_what_is_no_node_info_is_refused_and_what_is_no_verdict_or_reason_is_none() -> None:
    assert decode_info(encode(info("a"))) == info("a")
    with pytest.raises(RendezvousStateError, match="no node info"):
        decode_info(b"\xc1")
    verdict = Verdict(Outcome.FAILED, "it failed", 3)
    assert decode_verdict(encode(verdict)) == verdict
    assert decode_verdict(b"nothing") is None
    reason = EndReason(EndKind.FAILURE, "rank 3 exited with code 9", "b")
    assert decode_reason(encode(reason)) == reason
    assert decode_reason(b"nothing") is decode_reason(encode(verdict)) is None
