"""By which name the machine of a node is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.config import RendezvousConfig
from rallypoint.core.limits import MAX_NAME_BYTES, check
from rallypoint.core.model import Candidate
from rallypoint.errors import MessageError, UsageError
from rallypoint.machine_name import choose_name, kernel_id, machine_name


@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8::7", "fe80::7%eth0", "::ffff:10.0.0.7"])
def test_A10_agents_of_one_start_of_a_machine_find_one_name(address: str) -> None:
    assert choose_name(address, kernel="boot", node_name="") == f"boot/{address}"
    assert choose_name(address, kernel="boot", node_name="gpu-7") == f"boot/{address}"


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "node-7", ""]
)
def test_A10_an_address_that_other_machines_have_too_names_no_machine(address: str) -> None:
    assert choose_name(address, kernel="boot", node_name="") == ""
    assert choose_name(address, kernel="boot", node_name="gpu-7") == "gpu-7"


def test_A10_in_a_container_the_machine_has_the_name_that_kubernetes_gives_it() -> None:
    assert choose_name("10.0.0.7", kernel="", node_name="gpu-7") == "gpu-7"
    assert choose_name("10.0.0.7", kernel="", node_name="") == ""
    assert choose_name("10.0.0.7", kernel="", node_name="x" * (MAX_NAME_BYTES + 1)) == ""
    assert choose_name("10.0.0.7", kernel="", node_name="a\nb") == ""


def test_A10_a_person_may_name_the_machine() -> None:
    assert machine_name("rack-7", "10.0.0.7") == "rack-7"
    assert RendezvousConfig("job", machine_id="rack-7").machine_id == "rack-7"
    with pytest.raises(UsageError, match="--machine-id"):
        RendezvousConfig("job", machine_id="a\nb")


def test_A10_a_process_in_a_container_does_not_take_the_address_for_the_machine_s() -> None:
    is_host = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    script = "from rallypoint.machine_name import machine_name as n; print(n('', '10.0.0.7'))"
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NODE_NAME": "gpu-7"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert told == (f"{kernel_id()}/10.0.0.7" if is_host else "gpu-7")


def test_A10_a_machine_may_have_no_name_but_no_endless_one() -> None:
    check(Candidate(1, "default", "10.0.0.7", 29500))
    check(Candidate(1, "default", "10.0.0.7", 29500, machine="gpu-7", proves=True))
    with pytest.raises(MessageError, match="machine"):
        check(Candidate(1, "default", "10.0.0.7", 29500, machine="x" * (MAX_NAME_BYTES + 1)))
