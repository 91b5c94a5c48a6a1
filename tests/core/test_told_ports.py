"""A round tells its nodes the ports that they have brought for their workers' programs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from tests.harness.job_machine import CANDIDATE, RULES, A, B, Host, failed

from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core.messages import FromNode
from rallypoint.core.model import Assignment, NodeRef
from rallypoint.core.settings import MAX_TOLD_WORKERS


def formed(host: Host, ports: dict[NodeRef, tuple[int, ...]], workers: int = 2) -> list[Assignment]:
    """The places of the round that these nodes form, each with ports of its own."""
    for number, (ref, own) in enumerate(ports.items(), 1):
        address = f"10.0.0.{number}"
        candidate = replace(CANDIDATE, address=address, ports=own, workers=workers)
        host.seqs[ref] = host.seqs.get(ref, 0) + 1
        host.step(FromNode(ref, m.Join(host.seqs[ref], candidate)))
    return [host.job.assigned[ref.node_id] for ref in ports]


def told(places: Sequence[Assignment]) -> set[tuple[int, tuple[str, ...]]]:
    return {(place.coordinator_port, place.worker_addresses) for place in places}


def test_A14_all_nodes_are_told_the_port_of_rank_0_anew_in_each_round() -> None:
    host = Host(replace(RULES, env_styles=("jax",)))
    assert told(formed(host, {A: (5001,), B: (5002,)})) == {(5001, ())}
    host.enrol(A, B)
    host.fail(A, failed(), 1.0)
    assert told(formed(host, {B: (6002,), A: (6001,)})) == {(6001, ())}


def test_A14_workers_are_told_of_each_other_by_rank_where_they_connect() -> None:
    host = Host(replace(RULES, env_styles=("tensorflow",)))
    places = formed(host, {A: (5000, 5001, 5002), B: (6000, 6001, 6002)})
    addresses = ("10.0.0.1:5001", "10.0.0.1:5002", "10.0.0.2:6001", "10.0.0.2:6002")
    assert told(places) == {(5000, addresses)}


def test_more_workers_than_a_variable_can_name_are_not_told() -> None:
    host = Host(replace(RULES, env_styles=("tensorflow",)))
    workers = MAX_TOLD_WORKERS // 2 + 1
    own = tuple(range(10_000, 10_001 + workers))
    assert told(formed(host, {A: own, B: own}, workers)) == {(10_000, ())}


def test_R7_a_coordinator_that_does_not_know_styles_is_not_used() -> None:
    """It would tell nobody of a port."""
    for known, is_refused in ((None, True), (25, True), (26, False)):
        end = s.AgentEnd(s.Identity("a", "host", "life"), replace(RULES, env_styles=("jax",)))
        end.connected(0.0, m.Claim())
        how = m.Attached("a", 1, 1, False)
        how = how if known is None else replace(how, settings_known=known)
        refusals = [each for each in end.received(0.0, how) if isinstance(each, s.Rejected)]
        assert end.is_closed == bool(refusals) == is_refused
        if refusals:
            assert "older version of Rallypoint, which ignores --env-style" in str(refusals[0])


def test_nothing_is_told_where_nothing_was_brought() -> None:
    assert told(formed(Host(), {A: (), B: ()})) == {(0, ())}
