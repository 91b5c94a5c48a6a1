"""The hosts that take part, whether they suffice, and how the job has ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rallypoint.cli.job_verdict import SummaryRead, surest
from rallypoint.core.outcomes import Outcome
from rallypoint.errors import ExitClass

_OF_THE_JOB = frozenset(outcome.value for outcome in Outcome if not outcome.row.of_one)


class HostPart(Enum):
    """The part that a host has in the launch."""

    ASKED = "asked"
    READY = "ready"
    RUNS = "runs"
    ENDED = "ended"
    """The host's agent has told how the job ended."""
    GONE = "gone"
    """The host never was there, or has left or lost the job."""


class Roster:
    """All hosts of one launch, by name."""

    def __init__(self, names: Sequence[str], least: int) -> None:
        self._least = least
        self.parts = dict.fromkeys(names, HostPart.ASKED)
        """The part of each host by its name, in their order."""
        self._said: dict[str, SummaryRead] = {}
        self._mistakes = 0
        """Hosts that were reached and lack something, or whose agents refuse the job."""

    def those(self, part: HostPart) -> list[str]:
        """The hosts of which that is so, in their order."""
        return [name for name, found in self.parts.items() if found is part]

    @property
    def suffices(self) -> bool:
        """Whether those that answered are as many as the job needs."""
        return len(self.those(HostPart.READY)) >= self._least

    def answered(self, name: str) -> None:
        """Note that this host can take part."""
        self.parts[name] = HostPart.READY

    def failed(self, name: str, *, is_mistake: bool = False) -> None:
        """Note that this host can't take part, or does no more."""
        self.parts[name] = HostPart.GONE
        self._mistakes += is_mistake

    def started(self) -> None:
        """All that are ready run from now on."""
        for name in self.those(HostPart.READY):
            self.parts[name] = HostPart.RUNS

    def ended(self, name: str, said: SummaryRead | None) -> None:
        """Note that the agent of this host has ended, and has left a summary or not."""
        is_of_job = said is not None and said.outcome in _OF_THE_JOB
        self.parts[name] = HostPart.ENDED if is_of_job else HostPart.GONE
        if said is not None:
            self._said[name] = said
            self._mistakes += said.outcome == Outcome.USAGE.value

    @property
    def too_few_are_left(self) -> bool:
        """The job can't go on: nobody will come in place of those that are gone."""
        left = len(self.those(HostPart.RUNS)) + len(self.those(HostPart.ENDED))
        return bool(self.those(HostPart.RUNS)) and left < self._least

    def not_enough_code(self) -> int:
        """The exit code where too few hosts are there: mistakes are the same the next time."""
        is_mistake = self._mistakes == len(self.those(HostPart.GONE))
        code: int = (ExitClass.USAGE if is_mistake else ExitClass.INFRASTRUCTURE).value
        return code

    def verdict(self) -> tuple[str, SummaryRead] | None:
        """How the job has ended, and the host that says it; None: no host does."""
        said = surest(self._said.values())
        if said is None:
            return None
        return next(name for name, each in self._said.items() if each is said), said

    def agrees(self, name: str, outcome: str) -> bool:
        """Whether that host has said the same."""
        return name in self._said and self._said[name].outcome == outcome
