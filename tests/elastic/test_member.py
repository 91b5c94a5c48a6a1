"""What a node decides that joins with the library's handler, while its program runs the workers."""

from __future__ import annotations

import pytest

from rallypoint.core import messages as m
from rallypoint.core.model import (
    Assignment,
    Candidate,
    EndKind,
    EndReason,
    Outcome,
    Stamp,
    Verdict,
)
from rallypoint.core.node.events import EnrolmentDone, LeaseEnded, SessionOpened
from rallypoint.core.session import Acknowledged
from rallypoint.elastic.rendezvous.led import member as x
from rallypoint.elastic.rendezvous.led.member import (
    HandlerMember,
    MemberPhase,
    claim,
    join_error,
    step,
)
from rallypoint.errors import (
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    UsageError,
)

CANDIDATE = Candidate(1, "default", "host", 5)
OVER = EndReason(EndKind.LOSS, "node b was lost")
SHOW, STOP = x.ShowChange(), x.StopReaching()
CLOSE = [x.SendReport(m.Leave()), x.CloseSession()]


def stamp(round_: int = 0, job: int = 7) -> Stamp:
    return Stamp(job, round_)


def part(rank: int = 1, size: int = 2, round_: int = 0) -> Assignment:
    return Assignment(round_, rank, size, rank, size, rank, size, "host", 5, 0, "why", size > 1)


def join(number: int) -> x.SendReport:
    return x.SendReport(m.Join(number, CANDIDATE))


@pytest.fixture
def member() -> HandlerMember:
    """Attached, and its first `Join` is with the coordinator."""
    member = HandlerMember()
    assert step(member, SessionOpened(resumed=False)) == [STOP, SHOW]
    assert step(member, x.JoinWanted(CANDIDATE)) == [join(1)]
    return member


@pytest.fixture
def running(member: HandlerMember) -> HandlerMember:
    """In round 0, as rank 1."""
    step(member, m.Assigned(stamp(), part()))
    step(member, EnrolmentDone(stamp()))
    assert step(member, m.StartNow(stamp())) == [SHOW]
    assert member.phase is MemberPhase.RUNNING
    return member


# Joining


def test_a_join_before_there_is_a_session_is_sent_when_there_is() -> None:
    member = HandlerMember()
    assert step(member, x.JoinWanted(CANDIDATE)) == []
    assert step(member, SessionOpened(resumed=False)) == [STOP, join(1), SHOW]


def test_F9_a_node_enrols_before_its_round_starts(member: HandlerMember) -> None:
    assert step(member, m.Assigned(stamp(), part())) == [x.ReachStore(stamp(), part())]
    assert step(member, m.StartNow(stamp())) == [], "not before it has enrolled"
    assert step(member, EnrolmentDone(stamp(1))) == [], "another round"
    assert step(member, EnrolmentDone(stamp())) == [x.SendReport(m.Enrolled(stamp()))]
    assert step(member, m.StartNow(stamp(1))) == []
    assert step(member, m.StartNow(stamp())) == [SHOW]
    assert (member.phase, member.assignment) == (MemberPhase.RUNNING, part())


def test_F9_a_bad_route_is_reported(member: HandlerMember) -> None:
    step(member, m.Assigned(stamp(), part()))
    failed = EnrolmentDone(stamp(), "no route")
    assert step(member, failed) == [x.SendReport(m.NotEnrolled(stamp(), "no route"))]


def test_rank_0_serves_the_store_before_it_says_that_it_has_enrolled(member: HandlerMember) -> None:
    assert step(member, m.Assigned(stamp(), part(0))) == [x.ServeStore(stamp())]
    assert step(member, EnrolmentDone(stamp())) == [x.SendReport(m.Enrolled(stamp()))]


def test_a_node_alone_runs_as_soon_as_its_store_is_served(member: HandlerMember) -> None:
    assert step(member, m.Assigned(stamp(), part(0, 1))) == [x.ServeStore(stamp())]
    assert step(member, EnrolmentDone(stamp())) == [SHOW]
    assert member.phase is MemberPhase.RUNNING


def test_a_store_that_does_not_start_ends_this_nodes_part(member: HandlerMember) -> None:
    step(member, m.Assigned(stamp(), part(0)))
    effects = step(member, EnrolmentDone(stamp(), "no port"))
    assert effects == [STOP, x.AbortSession(), SHOW]
    error = join_error(member)
    assert isinstance(error, RendezvousConnectionError)
    assert str(error) == "the round's store did not start: no port"


def test_a_round_that_ends_before_it_starts_is_joined_again(member: HandlerMember) -> None:
    step(member, m.Assigned(stamp(), part()))
    assert step(member, m.StopNow(stamp(), OVER)) == [STOP, join(2)]
    assert step(member, EnrolmentDone(stamp())) == []
    assert member.why_over == "", "the program was never in it"


def test_F1_a_round_that_ended_unheard_took_the_join_with_it(member: HandlerMember) -> None:
    assert step(member, m.StopNow(stamp(3), OVER)) == [join(2)]
    assert step(member, m.StopNow(stamp(3), OVER)) == [], "that is known now"
    assert step(member, m.Assigned(stamp(2), part(round_=2))) == [], "an older round"
    assert step(member, m.Assigned(stamp(4), part(round_=4))) != []


def test_F1_rounds_of_another_life_of_the_job_are_not_compared(member: HandlerMember) -> None:
    step(member, m.StopNow(stamp(3), OVER))
    assert step(member, m.Assigned(stamp(0, job=8), part())) != []


def test_F1_rounds_of_another_coordinator_are_not_compared(member: HandlerMember) -> None:
    step(member, m.StopNow(stamp(3), OVER))
    step(member, SessionOpened(resumed=False, replaced=True))
    assert step(member, m.Assigned(stamp(0), part())) != []


def test_a_node_claims_what_it_does(member: HandlerMember) -> None:
    assert claim(member) == m.Claim(m.Doing.JOINED, None)
    step(member, m.Assigned(stamp(), part()))
    assert claim(member) == m.Claim(m.Doing.ENROLLING, stamp())
    step(member, EnrolmentDone(stamp()))
    assert claim(member) == m.Claim(m.Doing.ENROLLED, stamp())
    step(member, m.StartNow(stamp()))
    assert claim(member) == m.Claim(m.Doing.RUNNING, stamp())
    step(member, m.StopNow(stamp(), OVER))
    assert claim(member).doing is m.Doing.IDLE


# In a round


def test_a_round_that_is_over_is_shown_and_joined_again_when_the_program_asks(
    running: HandlerMember,
) -> None:
    assert step(running, m.StopNow(stamp(), OVER)) == [SHOW]
    assert (running.phase, running.why_over) == (MemberPhase.OVER, OVER.text)
    assert step(running, m.StopNow(stamp(), OVER)) == []
    assert step(running, x.JoinWanted(CANDIDATE)) == [join(2)]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (LeaseEnded(), "the lease expired"),
        (m.Expelled(stamp(), "too slow", final=False), "expelled from the job: too slow"),
        (SessionOpened(resumed=False), "does not know this node"),
        (x.SessionFailed(RendezvousConnectionError("it was lost")), "it was lost"),
    ],
    ids=["lease", "expelled", "anew", "failed"],
)
def test_F2_a_round_is_over_for_a_node_that_lost_its_place(
    running: HandlerMember, event: x.MemberEvent, why: str
) -> None:
    assert SHOW in step(running, event)
    assert running.phase is MemberPhase.OVER
    assert why in running.why_over


def test_a_session_that_resumes_changes_nothing(running: HandlerMember) -> None:
    assert step(running, SessionOpened(resumed=True)) == [SHOW]
    assert running.phase is MemberPhase.RUNNING


def test_a_coordinator_that_knows_nothing_of_a_join_gets_another(member: HandlerMember) -> None:
    step(member, m.Assigned(stamp(), part()))
    assert step(member, SessionOpened(resumed=False)) == [STOP, join(2), SHOW]


def test_nobody_waits_for_a_checkpoint_or_stacks_of_this_node(running: HandlerMember) -> None:
    wanted = m.CheckpointWanted(stamp(), 1, EndKind.DRAIN, "why", None)
    answer = m.CheckpointAnswered(stamp(), 1, listens=False)
    assert step(running, wanted) == [x.SendReport(answer)]
    stacks = m.StacksCollected(stamp(), 2, None, -1)
    assert step(running, m.CollectStacks(stamp(), 2)) == [x.SendReport(stacks)]


def test_a_success_counts_only_for_the_round_that_runs(running: HandlerMember) -> None:
    assert step(running, x.WorkersSucceeded()) == [x.SendReport(m.Succeeded(stamp()))]
    step(running, m.StopNow(stamp(), OVER))
    assert step(running, x.WorkersSucceeded()) == []


# The end


@pytest.mark.parametrize(
    ("verdict", "was_needed", "kind"),
    [
        (Verdict(Outcome.TIMED_OUT, "nobody came", 0), False, RendezvousTimeoutError),
        (Verdict(Outcome.SUCCEEDED, "well", 3), False, RendezvousGracefulExitError),
        (Verdict(Outcome.CANCELLED, "closed", 3), False, RendezvousGracefulExitError),
        (Verdict(Outcome.SUCCEEDED, "well", 3), True, RendezvousClosedError),
        (Verdict(Outcome.FAILED, "badly", 3), False, RendezvousClosedError),
        (Verdict(Outcome.SUCCEEDED, "well", 3, ended_s_ago=9.0), False, RendezvousClosedError),
    ],
    ids=["timeout", "stood by", "closed", "took part", "failed", "late"],
)
def test_R5_a_job_that_has_ended_is_an_error_for_a_node_that_joins(
    member: HandlerMember, verdict: Verdict, was_needed: bool, kind: type[RallypointError]
) -> None:
    member.was_needed = was_needed
    assert step(member, m.Ended(stamp(), verdict)) == [STOP, SHOW, *CLOSE]
    assert type(join_error(member)) is kind
    assert step(member, m.Ended(stamp(), verdict)) == [STOP], "the session is closed once"
    assert step(member, x.JoinWanted(CANDIDATE)) == []


def test_R5_a_node_that_was_in_a_round_was_needed(running: HandlerMember) -> None:
    step(running, m.StopNow(stamp(), OVER))
    step(running, m.Ended(stamp(), Verdict(Outcome.SUCCEEDED, "well", 0)))
    assert type(join_error(running)) is RendezvousClosedError


def test_R5_a_node_whose_job_has_ended_is_in_no_round_once_it_asks_for_the_next(
    running: HandlerMember,
) -> None:
    step(running, m.Ended(stamp(), Verdict(Outcome.SUCCEEDED, "well", 0)))
    assert claim(running).doing is m.Doing.RUNNING
    assert step(running, x.JoinWanted(CANDIDATE)) == []
    assert running.phase is MemberPhase.JOINING


def test_a_node_that_leaves_joins_no_further_round(member: HandlerMember) -> None:
    assert step(member, x.LeaveWanted()) == [STOP, SHOW, *CLOSE]
    assert isinstance(join_error(member), RendezvousClosedError)
    assert step(member, x.LeaveWanted()) == [STOP]


def test_a_node_that_leaves_before_there_is_a_session_reports_nothing() -> None:
    assert step(HandlerMember(), x.LeaveWanted()) == [STOP, SHOW, x.CloseSession()]


def test_R5_a_cancel_without_a_verdict_ends_the_job_when_it_is_acknowledged(
    member: HandlerMember,
) -> None:
    cancel = m.Cancel("closed here", 0)
    assert step(member, x.CancelWanted("closed here")) == [x.SendReport(cancel)]
    assert step(member, Acknowledged(m.Join(1, CANDIDATE))) == []
    assert step(member, Acknowledged(cancel)) == [STOP, SHOW, *CLOSE]
    assert member.verdict == Verdict(Outcome.CANCELLED, "closed here", 0)


def test_R5_a_cancel_is_repeated_to_a_coordinator_that_does_not_know_it(
    member: HandlerMember,
) -> None:
    step(member, x.CancelWanted("closed here"))
    cancel = x.SendReport(m.Cancel("closed here", 0))
    assert step(member, SessionOpened(resumed=False)) == [STOP, cancel, SHOW], "and no join"


def test_a_refused_session_is_the_error_of_a_join(member: HandlerMember) -> None:
    error = UsageError("settings differ")
    assert step(member, x.SessionFailed(error)) == [STOP, x.AbortSession(), SHOW]
    assert join_error(member) is error


def test_R5_a_node_that_may_not_come_back_was_not_needed(member: HandlerMember) -> None:
    step(member, m.Expelled(stamp(), "another took its id", final=True))
    assert isinstance(join_error(member), RendezvousGracefulExitError)
