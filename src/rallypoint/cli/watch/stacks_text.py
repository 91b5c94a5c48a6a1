"""Stacks of many workers as a person reads them: the odd ones first, at most 24 lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rallypoint.cli.watch.quoted_text import tail_of_path
from rallypoint.cli.watch.status_text import LINES_MAX
from rallypoint.core.text import count
from rallypoint.core.watch.node_names import fold_names
from rallypoint.core.watch.rank_names import rank_names
from rallypoint.core.watch.stack_groups import Frame, StackGroup, Thread, fold_stacks

_LEAST = 2
"""Lines of a group, its heading included."""
_MARGIN = 4
_FUNCTION_MAX = 30
_PLACE_LEAST = 24
"""The length of the end of a place that is shown, however long the name of the function is."""
_PROCESS = re.compile(r"process \d+ \((.*?)\) ")
"""As the agent names one (`process/stacks.py`): of a group the program only."""


def stacks_lines(
    stacks: Mapping[int, str], nodes: Mapping[int, str], width: int = 80, most: int = LINES_MAX
) -> list[str]:
    """At most `most` lines of at most `width` characters, of the stacks and nodes by rank."""
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
    """The beginning of each block, and of so many as fit."""
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
    """Of the room: what the short ones leave is for the long ones."""
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


def _frame(frame: Frame, width: int) -> str:
    """The function, and where it is: of a long path the end, with the number of the line."""
    margin = " " * _MARGIN
    if not frame.place:
        return _fit(margin + frame.function, width)
    for_function = max(width - _MARGIN - 2 - min(len(frame.place), _PLACE_LEAST), 1)
    start = margin + _fit(frame.function, for_function).ljust(_FUNCTION_MAX) + "  "
    return _fit(start + tail_of_path(frame.place, width - len(start)), width)


def _fit(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
