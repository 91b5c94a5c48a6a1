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

from msgspec import Struct, field

from rallypoint.observe.printing import printed, visible
from rallypoint.process.forks import ForkedProcess, fork_process
from rallypoint.process.logs.plan import ConsoleRoute, Std, ToRelay
from rallypoint.process.relay.drawing import WorkerKey
from rallypoint.process.relay.events import RelayEvents
from rallypoint.process.relay.lines import last_lines
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
    RelayRequest,
    ShowStatus,
    StreamOutput,
    TailIs,
    WriteFailed,
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
    """What a relay is started with: see `Relay.start`."""

    title: str
    events: RelayEvents
    objects: StreamObjects


class Relay(Struct, eq=False):
    """The running relay process. Make one with `start`; end it with `stop`."""

    process: ForkedProcess
    _control: socket.socket
    _setup: RelaySetup
    _queue: deque[tuple[bytes, int]] = field(default_factory=deque)  # packet, fd or -1
    _status: bytes | None = None
    _asks: dict[int, asyncio.Future[bytes | None]] = field(default_factory=dict)
    _last_ask: int = 0
    _newest_round: int = -1
    _ending: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    _lost: bool = False
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(cls, events: RelayEvents | None = None, *, title: str = TITLE) -> Relay:
        """Fork the relay. May be called before the loop runs; do it while the agent is small. Teed
        lines are written to what are `sys.stdout` and `sys.stderr` now.
        `title`: what `ps -f` shows.

        Raises OSError when the system can't fork.
        """
        setup = RelaySetup(title, events or RelayEvents(), StreamObjects())
        return cls(*_fork(setup), setup)

    def restart(self) -> None:
        """Fork another process after `on_lost`; what the old one held is lost.

        Raises OSError when the system can't fork; then all goes on as it does without a relay.
        """
        self.process.kill()
        self.process.wait()
        self.process, self._control = _fork(self._setup)
        self._lost, self._loop, self._ended = False, None, asyncio.Event()
        self._listen()

    @property
    def is_lost(self) -> bool:
        """Whether the relay has ended, by our wish or not."""
        return self._lost

    def add(
        self,
        worker: WorkerKey,
        stream: Std,
        route: ToRelay,
        prefix: bytes = b"",
        *,
        draws: bool = True,
    ) -> int:
        """The write end of a new pipe, to become the worker's stdout or stderr.

        The caller closes it once the worker has it: the stream ends with its last writer.
        Without `draws` a terminal is treated as a file is: of a line that is drawn its last state
        is written. If the relay was lost, it is the agent's own stream instead: output beats
        decoration.
        """
        fd = 1 if stream is Std.OUT else 2
        if self._lost:
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
        """Match what the workers of this round write, whose streams are added next, with a pattern
        as `process/relay/pattern.py` takes it; the path of their shared memory."""
        self._send(ReadProgress(round_number, os.fsencode(shm), os.fsencode(pattern)))

    def status(self, text: str) -> None:
        """Show this status line (a terminal only) until the next one; empty takes it away."""
        self._status = visible(text).encode()
        self._pump()

    def fold_interrupts(self) -> None:
        """The workers are about to get SIGINT: their tracebacks of it become one line."""
        self._send(FoldInterrupts())

    def say(self, *lines: str) -> None:
        """Write lines of the agent to stderr, as `observe.printing` makes them.

        Without a relay (it was lost) they are written directly.
        """
        text = printed(*lines).encode()
        if self._lost:
            _write_directly(text)
            return
        while text:
            end = len(text) if len(text) <= _SAY_BYTES else text.rfind(b"\n", 0, _SAY_BYTES) + 1
            end = end or _SAY_BYTES
            self._send(WriteLines(text[:end]))
            text = text[end:]

    async def tail(self, round_number: int, local_rank: int, *, timeout_s: float = 2.0) -> bytes:
        """The last lines of a worker's stderr, with all that it wrote until now.

        Call when the worker has ended. Empty when its stderr is not relayed, when the relay was
        lost, and when a console that takes nothing holds the relay for `timeout_s`.
        """
        words = await self.last_words(round_number, local_rank, timeout_s=timeout_s)
        return last_lines(words.stderr[-1].data) if words.stderr else b""

    async def last_words(
        self, round_number: int, local_rank: int, *, timeout_s: float = 2.0
    ) -> LastWords:
        """Return the last words of a worker: the tracebacks that the relay remembers, the end of
        stderr, and the end of stdout. Waits as `tail` does."""
        ask = self._next_ask()
        packet = await self._ask(AskTail(ask, round_number, local_rank), ask, timeout_s)
        match packet and decode_report(packet):
            case TailIs(words=words):
                return words
        return LastWords()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until all that workers and agent wrote until now is out; whether it was in time.

        None waits as long as the consoles do: a reader that pauses (`| less`) loses nothing.
        """
        ask = self._next_ask()
        return await self._ask(AskDrain(ask), ask, timeout_s) is not None

    async def progress_read(self, timeout_s: float = 2.0) -> None:
        """Wait until all that workers wrote until now was matched, but not longer."""
        ask = self._next_ask()
        await self._ask(AskProgress(ask), ask, timeout_s)

    async def output(
        self,
        round_number: int,
        places: tuple[tuple[int, int, int], ...],
        *,
        newest: int,
        unfinished: bool,
    ) -> tuple[StreamOutput, ...]:
        """What is kept of these streams: see `AskOutput`. Empty when the relay was lost."""
        ask = self._next_ask()
        wanted = AskOutput(ask, round_number, places, newest, unfinished)
        packet = await self._ask(wanted, ask, OUTPUT_S)
        match packet and decode_report(packet):
            case OutputIs(streams=streams):
                return streams
        return ()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Let the relay write out what it has, and end it; its process is gone afterwards, also
        when this is cancelled. `timeout_s` is as for `drain`; a console that is behind by then
        gets STALL_S more, and so does an object of the program's. Safe to repeat."""
        self._ending = True
        try:
            await self.drain(timeout_s)
            if not self._lost:
                self._control.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(STALL_S + 1.0):
                    await self._ended.wait()
        except (OSError, TimeoutError):
            pass
        finally:
            self._end()
        await self._setup.objects.passed_on(STALL_S)

    def kill(self) -> None:
        """End it at once; what it holds is lost. Safe to repeat."""
        self.process.kill()
        self._end()

    def _end(self) -> None:
        self._ending = True
        was_lost = self._lost
        self._lose()
        if not was_lost:
            self.process.kill()
        self.process.wait()

    # --- sending

    def _next_ask(self) -> int:
        self._last_ask += 1
        return self._last_ask

    async def _ask(self, request: RelayRequest, ask: int, timeout_s: float | None) -> bytes | None:
        """The answer to one request; None when there is none within `timeout_s`."""
        if self._lost:
            return None
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._asks[ask] = answer
        self._send(request)
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
        """Send what the socket takes now; the loop does the rest later."""
        if self._lost:
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
        """Attach to the running loop, the first time that there is one."""
        if self._loop is not None or self._lost:
            return
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._loop.add_reader(self._control, self._receive)
        if self._queue:
            self._loop.add_writer(self._control, self._pump)

    def _receive(self) -> None:
        while not self._lost:
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
                case Drained(ask):
                    self._answer(ask, b"")
                case TailIs(ask) | OutputIs(ask):
                    self._answer(ask, packet)
                case WriteFailed(path, number):
                    if self._setup.events.storage_error is not None:
                        self._setup.events.storage_error(os.fsdecode(path), number)
                case _:
                    self._setup.events.pass_on(report)

    def _answer(self, ask: int, answer: bytes) -> None:
        future = self._asks.get(ask)
        if future is not None and not future.done():
            future.set_result(answer)

    def _lose(self) -> None:
        """The relay is gone, by our wish or not: what waits for it will not be served."""
        if self._lost:
            return
        self._lost = True
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
        if self._loop is not None and self._setup.events.lost is not None and not self._ending:
            self._loop.call_soon(self._setup.events.lost, self._newest_round)


def _fork(setup: RelaySetup) -> tuple[ForkedProcess, socket.socket]:
    """The process and our end of its control channel."""
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
    """The last resort: may block on a console that takes nothing."""
    try:
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()
    except (OSError, ValueError):
        pass
