"""Strangers, who have no token: however many connections they open, the job runs on."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, wait_until

FILES = 200
STRANGERS = 400
LITTLE = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
LINES_MAX = 70


@contextmanager
def silent_strangers(port: int) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing; the kernel has accepted all of them."""
    opened: list[socket.socket] = []
    try:
        with selectors.DefaultSelector() as waiting:
            for _ in range(STRANGERS):
                stranger = socket.socket()
                opened.append(stranger)
                stranger.setblocking(False)
                stranger.connect_ex(("127.0.0.1", port))
                waiting.register(stranger, selectors.EVENT_WRITE)
            while waiting.get_map():
                for key, _ in waiting.select(30.0) or pytest.fail("a stranger can't connect"):
                    waiting.unregister(key.fileobj)
        yield opened
    finally:
        for stranger in opened:
            stranger.close()


def is_hung_up(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_F8_a_job_survives_more_silent_strangers_than_it_has_descriptors_for(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="2:3", rdzv_conf="last_call_timeout=0.3") as cluster:
        a = cluster.agent("a", hosts=True, prefix=LITTLE)
        b = cluster.agent("b", hosts=False)
        cluster.wait_workers(2, round=0)
        with silent_strangers(cluster.port) as strangers:
            # Those who were let in first had their time, and made room for the others.
            wait_until(lambda: is_hung_up(strangers[0]), "the first stranger to be dropped")
            assert len(os.listdir(f"/proc/{a.pid}/fd")) < FILES
            c = cluster.agent("c")
            cluster.wait_workers(3, round=1)
            assert len(os.listdir(f"/proc/{a.pid}/fd")) < FILES
        cluster.end_well(a, b, c)
    names = [event.name for event in a.events]
    assert 0 < names.count("connection_closed") < LINES_MAX
    assert not {"fault", "open_files", "node_lost", "session_suspended"} & set(names)
