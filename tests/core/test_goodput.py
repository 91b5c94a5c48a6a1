"""Where the time of a job goes (`core/watch/goodput.py`), as the job's machine has it happen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, C, failed
from tests.harness.narrowed import known
from tests.harness.properties import examples
from tests.harness.watched import WatchedJob, started
from tests.simulator.facts import check_account

from rallypoint.core import job as machine
from rallypoint.core import messages as m
from rallypoint.core.events import TimerEnded, TimerKind
from rallypoint.core.messages import FromNode
from rallypoint.core.model import EndKind, EndReason, NodeRef, Outcome
from rallypoint.core.round_record import CarriedRound
from rallypoint.core.watch import goodput
from rallypoint.core.watch.carried import Carried
from rallypoint.core.watch.goodput import STALLED_S, Goodput, Spending, wall_s
from rallypoint.core.watch.job_view import goodput_view
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.watch.turns import RoundEnded
from rallypoint.core.worker_exits import WorkerExit

S = Spending


def trains(*refs: NodeRef) -> WatchedJob:
    """The nodes come at 10 and 20, start at 21, run from 22, do step 0 at 30, and 100 at 130."""
    job = WatchedJob()
    job.join(A, at=10.0)
    job.join(B, at=20.0)
    job.start(A, B, at=21.0)
    job.spawn(A, B, at=22.0, told_at=23.0)
    job.told(A, 0, first_s=30.0, at=30.0)
    job.told(A, 100, at=130.0)
    return job


BEGUN = {
    (S.WAITING, "start"): 20.0,
    (S.RENDEZVOUS, "start"): 1.0,
    (S.SPAWN, "start"): 1.0,
    (S.STARTUP, "start"): 8.0,
    (S.STEPS, "work"): 100.0,
}


def test_the_first_round_is_split_into_what_it_waits_for() -> None:
    assert trains().spent() == BEGUN


def test_what_is_known_late_of_the_start_is_put_right() -> None:
    """All of it comes with a heartbeat of second 60."""
    job = started()
    job.spawn(A, B, at=2.0, told_at=3.0)
    job.told(A, 40, first_s=10.0, quiet_s=5.0, at=60.0)
    parts = {(S.SPAWN, "start"): 2.0, (S.STARTUP, "start"): 8.0, (S.STEPS, "work"): 50.0}
    assert job.spent() == parts


def test_the_workers_of_all_nodes_run_when_the_last_ones_do() -> None:
    job = started()
    job.spawn(A, at=1.0)
    job.spawn(B, at=5.0, told_at=6.0)
    assert job.spent(8.0) == {(S.SPAWN, "start"): 5.0, (S.UNKNOWN, "work"): 3.0}


def test_a_failure_costs_its_detection_the_stop_the_way_back_and_what_is_done_again() -> None:
    job = trains()
    job.fail(A, failed(age_s=2.0), 142.0)
    job.told(B, 110, quiet_s=2.5, at=142.5)  # as nodes do when their round ends
    job.stop(A, at=144.0)
    job.stop(B, at=145.0)
    job.start(A, B, at=146.0)
    job.spawn(A, B, at=147.0)
    job.told(A, 91, first_s=150.0, at=150.0)
    job.told(A, 131, at=190.0)
    assert job.history.account.lost_steps == 20
    assert job.spent() == BEGUN | {
        (S.STEPS, "work"): 110.0 + 20.0,
        (S.DETECT, "failure"): 2.0,
        (S.STOP, "failure"): 3.0,
        (S.RENDEZVOUS, "failure"): 1.0,
        (S.SPAWN, "failure"): 1.0,
        (S.STARTUP, "failure"): 3.0,
        (S.REDONE, "failure"): 20.0,
    }


def test_what_only_the_failed_node_knows_of_its_steps_comes_with_its_failure() -> None:
    job = trains()
    job.step(FromNode(A, m.Failed(job.stamp, (failed(),), furthest=120)), 150.0)
    assert job.history.account.furthest == 120
    job.stop(A, B, at=151.0)
    job.start(A, B)
    job.spawn(A, B, at=152.0)
    job.told(B, 101, at=153.0)
    assert job.history.account.lost_steps == 20


def test_a_node_that_knows_of_fewer_steps_than_the_failed_one_does_not_count_anew() -> None:
    job = trains()
    job.step(FromNode(B, m.Failed(job.stamp, (failed(),), furthest=120)), 150.0)
    job.told(A, 110, at=150.5)
    assert not job.history.account.counts_anew


def test_what_is_heard_late_of_a_round_has_the_cause_of_that_round() -> None:
    """Its first steps are told when it has ended, for another reason than the one before."""
    job = trains()
    restarted(job, 140.0)
    job.lose(B, heard_at=150.0, at=150.0)
    job.told(A, 95, first_s=143.0, quiet_s=1.0, at=150.5)
    parts = job.spent()
    assert parts[S.STARTUP, "failure"] == 2.0
    assert parts[S.REDONE, "failure"] == 7.0
    assert parts[S.STOP, "loss"] == 0.5


def test_a_pause_before_the_restart_is_named() -> None:
    job = started(replace(RULES, restart_backoff_s=4.0))
    job.fail(A, failed(), 10.0)
    job.stop(A, B, at=11.0)
    assert job.spent(13.0)[S.PAUSED, "failure"] == 2.0
    assert job.spent(13.0)[S.STOP, "failure"] == 1.0


def test_a_silent_node_is_detected_from_its_last_word_and_the_others_wait_for_another() -> None:
    job = trains()
    job.lose(B, heard_at=145.0, at=160.0)
    job.stop(A, at=162.0)
    job.join(C, at=180.0)
    job.start(A, C, at=180.5)
    assert job.spent() == BEGUN | {
        (S.STEPS, "work"): 115.0,
        (S.DETECT, "loss"): 15.0,
        (S.STOP, "loss"): 2.0,
        (S.WAITING, "loss"): 18.0,
        (S.RENDEZVOUS, "loss"): 0.5,
    }


def test_workers_that_do_steps_after_a_fault_were_not_held_up_by_it() -> None:
    """Their agent is stopped, say, and they are not; the others have heard of it by their steps,
    and the last of these are known only when the round has ended."""
    job = trains()
    job.told(A, 110, at=150.0)
    job.lose(B, heard_at=145.0, at=160.0)
    assert job.spent()[S.STEPS, "work"] == 120.0
    assert job.spent()[S.DETECT, "loss"] == 10.0
    job.told(A, 112, quiet_s=7.0, at=161.0)
    assert job.spent()[S.STEPS, "work"] == 124.0
    assert job.spent()[S.DETECT, "loss"] == 6.0


def test_silence_that_began_before_the_round_does_not_change_the_way_to_it() -> None:
    job = WatchedJob()
    job.join(A)
    job.join(B, at=20.0)
    job.start(A, B)
    job.lose(A, heard_at=5.0, at=30.0)
    assert job.spent() == {(S.WAITING, "start"): 20.0, (S.DETECT, "loss"): 10.0}


def test_a_spare_takes_the_place_at_once_and_its_waiting_is_counted() -> None:
    job = trains()
    job.join(C)
    assert goodput.spare_s(job.history.account, 140.0) == 10.0
    job.told(A, 120, at=150.0)
    job.lose(B, heard_at=159.0, at=160.0)
    job.stop(A, at=162.0)
    job.start(A, C, at=163.0)
    assert (S.WAITING, "loss") not in job.spent()
    assert job.spent()[S.STOP, "loss"] == 2.0
    assert goodput.spare_s(job.history.account, 200.0) == 30.0


def test_a_failure_that_turns_out_to_be_a_loss_is_one() -> None:
    """Workers of A say that they have lost a peer; then the node of that peer is lost."""
    job = trains()
    job.fail(A, replace(failed(), tells_of_lost_peer=True), 140.0)
    job.stop(A, at=141.0)
    assert (S.STOP, "failure") in job.spent(142.0)
    job.lose(B, heard_at=139.0, at=150.0)
    parts = job.spent(160.0)
    assert job.history.rounds[-1].end == "loss"
    assert parts[S.STOP, "loss"] == 10.0
    assert parts[S.WAITING, "loss"] == 10.0
    assert not [cause for _, cause in parts if cause == "failure"]


def test_a_drain_waits_for_the_checkpoint_after_the_last_step() -> None:
    job = trains()
    job.step(FromNode(B, m.Drain("maintenance", 0, notice_s=60.0)), 140.0)
    job.told(A, 120, quiet_s=0.0, at=150.0)  # it goes on until it can save
    number = job.job.notices
    for ref, at in ((A, 155.0), (B, 156.0)):
        job.step(FromNode(ref, m.CheckpointAnswered(job.stamp, number, True, drains=True)), at)
    parts = job.spent()
    assert parts[S.STEPS, "work"] == 120.0
    assert parts[S.CHECKPOINT, "drain"] == 6.0
    assert job.history.account.faults == 0
    assert job.spent(158.0)[S.STOP, "drain"] == 2.0


def test_a_hang_counts_from_the_last_step() -> None:
    job = started(replace(RULES, hang_timeout_s=20.0))
    job.spawn(A, B, at=0.0)
    job.told(A, 5, at=10.0)
    job.told(A, 9, quiet_s=1.0, at=15.0)
    hung = WorkerExit(None, None, reason="no progress for 20 s", local_rank=0, rank=0, pid=1)
    job.fail(A, hung, 35.0)
    job.stop(A, B, at=38.0)
    job.start(A, B, at=39.0)
    parts = job.spent()
    assert parts[S.HANG, "hang"] == 21.0
    assert parts[S.STOP, "hang"] == 3.0
    assert parts[S.RENDEZVOUS, "hang"] == 1.0
    assert parts[S.STEPS, "work"] == 4.0


def test_a_job_that_stands_still_and_is_cancelled_was_not_at_work() -> None:
    job = trains()
    still_s = STALLED_S + 10.0
    assert job.spent(130.0 + STALLED_S - 1.0)[S.STEPS, "work"] == 100.0 + STALLED_S - 1.0
    assert job.spent(130.0 + still_s)[S.HANG, "hang"] == still_s
    job.step(FromNode(A, m.Cancel("by a person", 2)), 130.0 + still_s)
    assert job.spent() == BEGUN | {(S.HANG, "hang"): still_s}


def test_a_long_end_of_a_job_that_succeeds_is_part_of_its_work() -> None:
    """It evaluates and saves, say. That one node has succeeded changes nothing."""
    job = trains()
    job.step(FromNode(A, m.Succeeded(job.stamp)), 300.0)
    assert job.history.account.now is S.STEPS
    job.step(FromNode(B, m.Succeeded(job.stamp)), 400.0)
    assert job.verdict.outcome is Outcome.SUCCEEDED
    assert job.spent() == BEGUN | {(S.STEPS, "work"): 370.0}


def test_a_job_that_succeeds_before_it_has_caught_up_has_lost_no_more_than_it_did_again() -> None:
    job = trains()
    restarted(job, 140.0)
    job.told(A, 0, at=142.0)
    job.told(A, 30, at=172.0)
    for ref in (A, B):
        job.step(FromNode(ref, m.Succeeded(job.stamp)), 175.0)
    assert job.verdict.outcome is Outcome.SUCCEEDED
    assert job.history.account.lost_steps == 31


def test_nothing_is_added_after_the_end() -> None:
    job = trains()
    job.join(C)
    job.step(FromNode(A, m.Cancel("by a person", 2)), 140.0)
    job.told(B, 200, at=150.0)
    job.step(FromNode(A, m.Leave()), 170.0)
    view = goodput_view(job.history, 200.0)
    assert view.wall_s == 140.0 == sum(part.seconds for part in view.parts)
    assert view.furthest_step == 100
    assert view.spare_node_s == 10.0


def test_a_round_that_cannot_start_has_no_steps() -> None:
    job = WatchedJob()
    job.join(A, B)
    job.step(FromNode(A, m.Enrolled(job.stamp)), 3.0)
    job.lose(B, heard_at=4.0, at=9.0)
    parts = {(S.RENDEZVOUS, "start"): 4.0, (S.DETECT, "loss"): 5.0}
    assert job.spent() == parts


def test_growth_costs_a_restart_and_is_no_fault() -> None:
    rules = replace(RULES, max_nodes=3, min_growth_interval_s=0.0, join_settle_s=1.0)
    job = WatchedJob(rules)
    job.join(A, B)
    last_call = next(t for t in machine.timers_wanted(job.job) if t.kind is TimerKind.LAST_CALL)
    job.step(TimerEnded(last_call), 5.0)
    job.start(A, B)
    job.spawn(A, B, at=6.0)
    job.told(A, 10, at=10.0)
    job.join(C, at=21.0)
    job.stop(A, B, at=23.0)
    job.start(A, B, C, at=24.0)
    parts = job.spent()
    assert parts[S.STEPS, "work"] == 11.0
    assert parts[S.STOP, "growth"] == 2.0
    assert parts[S.RENDEZVOUS, "growth"] == 1.0
    assert job.history.account.faults == 0


def test_a_job_of_one_node_whose_agent_comes_back_has_a_round_that_ends_as_the_next_is_formed() -> (
    None
):
    job = WatchedJob(replace(RULES, min_nodes=1, max_nodes=1))
    job.join(A)
    job.spawn(A, at=1.0)
    job.told(A, 7, at=8.0)
    again = NodeRef("a", "second-life-a")
    job.join(again, at=10.0)
    account = job.history.account
    assert account.faults == 1
    assert [past.end for past in job.history.rounds] == ["loss", ""]
    job.spawn(again, at=12.0)
    assert job.spent(15.0) == {
        (S.SPAWN, "start"): 1.0,
        (S.STARTUP, "start"): 7.0,
        (S.STEPS, "work"): 2.0,
        (S.SPAWN, "loss"): 2.0,
        (S.STARTUP, "loss"): 3.0,
    }


def restarted(job: WatchedJob, at: float, *, fails: NodeRef = A) -> None:
    """A worker fails, and all run again one second later."""
    job.fail(fails, failed(code=int(at) % 256), at)
    job.stop(A, B, at=at + 0.5)
    job.start(A, B)
    job.spawn(A, B, at=at + 1.0)


def test_without_a_checkpoint_everything_is_done_again() -> None:
    job = trains()
    restarted(job, 140.0)
    job.told(A, 0, at=142.0)
    account = job.history.account
    assert account.lost_steps == 101
    job.told(A, 50, at=192.0)
    assert account.now is S.REDONE
    restarted(job, 192.0)
    assert account.lost_steps == 51
    job.told(A, 0, at=194.0)
    assert account.lost_steps == 51 + 101
    job.told(A, 100, at=294.0)
    assert account.now is S.REDONE
    job.told(A, 102, at=296.0)
    assert job.spent()[S.REDONE, "failure"] == 50.0 + 101.0


def test_a_round_that_reaches_no_step_loses_none() -> None:
    job = trains()
    for at in (140.0, 150.0):
        restarted(job, at)
    job.told(A, 81, at=160.0)
    assert job.history.account.lost_steps == 20
    assert job.history.account.faults == 2


def test_only_rank_0_tells_of_steps() -> None:
    job = trains()
    job.told(B, at=140.0)
    restarted(job, 150.0, fails=B)
    job.told(B, at=153.0)
    job.told(A, 96, at=155.0)
    assert job.history.account.lost_steps == 5
    assert job.history.account.now is S.REDONE


def test_ranks_that_are_behind_take_nothing_back() -> None:
    job = trains()
    job.told(B, 70, at=131.0)
    job.told(B, 60, at=132.0)
    assert not job.history.account.counts_anew
    assert job.history.account.steps.step == 100


def test_a_worker_that_counts_its_steps_by_epoch_has_none_that_are_done_again() -> None:
    job = trains()
    job.told(A, 7, at=137.0)
    restarted(job, 140.0)
    job.told(A, 3, at=142.0)
    account = job.history.account
    assert account.counts_anew
    assert account.now is S.STEPS
    assert account.lost_steps == 0
    assert job.spent()[S.STEPS, "work"] == 110.0


def test_it_is_found_out_after_a_restart_too() -> None:
    job = trains()
    restarted(job, 140.0)
    job.told(A, 50, at=142.0)
    assert job.history.account.now is S.REDONE
    job.told(A, 10, at=150.0)
    assert (S.REDONE, "failure") not in job.spent()
    assert job.history.account.lost_steps == 0


def test_a_job_of_which_no_steps_are_known_tells_how_long_its_workers_ran() -> None:
    job = started(at=1.0)
    job.spawn(A, B, at=2.0)
    restarted(job, 50.0)
    parts = job.spent(60.0)
    assert parts[S.UNKNOWN, "work"] == 48.0 + 9.0
    assert goodput_view(job.history, 60.0).useful_s is None
    assert job.history.rounds[0].seconds["running, no steps known"] == 48.0


def test_agents_that_tell_nothing_of_their_workers_are_taken_to_run_them() -> None:
    """They are of an older version."""
    job = started(at=1.0)
    assert job.spent(5.0)[S.SPAWN, "start"] == 4.0
    assert job.spent(101.0) == {(S.RENDEZVOUS, "start"): 1.0, (S.UNKNOWN, "work"): 100.0}
    job.fail(A, failed(), 101.0)
    assert job.spent() == {(S.RENDEZVOUS, "start"): 1.0, (S.UNKNOWN, "work"): 100.0}


def test_a_coordinator_that_takes_over_goes_on_with_what_the_record_and_the_nodes_tell() -> None:
    """The round has redone 40 of 101 steps."""
    job = started()
    fresh = WatchedJob()
    fresh.job, fresh.at = job.job, 0.0
    fresh.history.take_over(0, 0.0, is_active=True)
    newest = CarriedRound(0, 2, 2, 0.0, furthest_before=100)
    fresh.history.carry_on(Carried(0.0, 0.0, "spawn", "start", newest=newest, furthest=100), 0.0)
    fresh.spawn(A, B, at=-50.0, told_at=1.0)
    fresh.told(A, 40, first_s=-41.0, at=1.0)
    account = fresh.history.account
    assert account.now is S.REDONE
    fresh.told(A, 110, at=71.0)
    assert fresh.spent() == {(S.REDONE, "start"): 62.0, (S.STEPS, "work"): 9.0}


def test_one_that_takes_over_between_rounds_knows_why() -> None:
    job = trains()
    job.fail(A, failed(), 140.0)
    fresh = WatchedJob()
    fresh.job, fresh.seqs, fresh.at = job.job, job.seqs, 140.0
    fresh.history.account.begun_at = fresh.history.account.until = 140.0
    fresh.history.take_over(0, 140.0, is_active=False)
    job.job.turns.append(RoundEnded(0, known(job.job.end_reason), is_hang=False))
    fresh.stop(A, at=142.0)
    assert fresh.spent(143.0) == {(S.WAITING, "failure"): 2.0, (S.STOP, "failure"): 1.0}
    assert fresh.history.account.faults == 1
    fresh.stop(B, at=144.0)
    assert fresh.history.account.faults == 1


def test_time_that_goes_back_takes_nothing_back() -> None:
    job = trains()
    job.told(A, 101, at=100.0)
    job.fail(A, failed(age_s=1.0), 90.0)
    assert sum(job.spent(80.0).values()) == 130.0 == wall_s(job.history.account, 80.0)


# Whatever happens in whatever order

NODES = (A, B, C)
MOMENTS = st.tuples(
    st.sampled_from(
        [
            "join",
            "start",
            "spawn",
            "step",
            "fail",
            "hang",
            "lose",
            "drain",
            "answer",
            "succeed",
            "timer",
            "late",
            "cancel",
            "again",
        ]
    ),
    st.sampled_from(NODES),
    st.integers(0, 200),
    st.sampled_from((0, 0, 1, 4, 40, 400, 4000)),
)
FEW_JOBS = st.sampled_from(
    (
        RULES,
        replace(RULES, min_nodes=1, max_nodes=1),
        replace(RULES, min_nodes=1, max_nodes=3, min_growth_interval_s=0.0, restart_backoff_s=1.0),
        replace(RULES, hang_timeout_s=10.0, max_restarts=100),
    )
)


def happen(job: WatchedJob, what: str, ref: NodeRef, number: int) -> None:
    """Most of this is void in most states, as in life."""
    stamp, at = job.stamp, job.at
    ages = number / 4
    match what:
        case "join":
            job.join(ref)
        case "again":
            job.join(NodeRef(ref.node_id, f"{ref.incarnation} {number}"))
        case "start":
            job.start(ref)
        case "spawn":
            job.spawn(ref, at=at - ages, told_at=at)
        case "step" | "late":
            job.told(ref, number, first_s=at - ages, quiet_s=ages if what == "late" else 0.0)
        case "fail":
            job.step(FromNode(ref, m.Failed(stamp, (failed(age_s=ages),), furthest=number)))
        case "hang":
            hung = WorkerExit(None, None, reason="hangs", local_rank=0, rank=0, pid=1, age_s=ages)
            job.step(FromNode(ref, m.Failed(stamp, (hung,))))
        case "lose":
            job.lose(ref, heard_at=at - ages)
        case "drain":
            job.step(FromNode(ref, m.Drain("maintenance", 0, notice_s=ages)))
        case "answer":
            answered = m.CheckpointAnswered(stamp, job.job.notices, number % 2 == 0, drains=True)
            job.step(FromNode(ref, answered))
        case "succeed":
            job.step(FromNode(ref, m.Succeeded(stamp)))
        case "timer":
            timers = list(machine.timers_wanted(job.job))
            if timers:
                job.step(TimerEnded(timers[number % len(timers)]))
        case "cancel" if number == 0:
            job.step(FromNode(ref, m.Cancel("by a person", 2)))


@settings(max_examples=examples(300), deadline=None)
@given(FEW_JOBS, st.lists(MOMENTS, min_size=10, max_size=120))
def test_V3_whatever_happens_the_parts_add_up_to_the_wall_time(
    rules: object, moments: list[tuple[str, NodeRef, int, int]]
) -> None:
    job = WatchedJob(rules)  # type: ignore[arg-type]
    for what, ref, number, after in moments:
        job.at += after / 4
        happen(job, what, ref, number)
        check_account(job.history.account, job.at)
        check_account(job.history.account, job.at + 1000.0)


def test_the_account_of_a_job_that_changes_for_ever_stays_small() -> None:
    account = Goodput(0.0, 0.0)
    for number in range(1000):
        account.now = S.WAITING if number % 2 else S.STOP
        goodput.told(account, "a", untold(number), float(number))
    assert len(account.segments) <= goodput.SEGMENTS_MAX + 1
    check_account(account, 2000.0)


def untold(number: int) -> NodeProgress:
    return NodeProgress(machine.stamp(WatchedJob().job), furthest=-1)


def test_an_end_that_is_planned_is_no_fault() -> None:
    for kind in EndKind:
        account = Goodput(0.0, 0.0)
        goodput.formed(account, {"a"}, 1.0)
        goodput.ended(account, EndReason(kind, "so"), 2.0, is_hang=False)
        assert account.faults == (kind not in (EndKind.DRAIN, EndKind.GROWTH, EndKind.REQUEST))
