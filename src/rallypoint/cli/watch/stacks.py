"""`rallypoint stacks`: what the workers of a job do just now."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from rallypoint.cli import access
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.watch.kept import answer_or_kept
from rallypoint.cli.watch.reach import EXIT_CODES, HOW_TO_FIND, Asking, named
from rallypoint.cli.watch.stacks_text import stacks_lines
from rallypoint.cli.watch.status_text import LINES_MAX
from rallypoint.cli.watch.terminal import ALL_LINES, print_lines, screen_size
from rallypoint.cli.watch.workers import Wanted, gather, read_wanted, say_missing
from rallypoint.core.settings import Setting
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.errors import RendezvousConnectionError
from rallypoint.observe.printing import JsonLine, json_text

STACKS = Command(
    "stacks",
    """\
usage: rallypoint stacks [RANK|NODE...] [HOST:PORT|DIR] [options]

Show what workers do just now, of all ranks or of those that are named (17,
0-7, or a node's name): their Python stacks, or what the kernel says of another
program. Equal stacks are shown once with their ranks, the odd ones first.
HOST:PORT is what the job's nodes have as --rdzv-endpoint, with its port, or the
directory; without one, it is your job on this machine.

  rallypoint stacks
  rallypoint stacks 17 node-0:29400 --job digits --all
""",
    (
        (
            "Options",
            (
                Setting("--all", "", f"also what does not fit into {LINES_MAX} lines", "switch"),
                Setting("--json", "", "print one line of JSON for each rank", "switch"),
            ),
        ),
        HOW_TO_FIND,
    ),
    EXIT_CODES,
    may_have=("RANK|NODE", "HOST:PORT|DIR..."),
)


class RankStacks(Struct, frozen=True):
    """One line of `--json`."""

    rank: int
    node: str
    round: int
    stacks: str


def run(argv: list[str]) -> int:
    """Returns 0. Blocks until all nodes have answered, or five seconds.

    Raises UsageError, AccessError, InfrastructureError, and HelpRequested.
    """
    scanned = with_hint(STACKS, lambda: parse(STACKS, argv, {}))
    wanted = with_hint(STACKS, lambda: read_wanted(STACKS, scanned))
    access.keep_secrets()
    found = answer_or_kept(STACKS, argv, lambda: asyncio.run(_collect(wanted)))
    if scanned.on("--json"):
        print_lines([JsonLine(json_text(one)) for one in found])
        return 0
    width, _ = screen_size()
    most = ALL_LINES if scanned.on("--all") else LINES_MAX
    nodes = {one.rank: one.node for one in found}
    print_lines(stacks_lines({one.rank: one.stacks for one in found}, nodes, width, most))
    return 0


async def _collect(wanted: Wanted) -> list[RankStacks]:
    asking = await Asking.open(await named(wanted.job, wanted.token), wanted.token)
    found: list[RankStacks] = []
    try:
        question = Ask(Subject.STACKS, ranks=wanted.ranks, nodes=wanted.nodes)
        async for part in gather(asking, question):
            found += (RankStacks(told.rank, part.node, part.round, told.text) for told in part.told)
            say_missing(part)
            if part.missing and not found:
                raise RendezvousConnectionError("no node has told of a stack")
    finally:
        asking.close()
    return sorted(found, key=lambda one: one.rank)
