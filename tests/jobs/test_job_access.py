"""Who may take part in a real job (F8), and whether its nodes reach each other (F9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.cluster import Cluster


@pytest.mark.executed
def test_F8_the_first_node_makes_the_token_and_nobody_else_sees_it(cluster: Cluster) -> None:
    path = cluster.home / ".config" / "rallypoint" / "token"
    a = cluster.agent("a", nnodes=2)
    a.wait_event("waiting", "1 more node")
    b = cluster.agent("b", nnodes=2, env={"RALLYPOINT_TOKEN": path.read_text().strip()})
    workers = cluster.wait_workers(2)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    token = path.read_text().strip()
    assert len(token) >= 32
    for worker in workers:
        assert token not in str(worker.env)
        assert "RALLYPOINT_TOKEN" not in worker.env
        assert token not in Path(f"/proc/{worker.pid}/environ").read_text(errors="replace")
    assert not any(token in command for command in cluster.processes().values())
    cluster.end_well(a, b)
    for agent in (a, b):
        assert token not in "\n".join(agent.stdout_lines + agent.stderr_lines)


@pytest.mark.parametrize(
    ("hosts_with", "joins_with", "says"),
    [
        ({}, {"env": {"RALLYPOINT_TOKEN": "ab" * 32}}, "token"),
        ({}, {"insecure": True}, "token"),
        ({"insecure": True}, {}, "insecure"),
    ],
    ids=["wrong token", "no token", "insecure host"],
)
def test_F8_who_has_no_token_of_the_job_is_told_so_in_one_line(
    cluster: Cluster, hosts_with: dict[str, bool], joins_with: dict[str, bool], says: str
) -> None:
    cluster.make_token()
    a = cluster.agent("a", **hosts_with)  # type: ignore[arg-type]
    first = cluster.wait_workers(1)
    b = cluster.agent("b", **joins_with)  # type: ignore[arg-type]
    line = b.wait_only_line(2)
    assert line.startswith("rallypoint: ")
    assert says in line
    assert "rallypoint token" in line or "--insecure" in line
    (told,) = [event for event in a.events if event.name == "connection_closed"]
    assert told.message.startswith("closed the connection from 127.0.0.1:")
    assert says in told.message or "token" in told.message
    assert b.workers() == []
    cluster.end_well(a)
    assert cluster.workers() == first


def test_F8_without_a_token_a_node_says_how_to_get_one(cluster: Cluster, tmp_path: Path) -> None:
    """The host has nothing to tell: that node may get its token yet."""
    [a] = cluster.running("a", hosts=None, round=None)
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    conf = "last_call_timeout=0.3,host_timeout=1"
    b = cluster.agent("b", env={"HOME": str(empty)}, rdzv_conf=conf)
    line = b.wait_only_line(2)
    assert f"the coordinator at 127.0.0.1:{cluster.port} wants a token, and no token was" in line
    assert "give that node the token of the others" in line
    assert list(empty.iterdir()) == []
    cluster.end_well(a)
    assert not [event for event in a.events if event.name == "connection_closed"]


def test_F8_a_node_without_a_token_does_not_slip_into_an_insecure_job(cluster: Cluster) -> None:
    [a] = cluster.running("a", insecure=True, hosts=None, round=None)
    b = cluster.agent("b")
    line = b.wait_only_line(2)
    assert "the coordinator is running with --insecure and this node is not" in line
    assert b.workers() == []
    cluster.end_well(a)


def test_F8_a_joiner_waits_for_the_token_that_the_first_node_makes(cluster: Cluster) -> None:
    cluster.options |= {"nnodes": 2}
    b = cluster.agent("b", hosts=False)
    b.wait_event("meeting", "waiting for the coordinator at")
    assert list(cluster.home.iterdir()) == []
    a = cluster.agent("a", hosts=True)
    workers = cluster.wait_workers(2)
    assert {worker.node for worker in workers} == {"a", "b"}
    assert (cluster.home / ".config" / "rallypoint" / "token").is_file()
    cluster.end_well(a, b)


def test_F8_a_token_file_that_does_not_exist_is_told_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.make_token()
    mistyped = tmp_path / "tokem"
    for hosts in (True, False):
        a = cluster.agent("a", hosts=hosts, token_file=str(mistyped))
        line = a.wait_only_line(2)
        assert line.startswith(f"rallypoint: --token-file {mistyped}: there is no such file")
        assert f"`rallypoint token --token-file {mistyped}`" in line
        assert not mistyped.exists()
    assert cluster.workers() == []


def test_F8_insecure_jobs_need_no_token(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", round=None, insecure=True, nnodes=2)
    cluster.end_well(a, b)
    assert [path.name for path in cluster.home.iterdir()] == [".local"], "no token"
