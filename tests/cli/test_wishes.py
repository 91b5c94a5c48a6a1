"""`rallypoint checkpoint`, `restart` and `cancel`, on jobs of real workers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.harness.alone import can_be_alone, namespace
from tests.harness.cluster import AgentProcess, Cluster, at_a_terminal, free_port, wait_until
from tests.harness.commands import LIMIT_S, LOOKS, RALLYPOINT, ask, start
from tests.harness.leading_agents import leader_of
from tests.harness.limits import patience
from tests.harness.programs import run_program

SAVES = """
from rallypoint import worker
while not worker.checkpoint_requested():
    time.sleep(0.01)
assert not worker.should_restart_at_checkpoint() and not worker.drain_requested()
assert worker.checkpoint_saved(7) is False
assert not worker.checkpoint_requested()
"""
LISTENS = "from rallypoint import worker; worker.checkpoint_requested()"
ONLY_FOR_RESTARTS = """
from rallypoint import worker
assert not worker.should_restart_at_checkpoint() and not worker.drain_requested()
tell(listens=True)
"""


@pytest.mark.parametrize("serves", [False, True], ids=["embedded", "serve"])
def test_V4_a_job_saves_restarts_and_ends_as_a_person_wants(cluster: Cluster, serves: bool) -> None:
    if serves:
        cluster.serve()
    a, b = cluster.running("a", "b", hosts=None if serves else True, max_restarts=1)
    nobody = ask(cluster, "checkpoint")
    assert nobody.returncode == 1
    assert nobody.stdout.startswith("no worker checks for checkpoint requests: call rallypoint.")
    cluster.order(LISTENS, round=0)
    cluster.order(SAVES, round=0)
    done = ask(cluster, "checkpoint")
    while done.stdout.startswith("no worker checks"):  # Neither has begun to ask yet.
        done = ask(cluster, "checkpoint")
    assert done.stdout.startswith("the workers of "), done.stderr
    assert done.returncode == 0
    anew = ask(cluster, "restart")
    assert anew.stdout == "round 1 has begun: 2 nodes, 2 workers\n", anew.stderr
    workers = cluster.wait_workers(2, round=1)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    a.wait_event("round_ended", "a person asked for a restart (rallypoint restart)", round=0)
    over = ask(cluster, "cancel")
    assert over.returncode == 0
    assert over.stdout == "the job was cancelled: a person cancelled it (rallypoint cancel)\n"
    assert [a.wait_exit(), b.wait_exit()] == [130, 130]
    assert a.verdict["outcome"] == "cancelled"


def test_V4_a_person_is_answered_soon_where_workers_only_ask_whether_the_job_re_forms(
    cluster: Cluster,
) -> None:
    """Nobody waits for a checkpoint that they never save; once they ask for it, they are waited
    for."""
    [a] = cluster.running("a", nnodes="1", hosts=None)
    cluster.order(ONLY_FOR_RESTARTS, round=0)
    wait_until(lambda: any('"listens": true' in line for line in a.stdout_lines), "the question")
    refused = ask(cluster, "checkpoint")
    assert refused.returncode == 1
    assert "should_restart_at_checkpoint() are for other requests" in refused.stdout
    cluster.order(SAVES, round=0)
    done = ask(cluster, "checkpoint")
    while done.stdout.startswith("no worker checks"):
        done = ask(cluster, "checkpoint")
    assert done.stdout == "the workers of 1 node have saved a checkpoint\n", done.stderr
    cluster.end_well(a)


def test_a_wish_that_can_not_be_granted_is_one_line(cluster: Cluster) -> None:
    a = cluster.agent("a", nnodes="2")
    a.wait_event("waiting", "more node")
    refused = [ask(cluster, name) for name in ("checkpoint", "restart")]
    assert [one.returncode for one in refused] == [2, 2]
    for one in refused:
        assert "no workers run now: the job waits for" in one.stderr
        assert len(one.stderr.splitlines()) == 1
    assert ask(cluster, "cancel").returncode == 0
    assert a.wait_exit() == 130
    cluster.options |= {"rdzv_endpoint": f"127.0.0.1:{free_port()}"}
    gone = ask(cluster, "restart")
    assert gone.returncode == 75
    assert len(gone.stderr.splitlines()) == 1


@pytest.fixture
def only_job(cluster: Cluster) -> Iterator[tuple[AgentProcess, tuple[str, ...]]]:
    """A node whose job is the only one that a command with this prefix can find and cancel."""
    if not can_be_alone():
        pytest.skip("PID namespaces need root, and a kernel that has them")
    with namespace() as prefix:
        [a] = cluster.running("a", nnodes="1", hosts=None, prefix=prefix)
        yield a, prefix


def test_V4_cancel_without_a_word_names_the_job_that_it_found(
    cluster: Cluster, only_job: tuple[AgentProcess, tuple[str, ...]]
) -> None:
    a, prefix = only_job
    over = run_program([*prefix, *RALLYPOINT, "cancel"], env=cluster.environ())
    where = f"127.0.0.1:{cluster.port}"
    said = f"rallypoint: cancel job job at {where}, the only job of yours on this machine\n"
    assert over.stderr.replace("'", "") == said
    assert over.returncode == 0
    assert a.wait_exit() == 130


def test_V4_at_a_terminal_cancel_asks_whether_the_job_that_it_found_is_meant(
    cluster: Cluster, only_job: tuple[AgentProcess, tuple[str, ...]]
) -> None:
    a, prefix = only_job
    for answer, code in (b"\n", 1), (b"y\n", 0):
        ended, seen = at_a_terminal(cluster, [*prefix, *RALLYPOINT, "cancel"], answer)
        assert ended == code, seen
        assert f"at 127.0.0.1:{cluster.port}, the only job of yours on this machine? [y/N]" in seen
        assert code == 0 or a.process.poll() is None
    assert a.wait_exit() == 130


DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def test_V4_L5_a_restart_is_made_once_when_the_node_that_leads_is_killed_meanwhile(
    cluster: Cluster,
) -> None:
    """Its answer comes from the node that takes over."""
    jobs = cluster.folder / "jobs"
    jobs.mkdir(mode=0o700)
    cluster.options |= {"rdzv_backend": "file", "rdzv_endpoint": str(jobs)}
    cluster.options |= {"local_addr": "127.0.0.1", "nnodes": "1:2", "restart_grace": 600}
    agents = cluster.running("a", "b", hosts=None)
    leader = leader_of(*agents)
    (other,) = (one for one in agents if one is not leader)
    cluster.order(DEAF, round=0)
    restart = start(cluster, "restart", stdout=subprocess.PIPE)
    leader.wait_event("round_ended", "a person asked for a restart")
    leader.kill()
    other.wait_event("taken_over")
    for worker in cluster.workers(0):
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
    out, said = restart.communicate(timeout=patience(LIMIT_S))
    assert (restart.returncode, said) == (0, LOOKS)
    assert out == "round 1 has begun: 1 node, 1 worker\n"
    cluster.wait_workers(1, round=1)
    cluster.end_well(other)
    ends = [event.message for event in other.events if event.name == "round_ended"]
    assert not any("a person asked for a restart" in text for text in ends[1:]), ends
