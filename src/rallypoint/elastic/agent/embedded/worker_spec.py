"""The data of the agent API, with torch's names: what runs, the ranks, and how it ended.

Ranks are -1, and a group's place None, until a round has assigned them.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msgspec import Struct

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.run import JobEnd, first_failure
from rallypoint.core.limits import MAX_NAME_BYTES, is_name
from rallypoint.core.model import Outcome, Verdict
from rallypoint.core.node.events import FinishKind
from rallypoint.core.settings import MAX_WORKERS_PER_NODE
from rallypoint.core.text import LEFT
from rallypoint.elastic.multiprocessing.errors import ProcessFailure, reported_failure
from rallypoint.errors import (
    InfrastructureError,
    ParameterError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    SignalException,
)


@dataclass
class WorkerSpec:
    """The settings of the workers of one node. Settings only: it may be used for several agents.

    `entrypoint` is a function, a program, or a command line as a tuple; `args` follow it.
    `rdzv_handler` finds the other nodes; it may be given to the agent instead, and without one the
    node is alone. `monitor_interval` is the pause, in seconds, between two calls of a
    `_monitor_workers` that does not wait by itself. `master_addr` and `master_port` say where the
    workers' store listens when this node is of rank 0.

    Raises ParameterError (a ValueError), one line with the value and the fix.
    """

    role: str
    local_world_size: int
    rdzv_handler: Any = None
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | tuple[str, ...] | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        if self.fn is not None:
            warnings.warn(
                "WorkerSpec: give entrypoint= instead of fn=", DeprecationWarning, stacklevel=3
            )
            self.entrypoint = self.entrypoint or self.fn
        if not isinstance(self.role, str) or not (self.role and is_name(self.role)):
            needs = f"needs 1 to {MAX_NAME_BYTES} bytes of printable characters"
            raise ParameterError(f"WorkerSpec(role={self.role!r}): {needs}")
        size = self.local_world_size
        if not isinstance(size, int) or not 0 < size <= MAX_WORKERS_PER_NODE:
            needs = f"needs 1..{MAX_WORKERS_PER_NODE} workers"
            raise ParameterError(f"WorkerSpec(local_world_size={size!r}): {needs}")
        if not self.entrypoint:
            raise ParameterError(
                f"WorkerSpec(entrypoint={self.entrypoint!r}): needs a function, a program, or a "
                "command line as a tuple"
            )
        if self.max_restarts < 0:
            raise ParameterError(f"WorkerSpec(max_restarts={self.max_restarts}): needs 0 or more")
        if not 0 < self.monitor_interval < float("inf"):
            interval = self.monitor_interval
            raise ParameterError(f"WorkerSpec(monitor_interval={interval}): needs seconds above 0")

    def get_entrypoint_name(self) -> str:
        """Return the function's qualified name, or the program's file name without its folder."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        if isinstance(self.entrypoint, tuple):
            return os.path.basename(self.entrypoint[0])
        return str(getattr(self.entrypoint, "__qualname__", self.entrypoint))


class Worker:
    """One worker of this node.

    `id` is the value that `_start_workers` returned for it, or its pid if no hook is overridden;
    None before the start.
    """

    __slots__ = ("id", "local_rank", "global_rank", "role_rank", "world_size", "role_world_size")  # noqa: RUF023  # The order of its text.

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: Any = None
        self.local_rank, self.global_rank, self.role_rank = local_rank, global_rank, role_rank
        self.world_size, self.role_world_size = world_size, role_world_size

    def __repr__(self) -> str:
        ranks = (f"{name}={getattr(self, name)}" for name in self.__slots__ if name != "id")
        return ",".join(ranks)


class WorkerState(str, Enum):  # noqa: UP042  # A text is `WorkerState.FAILED`, as with torch.
    """The state of all workers of a node together."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Return whether workers in this state may still run: HEALTHY and UNHEALTHY."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class WorkerGroup:
    """The workers of this node, and their place in the newest round.

    `store` is the store that the nodes of this round share; None before the first round, and for a
    node that is alone.
    `contexts` has the values from which each worker's environment is made, by local rank.
    """

    __slots__ = (
        *("spec", "workers", "store", "group_rank", "group_world_size", "master_addr"),
        *("master_port", "state", "contexts"),
    )

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT
        self.contexts: dict[int, WorkerContext] = {}


@dataclass
class RunResult:
    """The state of a node's workers, and their return values or failures by global rank."""

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, Any] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether the workers have failed.

        True unless the state is SUCCEEDED, HEALTHY or INIT: a group that is UNHEALTHY, STOPPED or
        UNKNOWN has not done its work.
        """
        fine = (WorkerState.SUCCEEDED, WorkerState.HEALTHY, WorkerState.INIT)
        return self.state not in fine


class ToldEnd(Struct, frozen=True):
    """How this node's part of a job ended, with the failures that are reported to the program."""

    end: JobEnd
    failures: dict[int, ProcessFailure]
    """The failures by global rank, made before any error file was deleted."""

    def forget_lost_files(self) -> None:
        """Set `error_file` of each failure whose file no longer exists to `<N/A>`."""
        for failure in self.failures.values():
            failure.forget_lost_file()


def run_result(told: ToldEnd) -> RunResult:
    """Return the result: SUCCEEDED, or FAILED with this node's failures and the job's first cause.

    The result of a node that was not needed is SUCCEEDED, with nothing to return (W5). Raises for
    an end that is not the workers' (behaviour A3): the handler's error, or RendezvousTimeoutError,
    RendezvousClosedError, RendezvousConnectionError, InfrastructureError; SignalException when a
    signal ended this agent or the job, but KeyboardInterrupt if that was SIGINT to this agent.
    """
    end = told.end
    finish, verdict = end.finish, end.finish.verdict
    if finish.kind in (FinishKind.EXPELLED, FinishKind.COORDINATOR_LOST):
        raise RendezvousConnectionError(finish.text or "this node was expelled from the job")
    if finish.kind in (FinishKind.STUCK, FinishKind.UNFIT):
        raise InfrastructureError(finish.text)
    if verdict is not None and verdict.outcome is Outcome.SUCCEEDED:
        return RunResult(WorkerState.SUCCEEDED, dict(end.return_values), {})
    if verdict is not None and verdict.outcome is Outcome.FAILED:
        return RunResult(WorkerState.FAILED, {}, told.failures)
    if end.error is not None:
        raise end.error
    if end.caught == signal.SIGINT:
        raise KeyboardInterrupt
    if end.caught or verdict is None:
        number = signal.Signals(end.caught or finish.signal)
        raise SignalException(finish.text or f"{LEFT}: it got {number.name}", number)
    raise _no_result(verdict)


def failures(end: JobEnd) -> dict[int, ProcessFailure]:
    """Return the failures of this node's workers, and the job's first one, by global rank.

    The job's first failure is the one that is named as the cause, on whichever node it happened.
    """
    files = end.error_files
    known = {
        rank: reported_failure(exit_, error_file=files.get(rank, ""))
        for rank, exit_ in end.failures.items()
    }
    if (first := first_failure(end)) is not None:
        exit_, node, file = first
        known[exit_.rank] = reported_failure(exit_, node, file)
    return known


def _no_result(verdict: Verdict) -> Exception:
    if verdict.outcome is Outcome.TIMED_OUT:
        return RendezvousTimeoutError(verdict.text)
    if verdict.outcome.row.exits is None:
        return SignalException(verdict.text, signal.Signals(verdict.signal))
    if verdict.ended_s_ago is not None:
        return RendezvousClosedError(verdict.text)
    return InfrastructureError(verdict.text)
