"""What people who want something of a job hear: that it can't be done, or that it is done, when
that is recorded if another coordinator can take over the job."""

from __future__ import annotations

import pytest
from tests.harness.narrowed import known, only
from tests.harness.running_job import Place
from tests.harness.takeovers import running
from tests.harness.wires import Wire

from rallypoint.coordinator.gathering import Gatherings
from rallypoint.coordinator.watching import JobWatch
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job_state import PersonWants
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.watch.questions import RankRange, Subject


async def test_L3_a_cancel_is_done_when_the_verdict_is_recorded(place: Place) -> None:
    place.register.is_away = True
    person = place.wants(Subject.CANCEL)
    assert place.sessions.verdict is not None
    assert person.said == []
    place.register.is_away = False
    place.register.tell()
    (said,) = person.said
    assert said.is_done
    assert said.text.startswith("the job was cancelled: a person")


async def test_L3_a_cancel_that_nodes_hear_without_a_record_is_done(place: Place) -> None:
    place.register.is_away = True
    person = place.wants(Subject.CANCEL)
    place.register.tell()
    assert [said.is_done for said in person.said] == [True]


async def test_L3_a_restart_is_done_when_its_round_is_recorded(place: Place) -> None:
    person = place.wants(Subject.RESTART)
    place.join_again(3)
    stamp = jobs.stamp(place.sessions.job)
    place.register.is_away = True
    for node in place.nodes:
        place.says(node, 4, m.Enrolled(stamp))
    assert place.sessions.job.started
    assert person.said == []
    place.register.is_away = False
    place.register.tell()
    assert [said.text for said in person.said] == ["round 1 has begun: 2 nodes, 4 workers"]


async def test_R7_a_checkpoint_that_an_older_node_can_not_be_asked_for_is_refused(
    place: Place,
) -> None:
    place.nodes[1].version = 2
    answer = only(m.Answer, place.wants(Subject.CHECKPOINT).sent)
    assert answer.refusal == (
        "node node-1 runs an older version of Rallypoint, which does not know this command"
    )
    assert place.sessions.job.save is None


def saves(place: Place, number: int) -> None:
    save = known(place.sessions.job.save)
    answer = m.CheckpointAnswered(jobs.stamp(place.sessions.job), save.number, listens=True)
    for node in place.nodes:
        place.says(node, number, answer)


async def test_a_checkpoint_is_not_done_because_an_older_one_was(place: Place) -> None:
    first = place.wants(Subject.CHECKPOINT)
    saves(place, 3)
    assert [said.is_done for said in first.said] == [True]
    place.is_faulty = True
    second = place.wants(Subject.CHECKPOINT)
    assert second.said == []
    place.is_faulty = False
    wish = PersonWants(Subject.CHECKPOINT)
    assert place.sessions.apply_own(wish, 0.0)  # As when it is tried again.
    saves(place, 4)
    assert [said.is_done for said in second.said] == [True]


async def test_a_checkpoint_that_was_never_asked_for_is_not_done_when_its_round_ends(
    place: Place,
) -> None:
    place.is_faulty = True
    person = place.wants(Subject.CHECKPOINT)
    place.is_faulty = False
    place.join_again(3)
    (said,) = person.said
    assert not said.is_done
    assert said.text == "the round ended before the checkpoint was requested"


@pytest.mark.parametrize("subject", [Subject.RESTART, Subject.CHECKPOINT])
async def test_what_a_job_without_workers_waits_for_is_said(subject: Subject, place: Place) -> None:
    place.join_again(3)
    assert place.wants(subject).refusal == (
        "no workers run now: the job waits for nodes node-[0-1] to reach the store of rank 0: "
        "try again when rallypoint status shows that it runs"
    )


@pytest.mark.parametrize(
    "question",
    [
        m.Ask(Subject.RESTART),
        m.Ask(Subject.CHECKPOINT),
        m.Ask(Subject.STACKS, ranks=(RankRange(2, 2),)),
        m.Ask(Subject.LOGS, nodes=("c",), newest=5),
    ],
    ids=lambda question: question.subject.value,
)
async def test_L5_a_coordinator_that_has_taken_over_says_whom_it_waits_for(question: m.Ask) -> None:
    waits_for = (
        "3 of 3 nodes to come to this coordinator, which has taken it over (group rank 0, 1, 2 of "
        "round 0, where workers may run until its lease is over, 18 s at most)"
    )

    cluster, _ = running(3)
    cluster.take_over()
    watch = JobWatch(cluster.sessions, lambda: 0.0, lambda number: None)
    watch.take_over(Handover(cluster.record))
    person = Wire(7)
    assert not watch.asked(person, question)
    assert person.refusal == (
        f"the coordinator does not know yet what runs: the job waits for {waits_for}: "
        "try again when rallypoint status shows that it runs"
    )
    assert watch.view.waits_for == waits_for
    (answer,) = person.all(m.Answer)
    assert (answer.recovers, answer.is_final) == (True, False), "the command waits"


async def test_L5_who_follows_lines_waits_for_the_nodes_of_a_coordinator_that_has_taken_over() -> (
    None
):
    cluster, _ = running(2)
    cluster.take_over()
    watch = JobWatch(cluster.sessions, lambda: 0.0, lambda number: None)
    watch.take_over(Handover(cluster.record))
    person = Wire(7)
    watch.asked(person, m.Ask(Subject.LOGS, follow=True, nodes=("b",)))
    assert person.sent == []
    watch.gatherings.close()


async def test_L5_no_first_round_is_waited_for_when_no_node_has_come_to_the_next_coordinator() -> (
    None
):
    cluster, _ = running(2)
    cluster.take_over()
    gatherings = Gatherings(cluster.sessions, lambda number: None)
    cluster.sessions.apply(TimerEnded(Timer(TimerKind.RECOVERY)), 30.0)
    person = Wire(7)
    gatherings.begin(person, m.Ask(Subject.STACKS))
    assert person.refusal == "no workers run yet: the job's next round has not begun"
