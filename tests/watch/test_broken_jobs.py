"""A person who is called at night finds the culprit in the first lines of `rallypoint status`: jobs
of 64 nodes, each broken in another way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.broken_jobs import BROKEN, CULPRIT, NODES, PAGES, broken, healthy
from tests.harness.finder import culprit_of
from tests.harness.watched_cluster import WatchedCluster

from rallypoint.cli.watch.status_text import LINES_MAX, status_lines
from rallypoint.core.model import SharedSettings


@pytest.mark.parametrize("name", BROKEN)
def test_V1_the_culprit_and_the_reason_are_in_the_first_lines(name: str) -> None:
    reason = BROKEN[name][1]
    lines = broken(name).status()
    assert len(lines) <= LINES_MAX
    assert culprit_of(lines) == CULPRIT
    assert reason in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_person_sees_is_what_was_reviewed(name: str) -> None:
    """`python -m tests.harness.broken_jobs --rewrite` writes the pages."""
    page = PAGES / f"{name.replace(' ', '-')}.txt"
    assert "\n".join(broken(name).status()) + "\n" == page.read_text()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(width: int) -> None:
    for name, (_, reason) in BROKEN.items():
        view = broken(name).view
        lines = status_lines(view, width)
        assert max(map(len, lines)) <= width
        assert len(lines) <= LINES_MAX
        assert reason in " ".join(" ".join(lines).split())


def test_a_healthy_job_names_nobody() -> None:
    job = healthy()
    assert culprit_of(job.status()) is None
    assert job.view.state == "running"
    assert job.view.world_nodes == NODES


def test_lines_that_do_not_fit_are_counted() -> None:
    view = broken("worker exception").view
    assert status_lines(view, 80, 5)[-1] == "  ... 10 more lines: --all"


def stuck(steps: dict[str, int]) -> list[str]:
    """The healthy job, of which no worker has made progress for a minute; some are behind."""
    view = healthy().view
    nodes = [replace(n, quiet_s=60.0, step=steps.get(n.node, n.step)) for n in view.nodes]
    return status_lines(replace(view, nodes=tuple(nodes)), 200, where="")


def test_where_all_workers_are_at_one_step_nobody_is_called_behind() -> None:
    lines = stuck({})
    assert culprit_of(lines) is None
    assert lines[1] == ("  behind      nobody: all workers have been at step 20 for 1 min 0 s")
    assert lines[2] == "  next        rallypoint stacks"


def test_all_nodes_that_are_equally_far_behind_are_named() -> None:
    (line,) = [one for one in stuck({"node-7": 18, "node-8": 18, "node-9": 18}) if "behind" in one]
    assert line == (
        "  behind      rank 57 (node node-7) and nodes node-[8-9]: no progress for 1 min 0 s, "
        "at step 18, others at 20"
    )


def test_where_more_nodes_are_missing_than_names_tell_it_says_so() -> None:
    job = WatchedCluster(SharedSettings("train-7", NODES, NODES))
    job.nodes(40, without=(21,))
    assert job.view.waits_for == (
        "25 more nodes: 39 of 64 nodes are here; by the names of the others, among them: node-21"
    )


def test_V1_why_a_node_does_not_reach_rank_0_is_said_while_others_still_try() -> None:
    job = WatchedCluster(SharedSettings("train-7", 3, 3))
    job.never_enrols.add("node-2")
    job.nodes(3, without=(1,))
    job.start("node-1", 8).unreachable = {"node-0"}
    job.settle()
    assert job.status()[1] == (
        "  waits for   node node-1: it does not reach the store of rank 0: no answer"
    )
