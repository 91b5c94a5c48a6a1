"""What a person is told while nothing seems to happen."""

from __future__ import annotations

import pytest

from rallypoint.agent.status import waiting_for
from rallypoint.core.model import JobStatus, SharedSettings, Stamp
from rallypoint.core.node.machine import NodePhase, NodeSettings, WorkersState

SETTINGS = SharedSettings("job")


@pytest.mark.parametrize(
    ("phase", "imports", "what"),
    [
        (NodePhase.RUNNING, False, ""),
        (NodePhase.RUNNING, True, "the preloaded modules"),
        (NodePhase.STOPPING, True, "the workers to stop"),
        (NodePhase.FINISHED, False, "the workers of the other nodes to finish"),
        (NodePhase.IDLE, False, "the coordinator"),
    ],
)
def test_what_an_agent_waits_for(phase: NodePhase, imports: bool, what: str) -> None:
    state = WorkersState(NodeSettings(1, 5.0, 5.0, ()), phase)
    assert waiting_for(state, None, SETTINGS, imports=imports) == what


@pytest.mark.parametrize(
    ("took_part_in", "what"), [(3, "the next round"), (2, "a place (standing by)")]
)
def test_a_node_whose_round_has_ended_waits_for_the_next_one_and_does_not_stand_by(
    took_part_in: int, what: str
) -> None:
    state = WorkersState(NodeSettings(1, 5.0, 5.0, ()), stamp=Stamp(1, took_part_in))
    last_told = JobStatus("active", 3, 0, 0, 0, 1, 2, 2, 0)
    assert waiting_for(state, last_told, SETTINGS) == what


@pytest.mark.parametrize(
    ("told", "nodes", "what"),
    [
        (JobStatus("forming", 0, 0, 0, 0, 0, 0, 0, 0), 2, "1 more node (1 of 2 joined)"),
        (JobStatus("forming", 1, 0, 1, 0, 0, 0, 0, 0), 1, "the next round"),
        (JobStatus("forming", 1, 0, 2, 0, 0, 0, 0, 0), 2, "1 node to stop (1 joined)"),
        (JobStatus("forming", 1, 1, 1, 0, 0, 0, 0, 0), 2, "1 node to stop (1 joined)"),
        (JobStatus("forming", 1, 0, 1, 1, 0, 0, 0, 0), 2, "1 node to stop (0 joined)"),
    ],
)
def test_a_node_that_has_joined_or_stopped_counts_itself_though_the_last_answer_is_older(
    told: JobStatus, nodes: int, what: str
) -> None:
    settings = SharedSettings("job", nodes, nodes)
    assert waiting_for(WorkersState(NodeSettings(1, 5.0, 5.0, ())), told, settings) == what


def test_R3_a_node_that_is_held_back_says_so_while_it_waits() -> None:
    state = WorkersState(NodeSettings(1, 5.0, 5.0, ()))
    told = JobStatus("active", 3, 0, 0, 1, 0, 2, 2, 0, "held back for 120 s")
    assert waiting_for(state, told, SETTINGS) == "the next round; this node is held back for 120 s"


def test_R1_a_person_is_told_that_the_workers_do_not_fit_yet() -> None:
    settings = SharedSettings("job", 1, 4, world_multiple_of=16)
    told = JobStatus("forming", 3, 3, 0, 0, 0, 0, 0, 0)
    what = waiting_for(WorkersState(NodeSettings(1, 5.0, 5.0, ())), told, settings)
    assert what == "enough nodes for a multiple of 16 workers (3 nodes joined)"


def test_L5_a_node_says_whom_the_new_leader_waits_for_how_long_and_why() -> None:
    awaits = "group rank 2 of round 3, where workers may run until its lease is over, 18 s at most"
    told = JobStatus("forming", 4, 0, 0, 0, 0, 0, 0, 0, awaits=awaits)
    assert waiting_for(WorkersState(NodeSettings(1, 5.0, 5.0, ())), told, SETTINGS) == awaits
