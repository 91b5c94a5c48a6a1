"""Many nodes or ranks in few words. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

_BRIEF_MAX = 30
"""The most characters of a list of ranks; a longer one is cut, and their number is added."""
_NUMBERED = re.compile(r"(.*?)(\d{1,9})")


def fold_names(node_ids: Iterable[str]) -> str:
    """Return names as a list in which those that differ by a number at the end are one word.

    For example `gpu-[0-3,7], login`.
    """
    return ", ".join(word for word, _ in fold_words(node_ids))


def fold_words(node_ids: Iterable[str], ranges_max: int | None = None) -> list[tuple[str, int]]:
    """Return the words of `fold_names`, each with the number of names that it stands for.

    `ranges_max` limits the numbers and ranges in one word; the rest is left out, and not counted.
    """
    stems: dict[str, list[tuple[int, str]]] = {}
    others: list[str] = []
    for node_id in node_ids:
        found = _NUMBERED.fullmatch(node_id)
        if found is None:
            others.append(node_id)
        else:
            stems.setdefault(found[1], []).append((int(found[2]), found[2]))
    words = []
    for stem, numbers in sorted(stems.items()):
        numbers.sort()
        if len(numbers) == 1:
            words.append((f"{stem}{numbers[0][1]}", 1))
        else:
            ranges = _ranges(numbers)[:ranges_max]
            inner = ",".join(text for text, _ in ranges)
            words.append((f"{stem}[{inner}]", sum(count for _, count in ranges)))
    return [*words, *((other, 1) for other in sorted(others))]


def _ranges(numbers: Sequence[tuple[int, str]]) -> list[tuple[str, int]]:
    """Return each number and each range of numbers as a text, and how many it stands for.

    `numbers` are sorted, each with its text.
    """
    found: list[list[tuple[int, str]]] = []
    for number in numbers:
        if found and number[0] == found[-1][-1][0] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [
        (run[0][1] if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}", len(run)) for run in found
    ]


def gaps_in_names(node_ids: Iterable[str]) -> list[str]:
    """Return the names that are missing in a row: `n1, n3` lack `n2`. O(number of names).

    There are none unless all names are one word and a number, and at least about half of the row is
    there.
    """
    numbers: dict[int, str] = {}
    stem = None
    for node_id in node_ids:
        head = node_id.rstrip("0123456789")
        if head == node_id or stem not in (None, head) or len(node_id) - len(head) > 9:
            return []
        stem, numbers[int(node_id[len(head) :])] = head, node_id
    if len(numbers) < 2 or max(numbers) - min(numbers) > 2 * len(numbers):
        return []
    width = len(numbers[min(numbers)]) - len(stem or "")
    return [
        f"{stem}{number:0{width}}"
        for number in range(min(numbers), max(numbers))
        if number not in numbers
    ]


def rank_names(ranks: Iterable[int], gap: str = ",") -> str:
    """Return ranks as ranges, with `gap` between them: `0-30,32-63`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return gap.join("-".join(map(str, run)) for run in runs)


def brief_ranks(ranks: Collection[int]) -> str:
    """Return ranks as ranges: `0-30,32-63`.

    A long list is cut, and the number of all ranks is added: `0,2,4,… 64 ranks`.
    """
    text = rank_names(ranks)
    if len(text) <= _BRIEF_MAX:
        return text
    begin = text[:_BRIEF_MAX].rpartition(",")[0]
    return f"{begin},… {len(ranks)} ranks"
