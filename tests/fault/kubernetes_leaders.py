"""A cluster (see `tests.fault.leaders`) of which any node may lead the job, by a stand-in of an API
server of Kubernetes, on a host of its own; and what may happen to them.

    with KubernetesLeaderCluster(tmp_path, *"abcd", nnodes="2:4") as cluster:
        cluster.agents(*"abcd")
        cluster.api.stop()
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fault import hidden_register
from tests.fault.leaders import RUN_ID, LeaderCluster
from tests.harness.certificates import make_certificates
from tests.harness.cluster import Option
from tests.kubernetes.api_stand_in import Fault
from tests.kubernetes.objects import RefusedError, Selector
from tests.kubernetes.stand_in import NAMESPACE, Pod, names, stand_in

from rallypoint.register.kubernetes.backend import KEY, name_of
from rallypoint.register.version_file import VersionFormat

if TYPE_CHECKING:
    from tests.fault.leader_runs import Job

HOST = "x"
"""Of the API server."""


class KubernetesLeaderCluster(LeaderCluster):
    """Options are those of `rallypoint run`, and hold for every node."""

    register_hosts = (HOST,)

    def __init__(self, folder: Path, *hosts: str, is_real_disk: bool = False, **options: Option):
        super().__init__(folder, *hosts, HOST, is_real_disk=is_real_disk, **options)
        self.options |= {"rdzv_backend": "kubernetes", "rdzv_endpoint": NAMESPACE}

    def content(self, run_id: str, token: bytes) -> bytes | None:
        name = name_of(run_id)
        try:
            found = self.api.config_maps.read(NAMESPACE, name)
        except RefusedError:
            return None
        layout = VersionFormat(run_id, token)
        return layout.decode(name, b64decode(found["binaryData"][KEY])).content

    def stored(self) -> dict[str, bytes]:
        found = self.api.config_maps.read(NAMESPACE, name_of(RUN_ID))
        return {KEY: b64decode(found["binaryData"][KEY])}

    def put_back(self, stored: dict[str, bytes]) -> None:
        data = {key: b64encode(value).decode() for key, value in stored.items()}
        maps, selector = self.api.config_maps, Selector(NAMESPACE, {}, name_of(RUN_ID))
        found = maps.read(NAMESPACE, selector.name) | {"binaryData": data}
        del found["metadata"]["resourceVersion"]  # Whatever the leader has written meanwhile.
        maps.replace(selector, found, "kubectl", is_dry_run=False)

    def check_left(self) -> None:
        """One object."""
        assert names(self.api) == [name_of(RUN_ID)]

    def start_api(self) -> None:
        """Again, where it was."""
        with self.network.entered(HOST):
            self.api.start()

    def start_register(self, opened: ExitStack) -> None:
        folder, host = self.folder / "certificates", self.network.address(HOST)
        folder.mkdir()
        certificates = make_certificates(folder, host)
        with self.network.entered(HOST):
            self.api = opened.enter_context(stand_in(certificates, host))
        self.pod = Pod(self.api, certificates, self.folder / "account")
        self.conf = self.pod.conf() + ","


def _of(job: Job) -> KubernetesLeaderCluster:
    assert isinstance(job.cluster, KubernetesLeaderCluster)
    return job.cluster


def away(job: Job) -> None:
    """The API server does not run."""
    _of(job).api.stop()
    job.sleep(2, 14)
    _of(job).start_api()


def away_for_long(job: Job) -> None:
    """For so long that all workers are stopped."""
    workers = job.alive()
    _of(job).api.stop()
    job.wait_fences(workers)
    _of(job).start_api()


def slow(job: Job) -> None:
    """Each of its answers takes more than a second."""
    _of(job).api.slow_s = 1.2
    job.sleep(2, 14)
    _of(job).api.slow_s = 0.0


def lose_answers(job: Job) -> None:
    """It does what it is asked to, and nobody hears of it."""
    faults = _of(job).api.faults
    faults.extend([Fault("PUT", 0)] * 3)
    job.sleep(2, 14)
    faults.clear()


def refuse(job: Job) -> None:
    """It has too much to do."""
    faults = _of(job).api.faults
    faults.extend([Fault("PUT", 429, (("Retry-After", "1"),)), Fault("PUT", 500)] * 2)
    job.sleep(2, 14)
    faults.clear()


def rotate(job: Job) -> None:
    """Tokens are replaced, again and again."""
    for _ in range(5):
        _of(job).pod.rotate()
        job.sleep(0.5, 2)


def forbid(job: Job) -> None:
    """The rights are taken away for a while."""
    api = _of(job).api
    role = api.withdraw("Role", NAMESPACE, "rallypoint")
    job.sleep(2, 14)
    api.apply(role)


FAULTS: dict[str, Callable[[Job], None]] = hidden_register.FAULTS | {
    "away": away,
    "away_for_long": away_for_long,
    "slow": slow,
    "lose_answers": lose_answers,
    "refuse": refuse,
    "rotate": rotate,
    "forbid": forbid,
}
UNNOTICED = FAULTS.keys() - {"cut", "cut_and_hide", "away_for_long"}
"""Whoever runs runs on."""
