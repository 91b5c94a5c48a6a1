"""A program of somebody's that launches a job, as a file that is run, and proof that nothing of it
remains."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.one_agent import TELL, OneAgent, started

IMPORTS = "\nimport os, sys, threading, time\n"
LAUNCHER = "from rallypoint.elastic.launcher import LaunchConfig, elastic_launch\n"
"""A worker of a function imports the program, so it stands where only the main program gets, unless
the functions need it."""


@contextmanager
def program(
    home: Path, text: str, *arguments: str, name: str = "job", before: str = ""
) -> Iterator[OneAgent]:
    """Run `before` and `text`. What follows a line `---` is what is run as the main program."""
    home.mkdir(exist_ok=True)
    functions, _, main = textwrap.dedent(before + text).partition("---\n")
    if "elastic_launch" not in functions:
        main = LAUNCHER + main
    elif LAUNCHER not in functions:
        functions = LAUNCHER + functions
    body = textwrap.indent(main, "    ")
    script = home / f"{name}.py"
    script.write_text(f"{TELL}{IMPORTS}{functions}\nif __name__ == '__main__':\n{body}")
    with started(home, [sys.executable, str(script), *arguments]) as running:
        yield running


def last_line(running: OneAgent) -> str:
    """What a person reads of an exception."""
    return running.err.rstrip().rpartition("\n")[2]
