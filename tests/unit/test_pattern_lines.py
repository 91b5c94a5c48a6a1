"""What a person is told of `--progress-pattern`, and by which node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.groups import Node, assigned

from rallypoint.agent.output_files import PatternLines
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.config import AgentConfig, OutputConfig, RendezvousConfig, WorkerConfig
from rallypoint.core import group
from rallypoint.core.event_kinds import Record
from rallypoint.core.group import Phase
from rallypoint.process.relay.messages import NothingMatched, PatternOff, PatternReport


def lines(pattern: str, report: PatternReport, node: int = 0, workers: int = 2) -> list[str]:
    """What this node of two says; each has so many workers."""
    dispatcher, said = EventDispatcher(), list[Record]()
    event = assigned()
    place = replace(event.assignment, group_rank=node, base_rank=workers * node)
    event = replace(event, assignment=place)
    dispatcher.stepped(event, group.step(Node(Phase.IDLE).state, event))
    config = AgentConfig(
        rendezvous=RendezvousConfig("job", 1, 2),
        workers=WorkerConfig(argv=("x",), count=workers),
        output=OutputConfig(progress_pattern=pattern),
    )
    PatternLines(config, dispatcher, said.append)(report)
    return [record.text for record in said]


def test_that_nothing_matches_is_said_with_the_newest_line() -> None:
    pattern = r"step (?P<step>\d+)"
    assert lines(pattern, NothingMatched("  epoch 3, loss 0.5  ")) == [
        (
            r"--progress-pattern step (?P<step>\d+): no line of ranks 0-1 has matched for 2 "
            "minutes; the newest: epoch 3, loss 0.5"
        )
    ]
    (silent,) = lines(pattern, NothingMatched(""), workers=1)
    assert silent.endswith("no line of rank 0 has matched for 2 minutes; there was no output")
    (long,) = lines(pattern, NothingMatched("x" * 500))
    assert long.endswith("x" * 197 + "...")
    (odd,) = lines(pattern, NothingMatched("a\x1b[2Jb"))
    assert odd.endswith(r"the newest: 'a\x1b[2Jb'")


@pytest.mark.parametrize(
    ("pattern", "node"), [("hf-trainer", 0), ("(?P<step>x)", 0), ("megatron", 1)]
)
def test_only_the_node_says_so_whose_workers_should_have_printed_it(
    pattern: str, node: int
) -> None:
    said = [len(lines(pattern, NothingMatched("x"), each)) for each in (0, 1)]
    assert said == [int(each == node) for each in (0, 1)]


def test_each_node_says_that_it_has_switched_the_pattern_off() -> None:
    for node in (0, 1):
        assert lines("(?P<step>(x+)+)y", PatternOff("xxx"), node) == [
            (
                "--progress-pattern (?P<step>(x+)+)y takes more than 10 ms for one line, and is "
                "switched off: no more progress is read from the output; the line: xxx"
            )
        ]
