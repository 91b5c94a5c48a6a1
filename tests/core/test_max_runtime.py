"""A12: a job with `--max-runtime` ends that long after its first workers started, once."""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, Host, failed, running, stamp

from rallypoint.core import job as machine
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core.checkpoint import LAST_SAVE_S
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job_state import JobEffect
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import EndKind, Epoch, NodeRef
from rallypoint.core.outcomes import Outcome
from rallypoint.core.takeover.record import job_of, record_of

LENGTH_S = 60.0
LIMITED = replace(RULES, max_runtime_s=LENGTH_S)
RUNTIME = Timer(TimerKind.RUNTIME)


def left_s(host: Host) -> float | None:
    return machine.timers_wanted(host.job).get(RUNTIME)


def time_is_over(host: Host, at: float = LENGTH_S) -> list[JobEffect]:
    return host.step(TimerEnded(RUNTIME), at)


def saves(host: Host, ref: NodeRef, *, listens: bool = True) -> list[JobEffect]:
    assert host.job.notice is not None
    named = stamp(host.job.round.round)
    return host.step(FromNode(ref, m.CheckpointAnswered(named, host.job.notice.number, listens)))


def test_A12_the_time_of_a_job_counts_from_its_first_workers_and_through_restarts() -> None:
    host = Host(LIMITED)
    host.join(A, B)
    assert left_s(host) is None, "nothing has started"
    host.enrol(A, B)
    assert left_s(host) == LENGTH_S
    host.fail(A, failed(), at=20.0)
    assert left_s(host) == LENGTH_S, "the wait that is under way goes on"


def test_A12_without_a_limit_nothing_ends() -> None:
    assert left_s(running()) is None


def test_A12_when_its_time_is_over_workers_are_asked_for_a_checkpoint_and_then_stopped() -> None:
    host = running(LIMITED)
    asked = time_is_over(host)
    questions = [effect.message for effect in asked if isinstance(effect, ToNode)]
    assert [(type(each), each.kind) for each in questions if isinstance(each, m.CheckpointWanted)]
    assert {each.kind for each in questions if isinstance(each, m.CheckpointWanted)} == {
        EndKind.DRAIN
    }
    assert left_s(host) is None, "the time is over once"
    saves(host, A)
    assert host.job.verdict is None, "b has saved nothing yet"
    saves(host, B)
    assert host.verdict.outcome is Outcome.OUT_OF_TIME
    assert host.verdict.text == "it has run for 60 s (--max-runtime)"


def test_A12_workers_that_do_not_listen_are_stopped_at_once() -> None:
    host = running(LIMITED)
    time_is_over(host)
    saves(host, A, listens=False)
    saves(host, B, listens=False)
    assert host.verdict.outcome is Outcome.OUT_OF_TIME


def test_A12_a_checkpoint_that_takes_too_long_is_not_waited_for() -> None:
    host = running(LIMITED)
    time_is_over(host)
    timer = Timer(TimerKind.NOTICE, host.job.round.round)
    assert machine.timers_wanted(host.job)[timer] == LAST_SAVE_S
    host.step(TimerEnded(timer), LENGTH_S + LAST_SAVE_S)
    assert host.verdict.outcome is Outcome.OUT_OF_TIME
    assert any("2 nodes reported no checkpoint within 300 s (a, b)" in r.text for r in host.records)


def test_A12_a_job_whose_workers_do_not_run_ends_at_once() -> None:
    host = running(LIMITED)
    host.lose(B, heard_at=10.0, at=11.0)
    time_is_over(host)
    assert host.verdict.outcome is Outcome.OUT_OF_TIME


def test_A12_workers_that_fail_because_they_were_asked_are_not_restarted() -> None:
    host = running(LIMITED)
    time_is_over(host)
    host.fail(A, failed(), at=LENGTH_S + 1.0)
    assert host.verdict.outcome is Outcome.OUT_OF_TIME


def test_A12_a_node_that_leaves_at_that_moment_changes_nothing() -> None:
    """Its workers are asked already, and the job ends with them."""
    host = running(LIMITED)
    host.step(FromNode(A, m.Drain("it got SIGTERM", 15, notice_s=25.0)), LENGTH_S - 1)
    time_is_over(host)
    saves(host, A)
    saves(host, B)
    assert host.verdict.outcome is Outcome.OUT_OF_TIME


def test_L3_a_takeover_keeps_counting() -> None:
    host = running(LIMITED)
    machine.observe(host.job, 45.0)
    record = record_of(host.job)
    assert record.ran_s == 45.0
    job = job_of(record, Epoch(2, 7))
    assert RUNTIME not in machine.timers_wanted(job), "its clock is not known yet"
    machine.observe(job, 1000.0)
    assert machine.timers_wanted(job)[RUNTIME] == LENGTH_S - 45.0
    machine.observe(job, 1010.0)
    assert record_of(job).ran_s == 55.0


def test_L3_a_record_of_a_job_without_a_limit_has_no_time() -> None:
    host = running()
    machine.observe(host.job, 45.0)
    assert record_of(host.job).ran_s == 0.0


def test_R7_a_coordinator_that_does_not_know_the_limit_is_not_used() -> None:
    """One of an older version says nothing of how many settings it knows, and would ignore it."""
    cases = ((LIMITED, None, True), (LIMITED, 25, False), (RULES, None, False))
    for limit, known, is_refused in cases:
        end = s.AgentEnd(s.Identity("a", "host", "life"), limit)
        end.connected(0.0, m.Claim())
        how = m.Attached("a", 1, 1, False)
        how = how if known is None else replace(how, settings_known=known)
        refusals = [each for each in end.received(0.0, how) if isinstance(each, s.Rejected)]
        assert end.is_closed == bool(refusals) == is_refused
        if refusals:
            assert "older version of Rallypoint, which ignores --max-runtime" in str(
                refusals[0].error
            )
