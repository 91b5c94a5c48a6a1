"""The commands of `rallypoint`, with their modules.

Data alone: a command's module is imported when it is used.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One command."""

    name: str
    module: str
    """The module with `run(argv)`, which returns the exit code, and the `Command` under the
    command's name in capitals. The module of a row with a text has `run(row, argv)` and
    `command(row)`."""
    about: str
    """The line in the help of all commands."""
    text: str = ""
    """The help of a command about a job whose answer is one sentence (`watch/wishes.py`). Its
    subject (`core/watch/questions.py`) has the name of the command."""
    stops_workers: bool = False
    """Whether the user has to confirm the command in a terminal if no word names the job."""


_CLI = "rallypoint.cli."
_WATCH, _WISHES = _CLI + "watch.", _CLI + "watch.wishes"
_CHECKPOINT = """\
Have the workers of a job save a checkpoint now, and wait until they have. The
job goes on. Workers take part that call rallypoint.worker.checkpoint_requested
in their loop. ENDPOINT is what the job's nodes have as --rdzv-endpoint; without
one, it is your job on this machine.

  rallypoint checkpoint node-0 --job digits
"""
_RESTART = """\
Stop the workers of a job and start them again in a new round, and wait until it
has begun. No restart is charged. ENDPOINT is what the job's nodes have as
--rdzv-endpoint; without one, it is the only job of yours on this machine, and
in a terminal you are asked whether you mean it.

  rallypoint checkpoint node-0 --job digits && rallypoint restart node-0 --job digits
"""
_CANCEL = """\
End a job on all of its nodes, as Ctrl-C on one of them does; their exit code is
130. ENDPOINT is what the job's nodes have as --rdzv-endpoint; without one, it is
the only job of yours on this machine, and in a terminal you are asked whether
you mean it.

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
            "status", _WATCH + "status", "show what a job does, and which rank or node holds it up"
        ),
        Row("events", _WATCH + "events", "show what happened to a job, as it happens with -f"),
        Row(
            "logs",
            _WATCH + "logs",
            "show what the workers of a job wrote last, as they write with -f",
        ),
        Row("stacks", _WATCH + "stacks", "show what the workers of a job do just now"),
        Row("checkpoint", _WISHES, "have the workers of a job save a checkpoint now", _CHECKPOINT),
        Row(
            "restart",
            _WISHES,
            "stop the workers of a job and start them again in a new round",
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
        Row("token", _CLI + "token", "make or show the secret that the nodes of a job share"),
        Row("verdict", _CLI + "job_verdict", "say how a job has ended, with its exit code"),
        Row(
            "shim",
            _CLI + "shim.command",
            "run a command, with Rallypoint in the place of the torchrun that it starts",
        ),
        Row(
            "migrate",
            _CLI + "migrate.command",
            "print the line of Rallypoint for a command line of another launcher",
        ),
        Row("generate", _CLI + "generate.command", "print what a cluster needs to run jobs"),
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
