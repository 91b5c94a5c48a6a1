"""The `rallypoint` command: picks the subcommand, and turns every error into one line.

Each subcommand is imported only when it is asked for: `run` must reach its first worker in a
fraction of the time that a person notices.

msgspec takes `get_type_hints`, `Required` and `NotRequired` from typing_extensions if that is
installed, else from `typing`, which has had the same since Python 3.11. Without typing_extensions a
command starts 2 ms earlier, and each agent takes 0.4 MB less for as long as its job runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from rallypoint.cli import is_a_command, raise_interrupts

# A program that imports this is left as it is. Later imports of typing_extensions find it.
if is_a_command() and not sys.modules.keys() & {"msgspec", "typing_extensions"}:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # Looks uninstalled.
    try:
        import msgspec as msgspec
    finally:
        del sys.modules["typing_extensions"]

from rallypoint.cli.parser import CompletionRequested, ExplainRequested, HelpRequested, help_text
from rallypoint.errors import ExitClass, RallypointError
from rallypoint.observe.printing import print_error

COMMANDS = {
    "run": "rallypoint.cli.run",
    "launch": "rallypoint.cli.launch.command",
    "status": "rallypoint.cli.watch.status",
    "events": "rallypoint.cli.watch.events",
    "logs": "rallypoint.cli.watch.logs",
    "stacks": "rallypoint.cli.watch.stacks",
    "checkpoint": "rallypoint.cli.watch.wishes:run_checkpoint",
    "restart": "rallypoint.cli.watch.wishes:run_restart",
    "cancel": "rallypoint.cli.watch.wishes:run_cancel",
    "drain": "rallypoint.cli.drain",
    "nodes": "rallypoint.cli.watch.nodes",
    "serve": "rallypoint.cli.serve",
    "store": "rallypoint.cli.store",
    "token": "rallypoint.cli.token",
    "verdict": "rallypoint.cli.job_verdict",
    "generate": "rallypoint.cli.generate.command",
    "completion": "rallypoint.cli.completion",
}
"""Each with the module whose `run` it is, or with the function."""
_HANDLE_SIGNALS = frozenset({"run", "launch", "serve", "store"})
"""Commands that do so themselves from when they have something to put in order."""
_WITHOUT_ASYNCIO = frozenset({"run", "token", "verdict", "generate"})
"""Commands that do not import it with their module."""
_ENDED_BY_SIGINT = 130

_HELP = """\
usage: rallypoint COMMAND [options]

  run         start, supervise and restart a job's workers on this node
  launch      start a job on many hosts over ssh, from one terminal
  status      show what a job does, and which rank or node holds it up
  events      show what happened to a job, as it happens with -f
  logs        show what the workers of a job wrote last, as they write with -f
  stacks      show what the workers of a job do just now
  checkpoint  have the workers of a job save a checkpoint now
  restart     stop the workers of a job and start them again in a new round
  cancel      end a job on all of its nodes
  drain       make a node leave its job, after a checkpoint
  nodes       show which machines a job holds back; exclude one, or allow it again
  serve       host a coordinator for many jobs, apart from their nodes
  store       host a store for torch's TCPStore clients, outside any job
  token       make or show the secret that the nodes of a job share
  verdict     say how a job has ended, with its exit code
  generate    print what a cluster needs to run jobs
  completion  print a script that completes options in bash, zsh, tcsh or fish

  rallypoint run --nproc-per-node 2 train.py     two workers on this machine
  rallypoint COMMAND --help                      everything else
  rallypoint --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: the process's own) and returns its exit code.

    Never raises for what a person or a cluster did wrong: that is one line on stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "--help"
    try:
        return _run(command, words[1:])
    except RallypointError as error:
        mistyped = error.exit_class is ExitClass.USAGE and command in COMMANDS
        print_error(f"rallypoint {command}" if mistyped else "rallypoint", str(error))
        return error.exit_class.value
    except KeyboardInterrupt:
        return _ENDED_BY_SIGINT


def _run(command: str, rest: list[str]) -> int:
    try:
        if command in COMMANDS:
            module, _, name = COMMANDS[command].partition(":")
            if command not in _WITHOUT_ASYNCIO:
                from rallypoint.cli.late_tls import load_tls_late

                load_tls_late()
            run = getattr(import_module(module), name or "run")
            if command not in _HANDLE_SIGNALS:
                raise_interrupts()
            return run(rest)  # type: ignore[no-any-return]
        if command in ("--help", "-h", "help"):
            from rallypoint.observe.printing import print_text

            print_text(*_HELP.splitlines())
            return 0
        if command in ("--version", "-V"):
            from rallypoint import __version__
            from rallypoint.observe.printing import print_text
            from rallypoint.wire.versions import SPOKEN

            print_text(f"rallypoint {__version__} (session protocol: {SPOKEN})")
            return 0
        print_error("rallypoint", _unknown(command))
        return ExitClass.USAGE.value
    except CompletionRequested as asked:
        from rallypoint.cli.completion import script
        from rallypoint.observe.printing import write_text

        write_text(script(asked.args[0]))
        return 0
    except ExplainRequested as asked:
        from rallypoint.observe.printing import print_text

        print_text(*asked.args[0])
        return 0
    except HelpRequested as asked:
        from rallypoint.cli.options import default_of
        from rallypoint.observe.printing import print_text

        print_text(*help_text(asked.args[0], default_of).splitlines())
        return 0


def _unknown(command: str) -> str:
    import os.path

    from rallypoint.core.text import shown

    if not command.isprintable():
        return f"{shown(command)}: no such command; known: {', '.join(COMMANDS)}"
    if command.startswith("-"):
        return f"{command}: options come after the command; try rallypoint run {command} ..."
    if command.endswith(".py") or os.path.exists(command):
        return f"{command}: no such command; to start it: rallypoint run {command}"
    from difflib import get_close_matches
    from shutil import which

    close = get_close_matches(command, COMMANDS, n=1)
    hint = f"did you mean rallypoint {close[0]}?" if close else f"known: {', '.join(COMMANDS)}"
    if not close and which(command):
        hint = "for a program in each worker: rallypoint run --no-python " + command
    return f"{command}: no such command; {hint}"
