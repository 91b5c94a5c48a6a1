"""--preempt-notice: a node learns that it is about to go, and leaves as if it got SIGTERM."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster
from tests.harness.one_agent import agent, eventually
from tests.harness.proc import is_alive

SLEEPS = "import os, time\ntell('pid', os.getpid())\ntime.sleep(600)"


@pytest.mark.parametrize("kind", ["file", "command"])
def test_A5_a_notice_drains_this_node(cluster: Cluster, kind: str, tmp_path: Path) -> None:
    notice = tmp_path / "the end is near"
    spec = str(notice) if kind == "file" else f"cmd:until test -e '{notice}'; do sleep 0.1; done"
    a, b = cluster.running("a", "b", round=None)
    c = cluster.agent("c", preempt_notice=spec)
    c.wait_event("waiting")
    notice.touch()
    assert c.wait_exit() == 143, "it stood by"
    notice.unlink()
    cluster.end_well(a, b)
    reason = c.verdict["reason"]
    assert str(notice) in reason
    assert reason.startswith("this node left the job: the notice")


def test_A5_the_others_go_on_after_a_notice(cluster: Cluster, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    [a] = cluster.agents("a")
    b = cluster.agent("b", hosts=False, preempt_notice=str(notice))
    cluster.wait_workers(2, round=0)
    notice.touch()
    assert b.wait_exit() == 143
    a.wait_event("round_ended", f"node b is leaving: the notice file {notice} exists", round=0)
    cluster.wait_workers(1, round=1)
    cluster.end_well(a)


def test_A5_a_command_is_asked_again_and_leaves_nothing(tmp_path: Path) -> None:
    """It looks once and says no; then it waits, and dies with the agent."""
    asked = tmp_path / "asked"
    command = f"cmd:echo $$ >> {asked}; test $(wc -l < {asked}) -lt 2 && exit 1; exec sleep 600"
    with agent(tmp_path, "--preempt-notice", command, program=SLEEPS) as run:
        run.wait_told("pid")
        eventually(lambda: asked.exists() and len(asked.read_text().split()) == 2, "two questions")
        second = int(asked.read_text().split()[1])
        assert is_alive(second)
        os.kill(run.pid, 15)
        assert run.wait() == 143
        assert not is_alive(second)
    assert "RALLYPOINT_TOKEN" not in run.err


def test_a_command_that_can_not_be_run_is_told_once(tmp_path: Path) -> None:
    with agent(tmp_path, "--preempt-notice=cmd:no-such-command-here", program=SLEEPS) as run:
        run.wait_told("pid")
        run.wait_said("--preempt-notice cmd:no-such-command-here: it exited with code 127")
        os.kill(run.pid, 15)
        assert run.wait() == 143


def test_A5_A7_a_node_leaves_after_a_checkpoint_before_its_time_is_over(cluster: Cluster) -> None:
    """Every node does at about the same time, and all say that the job is to be started again."""
    a, b = cluster.running("a", "b", stop_at=int(time.time()) + 63, stop_before=60)
    assert [a.wait_exit(), b.wait_exit()] == [75, 75]
    told = "leaving the job: its time is over (--stop-before)"
    assert told in a.said + b.said
