"""`rallypoint shim COMMAND`: torchrun is `rallypoint run`, for one command and all that it starts.

The command takes the place of this process, so that signals and its exit code are its own. What the
entries start (`rallypoint shim --in-place-of N WORD...`) stands for a command line of torchrun, of
which the first N words are those before its options. It becomes `rallypoint run`, or that command
line after all if it has an option that only another torchrun can know.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from rallypoint.cli.options import RUN
from rallypoint.cli.parser import (
    Command,
    HelpRequested,
    Scanned,
    UnknownOptionError,
    parse,
    with_hint,
)
from rallypoint.cli.shim.environ import (
    ENTRIES,
    enter,
    interpreter_of,
    next_torchrun,
    without_shim,
)
from rallypoint.core.text import shown
from rallypoint.errors import InfrastructureError, UsageError
from rallypoint.observe.printing import print_error

_IN_PLACE_OF = "--in-place-of"
_TELLS_LOCAL_RANK = "torch.distributed.launch"
SHIM = Command(
    "shim",
    """\
usage: rallypoint shim COMMAND [its arguments]

Runs COMMAND, with Rallypoint in the place of torchrun. rallypoint run replaces
torchrun and python -m torch.distributed.run, also in programs that COMMAND
starts. It also replaces calls of torch.distributed.run and
torch.distributed.launcher.

    rallypoint shim accelerate launch --num_processes 2 train.py
    rallypoint shim fabric run --devices 2 train.py
    RALLYPOINT_HANG_TIMEOUT=300 rallypoint shim bash train.sh

If the command line has an option that rallypoint run lacks, the next torchrun in
PATH runs the job, and one line says so. Give options that torchrun lacks by their
variables, as above. Workers do not inherit the shim.

Exit codes: those of COMMAND; 2 wrong usage, or no such program.
""",
    (),
    words=("COMMAND",),
    runs_a_script=True,
)


def run(argv: list[str]) -> int:
    """Replace this process by the command, in the environment of the shim.

    Called in the place of torchrun (`--in-place-of`), it returns the exit code of `rallypoint run`.
    Raises UsageError, InfrastructureError and HelpRequested.
    """
    if argv[:1] == [_IN_PLACE_OF]:
        number = int(argv[1])
        return _stand_in(argv[2 : 2 + number], argv[2 + number :])
    words = with_hint(SHIM, lambda: parse(SHIM, argv, {})).words
    if not words:
        raise UsageError("the command is missing; for example: rallypoint shim bash train.sh")
    entry = os.path.join(ENTRIES, "torchrun")
    if not os.access(entry, os.X_OK):
        raise InfrastructureError(f"{entry}: may not be executed: chmod +x it, or install again")
    return _become(words, enter(os.environ, sys.executable))


def _stand_in(before: list[str], arguments: list[str]) -> int:
    """Run the job of a command line of torchrun, and return its exit code.

    `before` has its words before the options. With an option that `rallypoint run` lacks,
    torch's own launcher takes the place of this process.
    """
    hidden = next_torchrun(os.environ) if before == ["torchrun"] else before[0]
    bare = without_shim(os.environ)
    try:
        scanned = parse(RUN, arguments, bare)
    except UnknownOptionError as error:
        if hidden is None:
            raise UsageError(f"{error}; and PATH has no other torchrun that may know it") from None
        told = f"{shown(error.option)}: rallypoint run has no such option"
        print_error("rallypoint shim", f"{told}: {shlex.join([hidden, *before[1:]])} runs this job")
        _become([hidden, *before[1:], *arguments], bare)
    except (UsageError, HelpRequested):
        scanned = Scanned(())  # Told below, by the command that is meant.
    words, tells = scanned.words, before[-1].endswith(_TELLS_LOCAL_RANK)
    if words and tells and "--use-env" not in scanned.values:
        told = "--local-rank=${local_rank}"
        arguments = [*arguments[: -len(words)], words[0], told, *words[1:]]
    _set_environ(bare, hidden if before != ["torchrun"] else interpreter_of(hidden or ""))
    from rallypoint.cli.main import main

    return main(["run", *arguments])


def _set_environ(bare: dict[str, str], python: str | None) -> None:
    """Remove the shim from the environment of this process, for good.

    `bare` is the environment without it. `python` is the Python of torchrun, which runs the workers
    unless PYTHON_EXEC names another.
    """
    if python and os.path.dirname(python) != os.path.dirname(sys.executable):
        bare.setdefault("PYTHON_EXEC", python)
    for name in os.environ.keys() - bare.keys():
        del os.environ[name]
    os.environ.update(bare)


def _become(words: Sequence[str], environ: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(words[0], list(words), environ)
    except FileNotFoundError:
        raise UsageError(f"{shown(words[0])}: no such program; check its path, or PATH") from None
    except OSError as error:
        raise UsageError(f"{shown(words[0])}: can't be run: {error.strerror}") from None
