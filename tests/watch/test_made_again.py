"""What commands say to the next coordinator of a job, after the one that they asked went away."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest
from tests.harness.running_job import Place

from rallypoint.cli.commands import ROWS
from rallypoint.cli.parser import parse
from rallypoint.cli.watch.asking.reach import Asking, CoordinatorLostError
from rallypoint.cli.watch.drain import Drain
from rallypoint.cli.watch.wishes import Wish, command
from rallypoint.core import messages as m
from rallypoint.core.watch.questions import Said, Subject
from rallypoint.errors import RendezvousConnectionError
from rallypoint.wire.versions import SPOKEN


class Line:
    """The connection to a coordinator of this version of the session protocol, from the command's
    side. `sent` has all that the command says."""

    def __init__(self, version: int = SPOKEN.newest) -> None:
        self.version, self.sent = version, list[m.ToCoordinator]()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_requested = asyncio.Event()
        self.asking = Asking(cast("Any", self))

    def listen(self, say: Any) -> None:
        self.say = say

    def send(self, message: m.ToCoordinator) -> None:
        self.sent.append(message)
        if isinstance(message, m.DrainNode) or (isinstance(message, m.Ask) and message.is_wish):
            self.is_requested.set()

    def answer(self, value: object) -> None:
        self.say(m.Answer(msgspec.json.encode(value), True, True))


class Restart(Wish):
    row, command = ROWS["restart"], command(ROWS["restart"])


def restart() -> Restart:
    scanned = parse(Restart.command, ["--json"], {})
    return Restart(scanned, Restart.read_words(scanned))


async def is_lost(wish: Wish | Drain, line: Line, place: Place) -> None:
    """The request is made there, and the coordinator goes away before it answers."""
    talk = asyncio.ensure_future(wish.talk(line.asking))
    if line.version >= SPOKEN.newest:
        line.answer(place.job.watch.view)
    await line.is_requested.wait()
    line.lost.set_result("connection reset")
    with pytest.raises(CoordinatorLostError):
        await talk


def asked(line: Line) -> list[Any]:
    return [said for said in line.sent if isinstance(said, m.Ask | m.DrainNode)]


async def test_V4_the_next_coordinator_hears_in_which_round_the_request_was_made(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    wish, first, second = restart(), Line(), Line()
    await is_lost(wish, first, place)
    status, made = asked(first)
    assert (status.subject, made.subject) == (Subject.STATUS, Subject.RESTART)
    assert made.asked_in is None, "it is made for the first time"
    second.answer(Said("round 1 has begun: 1 node, 2 workers"))
    assert await wish.talk(second.asking) == 0
    (again,) = asked(second)
    assert (again.subject, again.asked_in) == (Subject.RESTART, 0)
    assert again.incarnation == place.sessions.job.incarnation
    assert "round 1 has begun" in capsys.readouterr().out


async def test_R7_a_coordinator_that_would_make_a_request_twice_is_not_asked_again(
    place: Place,
) -> None:
    wish, older = restart(), Line(version=3)
    await is_lost(wish, Line(), place)
    with pytest.raises(RendezvousConnectionError, match="runs an older version of Rallypoint"):
        await wish.talk(older.asking)
    assert older.sent == []


async def test_R7_A5_a_coordinator_of_an_older_version_is_asked_for_a_drain_as_it_knows(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    scanned = parse(Drain.command, ["node-1", "--json"], {})
    drain, first, second = Drain(scanned, Drain.read_words(scanned)), Line(3), Line(2)
    await is_lost(drain, first, place)
    second.say(m.DrainAnswer("node node-1 is leaving already", done=False))
    second.say(m.DrainAnswer("node node-1 has left", done=True))
    assert await drain.talk(second.asking) == 0
    (said,) = second.sent
    assert isinstance(said, m.DrainNode)
    assert (said.node_id, said.why) == ("node-1", "it was drained (rallypoint drain)")
    assert capsys.readouterr().out.splitlines() == [
        '{"text":"node node-1 is leaving already","is_done":false}',
        '{"text":"node node-1 has left","is_done":true}',
    ]
