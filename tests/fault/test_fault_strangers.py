"""Strangers without a token, on a host of their own, who connect to the coordinator (F8)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fault.hosts import PORT, HostCluster
from tests.harness.cluster import wait_until

GARBAGE, SECONDS = 9000, 6
LINES = 60
"""What an agent may say about all of them."""
FLOOD = """
import os, selectors, socket, sys, time
left, end, told = int(sys.argv[2]), time.monotonic() + float(sys.argv[4]), 0
selector = selectors.DefaultSelector()
while (left or selector.get_map()) and time.monotonic() < end:
    while left and len(selector.get_map()) < 200:
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex((sys.argv[1], int(sys.argv[3])))
        selector.register(stranger, selectors.EVENT_WRITE)
        left -= 1
    for key, _ in selector.select(0.2):
        try:
            key.fileobj.send(os.urandom(200))
        except OSError:
            pass
        selector.unregister(key.fileobj)
        key.fileobj.close()
        told += 1
print(told, flush=True)
"""


@contextmanager
def stranger(
    cluster: HostCluster, text: str, *arguments: object
) -> Iterator[subprocess.Popen[str]]:
    network = cluster.network
    words = [*network.inside("x"), sys.executable, "-c", text, network.address("a")]
    words += map(str, arguments)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def assert_job_lives(cluster: HostCluster) -> None:
    """Both nodes take part, restart together once, and end well."""
    a, b = (agent for agent in cluster.all_agents if agent.name != "serve")
    cluster.order("sys.exit(3)", round=0, node="b")
    cluster.wait_workers(2, round=1)
    cluster.end_well(a, b)
    host = cluster.all_agents[0]
    assert len(host.stderr_lines) < LINES
    assert "was lost" not in host.said
    assert not [event for event in host.events if event.name == "fault"]
    assert not any(event.name == "session_suspended" for event in b.events)


@pytest.mark.parametrize("host", ["serve", "agent"])
def test_F8_strangers_who_talk_garbage_delay_nobody(tmp_path: Path, host: str) -> None:
    with HostCluster(tmp_path, "a", "b", "c", "x", nnodes=2, max_restarts=1, lease=3) as cluster:
        if host == "serve":
            cluster.serve()
        cluster.agent("a" if host == "agent" else "c", hosts=host == "agent")
        cluster.agent("b", hosts=False)
        cluster.wait_workers(2, round=0)
        with stranger(cluster, FLOOD, GARBAGE, PORT, SECONDS) as process:
            assert process.stdout is not None
            told = wait_until(process.stdout.readline, "the flood to end")
            assert int(told) > 0
        assert_job_lives(cluster)
