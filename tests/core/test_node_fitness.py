"""What a waiting node does when it is asked to prove that it can start workers: decided without
starting any."""

from __future__ import annotations

import errno

import pytest
from tests.harness.narrowed import of_kind
from tests.harness.node_machine import RULES, TERM, Node, assigned, stamp

from rallypoint.cli.verdict import of_finish
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.core.messages import Failed, Prove, Proved
from rallypoint.core.model import Lacking
from rallypoint.core.node import events as e
from rallypoint.core.node.machine import NodePhase, NodeSettings
from rallypoint.errors import (
    MACHINE_ERRNOS,
    InfrastructureError,
    RallypointError,
    Shortage,
    UsageError,
    during,
)

FULL = Lacking("write to /mnt/disk", errno.ENOSPC)
CANT_WRITE = "can't write to /mnt/disk: No space left on device"
FIX = "free space there, or set TMPDIR or --log-dir"


def asked(number: int = 1, round_: int = 4) -> Prove:
    return Prove(stamp(round_), number, "10.0.0.1", 29500, 10.0)


def tried(number: int = 1, **what: object) -> e.Tried:
    return e.Tried(stamp(4), number, **what)  # type: ignore[arg-type]


def config() -> AgentConfig:
    return AgentConfig(rendezvous=RendezvousConfig("job"), workers=WorkerConfig(argv=("train",)))


def test_A10_a_waiting_node_tries_to_start_workers_and_tells_that_it_can() -> None:
    node = Node()
    assert node.step(asked()) == [e.TryToStart(asked())]
    assert node.step(tried()) == [e.ReportNow(Proved(stamp(4), 1))]
    assert node.state.phase is NodePhase.IDLE, "it waits for its place"
    assert node.step(assigned(5)), "and gets one"


def test_A10_a_node_that_cant_start_workers_tells_why_and_leaves() -> None:
    node = Node()
    node.step(asked())
    report, finish = node.step(tried(unfit=CANT_WRITE, lacking=FULL, fix=FIX))
    assert report == e.ReportNow(Proved(stamp(4), 1, CANT_WRITE, FULL)), "before it leaves"
    assert isinstance(finish, e.Finish)
    assert finish.kind is e.FinishKind.UNFIT
    assert finish.text == f"this node can't start workers: {CANT_WRITE}: {FIX}"
    assert node.state.phase is NodePhase.DONE
    assert of_finish(config().stop, finish, 0.0) == 75, "a scheduler may start it elsewhere"


def test_A10_a_node_whose_own_directory_is_wrong_leaves_before_a_round_ends_for_it() -> None:
    node = Node()
    node.step(asked())
    report, finish = node.step(tried(unfit="can't write to /logs: Permission denied"))
    assert isinstance(report, e.ReportNow)
    assert isinstance(finish, e.Finish)
    assert finish.kind is e.FinishKind.UNFIT
    assert of_finish(config().stop, finish, 0.0) == 75, "the job runs elsewhere with these options"


def test_A10_a_node_that_does_not_reach_the_store_stays() -> None:
    node = Node()
    node.step(asked())
    assert node.step(tried(unreached="no route")) == [
        e.ReportNow(Proved(stamp(4), 1, unreached="no route"))
    ]
    assert node.said == ["store_unreached"]
    assert node.step(asked(2)) == [e.TryToStart(asked(2))], "it may be asked again"


def test_A10_a_later_question_makes_the_earlier_one_void() -> None:
    node = Node()
    node.step(asked(1))
    assert node.step(asked(1)) == [], "said again by a coordinator that has taken over"
    assert node.step(asked(2)) == [e.TryToStart(asked(2))]
    assert node.step(tried(1, unfit=CANT_WRITE, lacking=FULL)) == []
    assert node.step(tried(2)) == [e.ReportNow(Proved(stamp(4), 2))]
    assert node.step(tried(2)) == [], "answered"


@pytest.mark.parametrize("phase", [phase for phase in NodePhase if phase is not NodePhase.IDLE])
def test_A10_only_a_node_that_waits_for_a_place_is_asked(phase: NodePhase) -> None:
    assert Node(phase).step(asked()) == []


def test_A10_a_question_is_void_once_the_node_has_a_place_or_leaves() -> None:
    placed, leaving, anew = Node(), Node(), Node()
    for node in (placed, leaving, anew):
        node.step(asked())
    placed.step(assigned(5))
    leaving.step(e.SignalCaught(TERM))
    assert anew.step(e.SessionOpened(resumed=False, replaced=True)) == [e.JoinRound()]
    for node in (placed, leaving, anew):
        assert node.step(tried(unfit=CANT_WRITE, lacking=FULL)) == []
    assert leaving.step(asked(2)) == []


def test_A10_the_coordinator_is_told_what_the_machine_lacks_and_no_option_is_to_blame() -> None:
    node = Node(NodePhase.RUNNING)
    error = during("fork", errno.EAGAIN, InfrastructureError("could not fork worker 0"))
    report, *_ = node.step(e.SpawnFailed(stamp(), error))
    assert isinstance(report, e.ReportNow)
    assert of_kind(Failed, report.message).lacking == Lacking("fork", errno.EAGAIN)
    assert of_kind(Failed, report.message).failures[0].code == 127, "as an older coordinator has it"
    assert node.step(e.WorkersGone(stamp())) == [e.JoinRound()], "the coordinator decides on it"


def test_A10_a_program_that_is_missing_is_the_jobs_own_fault() -> None:
    node = Node(NodePhase.RUNNING)
    error = during("exec", errno.ENOENT, UsageError("cannot run 'train'"))
    report, *_ = node.step(e.SpawnFailed(stamp(), error))
    assert isinstance(report, e.ReportNow)
    assert of_kind(Failed, report.message).lacking is None


@pytest.mark.parametrize("kind", [InfrastructureError, UsageError])
def test_A10_a_job_of_one_node_ends_by_what_its_machine_lacks(kind: type[RallypointError]) -> None:
    alone = NodeSettings(2, 25.0, 5.0, RULES.signals, is_alone=True)
    error = during("exec", errno.ENOMEM, kind("no memory"))
    assert Node(NodePhase.RUNNING, alone).step(e.SpawnFailed(stamp(), error)) == [
        e.GiveUpNode(error)
    ]


def test_A10_only_what_a_machine_lacks_is_a_shortage() -> None:
    for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG, None):
        assert during("exec", number, UsageError("x")).shortage is None
    for number in MACHINE_ERRNOS:
        assert during("exec", number, UsageError("x")).shortage == Shortage("exec", number)
