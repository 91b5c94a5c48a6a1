"""A round tells its nodes the ports that they have brought for their workers' programs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from tests.harness.job_machine import CANDIDATE, RULES, A, B, Host, failed, stamp

from rallypoint.coordinator.connection import FIRST_MESSAGE_MAX_BYTES
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core.messages import FromNode
from rallypoint.core.model import Assignment, NodeRef
from rallypoint.wire.codec import encode


def formed(
    host: Host, ports: dict[NodeRef, tuple[int, ...]], workers: int = 2, name: str = ""
) -> list[Assignment]:
    """The places of the round that these nodes form, each with ports of its own."""
    for number, (ref, own) in enumerate(ports.items(), 1):
        address = name or f"10.0.0.{number}"
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


def test_more_than_a_variable_can_hold_is_not_told() -> None:
    for workers, host, is_told in ((2000, "", True), (2049, "", False), (300, "h" * 200, False)):
        job = Host(replace(RULES, env_styles=("tensorflow",)))
        own = tuple(range(10_000, 10_001 + workers))
        ((port, addresses),) = told(formed(job, {A: own, B: own}, workers, host))
        assert (port, bool(addresses)) == (10_000, is_told)


def test_L5_a_node_attaches_with_a_short_message_however_many_workers_there_are() -> None:
    """A coordinator reads no more than 16 KiB of a peer that has not attached."""
    own = tuple(range(10_000, 14_001))
    settings = replace(RULES, min_nodes=1, max_nodes=1, env_styles=("tensorflow",))
    (place,) = formed(Host(settings), {A: own}, len(own) - 1)
    end = s.AgentEnd(s.Identity("a", "host", "life"), settings)
    end.connected(0.0, m.Claim())
    end.received(0.0, m.Attached("a", 1, 1, False, settings_known=99))
    end.report(m.Join(1, replace(CANDIDATE, ports=own)), 0.0)
    end.received(0.0, m.Assigned(stamp(), place))
    (again,) = end.connected(1.0, m.Claim())
    assert isinstance(again, s.Send)
    assert isinstance(again.message, m.Attach)
    assert again.message.place is not None
    assert len(encode(again.message)) < FIRST_MESSAGE_MAX_BYTES


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
