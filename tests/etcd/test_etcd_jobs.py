"""A job by an etcd of three members: any node may lead it, and any node and any member may be lost.
Real agents, plain workers, a real etcd."""

from __future__ import annotations

from pathlib import Path

from tests.etcd.servers import Etcd, cluster_of, encoded
from tests.harness.cluster import Option, wait_until
from tests.harness.leading_agents import drain_leader, leader_of, lose_leader
from tests.harness.mad_records import survives_mad_records

from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.etcd.backend import EtcdBackend
from rallypoint.register.etcd.parameters import read_etcd


def test_L6_agents_that_lead_and_members_of_etcd_are_lost_one_after_another(
    tmp_path: Path, three: Etcd
) -> None:
    """No worker is restarted but for a lost node; then the last leader is told to go."""
    waits: dict[str, Option] = {"lease": 30, "rdzv_conf": "last_call_timeout=20"}
    with cluster_of(tmp_path, three, "job", "1:4", **waits) as cluster:
        agents = [cluster.agent(name) for name in "abcd"]
        first = cluster.wait_workers(4, round=0)
        leader_of(*agents)

        others = [number for number in range(3) if number != three.leader]
        for number in others:
            three.kill(number)
        wait_until(lambda: is_away(three), "an etcd without a quorum")
        for number in others:
            three.start(number)
        three.wait_ready()
        assert all(worker.is_alive for worker in first)

        member = (three.leader + 1) % 3
        three.kill(member)
        lose_leader(cluster, agents, first)
        three.start(member)
        three.wait_ready()

        member = three.leader
        three.kill(member)
        drain_leader(cluster, agents)
    three.start(member)
    three.wait_ready()
    (key,) = three.keys("/rallypoint/jobs/")
    assert key.startswith("/rallypoint/jobs/rallypoint-job-")
    (kv,) = three.call("/v3/kv/range", {"key": encoded(key)})["kvs"]
    assert "lease" not in kv, "it outlives whoever wrote it"
    assert three.keys("/").keys() == {key, "/rallypoint/mark"}


def is_away(three: Etcd) -> bool:
    """Whether a register could not be read now."""
    register = EtcdBackend(read_etcd(three.endpoints, {}, str), "other", attempt_s=0.3)
    try:
        register.get_state()
    except RendezvousConnectionError:
        return True
    return False


def test_L9_a_leader_writes_its_record_again_over_a_mad_one(tmp_path: Path, three: Etcd) -> None:
    config = read_etcd(three.endpoints, {}, str)
    with cluster_of(tmp_path, three, "mad", "3", lease=30) as cluster:
        survives_mad_records(cluster, "mad", lambda token: EtcdBackend(config, "mad", token))
