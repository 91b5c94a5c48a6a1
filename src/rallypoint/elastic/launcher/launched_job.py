"""Run one node's part of a job from a program, to its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any

from rallypoint.agent.embedding import Embedding, run_embedded, start_in_thread
from rallypoint.config import AgentConfig
from rallypoint.elastic.agent.server.entrypoint import Entrypoint, entrypoint_name
from rallypoint.elastic.agent.server.run import JobLog, run_processes
from rallypoint.elastic.agent.server.worker_spec import run_result
from rallypoint.elastic.launcher.launch_config import LaunchConfig, agent_config
from rallypoint.errors import (
    ChildFailedError,
    ExitClass,
    InfrastructureError,
    InvariantError,
    RallypointError,
)
from rallypoint.observe.parameter_names import OF_A_LAUNCH, naming_parameters


class elastic_launch:  # noqa: N801  # Its name in torch.
    """`elastic_launch(config, entrypoint)(*args)` runs `entrypoint(*args)`, or the command line
    with these words, as the workers of this node, and returns what they return by global rank;
    None for each worker that is a command.

    Blocks until the job has ended. In the main thread SIGINT cancels the job and SIGTERM has this
    node leave it; several may run at once, in threads. `health_check_server` is accepted.

    Raises ChildFailedError when workers have failed, with the job's first cause on whichever node
    it was; what `rallypoint.elastic.agent.server`'s `run` raises for what is not the workers'
    fault; KeyboardInterrupt and SignalException for signals; ParameterError and UsageError for
    what can't be started.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Entrypoint,
        health_check_server: Any = None,
    ) -> None:
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(
    config: LaunchConfig,
    entrypoint: Entrypoint,
    args: Sequence[Any],
    health_check_server: Any = None,
) -> dict[int, Any]:
    """As `elastic_launch(config, entrypoint)(*args)`."""

    def run() -> dict[int, Any]:
        settings, embedding = agent_config(config, entrypoint, args), Embedding()
        name = entrypoint_name(entrypoint, args)
        return run_embedded(embedding, lambda: _run(settings, name, embedding))

    return _with_short_traceback(run)


async def launch(config: LaunchConfig, entrypoint: Entrypoint, *args: Any) -> dict[int, Any]:
    """The same for a running loop, which is not blocked. Signals are left to the program;
    cancelling this cancels the job, and returns when its workers are gone."""
    settings = agent_config(config, entrypoint, args)
    embedding, name = Embedding(), entrypoint_name(entrypoint, args)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(ended.set)

    wait, take = start_in_thread(lambda: _run(settings, name, embedding), wake)
    cancelled = False
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError:
            cancelled = True
            embedding.signal(signal.SIGINT)
    wait()
    if cancelled:
        raise asyncio.CancelledError
    return _with_short_traceback(take)


def _with_short_traceback(work: Callable[[], dict[int, Any]]) -> dict[int, Any]:
    """Strip our own frames from the traceback, and the cause from a usage error, which is one line
    that says it all."""
    try:
        with naming_parameters(OF_A_LAUNCH):
            return work()
    except InvariantError:
        raise
    except KeyboardInterrupt as error:
        error.__traceback__ = None
        raise
    except RallypointError as error:
        error.__traceback__ = None
        if error.exit_class is ExitClass.USAGE:
            raise error from None
        raise


def _run(config: AgentConfig, name: str, embedding: Embedding) -> dict[int, Any]:
    log = JobLog(OF_A_LAUNCH)
    try:
        end = run_processes(config, log, embedding)
    finally:
        log.close()
    result = run_result(end)
    if not result.is_failed():
        return result.return_values
    verdict = end.finish.verdict
    assert verdict is not None
    cause = verdict.cause
    if cause is None or cause.failure is None:
        raise InfrastructureError(verdict.text)
    raise ChildFailedError(
        name, result.failures, first_rank=cause.failure.rank, followed=cause.collateral
    )
