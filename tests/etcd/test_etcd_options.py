"""What is wrong with a command line that names an etcd, in one line each."""

from __future__ import annotations

import pytest
from tests.harness.command_line import refusal

WHERE = "--rdzv-endpoint a --rdzv-id job"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "needs --rdzv-endpoint HOST[:2379],..., the members of an etcd that all nodes reach"),
        ("--rdzv-endpoint a", "an etcd may hold many jobs: give --rdzv-id, the same for all nodes"),
        ("--rdzv-endpoint a:0 --rdzv-id job", "a:0: 0 is not a valid port (1..65535)"),
        ("--rdzv-endpoint a:b --rdzv-id job", "a:b: b is not a valid port (1..65535)"),
        ("--rdzv-endpoint , --rdzv-id job", "needs the endpoints of etcd's members, HOST[:PORT]"),
        (
            "--rdzv-endpoint http://a,https://b --rdzv-id job",
            "protocol=http and https: needs one, http or https",
        ),
        (f"{WHERE} --rdzv-conf protocol=grpc", "protocol=grpc: needs one, http or https"),
        (f"{WHERE} --rdzv-conf cert=/c", "cert=/c: add protocol=https, or leave it out"),
        (f"{WHERE} --rdzv-conf key=/k,protocol=https", "key=/k: add cert=FILE, the certificate"),
        (f"{WHERE} --rdzv-conf password_file=/p", "password_file=/p: add user=NAME"),
        (f"{WHERE} --rdzv-conf cacert=/c,ca_cert=/d", "ca_cert=/d: the same was given by another"),
        (f"{WHERE} --rdzv-conf etcd_prefix=p", "etcd_prefix=p: needs a path that begins with a"),
    ],
)
def test_each_mistake_is_one_line(given: str, says: str) -> None:
    text = refusal(f"--rdzv-backend etcd {given} train.py")
    assert text.startswith(f"--rdzv-backend etcd: {says}"), text
    assert "\n" not in text


def test_a_password_is_not_taken_from_the_command_line() -> None:
    assert refusal(f"--rdzv-backend etcd {WHERE} --rdzv-conf password=x train.py") == (
        "--rdzv-conf password: a command line is seen by others: give password_file=FILE, or "
        "RALLYPOINT_ETCD_PASSWORD in the environment"
    )
