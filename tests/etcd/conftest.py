"""One etcd for all tests of a process that leave it as it is; each has a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.etcd.servers import Etcd
from tests.harness.resolver import no_names as no_names

from rallypoint.register.etcd.parameters import EtcdConfig, read_etcd


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd of three members for one module, whose tests may kill any of them for a while."""
    with Etcd(tmp_path_factory.mktemp("three"), 3) as members:
        yield members


@pytest.fixture
def config(etcd: Etcd, request: pytest.FixtureRequest) -> EtcdConfig:
    """A prefix for one test."""
    return read_etcd(etcd.endpoints, {"etcd_prefix": f"/{request.node.name}"}, str)
