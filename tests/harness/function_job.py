"""A program that runs a Python function as the workers of a job, and proof that nothing remains.

`job.py` holds the test's functions; its last line, under the usual guard, launches one of them.
What the workers return is printed in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.one_agent import TELL, OneAgent, started

PREAMBLE = (
    TELL
    + """
import os, sys


def launch(function, *args, count=2, max_restarts=0, **workers):
    from rallypoint.agent.run import run_agent
    from rallypoint.agent.telemetry.telemetry import Telemetry
    from rallypoint.cli.console import Printer
    from rallypoint.cli.verdict import of_finish
    from rallypoint.cli.verdict import verdict_lines
    from rallypoint.cli.verdict import verdict_view
    from rallypoint.config import (
        AccessConfig,
        AgentConfig,
        FunctionCall,
        RendezvousConfig,
        StartMethod,
        WorkerConfig,
    )
    from rallypoint.errors import RallypointError

    method = workers.pop("method", None)
    try:
        config = AgentConfig(
            rendezvous=RendezvousConfig(run_id="job", max_restarts=max_restarts),
            access=AccessConfig(insecure=True),
            workers=WorkerConfig(
                function=FunctionCall(function, (args,) * count),
                count=count,
                start_method=StartMethod(method) if method else None,
                **workers,
            ),
        )
        consoles = []

        def console(relay):
            consoles.append(Printer(config, relay))
            return consoles[0]

        def say(end):
            for line in verdict_lines(verdict_view(end), quiet=False):
                consoles[0].line(line)

        end = run_agent(config, Telemetry(config), console, say)
    except RallypointError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    tell("returned", end.return_values)
    sys.exit(of_finish(config.stop, end.finish, end.elapsed_s))


"""
)


@contextmanager
def function_job(
    home: Path, functions: str, launch: str, *, env: dict[str, str] | None = None
) -> Iterator[OneAgent]:
    """Run `launch(...)`, whose arguments are the text `launch`, in a file with these functions."""
    program = home / "job.py"
    text = f"{PREAMBLE}{functions}\n\nif __name__ == '__main__':\n    launch({launch})\n"
    program.write_text(text)
    with started(home, [sys.executable, str(program)], **(env or {})) as running:
        yield running
