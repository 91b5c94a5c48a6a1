"""Transcripts of the answer that a coordinator collects from nodes for one person.

They are written as those of `scenario.py`. The first command is `question`:

    question SUBJECT nodes=NODE:WORKERS,... [follow=1] [away=NODE] [old=NODE]
                                            of a job with these nodes, one of which is not
                                            connected, or runs an older version of Rallypoint
    away NODE | back NODE                   its connection breaks, or is there again
    has NODE [times=N]                      it has something to tell; each time it tells it when it
                                            may, but for the last time
    tells NODE TEXT [round=N] [last=1]      it tells this of its first worker
    done NODE                               it has nothing to tell any more
    takes                                   the person takes a value
    hangs-up                                and does not wait any more
    round nodes=NODE:WORKERS,...            the job's next round has begun
    ends                                    people are told that the job has ended
    tick S                                  so many seconds pass
"""

from __future__ import annotations

from tests.harness.scenario import Options, options_and_names

from rallypoint.core.host_effects import SendTo
from rallypoint.core.messages import Collect, Collected, ToAgent
from rallypoint.core.watch import collection as c
from rallypoint.core.watch.collection_messages import SINCE, Gathered, HowFar, WorkerAnswer
from rallypoint.core.watch.questions import Ask, Subject


class CollectionScenario:
    """One question, the nodes that are asked, and the person."""

    def __init__(self) -> None:
        self._now = 0.0
        self._round = 0
        self._nodes: dict[str, c.NodeWorkers] = {}
        self._connections: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._old = ""
        self._state: c.Collection | None = None
        self._trace: list[str] = []

    def run(self, command: str) -> list[str]:
        """Raises ValueError for a command that is unknown or malformed."""
        name, *words = command.split()
        options, names = options_and_names(words)
        self._trace = []
        match name, names:
            case "question", [subject]:
                self._connections, self._round = {}, 0
                self._place(options["nodes"])
                self._connections.pop(options.get("away", ""), None)
                self._old = options.get("old", "")
                follow = options.get("follow") == "1"
                ask = Ask(Subject(subject), follow=follow, newest=5)
                self._state = c.Collection(1, ask, self._round, self._now, HowFar())
                self._step(c.Asked())
            case "round", []:
                self._round += 1
                self._place(options["nodes"])
            case "away", [node]:
                self._step(c.Lost(self._connections.pop(node)))
            case "back", [node]:
                self._connect(node)
            case "has", [node]:
                for number in range(int(options.get("times", "1")) - 1):
                    self._says(node, Collected(1))
                    self._tells(node, f"{number}", {})
                self._says(node, Collected(1))
            case "tells", [node, text]:
                self._tells(node, text, options)
            case "done", [node]:
                self._says(node, Collected(1, self._round, is_last=True))
            case "takes", []:
                self._step(c.Taken())
            case "hangs-up", []:
                self._step(c.HungUp())
            case "ends", []:
                self._step(c.JobEnded())
            case "tick", [seconds]:
                for _ in range(int(seconds)):
                    self._now += 1.0
                    self._step(c.TimePassed())
            case _:
                raise ValueError(f"not a command: {command!r}")
        return self._trace

    def _place(self, listed: str) -> None:
        first, self._nodes = 0, {}
        for each in listed.split(","):
            node, _, workers = each.partition(":")
            self._nodes[node] = c.NodeWorkers(node, self._round, first, int(workers))
            first += int(workers)
            if node not in self._connections:
                self._connect(node)

    def _connect(self, node: str) -> None:
        self._connections[node] = len(self._names) + 1
        self._names[self._connections[node]] = node

    def _tells(self, node: str, text: str, options: Options) -> None:
        round_ = int(options.get("round", str(self._round)))
        told = (WorkerAnswer(0, text, 2, next=len(text)),)
        self._says(node, Collected(1, round_, told, options.get("last") == "1"))

    def _says(self, node: str, piece: Collected) -> None:
        self._step(c.Piece(self._connections[node], piece, self._nodes.get(node), 1))

    def _step(self, event: c.CollectionEvent) -> None:
        if self._state is None:
            raise ValueError("the first command must be `question SUBJECT nodes=...`")
        for effect in c.step(self._state, event, self._now):
            match effect:
                case c.LookAround():
                    self._look_around()
                case SendTo(connection, message):
                    self._trace.append(f"{self._names[connection]} <- {_order(message)}")
                case c.Pass(part):
                    self._tell(part)
                case c.Finish(part):
                    self._tell(part)
                    self._trace.append("person <- that is all")
                case c.CutOff():
                    self._trace.append("person <- cut off")

    def _look_around(self) -> None:
        for node, workers in self._nodes.items():
            version = SINCE - (node == self._old)
            self._step(c.NodeSeen(workers, self._connections.get(node), version))
        self._step(c.AllSeen())

    def _tell(self, part: Gathered) -> None:
        for told in part.told:
            where = f"round {part.round}, node {part.node}, rank {told.rank}"
            self._trace.append(f"person <- {where}: {told.text}")
        for node, why in part.missing.items():
            self._trace.append(f"person <- nothing of node {node}: {why}")


def _order(message: ToAgent) -> str:
    if isinstance(message, Collect):
        read = "".join(f", {one.round}/{one.rank} read to {one.position}" for one in message.read)
        return f"tell of {message.subject.value}, the newest {message.newest}{read}"
    return "send a piece" if getattr(message, "is_wanted", False) else "nothing more is wanted"
