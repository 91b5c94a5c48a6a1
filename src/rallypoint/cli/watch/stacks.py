"""`rallypoint stacks`: what the workers of a job do just now, the odd ones first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct

from rallypoint.cli.parser import Command
from rallypoint.cli.watch.asking import question
from rallypoint.cli.watch.asking.find import EXIT_CODES, HOW_TO_FIND
from rallypoint.cli.watch.asking.reach import Asking
from rallypoint.cli.watch.quoted_text import tail_of_path
from rallypoint.cli.watch.status_text import LINES_MAX
from rallypoint.cli.watch.terminal import ALL_LINES, print_lines, screen_size
from rallypoint.cli.watch.workers import OfWorkers, gather, say_missing
from rallypoint.core.settings import Setting
from rallypoint.core.text import count
from rallypoint.core.watch.names import fold_names, rank_names
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.core.watch.stack_groups import StackFrame, StackGroup, Thread, fold_stacks
from rallypoint.errors import RendezvousConnectionError
from rallypoint.observe.printing import JsonLine, json_text

STACKS = Command(
    "stacks",
    """\
usage: rallypoint stacks [RANK|NODE...] [HOST:PORT|DIR] [options]

Show what workers are doing now: their Python stacks, or, of another program, the
state that the kernel reports. Give ranks (17, 0-7) or names of nodes to see only
those. Equal stacks are shown once with their ranks, rare ones first.
HOST:PORT is the --rdzv-endpoint of the job's nodes, with its port, or the
directory; the default is your job on this machine.

  rallypoint stacks
  rallypoint stacks 17 node-0:29400 --job digits --all
""",
    (
        (
            "Options",
            (
                Setting("--all", "", f"show all, not only {LINES_MAX} lines", "switch"),
                Setting("--json", "", "print one line of JSON for each rank", "switch"),
            ),
        ),
        HOW_TO_FIND,
    ),
    EXIT_CODES,
    may_have=("RANK|NODE", "HOST:PORT|DIR..."),
)


_LEAST = 2
"""The least number of lines for a group of equal stacks, its heading included."""
_MARGIN = 4
_FUNCTION_MAX = 30
_PLACE_LEAST = 24
"""The least length of the end of a call's FILE:LINE that is shown, however long the function's name
is."""
_PROCESS = re.compile(r"process \d+ \((.*?)\) ")
"""The pattern of a process in the agent's text (`process/stacks.py`). In the text of several
workers only its program is left, without the pid."""


class RankStacks(Struct, frozen=True):
    """One line of `rallypoint stacks --json`."""

    rank: int
    node: str
    round: int
    stacks: str


class Stacks(OfWorkers):
    """The command `rallypoint stacks`."""

    command = STACKS

    async def talk(self, asking: Asking) -> int:
        """Ask for the stacks of the named workers, and print them. Returns the exit code.

        Nodes that have not answered within five seconds are named. Raises as `Asking.next_value`,
        and RendezvousConnectionError if nodes are missing and none has sent a stack.
        """
        found: list[RankStacks] = []
        wanted = Ask(Subject.STACKS, ranks=self.words.ranks, nodes=self.words.nodes)
        async for part in gather(asking, wanted):
            found += (RankStacks(told.rank, part.node, part.round, told.text) for told in part.told)
            say_missing(part)
            if part.missing and not found:
                raise RendezvousConnectionError("no node sent a stack")
        found.sort(key=lambda one: one.rank)
        if self.as_json:
            print_lines([JsonLine(json_text(one)) for one in found])
            return 0
        most = ALL_LINES if self.scanned.on("--all") else LINES_MAX
        nodes = {one.rank: one.node for one in found}
        stacks = {one.rank: one.stacks for one in found}
        print_lines(stacks_lines(stacks, nodes, screen_size()[0], most))
        return 0


run = partial(question.run, Stacks)


def stacks_lines(
    stacks: Mapping[int, str], nodes: Mapping[int, str], width: int = 80, most: int = LINES_MAX
) -> list[str]:
    """Return at most `most` lines of at most `width` characters about workers' stacks.

    `stacks` and `nodes` have the text and the node of each rank. Workers with equal stacks share
    lines, and rare stacks come first.
    """
    groups = fold_stacks(stacks)
    if not groups:
        return ["no workers run"]
    blocks = [_block(group, nodes, width) for group in groups]
    mains = (thread for group in groups for thread in group.threads[:1])
    if any(not main.frames and "(python" in main.name for main in mains):
        blocks.append(
            [_fit("a worker that imports rallypoint.worker can show Python's stacks", width)]
        )
    if sum(map(len, blocks)) <= most:
        return [line for block in blocks for line in block]
    return _cut(groups, blocks, most)


def _cut(groups: Sequence[StackGroup], blocks: Sequence[list[str]], most: int) -> list[str]:
    """Return at most `most` lines: the first ones of as many blocks as fit, and one about the rest.

    Each of these blocks gets at least two lines, if it has them.
    """
    shown = min(len(blocks), (most - 1) // _LEAST)
    shares = _shares([len(block) for block in blocks[:shown]], most - 1)
    lines = [line for block, share in zip(blocks, shares, strict=False) for line in block[:share]]
    left_out = sum(map(len, blocks[:shown])) - len(lines)
    rest = groups[shown:]
    more = [f"{count(left_out, 'more line')}"] if left_out else []
    if rest:
        ranks = sum(len(group.ranks) for group in rest)
        more.append(f"{count(ranks, 'more rank')} with {count(len(rest), 'other stack')}")
    return [*lines, f"... {' and '.join(more)}: --all"]


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """Return how many lines of the room each block gets.

    What the short ones leave is for the long ones.
    """
    shares = [0] * len(sizes)
    by_size = sorted(range(len(sizes)), key=lambda number: sizes[number])
    for done, number in enumerate(by_size):
        shares[number] = min(sizes[number], room // (len(sizes) - done))
        room -= shares[number]
    return shares


def _block(group: StackGroup, nodes: Mapping[int, str], width: int) -> list[str]:
    ranks = group.ranks
    on = fold_names({nodes[rank]: None for rank in ranks if nodes.get(rank)})
    head = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {rank_names(ranks, ', ')}"
    head += f" ({on})" if on else ""
    main, *others = group.threads or (Thread("it has told nothing", ()),)
    if not main.frames:
        said = main.name if len(ranks) == 1 else _PROCESS.sub(r"\1 ", main.name)
        lines = [_fit(f"{head}: {said}", width)]
    else:
        lines = [_fit(f"{head}:", width), *(_frame(frame, width) for frame in main.frames)]
    for thread in others:
        name = f"thread {thread.name}".rstrip()
        lines.append(_fit(f"  {name}:", width))
        lines += (_frame(frame, width) for frame in thread.frames)
    return lines


def _frame(frame: StackFrame, width: int) -> str:
    """Return the line of a call: the function, and the end of its path with the line's number."""
    margin = " " * _MARGIN
    if not frame.place:
        return _fit(margin + frame.function, width)
    for_function = max(width - _MARGIN - 2 - min(len(frame.place), _PLACE_LEAST), 1)
    start = margin + _fit(frame.function, for_function).ljust(_FUNCTION_MAX) + "  "
    return _fit(start + tail_of_path(frame.place, width - len(start)), width)


def _fit(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
