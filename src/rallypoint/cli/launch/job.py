"""One job on many hosts: the links to them, their output, and the signals of this terminal.

`machine.py` decides.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine

from rallypoint.cli.launch import machine
from rallypoint.cli.launch.link import HostLink
from rallypoint.cli.launch.output import OutputWriter
from rallypoint.cli.launch.plan import Asked
from rallypoint.errors import InvariantError
from rallypoint.observe.faults import describe_fault
from rallypoint.wire.launch_link import AgentOutput, FromHost, Look

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class LaunchedJob:
    """One launched job: its links to hosts, its output and its signals. Call `run` once."""

    def __init__(self, asked: Asked, output: OutputWriter) -> None:
        self._loop, self._output = asyncio.get_running_loop(), output
        self._state = machine.begin(asked, self._loop.time())
        plan = asked.plan
        look = Look(plan.remote.directory, plan.script)
        self._links = {
            host.name: HostLink(host.name, plan.ssh_command(host), look, self._heard, self._step)
            for host in plan.hosts
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._over: asyncio.Future[machine.Over] = self._loop.create_future()

    async def run(self) -> int:
        """Run the job to its end, and return the exit code of this command.

        Raises InvariantError for a bug; the hosts are disconnected then, as at every end.
        """
        for number in _PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._step, machine.Signalled(number))
        self._loop.add_signal_handler(signal.SIGTSTP, self._not_stopped)
        beat, patience_s = self._begin(self._beat()), machine.BEAT_S
        try:
            over = await self._over
            patience_s = over.patience_s
            return over.code
        finally:
            beat.cancel()
            for link in self._links.values():
                link.hang_up()
            # A host end that was told of nothing to run ends by itself.
            await asyncio.wait((beat, *self._tasks), timeout=patience_s)
            for link in self._links.values():
                link.kill()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the launch because of a bug.

        The event that was lost may be the one for which everything waits.
        """
        if not self._over.done():
            machine.abandon(self._state)
            what = f"the launch has a bug ({describe_fault(error)}): please report it"
            self._over.set_exception(InvariantError(what))

    async def _beat(self) -> None:
        while True:
            self._step(machine.TimePassed())
            self._output.settle()
            await asyncio.sleep(machine.BEAT_S)

    async def _heard(self, name: str, message: FromHost) -> None:
        if isinstance(message, AgentOutput):
            await self._output.take(name, message.stream, message.data)
        else:
            self._step(machine.Heard(name, message))

    def _step(self, event: machine.Event) -> None:
        try:
            for effect in machine.step(self._state, event, self._loop.time()):
                self._execute(effect)
        except Exception as error:  # Whoever called may be the loop, which would only log it.
            self._fail(error)

    def _execute(self, effect: machine.Effect) -> None:
        output, links = self._output, self._links
        match effect:
            case machine.Reach(name):
                self._tasks.append(self._begin(links[name].run()))
            case machine.Send(name, message):
                links[name].send(message)
            case machine.HangUp(name):
                links[name].hang_up()
            case machine.Kill(name):
                links[name].kill()
            case machine.Say(text):
                output.say(text)
            case machine.Print(lines):
                output.lines(*lines)
            case machine.EndOutput(name):
                output.ended(name)
            case machine.ShowLast(names, as_one_host):
                output.show_last(max(names, key=output.last_size), as_one_host=as_one_host)
            case machine.Hurry():
                output.give_up()
            case machine.Over():
                self._over.set_result(effect)

    def _not_stopped(self) -> None:
        self._output.say(
            "Ctrl-Z is ignored: a stopped launch would look like a broken link to the hosts"
        )
