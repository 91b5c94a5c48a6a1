"""What torch's programs use of etcd: a rendezvous between peers, and a server of one's own. By a
real etcd. (The store is in the conformance suite.)"""

from __future__ import annotations

import pytest
from tests.etcd.servers import Etcd

from rallypoint.rendezvous import EtcdClient, EtcdRendezvousBackend
from rallypoint.rendezvous.backend import RendezvousBackend
from rallypoint.testing.backend_contract import RendezvousBackendContract


class TestEtcdRendezvous(RendezvousBackendContract):
    @pytest.fixture(autouse=True)
    def _place(self, etcd: Etcd, request: pytest.FixtureRequest) -> None:
        self.client, self.prefix = EtcdClient(etcd.endpoints), f"/{request.node.name}"

    def make_backend(self) -> RendezvousBackend:
        return EtcdRendezvousBackend(self.client, "job", self.prefix)

    def make_backend_of_another_job(self) -> RendezvousBackend:
        return EtcdRendezvousBackend(self.client, "job2", self.prefix)
