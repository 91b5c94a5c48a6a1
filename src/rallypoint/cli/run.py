"""`rallypoint run`: start, supervise and restart a job's workers on this node."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rallypoint.cli import raise_interrupts
from rallypoint.cli.access import keep_secrets, with_own_token_only
from rallypoint.cli.late_tls import load_tls_late
from rallypoint.cli.options import RUN, parse_run
from rallypoint.cli.parser import with_hint
from rallypoint.config import AgentConfig, RegisterConfig
from rallypoint.core.outcomes import BY_CLASS, Outcome
from rallypoint.errors import InfrastructureError, RallypointError
from rallypoint.observe.printing import print_error, say
from rallypoint.process import titles
from rallypoint.process.signals import hold_early_signals

if TYPE_CHECKING:
    from rallypoint.agent.run import JobEnd


def run(argv: Sequence[str]) -> int:
    """Run `rallypoint run` and return its exit code. Blocks until this node's part of the job ends.

    A failure of the job does not raise. An invalid command line raises UsageError or
    InfrastructureError; options that ask for a text raise HelpRequested, CompletionRequested or
    ExplainRequested.
    """
    hold_early_signals()
    config = with_hint(RUN, lambda: parse_run(argv))
    try:
        config = with_own_token_only(config)
        if "SIGINT" not in config.stop.signals:
            raise_interrupts()
        return _take_part(config)
    except RallypointError as error:
        print_error("rallypoint", str(error))
        _tell_starter(error)
        return config.stop.exit_code(BY_CLASS[error.exit_class].exit_class)


def _take_part(config: AgentConfig) -> int:
    gc.disable()  # Nothing that starting makes is garbage: to look for some costs milliseconds.
    keep_secrets()
    titles.set_name("rallypoint-agt")
    load_tls_late()
    from rallypoint.agent.run import run_agent
    from rallypoint.cli.console import Printer
    from rallypoint.cli.summary import JobReport
    from rallypoint.cli.verdict import of_finish, prints_whole, verdict_lines, verdict_view
    from rallypoint.process.relay.client import Relay

    consoles: list[Printer] = []

    def print_line(line: str) -> None:
        (consoles[0].line if consoles else say)(line)

    report = JobReport(config, print_line)

    def make_console(relay: Relay) -> Printer:
        consoles.append(Printer(config, relay))
        return consoles[0]

    def say_last(end: JobEnd) -> None:
        console = consoles[0]
        console.clear_status()
        goodput, budget = report.telemetry.dispatcher.goodput, config.rendezvous.max_restarts
        view = verdict_view(end, goodput, budget, config.stop)
        report.ended(view)
        if view.outcome.is_error:
            _tell_starter(InfrastructureError(view.reason), end)
        output, max_nodes = config.output, config.rendezvous.max_nodes
        whole = prints_whole(output.report, end, max_nodes)
        lines = verdict_lines(view, quiet=output.quiet, whole=whole)
        if output.log_format == "json":
            if lines:
                from rallypoint.cli.verdict_json import verdict_json

                console.line(verdict_json(view))
            return
        console.line(*lines)
        report.tells_where = whole and view.outcome is not Outcome.SUCCEEDED
        if view.outcome is Outcome.TIMED_OUT:
            console.line(*_not_shared_hint(config.rendezvous.register))
        if whole and view.failure is not None:
            console.line(*_other_python_hint(view.failure.message, config.workers.argv))

    gc.freeze()
    gc.enable()
    try:
        end = run_agent(config, report.telemetry, make_console, say_last)
    except BaseException as error:
        consoles.clear()  # It has been taken down.
        report.failed(error)
        raise
    finally:
        # The interpreter looks once more as it ends, which would take longer than all the rest.
        gc.freeze()
    code = of_finish(config.stop, end.finish, end.elapsed_s)
    report.close(code)
    return code


def _other_python_hint(message: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return a hint, or none, for a worker whose error is a missing module.

    The hint names another Python on this machine, which may have the module.
    """
    if not message.startswith("ModuleNotFoundError"):
        return ()
    from rallypoint.cli.machine import other_python_hint

    return other_python_hint(message, argv)


def _not_shared_hint(register: RegisterConfig | None) -> tuple[str, ...]:
    """Return a line on why nodes that waited in vain may not have seen each other's records.

    `register` is where the job's record is kept. Empty: there is no record, or no known reason.
    """
    if register is None:
        return ()
    from rallypoint.register.engines import Use, make

    apart = make(register, Use()).wording().apart()
    return (f"    what to do: {apart}",) if apart else ()


def _tell_starter(error: RallypointError, end: JobEnd | None = None) -> None:
    """Write the cause of the failure to the error file that a launcher of this agent asked for.

    It is the error of the worker, on any node, that caused the end of the job, or else `error`.
    Nothing is written if no error file was asked for.
    """
    from rallypoint.worker.error_file import error_file_asked_for, get_error_handler

    if not error_file_asked_for():
        return
    from rallypoint.agent.run import first_failure
    from rallypoint.process.causes.told import error_record
    from rallypoint.process.failures import parse_error_file, read_error_file

    handler = get_error_handler()
    first = first_failure(end) if end is not None else None
    if first is None:
        handler.record_exception(error)
        return
    exit_, _, file = first
    code = 1 if exit_.returncode is None else exit_.returncode
    if parse_error_file(read_error_file(file)) is not None:
        handler.dump_error_file(file, code)
    else:
        handler.dump_error_data("", {"message": error_record(exit_)}, code)
