"""What a person wants of a job: a checkpoint, another round, its end (`core/job_requests.py`)."""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.job_machine import (
    RULES,
    A,
    B,
    Host,
    failed,
    orders,
    running,
    stamp,
    told,
    verdicts,
)
from tests.harness.narrowed import known, of_kind
from tests.harness.takeovers import running as cluster_running
from tests.harness.watched import WatchedJob, started

from rallypoint.core import job, job_requests
from rallypoint.core import messages as m
from rallypoint.core.job_state import JobEvent, PersonWants
from rallypoint.core.messages import FromNode
from rallypoint.core.model import EndKind, NodeRef, Outcome
from rallypoint.core.round_state import RoundPhase
from rallypoint.core.takeover.record import recorded
from rallypoint.core.watch.questions import Subject
from rallypoint.wire.codec import for_version


def saves(host: Host, ref: NodeRef, *, listens: bool = True, failed: bool = False) -> None:
    answer = m.CheckpointAnswered(stamp(0), known(host.job.save).number, listens, failed)
    host.step(FromNode(ref, answer))


def asked() -> Host:
    host = running()
    effects = host.step(PersonWants(Subject.CHECKPOINT))
    assert told(effects, m.CheckpointWanted) == [A, B]
    assert orders(effects, m.CheckpointWanted)[0].kind is EndKind.REQUEST
    return host


def test_a_checkpoint_is_saved_by_all_and_the_round_goes_on() -> None:
    host = asked()
    saves(host, A)
    assert host.job.save is not None
    assert not host.job.save.is_over
    saves(host, B)
    assert host.job.save.outcome == "the workers of 2 nodes have saved a checkpoint"
    assert host.job.round.round == 0
    assert host.job.notice is None
    assert [record.text for record in host.records][-1] == host.job.save.outcome


def test_nodes_whose_workers_do_not_ask_are_told_of() -> None:
    host = asked()
    saves(host, A, listens=False)
    saves(host, B)
    assert known(host.job.save).outcome == (
        "the workers of 1 node have saved a checkpoint; on 1 node no worker checks for that request"
    )
    nobody = asked()
    saves(nobody, A, listens=False)
    saves(nobody, B, listens=False)
    assert "checkpoint_requested() in the training loop" in known(nobody.job.save).outcome


def test_the_wait_ends_with_the_round_a_drain_and_a_failure() -> None:
    host = asked()
    saves(host, A)
    host.fail(B, failed(), at=1.0)
    assert known(host.job.save).outcome == "1 of 2 nodes saved, not b: the round has ended"
    drained = asked()
    drained.step(FromNode(A, m.Drain("it got SIGTERM", 15, notice_s=20.0)))
    assert known(drained.job.save).outcome.startswith("0 of 2 nodes saved, not a, b: the job re-f")
    dead = asked()
    saves(dead, A, failed=True)
    assert known(dead.job.save).cut_short == "a worker of node a has failed"


def test_a_node_that_comes_back_is_asked_for_the_checkpoint_again() -> None:
    host = asked()
    number = host.job.notices
    (again,) = orders(job.resync(host.job, A, 0.0), m.CheckpointWanted)
    assert (again.number, again.kind) == (number, EndKind.REQUEST)
    saves(host, A)
    assert orders(job.resync(host.job, A, 0.0), m.CheckpointWanted) == []


def test_a_success_while_a_person_asks_counts() -> None:
    """The round goes on, so that nobody ends because of the question."""
    host = asked()
    for ref in (A, B):
        host.step(FromNode(ref, m.Succeeded(stamp(0))))
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_V4_a_restart_costs_no_budget() -> None:
    host = running()
    effects = host.step(PersonWants(Subject.RESTART))
    assert told(effects, m.StopNow) == [A, B]
    assert orders(effects, m.StopNow)[0].reason.text == job_requests.RESTARTED
    host.join(A, B)
    assert host.job.round.round == 1
    assert host.job.ledger.total == 0


def test_a_cancel_is_the_verdict() -> None:
    host = running()
    assert verdicts(host.step(PersonWants(Subject.CANCEL))) == [A, B]
    assert host.verdict.outcome is Outcome.CANCELLED
    assert host.verdict.signal == 2
    assert host.step(PersonWants(Subject.RESTART)) == []


def test_what_can_not_be_done_is_refused_in_one_line() -> None:
    host = Host()
    assert job_requests.refusal(host.job, Subject.RESTART) == (
        "no workers run now: the job waits for its next round: "
        "try again when rallypoint status shows that it runs"
    )
    assert host.step(PersonWants(Subject.RESTART)) == []
    assert job_requests.refusal(host.job, Subject.CANCEL) == ""
    drained = running()
    drained.step(FromNode(A, m.Drain("it got SIGTERM", 15, notice_s=20.0)))
    assert "already requested: node a" in job_requests.refusal(drained.job, Subject.CHECKPOINT)
    over = running()
    over.step(PersonWants(Subject.CANCEL))
    assert job_requests.refusal(over.job, Subject.CANCEL).startswith("the job has ended: a person")


def test_R7_older_peers_hear_no_word_that_they_do_not_know() -> None:
    host = running()
    stop = orders(host.step(PersonWants(Subject.RESTART)), m.StopNow)[0]
    older = of_kind(m.StopNow, for_version(stop, 2))
    assert older.reason.kind is EndKind.GROWTH
    assert for_version(stop, 3) == stop
    wanted = m.CheckpointWanted(stamp(0), 1, EndKind.REQUEST, "why", None)
    assert for_version(wanted, 2) is None
    assert for_version(wanted, 3) == wanted
    assert recorded(stop.reason).kind is EndKind.GROWTH


def test_L5_what_a_person_wants_just_after_a_takeover_is_done_when_it_is_known_what_runs() -> None:
    cluster, agents = cluster_running(2)
    cluster.take_over()
    wish = PersonWants(Subject.CANCEL)
    assert cluster.sessions.apply_own(wish, cluster.timers.now_s) == []
    assert cluster.job.verdict is None
    cluster.bring(*agents)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.outcome is Outcome.CANCELLED
    assert all(agent.state.verdict == cluster.job.verdict for agent in agents)


def test_V4_a_round_whose_checkpoint_a_person_wanted_goes_on_at_the_next_coordinator() -> None:
    cluster, agents = cluster_running(2)
    effects = cluster.sessions.apply_own(PersonWants(Subject.CHECKPOINT), cluster.timers.now_s)
    cluster.do(effects)
    cluster.settle()
    assert known(cluster.job.save).outcome == "the workers of 2 nodes have saved a checkpoint"
    cluster.take_over()
    cluster.bring(*agents)
    assert [agent.running for agent in agents] == [stamp(), stamp()]


def test_of_many_rounds_those_are_kept_that_are_shown() -> None:
    watched = WatchedJob()
    for _ in range(9):
        watched.join(A, B)
        watched.start(A, B)
        watched.step(PersonWants(Subject.RESTART))
    assert [past.round for past in watched.history.rounds] == [5, 6, 7, 8]
    assert watched.history.rounds_formed == 9


def failed_before(wish: JobEvent, *, stops: tuple[NodeRef, ...]) -> WatchedJob:
    """A worker of B fails at 10, a round ends for this at 11, and that is reported at 12."""
    watched = started(replace(RULES, restart_backoff_s=0.0))
    watched.step(wish, at=11.0)
    assert watched.job.round.round == 1
    watched.step(FromNode(B, m.Failed(stamp(0), (failed(age_s=2.0),), 7)), at=12.0)
    watched.stop(*stops, at=13.0)
    return watched


def test_A2_a_restart_that_a_person_wanted_is_not_charged_for_a_failure_before_it() -> None:
    """Nor told as one, nor counted as a fault: the workers were to be stopped anyhow."""
    host = failed_before(PersonWants(Subject.RESTART), stops=(A, B))
    assert host.job.ledger.total == 0
    assert host.job.crash_loop.count == 0
    assert host.job.furthest_step == 7, "what its workers had done is known"
    assert host.history.account.faults == 0
    assert not [record for record in host.records if record.name == "restart"]
    (past, _) = host.history.rounds
    assert (past.end, past.end_text, past.cause) == ("request", job_requests.RESTARTED, None)
    assert host.job.round.round == 1
    assert host.job.round.phase is RoundPhase.ACTIVE


def test_A2_a_restart_that_a_person_wanted_ends_no_job_without_budget() -> None:
    watched = started(replace(RULES, max_restarts=0))
    watched.step(PersonWants(Subject.RESTART), at=11.0)
    watched.step(FromNode(B, m.Failed(stamp(0), (failed(age_s=2.0),))), at=12.0)
    watched.stop(A, B, at=13.0)
    assert watched.job.verdict is None


def test_A3_a_failure_before_a_drain_is_charged_and_counted_by_all() -> None:
    """Nobody has restarted the workers on purpose: the round would have ended by that failure."""
    drain = FromNode(A, m.Drain("it got SIGTERM", 15))
    host = failed_before(drain, stops=(B,))
    host.step(FromNode(A, m.Leave()))
    assert host.job.ledger.total == 1
    assert host.history.account.faults == 1
    assert [record.node_id for record in host.records if record.name == "restart"] == ["b"]
    past = host.history.rounds[0]
    assert (past.end, known(past.cause).node) == ("failure", "b")
