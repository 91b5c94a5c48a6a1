"""The stand-alone coordinators of one simulated job: one leads, and the network knows one name."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.coordinators import CoordinatorProcess, Simulated
from tests.simulator.loop import MachineClock
from tests.simulator.register import SimulatedRegister

SECOND = "coordinator2"
"""The machine of another one."""


class Serves:
    """Those that run. Agents know one name; the network decides whom it means."""

    def __init__(
        self,
        shared: Simulated,
        clock_of: Callable[[str], MachineClock],
        register: SimulatedRegister | None,
        leader: Callable[[], int],
    ) -> None:
        """`leader`: the number of the one that the register names."""
        self._shared, self._clock_of, self._leader = shared, clock_of, leader
        self.register = register
        self.running: list[CoordinatorProcess] = []
        self._diverted = 0

    def start(self, host: str) -> None:
        """One on this machine, with nothing but what a restart keeps."""
        if all(each.loop.host != host for each in self.running):
            clock = self._clock_of(host)
            self.running.append(CoordinatorProcess(self._shared, clock, host, self.register))
            self.direct()

    def kill(self, process: CoordinatorProcess) -> None:
        """SIGKILL."""
        self.running.remove(process)
        process.kill()
        self.direct()

    def divert(self, number: int) -> None:
        """From now on, by so many reasons more or fewer, the other one answers."""
        self._diverted += number
        self.direct()

    @property
    def first(self) -> CoordinatorProcess | None:
        """The one that leads, else the oldest."""
        leading = [each for each in self.running if each.hosted.life == self._leader()]
        return next(iter(leading or self.running), None)

    def direct(self) -> None:
        """Who leads answers, but while that is diverted."""
        if (first := self.first) is None:
            return
        others = [each for each in self.running if each is not first]
        chosen = others[0] if self._diverted and others else first
        self._shared.network.direct(self._shared.coordinator_host, chosen.loop.host)
