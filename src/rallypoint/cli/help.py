"""The help text of `rallypoint run`, made from the table of options. Pure."""

from __future__ import annotations

from rallypoint.cli.flags import GROUPS, Flag

_COLUMN = 29
_WIDTH = 79

_TOP = """\
usage: rallypoint run [options] SCRIPT [its arguments]

Starts SCRIPT on every node, gives each worker its rank, and heals the job when
a worker or a node dies. Options go before SCRIPT.

  one machine, one worker per GPU (or per CPU)
    rallypoint run --nproc-per-node auto train.py

  two to four machines: the same line on each; node-a is any one of them
    rallypoint run --nnodes 2:4 --rdzv-endpoint node-a --max-restarts 3 train.py

  two machines with fixed ranks: K is 0 on node-a and 1 on the other
    rallypoint run --nnodes 2 --node-rank K --master-addr node-a train.py

  look at what a worker is told
    rallypoint run --nproc-per-node 2 --no-python env
"""

_BOTTOM = """\
Values in parentheses are defaults. Dashes and underscores are the same, and so
are --nproc-per-node 2 and PET_NPROC_PER_NODE=2 in the environment; options that
torchrun does not have are RALLYPOINT_LEASE=30 and so on there.

Environment: PYTHON_EXEC (the workers' interpreter), LOGLEVEL,
OMP_NUM_THREADS (1 when there are several workers and it is not set),
TORCH_ELASTIC_SHUTDOWN_TIMEOUT, RALLYPOINT_TOKEN (the shared secret itself).

Exit codes: 0 success, 1 the job failed, 2 wrong usage, 75 infrastructure (worth
starting again), 128+N ended by signal N.
"""


def help_text() -> str:
    """The whole text, at most 80 columns wide."""
    parts = [_TOP]
    for title, flags in GROUPS:
        lines = [f"{title}:"]
        for flag in flags:
            lines += _entry(flag.about, _head(flag))
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, _BOTTOM])


def _head(flag: Flag) -> str:
    return f"  {flag.short + ', ' if flag.short else ''}{flag.name} {flag.metavar}".rstrip()


def _entry(about: str, head: str) -> list[str]:
    """`head` and, in the second column, `about`; a long head has a line of its own."""
    lines = [head] if len(head) > _COLUMN - 2 else []
    line = "" if lines else head
    for word in about.split():
        if len(line) < _COLUMN:
            line = line.ljust(_COLUMN) + word
        elif len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = " " * _COLUMN + word
        else:
            line += " " + word
    return [*lines, line]
