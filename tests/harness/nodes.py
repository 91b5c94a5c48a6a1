"""Nodes in processes of their own, and what they say. See `node.py`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.harness.limits import patience

LIMIT_S = patience(60.0)
NODE = Path(__file__).with_name("node.py")
QUICK = {
    "join_timeout": 50,
    "last_call_timeout": 0.2,
    "keep_alive_interval": 0.3,
    "keep_alive_max_attempt": 8,
    "join_settle": 0,
    "min_growth_interval": 0,
}
"""A lease of 2.4 s, so that a busy machine loses nobody who lives."""


class Node:
    """One process; `wait` takes its lines in order."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, NODE, json.dumps(parameters)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))
        self._said.put({"what": "gone"})

    def wait(self, what: str) -> dict[str, Any]:
        """The next line that says so; nothing else that a round may end with is passed over."""
        while True:
            said = self._said.get(timeout=LIMIT_S)
            if said["what"] == what:
                return said
            assert said["what"] in ("met", "over", "obeyed"), f"{said} before {what!r}"

    def wait_world(self, size: int) -> dict[str, Any]:
        """The next round of so many nodes; a round of another size may come before."""
        while True:
            met = self.wait("met")
            if met["world_size"] == size:
                return met

    def says_nothing(self) -> bool:
        """Nothing that has not been waited for."""
        return self._said.empty()

    def order(self, order: str) -> None:
        """`leave` or `shutdown`."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """While it holds no lock of a file, for which the others would wait until it goes on."""
        pid = self._process.pid
        while True:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
            locks = Path("/proc/locks").read_text().splitlines()
            if not any(line.split()[-4] == str(pid) for line in locks):
                return
            self.resume()

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Nodes:
    """All nodes of one test, with the same parameters; none outlives it."""

    def __init__(self, **parameters: Any) -> None:
        self._parameters = {"run_id": "job", "local_addr": "127.0.0.1", **QUICK, **parameters}
        self._started: list[Node] = []

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._started:
            node.end()

    def start(self, **other: Any) -> Node:
        """One more; `other` replaces parameters of this one alone."""
        node = Node({**self._parameters, **other})
        self._started.append(node)
        return node
