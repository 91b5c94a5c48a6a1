"""No message of one node stops another agent, or shows on its screen what must not (SECURITY.md).

The first tests are what a node with the job's token has done to others; then anything goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.fuzz.hostile_node import NO_BUDGET, RULES, Honest, Liar, Scene
from tests.fuzz.hostile_values import ESCAPES, INF, NAN, converse, settings_of
from tests.harness.properties import examples

from rallypoint.config import RendezvousConfig
from rallypoint.coordinator.client.session import host_name_of
from rallypoint.core import claims, limits
from rallypoint.core import messages as m
from rallypoint.core.hang import Behind
from rallypoint.core.model import Outcome, SharedSettings, Stamp
from rallypoint.core.outcomes import SIGNALLED
from rallypoint.core.settings import MAX_NUMBER, MAX_SECONDS, MAX_WORKERS_PER_NODE
from rallypoint.core.watch.collection_messages import PIECES_IN_FLIGHT, Gathered, WorkerAnswer
from rallypoint.core.watch.job_view import JobView
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.watch.questions import Subject
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import MessageError, UsageError
from rallypoint.wire.codec import MAX_MESSAGE_BYTES, decode_to_coordinator, encode, fitting


def failure(**changes: Any) -> WorkerExit:
    given: dict[str, Any] = {
        "local_rank": 0,
        "rank": 4,
        "role": "default",
        "pid": 1,
        "code": 1,
        "signal": None,
        "age_s": 0.0,
        "wall_time": 1.7e9,
    }
    return WorkerExit(**(given | changes))


def fails(**changes: Any) -> Callable[[Liar, Stamp], None]:
    """What a worker of that node has allegedly ended by, and nobody may restart it."""

    def act(liar: Liar, stamp: Stamp) -> None:
        told = (failure(**changes),)
        liar.report(m.Failed(stamp, told))
        liar.scene.said()
        liar.report(m.Detailed(stamp, told))
        liar.scene.said()
        liar.join(2)

    return act


def says(*reports: Callable[[Stamp], m.Report]) -> Callable[[Liar, Stamp], None]:
    def act(liar: Liar, stamp: Stamp) -> None:
        for report in reports:
            liar.report(report(stamp))
            liar.scene.said()

    return act


ACTS = {
    "a plain failure": fails(),
    "a wall time of 1e300": fails(wall_time=1e300),
    "a wall time that is none": fails(wall_time=NAN),
    "a wall time long before": fails(wall_time=-1e18),
    "an age that is none": fails(age_s=NAN),
    "an age of 1e308": fails(age_s=1e308),
    "the largest age": fails(age_s=MAX_SECONDS),
    "an exit code of 2^62": fails(code=2**62),
    "a signal of 2^31": fails(code=None, signal=2**31),
    "a signal of -5": fails(code=None, signal=-5),
    "neither exit code nor signal": fails(code=None, signal=None),
    "negative numbers": fails(rank=-1, pid=-1, local_rank=-7),
    "a rank of another node": fails(rank=0),
    "a local rank that it does not have": fails(local_rank=7),
    "escapes in its message and detail": fails(message=ESCAPES, detail=ESCAPES),
    "escapes in its log file": fails(log_file=f"/x{ESCAPES}", message="boom"),
    "escapes in its role": fails(role=f"r{ESCAPES}"),
    "a message of 200 KB": fails(message="A" * 200_000),
    "a detail of 60000 lines": fails(message="A" * 120_000, detail="x\n" * 60_000),
    "as long as may be": fails(
        message="\x1b" * 4096, detail="\x1b" * 24_000, log_file="\x1b" * 4096
    ),
    "a role of 250 KB": fails(role="r" * 250_000),
    "300 failures": says(lambda stamp: m.Failed(stamp, (failure(),) * 300)),
    "a drain without a time": says(lambda stamp: m.Drain("because", 15, False, NAN)),
    "a drain of the host": says(lambda stamp: m.Drain("because", 15, True, 0.0)),
    "a drain for ever": says(lambda stamp: m.Drain("because", 15, False, INF)),
    "a long reason": says(lambda stamp: m.Drain(f"{ESCAPES}{'w' * 250_000}", 15, False, 0.0)),
    "a reason with a NUL": says(lambda stamp: m.Drain("a\0b", 15, False, 0.0)),
    "the longest reason": says(lambda stamp: m.Drain("\U0001f600" * 2000, 15, False, 0.0)),
    "a cancel by signal 999": says(lambda stamp: m.Cancel(ESCAPES, 999)),
    "no route, at length": says(lambda stamp: m.NotEnrolled(stamp, f"{ESCAPES}{'t' * 250_000}")),
    "a route and none": says(m.Enrolled, lambda stamp: m.NotEnrolled(stamp, "no route")),
    "another life's checkpoint": says(
        m.Enrolled, lambda stamp: m.CheckpointAnswered(stamp, -1, listens=True)
    ),
    "a silent hang": says(m.Enrolled, m.HangSuspected),
}
JOINS: dict[str, dict[str, Any]] = {
    "2^62 workers": {"workers": 2**62},
    "2^63-1 workers": {"workers": 2**63 - 1},
    "no worker": {"workers": 0},
    "-1 workers": {"workers": -1},
    "the most workers": {"workers": MAX_WORKERS_PER_NODE},
    "an address with a NUL": {"address": "127.0.0.1\0x"},
    "an address with a line": {"address": "127.0.0.1\nLD_PRELOAD=/x"},
    "an address that is too long": {"address": f"{'x' * 300}.y"},
    "no address": {"address": ""},
    "port 2^40": {"store_port": 2**40},
    "port -1": {"store_port": -1},
    "port 0": {"store_port": 0},
    "a role with a NUL": {"role": "r\0x"},
    "a grace of 1e308": {"stop_grace_s": 1e308},
    "a grace that is none": {"stop_grace_s": NAN},
    "a rank of a larger job": {"node_rank": 3},
    "rank -2": {"node_rank": -2},
    "a rank": {"node_rank": 0},
}


@contextmanager
def playing(rules: SharedSettings = RULES) -> Iterator[Scene]:
    """A job, on which nobody may complain at the end either."""
    scene = Scene(rules)
    yield scene
    scene.said()
    scene.close()


def member(scene: Scene, name: str = "zz", **join: Any) -> Liar:
    """Attached, joined and in the first round."""
    liar = Liar(scene, name)
    liar.attach()
    liar.join(**join)
    scene.said()
    return liar


def joined(scene: Scene) -> tuple[Liar, m.Assigned]:
    """One more member, and what it was assigned."""
    liar = member(scene)
    assert liar.assigned is not None
    return liar, liar.assigned


@pytest.mark.parametrize("name", ACTS)
async def test_what_one_node_tells_stops_no_other(name: str) -> None:
    with playing(NO_BUDGET) as scene:
        liar, assigned = joined(scene)
        ACTS[name](liar, assigned.stamp)


@pytest.mark.parametrize("node_id", ["zz", "a"], ids=["last", "rank 0"])
@pytest.mark.parametrize("name", JOINS)
async def test_what_one_node_brings_stops_no_other(name: str, node_id: str) -> None:
    with playing() as scene:
        member(scene, node_id, **JOINS[name])


def honest(scene: Scene) -> tuple[Honest, Honest]:
    first, second = scene.nodes
    return first, second


async def test_a_name_that_is_too_long_is_refused_and_nobody_else_hears_of_it() -> None:
    with playing() as scene:
        liar = Liar(scene, "zz")
        liar.attach(node_id=ESCAPES + "n" * 10_000)
        scene.said()
        (refused,) = (x for x in liar.heard if isinstance(x, m.Refused))
        assert refused.text.startswith("a message of this node is not valid: Attach.node_id = ")
        assert refused.text.endswith(" (10065 characters) (needs 0 to 255 bytes, printable)")
        assert len(refused.text) < 500
        assert not any(node.assignment for node in honest(scene))


async def test_a_message_out_of_its_limits_ends_that_nodes_part_with_one_line_here_and_there() -> (
    None
):
    with playing() as scene:
        liar = member(scene)
        liar.report(m.Drain("x", 15, False, 1e300))
        scene.said()
        told = [x for x in liar.heard if isinstance(x, m.Refused)]
        text = "a message of this node is not valid: Numbered.report.notice_s = 1e+300 "
        assert [refused.text for refused in told] == [f"{text}(needs 0 to 86400)"]
        assert liar.wire.lost.done(), "the connection ended, too"
        assert sum(text in record.text for record in scene.records) >= 1
        # The others go on without it.
        scene.said()
        assert all(node.assignment and node.assignment.world_size == 4 for node in scene.nodes)


async def test_an_agent_ends_with_one_line_when_the_coordinator_sends_what_none_sends() -> None:
    """On a new connection it would send the same again."""
    scene = Scene()
    scene.servers[1].send(m.Expelled(Stamp(1, 3), "x" * 20_000, final=False))
    scene.go_on()
    text = "refused: the coordinator sent an invalid message: Expelled.why = 'xxx"
    assert scene.nodes[1].trouble.startswith(text)
    assert scene.nodes[1].wire.lost.done()
    assert not scene.nodes[0].trouble
    scene.close()


async def test_the_number_of_a_job_is_not_raised_to_where_no_node_could_tell_it_any_more() -> None:
    with playing() as scene:
        liar = Liar(scene, "zz")
        liar.attach(last_incarnation=MAX_NUMBER, last_epoch=1)
        scene.said()
        numbers = [x.incarnation for x in scene.nodes[0].heard if isinstance(x, m.Attached)]
        assert numbers[0] < numbers[-1] < 10**13


async def test_only_the_coordinators_own_agent_takes_it_along() -> None:
    scene = Scene()
    member(scene).report(m.Drain("because", 15, True, 0.0))
    scene.said()
    assert not any(node.verdict for node in scene.nodes)
    scene.nodes[0].report(m.Drain("got SIGTERM", 15, True, 0.0))
    scene.go_on()
    verdict = scene.nodes[1].verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.PREEMPTED
    scene.close()


async def test_a_failure_is_told_of_a_rank_that_the_node_has() -> None:
    with playing() as scene:
        liar, assigned = joined(scene)
        stamp = assigned.stamp
        liar.report(m.Failed(stamp, (failure(local_rank=1, rank=0), failure(local_rank=7))))
        scene.said()
        lines = "".join(scene.nodes[1].printed)
        assert "rank 5 (node zz, local rank 1) exited with code 1" in lines
        assert "local rank 7" not in lines


def view(scene: Scene) -> JobView:
    (job,) = scene.coordinator.jobs.all
    return job.watch.view


async def test_a_worker_that_is_behind_is_one_of_the_node_that_tells_of_it() -> None:
    """`rallypoint status` would name an honest node's worker."""
    with playing() as scene:
        liar, assigned = joined(scene)
        base = assigned.assignment.base_rank
        told = NodeProgress(assigned.stamp, running_s=9.0, furthest=70, step=70, silent_s=9.0)
        for rank, known in ((0, -1), (base + 2, -1), (base, base), (base + 1, base + 1)):
            liar.say(m.Heartbeat(1, progress=replace(told, rank=rank)))
            scene.said()
            (node,) = (one for one in view(scene).nodes if one.node == "zz")
            assert node.behind == known, rank
        assert view(scene).furthest_step == 70, "what its own workers have done"


@pytest.mark.parametrize("field", ["furthest", "step", "total", "tokens", "saved"])
async def test_a_step_that_no_job_does_ends_the_part_of_the_node_that_tells_of_it(
    field: str,
) -> None:
    with playing() as scene:
        liar, assigned = joined(scene)
        told = replace(NodeProgress(assigned.stamp), **{field: 2**53 + 1})
        liar.say(m.Heartbeat(1, progress=told))
        scene.said()
        (refused,) = (x for x in liar.heard if isinstance(x, m.Refused))
        assert f"Heartbeat.progress.{field} = " in refused.text
        assert view(scene).furthest_step == -1


def test_an_honest_node_says_of_a_step_that_is_too_large_the_largest_one() -> None:
    stamp = Stamp(1, 0)
    for said in (NodeProgress(stamp, furthest=2**63 - 1), m.Failed(stamp, (), 2**63 - 1)):
        fitting = limits.fit(said)
        limits.check(fitting)
        assert fitting.furthest == 2**53


async def test_who_takes_no_part_in_a_round_can_not_speak_for_its_workers() -> None:
    with playing() as scene:
        liar, assigned = joined(scene)
        stamp = assigned.stamp
        stranger = Liar(scene, "standby")
        stranger.attach()
        stranger.join()
        scene.said()
        for node in scene.nodes:
            node.heard.clear()
        liar.report(m.Enrolled(stamp))
        for report in (m.Finishing(stamp), m.Succeeded(stamp), m.HangSuspected(stamp)):
            stranger.report(report)
            scene.said()
        kinds = {type(x) for node in scene.nodes for x in node.heard}
        assert m.CollectStacks not in kinds
        assert kinds <= {m.StartNow, m.Ack}


async def test_a_node_whose_output_matches_no_pattern_has_one_line_of_the_host() -> None:
    with playing() as scene:
        liar, assigned = joined(scene)
        said = "STEP for 2 minutes; rank 0 wrote nothing"
        for text in (said, "again"):
            liar.say(m.Heartbeat(1, progress=NodeProgress(assigned.stamp, unmatched=text)))
            scene.said()
        lines = [record.text for record in scene.records if record.name == "pattern_unmatched"]
        assert lines == [f"no line of any worker has matched --progress-pattern {said}"]
        assert sum(lines[0] in line for line in scene.nodes[0].printed) == 2, "as text and JSON"
        assert not any(lines[0] in line for line in scene.nodes[1].printed)


@pytest.mark.parametrize("text", [ESCAPES, "x" * 2001, "a\nb"], ids=["escapes", "long", "lines"])
async def test_what_no_honest_node_says_of_a_pattern_ends_its_part(text: str) -> None:
    with playing() as scene:
        liar, assigned = joined(scene)
        liar.say(m.Heartbeat(1, progress=NodeProgress(assigned.stamp, unmatched=text)))
        scene.said()
        assert not any(record.name == "pattern_unmatched" for record in scene.records)
        (refused,) = (x for x in liar.heard if isinstance(x, m.Refused))
        assert ": Heartbeat.progress.unmatched = " in refused.text


async def test_a_running_node_that_claims_a_taken_rank_is_lost_to_its_round() -> None:
    with playing() as scene:
        scene.nodes[0].join_again(node_rank=0)
        liar = member(scene)
        liar.join(2, node_rank=0)
        scene.said()
        assert all(node.assignment for node in scene.nodes)
        assert scene.nodes[0].assignment is not None
        assert scene.nodes[0].assignment.world_size == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"last_call_s": NAN},
        {"lease_s": 1e300},
        {"lease_s": 0.0},
        {"heartbeat_s": 1e-9},
        {"min_nodes": 0},
        {"max_nodes": 0},
        {"max_nodes": 100_001},
        {"no_restart_exit_codes": (0,)},
        {"max_restarts": -1},
        {"run_id": "J\n"},
    ],
    ids=str,
)
def test_settings_that_no_command_line_takes_do_not_decode(changes: dict[str, Any]) -> None:
    hello = m.Attach("n", "host", "life", 1, settings_of(**changes))
    with pytest.raises(MessageError, match=next(iter(changes))):
        decode_to_coordinator(encode(hello))


@pytest.mark.parametrize("signal", [128, 255, 256])
def test_no_node_ends_the_others_with_the_exit_code_of_a_success(signal: int) -> None:
    """128 + 128 is 0 for who waits for a process."""
    for report in (m.Cancel("enough", signal), m.Drain("enough", signal, False)):
        with pytest.raises(MessageError, match=f"signal = {signal} "):
            decode_to_coordinator(encode(m.Numbered(1, report)))
    assert SIGNALLED + limits.MAX_SIGNAL <= 255


def test_all_exit_codes_may_end_a_job() -> None:
    codes = tuple(range(1, 256))
    rules = settings_of(no_restart_exit_codes=codes)
    assert RendezvousConfig("J", no_restart_exit_codes=codes).no_restart_exit_codes == codes
    decode_to_coordinator(encode(m.Attach("n", "host", "life", 1, rules)))


@pytest.mark.parametrize("address", ["a b", "x" * 300, "", "127.0.0.1\n"])
def test_a_program_is_refused_an_address_that_no_message_may_have(address: str) -> None:
    with pytest.raises(UsageError, match="--local-addr"):
        RendezvousConfig(run_id="J", local_addr=address)


@pytest.mark.parametrize("codes", [(0,), (256,), (1,) * 256], ids=["0", "256", "too many"])
def test_a_program_is_refused_exit_codes_that_no_message_may_have(codes: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="--no-restart-on"):
        RendezvousConfig("J", no_restart_exit_codes=codes)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\udcffb", "", ".local", "node7.cluster"])
def test_a_machine_may_be_called_anything(name: str) -> None:
    hello = m.Attach("", host_name_of(name), "life", 1, RULES)
    assert decode_to_coordinator(encode(hello)) == hello


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert claims.settings_refused(RULES) == ""
    assert "min_nodes=3 is more than" in claims.settings_refused(SharedSettings("J", 3, 2))
    assert "fixed ranks" in claims.settings_refused(SharedSettings("J", 1, 2, static=True))


def test_what_an_honest_node_tells_fits_whatever_its_workers_said() -> None:
    """A traceback of a megabyte, a step below zero, a hundred failures at once."""
    wild = failure(
        message="m" * 100_000,
        detail=ESCAPES * 10_000,
        reason="timer '\x1b\n' expired " + "r" * 5000,
        wall_time=1e300,
        age_s=NAN,
        code=2**70,
    )
    stamp = Stamp(1, 3)
    for report in (
        m.Detailed(stamp, (wild,) * 1000),
        m.Drain(f"notice:\n{'w' * 5000}", 15, False, 1e12),
        m.NotEnrolled(stamp, ESCAPES * 100),
        m.StacksCollected(stamp, 1, Behind(wild, -(2**63), 1.0), -7),
    ):
        payload = encode(m.Numbered(1, fitting(report)))
        assert len(payload) <= MAX_MESSAGE_BYTES
        decode_to_coordinator(payload)


def test_what_fits_already_stays_as_it_is() -> None:
    report = m.Failed(Stamp(1, 3), (failure(message="boom", detail="a\nb"),))
    assert fitting(report) == report


class Person(Liar):
    """Asks, and keeps what it is answered."""

    def gathered(self) -> list[Gathered]:
        pieces = [x.piece for x in self.heard if isinstance(x, m.Answer)]
        return [msgspec.json.decode(piece, type=Gathered) for piece in pieces]


def asked_for(scene: Scene, node: Liar, question: m.Ask) -> tuple[Person, int]:
    """A person asks, all other nodes say that they have nothing, and this one was asked."""
    person = Person(scene, "person")
    person.say(question)
    scene.said()
    (number,) = (x.number for x in node.heard if isinstance(x, m.Collect))
    for other in scene.nodes:
        other.say(m.Collected(number, is_last=True))
    scene.said()
    return person, number


async def test_V6_a_node_tells_of_its_own_workers_and_only_when_it_is_told_to() -> None:
    with playing() as scene:
        liar, assigned = joined(scene)
        base, round_ = assigned.assignment.base_rank, assigned.stamp.round
        person, number = asked_for(scene, liar, m.Ask(Subject.STACKS))

        def says(
            *told: WorkerAnswer, number: int = number, round: int = round_, last: bool = False
        ) -> None:
            liar.say(m.Collected(number, round, told, last))
            scene.said()

        says(WorkerAnswer(0, "unwanted"))
        says(WorkerAnswer(0, "of nothing"), number=77)
        assert person.gathered() == []
        says()
        assert sum(isinstance(x, m.CollectMore) for x in liar.heard) == 1
        says(
            WorkerAnswer(0, "a"),
            WorkerAnswer(1, ESCAPES),
            WorkerAnswer(2, "of another node"),
            WorkerAnswer(7, "of nobody"),
        )
        says(WorkerAnswer(0, "more"))
        says()
        says(WorkerAnswer(0, "of another round"), round=round_ + 1)
        says(last=True)
        piece, end = person.gathered()
        assert [(told.rank, told.text) for told in piece.told] == [(base, "a"), (base + 1, ESCAPES)]
        assert (list(end.told), end.missing) == ([], {})
        assert [x.is_last for x in person.heard if isinstance(x, m.Answer)] == [False, True]


async def test_V6_so_many_pieces_are_under_way_and_no_more_until_the_person_has_taken_one() -> None:
    with playing() as scene:
        liar, assigned = joined(scene)
        round_ = assigned.stamp.round
        person, number = asked_for(scene, liar, m.Ask(Subject.LOGS, follow=True))
        for _ in range(2 * PIECES_IN_FLIGHT):
            liar.say(m.Collected(number))
            scene.said()
            liar.say(m.Collected(number, round_, (WorkerAnswer(0, "line\n"),)))
            scene.said()
        assert len(person.gathered()) == PIECES_IN_FLIGHT
        for _ in range(PIECES_IN_FLIGHT + 100):
            person.say(m.Ask(Subject.MORE))
        scene.said()
        for _ in range(2 * PIECES_IN_FLIGHT):
            liar.say(m.Collected(number, round_, (WorkerAnswer(0, "line\n"),)))
            scene.said()
            liar.say(m.Collected(number))
            scene.said()
        assert len(person.gathered()) == 2 * PIECES_IN_FLIGHT
        person.wire.close()
        scene.said()
        assert liar.heard[-1] == m.CollectMore(number, is_wanted=False)


async def test_a_node_whose_connection_breaks_is_named() -> None:
    with playing() as scene:
        liar = member(scene)
        person, _ = asked_for(scene, liar, m.Ask(Subject.STACKS))
        assert person.gathered() == []
        liar.wire.close()
        scene.said()
        (end,) = person.gathered()
        assert end.missing == {"zz": "its connection broke"}


async def test_a_node_of_an_older_version_is_named_and_not_asked() -> None:
    with playing() as scene:
        liar = member(scene)
        scene.servers[-1].version = 2
        person = Person(scene, "person")
        person.say(m.Ask(Subject.STACKS, nodes=("zz",)))
        scene.said()
        (end,) = person.gathered()
        assert end.missing == {"zz": "it runs an older version of Rallypoint"}
        assert not any(isinstance(x, m.Collect) for x in liar.heard)


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**32))
def test_no_message_of_one_node_stops_another_or_prints_what_it_must_not(seed: int) -> None:
    converse(Random(seed).randbytes(300))


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300))
def test_the_same_from_few_choices_which_shrink(data: bytes) -> None:
    converse(data)
