"""Nodes that meet by a coordinator: handlers in threads, and programs of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.harness.limits import patience

from rallypoint.elastic.rendezvous.api import RendezvousInfo, RendezvousParameters
from rallypoint.elastic.rendezvous.static_tcp_rendezvous import (
    CoordinatorRendezvousHandler,
    create_handler_from,
)

T = TypeVar("T")
LIMIT_S = patience(60.0)
PROGRAM = Path(__file__).with_name("coordinator_node.py")


class Place:
    """One endpoint of this machine, and who meets there."""

    def __init__(self, min_nodes: int, max_nodes: int, **config: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        self._nodes = (min_nodes, max_nodes)
        self._config = {"insecure": True, "last_call_timeout": 0.2, "join_timeout": 60, **config}
        self._threads = ThreadPoolExecutor(128)
        self._handlers: list[CoordinatorRendezvousHandler] = []
        self._programs: list[Program] = []

    def params(self, nodes: tuple[int, int] | None = None, **config: Any) -> RendezvousParameters:
        nodes = nodes or self._nodes
        return RendezvousParameters(
            "tcp", self.endpoint, "job", *nodes, "127.0.0.1", **{**self._config, **config}
        )

    def handler(
        self, nodes: tuple[int, int] | None = None, **config: Any
    ) -> CoordinatorRendezvousHandler:
        handler = create_handler_from(self.params(nodes, **config))
        self._handlers.append(handler)
        return handler

    def forget(self, handler: CoordinatorRendezvousHandler) -> None:
        """Whoever made it may drop it."""
        self._handlers.remove(handler)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """In a thread."""
        return self._threads.submit(call)

    def go(self, handler: CoordinatorRendezvousHandler) -> Future[RendezvousInfo]:
        return self.submit(handler.next_rendezvous)

    def meet(self, *handlers: CoordinatorRendezvousHandler) -> list[RendezvousInfo]:
        """All at once; the outcomes in the order of the handlers."""
        going = [self.go(handler) for handler in handlers]
        return [future.result(LIMIT_S) for future in going]

    def program(self, **config: Any) -> Program:
        params = self.params(**config)
        nodes = [params.min_nodes, params.max_nodes]
        program = Program([self.endpoint, json.dumps(nodes), json.dumps(params.config)])
        self._programs.append(program)
        return program

    def close(self) -> None:
        for program in self._programs:
            program.kill()
        for handler in reversed(self._handlers):
            handler.shutdown()
        self._threads.shutdown()


class Program:
    """A process that takes part in every round until the job is closed, and tells of it."""

    def __init__(self, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> list[Any]:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the node has ended"
        said: list[Any] = json.loads(line)
        return said

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def pause(self) -> None:
        """Returns when it has stopped: it takes part in nothing any more."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self) -> int:
        """Its exit code, when it has ended by itself."""
        return self._process.wait(LIMIT_S)

    def kill(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def place(min_nodes: int, max_nodes: int, **config: Any) -> Iterator[Place]:
    """Whoever still takes part at the end is shut down or killed."""
    found = Place(min_nodes, max_nodes, **config)
    try:
        yield found
    finally:
        found.close()
