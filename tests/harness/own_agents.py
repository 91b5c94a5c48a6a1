"""Agents with a way of their own to run workers, and how several meet within one process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tests.harness.cluster import LIMIT_S

from rallypoint.elastic.agent.server import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from rallypoint.elastic.multiprocessing import ProcessFailure
from rallypoint.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)
from rallypoint.elastic.stores import HashStore
from rallypoint.register.contract import MemoryRendezvousBackend


class Meeting:
    """Nodes of one job that meet in the memory of this process."""

    def __init__(self) -> None:
        self.backend, self.store = MemoryRendezvousBackend(), HashStore()

    def handler(self, least: int, most: int) -> DynamicRendezvousHandler:
        timeout = RendezvousTimeout(last_call=timedelta(seconds=0.2))
        return DynamicRendezvousHandler.from_backend(
            "job", self.store, self.backend, least, most, "127.0.0.1", timeout, 1, 5
        )


class Counting(SimpleElasticAgent):
    """Counts the calls of its hooks; `happened` is notified of each."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.calls: list[str] = []
        self.happened = threading.Condition()

    def note(self, call: str) -> None:
        with self.happened:
            self.calls.append(call)
            self.happened.notify_all()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        with self.happened:
            assert self.happened.wait_for(condition, LIMIT_S), f"waited for {what}: {self.calls}"

    def wait_calls(self, call: str, count: int) -> None:
        self.wait_for(lambda: self.calls.count(call) >= count, f"{count} x {call}")

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self.note(f"shutdown {death_sig.name}")


class PopenAgent(Counting):
    """Its workers are processes of `subprocess`; it can merely look at them."""

    processes: dict[int, subprocess.Popen[bytes]]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        assert isinstance(spec.entrypoint, str)
        self.processes = {
            worker.local_rank: subprocess.Popen(
                [spec.entrypoint, *spec.args], env=self.worker_environ(worker), process_group=0
            )
            for worker in worker_group.workers
        }
        self.note("start")
        return {local_rank: process.pid for local_rank, process in self.processes.items()}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            process.wait()
        self.note("stop")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self.note("monitor")
        codes = {local_rank: process.poll() for local_rank, process in self.processes.items()}
        failures = {
            worker_group.workers[local].global_rank: ProcessFailure(
                local, self.processes[local].pid, code, ""
            )
            for local, code in codes.items()
            if code
        }
        if failures:
            return RunResult(WorkerState.FAILED, {}, failures)
        if None in codes.values():
            return RunResult(WorkerState.HEALTHY)
        return RunResult(WorkerState.SUCCEEDED)


class ThreadAgent(Counting):
    """Its workers are threads that run `entrypoint(environ, stopped)`; its monitor waits for them.

    What a worker raises fails it; when it raises `Unwell`, the whole group is UNHEALTHY.
    """

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._stopped = threading.Event()
        self._ended: dict[int, object] = {}
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(worker.global_rank, self.worker_environ(worker), self._ended, self._stopped),
            )
            for worker in worker_group.workers
        ]
        for thread in self._threads:
            thread.start()
        self.note("start")
        return {worker.local_rank: f"thread {worker.local_rank}" for worker in worker_group.workers}

    def _work(
        self, rank: int, environ: dict[str, str], ended: dict[int, object], stop: threading.Event
    ) -> None:
        function = self._worker_group.spec.entrypoint
        assert callable(function)
        try:
            value: object = function(environ, stop)
        except Exception as error:
            value = error
        with self.happened:
            ended[rank] = value
            self.happened.notify_all()

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        with self.happened:
            self._stopped.set()
            self.happened.notify_all()
        for thread in self._threads:
            thread.join()
        self.note("stop")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self.note("monitor")
        with self.happened:
            self.happened.wait_for(self._is_decided)
            ended = dict(self._ended)
        errors = {rank: value for rank, value in ended.items() if isinstance(value, Exception)}
        if any(isinstance(error, Unwell) for error in errors.values()):
            return RunResult(WorkerState.UNHEALTHY)
        first = worker_group.workers[0].global_rank
        failures = {
            rank: ProcessFailure(rank - first, 0, 1, "", said=f"{type(error).__name__}: {error}")
            for rank, error in errors.items()
        }
        if failures:
            return RunResult(WorkerState.FAILED, {}, failures)
        return RunResult(WorkerState.SUCCEEDED, ended)

    def _is_decided(self) -> bool:
        failed = any(isinstance(value, Exception) for value in self._ended.values())
        all_ended = len(self._ended) == len(self._threads)
        return failed or all_ended or self._stopped.is_set()


class Unwell(Exception):
    """Makes the group UNHEALTHY."""


class Running:
    """An agent that runs in a thread."""

    def __init__(self, agent: SimpleElasticAgent) -> None:
        self.agent = agent
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self.agent.run()
        except BaseException as error:
            self._error = error

    def result(self) -> RunResult:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the agent did not end"
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def thread_agent(
    work: Callable[[dict[str, str], threading.Event], object],
    *,
    workers: int = 1,
    restarts: int = 0,
    role: str = "default",
    handler: Any = None,
    **named: Any,
) -> ThreadAgent:
    spec = WorkerSpec(role, workers, entrypoint=work, max_restarts=restarts)
    return ThreadAgent(spec, rdzv_handler=handler, **named)


def shell_agent(
    command: str, *, workers: int = 1, restarts: int = 0, handler: Any = None, **named: Any
) -> PopenAgent:
    spec = WorkerSpec(
        "default", workers, handler, entrypoint="sh", args=("-c", command), max_restarts=restarts
    )
    return PopenAgent(spec, **named)
