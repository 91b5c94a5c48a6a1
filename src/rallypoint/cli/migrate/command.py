"""`rallypoint migrate`: prints a line of Rallypoint for the command line of another launcher.

The line has been read by the parser of the command that it starts before anybody sees it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from rallypoint.cli.launch.options import LAUNCH
from rallypoint.cli.launch.plan import AnyMachine, read_launch
from rallypoint.cli.migrate.translate import Line, stand_ins, translate
from rallypoint.cli.migrate.words import Word, quoted, split
from rallypoint.cli.options import RUN, parse_run
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.errors import ExitClass, UsageError
from rallypoint.observe.printing import write_text

MIGRATE = Command(
    "migrate",
    """\
usage: rallypoint migrate 'COMMAND LINE'
       rallypoint migrate -- WORD...
       rallypoint migrate - < FILE

Prints the line of rallypoint run, or of rallypoint launch, that starts the same
job, and one line for each difference. Starts nothing. Knows torchrun, python -m
torch.distributed.run and .launch, ft_launcher, horovodrun, deepspeed, mpirun,
mpiexec and srun. $VARIABLES in quotes are left for your shell.

    rallypoint migrate 'torchrun --nnodes $N --rdzv-endpoint $HEAD:29500 train.py'
    rallypoint migrate -- mpirun -np 8 -H node-a:4,node-b:4 python train.py

Exit codes: 0 the printed line does the same; 1 something has no equivalent and is
left out; 2 the line can't be translated.
""",
    (),
    may_have=("LINE", "WORD..."),
)


def run(argv: list[str]) -> int:
    """Print the translated line to stdout, and return 0, or 1 if something has no equivalent.

    Reads stdin for `-`. Raises UsageError and HelpRequested.
    """
    words, tail = with_hint(MIGRATE, lambda: _words(argv))
    line = translate(words)
    check(line)
    ours = [*line.before, quoted("rallypoint"), quoted(line.command), *line.options, *line.program]
    texts = [" ".join([*(word.raw for word in ours), *([tail] if tail else [])])]
    texts += [f"# {text}" for text in dict.fromkeys(line.differs)]
    texts += [f"# no equivalent: {text}" for text in dict.fromkeys(line.lost)]
    write_text("".join(f"{text}\n" for text in texts))  # For a shell: nothing is cut or escaped.
    return ExitClass.FAILED.value if line.lost else 0


def _words(argv: Sequence[str]) -> tuple[list[Word], str]:
    given = parse(MIGRATE, argv, {}).words
    if len(given) > 1:
        return [quoted(word) for word in given], ""
    words, tail = split(sys.stdin.read() if given == ("-",) else "".join(given))
    if not words:
        raise UsageError("the line is missing; for example: rallypoint migrate 'torchrun train.py'")
    return words, tail


def check(line: Line) -> None:
    """Check the line with the parser of the command that it starts; add remarks to the line.

    Hosts, files and variables of this machine are not read, except a list of hosts. Raises
    UsageError.
    """
    words = [*line.options, *line.program]
    try:
        if line.command == "launch":
            # Without a token, since looking for one makes it.
            texts = ["--insecure", *stand_ins(words, LAUNCH.options)]
            excluded = texts[texts.index("--exclude") + 1] if "--exclude" in texts else ""
            line.differs += read_launch(
                texts, dict.fromkeys(texts, "any"), _AnyMachine(excluded)
            ).remarks
        else:
            read = parse_run(stand_ins(words, RUN.options), {"OMP_NUM_THREADS": "1"}, _AnyMachine())
            line.differs += read.notices
    except UsageError as error:
        line_of = shlex.join(word.text for word in words)
        where = "" if "\n" in str(error) else f" (in: rallypoint {line.command} {line_of})"
        raise UsageError(f"{error}{where}") from None


class _AnyMachine(AnyMachine):
    """A machine that has every file that is named; a missing list of hosts is made up."""

    def __init__(self, hosts: str = "") -> None:
        self._hosts = hosts

    def read_whole(self, path: str) -> str:
        """Return the text of a list of hosts, real or made-up. Raises UnicodeDecodeError."""
        try:
            return super().read_whole(path)
        except OSError:
            return "\n".join(["node-[1-1024]", *self._hosts.split(",")])
