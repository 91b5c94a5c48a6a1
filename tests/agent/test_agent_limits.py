"""The limit of open files: an agent that may host others raises its own, and no worker's."""

from __future__ import annotations

import re
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.harness.one_agent import agent, ended, eventually, free_port

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


def limited(files: str) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit {files}; exec "$@"', "sh")


def test_too_few_open_files_are_one_line_before_anything_starts(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, program=WORKER, under=limited("-n 12")), 75)
    (line,) = run.err.splitlines()
    assert line.startswith("rallypoint: too many open files: raise ulimit -n (now 12) to ")
    assert not run.out


def test_a_soft_limit_of_open_files_that_is_too_low_is_raised_for_the_agent(
    tmp_path: Path,
) -> None:
    (tmp_path / "end").touch()
    run = ended(agent(tmp_path, program=WORKER, under=limited("-Sn 12")), 0)
    assert run.told("limits")[0].split()[0] == "12"


def test_a_relay_has_descriptors_for_the_pipes_and_files_of_all_workers(tmp_path: Path) -> None:
    (tmp_path / "end").touch()
    options = ("--nproc-per-node=40", "--tee=3", "--log-dir=logs")
    run = ended(agent(tmp_path, *options, program=WORKER, under=limited("-Sn 155")), 0)
    told = re.findall(r"^\[default(\d+)\]:limits 155 ", run.out, re.MULTILINE)
    assert sorted(map(int, told)) == list(range(40))
    assert len(list((tmp_path / "logs").rglob("*.log"))) == 80
    assert "too many open files" not in run.err


def test_a_round_store_that_is_full_names_what_its_agent_was_started_with(tmp_path: Path) -> None:
    program = """
import os, socket, time
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
held = [socket.create_connection(where) for _ in range(120)]
while not os.path.exists("end"): time.sleep(0.01)
"""
    where = f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--insecure"
    with agent(tmp_path, *where, program=program, under=limited("-n 150")) as run:
        run.wait_said("raise the hard limit of open files (ulimit -Hn) where this node's agent is")
        (tmp_path / "end").touch()
        assert run.wait() == 0, run.err
    assert "86 connections are open, as many as are allowed" in run.err
    assert "--max-connections" not in run.err


def test_open_files_that_run_out_later_have_connections_wait_and_end_no_job(
    tmp_path: Path,
) -> None:
    port = free_port()
    options = ("--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{port}", "--insecure")
    conf = "--rdzv-conf=last_call_timeout=0.1"
    with agent(tmp_path, *options, conf, program=WORKER) as run:
        run.wait_told("limits")
        before = resource.prlimit(run.pid, resource.RLIMIT_NOFILE)
        strangers: list[socket.socket] = []

        def is_full() -> bool:
            """Files are counted again at each look: the agent may have closed one since."""
            taken = {int(fd.name) for fd in Path(f"/proc/{run.pid}/fd").iterdir()}
            full = min(set(range(len(taken) + 1)) - taken)
            resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (full, before[1]))
            strangers.append(opened.enter_context(socket.create_connection(("127.0.0.1", port))))
            return "can't accept connections" in run.err

        with ExitStack() as opened:
            eventually(is_full, "the agent to be out of files")
            run.wait_said("can't accept connections: Too many open files: raise ulimit -n")
            resource.prlimit(run.pid, resource.RLIMIT_NOFILE, before)
            strangers[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
            strangers[-1].settimeout(30)
            assert strangers[-1].recv(1) == b""  # accepted, and turned away
        (tmp_path / "end").touch()
        assert run.wait() == 0, run.err
    assert "Traceback" not in run.err
    assert run.err.count("can't accept connections") == 1
