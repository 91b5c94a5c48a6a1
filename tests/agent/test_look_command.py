"""The command in the first line of a job of several nodes."""

from __future__ import annotations

import shlex

import pytest

from rallypoint.agent.membership import look_command
from rallypoint.cli.parser import parse
from rallypoint.cli.values import Given
from rallypoint.cli.watch.asking.find import read_job
from rallypoint.cli.watch.status import STATUS
from rallypoint.config import AccessConfig, Endpoint, RegisterConfig, RendezvousConfig
from rallypoint.core.settings import UNNAMED_RUN_ID

ETCD = RegisterConfig(
    "etcd",
    "e1:2379,e2:2379",
    (("protocol", "https"), ("etcd_prefix", "/other"), ("cacert", "/etc/ca.pem")),
)

BY_ETCD = (
    "--rdzv-backend etcd --rdzv-endpoint e1:2379,e2:2379 --rdzv-conf "
    "protocol=https,etcd_prefix=/other,cacert=/etc/ca.pem"
)
KEPT = RendezvousConfig("digits", register=ETCD)


def tcp(run_id: str) -> RendezvousConfig:
    return RendezvousConfig(run_id, endpoint=Endpoint("n1", 20010))


@pytest.mark.parametrize(
    ("rendezvous", "access", "command"),
    [
        (tcp("slurm-10.0"), AccessConfig(), "n1:20010 --job slurm-10.0"),
        (tcp("a b"), AccessConfig(token_file="/t"), "n1:20010 --job 'a b' --token-file /t"),
        (tcp(UNNAMED_RUN_ID), AccessConfig(insecure=True), "n1:20010 --insecure"),
        (
            RendezvousConfig("digits", register=RegisterConfig("file", "/shared/my jobs")),
            AccessConfig(),
            "'/shared/my jobs' --job digits",
        ),
        (
            KEPT,
            AccessConfig(),
            f"{BY_ETCD} --job digits",
        ),
    ],
)
def test_it_names_the_job_as_its_nodes_have_it(
    rendezvous: RendezvousConfig, access: AccessConfig, command: str
) -> None:
    assert look_command(rendezvous, access) == f"rallypoint status {command}"


@pytest.mark.parametrize("rendezvous", [tcp("digits"), RendezvousConfig("x", register=ETCD)])
def test_the_command_that_is_named_finds_the_job(rendezvous: RendezvousConfig) -> None:
    words = shlex.split(look_command(rendezvous, AccessConfig()))[2:]
    scanned = parse(STATUS, words, {})
    where = Given(scanned.words[0], scanned.words[0]) if scanned.words else None
    (job,) = read_job(STATUS, scanned, where)
    assert job.run_id == rendezvous.run_id
    assert job.register == rendezvous.register
    assert rendezvous.register is not None or job.endpoint == rendezvous.endpoint
