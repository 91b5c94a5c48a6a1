"""Beside what holds a job up `status` has the next thing to type, or to change."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.broken_jobs import BROKEN, CULPRIT, NAN, broken, following, healthy, running
from tests.harness.watched_cluster import WatchedCluster

from rallypoint.cli.watch.status_text import LINES_MAX, command_lines, status_lines
from rallypoint.core.fitness import HeldBack
from rallypoint.core.model import SharedSettings

WHERE = "node-0:29400 --job train-7"
NEXT = {
    "worker exception": f"rallypoint events {WHERE}",
    "out of memory": f"give the container of node {CULPRIT} more memory",
    "node lost": "start the missing agent; a job with --nnodes 63:64 runs without it",
    "node silent": f"see whether the machine of node {CULPRIT} runs and is reached; it counts as "
    "lost in 6 s (--lease 15)",
    "one rank hangs": f"rallypoint stacks 169 {WHERE}",
    "missing at the start": "start the missing agent; a job with --nnodes 63:64 runs without it",
    "broken route": "see why the connection to the node of rank 0 fails: a firewall, a wrong "
    "address, or a network that they do not share (--local-addr)",
    "worker killed": "something outside the job killed it, most often for memory: look for 'Killed "
    f"process' in the kernel log of {CULPRIT} (dmesg -T)",
    "slow stop": f"rallypoint stacks {CULPRIT} {WHERE}",
    "log disk full": f"free space on {CULPRIT}: df -h, df -i",
    "disk full": f"free space on {CULPRIT}: df -h, df -i",
    "crash loop": "restarting has not helped 5 times: repair the program; --max-no-progress 3 ends "
    "a job that gets no further",
    "drain that does not end": f"rallypoint stacks {CULPRIT} {WHERE}",
}
ENDPOINT = "a-machine-with-a-long-name.cluster.example.org:29400 --job pretraining-of-the-70b-model"


@pytest.mark.parametrize("name", BROKEN)
def test_V1_the_next_step_is_in_the_first_lines(name: str) -> None:
    lines = broken(name).status(80)
    assert len(lines) <= LINES_MAX
    found = [line.replace(" \\ ", " ") for line in following(lines)]
    assert NEXT[name] in found


def test_a_healthy_job_needs_no_next_step() -> None:
    assert following(healthy().status()) == []


def test_what_was_read_from_a_file_has_no_command_to_type() -> None:
    assert following(status_lines(broken("one rank hangs").view, 80)) == []


@pytest.mark.parametrize("width", [72, 80, 120])
def test_a_command_is_never_cut_and_can_be_copied(width: int) -> None:
    command = f"rallypoint stacks 169 {ENDPOINT}"
    lines = command_lines(command, width - 14)
    assert max(map(len, lines)) <= width - 14
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert " ".join(line.removesuffix("\\").strip() for line in lines) == command


def test_while_a_round_stops_the_node_that_does_not_stop_can_be_looked_at() -> None:
    job = running()
    job.never_stops.add("node-12")
    job.fail_with(CULPRIT, NAN)
    job.wait(5)
    assert following(job.status()) == [
        f"rallypoint stacks node-12 {WHERE}",
        f"rallypoint logs 171 {WHERE}",
    ]


def test_a_job_without_known_steps_is_looked_at_by_its_stacks() -> None:
    job = WatchedCluster(SharedSettings("train-7", 2, 2))
    job.nodes(2)
    job.run_workers()
    job.wait(30)
    assert following(job.status()) == []
    job.wait(40)
    assert following(job.status()) == [f"rallypoint stacks {WHERE}"]


def test_a_machine_that_is_held_back_has_a_reason_a_countdown_and_a_way_back() -> None:
    held = HeldBack(CULPRIT, "", "it was lost 3 times within ten minutes", 40.0, 80.0)
    view = replace(healthy().view, held_back=(held,))
    lines = status_lines(view, 100, where=WHERE)
    reason = "for 1 min 20 s more: it was lost 3 times within ten minutes"
    assert f"  held back   {CULPRIT}: {reason}" in lines
    assert following(lines) == [f"rallypoint nodes allow {CULPRIT} {WHERE}"]


def test_a_wait_that_has_a_limit_counts_down() -> None:
    job = BROKEN["drain that does not end"][0]()
    assert "for 8 s more at most" in "\n".join(job.status())
    job.wait(3)
    assert "for 5 s more at most" in "\n".join(job.status())


def test_many_silent_nodes_have_one_line_with_their_names() -> None:
    view = healthy().view
    names = {f"node-{number}" for number in range(16, 24)}
    nodes = [replace(one, silent_s=9.0) if one.node in names else one for one in view.nodes]
    lines = status_lines(replace(view, nodes=tuple(nodes)), 100)
    assert "  silent      nodes node-[16-23]: nothing heard for 9 s" in lines


def test_the_first_start_of_a_job_is_no_restart() -> None:
    job = WatchedCluster(SharedSettings("train-7", 2, 2, max_restarts=3))
    job.start("node-0")
    job.start("node-1").unreachable = {"node-0"}
    while job.view.rounds == 0:
        assert job.view.state == "waiting"
        job.deliver(job.moves()[0])
    assert job.view.state == "starting"
