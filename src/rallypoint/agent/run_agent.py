"""The composition root: from a `AgentConfig` to a running agent, and how it ended."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from rallypoint.agent.embedding import Embedding, gets_signals
from rallypoint.agent.node_workers import OnExits, OnGone
from rallypoint.agent.participation import JobEnd, Participation
from rallypoint.agent.round_workers import RoundWorkers
from rallypoint.agent.sidecars import Sidecars
from rallypoint.agent.worker_origin import WorkerOrigin
from rallypoint.config import AgentConfig, OnJoin, StopConfig
from rallypoint.core.model import Assignment, SharedSettings, Stamp
from rallypoint.errors import UsageError
from rallypoint.observe.observer import Observer
from rallypoint.process.limits import have_descriptors_for, out_of_files
from rallypoint.process.log_dir import LogDir
from rallypoint.process.relay_client import Relay
from rallypoint.process.scratch import make_scratch, remove_scratch
from rallypoint.process.streams import parse_std_map, resolve_mode
from rallypoint.process.worker_output import OutputSettings, WorkerOutputs
from rallypoint.rendezvous.fence import WakeSelector, new_loop

MakeObserver = Callable[[Relay], Observer]


def run_agent(
    config: AgentConfig,
    make_observer: MakeObserver,
    on_end: Callable[[JobEnd], None],
    embedding: Embedding | None = None,
) -> JobEnd:
    """Run this node's part of the job, to its end. Blocks; for the main thread, or `embedding`.

    `make_observer` gets the relay, which is how lines reach the console. `on_end` is called
    while the console still stands, for the last lines.

    Raises RallypointError when this node could not take part. Nothing is left behind in any case.
    """
    signals = signals_to_handle(config, embedding)
    settings = _output_settings(config)
    have_descriptors_for(config.workers.count)
    output, run_id = config.output, config.rendezvous.run_id
    log_dir = LogDir.open(output.log_dir, run_id, temp_dir=output.temp_dir)
    scratch, keep_logs = make_scratch(output.temp_dir, run_id), False
    try:
        # What stays when a job ends well also stays when its agent is killed.
        passing = [log_dir.root] if log_dir.is_temporary and not settings.keeps_files else []
        passing = [path for path in (*passing, scratch) if path]
        sidecars = Sidecars.start(passing, WorkerOrigin(config.workers))
        try:
            loop, selector = new_loop()
        except BaseException:
            sidecars.kill()
            raise
        try:
            observer = make_observer(sidecars.relay)
            outputs = WorkerOutputs(settings, log_dir, sidecars.relay)

            end = loop.run_until_complete(
                _take_part(
                    config,
                    signals,
                    observer,
                    outputs,
                    scratch,
                    sidecars,
                    selector,
                    on_end,
                    embedding,
                )
            )
            keep_logs = settings.keeps_files
        except OSError as error:
            if (short := out_of_files(error)) is None:
                raise
            raise short from error
        finally:
            loop.run_until_complete(sidecars.stop())
            loop.close()
    finally:
        log_dir.close(keep=keep_logs)
        remove_scratch(scratch)
    return end


async def _take_part(
    config: AgentConfig,
    signals: tuple[int, ...],
    observer: Observer,
    outputs: WorkerOutputs,
    scratch: str,
    sidecars: Sidecars,
    selector: WakeSelector,
    on_end: Callable[[JobEnd], None],
    embedding: Embedding | None,
) -> JobEnd:
    def make_workers(
        stamp: Stamp, assignment: Assignment, on_exits: OnExits, on_gone: OnGone
    ) -> RoundWorkers:
        guard, origin, workers = sidecars.guard, sidecars.origin, config.workers
        return RoundWorkers(
            stamp, assignment, workers, origin, outputs, guard, on_exits, on_gone, scratch
        )

    part = Participation(
        config,
        shared_settings(config),
        signals,
        observer,
        make_workers,
        sidecars,
        selector,
        embedding,
    )
    return await part.main(on_end)


def shared_settings(config: AgentConfig) -> SharedSettings:
    """What all nodes of the job must agree on (behaviour R7)."""
    rendezvous, restart = config.rendezvous, config.restart
    return SharedSettings(
        run_id=rendezvous.run_id,
        min_nodes=rendezvous.min_nodes,
        max_nodes=rendezvous.max_nodes,
        static=rendezvous.static,
        max_restarts=restart.max_restarts,
        restart_window_s=restart.window_s or 0.0,
        restart_backoff_s=restart.backoff_s,
        no_restart_exit_codes=restart.no_restart_exit_codes,
        lease_s=rendezvous.lease_s,
        heartbeat_s=rendezvous.heartbeat_s,
        reconnect_grace_s=rendezvous.reconnect_grace_s,
        join_timeout_s=rendezvous.join_timeout_s,
        last_call_s=rendezvous.last_call_s,
        join_settle_s=rendezvous.join_settle_s,
        join_settle_max_s=rendezvous.join_settle_max_s,
        min_growth_interval_s=rendezvous.min_growth_interval_s,
        grow=rendezvous.on_join is OnJoin.RESTART,
        max_node_losses_per_hour=rendezvous.max_node_losses_per_hour,
    )


def signals_to_handle(config: AgentConfig, embedding: Embedding | None) -> tuple[int, ...]:
    """What ends this agent; nothing in another thread than the main one.

    Of the usual signals those that it was started to ignore stay ignored (`nohup`, a background
    job of a shell); those that a person chose are handled anyway. Raises UsageError.
    """
    usual = config.stop.signals == StopConfig().signals
    numbers = []
    for name in config.stop.signals:
        number = getattr(signal, name, None)
        if not isinstance(number, signal.Signals):
            raise UsageError(f"--signals-to-handle {name}: there is no such signal")
        if not (usual and signal.getsignal(number) == signal.SIG_IGN):
            numbers.append(int(number))
    return tuple(numbers) if embedding is None or gets_signals() else ()


def _output_settings(config: AgentConfig) -> OutputSettings:
    output, workers = config.output, config.workers
    stdout_tty, stderr_tty = _is_terminal(sys.stdout), _is_terminal(sys.stderr)
    mode = resolve_mode(
        output.mode,
        stdout_is_terminal=stdout_tty,
        stderr_is_terminal=stderr_tty,
        workers=workers.count * config.rendezvous.max_nodes,
    )
    return OutputSettings(
        mode=mode,
        role=workers.role,
        redirects=parse_std_map(output.redirects, workers.count, flag="--redirects"),
        tee=parse_std_map(output.tee, workers.count, flag="--tee"),
        stderr_is_terminal=stderr_tty,
        colour=stdout_tty and stderr_tty and output.colour,
        prefix_template=output.prefix_template,
    )


def _is_terminal(stream: object) -> bool:
    """A closed or replaced stream is none."""
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return False
