"""What a person is told of `--progress-pattern`, and by whom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.job_machine import A, B
from tests.harness.node_machine import Node, assigned
from tests.harness.watched import WatchedJob

from rallypoint.agent.output_files import PatternLines
from rallypoint.agent.progress_report import ProgressReport
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.config import (
    AgentConfig,
    OutputConfig,
    RendezvousConfig,
    WorkerConfig,
)
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import NodeRef
from rallypoint.core.node import machine
from rallypoint.core.node.machine import NodePhase
from rallypoint.core.watch.history import JobHistory
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.process.relay.messages import NothingMatched, PatternOff, PatternReport

STEP = r"step (?P<step>\d+)"


def told(
    pattern: str, report: PatternReport, node: int = 0, workers: int = 2
) -> tuple[list[str], list[str]]:
    """What this node of two says itself, and what its heartbeats tell the coordinator; each node
    has so many workers."""
    dispatcher, said = EventDispatcher(), list[Record]()
    event = assigned()
    place = replace(event.assignment, group_rank=node, base_rank=workers * node)
    event = replace(event, assignment=place)
    dispatcher.stepped(event, machine.step(Node(NodePhase.IDLE).state, event))
    config = AgentConfig(
        rendezvous=RendezvousConfig("job", 1, 2),
        workers=WorkerConfig(argv=("x",), count=workers),
        output=OutputConfig(progress_pattern=pattern),
    )
    heartbeats = ProgressReport(config, dispatcher)
    before = heartbeats.news(event.stamp, 1)
    PatternLines(config, dispatcher, said.append)(report)
    news = heartbeats.news(event.stamp, 1)
    assert before is not None
    assert not before.unmatched
    assert heartbeats.news(event.stamp, 1) is None, "each connection is told once"
    return [record.text for record in said], [] if news is None else [news.unmatched]


def test_that_nothing_matches_is_told_with_the_newest_line() -> None:
    def unmatched(line: str, pattern: str = STEP, workers: int = 2) -> str:
        said, (text,) = told(pattern, NothingMatched(line), workers=workers)
        assert said == [], "the coordinator knows of all nodes"
        return text

    assert unmatched("  epoch 3, loss 0.5  ") == (
        r"step (?P<step>\d+) for 2 minutes; the newest of ranks 0-1: epoch 3, loss 0.5"
    )
    assert unmatched("", workers=1).endswith(" for 2 minutes; rank 0 wrote nothing")
    assert unmatched("x" * 500).endswith("x" * 197 + "...")
    assert unmatched("a\x1b[2Jb").endswith(r"the newest of ranks 0-1: 'a\x1b[2Jb'")
    assert unmatched("y", pattern=f"(?P<step>{'x' * 500})").endswith(
        "x... for 2 minutes; the newest of ranks 0-1: y"
    )


@pytest.mark.parametrize(
    ("pattern", "node"), [("hf-trainer", 0), ("(?P<step>x)", 0), ("megatron", 1)]
)
def test_only_the_node_tells_whose_workers_should_have_printed_it(pattern: str, node: int) -> None:
    numbers = [len(told(pattern, NothingMatched("x"), each)[1]) for each in (0, 1)]
    assert numbers == [int(each == node) for each in (0, 1)]


def test_each_node_says_that_it_has_switched_the_pattern_off() -> None:
    for node in (0, 1):
        said, heartbeats = told("(?P<step>(x+)+)y", PatternOff("xxx"), node)
        assert heartbeats == []
        assert said == [
            (
                "--progress-pattern (?P<step>(x+)+)y takes more than 10 ms for one line, and is "
                "switched off: no more progress is read from the output; the line: xxx"
            )
        ]


def runs() -> WatchedJob:
    """A job of two nodes whose workers run since second 1."""
    job = WatchedJob()
    job.join(A, B)
    job.start(A, B)
    job.spawn(A, B, at=1.0)
    return job


def tells(job: WatchedJob, ref: NodeRef, history: JobHistory | None = None) -> list[str]:
    """What a person is told when this node tells that nothing has matched."""
    progress = NodeProgress(
        job.stamp, 120.0, unmatched="PATTERN for 2 minutes; rank 0 wrote nothing"
    )
    record = (history or job.history).progressed(job.job, ref.node_id, progress, job.at)
    return [] if record is None else [f"{record.name}: {record.text}"]


def test_the_job_says_once_that_nothing_has_ever_matched() -> None:
    job = runs()
    job.at = 121.0
    (said,) = tells(job, A)
    assert said == (
        "pattern_unmatched: no line of any worker has matched --progress-pattern PATTERN for 2 "
        "minutes; rank 0 wrote nothing"
    )
    assert tells(job, A) == []
    job.lose(B, heard_at=130.0)
    job.stop(A, at=131.0)
    job.join(B)
    job.start(A, B)
    job.spawn(A, B, at=132.0)
    assert tells(job, A) == [], "another round"


def test_the_job_says_nothing_if_any_rank_of_it_has_told_of_a_step() -> None:
    job = runs()
    job.told(B, 0, at=60.0)
    job.at = 121.0
    assert tells(job, A) == []


@pytest.mark.parametrize("has_told", [False, True])
def test_the_next_coordinator_says_it_if_the_one_before_has_not(has_told: bool) -> None:
    job = runs()
    job.at = 121.0
    if has_told:
        tells(job, A)
    before = job.history.carried(job.at)
    after = JobHistory(job.at, lambda at: at)
    after.take_over(0, job.at, is_active=True)
    after.carry_on(before, job.at)
    assert len(tells(job, A, after)) == int(not has_told)
