"""Transcripts of who leads a job: what its nodes, and processes that stand ready, do with its
register (`core/takeover/{candidacy,leader_search,duties}.py`).

They are written as those of `scenario.py`. The first command is `takeover`; the job's round 3 runs,
and its leader has left:

    takeover nodes=N          the job has so many nodes
    node RANK                 the node of this rank has no leader, and begins to look for one
    candidate NAME            a process that is no node begins to stand ready
    away NAME | back NAME     the register can't be reached from there; or can again
    vanish NAME               its machine is gone
    leave NAME                it no longer leads, and says so
    tick S                    so many seconds pass

In a trace `@S` is the time since the beginning. An heir promises each leader that it claims nothing
for half a lease; no line says so.
"""

from __future__ import annotations

from tests.harness.leading_world import World
from tests.harness.scenario import options_and_names


class TakeoverScenario:
    """One job. `run` executes one command and returns its trace."""

    def __init__(self) -> None:
        self._world: World | None = None

    def run(self, command: str) -> list[str]:
        """Execute one command. Raises ValueError for one that is unknown or malformed."""
        name, *words = command.split()
        options, names = options_and_names(words)
        if name == "takeover":
            self._world = World(int(options["nodes"]))
        if (world := self._world) is None:
            raise ValueError("the first command must be `takeover nodes=N`")
        world.trace = []
        match name, names:
            case "takeover", []:
                pass
            case "node", [rank]:
                world.node(int(rank))
            case "candidate", [other]:
                world.candidate(other)
            case "away" | "back", [who]:
                world.processes[who].is_away = name == "away"
            case "vanish", [who]:
                world.processes[who].vanish()
            case "leave", [who]:
                world.processes[who].leave()
            case "tick", [seconds]:
                world.tick(float(seconds))
            case _:
                raise ValueError(f"not a command: {command!r}")
        return world.trace
