"""The events about people who read what workers do, or want something of a job (F8)."""

from __future__ import annotations

import msgspec
import pytest
from tests.harness.job_machine import running
from tests.harness.narrowed import known
from tests.harness.running_job import NO_RESTARTS, Place, running_job
from tests.harness.wires import Wire

from rallypoint.coordinator.watching import JobWatch
from rallypoint.core import limits
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import ASKED, Level
from rallypoint.core.sessions import Sessions
from rallypoint.core.watch.askers import KEPT_MAX, WINDOW_S, Askers
from rallypoint.core.watch.questions import Ask, ReadTo, Subject
from rallypoint.errors import MessageError
from rallypoint.wire.codec import decode_to_coordinator, encode

LOGS = Ask(Subject.LOGS, release="0.2.0")
PEER = "10.0.0.7:40000"
BY_B = "somebody at 10.0.0.7 used rallypoint"


def drain(node: str) -> Ask:
    return Ask(Subject.DRAIN, nodes=(node,), release="0.2.0")


def said(askers: Askers, question: Ask, at: float, peer: str = PEER) -> str:
    record = askers.asked(question, peer, 4, at)
    return "" if record is None else record.text


@pytest.mark.parametrize(
    ("question", "words", "node"),
    [
        (LOGS, "logs", ""),
        (Ask(Subject.LOGS, follow=True, nodes=("b",), release="0.2.0"), "logs", ""),
        (Ask(Subject.STACKS, release="0.2.0"), "stacks", ""),
        (Ask(Subject.CHECKPOINT, release="0.2.0"), "checkpoint", ""),
        (Ask(Subject.RESTART, release="0.2.0"), "restart", ""),
        (Ask(Subject.CANCEL, release="0.2.0"), "cancel", ""),
        (Ask(Subject.EXCLUDE, nodes=("b",), release="0.2.0"), "nodes exclude b", "b"),
        (Ask(Subject.ALLOW, nodes=("b",), release="0.2.0"), "nodes allow b", "b"),
        (m.DrainNode("b", "it is tired", "0.2.0").question, "drain b", "b"),
        (Ask(Subject.DRAIN, nodes=("b",), release="0.2.0"), "drain b", "b"),
    ],
)
def test_F8_who_reads_or_wants_something_leaves_an_event(
    question: Ask, words: str, node: str
) -> None:
    record = known(Askers().asked(question, PEER, 4, 0.0))
    assert (record.kind, record.kind.level, record.node_id) == (ASKED, Level.INFO, node)
    assert record.text == f"{BY_B} {words} (version 0.2.0)"


def test_F8_what_tells_of_the_job_alone_leaves_no_event() -> None:
    for subject in (Subject.STATUS, Subject.JOBS, Subject.EVENTS, Subject.NODES, Subject.MORE):
        assert said(Askers(), Ask(subject, release="0.2.0"), 0.0) == ""


def test_F8_a_person_whose_version_does_not_tell_it_leaves_that_of_the_protocol() -> None:
    record = known(Askers().asked(Ask(Subject.LOGS), "[::1]:40000", 3, 0.0))
    unknown = "version unknown: it speaks session protocol 3"
    assert record.text == f"somebody at [::1] used rallypoint logs ({unknown})"


def test_F8_a_loop_leaves_one_event_a_minute_that_counts_the_rest() -> None:
    askers = Askers()
    told = [said(askers, LOGS, float(second)) for second in range(int(WINDOW_S))]
    assert told == [f"{BY_B} logs (version 0.2.0)", *[""] * 59]
    once = said(askers, LOGS, WINDOW_S)
    assert once.endswith("(version 0.2.0); 59 times more since this was told last")
    assert said(askers, LOGS, 2 * WINDOW_S - 1) == ""
    assert said(askers, LOGS, 3 * WINDOW_S).endswith("; 1 times more since this was told last")
    assert said(askers, LOGS, 4 * WINDOW_S) == f"{BY_B} logs (version 0.2.0)"


def test_F8_another_host_and_another_command_have_events_of_their_own() -> None:
    askers = Askers()
    questions = [LOGS, drain("a"), drain("b")]
    assert all(said(askers, one, 0.0) for one in questions)
    assert said(askers, LOGS, 1.0, "10.0.0.8:1") == (
        "somebody at 10.0.0.8 used rallypoint logs (version 0.2.0)"
    )
    assert not any(said(askers, one, 2.0, "10.0.0.7:50000") for one in questions)


def test_F8_many_hosts_and_made_up_nodes_fill_no_history() -> None:
    askers = Askers()
    drains = [drain(f"n{number}") for number in range(1000)]
    told = [said(askers, drain, 0.0) for drain in drains]
    assert [bool(text) for text in told] == [True] * KEPT_MAX + [False] * (1000 - KEPT_MAX)
    assert said(askers, drains[0], 1.0) == ""
    late = said(askers, LOGS, WINDOW_S)
    left_out = 1000 - KEPT_MAX + 1
    assert late.endswith(f"; {left_out} uses of other commands, or at other hosts, are left out")
    assert said(askers, drain("x" * 2000), WINDOW_S).count("x") < 255


async def test_F8_ten_reads_of_a_job_leave_one_event_in_its_history(place: Place) -> None:
    for number in range(10, 20):
        place.asks(LOGS, number)
        place.asks(Ask(Subject.EVENTS), 30 + number)
    place.asks(Ask(Subject.RESTART, release="0.2.0"), 8)
    told = [(entry.event, entry.text) for entry in place.job.watch.history.entries]
    asked = [text for event, text in told if event == "asked"]
    at = "somebody at 10.0.0.1 used rallypoint"
    assert asked == [f"{at} logs (version 0.2.0)", f"{at} restart (version 0.2.0)"]
    assert told[-1][0] == "round_ended", "what was wanted is done after that"


async def test_F8_a_reader_leaves_an_event_also_while_nothing_can_be_recorded(place: Place) -> None:
    place.register.is_away = True
    place.asks(drain("node-0"))
    assert place.job.watch.history.entries[-1].event == "asked"


async def test_F8_a_job_that_has_ended_has_no_such_event_after_its_verdict() -> None:
    async with running_job(NO_RESTARTS) as place:
        place.fails_for_good()
        place.register.tell()
        place.asks(LOGS)
        assert place.job.watch.history.entries[-1].event == "verdict"


async def test_F8_the_coordinator_that_goes_on_with_a_job_counts_anew() -> None:
    person = Wire(7)
    for _ in range(2):
        watch = JobWatch(Sessions(running().job, 1), lambda: 5.0, lambda number: None)
        told = [watch.tell_of(person, LOGS) for _ in range(3)]
        assert [record is None for record in told] == [False, True, True]


class _AskOf3(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """`Ask` as version 3 of the session protocol has it."""

    subject: Subject
    after: int = 0
    follow: bool = False
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    newest: int = 0
    read: tuple[ReadTo, ...] = ()
    incarnation: int = 0


class _DrainOf2(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """`DrainNode` as version 2 has it."""

    node_id: str
    why: str


def test_R7_older_coordinators_and_older_people_know_no_release() -> None:
    asked = msgspec.msgpack.decode(encode(LOGS), type=_AskOf3)
    assert asked == _AskOf3(Subject.LOGS)
    assert decode_to_coordinator(msgspec.msgpack.encode(asked)) == Ask(Subject.LOGS)
    drain = msgspec.msgpack.decode(encode(m.DrainNode("b", "why", "0.2.0")), type=_DrainOf2)
    assert drain == _DrainOf2("b", "why")
    assert decode_to_coordinator(msgspec.msgpack.encode(drain)) == m.DrainNode("b", "why")


@pytest.mark.parametrize("release", ["1" * 65, "0.2.0\n", "\x1b[2J"])
def test_F8_a_release_is_short_and_printable(release: str) -> None:
    with pytest.raises(MessageError, match="release"):
        limits.check(Ask(Subject.LOGS, release=release))
