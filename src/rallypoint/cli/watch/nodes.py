"""`rallypoint nodes`: show the machines that a job holds back, exclude one, or allow it again."""

from __future__ import annotations

from functools import partial

from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.render import duration_text
from rallypoint.cli.values import word
from rallypoint.cli.watch.asking import question
from rallypoint.cli.watch.asking.find import HOW_TO_FIND
from rallypoint.cli.watch.asking.question import Request, Words
from rallypoint.cli.watch.asking.reach import TAKEOVER_S, Asking, decoded
from rallypoint.cli.watch.terminal import print_lines
from rallypoint.config import check_name
from rallypoint.core.fitness import HeldBack
from rallypoint.core.settings import Setting
from rallypoint.core.watch.questions import Ask, Said, Subject
from rallypoint.errors import UsageError
from rallypoint.observe.printing import JsonLine, json_text, print_text

ANSWER_S = TAKEOVER_S + 60.0
"""How many seconds to wait for the answer: another node may be taking the job over."""
_DEEDS = {"exclude": Subject.EXCLUDE, "allow": Subject.ALLOW}

NODES = Command(
    "nodes",
    """\
usage: rallypoint nodes [ENDPOINT] [options]
       rallypoint nodes exclude|allow NODE [ENDPOINT] [options]

Show which machines a job holds back, since when, why, and until when. Reasons
are losses of the machine, failures of its workers (--hold-back-after), and nodes
that can't start workers or do not reach rank 0.

  exclude  keep the machine of NODE out of all further rounds; a node that runs
           there is asked to leave, after a checkpoint
  allow    trust the machine of NODE again, at once

NODE is the id of a node, as the job's lines show it. allow also takes the name
of a machine, as rallypoint nodes shows it.
ENDPOINT is the --rdzv-endpoint of the job's nodes; the default is your job on
this machine.

  rallypoint nodes node-0 --job digits
  rallypoint nodes exclude node-3 node-0 --job digits
""",
    (
        ("Options", (Setting("--json", "", "print JSON", "switch"),)),
        HOW_TO_FIND,
    ),
    """\
Exit codes:
  0   the list was printed, or the change was made
  2   no such job or node, or wrong usage
  75  no coordinator answers, or it went away
""",
    may_have=("ENDPOINT|exclude|allow", "NODE", "ENDPOINT"),
)


class Nodes(Request):
    """The command `rallypoint nodes`, whose words `exclude` and `allow` are requests."""

    command = NODES
    limit_s = ANSWER_S
    late = f"the coordinator has not answered within {ANSWER_S:g} s"

    @classmethod
    def read_words(cls, scanned: Scanned) -> Words:
        words = list(scanned.words)
        deed = words.pop(0) if words and words[0] in _DEEDS else ""
        if deed and not words:
            raise UsageError(f"nodes {deed} needs a NODE: its id, as the job's lines show it")
        nodes = (words.pop(0),) if deed else ()
        for node in nodes:
            check_name("NODE", node)
        if len(words) > 1:
            known = " or ".join(_DEEDS)
            raise UsageError(f"{words[0]}: not something to do with a node; it can be {known}")
        return Words(word(words[0]) if words else None, nodes, deed=deed)

    async def talk(self, asking: Asking) -> int:
        """Ask, and print the machines held back from rounds, or the answer to a request.

        Returns the exit code. Raises as `Request.request`.
        """
        if self.words.deed:
            wanted = Ask(_DEEDS[self.words.deed], nodes=self.words.nodes)
            self.tell(decoded(await self.request(asking, wanted), Said))
            return 0
        held = decoded(await asking.answer(Ask(Subject.NODES)), tuple[HeldBack, ...])
        if self.as_json:
            print_text(JsonLine(json_text(held)))
        else:
            print_lines(table(held) if held else ["no machine is held back"])
        return 0


run = partial(question.run, Nodes)


def table(held: tuple[HeldBack, ...]) -> list[str]:
    """Return one line for each machine or node held back, after a line with the headings."""
    rows = [("node", "since", "until", "why")]
    rows += [(_name(each), _since(each), _until(each), each.why) for each in held]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]))
        for row in rows
    ]


def _name(held: HeldBack) -> str:
    gone = "" if held.is_here else " (not in the job)"
    return f"{held.node}{f' on {held.machine}' if held.machine else ''}{gone}"


def _since(held: HeldBack) -> str:
    return "-" if held.may_wait else f"{duration_text(held.since_s)} ago"


def _until(held: HeldBack) -> str:
    if held.left_s is None:
        return "it is allowed"
    return "the next round" if held.may_wait else f"in {duration_text(held.left_s)}"
