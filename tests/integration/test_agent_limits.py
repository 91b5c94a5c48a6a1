"""The limit of open files: an agent that may host others raises its own, and no worker's."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.integration.one_agent import agent, free_port

WORKER = """
import os, resource, time
tell("limits", *resource.getrlimit(resource.RLIMIT_NOFILE))
while not os.path.exists("end"): time.sleep(0.01)
"""
SOFT = 300


def open_files_limits(pid: int) -> tuple[str, str]:
    """Soft and hard, as the kernel writes them."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    words = next(line for line in lines if line.startswith("Max open files")).split()
    return words[3], words[4]


def test_the_agent_raises_its_limit_of_open_files_and_its_workers_keep_theirs(
    tmp_path: Path,
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= SOFT:
        pytest.skip(f"the hard limit of open files is {hard}")
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    options = ("--nnodes=1:2", endpoint, "--rdzv-conf=last_call_timeout=0.1", "--insecure")
    under = ("sh", "-c", f'ulimit -Sn {SOFT}; exec "$@"', "sh")
    with agent(tmp_path, *options, program=WORKER, under=under) as run:
        (told,) = run.wait_told("limits")
        soft, _ = open_files_limits(run.pid)
        (tmp_path / "end").touch()
        assert run.wait() == 0, run.err
    assert told == f"{SOFT} {hard}"
    assert int(soft) > SOFT
