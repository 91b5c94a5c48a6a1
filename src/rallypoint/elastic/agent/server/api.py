"""The agent as a class, with torch's names: for programs, and for other ways to run workers.

    class MyAgent(SimpleElasticAgent):
        def _start_workers(self, worker_group): ...     # {local_rank: id}
        def _stop_workers(self, worker_group): ...      # return when nothing runs any more
        def _monitor_workers(self, worker_group): ...   # RunResult
        def _shutdown(self, death_sig, timeout): ...    # free what was made

    result = MyAgent(spec).run()

Rounds, restarts, the budget and the end of the job are decided as for `rallypoint run`, by the same
machines (`core.node`, `core.restarts`); a hook only does what it is called for.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from rallypoint.agent.embedding import (
    Embedding,
    random_run_id,
    run_embedded,
    run_to_its_end,
)
from rallypoint.agent.environ import (
    SIGNALS_VARIABLE,
    asked_for,
    health_port_asked_for,
    worker_environ,
)
from rallypoint.cli.values import Given, signal_names
from rallypoint.agent.membership import AgentSetup
from rallypoint.agent.node_workers import WorkerRound
from rallypoint.agent.run import AgentRun, signals_to_handle
from rallypoint.agent.telemetry.events import STATUS
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.clocks import new_loop
from rallypoint.config import (
    AgentConfig,
    Endpoint,
    HandlerConfig,
    RendezvousConfig,
    WorkerConfig,
    ObserveConfig,
    StopConfig,
)
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.elastic.agent.embedded.hook_workers import HookWorkers
from rallypoint.elastic.agent.embedded.refused_hooks import refuse_unused_hooks
from rallypoint.elastic.agent.embedded.run import JobLog
from rallypoint.elastic.agent.embedded.worker_spec import (
    RunResult as RunResult,
    ToldEnd,
    Worker as Worker,
    WorkerGroup as WorkerGroup,
    WorkerSpec as WorkerSpec,
    WorkerState as WorkerState,
    failures,
    run_result,
)
from rallypoint.elastic.rendezvous.plug_in.client import HandlerClient
from rallypoint.errors import ParameterError, UsageError
from rallypoint.observe.event import Event, EventMetadataValue, EventSource
from rallypoint.elastic.events import record
from rallypoint.core.text import naming_parameters
from rallypoint.elastic.agent.embedded.parameters import OF_A_SPEC

DEFAULT_ROLE = "default"
SEVERAL = 2
"""The maximum number of nodes that is assumed for a handler that does not give it.

It only matters whether there may be other nodes."""

_agents = itertools.count()


class ElasticAgent(ABC):
    """The interface of an agent, which runs the workers of one node, and restarts them."""

    @abstractmethod
    def run(self, role: str = "default") -> RunResult:
        """Run until the job ends, and return the result of this node's workers. Blocks."""

    @abstractmethod
    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """Return this node's workers and their ranks, an object that a running agent changes."""


class SpecAgent(ElasticAgent):
    """An agent of a `WorkerSpec`; subclasses say what runs the workers.

    `rdzv_handler`, or the spec's, finds the other nodes; without one this node is alone. The agent
    closes the job in the end, or leaves it: a handler is good for one `run`.
    `exit_barrier_timeout` is ignored (accepted for compatibility with torch): a node that has
    succeeded waits until the others have succeeded, given up, or begun another round.

    A subclass that overrides a method by which torch's agents are steered, and which nothing calls
    here, is refused: UnusedHookError names what to use instead.
    """

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        refuse_unused_hooks(cls)

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float = 300,
        shutdown_timeout: float = 30,
        *,
        rdzv_handler: Any = None,
    ) -> None:
        self._worker_group = WorkerGroup(spec)
        self._exit_barrier_timeout, self._shutdown_timeout = exit_barrier_timeout, shutdown_timeout
        self._rdzv_handler = rdzv_handler if rdzv_handler is not None else spec.rdzv_handler
        self._embedding: Embedding | None = None
        self._running = threading.Lock()
        self._began_at: float | None = None
        self._ran_s = 0.0

    @naming_parameters(OF_A_SPEC)
    def run(self, role: str = "default") -> RunResult:
        """Run to the end of the job. FAILED is a result, not an exception.

        In the main thread SIGTERM has this node leave the job and SIGINT cancels it, and the
        handlers are put back in the end; in another thread see `interrupt`. Where an event loop
        runs in this thread (a notebook), it blocks that.

        Raises UsageError if it runs already, ParameterError for parameters that can't be used, what
        `agent.embedded.worker_spec.run_result` says, and what a hook raises.
        """
        if not self._running.acquire(blocking=False):
            raise UsageError("this agent is already running: create another one")
        self._began_at = time.monotonic()
        try:
            self._embedding = embedding = Embedding(_handler_client(self._rdzv_handler))
            spec, log = self._worker_group.spec, JobLog()
            config = _agent_config(spec, embedding.handler, self._shutdown_timeout)
            try:
                told = run_embedded(embedding, lambda: self._run_job(config, embedding, log))
            finally:
                log.close()
            return run_result(told)
        finally:
            self._ran_s, self._began_at = self._run_time_s(), None
            self._running.release()

    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """Return the one group of this agent."""
        return self._worker_group

    def interrupt(self, death_sig: int = signal.SIGINT) -> None:
        """Act as if the running agent had got this signal.

        SIGINT cancels the job; with other signals this node leaves. May be called from any thread,
        and does not wait.
        """
        if self._embedding is not None:
            self._embedding.signal(death_sig)

    def worker_environ(self, worker: Worker) -> dict[str, str]:
        """Return the environment for this worker in the newest round, for use in `_start_workers`.

        It is the environment of this process, without the job's token and a scheduler's variables
        for its task, and with RANK, MASTER_ADDR and all other variables of torchrun.
        """
        return worker_environ(self._worker_group.contexts[worker.local_rank])

    def get_event_succeeded(self) -> Event:
        """Return an event with the state SUCCEEDED, for the program to record by `events.record`.

        Its `total_run_time` is how long `run` took or has taken so far, in whole seconds.
        """
        return self._event("SUCCEEDED")

    def get_event_failed(self) -> Event:
        """Return an event with the state FAILED; in an `except` block it has the traceback."""
        return self._event("FAILED", raw_error=traceback.format_exc())

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record the duration of the block as an event of this state, however the block ends.

        The event goes to the spec's `event_log_handler`.
        """
        began_at = time.perf_counter()
        try:
            yield
        finally:
            spent_ms = (time.perf_counter() - began_at) * 1000
            handler = self._worker_group.spec.event_log_handler
            record(self._event(state, duration_ms=spent_ms), handler)

    def _run_time_s(self) -> float:
        return self._ran_s if self._began_at is None else time.monotonic() - self._began_at

    def _event(self, state: str, **more: EventMetadataValue) -> Event:
        group = self._worker_group
        client = _handler_client(self._rdzv_handler)
        nested = json.dumps(
            {
                "group_world_size": group.group_world_size,
                "entry_point": group.spec.get_entrypoint_name(),
            }
        )
        context = group.contexts.get(0)
        metadata: dict[str, EventMetadataValue] = {
            "run_id": client.run_id if client is not None else "",
            "global_rank": None,
            "group_rank": group.group_rank,
            "worker_id": None,
            "role": group.spec.role,
            "hostname": socket.gethostname(),
            "state": state,
            "total_run_time": int(self._run_time_s()),
            "rdzv_backend": client.name if client is not None else "tcp",
            "raw_error": None,
            "metadata": nested,
            "agent_restarts": context.assignment.restart_count if context is not None else 0,
            "duration_ms": None,
        }
        return Event(STATUS + state, EventSource.AGENT, metadata=metadata | more)

    @abstractmethod
    def _run_job(self, config: AgentConfig, embedding: Embedding, log: JobLog) -> ToldEnd:
        """Run this node's part of the job in a new event loop, and return how it ended. Blocks."""


class SimpleElasticAgent(SpecAgent):
    """An agent whose workers are run by four hooks.

    The hooks are called one at a time, except that `_stop_workers` may be called while
    `_monitor_workers` runs. All but `_shutdown` are called in other threads than `run` is.
    `shutdown_timeout` is the time that `_stop_workers` may take, in seconds; `run` raises if it
    takes 5 s more.
    """

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start all workers of a round, and return their ids by local rank.

        An exception that it raises ends the agent.
        """

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, and return when none is left.

        Also called for workers that have ended.
        """

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the workers.

        After HEALTHY it is called again, `spec.monitor_interval` seconds later; SUCCEEDED, FAILED
        or UNHEALTHY ends the calls for this round. It may also block until the workers have ended:
        then it must return soon after `_stop_workers` was called.
        """

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Free the resources of the hooks. `run` calls it once, after the job, however that ends.

        `death_sig` is the signal that ended this node's part, else SIGTERM; `timeout` is the
        agent's `shutdown_timeout`, in whole seconds.
        """

    def _run_job(self, config: AgentConfig, embedding: Embedding, log: JobLog) -> ToldEnd:
        number = signal.SIGTERM
        try:
            told = self._run_hooks(config, embedding, log)
            number = signal.Signals(told.end.caught or number)
        finally:
            self._shutdown(number, int(self._shutdown_timeout))
        told.forget_lost_files()
        return told

    def _run_hooks(self, config: AgentConfig, embedding: Embedding, log: JobLog) -> ToldEnd:
        signals = signals_to_handle(config, embedding)
        telemetry = Telemetry(config)
        loop, selector = new_loop()
        newest: HookWorkers | None = None

        async def take_part() -> ToldEnd:
            run: AgentRun

            def broken(error: Exception) -> None:
                if not run.agent.finished.done():
                    run.agent.finished.set_exception(error)

            def make_workers(round_: WorkerRound) -> HookWorkers:
                nonlocal newest
                group, handler = self._worker_group, embedding.handler
                group.store = handler.store if handler is not None else None
                newest = HookWorkers(self, group, round_, broken)
                return newest

            telemetry.dispatcher.subscribe(log)
            setup = AgentSetup(config, signals, telemetry, selector, embedding=embedding)
            run = AgentRun(setup, make_workers)
            end = await run.main(lambda end: telemetry.ended(end.finish))
            end = replace(end, error_files=newest.error_files if newest is not None else {})
            return ToldEnd(end, failures(end))

        with telemetry.watching():
            try:
                return run_to_its_end(loop, take_part())
            finally:
                loop.close()


def _agent_config(
    spec: WorkerSpec, handler: HandlerClient | None, shutdown_timeout_s: float
) -> AgentConfig:
    """Return the configuration of an agent of this spec. Raises ParameterError and UsageError."""
    if not 0 <= shutdown_timeout_s < float("inf"):
        raise ParameterError(f"shutdown_timeout={shutdown_timeout_s}: needs 0 or more seconds")
    return AgentConfig(
        rendezvous=_alone(spec) if handler is None else _by_handler(spec, handler),
        workers=WorkerConfig(argv=(), count=spec.local_world_size, role=spec.role),
        stop=_stop(shutdown_timeout_s),
        observe=ObserveConfig(
            event_log_handler=spec.event_log_handler, health_port=health_port_asked_for()
        ),
    )


def _stop(grace_s: float) -> StopConfig:
    """Return the settings for stopping workers, with the same grace for every stop.

    The signals to handle are those that an environment variable names, else the defaults.
    """
    text = asked_for(SIGNALS_VARIABLE)
    given = signal_names(Given(text, f"{SIGNALS_VARIABLE}={text}"))
    signals = given or StopConfig().signals
    return StopConfig(shutdown_grace_s=grace_s, restart_grace_s=grace_s, signals=signals)


def _handler_client(handler: Any) -> HandlerClient | None:
    """Return an object that calls this rendezvous handler; None for None.

    Raises ParameterError for an object without `next_rendezvous`.
    """
    if handler is None:
        return None
    if not hasattr(handler, "next_rendezvous"):
        raise ParameterError(f"rdzv_handler={handler!r:.80}: needs a rendezvous handler")
    ask = getattr(handler, "get_backend", None)
    return HandlerClient(handler, str(ask()) if ask is not None else type(handler).__name__)


def _alone(spec: WorkerSpec) -> RendezvousConfig:
    return RendezvousConfig(
        run_id=random_run_id(),
        max_restarts=spec.max_restarts,
        endpoint=Endpoint("localhost", 0),
        is_host=True,
        local_addr=spec.master_addr or spec.local_addr,
        store=Endpoint(spec.master_addr or "", spec.master_port or 0),
    )


def _by_handler(spec: WorkerSpec, handler: HandlerClient) -> RendezvousConfig:
    settings = handler.settings
    least, most = getattr(settings, "min_nodes", 1), getattr(settings, "max_nodes", SEVERAL)
    timeout = getattr(getattr(settings, "timeout", None), "join", None)
    host = socket.gethostname().partition(".")[0] or "node"
    return RendezvousConfig(
        run_id=handler.run_id or UNNAMED_RUN_ID,
        max_restarts=spec.max_restarts,
        min_nodes=least,
        max_nodes=most,
        join_timeout_s=timeout.total_seconds() if timeout is not None else 600.0,
        # A program may run several agents: the process does not tell them apart.
        node_id=f"{host}.{os.getpid()}.{next(_agents)}",
        local_addr=spec.local_addr,
        store=Endpoint(spec.master_addr or "", spec.master_port or 0),
        handler=HandlerConfig(handler.name),
    )
