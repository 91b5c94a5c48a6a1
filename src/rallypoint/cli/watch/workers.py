"""The common parts of the commands about workers.

They are the choice of workers, and the connection to the answers of their nodes
(`core/watch/collection_messages.py`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from rallypoint.cli.parser import Scanned
from rallypoint.cli.values import Given
from rallypoint.cli.watch.asking.find import JobAt
from rallypoint.cli.watch.asking.question import Question, Words
from rallypoint.cli.watch.asking.reach import Asking, decoded
from rallypoint.core.limits import MAX_FAILURES, MAX_WORLD
from rallypoint.core.text import shown
from rallypoint.core.watch.collection_messages import Gathered
from rallypoint.core.watch.names import fold_names
from rallypoint.core.watch.questions import Ask, RankRange, Subject
from rallypoint.errors import RendezvousConnectionError, UsageError
from rallypoint.observe.printing import say

_ENDPOINT_LIKE = re.compile(r".*:[0-9]{1,5}")
_RANKS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*")


class OfWorkers(Question):
    """A command about some workers of a job, or about all."""

    @classmethod
    def read_words(cls, scanned: Scanned) -> Words:
        """Read ranks, nodes and an endpoint from the words, in any order. Raises UsageError."""
        return read_workers(scanned, scanned.words)

    def find(self) -> list[JobAt]:
        """Return the named job, whose workers the command is about. Raises as `Question.find`."""
        try:
            return super().find()
        except RendezvousConnectionError as error:
            if self.words.where is not None or not self.words.nodes:
                raise
            node = self.words.nodes[-1]
            ask_there = f"to ask the coordinator at host {node}, write {node}:PORT"
            raise RendezvousConnectionError(f"{error}; {ask_there}") from None


def read_workers(scanned: Scanned, words: Sequence[str]) -> Words:
    """Return the ranks, the nodes and the endpoint that these words name. Raises UsageError."""
    ranks: list[RankRange] = []
    nodes: list[str] = []
    where: Given | None = None
    for word in words:
        if _RANKS.fullmatch(word):
            ranks += map(_range, word.split(","))
        elif is_endpoint(word):
            if where is not None or scanned.get("--rdzv-endpoint") is not None:
                raise UsageError(f"{shown(word)}: the endpoint is given already")
            where = Given(word, word)
        else:
            nodes.append(word)
    if len(ranks) > MAX_FAILURES or len(nodes) > MAX_FAILURES:
        raise UsageError(f"at most {MAX_FAILURES} ranks and {MAX_FAILURES} nodes can be named")
    return Words(where, tuple(nodes), tuple(ranks))


async def next_part(asking: Asking) -> tuple[Gathered, bool]:
    """Return the next part of an answer, and whether it is the last one.

    A part before the last one is acknowledged. May be cancelled, and called again. Raises as
    `Asking.next_value`.
    """
    value, is_last = await asking.next_value()
    if not is_last:
        asking.send(Ask(Subject.MORE))
    return decoded(value, Gathered), is_last


async def gather(asking: Asking, question: Ask) -> AsyncIterator[Gathered]:
    """Ask, and yield all parts of the answer. Raises as `Asking.next_value`."""
    asking.send(question)
    is_last = False
    while not is_last:
        part, is_last = await next_part(asking)
        yield part


def say_missing(part: Gathered) -> None:
    """Print the names of nodes without an answer, and the reasons."""
    why_of: dict[str, list[str]] = {}
    for node, why in part.missing.items():
        why_of.setdefault(why, []).append(node)
    for why, nodes in sorted(why_of.items()):
        which = "node" if len(nodes) == 1 else "nodes"
        say(f"nothing from {which} {fold_names(nodes)}: {why}")


def is_endpoint(word: str) -> bool:
    """Return whether a word is read as the job's endpoint: it has a port or a slash.

    A host without a port may be a node's name.
    """
    return bool(_ENDPOINT_LIKE.fullmatch(word)) or "/" in word


def _range(word: str) -> RankRange:
    first, dash, last = word.partition("-")
    found = RankRange(int(first), int(last) if dash else int(first))
    if found.first > found.last or found.last >= MAX_WORLD:
        raise UsageError(f"{shown(word)}: needs a rank, or the first and the last one: 0-7")
    return found
