"""`rallypoint drain NODE`: makes a node leave its job.

It does what SIGTERM to that node's agent does, from wherever the coordinator can be reached. Where
any node may lead the job, the coordinator is found by the job's register, also when another node
takes over meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.values import word
from rallypoint.cli.watch.asking import question
from rallypoint.cli.watch.asking.find import HOW_TO_FIND
from rallypoint.cli.watch.asking.question import DoubtError, Request, Words
from rallypoint.cli.watch.asking.reach import (
    Asking,
    CoordinatorLostError,
    JobEndedError,
    NotHostedError,
    decoded,
)
from rallypoint.cli.watch.workers import is_endpoint
from rallypoint.config import check_name
from rallypoint.core.messages import DrainAnswer
from rallypoint.core.settings import Setting
from rallypoint.core.text import shown
from rallypoint.core.watch.questions import Ask, Said, Subject
from rallypoint.errors import UsageError

REJOIN_S = 15.0
"""How long nodes may take to attach to the next leader, in seconds. A later one counts as gone."""
_WHERE = ("--rdzv-endpoint", "--rdzv-backend", "--slurm")
"""The options that name the job's place: with one of them the first word is a node."""

DRAIN = Command(
    "drain",
    """\
usage: rallypoint drain NODE [ENDPOINT] [options]

Make a node leave its job, and wait until it has left; the last line says whether
a checkpoint was saved before. NODE is its id, as the job's lines show it, or the
name of its host if only one node runs there.

All workers of the job may save a checkpoint first. Then the node stops its
workers and leaves, and the other nodes continue without it. This does not count
against --max-restarts. The node's --drain-deadline limits the whole time.

If the node hosts the coordinator, the job ends as preempted, unless any node may
lead it. In a terminal the command then asks first; elsewhere its first line says
so. ENDPOINT is the --rdzv-endpoint of the job's nodes; the default is your job
on this machine.

  rallypoint drain node-3 node-0:29400 --job digits
  rallypoint drain node-3 /shared/jobs --job digits
""",
    (
        (
            "Options",
            (
                Setting("--yes", "", "do not ask, even if the job ends with the node", "switch"),
                Setting("--no-wait", "", "return as soon as the node has the request", "switch"),
                Setting("--json", "", "print JSON, one line for each step", "switch"),
            ),
        ),
        HOW_TO_FIND,
    ),
    """\
Exit codes:
  0   the node has left (with --no-wait: it has the request)
  1   you did not answer y: nothing was done
  2   no such node or job, wrong usage, or another coordinator leads the job (the
      line says which)
  75  no coordinator answers, or it went away before the node had left
""",
    ("NODE",),
    ("ENDPOINT",),
)


class Drain(Request):
    """The command `rallypoint drain`."""

    command = DRAIN
    _lost_at: float | None = None
    """The time at which the coordinator went away after it was asked, by the loop's clock; None: it
    has not."""
    _told = ""
    """The last sentence that was printed."""

    @classmethod
    def read_words(cls, scanned: Scanned) -> Words:
        """Read the node and the job's endpoint from the words; see `Question.read_words`."""
        node, *where = scanned.words
        check_name("node", node)
        says_where = bool(where) and is_endpoint(where[0])
        says_where = says_where or any(scanned.get(flag) is not None for flag in _WHERE)
        if _is_a_place(node) and not says_where:
            other = where[0] if where else "NODE"
            raise UsageError(
                f"{shown(node)}: an endpoint, and no node: write drain {shown(other)} {shown(node)}"
            )
        return Words(word(where[0]) if where else None, (node,))

    async def talk(self, asking: Asking) -> int:
        """Ask for the drain, print its steps, and return the exit code.

        Raises DoubtError if the job would end with the node and the user is to confirm that, and as
        `Request.make`.
        """
        try:
            return await self._wait_for(asking)
        except CoordinatorLostError:
            self._lost_at = asyncio.get_running_loop().time() if self.was_made else None
            raise

    async def _wait_for(self, asking: Asking) -> int:
        (node,), is_last = self.words.nodes, False
        await self.make(asking, Ask(Subject.DRAIN, nodes=(node,), asks=self.asks))
        while not is_last:
            value, is_last = await asking.next_value()
            said = decoded(value, DrainAnswer)
            if said.ends_job:
                raise DoubtError(f"node {shown(node)}: {said.text}; drain it?")
            if not said.found:
                return self._not_found(said)
            if said.text != self._told:  # The next coordinator says it again.
                self.tell(Said(said.text, said.done))
            self._told = said.text
            if self.scanned.on("--no-wait"):
                break
        return 0

    def _not_found(self, said: DrainAnswer) -> int:
        """Handle the answer that the node is unknown, and return the exit code.

        If no coordinator went away, UsageError is raised. After a takeover the node has left, which
        is printed, or it may still attach to the next coordinator: NotHostedError is raised.
        """
        (node,) = self.words.nodes
        if self._lost_at is None:
            raise UsageError(f"{shown(node)}: {said.text}")
        if said.gone or asyncio.get_running_loop().time() - self._lost_at > REJOIN_S:
            return self.tell(Said(said.gone or f"node {node} has left"))
        raise NotHostedError(f"node {shown(node)} may still come to the next coordinator")

    def is_over(self, end: JobEndedError) -> int:
        """Report that the job has ended after the request; see `Request.is_over`."""
        left = f"node {self.words.nodes[0]} has left, and the job has ended: {end.reason}"
        return self.tell(Said(left))


run = partial(question.run, Drain)


def _is_a_place(name: str) -> bool:
    """Return whether a word is HOST:PORT or a directory, not a node; `rack-1/n3` may be a node."""
    may_be_a_node = "/" in name and name[0] not in "/." and not os.path.isdir(name)
    return is_endpoint(name) and not may_be_a_node
