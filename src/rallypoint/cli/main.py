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

from rallypoint.cli.commands import HANDLE_SIGNALS, ROWS, WITHOUT_ASYNCIO
from rallypoint.cli.parser import CompletionRequested, ExplainRequested, HelpRequested, help_text
from rallypoint.errors import ExitClass, RallypointError
from rallypoint.observe.printing import print_error

_ENDED_BY_SIGINT = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code.

    Never raises for an error of the user or the cluster, which it prints on stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "--help"
    try:
        return _run(command, words[1:])
    except RallypointError as error:
        mistyped = error.exit_class is ExitClass.USAGE and command in ROWS
        print_error(f"rallypoint {command}" if mistyped else "rallypoint", str(error))
        return error.exit_class.value
    except KeyboardInterrupt:
        return _ENDED_BY_SIGINT


def _run(command: str, rest: list[str]) -> int:
    try:
        if command in ROWS:
            row = ROWS[command]
            if command not in WITHOUT_ASYNCIO:
                from rallypoint.cli.late_tls import load_tls_late

                load_tls_late()
            module = import_module(row.module)
            if command not in HANDLE_SIGNALS:
                raise_interrupts()
            return module.run(row, rest) if row.text else module.run(rest)  # type: ignore[no-any-return]
        if command in ("--help", "-h", "help"):
            from rallypoint.observe.printing import print_text

            print_text(*_help())
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


def _help() -> list[str]:
    return [
        "usage: rallypoint COMMAND [options]",
        "",
        *(f"  {row.name:10}  {row.about}" for row in ROWS.values()),
        "",
        "  rallypoint run --nproc-per-node 2 train.py     two workers on this machine",
        "  rallypoint COMMAND --help                      everything else",
        "  rallypoint --version",
    ]


def _unknown(command: str) -> str:
    import os.path

    from rallypoint.core.text import shown

    if not command.isprintable():
        return f"{shown(command)}: no such command; known: {', '.join(ROWS)}"
    if command.startswith("-"):
        return f"{command}: options come after the command; try rallypoint run {command} ..."
    if command.endswith(".py") or os.path.exists(command):
        return f"{command}: no such command; to start it: rallypoint run {command}"
    from difflib import get_close_matches
    from shutil import which

    # Two letters are close to many a word, and are more often a program: `sh` is not `shim`.
    close = get_close_matches(command, ROWS, n=1) if len(command) > 2 else []
    hint = f"did you mean rallypoint {close[0]}?" if close else f"known: {', '.join(ROWS)}"
    if not close and which(command):
        hint = "for a program in each worker: rallypoint run --no-python " + command
    return f"{command}: no such command; {hint}"
