"""The commands of `rallypoint`, each with the module that has it. Data alone: a command is imported
when it is asked for."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One command."""

    name: str
    module: str
    """It has `run(argv)`, which returns the exit code, and the options and the help under the name
    of the command in capitals; or, for a row with a text, `run(row, argv)` and `command(row)`."""
    about: str
    """For the help of all commands."""
    text: str = ""
    """The help of a command about a job that is answered by one sentence (`watch/wishes.py`). Its
    subject (`core/watch/questions.py`) has the name of the command."""
    names_job: bool = False
    """Where no word says which job is meant, it names the job that was found."""
    asks: bool = False
    """And in a terminal it asks first."""
    handles_signals: bool = False
    """Does so itself from when it has something to put in order."""
    imports_asyncio: bool = True
    """With its module."""


_WISHES = "rallypoint.cli.watch.wishes"
ROWS = {
    row.name: row
    for row in (
        Row(
            "run",
            "rallypoint.cli.run",
            "start, supervise and restart a job's workers on this node",
            handles_signals=True,
            imports_asyncio=False,
        ),
        Row(
            "launch",
            "rallypoint.cli.launch.command",
            "start a job on many hosts over ssh, from one terminal",
            handles_signals=True,
        ),
        Row(
            "status",
            "rallypoint.cli.watch.status",
            "show what a job does, and which rank or node holds it up",
        ),
        Row(
            "events",
            "rallypoint.cli.watch.events",
            "show what happened to a job, as it happens with -f",
        ),
        Row(
            "logs",
            "rallypoint.cli.watch.logs",
            "show what the workers of a job wrote last, as they write with -f",
        ),
        Row("stacks", "rallypoint.cli.watch.stacks", "show what the workers of a job do just now"),
        Row(
            "checkpoint",
            _WISHES,
            "have the workers of a job save a checkpoint now",
            """\
Have the workers of a job save a checkpoint now, and wait until they have. The
job goes on. Workers take part that call rallypoint.worker.checkpoint_requested
in their loop. ENDPOINT is what the job's nodes have as --rdzv-endpoint; without
one, it is your job on this machine.

  rallypoint checkpoint node-0 --job digits
""",
            names_job=True,
        ),
        Row(
            "restart",
            _WISHES,
            "stop the workers of a job and start them again in a new round",
            """\
Stop the workers of a job and start them again in a new round, and wait until it
has begun. No restart is charged. ENDPOINT is what the job's nodes have as
--rdzv-endpoint; without one, it is the only job of yours on this machine, and
in a terminal you are asked whether you mean it.

  rallypoint checkpoint node-0 --job digits && rallypoint restart node-0 --job digits
""",
            names_job=True,
            asks=True,
        ),
        Row(
            "cancel",
            _WISHES,
            "end a job on all of its nodes",
            """\
End a job on all of its nodes, as Ctrl-C on one of them does; their exit code is
130. ENDPOINT is what the job's nodes have as --rdzv-endpoint; without one, it is
the only job of yours on this machine, and in a terminal you are asked whether
you mean it.

  rallypoint cancel node-0 --job digits
""",
            names_job=True,
            asks=True,
        ),
        Row("drain", "rallypoint.cli.watch.drain", "make a node leave its job, after a checkpoint"),
        Row(
            "nodes",
            "rallypoint.cli.watch.nodes",
            "show which machines a job holds back; exclude one, or allow it again",
        ),
        Row(
            "serve",
            "rallypoint.cli.serve",
            "host a coordinator for many jobs, apart from their nodes",
            handles_signals=True,
        ),
        Row(
            "store",
            "rallypoint.cli.store",
            "host a store for torch's TCPStore clients, outside any job",
            handles_signals=True,
        ),
        Row(
            "token",
            "rallypoint.cli.token",
            "make or show the secret that the nodes of a job share",
            imports_asyncio=False,
        ),
        Row(
            "verdict",
            "rallypoint.cli.job_verdict",
            "say how a job has ended, with its exit code",
            imports_asyncio=False,
        ),
        Row(
            "generate",
            "rallypoint.cli.generate.command",
            "print what a cluster needs to run jobs",
            imports_asyncio=False,
        ),
        Row(
            "completion",
            "rallypoint.cli.completion",
            "print a script that completes options in bash, zsh, tcsh or fish",
        ),
    )
}
