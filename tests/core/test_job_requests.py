"""V4: what becomes of people's requests: each is declined, or told once what has come of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, C, Host, failed, running, stamp
from tests.harness.properties import examples

from rallypoint.core import job_requests as requests
from rallypoint.core import messages as m
from rallypoint.core.job_state import PersonWants
from rallypoint.core.messages import FromNode
from rallypoint.core.model import NodeRef
from rallypoint.core.round_state import MemberState
from rallypoint.core.watch.questions import Ask, RankRange, Said, Subject

CHECKPOINT, RESTART, CANCEL = Subject.CHECKPOINT, Subject.RESTART, Subject.CANCEL


class People:
    """People who want something of a job, and the job, which does it at once."""

    def __init__(self, host: Host | None = None) -> None:
        self.host, self.state = host or running(), requests.Requests()
        self.connections = 0
        self.waiting: dict[int, tuple[Subject, int, int]] = {}
        """What each person wants who waits, the round, and the number of the last notice."""
        self.declined: dict[int, str] = {}
        self.told: dict[int, Said] = {}

    def ask(
        self, subject: Subject, *nodes: str, is_ending: bool = False, older_node: str = ""
    ) -> int:
        self.connections += 1
        number, job = self.connections, self.host.job
        self.waiting[number] = subject, job.round.round, job.notices
        ask = Ask(subject, nodes=nodes)
        self.step(requests.Requested(number, ask, "its next round", is_ending, older_node))
        return number

    def step(self, event: requests.RequestEvent) -> None:
        effects = requests.step(self.state, event, self.host.job)
        if any(isinstance(effect, PersonWants) for effect in effects):
            assert len(effects) == 1, "a request is done or declined"
        for effect in effects:
            match effect:
                case PersonWants():
                    self.host.step(effect)
                case requests.Decline(number, text):
                    del self.waiting[number]
                    self.declined[number] = text
                case requests.Tell(number, said):
                    self.check(*self.waiting.pop(number), said)
                    self.told[number] = said

    def check(self, subject: Subject, round_: int, notices: int, said: Said) -> None:
        """What is told is true."""
        job = self.host.job
        if job.verdict is not None:
            assert said.is_done == (subject is CANCEL)
        elif subject is RESTART and said.is_done:
            assert job.round.round > round_
            assert job.started
        elif subject is CHECKPOINT and said.is_done:
            assert job.save is not None
            assert job.save.number > notices
            assert job.save.saved

    def record(self) -> None:
        """All that the job has decided is recorded."""
        self.step(requests.AllRecorded())

    def saves(self, ref: NodeRef, *, failed: bool = False) -> None:
        number = 0 if (save := self.host.job.save) is None else save.number
        answer = m.CheckpointAnswered(stamp(self.host.job.round.round), number, True, failed)
        self.host.step(FromNode(ref, answer))


def test_nobody_is_told_before_all_is_recorded() -> None:
    people = People()
    number = people.ask(CANCEL)
    assert people.host.job.verdict is not None
    assert people.told == {}
    people.record()
    assert people.told[number].is_done
    people.record()
    assert people.waiting == {}


def test_a_checkpoint_is_done_when_all_have_saved_and_fails_with_a_worker() -> None:
    people = People()
    first = people.ask(CHECKPOINT)
    people.saves(A)
    people.record()
    assert people.told == {}
    people.saves(B, failed=True)
    people.record()
    assert people.told[first] == Said("1 of 2 nodes saved: a worker of node b has failed", False)


def test_an_older_checkpoint_does_not_answer_a_newer_request_that_was_never_asked_for() -> None:
    people = People()
    people.ask(CHECKPOINT)
    people.saves(A)
    people.saves(B)
    event = requests.Requested(9, Ask(CHECKPOINT), "", False, "")
    assert requests.step(people.state, event, people.host.job) == [PersonWants(CHECKPOINT)]
    people.waiting[9] = CHECKPOINT, 0, 1
    people.record()
    assert list(people.told) == [1]
    people.host.step(PersonWants(RESTART))
    people.host.join(A, B)
    people.record()
    assert people.told[9] == Said("the round ended before the checkpoint was requested", False)


def test_V4_who_asks_again_while_a_checkpoint_is_saved_hears_what_has_come_of_it() -> None:
    people = People()
    people.step(requests.HungUp(people.ask(CHECKPOINT)))
    people.saves(A)
    people.waiting[9] = CHECKPOINT, 0, 0
    people.step(requests.Requested(9, Ask(CHECKPOINT, asked_in=0), "", False, ""))
    people.saves(B)
    people.record()
    assert people.told[9] == Said("the workers of 2 nodes have saved a checkpoint")


def test_a_restart_is_done_when_the_next_workers_run() -> None:
    people = People()
    number = people.ask(RESTART)
    people.host.join(A, B)
    people.record()
    assert people.host.job.round.round == 1
    assert people.told == {}, "their workers have not started"
    people.host.enrol(A, B)
    people.record()
    assert people.told[number] == Said("round 1 has begun: 2 nodes, 4 workers")


def test_a_restart_is_not_done_while_its_round_goes_on() -> None:
    people = People()
    event = requests.Requested(9, Ask(RESTART), "", False, "")
    assert requests.step(people.state, event, people.host.job) == [PersonWants(RESTART)]
    people.record()  # The job's machine has failed, and is tried again later.
    assert people.told == {}


def test_a_checkpoint_of_workers_that_do_not_ask_for_it_is_not_done() -> None:
    people = People()
    number = people.ask(CHECKPOINT)
    for ref in (A, B):
        people.host.step(FromNode(ref, m.CheckpointAnswered(stamp(), 1, listens=False)))
    people.record()
    assert not people.told[number].is_done


def test_a_restart_of_a_job_that_all_nodes_left_is_not_done() -> None:
    people = People()
    number = people.ask(RESTART)
    for ref in (A, B):
        people.host.step(FromNode(ref, m.Leave()))
    people.record()
    text = "the round has ended, and no node is there for the next one"
    assert people.told[number] == Said(text, False)


def test_who_hangs_up_is_told_nothing() -> None:
    people = People()
    people.step(requests.HungUp(people.ask(CANCEL)))
    people.record()
    assert people.told == {}


def test_the_machine_of_a_node_that_there_is_not_can_not_be_excluded() -> None:
    people = People()
    first, second, third = (people.ask(Subject.EXCLUDE, *each) for each in (("z",), (), ("a",)))
    assert people.declined[first].startswith("there is no node 'z'")
    assert people.declined[second].startswith("there is no node ''")
    people.record()
    assert people.told[third].text == (
        "the machine of node a is excluded from all further rounds; rallypoint nodes allow a "
        "lets it "
        "in again"
    )
    assert people.declined[people.ask(Subject.ALLOW, "b")] == "node 'b' is not held back; a is"
    allowed = people.ask(Subject.ALLOW, "a")
    people.record()
    assert people.told[allowed] == Said("the machine of node a is trusted again")


def test_a_job_that_is_ending_answers_with_its_verdict() -> None:
    people = People()
    people.host.step(PersonWants(CANCEL))
    declined, waits = people.ask(RESTART), people.ask(RESTART, is_ending=True)
    assert people.declined[declined].startswith("the job has ended: ")
    people.record()
    assert not people.told[waits].is_done


def test_R7_only_a_checkpoint_needs_nodes_of_this_version() -> None:
    people = People()
    assert people.declined[people.ask(CHECKPOINT, older_node="b")] == (
        "node b runs an older version of Rallypoint, which does not know this command"
    )
    assert people.ask(RESTART, older_node="b") not in people.declined


@pytest.mark.parametrize("subject", Subject)
def test_L5_what_needs_workers_is_not_known_while_a_coordinator_takes_over(
    subject: Subject,
) -> None:
    needs_none = {Subject.STATUS, Subject.JOBS, Subject.EVENTS, CANCEL, Subject.NODES, Subject.MORE}
    needs_none |= {Subject.DRAIN}
    text = requests.unknown(Ask(subject), "2 nodes")
    assert bool(text) == (subject not in needs_none)
    assert requests.unknown(Ask(subject, follow=True), "2 nodes") == ""
    ranks = Ask(Subject.STACKS, ranks=(RankRange(0, 1),))
    assert requests.unknown(ranks, "2 nodes") == (
        "the coordinator does not know yet what runs: the job waits for 2 nodes: "
        "try again when rallypoint status shows that it runs"
    )


REFS = st.sampled_from([A, B, C])
WANTS = st.sampled_from([CHECKPOINT, RESTART, Subject.EXCLUDE, Subject.ALLOW])
DEEDS = st.one_of(
    st.tuples(st.just("ask"), WANTS, REFS),
    st.tuples(st.sampled_from(["join", "enrol", "save", "fail", "lose", "leave"]), WANTS, REFS),
    st.tuples(st.sampled_from(["record", "record", "hang up", "cancel"]), WANTS, REFS),
)


def do(people: People, deed: str, subject: Subject, ref: NodeRef) -> None:
    host, member = people.host, people.host.job.round.members.get(ref.node_id)
    is_running = member is not None and member.state is MemberState.RUNNING
    match deed:
        case "ask":
            people.ask(subject, ref.node_id)
        case "join":
            host.join(ref)
        case "enrol" if is_running:
            host.enrol(ref)
        case "save" if is_running:
            people.saves(ref)
        case "fail" if is_running:
            host.fail(ref, failed(), host.at)
        case "lose" if member is not None:
            host.lose(ref, heard_at=host.at)
        case "leave" if member is not None:
            host.step(FromNode(ref, m.Leave()))
        case "record":
            people.record()
        case "hang up" if people.waiting:
            number = max(people.waiting)
            people.step(requests.HungUp(number))
            del people.waiting[number]
        case "cancel":
            people.ask(CANCEL)


@settings(max_examples=examples(900), deadline=None, database=None, print_blob=True)
@given(st.lists(DEEDS, max_size=40))
def test_each_request_is_answered_once_and_truly_whatever_happens_to_the_job(
    deeds: list[tuple[str, Subject, NodeRef]],
) -> None:
    """`People` removes whoever was answered, and so complains of a second answer."""
    people = People(running(replace(RULES, min_nodes=1, max_nodes=3, last_call_s=0.0), A, B, C))
    for deed, subject, ref in deeds:
        do(people, deed, subject, ref)
        assert people.state.waiting.keys() == people.waiting.keys()
    people.ask(CANCEL)
    people.record()
    assert people.waiting == {}, "the end of the job answers everybody"
    assert not people.declined.keys() & people.told.keys()
