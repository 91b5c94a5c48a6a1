"""`rallypoint generate KIND`: prints what another system needs to run jobs.

It is to be read, changed and given to that system.

Each kind has a module of its own, with its options, its help, and what it makes of them; a new kind
is one more line of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from rallypoint.cli.generate import kubernetes, rbac, slurm
from rallypoint.cli.parser import Command, Scanned, parse, with_hint
from rallypoint.cli.values import Given, choice
from rallypoint.observe.printing import write_text


class TextKind(Struct, frozen=True):
    """One KIND of `rallypoint generate KIND`: its line in the help, its options and its text."""

    about: str
    command: Command
    text: Callable[[Scanned], str]
    """The function that makes the text for a command line, or raises UsageError."""


KINDS = {
    "kubernetes": TextKind(
        "a job in pods: Job, JobSet or TrainJob, as YAML", kubernetes.KUBERNETES, kubernetes.text
    ),
    "slurm": TextKind("a batch script for sbatch", slurm.SLURM, slurm.text),
    "rbac": TextKind("the rights that pods need in Kubernetes, as YAML", rbac.RBAC, rbac.text),
}
_LIST = "\n".join(f"  {name:<12}{kind.about}" for name, kind in KINDS.items())

GENERATE = Command(
    "generate",
    f"""\
usage: rallypoint generate KIND [options]

Print a manifest or a batch script with which a cluster runs jobs. Read it, edit
it, and submit it yourself: this command changes nothing. KIND is one of

{_LIST}

  rallypoint generate KIND --help     its options
""",
    (),
    words=("KIND",),
)


def run(argv: list[str]) -> int:
    """Print the generated text to stdout. Raises UsageError and HelpRequested."""
    kind = with_hint(GENERATE, lambda: _kind(argv))
    text = with_hint(kind.command, lambda: kind.text(parse(kind.command, argv[1:], {})))
    write_text(text)
    return 0


def _kind(argv: list[str]) -> TextKind:
    if not argv or argv[0].startswith("-"):
        parse(GENERATE, argv, {})  # Raises: it has no options.
    return KINDS[choice(Given(argv[0], argv[0]), tuple(KINDS))]
