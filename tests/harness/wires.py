"""Connections of a coordinator without a network."""

from __future__ import annotations

import asyncio
from typing import TypeVar, cast

import msgspec

from rallypoint.coordinator.connection import ServerConnection
from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.core import messages as m
from rallypoint.core.watch.questions import Said
from rallypoint.wire.versions import SPOKEN

_M = TypeVar("_M", bound=m.ToAgent)


class Wire(ServerConnection):
    """To one agent, or to a person. `sent` has everything that the coordinator said on it."""

    is_closed = False
    reads_drain_answers = False

    def __init__(self, number: int) -> None:
        self.number, self.peer, self.owner = number, "10.0.0.1:40000", None
        self.version, self.ended_by_peer = SPOKEN.newest, False
        self.sent: list[m.ToAgent] = []
        self._news = asyncio.Event()

    def send(self, message: m.ToAgent | m.ToCoordinator) -> None:
        self.sent.append(cast("m.ToAgent", message))
        self._news.set()

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def all(self, kind: type[_M]) -> list[_M]:
        """What was sent of this kind."""
        return [message for message in self.sent if isinstance(message, kind)]

    async def told(self, kind: type[_M]) -> _M:
        """The first message of this kind."""
        while not (found := self.all(kind)):
            self._news.clear()
            await self._news.wait()
        return found[0]

    @property
    def job(self) -> HostedJob:
        """The job to which the agent has attached."""
        assert isinstance(self.owner, HostedJob)
        return self.owner

    @property
    def said(self) -> list[Said]:
        """The answers to a person who wants something."""
        return [msgspec.json.decode(answer.piece, type=Said) for answer in self.all(m.Answer)]

    @property
    def refusal(self) -> str:
        """The only answer, which refuses what was asked."""
        (answer,) = self.sent
        assert isinstance(answer, m.Answer)
        return answer.refusal
