"""The job at a coordinator that serves one round of a handler: when its nodes restart by
themselves, and when all of them ask the handler for the next round."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.job_machine import (
    CANDIDATE,
    RULES,
    A,
    B,
    C,
    Host,
    failed,
    orders,
    stamp,
    told,
)
from tests.harness.properties import examples

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEffect, JobEvent, RoundIsOver, SessionLost
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import EndKind, EndReason, NodeRef, Outcome
from rallypoint.elastic.rendezvous.plug_in import exchange
from rallypoint.elastic.rendezvous.plug_in.exchange import NodeInfo
from rallypoint.elastic.rendezvous.plug_in.one_round import OneRound
from rallypoint.elastic.rendezvous.plug_in.part import Part

LATE = EndReason(EndKind.GROWTH, "1 more node joined")


class RoundHost(Host):
    """A host of that machine, for as many nodes as its settings say."""

    def __init__(self, nodes: int = 2, *, has_store: bool = False) -> None:
        super().__init__(exchange.for_nodes(RULES, nodes))
        self.machine = OneRound(has_store=has_store)

    def step(self, event: JobEvent, at: float | None = None) -> list[JobEffect]:
        self.at = self.at if at is None else at
        effects = self.machine.step(self.job, event, self.at)
        self.records += [effect for effect in effects if isinstance(effect, Record)]
        return [effect for effect in effects if not isinstance(effect, Record)]


def running(nodes: int = 2, *, has_store: bool = False) -> RoundHost:
    host = RoundHost(nodes, has_store=has_store)
    refs = (A, B, C)[:nodes]
    host.join(*refs)
    host.enrol(*refs)
    assert host.job.started
    return host


def test_A2_workers_that_fail_are_restarted_without_the_handler() -> None:
    host = running()
    host.fail(B, failed(), at=1.0)
    effects = host.join(A, B)
    assert told(effects, m.Assigned) == [A, B]
    assert told(effects, m.LeaveNow) == []
    assert {order.stamp.round for order in orders(effects, m.Assigned)} == {1}


def test_A2_a_handler_with_a_store_for_each_round_forms_the_next_one_which_costs_a_restart() -> (
    None
):
    host = running(has_store=True)
    host.fail(B, failed(), at=1.0)
    effects = host.join(A, B)
    assert told(effects, m.Assigned) == []
    assert told(effects, m.LeaveNow) == [A, B]
    assert host.job.ledger.total == 1
    assert host.records[-1].name == "restart"
    assert not any(
        turn.round == 1 for turn in host.job.turns if type(turn).__name__ == "RoundFormed"
    )


@pytest.mark.parametrize("has_store", [False, True])
def test_A3_a_failure_without_budget_is_the_verdict_for_all(has_store: bool) -> None:
    host = running(has_store=has_store)
    for _ in range(3):
        host.job.ledger.total += 1
        host.job.ledger.entries.append(host.job.ledger.total)
    host.fail(B, failed(code=7), at=1.0)
    effects = host.join(A, B)
    assert told(effects, m.Ended) == [A, B]
    assert told(effects, m.LeaveNow) == []
    assert host.verdict.outcome is Outcome.FAILED


def test_R3_when_a_node_is_lost_the_others_ask_the_handler_once_they_have_stopped() -> None:
    host = running(3)
    effects = host.lose(C, heard_at=1.0, at=2.0)
    assert told(effects, m.StopNow) == [A, B]
    assert told(effects, m.LeaveNow) == []
    assert told(host.join(A), m.LeaveNow) == []
    assert told(host.join(B), m.LeaveNow) == [A, B]
    assert host.job.end_reason is not None
    assert "c was lost" in host.job.end_reason.text


def test_R3_a_node_that_is_lost_while_another_round_forms_is_not_waited_for() -> None:
    host = running(3)
    host.fail(B, failed(), at=1.0)
    assert told(host.join(A, B), m.LeaveNow) == []
    assert told(host.lose(C, heard_at=1.0, at=2.0), m.LeaveNow) == [A, B]
    assert host.job.ledger.total == 1, "the failure is judged all the same"


def test_R3_a_node_that_is_lost_before_the_first_round_is_not_waited_for() -> None:
    host = RoundHost(2)
    host.join(A)
    effects = host.lose(A, heard_at=0.0, at=1.0)
    assert effects == []
    assert told(host.join(B), m.LeaveNow) == [B]


def test_A5_when_a_node_leaves_the_others_ask_the_handler() -> None:
    host = running()
    host.step(FromNode(B, m.Drain("it got SIGTERM", 15)), at=1.0)
    assert told(host.join(A), m.LeaveNow) == [A, B]
    assert host.step(FromNode(B, m.Leave())) == []


def test_A1_a_round_that_is_over_for_the_handler_ends_for_all_and_its_reason_stays() -> None:
    host = running()
    effects = host.step(RoundIsOver(LATE), at=1.0)
    assert [order.reason.text for order in orders(effects, m.StopNow)] == [LATE.text] * 2
    assert told(host.join(A, B), m.LeaveNow) == [A, B]
    assert host.step(FromNode(B, m.Leave())) == []
    host.lose(A, heard_at=1.0, at=2.0)
    ended = host.job.end_reason or host.job.last_end
    assert ended is not None
    assert ended.text == LATE.text, "who goes as it was told is not lost"


def test_a_round_that_is_over_for_the_handler_before_it_has_begun_lets_all_go() -> None:
    host = RoundHost(2)
    host.join(A)
    assert told(host.step(RoundIsOver(LATE)), m.LeaveNow) == [A]


def next_coordinator(host: RoundHost, nodes: int, *refs: NodeRef) -> RoundHost:
    """That of the handler's next round, which starts from what the last one knew."""
    part = Part("theirs", 15.0, 3, stamp=stamp(host.job.round.round - 1))
    record = exchange.record(part, RULES, host.job)
    after = RoundHost(nodes)
    found = exchange.newest([NodeInfo("a", record)], exchange.for_nodes(RULES, nodes))
    assert found is not None
    after.job, after.seqs = found, dict(host.seqs)
    assert told(after.join(*refs), m.LeaveNow) == [], "the last round has ended, and not this one"
    return after


def test_L1_the_next_coordinator_goes_on_with_the_rounds_the_budget_and_the_reason() -> None:
    host = running()
    host.fail(B, failed(), at=1.0)
    host.join(A, B)
    host.enrol(A, B)
    host.lose(B, heard_at=1.0, at=2.0)
    host.join(A)
    after = next_coordinator(host, 1, A)
    assert after.job.round.round == 2
    assert after.job.incarnation == host.job.incarnation
    place = after.job.assigned["a"]
    assert (place.round, place.restart_count) == (2, 1)
    assert "b was lost" in place.why


def test_L1_the_next_coordinator_tells_why_though_the_last_one_had_another_round_to_form() -> None:
    host = running(has_store=True)
    host.fail(B, failed(code=7), at=1.0)
    host.join(A, B)
    place = next_coordinator(host, 2, A, B).job.assigned["a"]
    assert (place.round, place.restart_count) == (1, 1)
    assert "exited with code 7" in place.why


def test_L1_a_coordinator_that_starts_from_round_6_forms_round_7() -> None:
    host = running()
    for round_ in range(6):
        host.step(RoundIsOver(replace(LATE, kind=EndKind.REQUEST)), at=float(round_))
        host.machine = OneRound(has_store=False)
        host.join(A, B)
        host.enrol(A, B)
    assert host.job.round.round == 6
    host.step(RoundIsOver(LATE), at=9.0)
    host.join(A, B)
    after = next_coordinator(host, 2, A, B)
    assert {place.round for place in after.job.assigned.values()} == {7}
    after.enrol(A, B)
    assert after.job.started, "why the last round has ended does not end the next one"


@settings(max_examples=examples(300), deadline=None)
@given(
    has_store=st.booleans(),
    lost_after=st.integers(0, 10),
    who=st.sampled_from([A, B, C]),
    first=st.sampled_from(["fails", "leaves", "is over"]),
)
def test_R3_whenever_a_node_is_lost_the_others_hear_a_verdict_or_ask_the_handler(
    has_store: bool, lost_after: int, who: NodeRef, first: str
) -> None:
    """A loss between any two messages of three nodes."""
    host, heard = RoundHost(3, has_store=has_store), dict[NodeRef, set[str]]()
    ends: dict[str, JobEvent] = {
        "fails": FromNode(B, m.Failed(stamp(0), (failed(),))),
        "leaves": FromNode(A, m.Drain("it got SIGTERM", 15)),
        "is over": RoundIsOver(LATE),
    }
    events: list[JobEvent] = [FromNode(ref, m.Join(1, CANDIDATE)) for ref in (A, B, C)]
    events += [FromNode(ref, m.Enrolled(stamp(0))) for ref in (A, B, C)]
    events += [ends[first], *(FromNode(ref, m.Join(2, CANDIDATE)) for ref in (A, B, C))]
    events.insert(lost_after, SessionLost(who, "its connection broke", 0.0))
    # Whoever is left has stopped its workers by then, and wants a place.
    left = [ref for ref in (A, B, C) if ref != who]
    for event in [*events, *(FromNode(ref, m.Join(3, CANDIDATE)) for ref in left)]:
        is_gone = isinstance(event, FromNode) and event.ref == who
        if is_gone and events.index(event) > lost_after:
            continue
        for effect in host.step(event, at=host.at + 1.0):
            if isinstance(effect, ToNode):
                heard.setdefault(effect.ref, set()).add(type(effect.message).__name__)
    for ref in left:
        assert heard.get(ref, set()) & {"LeaveNow", "Ended"}, heard
