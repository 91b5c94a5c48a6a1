"""Behaviour F9: nodes that do not reach the store of rank 0, and whom that is the fault of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, C, Host, failed, orders, stamp, told

from rallypoint.config import RendezvousConfig
from rallypoint.core import job
from rallypoint.core import messages as m
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job_state import JobEffect
from rallypoint.core.messages import FromNode
from rallypoint.core.model import NodeRef, Outcome, SharedSettings

D = NodeRef("d", "life-d")
ELASTIC = replace(RULES, min_nodes=1, max_nodes=4, last_call_s=1.0, min_growth_interval_s=0.0)
FULL = replace(ELASTIC, join_settle_s=0.0)
"""A newcomer is admitted at once."""


def formed(settings: SharedSettings, *refs: NodeRef) -> Host:
    """A job whose first round has not started yet."""
    host = Host(settings)
    host.join(*refs)
    if host.job.round.phase.value == "last call":
        host.step(TimerEnded(Timer(TimerKind.LAST_CALL, 0)))
    return host


def grown(settings: SharedSettings = FULL) -> Host:
    """A and B ran; C has joined, and round 1 has not started yet."""
    host = formed(settings, A, B)
    enrol(host, A, B)
    host.join(C)
    host.join(A, B)
    assert host.job.round.round == 1
    return host


def enrol(host: Host, *refs: NodeRef) -> list[JobEffect]:
    effects: list[JobEffect] = []
    for ref in refs:
        effects += host.step(FromNode(ref, m.Enrolled(stamp(host.job.round.round))))
    return effects


def unreached(host: Host, *refs: NodeRef) -> list[JobEffect]:
    effects: list[JobEffect] = []
    for ref in refs:
        effects += host.step(FromNode(ref, m.NotEnrolled(stamp(host.job.round.round), "no answer")))
    return effects


def end(host: Host, kind: TimerKind) -> list[JobEffect]:
    timer = next(t for t in job.timers_wanted(host.job) if t.kind is kind)
    return host.step(TimerEnded(timer))


def expelled(effects: list[JobEffect]) -> dict[str, str]:
    refs, expelled = told(effects, m.Expelled), orders(effects, m.Expelled)
    assert not any(order.final for order in expelled)
    return {ref.node_id: order.why for ref, order in zip(refs, expelled, strict=True)}


def world(effects: list[JobEffect]) -> list[str]:
    """The nodes of the last world that was formed, in rank order."""
    refs, assigned = told(effects, m.Assigned), orders(effects, m.Assigned)
    parts = {
        ref.node_id: order.assignment.group_rank for ref, order in zip(refs, assigned, strict=True)
    }
    return sorted(parts, key=parts.__getitem__)


def starts(effects: list[JobEffect]) -> list[str]:
    return [ref.node_id for ref in told(effects, m.StartNow)]


def test_F9_who_alone_does_not_reach_rank_0_is_expelled_and_the_others_go_on() -> None:
    host = grown()
    assert enrol(host, A, B) == []
    effects = unreached(host, C)
    assert expelled(effects) == {"c": "no answer; held back for 120 s"}
    assert told(effects, m.StopNow) == [A, B]
    assert world(host.join(A, B)) == ["a", "b"]
    assert starts(enrol(host, A, B)) == ["a", "b"]
    assert host.job.verdict is None
    assert host.job.ledger.total == 0, "a route costs no restart"
    assert host.job.round.lossy_rounds == [], "and is no loss"


def test_F9_a_node_with_a_bad_route_is_no_candidate_before_its_time() -> None:
    host = grown()
    enrol(host, A, B)
    unreached(host, C)
    host.join(C)
    assert world(host.join(A, B)) == ["a", "b"], "it came back before the others had stopped"
    enrol(host, A, B)
    host.fail(B, failed(), 1.0)
    assert world(host.join(A, B)) == ["a", "b"], "a round that ends anyway does not admit it"
    enrol(host, A, B)
    assert told(end(host, TimerKind.QUARANTINE), m.StopNow) == [A, B]
    assert world(host.join(A, B)) == ["a", "b", "c"]


def test_F9_a_node_that_is_held_back_is_tried_with_the_next_rank_0() -> None:
    host = grown()
    enrol(host, A, B)
    unreached(host, C)
    host.join(A, B)
    enrol(host, A, B)
    host.join(C)
    host.lose(A, heard_at=1.0)
    assert world(host.join(B)) == ["b", "c"], "it never failed to reach the store of b"
    assert starts(enrol(host, B, C)) == ["b", "c"]


def test_F9_a_node_that_is_held_back_is_tried_when_rank_0_goes_before_the_next_round() -> None:
    host = grown()
    enrol(host, A, B)
    unreached(host, C)
    host.join(C)
    host.lose(A, heard_at=1.0)
    assert world(host.join(B)) == ["b", "c"]
    unreached(host, C)
    enrol(host, B)
    host.join(C)
    assert world(host.join(B)) == ["b"], "now it is held back for b"


def test_F9_each_failure_in_a_row_doubles_the_time_until_a_round_has_started() -> None:
    host = grown()
    times = []
    for _ in range(7):
        enrol(host, A, B)
        times.append(expelled(unreached(host, C))["c"].split()[-2])
        host.join(A, B)
        enrol(host, A, B)
        host.join(C)
        end(host, TimerKind.QUARANTINE)
        host.join(A, B)
    assert times == ["120", "240", "480", "960", "1920", "3600", "3600"]
    assert starts(enrol(host, A, B, C)) == ["a", "b", "c"]
    assert host.job.round.bad_routes == {}


def test_F9_rank_0_is_passed_over_when_most_do_not_reach_it() -> None:
    host = formed(ELASTIC, A, B, C, D)
    effects = [*enrol(host, A, B), *unreached(host, C, D)]
    assert expelled(effects) == {}
    assert "node a" in (host.job.end_reason.text if host.job.end_reason else "")
    assert "another node becomes rank 0" in host.records[-1].text
    assert world(host.join(A, B, C, D)) == ["b", "a", "c", "d"]
    assert starts(enrol(host, A, B, C, D)) == ["a", "b", "c", "d"]
    host.fail(A, failed(), 1.0)
    assert world(host.join(A, B, C, D))[0] == "b", "it stays rank 0"


def test_F9_half_of_the_others_are_not_most() -> None:
    host = formed(ELASTIC, A, B, C)
    enrol(host, A, B)
    assert set(expelled(unreached(host, C))) == {"c"}


def test_F9_rank_0_that_does_not_reach_its_own_store_is_passed_over() -> None:
    host = formed(replace(FULL, max_nodes=2), A)
    host.join(B)
    host.join(A)
    assert expelled(unreached(host, A, B)) == {}
    assert world(host.join(A, B)) == ["b", "a"]
    assert starts(enrol(host, A, B)) == ["a", "b"]


def test_F9_of_two_nodes_that_ran_rank_0_is_tried_on_the_other_one_once() -> None:
    host = formed(replace(ELASTIC, max_nodes=2, max_restarts=1), A, B)
    enrol(host, A, B)
    host.fail(B, failed(), 1.0)
    host.join(A, B)
    assert expelled([*enrol(host, A), *unreached(host, B)]) == {}
    assert world(host.join(A, B)) == ["b", "a"]
    assert set(expelled([*enrol(host, B), *unreached(host, A)])) == {"a"}
    assert world(host.join(B)) == ["b"]
    assert host.job.verdict is None


def test_F9_of_two_nodes_the_newcomer_is_at_fault() -> None:
    host = formed(replace(FULL, max_nodes=2), A)
    host.join(B)
    host.join(A)
    assert set(expelled([*enrol(host, A), *unreached(host, B)])) == {"b"}
    assert world(host.join(A)) == ["a"]


def test_F9_rank_0_is_tried_elsewhere_before_the_minimum_is_lost() -> None:
    host = formed(replace(RULES, min_nodes=3, max_nodes=3), A, B, C)
    assert expelled([*enrol(host, A, B), *unreached(host, C)]) == {}
    assert world(host.join(A, B, C))[0] == "b"


def test_F9_below_the_minimum_the_job_waits_and_then_names_who_was_missing() -> None:
    host = formed(replace(RULES, min_nodes=3, max_nodes=3), A, B, C)
    enrol(host, A, B)
    unreached(host, C)
    host.join(A, B, C)
    enrol(host, A, B)
    assert set(expelled(unreached(host, C))) == {"c"}
    host.join(A, B, C)
    assert host.job.verdict is None
    end(host, TimerKind.JOIN)
    assert host.verdict.outcome is Outcome.TIMED_OUT
    assert host.verdict.text.endswith("only 2 joined: a, b; did not reach the round store: c")


def test_F9_fixed_ranks_end_the_job_and_the_pair_is_named() -> None:
    host = Host(replace(RULES, static=True))
    host.join(A, B)
    enrol(host, A)
    unreached(host, B)
    assert host.verdict.outcome is Outcome.INFRASTRUCTURE
    assert host.verdict.text == "node b did not reach the round store of node a: no answer"


def test_F9_the_others_have_a_lease_s_time_after_the_first_failure() -> None:
    host = formed(ELASTIC, A, B, C, D)
    enrol(host, A)
    assert TimerKind.ENROLMENT not in {t.kind for t in job.timers_wanted(host.job)}
    assert unreached(host, B) == []
    assert job.timers_wanted(host.job)[Timer(TimerKind.ENROLMENT, 0)] == ELASTIC.lease_s
    assert set(expelled(end(host, TimerKind.ENROLMENT))) == {"b"}, "c and d may still be preparing"


def test_F9_a_live_node_that_is_never_ready_is_expelled_in_the_end() -> None:
    host = formed(ELASTIC, A, B, C)
    enrol(host, A, B)
    assert job.timers_wanted(host.job)[Timer(TimerKind.READY, 0)] == ELASTIC.join_timeout_s
    why = expelled(end(host, TimerKind.READY))
    assert why == {"c": "it was not ready within 600 s; held back for 120 s"}
    assert world(host.join(A, B)) == ["a", "b"]


def test_F9_rank_0_is_not_to_blame_for_nodes_that_are_never_ready() -> None:
    host = formed(ELASTIC, A, B, C, D)
    enrol(host, A, B)
    assert set(expelled(end(host, TimerKind.READY))) == {"c", "d"}
    assert host.job.end_reason is not None
    assert host.job.end_reason.text == "nodes c, d were not ready within 600 s"
    assert world(host.join(A, B)) == ["a", "b"]


def test_F9_fixed_ranks_end_the_job_when_a_node_is_never_ready() -> None:
    host = Host(replace(RULES, static=True))
    host.join(A, B)
    enrol(host, A)
    end(host, TimerKind.READY)
    assert host.verdict.outcome is Outcome.INFRASTRUCTURE
    assert host.verdict.text == "node b was not ready within 600 s"


def test_F9_a_node_that_is_enrolled_late_counts_as_enrolled() -> None:
    host = formed(ELASTIC, A, B)
    unreached(host, B)
    assert starts(enrol(host, A)) == []


def test_F9_reports_about_another_round_or_of_nodes_that_wait_are_void() -> None:
    host = formed(ELASTIC, A, B)
    assert host.step(FromNode(B, m.NotEnrolled(stamp(3), "no route"))) == []
    assert (
        host.step(FromNode(replace(B, incarnation="older"), m.NotEnrolled(stamp(), "no route")))
        == []
    )
    host.join(C)
    assert host.step(FromNode(C, m.Enrolled(stamp()))) == []
    assert host.step(FromNode(C, m.NotEnrolled(stamp(), "no route"))) == []
    assert starts(enrol(host, A, B)) == ["a", "b"]
    assert host.step(FromNode(B, m.NotEnrolled(stamp(), "no route"))) == [], "the round has started"


@pytest.mark.parametrize(
    ("lease_s", "join_timeout_s", "allowed_s"), [(15, 600, 30), (2, 600, 15), (5, 3, 1.5)]
)
def test_F9_a_node_gives_up_reaching_rank_0_before_the_join_timeout_expels_everybody(
    lease_s: float, join_timeout_s: float, allowed_s: float
) -> None:
    config = RendezvousConfig(run_id="job", lease_s=lease_s, join_timeout_s=join_timeout_s)
    assert config.enrol_timeout_s == allowed_s
