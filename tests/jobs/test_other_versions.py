"""Nodes and coordinators of different versions of Rallypoint in one job: the session protocol is
negotiated (R7), and a coordinator is replaced by one of another version while workers run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, wait_until
from tests.harness.commands import rallypoint
from tests.harness.leading_agents import candidate_of, cluster_of, leader_of, leads
from tests.harness.other_versions import (
    FIRST_CANDIDATE,
    FIRST_KEPT,
    LAST_OF_3,
    THIS,
    V0_1_0,
    environ_of,
)

NEXT, NEXT_BUT_ONE = "2-5", "5-6"
"""As this version is, if it spoke these versions of the protocol."""
HOLD_S, LEASE_S = 2, 6.0
TOGETHER = "last_call_timeout=600"
"""Both nodes are in the first round, however late one comes."""

pytestmark = [pytest.mark.executed, pytest.mark.fault]
"""Of `make fault`, but for a few: each takes about a second."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


@pytest.mark.parametrize(
    ("coordinator", "nodes"),
    [
        (V0_1_0, (THIS, THIS)),
        (THIS, (V0_1_0, V0_1_0)),
        pytest.param(THIS, (V0_1_0, THIS), marks=pytest.mark.quick),
        (NEXT, (V0_1_0, THIS)),
        (THIS, (NEXT, THIS)),
        (V0_1_0, (NEXT, THIS)),
        (NEXT, (NEXT, NEXT)),
        (LAST_OF_3, (LAST_OF_3, THIS)),
        pytest.param(THIS, (LAST_OF_3, THIS), marks=pytest.mark.quick),
    ],
)
def test_R7_nodes_and_coordinators_of_several_versions_share_a_job(
    tmp_path: Path, folder: Path, coordinator: str, nodes: tuple[str, str]
) -> None:
    """A failure, a drain and the end reach all of them."""
    with Cluster(tmp_path, nnodes="1:2", max_restarts=1, rdzv_conf=TOGETHER) as cluster:
        cluster.env = environ_of(coordinator, folder)
        cluster.serve()
        cluster.env = {}
        a, b = (
            cluster.agent(name, env=environ_of(version, folder))
            for name, version in zip("ab", nodes, strict=True)
        )
        cluster.wait_workers(2, round=0)
        cluster.order("sys.exit(3)", round=0, node="b")
        cluster.wait_workers(2, round=1)
        b.signal(signal.SIGTERM)
        assert b.wait_exit() == 143
        cluster.wait_workers(1, round=2)
        cluster.end_well(a)
        assert a.verdict["restarts"] == 1


@pytest.mark.parametrize(
    ("coordinator", "command"),
    [
        (V0_1_0, THIS),
        (LAST_OF_3, THIS),
        (THIS, V0_1_0),
        pytest.param(THIS, LAST_OF_3, marks=pytest.mark.quick),
    ],
)
def test_R7_A5_a_drain_is_understood_by_coordinators_and_commands_of_other_versions(
    tmp_path: Path, folder: Path, coordinator: str, command: str
) -> None:
    with Cluster(tmp_path, nnodes="1:2", rdzv_conf=TOGETHER) as cluster:
        cluster.env = environ_of(coordinator, folder)
        cluster.serve()
        cluster.env = {}
        a, b = cluster.agent("a"), cluster.agent("b")
        cluster.wait_workers(2, round=0)
        where = ("--rdzv-endpoint", str(cluster.options["rdzv_endpoint"]), "--rdzv-id", "job")
        done = rallypoint(cluster, "drain", "b", *where, **environ_of(command, folder))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("node b was asked to leave\nnode b has left")
        assert b.wait_exit() == 143
        unknown = rallypoint(cluster, "drain", "b", *where, **environ_of(command, folder))
        assert unknown.returncode == 2
        assert "there is no node 'b' in the job; there are a" in unknown.stderr
        cluster.end_well(a)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(FIRST_KEPT, THIS, marks=pytest.mark.quick),
        (THIS, FIRST_KEPT),
        (LAST_OF_3, THIS),
        (THIS, LAST_OF_3),
    ],
)
def test_L5_a_coordinator_is_replaced_by_one_of_another_version_and_no_worker_notices(
    tmp_path: Path, folder: Path, old: str, new: str
) -> None:
    """To a newer version, and back; then a node of each version fails, which is counted on."""
    with Cluster(tmp_path, nnodes="2", lease=15, max_restarts=2) as cluster:
        cluster.env = environ_of(old, folder)
        first = cluster.serve("--data-dir", str(tmp_path / "jobs"))
        cluster.env = {}
        a, b = cluster.agent("a", env=environ_of(old, folder)), cluster.agent("b")
        cluster.wait_workers(2, round=0)
        cluster.order("sys.exit(3)", round=0, node="a")
        before = cluster.wait_workers(2, round=1)
        first.signal(signal.SIGTERM)
        assert first.wait_exit() == 143
        cluster.env = environ_of(new, folder)
        second = cluster.serve("--data-dir", str(tmp_path / "jobs"))
        second.wait_event("taken_over", "took over round 1 with 2 of 2 nodes")
        assert all(worker.is_alive for worker in before)
        cluster.order("sys.exit(3)", round=1, node="b")
        cluster.wait_workers(2, round=2)
        cluster.end_well(a, b)
        assert a.verdict["restarts"] == 2


@pytest.mark.parametrize("version", [FIRST_CANDIDATE, LAST_OF_3])
def test_L1_a_candidate_of_this_version_takes_over_from_one_of_another_and_back(
    tmp_path: Path, folder: Path, version: str
) -> None:
    with cluster_of(tmp_path, "1:2") as cluster:
        cluster.options["rdzv_conf"] = TOGETHER
        a, b = cluster.agent("a", env=environ_of(version, folder)), cluster.agent("b")
        cluster.wait_workers(2, round=0)
        cluster.env = environ_of(version, folder)
        old = candidate_of(cluster)
        leader = leader_of(a, b)
        leader.kill()
        old.wait_event("taken_over", "took over round 0")
        (worker,) = cluster.wait_workers(1, round=1)
        cluster.env = {}
        new = candidate_of(cluster)
        old.signal(signal.SIGTERM)
        new.wait_event("taken_over", "took over round 1 with 1 of 1 node")
        cluster.env = environ_of(version, folder)
        again = candidate_of(cluster)
        new.signal(signal.SIGTERM)
        again.wait_event("taken_over", "took over round 1 with 1 of 1 node")
        assert worker.is_alive
        cluster.end_well(b if leader is a else a)


@pytest.mark.parametrize(
    ("leader", "heirs"),
    [
        pytest.param(THIS, (LAST_OF_3, LAST_OF_3), id="newer leads"),
        pytest.param(LAST_OF_3, (THIS, THIS), id="older leads"),
        pytest.param(THIS, (LAST_OF_3, THIS), id="newer leads both"),
        pytest.param(LAST_OF_3, (LAST_OF_3, THIS), id="older leads both"),
    ],
)
def test_L2_heirs_of_another_version_promise_and_take_over(
    tmp_path: Path, folder: Path, leader: str, heirs: tuple[str, str]
) -> None:
    """Nobody notices that the directory is away for longer than the hold and a lease. Then the node
    that leads is killed."""
    jobs, away = tmp_path / "jobs", tmp_path / "away"
    with cluster_of(tmp_path, "2:3") as cluster:
        cluster.options |= {"lease": LEASE_S, "rdzv_conf": f"hold={HOLD_S},last_call_timeout=600"}
        first = cluster.agent("a", env=environ_of(leader, folder))
        first.wait_event("leads")
        others = [
            cluster.agent(name, env=environ_of(version, folder))
            for name, version in zip("bc", heirs, strict=True)
        ]
        before = cluster.wait_workers(3, round=0)
        jobs.rename(away)
        time.sleep(HOLD_S + 1.5 * LEASE_S)
        away.rename(jobs)
        assert all(worker.is_alive for worker in before)
        for agent in (first, *others):
            assert not any(event.name == "session_suspended" for event in agent.events)
        first.kill()
        (second,) = wait_until(lambda: [each for each in others if leads(each)], "a leader")
        cluster.wait_workers(2, round=1)
        cluster.end_well(*others)
        assert second.verdict["restarts"] == 0


@pytest.mark.parametrize(
    ("coordinator", "node", "line"),
    [
        (
            NEXT_BUT_ONE,
            THIS,
            "uses versions 2 to 4 of Rallypoint's protocol but its peer uses version 6",
        ),
        (
            NEXT_BUT_ONE,
            V0_1_0,
            "uses version 2 of Rallypoint's protocol but its peer uses version 6",
        ),
        (THIS, NEXT_BUT_ONE, "uses versions 5 to 6 of Rallypoint's protocol but its peer uses"),
        (V0_1_0, NEXT_BUT_ONE, "uses versions 5 to 6 of Rallypoint's protocol but its peer uses"),
    ],
)
def test_R7_versions_that_have_none_in_common_are_refused_with_one_line(
    tmp_path: Path, folder: Path, coordinator: str, node: str, line: str
) -> None:
    with Cluster(tmp_path, nnodes="1:2") as cluster:
        cluster.env = environ_of(coordinator, folder)
        server = cluster.serve()
        cluster.env = {}
        agent = cluster.agent("a", env=environ_of(node, folder))
        assert agent.wait_exit() == 2
        (said,) = agent.lines
        assert line in said
        assert said.endswith("install the same version of rallypoint on every node of the job")
        assert server.process.poll() is None


@pytest.mark.parametrize(
    ("leader", "node", "versions"),
    [
        pytest.param(THIS, NEXT_BUT_ONE, ("5 to 6", "2 to 4"), marks=pytest.mark.quick),
        (NEXT_BUT_ONE, THIS, ("2 to 4", "5 to 6")),
    ],
)
def test_R7_a_node_that_can_not_talk_with_the_node_that_leads_is_refused_with_one_line(
    tmp_path: Path, folder: Path, leader: str, node: str, versions: tuple[str, str]
) -> None:
    """It does not wait until the join timeout."""
    line = (
        f"rallypoint: this node uses versions {versions[0]} of Rallypoint's protocol but its peer "
        f"uses versions {versions[1]}: install the same version of rallypoint on every node of the "
        "job"
    )
    with cluster_of(tmp_path, "1:2") as cluster:
        cluster.options["rdzv_conf"] = "last_call_timeout=1"
        [a] = cluster.running("a", env=environ_of(leader, folder), hosts=None)
        b = cluster.agent("b", env=environ_of(node, folder))
        assert b.wait_exit() == 2
        assert [said for said in b.lines if "protocol" in said] == [line]
        cluster.end_well(a)
