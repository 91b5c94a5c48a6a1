"""One job on many hosts: reach them, start the agents, pass on what they write and the signals of
this terminal, and end with the job's exit code.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from rallypoint import __version__
from rallypoint.cli.job_verdict import SummaryRead, read_said
from rallypoint.cli.launch.link import HostLink
from rallypoint.cli.launch.output import OutputWriter
from rallypoint.cli.launch.plan import Asked, detached_lines
from rallypoint.cli.launch.roster import HostPart, Roster
from rallypoint.config import Endpoint
from rallypoint.core.json_reader import UnreadableJsonError
from rallypoint.core.node.leave import REPEAT_S
from rallypoint.core.outcomes import SIGNALLED, Outcome
from rallypoint.core.text import count, job_name, signal_name
from rallypoint.errors import ExitClass
from rallypoint.wire.launch_link import (
    AgentEnded,
    AgentOutput,
    AgentRefused,
    Beat,
    Deliver,
    FromHost,
    Hello,
    Here,
    Look,
    Start,
    Started,
)

REACH_S = 60.0
"""Seconds that a host may take to answer."""
BEAT_S = 2.0
SILENCE_S = 60.0
"""Seconds without a message until the agent of a host takes the link for broken."""
AT_ONCE = 64
"""Hosts that are being reached at the same time: a machine that ssh jumps by takes no more."""
APART_S = 1.5 * REPEAT_S
"""Two of the same signal so close are one: agents take them so, also when they come a little later
or earlier there."""
_HURRIED = 2
"""The number of the signal that tells the agents to wait for nothing."""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Launch:
    """`run` once."""

    def __init__(self, asked: Asked, output: OutputWriter) -> None:
        self._asked, self._plan, self._output = asked, asked.plan, output
        plan = asked.plan
        look = Look(plan.remote.directory, plan.script)
        self._links = {
            host.name: HostLink(host, plan.ssh_command(host), look, self._heard, self._over)
            for host in self._plan.hosts
        }
        self._hellos: dict[str, Hello] = {}
        self._roster = Roster(tuple(self._links), self._plan.least)
        self._where: Endpoint | None = None
        self._caught: list[int] = []
        self._caught_at = 0.0
        self._changed = asyncio.Event()
        self._is_over = False
        self._ending_code: int | None = None
        """Set when the job is ended for want of hosts."""

    @property
    def is_hurried(self) -> bool:
        """A person has asked three times, and waits for nothing."""
        return len(self._caught) > _HURRIED

    async def run(self) -> int:
        """The exit code of this command."""
        loop = asyncio.get_running_loop()
        for number in _PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGTSTP, self._not_stopped)
        at_once = asyncio.Semaphore(AT_ONCE)
        tasks = [loop.create_task(link.run(at_once)) for link in self._links.values()]
        beat = loop.create_task(self._beat())
        try:
            if not await self._reach():
                return self._not_started()
            self._start()
            await self._until(lambda: not self._roster.those(HostPart.RUNS))
            return self._detached() if self._asked.detach else self._end()
        finally:
            self._is_over = True
            beat.cancel()
            for link in self._links.values():
                link.hang_up()
            # A host end that was told of nothing to run ends by itself.
            await asyncio.wait(tasks, timeout=0 if self._caught else BEAT_S)
            for link in self._links.values():
                link.kill()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    async def _reach(self) -> bool:
        """Whether the job can be started."""
        roster = self._roster
        with suppress(TimeoutError):
            async with asyncio.timeout(REACH_S):
                await self._until(lambda: bool(self._caught) or not roster.those(HostPart.ASKED))
        for name in () if self._caught else roster.those(HostPart.ASKED):
            self._output.say(f"{name}: can't be used: it has not answered in {REACH_S:g} s")
            roster.failed(name)
            self._links[name].kill()
        return roster.suffices and not self._caught

    def _not_started(self) -> int:
        if self._caught:
            self._output.say(f"got {signal_name(self._caught[0])}: nothing was started")
            return SIGNALLED + self._caught[0]
        gone = self._roster.those(HostPart.GONE)
        ready = len(self._roster.those(HostPart.READY))
        self._output.lines(
            f"rallypoint: nothing was started: {count(ready, 'host')} can take part, and --nodes "
            f"needs {self._plan.least}; without {', '.join(gone)}"
        )
        return self._roster.not_enough_code()

    def _start(self) -> None:
        plan, asked = self._plan, self._asked
        ready = self._roster.those(HostPart.READY)
        leader = self._leader(ready)
        if plan.picks_endpoint:
            hello = self._hellos[leader]
            self._where = Endpoint(hello.address or self._links[leader].host.host, hello.port)
        self._say_what_starts(ready)
        self._roster.started()
        for name in ready:
            link = self._links[name]
            words = plan.agent_words(link.host, self._where, name == leader, len(ready))
            start = Start(
                tuple(words),
                plan.remote.environ,
                asked.token,
                name,
                asked.summary,
                plan.run_id if asked.detach else "",
                SILENCE_S,
            )
            link.send(start)

    def _leader(self, ready: list[str]) -> str:
        """The first host that others can reach: a name of this machine may mean its loopback."""
        addresses = {name: self._hellos[name].address for name in ready}
        others = [name for name, found in addresses.items() if not _is_loopback(found)]
        return (others or ready)[0]

    def _say_what_starts(self, ready: list[str]) -> None:
        spare = len(ready) - max(self._plan.least, min(self._plan.most, len(ready)))
        stands_by = f", of which {spare} stand by" if spare > 1 else ", of which 1 stands by"
        where = f"; the nodes connect at {self._where}" if self._where else ""
        gone = self._roster.those(HostPart.GONE)
        without = f", without {', '.join(gone)}" if gone else ""
        self._output.say(
            f"{job_name(self._plan.run_id)} starts on {count(len(ready), 'host')}"
            f"{stands_by if spare > 0 else ''}{without}{where}"
        )

    async def _heard(self, name: str, message: FromHost) -> None:
        """Handle a message of a host."""
        match message:
            case AgentOutput():
                await self._output.take(name, message.stream, message.data)
            case Here() if message.version != __version__:
                there = f"rallypoint {message.version} is there, and {__version__} here"
                self._failed(name, f"can't be used: {there}", is_mistake=True)
            case Hello() if self._roster.parts[name] is HostPart.ASKED:
                self._hellos[name] = message
                self._roster.answered(name)
            case Started():
                self._links[name].started = message
                if self._asked.detach:
                    self._roster.ended(name, None)
            case AgentRefused():
                self._failed(name, f"can't take part: {message.why}", is_mistake=True)
            case AgentEnded():
                self._ended(name, message)
            case _:
                pass
        self._changed.set()

    def _over(self, name: str, why: str, is_mistake: bool) -> None:
        """Note that nothing more comes from this host."""
        part = self._roster.parts[name]
        if self._is_over:
            return
        if part in (HostPart.ASKED, HostPart.READY):
            self._failed(name, why, is_mistake=is_mistake)
        elif part is HostPart.RUNS:
            self._output.ended(name)
            self._output.show_last(name, as_one_host=True)
            self._failed(
                name, f"the link is broken ({why}): its agent saves a checkpoint and leaves"
            )
        self._changed.set()

    def _failed(self, name: str, why: str, *, is_mistake: bool = False) -> None:
        self._output.say(f"{name}: {why}")
        self._roster.failed(name, is_mistake=is_mistake)
        self._links[name].hang_up()
        self._end_if_too_few()

    def _ended(self, name: str, end: AgentEnded) -> None:
        said = _said(name, end)
        self._output.ended(name)
        self._roster.ended(name, said)
        if self._roster.parts[name] is HostPart.GONE:
            self._output.show_last(name, as_one_host=True)
            if end.code == -signal.SIGTERM and (self._caught or self._ending_code):
                pass  # It had begun a moment ago.
            elif end.code < 0:
                self._output.say(f"{name}: its agent was killed by {signal_name(-end.code)}")
            elif said is None:
                self._output.say(f"{name}: its agent exited with code {end.code}")
        self._end_if_too_few()

    def _end_if_too_few(self) -> None:
        roster = self._roster
        if self._caught or self._ending_code or not roster.too_few_are_left:
            return
        self._ending_code = roster.not_enough_code()
        left = count(len(roster.those(HostPart.RUNS)), "host")
        self._output.say(f"{left} left, and --nodes needs {self._plan.least}: ending the job")
        self._deliver(signal.SIGTERM)

    def _end(self) -> int:
        found = self._roster.verdict()
        if found is not None:
            name, said = found
            same = [each for each in self._links if self._roster.agrees(each, said.outcome)]
            self._output.show_last(max(same, key=self._output.last_size), as_one_host=False)
            for other in self._links:
                if other not in same:
                    self._output.show_last(other, as_one_host=True)
            if self._roster.parts[name] is HostPart.ENDED or not self._ending_code:
                return said.exit_code
        else:
            self._output.lines("rallypoint: no agent has told how the job ended")
        if self._caught and not self._ending_code:
            return SIGNALLED + self._caught[0]
        return self._ending_code or ExitClass.INFRASTRUCTURE.value

    def _detached(self) -> int:
        started = {name: link.started for name, link in self._links.items() if link.started}
        if not started:
            return self._roster.not_enough_code()
        asked = self._asked
        self._output.lines(*detached_lines(self._plan, started, self._where, asked.summary))
        return 0

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for name in self._roster.those(HostPart.RUNS):
                self._links[name].send(Beat())
            self._output.settle()

    def _deliver(self, number: int) -> None:
        for name in self._roster.those(HostPart.RUNS):
            self._links[name].send(Deliver(number))

    def _signalled(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        if self._caught[-1:] == [number] and now - self._caught_at < APART_S:
            return
        self._caught_at = now
        self._caught.append(number)
        self._changed.set()
        if len(self._caught) <= _HURRIED:
            self._deliver(number)
            return
        for name in self._roster.those(HostPart.RUNS):
            self._output.say(f"{name}: not waited for")
            self._roster.failed(name)

    def _not_stopped(self) -> None:
        self._output.say("Ctrl-Z has no effect: the hosts would take the link for broken")


def _said(name: str, end: AgentEnded) -> SummaryRead | None:
    if end.summary:
        with suppress(UnreadableJsonError):
            return read_said(end.summary)
    if end.code == ExitClass.USAGE.value:
        return SummaryRead(Outcome.USAGE.value, end.code, "wrong usage", name, 0)
    return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("", "::1")
