"""A cluster (see `tests.fault.leaders`) of which any node may lead the job, by an etcd of three
members, each on a host of its own; and what may happen to them.

    with EtcdLeaderCluster(tmp_path, *"abcd", nnodes="2:4") as cluster:
        cluster.agents(*"abcd")
        cluster.etcd.kill(cluster.etcd.leader)
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.etcd.servers import Etcd, encoded
from tests.fault import hidden_register
from tests.fault.leaders import RUN_ID, LeaderCluster
from tests.fault.network import Network
from tests.harness.cluster import Option, wait_until

from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.etcd.backend import EtcdBackend
from rallypoint.register.etcd.parameters import read_etcd

if TYPE_CHECKING:
    from tests.fault.leader_runs import Job

MEMBERS = ("x", "y", "z")


class NetworkEtcd(Etcd):
    """Its members are on hosts. They elect a leader as soon as etcd does as a rule."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(
            folder, len(MEMBERS), "--heartbeat-interval", "100", "--election-timeout", "1000"
        )
        self._network = network

    def _address(self, number: int) -> str:
        return self._network.address(MEMBERS[number])

    def _prefix(self, number: int) -> tuple[str, ...]:
        return self._network.inside(MEMBERS[number])

    def call(
        self, path: str, body: dict[str, Any], *, member: int | None = None, token: str = ""
    ) -> dict[str, Any]:
        with self._network.entered(MEMBERS[member or 0]):
            return super().call(path, body, member=member, token=token)


class EtcdLeaderCluster(LeaderCluster):
    """Options are those of `rallypoint run`, and hold for every node."""

    register_hosts = MEMBERS

    def __init__(self, folder: Path, *hosts: str, is_real_disk: bool = False, **options: Option):
        super().__init__(folder, *hosts, *MEMBERS, is_real_disk=is_real_disk, **options)
        (folder / "etcd").mkdir()
        self.etcd = NetworkEtcd(folder / "etcd", self.network)
        self.options |= {"rdzv_backend": "etcd", "rdzv_endpoint": self.etcd.endpoints}

    def content(self, run_id: str, token: bytes) -> bytes | None:
        config = read_etcd(self.etcd.endpoints, {}, str)

        def read() -> list[tuple[bytes, Any] | None]:
            try:
                with self.network.entered(MEMBERS[0]):
                    return [EtcdBackend(config, run_id, token).get_state()]
            except RendezvousConnectionError:
                return []  # It elects a leader.

        (found,) = wait_until(read, "etcd")
        return None if found is None else found[0]

    def stored(self) -> dict[str, bytes]:
        return self.etcd.keys("/rallypoint/jobs/")

    def put_back(self, stored: dict[str, bytes]) -> None:
        for key, value in stored.items():
            body = {"key": encoded(key), "value": b64encode(value).decode()}
            self.etcd.call("/v3/kv/put", body)

    def check_left(self) -> None:
        """One key for the job, and the mark."""
        self.etcd.wait_ready()
        names = {name.rpartition("-")[0] for name in self.etcd.keys("/rallypoint/jobs/")}
        assert names == {f"/rallypoint/jobs/rallypoint-{RUN_ID}"}, names
        assert len(self.etcd.keys("/rallypoint")) <= 2

    def start_register(self, opened: ExitStack) -> None:
        opened.push(self.etcd)  # Also if not all members start.
        self.etcd.__enter__()


def _of(job: Job) -> EtcdLeaderCluster:
    assert isinstance(job.cluster, EtcdLeaderCluster)
    return job.cluster


def kill_member(job: Job) -> None:
    """One that does not lead etcd."""
    etcd = _of(job).etcd
    _without(job, (etcd.leader + 1) % 3)


def kill_etcd_leader(job: Job) -> None:
    _without(job, _of(job).etcd.leader)


def pause_etcd_leader(job: Job) -> None:
    """It keeps its connections, and answers nobody."""
    etcd = _of(job).etcd
    number = etcd.leader
    etcd.pause(number)
    job.sleep(2, 14)
    etcd.resume(number)
    etcd.wait_ready()


def no_quorum(job: Job) -> None:
    """Two of three members are away."""
    leader = _of(job).etcd.leader
    _without(job, leader, (leader + 1) % 3)


def no_quorum_for_long(job: Job) -> None:
    """For so long that all workers are stopped."""
    etcd = _of(job).etcd
    gone = [number for number in range(3) if number != etcd.leader]
    for number in gone:
        etcd.kill(number)
    job.wait_fences(job.alive())
    for number in gone:
        etcd.start(number)
    etcd.wait_ready()


def _without(job: Job, *numbers: int) -> None:
    etcd = _of(job).etcd
    for number in numbers:
        etcd.kill(number)
    job.sleep(2, 14)
    for number in numbers:
        etcd.start(number)
    etcd.wait_ready()


FAULTS: dict[str, Callable[[Job], None]] = hidden_register.FAULTS | {
    "kill_member": kill_member,
    "kill_etcd_leader": kill_etcd_leader,
    "pause_etcd_leader": pause_etcd_leader,
    "no_quorum": no_quorum,
    "no_quorum_for_long": no_quorum_for_long,
}
UNNOTICED = FAULTS.keys() - {"cut", "cut_and_hide", "no_quorum_for_long"}
"""Whoever runs runs on."""
