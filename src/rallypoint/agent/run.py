"""The composition root: from an `AgentConfig` to a running agent, and how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.agent import Agent, AgentLinks
from rallypoint.agent.embedding import Embedding, gets_signals, run_to_its_end
from rallypoint.agent.environ import visible_devices
from rallypoint.agent.former_agents import dead_places
from rallypoint.agent.helper_processes import HelperEvents, HelperProcesses, NodeLease, wait_unless
from rallypoint.agent.membership import LAST_REPORTS_S, AgentSetup, Membership, part_of_job
from rallypoint.agent.node_workers import MakeWorkers, RunningRound, WorkerRound
from rallypoint.agent.output_files import OutputFiles, PatternLines, output_settings, succeeded
from rallypoint.agent.round_store import StoreAccess
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.agent.worker_source import ForkingSource, WorkerSource
from rallypoint.agent.workers import RoundWorkers, WorkerSetup
from rallypoint.clocks import new_loop
from rallypoint.config import AgentConfig, StartMethod, StopConfig, WorkerConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.messages import Prove
from rallypoint.core.model import Assignment, DeadPlace
from rallypoint.core.node.events import Finish, Tried
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import InfrastructureError, InvariantError, RallypointError, UsageError
from rallypoint.observe.faults import Faults, describe_fault
from rallypoint.observe.printing import say_traceback
from rallypoint.observe.records import Observer
from rallypoint.process.exits import Reaper
from rallypoint.process.guard import Guard
from rallypoint.process.limits import have_descriptors_for, out_of_files
from rallypoint.process.logs.worker_output import WorkerOutputs
from rallypoint.process.relay.client import Relay
from rallypoint.process.scratch import Scratch
from rallypoint.process.signals import blocked, hold_late_signals, release_signals

if TYPE_CHECKING:
    from rallypoint.agent.preempt_notice import PreemptNotice
    from rallypoint.agent.preflight import Preflight, Unfit
    from rallypoint.process.logs.newest import OutputLines


KEPT_S = 0.5
"""The time limit in seconds for reading the workers' last output."""
TIME_IS_OVER = "its time is over (--stop-before)"


class JobEnd(Struct, frozen=True):
    """The end of one node's part of a job, and its duration in seconds."""

    finish: Finish
    run_id: str
    round: int
    elapsed_s: float
    return_values: dict[int, object] = {}
    """The results of this node's workers, by global rank, if all have succeeded. `on_end` does not
    see them: they are filled in last, after the shutdown."""
    failures: dict[int, WorkerExit] = {}
    """The failures of this node's workers in the last round, by global rank."""
    error_files: dict[int, str] = {}
    """The error files of all this node's workers in the last round, by global rank. A file in the
    agent's own directory is gone when the agent has ended, or, if a program launched a job that
    failed, when that program has ended."""
    caught: int = 0
    """The number of the first signal that this agent got; 0: it got none."""
    error: Exception | None = None
    """The exception of a rendezvous handler that ended the node's part; None: none did."""
    node: str = ""
    place: Assignment | None = None
    """The place of this node in the last round that it took part in; None: it took part in none."""


OnEnd = Callable[[JobEnd], None]


def first_failure(end: JobEnd) -> tuple[WorkerExit, str, str] | None:
    """Return the worker that is to blame for the job's end, on whichever node; None: no worker is.

    The result has its exit, its node, and its error file if that is on this node, else "".
    """
    verdict = end.finish.verdict
    cause = verdict.cause if verdict is not None else None
    if cause is None or cause.failure is None:
        return None
    # A rank of this node in an earlier round may be another worker.
    files = end.error_files if cause.round == end.round else {}
    return cause.failure, cause.node_id, files.get(cause.failure.rank, "")


def run_agent(
    config: AgentConfig,
    telemetry: Telemetry,
    make_observer: Callable[[Relay], Observer],
    on_end: OnEnd,
    embedding: Embedding | None = None,
) -> JobEnd:
    """Run this node's part of the job, to its end. Blocks.

    For the main thread; with `embedding`, for any thread.

    `make_observer` gets the relay, through which lines reach the console. `on_end` is called while
    the console still exists, for the last lines. The caller closes `telemetry`. Raises
    RallypointError when this node could not take part. The helper processes have ended in any case.
    """
    signals = signals_to_handle(config, embedding)
    settings = output_settings(config)
    # A call and a result for each, if there is a function.
    have_descriptors_for(config.workers.count * (2 if config.workers.function else 1))
    config, cpus = _bound(config)
    source = _make_source(config.workers, cpus)
    scratch = Scratch(config.output.temp_dir, config.rendezvous.run_id)
    # The guard comes first: until it runs, a killed agent would leave what it has made.
    helpers = HelperProcesses(scratch.paths, source, part_of_job(config.rendezvous))
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
            telemetry.dispatcher.subscribe(make_observer(helpers.relay))
            own, dead = scratch.path, _dead_places(config, scratch)
            setup = AgentSetup(
                config, signals, telemetry, selector, helpers, embedding, own, outputs, dead
            )
            return run_to_its_end(loop, _run(setup, outputs, files, scratch.path, on_end))
        except OSError as error:
            if (short := out_of_files(error)) is None:
                raise
            raise short from error
        finally:
            files.hand_over(scratch)  # The guard removes the rest of it when it ends.
            loop.run_until_complete(helpers.stop(config.stop.shutdown_grace_s))
            with blocked(signals):
                loop.close()
                if embedding is None:
                    hold_late_signals(signals)


def _dead_places(config: AgentConfig, scratch: Scratch) -> tuple[DeadPlace, ...]:
    """Return the places of the job's former agents here that are dead with their workers.

    Empty in a job of one node without a register, and with another package's rendezvous handler:
    nobody would use them.
    """
    rendezvous = config.rendezvous
    if rendezvous.handler is not None or (rendezvous.max_nodes == 1 and not rendezvous.register):
        return ()
    return dead_places(map(os.path.dirname, scratch.paths), rendezvous.run_id)


async def _run(
    setup: AgentSetup, outputs: WorkerOutputs, files: OutputFiles, scratch: str, on_end: OnEnd
) -> JobEnd:
    helpers, embedding = setup.helpers, setup.embedding
    assert helpers is not None
    round_workers = RoundWorkers if embedding is None else embedding.round_workers

    def make_workers(round_: WorkerRound) -> RoundWorkers:
        worker_setup = WorkerSetup(
            setup.config.workers,
            helpers.source,
            outputs,
            helpers.guard,
            scratch,
            lambda text: run.agent.say(kinds.TIMER_EXPIRED(text)),
            run.faults,
            run.cant_log,
            setup.config.stop.signal_scope == "worker",
        )
        made = round_workers(worker_setup, round_)
        run.lease.tell_workers(made.shm.hold)
        return made

    def ended(end: JobEnd) -> None:
        files.succeeded = succeeded(end.finish)
        files.are_needed = embedding is not None and bool(end.failures) and not files.succeeded
        files.tell_kept(run.agent.say)
        on_end(end)

    run = AgentRun(setup, make_workers)
    try:
        if url := await setup.telemetry.open():
            run.agent.say(kinds.METRICS(url=url))
        return await run.main(ended)
    except RallypointError:
        files.tell_kept(run.agent.say)
        raise
    finally:
        setup.telemetry.hang_up()


class AgentRun:
    """One agent's run inside the loop: call `main` once."""

    def __init__(self, setup: AgentSetup, make_workers: MakeWorkers) -> None:
        self._setup, self._helpers, self._stop = setup, setup.helpers, setup.config.stop
        self.lease = NodeLease(self._hold)
        """The lease of this node's place in the job."""
        self._hurried = self._helpers.hurried if self._helpers is not None else asyncio.Event()
        """The event that ends every wait: set by a second signal, or by one after the end."""
        store_access = StoreAccess(
            setup.config,
            lambda round_, why: self.agent.helper_died(round_, why, others_need_it=True),
        )
        links = AgentLinks(
            setup.telemetry.dispatcher,
            store_access,
            self._hurried.set,
            self.lease.fence,
            self._helpers.source.wait_ready if self._helpers is not None else None,
            self._try_to_start,
            lambda: self._membership.last_words(),
            self._helpers.take_signals if self._helpers is not None else None,
        )
        self.agent = Agent(setup.config, make_workers, setup.signals, links)
        self.faults = Faults(lambda text: self.agent.say(kinds.FAULT(text)))
        """Unexpected errors that must not end this agent (see docs/design/untrusted-input.md)."""
        self._membership = Membership(setup, self.agent, store_access, self.lease)
        self._store_access = store_access
        self._notice: PreemptNotice | None = None
        self._preflights: set[Preflight] = set()
        self._reaper: Reaper | None = None
        self._caught = 0

    async def main(self, on_end: OnEnd) -> JobEnd:
        """Take part in the job to its end, and return how it ended for this node.

        `on_end` is called before the shutdown, which may take a while on the node that hosts the
        coordinator.

        Raises RallypointError when this node could not take part.
        """
        began_at = time.monotonic()
        agent, others_stop_s = self.agent, self._stop.shutdown_grace_s
        self._install()
        opening = asyncio.get_running_loop().create_task(self._membership.open(self._hurried))
        try:
            await asyncio.wait((opening, agent.finished), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            finish = await agent.finished
            if finish.verdict is not None and not finish.verdict.signal:
                others_stop_s = self._stop.restart_grace_s
            end = self._end(finish, time.monotonic() - began_at)
            on_end(end)
            await wait_unless(self._hurried, self._keep_output(), KEPT_S)
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            if self._notice is not None:
                await wait_unless(self._hurried, self._notice.close(), LAST_REPORTS_S)
            await agent.close()
            await self._membership.close(others_stop_s)
            self.faults.tell_counts()
            self._setup.telemetry.hang_up()
            self._uninstall()
        # Last, for large ones take their time: by now nobody waits for this node.
        return replace(end, return_values=agent.workers.return_values())

    async def _keep_output(self) -> None:
        """Keep the last output of the workers for people who ask after the end."""
        keeping, running = self._setup.telemetry.keeping, self.agent.workers.newest
        if keeping is None or running is None or self._setup.outputs is None:
            return
        # Imported at the end of the job: a start has no use for them.
        from rallypoint.core.watch.kept_jobs import LINES, KeptLine

        try:
            found = await _newest_lines(self._setup.outputs, running, LINES)
        except Exception as error:  # of what workers have written, or of files
            self.faults.note("the last output of the workers can't be kept", error)
            return
        keeping.took(
            tuple(
                KeptLine(rank, line.stream, line.wall_time, line.data.decode(errors="replace"))
                for rank, line in found
            )
        )

    def _end(self, finish: Finish, elapsed_s: float) -> JobEnd:
        agent, newest = self.agent, self._setup.telemetry.dispatcher.timeline.newest
        return JobEnd(
            finish,
            self._setup.config.rendezvous.run_id,
            agent.round,
            elapsed_s,
            failures=agent.workers.failures,
            error_files=agent.workers.error_files,
            caught=self._caught,
            error=self._membership.error,
            node=self._setup.telemetry.dispatcher.node,
            place=newest.assignment if newest is not None else None,
        )

    def _hold(self, until: float) -> None:
        """Tell the guard when the lease ends, if another node can take this node's place.

        In a job of one node without a register none can: its workers outlive the lease while this
        process is stopped (Ctrl-Z, or a laptop that sleeps). Where `serve` may give its place away
        nevertheless, the agent ends its workers when it runs again.
        """
        rendezvous = self._setup.config.rendezvous
        if self._helpers is not None and (rendezvous.max_nodes > 1 or rendezvous.register):
            self._helpers.hold(until)

    def cant_log(self, text: str) -> None:
        """Report that a log file of a worker can't be written.

        `text` goes to the observers now, and to the coordinator with the next heartbeat. If it is
        the last one reported in this round, it is not reported again.
        """
        dispatcher = self._setup.telemetry.dispatcher
        if text != dispatcher.cant_log:
            dispatcher.cant_log = text
            self.agent.say(kinds.LOG_STORAGE(text))

    def _install(self) -> None:
        loop, dispatcher = asyncio.get_running_loop(), self._setup.telemetry.dispatcher
        loop.set_exception_handler(self._crashed)
        for number in self._setup.signals:
            loop.add_signal_handler(number, self._signalled, number)
        if self._helpers is not None:
            self._helpers.watch(
                HelperEvents(
                    self._guard_replaced,
                    self._relay_replaced,
                    self.cant_log,
                    dispatcher.first_output,
                    partial(self.agent.say, kinds.STDIN()),
                    PatternLines(self._setup.config, dispatcher, self.agent.say),
                    self.agent.witness_signalled,
                )
            )
            self._helpers.source.watch(self.agent.source_failed, self.agent.say)
        if self._setup.embedding is not None:
            self._setup.embedding.attach(loop, self._signalled)
        else:
            self._own_process(loop)
        self._watch_notice()

    def _watch_notice(self) -> None:
        if (leave_in_s := self._stop.leave_in_s) is not None:
            asyncio.get_running_loop().call_later(leave_in_s, self.agent.leave, TIME_IS_OVER)
        if spec := self._stop.preempt_notice:
            # Imported only if it is requested: it is not needed for a start.
            from rallypoint.agent.preempt_notice import PreemptNotice

            guard = self._helpers.guard if self._helpers is not None else None
            self._notice = PreemptNotice(
                spec,
                guard,
                self.agent.leave,
                lambda text: self.agent.say(kinds.PREEMPT_NOTICE(text)),
            )
            self._notice.start()

    async def _try_to_start(self, order: Prove, node_id: str) -> Tried:
        """Test whether workers can start, and at the same time whether the round store is reached.

        An unexpected error in the first test is noted, and no machine is held back for it.
        """
        reaching = asyncio.get_running_loop().create_task(self._try_to_reach(order, node_id))
        try:
            unfit = await self._try_machine()
            if unfit is not None:
                return Tried(order.stamp, order.number, unfit.text, unfit.lacking, unfit.fix)
            return Tried(order.stamp, order.number, unreached=await reaching)
        finally:
            reaching.cancel()

    async def _try_machine(self) -> Unfit | None:
        if self._setup.outputs is None or self._helpers is None:
            return None
        # Imported now: most nodes are never asked.
        from rallypoint.agent.preflight import Preflight, places

        config = self._setup.config
        where = places(self._setup.outputs.specs, self._setup.scratch, config.output.temp_dir)
        preflight = Preflight(where, config.workers.count, part_of_job(config.rendezvous))
        self._preflights.add(preflight)
        try:
            return await preflight.run()
        except Exception as error:
            self.faults.note("the test start of workers failed", error)
            return None
        finally:
            if not preflight.is_left:
                self._preflights.discard(preflight)

    async def _try_to_reach(self, order: Prove, node_id: str) -> str:
        """Return why the round store can't be reached; empty: it was reached."""
        try:
            await self._store_access.reach(order, node_id)
        except RallypointError as error:
            return str(error)
        except Exception as error:  # of what answers there
            return describe_fault(error)
        return ""

    def _signalled(self, number: int) -> None:
        self._caught = self._caught or number
        is_text = self._setup.config.output.log_format == "text"
        if number == signal.SIGINT and is_text and self._helpers is not None:
            self._helpers.relay.fold_interrupts()
        self.agent.caught(number)

    def _own_process(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if number not in self._setup.signals:
                signal.signal(number, signal.SIG_IGN)
        release_signals()
        if os.getpid() == 1 or (self._helpers is not None and self._helpers.source.adopts_orphans):
            self._reaper = Reaper.install(loop, self._is_ours)

    def _uninstall(self) -> None:
        if self._setup.embedding is not None:
            self._setup.embedding.detach()
        if self._helpers is not None:
            self._helpers.unwatch()
            self._helpers.source.unwatch()
        if self._reaper is not None:
            self._reaper.close()

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """End this agent with the reason: a resource that the system refused, or else a bug."""
        cause = cast(BaseException | None, context.get("exception"))
        refused = cause if isinstance(cause, InfrastructureError) else out_of_files(cause)
        what = describe_fault(cause) if cause is not None else _said_by_loop(context)
        error: Exception = refused or InvariantError(
            f"the agent has a bug ({what}): please report it"
        )
        if refused is None and cause is not None:
            say_traceback(cause)
        if not self.agent.finished.done():
            error.__cause__ = cause
            self.agent.finished.set_exception(error)

    def _guard_replaced(self, guard: Guard) -> None:
        self.agent.workers.use_guard(guard)
        self.agent.say(kinds.GUARD_REPLACED())

    def _relay_replaced(self, round_: int, by_another: bool) -> None:
        killed = "the relay of the workers' output was killed"
        then = "started another" if by_another else "output goes to the agent's stdout and stderr"
        self.agent.say(kinds.RELAY_REPLACED(then=then))
        self.agent.helper_died(round_, killed, others_need_it=False)

    def _is_ours(self, pid: int) -> bool:
        owners = (
            *(self._membership, self.agent.workers, self._helpers, self._notice),
            *self._preflights,
        )
        return any(owner is not None and owner.owns(pid) for owner in owners)


def _bound(config: AgentConfig) -> tuple[AgentConfig, Sequence[frozenset[int]]]:
    """Return the configuration, and the CPUs of each worker; no CPUs: workers are not bound.

    A remark on the binding is added to the notices of the configuration.
    """
    if config.workers.numa is None:
        return config, ()
    from rallypoint.process.affinity import worker_cpus

    cpus, notice = worker_cpus(config.workers.count, config.workers.numa, visible_devices())
    notices = (*config.notices, notice) if notice else config.notices
    return replace(config, notices=notices), cpus


def _make_source(config: WorkerConfig, cpus: Sequence[frozenset[int]]) -> WorkerSource:
    """Return the source of workers for the start method.

    Raises UsageError for what can't be started that way.
    """
    match config.method:
        case StartMethod.FORKSERVER:
            from rallypoint.agent.prepared_source import PreparedSource

            return PreparedSource(config, cpus)
        case StartMethod.FORK:
            return ForkingSource(config, cpus)
        case StartMethod.SPAWN:
            return WorkerSource(config, cpus)


def signals_to_handle(config: AgentConfig, embedding: Embedding | None) -> tuple[int, ...]:
    """Return the signals that end this agent; with `embedding`, none outside the main thread.

    Of the usual signals, those that were ignored at its start stay ignored (`nohup`, a background
    job of a shell); signals that a user chose are always handled. Raises UsageError.
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


def _said_by_loop(context: dict[str, object]) -> str:
    """Return the message that the loop's exception handler gets in `context`.

    With the function of its task if it has one.
    """
    said, task = str(context["message"]), context.get("task")
    if not isinstance(task, asyncio.Task):
        return said
    return f"{said} {getattr(task.get_coro(), '__qualname__', task)}"


async def _newest_lines(
    outputs: WorkerOutputs, running: RunningRound, newest: int
) -> list[tuple[int, OutputLines]]:
    """Return the newest lines of output, at most `newest` of each stream of these workers.

    They are in the order of arrival, each with the worker's global rank.
    """
    from rallypoint.process.logs.newest import OutputReader, ReadStart

    place, ranks = running.assignment, list(range(len(running.workers.shm.pids)))
    reader = OutputReader(outputs, place.round, ranks, ReadStart(newest), unfinished=True)
    lines = [line async for part in reader.read() for line in part]
    lines.sort(key=lambda line: line.wall_time)
    return [(place.base_rank + line.local_rank, line) for line in lines]
