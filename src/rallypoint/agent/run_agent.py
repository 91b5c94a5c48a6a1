"""The composition root: from a `AgentConfig` to a running agent, and how it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from msgspec.structs import replace

from rallypoint.agent.embedded.embedding import Embedding, gets_signals, run_to_its_end
from rallypoint.agent.environ import visible_devices
from rallypoint.agent.helper_processes import HelperProcesses
from rallypoint.agent.job_end import JobEnd
from rallypoint.agent.output_files import OutputFiles, output_settings, succeeded
from rallypoint.agent.participation import Participation, part_of_job
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.agent.worker_source import make_source
from rallypoint.agent.workers import OnExits, OnGone, RoundWorkers, WorkerSetup
from rallypoint.config import AgentConfig, StopConfig
from rallypoint.coordinator.clocks import WakeSelector, new_loop
from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import Assignment, Stamp
from rallypoint.errors import RallypointError, UsageError
from rallypoint.observe.records import Observer
from rallypoint.process.limits import have_descriptors_for, out_of_files
from rallypoint.process.logs.worker_output import WorkerOutputs
from rallypoint.process.relay.client import Relay
from rallypoint.process.scratch import Scratch
from rallypoint.process.signals import blocked, hold_late_signals

T = TypeVar("T")
MakeObserver = Callable[[Relay], Observer]


def run_agent(
    config: AgentConfig,
    make_observer: MakeObserver,
    on_end: Callable[[JobEnd], None],
    embedding: Embedding | None = None,
    telemetry: Telemetry | None = None,
) -> JobEnd:
    """Run this node's part of the job, to its end. Blocks; for the main thread, or `embedding`.

    `make_observer` gets the relay, which is how lines reach the console. `on_end` is called
    while the console still stands, for the last lines. Whoever made `telemetry` closes it.

    Raises RallypointError when this node could not take part. Nothing is left behind in any case.
    """
    signals = signals_to_handle(config, embedding)
    settings = output_settings(config)
    # A call and a result for each, if there is a function.
    have_descriptors_for(config.workers.count * (2 if config.workers.function else 1))
    config, cpus = _bound(config)
    source = make_source(config.workers, cpus)
    scratch = Scratch(config.output.temp_dir, config.rendezvous.run_id)
    # The guard comes first: until it runs, a killed agent would leave what it has made.
    helpers = HelperProcesses.start(scratch.paths, source, part_of_job(config.rendezvous))
    with ExitStack() as at_the_end:
        try:
            at_the_end.callback(scratch.remove)
            scratch.make()
            files = OutputFiles.open(config, scratch.path)
            at_the_end.callback(files.close)
            loop, selector = new_loop()
        except BaseException:
            helpers.kill()
            raise
        try:
            outputs = WorkerOutputs(settings, files.specs, helpers.relay)
            agent = _take_part(
                config,
                signals,
                make_observer(helpers.relay),
                outputs,
                files,
                scratch.path,
                helpers,
                selector,
                on_end,
                embedding,
                telemetry,
            )
            return run_to_its_end(loop, agent)
        except OSError as error:
            if (short := out_of_files(error)) is None:
                raise
            raise short from error
        finally:
            loop.run_until_complete(helpers.stop(config.stop.shutdown_grace_s))
            with blocked(signals):
                loop.close()
                if embedding is None:
                    hold_late_signals(signals)


def _bound(config: AgentConfig) -> tuple[AgentConfig, Sequence[frozenset[int]]]:
    """The CPUs of each worker, none: unbound; a remark on it joins the notices."""
    if config.workers.numa is None:
        return config, ()
    from rallypoint.process.affinity import worker_cpus

    cpus, notice = worker_cpus(config.workers.count, config.workers.numa, visible_devices())
    notices = (*config.notices, notice) if notice else config.notices
    return replace(config, notices=notices), cpus


async def _take_part(
    config: AgentConfig,
    signals: tuple[int, ...],
    observer: Observer,
    outputs: WorkerOutputs,
    files: OutputFiles,
    scratch: str,
    helpers: HelperProcesses,
    selector: WakeSelector,
    on_end: Callable[[JobEnd], None],
    embedding: Embedding | None,
    telemetry: Telemetry | None,
) -> JobEnd:
    dispatcher = telemetry.dispatcher if telemetry is not None else EventDispatcher()
    dispatcher.subscribe(observer)
    round_workers = RoundWorkers if embedding is None else embedding.round_workers

    def make_workers(
        stamp: Stamp, assignment: Assignment, on_exits: OnExits, on_gone: OnGone
    ) -> RoundWorkers:
        setup = WorkerSetup(
            config.workers,
            helpers.source,
            outputs,
            helpers.guard,
            scratch,
            lambda text: part.agent.say(kinds.TIMER_EXPIRED(text)),
            part.faults,
        )
        made = round_workers(setup, stamp, assignment, on_exits, on_gone)
        part.lease.tell_workers(made.shm.hold)
        return made

    part = Participation(
        config,
        config.rendezvous.shared(),
        signals,
        dispatcher,
        make_workers,
        helpers,
        selector,
        embedding,
    )

    def ended(end: JobEnd) -> None:
        files.succeeded = succeeded(end)
        files.tell_kept(part.agent.say)
        on_end(end)

    try:
        if telemetry is not None and (url := await telemetry.open()):
            part.agent.say(kinds.METRICS(url=url))
        return await part.main(ended)
    except RallypointError:
        files.tell_kept(part.agent.say)
        raise
    finally:
        if telemetry is not None:
            telemetry.hang_up()


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
