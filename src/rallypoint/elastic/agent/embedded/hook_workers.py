"""The workers of one round, run by the hooks of a program's `SimpleElasticAgent`.

Hooks may block, so they run in threads: `_start_workers` and then `_monitor_workers` in one,
`_stop_workers` in another. The second thread waits until the workers are started, and gives a
`_monitor_workers` that merely looks the time to return; it does not wait for one that blocks until
the workers end. At most one `_stop_workers` runs, and nothing is started before it has returned.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.node_workers import WorkerRound
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.core.text import raised
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.core.worker_signals import Received
from rallypoint.elastic.agent.embedded.group_workers import assign_ranks
from rallypoint.elastic.agent.embedded.worker_spec import RunResult, WorkerGroup, WorkerState
from rallypoint.errors import InfrastructureError, RallypointError
from rallypoint.process.guard import Guard

STOP_TIMEOUT_S = 5.0
"""How long a `_stop_workers` may still take after its grace, in seconds."""
LOOK_S = 1.0
"""The longest time, in seconds, that a stop waits for a running `_monitor_workers` to return; the
monitor interval if that is shorter. After it `_stop_workers` is called all the same."""
UNKNOWN_FAILURE = 1
"""The exit code of a failed worker for which `_monitor_workers` gave none, or gave 0."""


class AgentHooks(Protocol):
    """The methods by which a program's `SimpleElasticAgent` starts, stops and watches workers."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]: ...
    def _stop_workers(self, worker_group: WorkerGroup) -> None: ...
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult: ...


class HookWorkers:
    """The workers of one round, which an agent's hooks start, watch and stop in threads.

    `on_broken` is called in the loop with an exception when a hook raised it, returned something
    invalid, or did not return in time.
    """

    def __init__(
        self,
        hooks: AgentHooks,
        group: WorkerGroup,
        round_: WorkerRound,
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._hooks, self._group, self._round, self._on_broken = hooks, group, round_, on_broken
        self._wanted_stop = threading.Event()
        self._started = threading.Event()
        self._watched = threading.Event()  # no `_monitor_workers` runs any more
        self._gone = self._killing = False
        self._failures: tuple[WorkerExit, ...] = ()
        self._result = RunResult(WorkerState.UNKNOWN)

    @property
    def shm(self) -> WorkerShm:
        """A shared memory to which no worker writes: workers of hooks have none."""
        return WorkerShm.silent(self._group.spec.local_world_size)

    def start(self, context: Callable[[int, str], WorkerContext]) -> None:
        """Give the group its ranks, and have `_start_workers` called in a thread. Does not block.

        The round counts as started at once.
        """
        assign_ranks(self._group, context)
        self._in_thread(self._run)
        self._round.on_started()

    def notice(self) -> None:
        """Do nothing: `_monitor_workers` reports exits, and can't be asked for them sooner."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the workers: 0 for each, because a hook's pids are not known."""
        return (0,) * self._group.spec.local_world_size

    def owns(self, pid: int) -> bool:
        """Return False: the pids of a hook's workers are not known."""
        return False

    def use_guard(self, guard: Guard) -> None:
        """Do nothing: workers of hooks have no guard."""

    def notify(self, number: int) -> None:
        """Do nothing: the workers of hooks get no signal."""

    def signal(self, number: int, received: Received = Received.NOBODY) -> None:
        """Have `_stop_workers` called in a thread, whatever the signal; only the first call counts.

        Does not block.
        """
        if not self._wanted_stop.is_set():
            self._wanted_stop.set()
            self._in_thread(self._stop)

    def kill(self) -> None:
        """Have `_stop_workers` called unless it was called before. Does not block.

        The agent ends with an InfrastructureError if that has not returned 5 s after this call.
        """
        self.signal(0)
        if not self._killing:
            self._killing = True
            self._loop.call_later(STOP_TIMEOUT_S, self._too_late)

    async def abandon(self) -> None:
        """Have no further `_monitor_workers` called; a later `signal` or `kill` calls no hook.

        The agent calls `_shutdown` after its loop, which ends the workers.
        """
        self._wanted_stop.set()

    def failures(self, failed: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
        """Return `failed` unchanged: they are as `_monitor_workers` reported them."""
        return failed

    def results(self) -> dict[int, object]:
        """Return the workers' return values, as `_monitor_workers` gave them, by local rank.

        None for a worker for which it gave none.
        """
        base, values = self._round.assignment.base_rank, self._result.return_values
        return {worker: values.get(base + worker) for worker in range(len(self.pids))}

    @property
    def error_files(self) -> dict[int, str]:
        """The error files of the failures that `_monitor_workers` returned, by global rank.

        Empty for a failure that names none.
        """
        failures = self._result.failures
        return {rank: str(getattr(known, "error_file", "")) for rank, known in failures.items()}

    # In threads

    def _in_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="rallypoint-hooks", daemon=True).start()

    def _run(self) -> None:
        try:
            self._take_ids(self._hooks._start_workers(self._group))
            self._started.set()
            result = self._watch()
        except BaseException as error:
            self._tell(self._broken, _as_exception(error))
        else:
            if result is not None:
                self._tell(self._ended, result)
        finally:
            self._started.set()
            self._watched.set()

    def _watch(self) -> RunResult | None:
        """Call `_monitor_workers` until its result is not HEALTHY, and return that result.

        Returns None if a stop of the workers was requested before. Raises RallypointError for a
        result that is invalid.
        """
        group = self._group
        group.state = WorkerState.HEALTHY
        while not self._wanted_stop.is_set():
            result = self._hooks._monitor_workers(group)
            if self._wanted_stop.is_set():
                break
            if not isinstance(result, RunResult):
                raise _contract(f"_monitor_workers returned {result!r:.80}: it needs a RunResult")
            ours = {worker.global_rank for worker in group.workers}
            if not set(result.failures) <= ours:
                raise _contract(
                    f"_monitor_workers returned failures of {list(result.failures)!r:.80}: "
                    f"it needs global ranks of this node, {min(ours)}..{max(ours)}"
                )
            group.state = result.state
            if result.state is not WorkerState.HEALTHY:
                return result
            self._wanted_stop.wait(group.spec.monitor_interval)
        return None

    def _take_ids(self, ids: Any) -> None:
        wanted = {worker.local_rank for worker in self._group.workers}
        if not isinstance(ids, dict) or set(ids) != wanted:
            raise _contract(
                f"_start_workers returned {ids!r:.80}: it needs {{local_rank: id}} for the local "
                f"ranks 0..{len(wanted) - 1}"
            )
        for worker in self._group.workers:
            worker.id = ids[worker.local_rank]

    def _stop(self) -> None:
        self._started.wait()
        self._watched.wait(min(self._group.spec.monitor_interval, LOOK_S))
        try:
            self._hooks._stop_workers(self._group)
        except BaseException as error:
            self._tell(self._broken, _as_exception(error))
            return
        self._tell(self._stopped)

    def _tell(self, call: Callable[..., None], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *values)
        except RuntimeError:  # the agent has ended meanwhile
            pass

    # In the loop

    def _ended(self, result: RunResult) -> None:
        if self._wanted_stop.is_set():
            return
        self._result = result
        match result.state:
            case WorkerState.SUCCEEDED:
                count = self._group.spec.local_world_size
                exits = tuple(WorkerExit(0, None, local_rank=local) for local in range(count))
            case WorkerState.FAILED | WorkerState.UNHEALTHY:
                exits = self._failed(result)
            case _:
                what = f"_monitor_workers returned the state {result.state.name}"
                self._broken(_contract(f"{what}, which has no effect"))
                return
        self._round.on_exits(exits)

    def _failed(self, result: RunResult) -> tuple[WorkerExit, ...]:
        exits = []
        for rank, failure in result.failures.items():
            local_rank = rank - self._round.assignment.base_rank
            exits.append(self._failure(local_rank, _text(failure), failure))
        if not exits:
            text = f"the workers of this node are {result.state.name}"
            exits.append(self._failure(0, text, None))
        self._failures = tuple(exits)
        return self._failures

    def _failure(self, local_rank: int, message: str, failure: Any) -> WorkerExit:
        from rallypoint.process.failures import bounded

        code = int(getattr(failure, "exitcode", UNKNOWN_FAILURE)) or UNKNOWN_FAILURE
        exit_ = WorkerExit(
            None if code < 0 else code,
            -code if code < 0 else None,
            local_rank=local_rank,
            rank=self._round.assignment.base_rank + local_rank,
            role=self._group.spec.role,
            pid=int(getattr(failure, "pid", 0)),
            wall_time=_moment(failure) or time.time(),
            message=message,
            detail=_callstack(failure),
            log_file=str(getattr(failure, "log_file", "")),
        )
        return bounded(exit_)

    def _stopped(self) -> None:
        if WorkerState.is_running(self._group.state):
            self._group.state = WorkerState.STOPPED
        self._leave_round()

    def _leave_round(self) -> None:
        if not self._gone:
            self._gone = True
            self._round.on_gone((), self._failures)

    def _too_late(self) -> None:
        if not self._gone:
            self._broken(
                InfrastructureError(
                    f"the workers of round {self._round.stamp.round} did not stop: _stop_workers "
                    f"has not returned {STOP_TIMEOUT_S:g} s after the end of its grace"
                )
            )

    def _broken(self, error: Exception) -> None:
        self._gone = True
        self._group.state = WorkerState.UNKNOWN
        self._on_broken(error)


def _moment(failure: Any) -> float:
    """Return the Unix time of the failure; 0 if it is not known.

    Torch's failures have whole seconds.
    """
    return float(getattr(failure, "moment", getattr(failure, "timestamp", 0.0)))


def _as_exception(error: BaseException) -> Exception:
    """Return the error itself; for one that is no Exception (SystemExit), a RallypointError."""
    if isinstance(error, Exception):
        return error
    return _contract(f"raised {raised(error)}")


def _contract(text: str) -> RallypointError:
    return RallypointError(f"the agent's hook {text}")


def _callstack(failure: Any) -> str:
    """Return the traceback in a failure's message, as `record` writes it, else its `detail`."""
    match getattr(failure, "message", None):
        case {"extraInfo": {"py_callstack": str(callstack)}}:
            return callstack
    return str(getattr(failure, "detail", ""))


def _text(failure: Any) -> str:
    """Return the text of a failure's message, of a ProcessFailure of ours or torch's.

    The message is a text, or an object that `record` wrote, which contains the text.
    """
    message = getattr(failure, "message", failure)
    if isinstance(message, dict):
        message = message.get("message", message)
    return str(message)
