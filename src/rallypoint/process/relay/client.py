"""The agent's side of the relay. No method blocks the loop; nothing but a status line is lost.

Sending never waits: what the control socket does not take at once stays in a queue that the loop
empties, and a status line that was overtaken by a newer one is not sent at all.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from rallypoint.observe.printing import printed, visible
from rallypoint.process.forks import ForkedProcess, fork_process
from rallypoint.process.logs.plan import ConsoleRoute, Std, ToRelay
from rallypoint.process.relay.drawing import WorkerKey
from rallypoint.process.relay.messages import (
    MAX_PACKET,
    AddStream,
    AskDrain,
    AskOutput,
    AskProgress,
    AskTail,
    Drained,
    FoldInterrupts,
    OutputIs,
    ReadProgress,
    RelayNews,
    RelayReport,
    RelayRequest,
    ShowStatus,
    StreamOutput,
    TailIs,
    WriteLines,
    decode_report,
    encode,
)
from rallypoint.process.relay.objects import StreamObjects
from rallypoint.process.relay.remembered import LastWords
from rallypoint.process.relay.server import STALL_S, run_relay

_SAY_BYTES = MAX_PACKET // 2

OUTPUT_S = 2.0
TITLE = "rallypoint: relay"


class RelaySetup(Struct, frozen=True):
    """The settings with which a relay is started: see `Relay.start`."""

    title: str
    told: Callable[[RelayNews], None]
    lost: Callable[[int], None]
    objects: StreamObjects


class Relay(Struct, eq=False):
    """The running relay process, which writes the workers' output; see `start` and `stop`."""

    process: ForkedProcess
    _control: socket.socket
    _setup: RelaySetup
    _queue: deque[tuple[bytes, int]] = field(default_factory=deque)  # packet, fd or -1
    _status: bytes | None = None
    _asks: dict[int, asyncio.Future[RelayReport | None]] = field(default_factory=dict)
    _last_ask: int = 0
    _newest_round: int = -1
    _ending: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    is_lost: bool = False
    """Whether the relay has ended, by our wish or not, or was given up as it sent nonsense."""
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(
        cls,
        told: Callable[[RelayNews], None] = lambda news: None,
        lost: Callable[[int], None] = lambda round_number: None,
        *,
        title: str = TITLE,
    ) -> Relay:
        """Fork the relay.

        May be called before the loop runs; do it while the agent is small. Teed lines are written
        to what are `sys.stdout` and `sys.stderr` now. `told` is called with its news. `lost` is
        called when the process has died, or has sent nonsense, before it was ended. It gets the
        number of the last round whose output the relay was given; -1: none. Then `restart` may be
        called. Both are called in the agent's loop. `title`: what `ps -f` shows.

        Raises OSError when the system can't fork.
        """
        setup = RelaySetup(title, told, lost, StreamObjects())
        return cls(*_fork(setup), setup)

    def restart(self) -> None:
        """Fork another process after `lost`; the unsent output of the old one is lost.

        Raises OSError when the system can't fork; the agent then continues without a relay.
        """
        self.process.kill()
        self.process.wait()
        self.process, self._control = _fork(self._setup)
        self.is_lost, self._loop, self._ended = False, None, asyncio.Event()
        self._listen()

    def add(
        self,
        worker: WorkerKey,
        stream: Std,
        route: ToRelay,
        prefix: bytes = b"",
        *,
        draws: bool = True,
    ) -> int:
        """Return the write end of a new pipe, to become the worker's stdout or stderr.

        The caller closes it once the worker has it: the stream ends with its last writer. Without
        `draws` a line that is redrawn is written once, in its last state, even to a terminal. If
        the relay was lost, the result is a copy of the agent's own stream instead: output beats
        decoration. Raises OSError when no descriptor is left.
        """
        fd = 1 if stream is Std.OUT else 2
        if self.is_lost:
            return os.dup(fd)
        self._newest_round = worker[0]
        reader, writer = os.pipe()
        request = AddStream(
            worker=worker,
            fd=0 if route.console is ConsoleRoute.NONE else fd,
            lines=route.console not in (ConsoleRoute.NONE, ConsoleRoute.RAW),
            prefix=prefix,
            path=os.fsencode(route.path),
            keep_tail=route.keep_tail,
            max_bytes=route.max_bytes,
            draws=draws,
            teed=route.console is ConsoleRoute.TEE,
            copy_to=os.fsencode(route.copies.path) if route.copies else b"",
            copy_if=tuple(map(os.fsencode, route.copies.texts)) if route.copies else (),
            stream=fd,
        )
        self._send(request, reader)
        return writer

    def read_progress(self, round_number: int, shm: str, pattern: str) -> None:
        """Have the output of this round's workers matched by a pattern.

        Their streams are added next. The pattern is one of `process/relay/pattern.py`; `shm` is the
        path of their shared memory.
        """
        self._send(ReadProgress(round_number, os.fsencode(shm), os.fsencode(pattern)))

    def status(self, text: str) -> None:
        """Have the relay show this status line on a terminal until the next one; empty: none."""
        self._status = visible(text).encode()
        self._pump()

    def fold_interrupts(self) -> None:
        """Have the relay fold the tracebacks of workers about to get SIGINT into one line."""
        self._send(FoldInterrupts())

    def say(self, *lines: str) -> None:
        """Have the relay write lines of the agent to stderr, in the form of `observe.printing`.

        If the relay was lost, the agent writes them itself.
        """
        text = printed(*lines).encode()
        if self.is_lost:
            _write_directly(text)
            return
        while text:
            end = len(text) if len(text) <= _SAY_BYTES else text.rfind(b"\n", 0, _SAY_BYTES) + 1
            end = end or _SAY_BYTES
            self._send(WriteLines(text[:end]))
            text = text[end:]

    async def last_words(
        self, round_number: int, local_rank: int, *, timeout_s: float = 2.0
    ) -> LastWords:
        """Return the last words of a worker that has ended, once all that it wrote is read.

        They are the tracebacks that the relay remembers, the end of stderr, and the end of stdout.
        Empty when its streams are not relayed, when the relay was lost, or when it does not answer
        within `timeout_s` seconds.
        """
        wanted = partial(AskTail, round_number=round_number, local_rank=local_rank)
        answer = await self._ask(wanted, timeout_s)
        return answer.words if isinstance(answer, TailIs) else LastWords()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until all output so far is written; return whether it was in time.

        At most `timeout_s` seconds. None waits as long as the consoles do: a reader that pauses (`|
        less`) loses nothing. False also if the relay is lost.
        """
        return await self._ask(AskDrain, timeout_s) is not None

    async def progress_read(self, timeout_s: float = 2.0) -> None:
        """Wait until all output so far was searched for progress, at most `timeout_s` seconds."""
        await self._ask(AskProgress, timeout_s)

    async def output(
        self,
        round_number: int,
        places: tuple[tuple[int, int, int], ...],
        *,
        newest: int,
        unfinished: bool,
    ) -> tuple[StreamOutput, ...]:
        """Return the kept output of these streams: see `AskOutput`.

        Empty when the relay was lost, or does not answer within 2 s.
        """
        wanted = partial(
            AskOutput,
            round_number=round_number,
            places=places,
            newest=newest,
            unfinished=unfinished,
        )
        answer = await self._ask(wanted, OUTPUT_S)
        return answer.streams if isinstance(answer, OutputIs) else ()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Let the relay write its remaining output, and end it.

        May be repeated.

        Its process is gone afterwards, even if this is cancelled. `timeout_s` is as for `drain`; a
        console that is behind by then gets STALL_S more, and so does an object of the program's.
        """
        self._ending = True
        try:
            await self.drain(timeout_s)
            if not self.is_lost:
                self._control.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(STALL_S + 1.0):
                    await self._ended.wait()
        except (OSError, TimeoutError):
            pass
        finally:
            self._end()
        await self._setup.objects.passed_on(STALL_S)

    def kill(self) -> None:
        """Kill the relay at once; its unwritten output is lost. May be repeated."""
        self.process.kill()
        self._end()

    def _end(self) -> None:
        self._ending = True
        was_lost = self.is_lost
        self._lose()
        if not was_lost:
            self.process.kill()
        self.process.wait()

    # --- sending

    async def _ask(
        self, request: Callable[[int], RelayRequest], timeout_s: float | None
    ) -> RelayReport | None:
        """Send a request with a new number, and return the answer.

        None when there is none within `timeout_s` seconds, or when the relay is lost.
        """
        if self.is_lost:
            return None
        answer: asyncio.Future[RelayReport | None] = asyncio.get_running_loop().create_future()
        self._last_ask = ask = self._last_ask + 1
        self._asks[ask] = answer
        self._send(request(ask))
        self._listen()
        try:
            # An answer that came in the moment in which the time ended counts.
            await asyncio.wait((answer,), timeout=timeout_s)
        finally:
            self._asks.pop(ask, None)
        return answer.result() if answer.done() else None

    def _send(self, request: RelayRequest, fd: int = -1) -> None:
        self._queue.append((encode(request), fd))
        self._pump()

    def _pump(self) -> None:
        """Send what the socket takes now; the loop sends the rest later."""
        if self.is_lost:
            return
        self._listen()
        try:
            while self._queue:
                packet, fd = self._queue[0]
                if fd < 0:
                    self._control.send(packet)
                else:
                    socket.send_fds(self._control, [packet], [fd])
                    os.close(fd)
                self._queue.popleft()
            if self._status is not None:
                self._control.send(encode(ShowStatus(self._status)))
                self._status = None
        except BlockingIOError:
            if self._loop is not None:
                self._loop.add_writer(self._control, self._pump)
            return
        except OSError:
            self._lose()
            return
        if self._loop is not None:
            self._loop.remove_writer(self._control)

    # --- receiving

    def _listen(self) -> None:
        """Have the event loop read the control channel, the first time that a loop runs."""
        if self._loop is not None or self.is_lost:
            return
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._loop.add_reader(self._control, self._receive)
        if self._queue:
            self._loop.add_writer(self._control, self._pump)

    def _receive(self) -> None:
        while not self.is_lost:
            try:
                packet = self._control.recv(2 * MAX_PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._lose()
                return
            try:
                report = decode_report(packet)
            except ValueError:  # it can be believed no more
                self._lose()
                return
            match report:
                case Drained(ask) | TailIs(ask) | OutputIs(ask):
                    self._answer(ask, report)
                case _:
                    self._setup.told(report)

    def _answer(self, ask: int, answer: RelayReport) -> None:
        future = self._asks.get(ask)
        if future is not None and not future.done():
            future.set_result(answer)

    def _lose(self) -> None:
        """Give up the relay, which is gone, and end the waits for it.

        Has `lost` called, unless the relay was to be ended.
        """
        if self.is_lost:
            return
        self.is_lost = True
        if self._loop is not None:
            self._loop.remove_writer(self._control)
            self._loop.remove_reader(self._control)
        self._control.close()
        for packet, fd in self._queue:
            _abandon(packet, fd)
        self._queue.clear()
        for future in self._asks.values():
            if not future.done():
                future.set_result(None)
        self._ended.set()
        if self._loop is not None and not self._ending:
            self._loop.call_soon(self._setup.lost, self._newest_round)


def _fork(setup: RelaySetup) -> tuple[ForkedProcess, socket.socket]:
    """Fork the relay; return its process and the agent's end of its control channel.

    Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    agent_pid = os.getpid()
    try:
        with setup.objects.pipes() as pipes:
            # It outlives a killed agent by the moment that it takes to write out what it holds.
            process = fork_process(
                lambda: run_relay(theirs, agent_pid, pipes),
                name="rallypoint-rly",
                title=setup.title,
                keep_fds=(theirs.fileno(), *pipes.values()),
                dies_with_parent=False,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _abandon(packet: bytes, fd: int) -> None:
    if fd >= 0:
        os.close(fd)
        return
    from rallypoint.process.relay.messages import decode_request

    match decode_request(packet):
        case WriteLines(lines):
            _write_directly(lines)
        case _:
            pass


def _write_directly(text: bytes) -> None:
    """Write to stderr directly, as the last resort; errors are ignored.

    May block on a console that takes nothing.
    """
    try:
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()
    except (OSError, ValueError):
        pass
