"""The commands of `rallypoint`, with their modules.

Data alone: a command's module is imported when it is used.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One command of `rallypoint`: its name, module and help."""

    name: str
    module: str
    """The module with `run(argv)`, which returns the exit code, and the `Command` under the
    command's name in capitals. The module of a row with a text has `run(row, argv)` and
    `command(row)`."""
    about: str
    """The text about the command in the list of `rallypoint --help`."""
    text: str = ""
    """The help of a command about a job whose answer is one sentence (`watch/wishes.py`); empty:
    another command. Its subject (`core/watch/questions.py`) has the name of the command."""
    stops_workers: bool = False
    """Whether a user in a terminal has to confirm the command without ENDPOINT and --job."""


_CLI = "rallypoint.cli."
_WATCH, _WISHES = _CLI + "watch.", _CLI + "watch.wishes"
_CHECKPOINT = """\
Ask the workers of a job to save a checkpoint now, and wait until it is saved.
The job continues. Only workers that call rallypoint.worker.checkpoint_requested
in their loop save one. ENDPOINT is the --rdzv-endpoint of the job's nodes; the
default is your job on this machine.

  rallypoint checkpoint node-0 --job digits
"""
_RESTART = """\
Stop the workers of a job, start them again in a new round, and wait until that
round has begun. It does not count against --max-restarts. ENDPOINT is the
--rdzv-endpoint of the job's nodes; the default is your only job on this machine.
Without ENDPOINT and --job the command asks for confirmation in a terminal.

  rallypoint checkpoint node-0 --job digits && rallypoint restart node-0 --job digits
"""
_CANCEL = """\
End a job on all of its nodes, as Ctrl-C on one of them does; their exit code is
130. ENDPOINT is the --rdzv-endpoint of the job's nodes; the default is your only
job on this machine. Without ENDPOINT and --job the command asks for
confirmation in a terminal.

  rallypoint cancel node-0 --job digits
"""
ROWS = {
    row.name: row
    for row in (
        Row("run", _CLI + "run", "start, supervise and restart a job's workers on this node"),
        Row(
            "launch",
            _CLI + "launch.command",
            "start a job on many hosts over ssh, from one terminal",
        ),
        Row(
            "status",
            _WATCH + "status",
            "show a job's state, and which rank or node is holding it up",
        ),
        Row("events", _WATCH + "events", "show the events of a job; -f: follow them"),
        Row(
            "logs",
            _WATCH + "logs",
            "show the newest lines that a job's workers wrote; -f: follow them",
        ),
        Row("stacks", _WATCH + "stacks", "show the stacks of a job's workers, as they are now"),
        Row(
            "checkpoint", _WISHES, "ask the workers of a job to save a checkpoint now", _CHECKPOINT
        ),
        Row(
            "restart",
            _WISHES,
            "restart the workers of a job in a new round",
            _RESTART,
            True,
        ),
        Row("cancel", _WISHES, "end a job on all of its nodes", _CANCEL, True),
        Row("drain", _WATCH + "drain", "make a node leave its job, after a checkpoint"),
        Row(
            "nodes",
            _WATCH + "nodes",
            "show which machines a job holds back; exclude one, or allow it again",
        ),
        Row("serve", _CLI + "serve", "host a coordinator for many jobs, apart from their nodes"),
        Row("store", _CLI + "store", "host a store for torch's TCPStore clients, outside any job"),
        Row(
            "token", _CLI + "token", "create or show the secret token that the nodes of a job share"
        ),
        Row("verdict", _CLI + "job_verdict", "print how a job ended, and exit with its exit code"),
        Row(
            "shim",
            _CLI + "shim.command",
            "run a command that starts torchrun, with Rallypoint in its place",
        ),
        Row(
            "migrate",
            _CLI + "migrate.command",
            "translate a command line of torchrun, mpirun or another launcher",
        ),
        Row(
            "generate",
            _CLI + "generate.command",
            "print manifests or batch scripts that run jobs on a cluster",
        ),
        Row(
            "completion",
            _CLI + "completion",
            "print a script that completes options in bash, zsh, tcsh or fish",
        ),
    )
}
"""The rows by the names of commands."""
HANDLE_SIGNALS = frozenset({"run", "launch", "serve", "store", "shim"})
"""The commands that handle signals themselves, once they have something to clean up."""
WITHOUT_ASYNCIO = frozenset({"run", "token", "verdict", "generate", "shim", "migrate"})
"""The commands whose module does not import asyncio."""
