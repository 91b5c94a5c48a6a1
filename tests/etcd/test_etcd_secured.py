"""A job by an etcd with TLS that wants a user: all that speaks to etcd shows the same. Real agents,
plain workers, a real etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.etcd.servers import Etcd, add_users, cluster_of
from tests.harness.certificates import make_certificates
from tests.harness.cluster import free_port
from tests.harness.commands import drain

from rallypoint.register.http import tls_context

pytestmark = pytest.mark.executed


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Etcd]:
    files = ("--cert-file", "server.pem", "--key-file", "server.key")
    words = [str(certificates / word) if "." in word else word for word in files]
    with Etcd(tmp_path_factory.mktemp("etcd"), 1, *words, scheme="https") as server:
        server.tls = tls_context(str(certificates / "ca.pem"))
        server.wait_ready()
        add_users(server, user="READWRITE")
        yield server


def test_L6_a_job_by_tls_and_a_user_is_led_taken_over_and_drained(
    tmp_path: Path, etcd: Etcd, certificates: Path
) -> None:
    """By nodes, by the guard of one that was killed, by a candidate, and by a person."""
    password = tmp_path / "password"
    password.write_text("user\n")
    secrets = f"user=user,password_file={password},cacert={certificates}/ca.pem,protocol=https"
    conf = f"{secrets},last_call_timeout=600"
    with cluster_of(tmp_path, etcd, "job", "1:2", lease=15, rdzv_conf=conf) as cluster:
        leader, other = (cluster.agent(name) for name in "ab")
        cluster.wait_workers(2, round=0)
        where = ("--rdzv-endpoint", etcd.endpoints, "--rdzv-conf", secrets)
        serve = cluster.serve("--rdzv-backend", "etcd", *where, "--candidate", port=free_port())
        serve.wait_event("waits_to_lead", "job job: ready to take over from")
        if not any(event.name == "leads" for event in leader.events):
            leader, other = other, leader
        leader.kill()
        serve.wait_event("taken_over", f"the leading node died ({leader.name})")
        cluster.wait_workers(1, round=1)
        left = drain(cluster, other.name, "--rdzv-conf", secrets)
        assert (left.returncode, left.stderr) == (0, "")
        assert other.wait_exit() == 143
