"""The keeping of a node's end of a job, and of a host's history (`core/watch/kept_jobs.py`).

Nothing is written before workers run. Nothing waits for the disk: each write has a new thread. At
the end the agent waits for the last of these threads for a moment.

All modules of the thread are imported with this module, before the agent forks its helpers. A later
import writes to many pages that the agent shares with them, and each of these is copied.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rallypoint.clocks import wall_time
from rallypoint.config import AgentConfig, RendezvousConfig
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Ending
from rallypoint.core.node.timeline import RoundLife
from rallypoint.core.round_record import first_cause
from rallypoint.core.settings import FOR_DIRECTORIES
from rallypoint.core.watch.history_file import Begin, HistoryLine, LinesLost
from rallypoint.core.watch.kept_jobs import KeptLine, NodeNote, directory_name
from rallypoint.machine_name import process_name
from rallypoint.observe import kept_jobs
from rallypoint.observe.records import AgentEvent, Observer

BEGIN_S = 1.0
"""How long after the start of its first workers a node writes its first record of the job, in
seconds."""
AGAIN_S = 0.5
"""The pause between two writes, in seconds."""
LAST_S = 1.0
"""The time limit of the last write, in seconds."""
_HANGS = "the disk does not answer"
WAITING_MAX = 2000
"""The most lines of the history that may wait to be written."""


def meeting_place(rendezvous: RendezvousConfig) -> str:
    """Return the endpoint or the directory of the job; empty with a register of another kind."""
    register = rendezvous.register
    if register is None:
        return str(rendezvous.endpoint)
    return register.where if register.engine == FOR_DIRECTORIES else ""


class _Part:
    """The part of this node in the job, as far as it is known."""

    def __init__(self) -> None:
        self.node = self.peer = ""
        self.is_host = False
        self.life_of: Callable[[], int] = lambda: 0
        self.output: tuple[KeptLine, ...] = ()
        self.end: Ending | None = None
        self.exit_code: int | None = None


class Keeping(Observer):
    """The files in which this node keeps how a job ended; without `--history` also its history.

    The history only where a coordinator in this agent hosts the job: it gives this object the lines
    (see `HistorySink`). For the thread of the loop, except `close`.
    """

    is_light = True

    def __init__(self, config: AgentConfig, history: str) -> None:
        """Keep nothing yet.

        `history` is the file of `--history`, which the record names; empty: this object keeps the
        history of a job that this node hosts.
        """
        self._config, self._history, self._part = config, history, _Part()
        self._incarnation = 0
        self._began = 0.0
        self._life: RoundLife | None = None
        self._lines: list[HistoryLine] = []
        self._lost = 0
        self._is_news = False
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.why = ""
        """Why the last writing failed; empty: it did not."""
        self._tell: Callable[[str, str], None] = lambda path, why: None
        self._has_end = False
        """Whether the record that was written last says how the job ended; only then does `close`
        return its directory."""
        self.path = ""
        """The directory of the job's record, once something was written there."""

    def joins(self, life_of: Callable[[], int], tell: Callable[[str, str], None]) -> None:
        """Note that the node takes part.

        `life_of` returns the incarnation of the job; 0: not known yet. `tell` gets the directory of
        all kept jobs, and the reason, when writing begins to fail.
        """
        self._part.life_of, self._tell = life_of, tell

    def attached(self, peer: str, *, is_host: bool) -> None:
        """Note that this node is attached to a coordinator; `is_host`: it runs in this agent."""
        self._part.peer, self._part.is_host = peer, is_host

    def event(self, event: AgentEvent) -> None:
        self._part.node = event.node or self._part.node

    def write(self, run_id: str, line: HistoryLine) -> None:
        """Write the line of the history soon (see `HistorySink`), unless too many lines wait."""
        if len(self._lines) >= WAITING_MAX:
            self._lost += 1
            return
        self._lines.append(line)
        self._soon(AGAIN_S)

    def tell_faults(
        self, call_soon: Callable[..., object], on_record: Callable[[str, Record], None]
    ) -> None:
        """Do nothing (see `HistorySink`): `joins` sets the receiver of faults."""

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        self._life = life
        if not self._began:
            self._began, self._is_news = wall_time(0.0), True
            self._later(BEGIN_S)

    def took(self, output: tuple[KeptLine, ...]) -> None:
        """Keep this last output of the workers of the last round: it is written with the end."""
        self._part.output = output

    def ended(self, end: Ending) -> None:
        """Note how the job has ended for this node, for the next write."""
        self._part.end, self._is_news = end, True

    def close(self, exit_code: int | None) -> str:
        """Write the end within a moment, and return the job's directory. Blocks; after the loop.

        Empty if the end was not written; `why` then has the reason, if there was something to
        write.
        """
        if self._part.end is not None:
            # The end may have been written already, without the code.
            self._part.exit_code, self._is_news = exit_code, True
        until = time.monotonic() + LAST_S
        while (thread := self._thread) is not None:
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                self.why = _HANGS
                return ""
            self._thread = None
        self._write()
        if (thread := self._thread) is not None:
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                self.why = _HANGS
                return ""
        return self.path if self._has_end else ""

    def _soon(self, delay_s: float) -> None:
        """Write after this delay; before any worker has begun, do nothing."""
        if self._began:
            self._later(delay_s)

    def _later(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._thread is not None and self._thread.is_alive():
            self._later(AGAIN_S)
            return
        self._write(asyncio.get_running_loop())

    def _write(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start a thread that writes what is waiting."""
        self._incarnation = self._part.life_of() or self._incarnation
        lines, self._lines = self._lines, []
        is_news, self._is_news = self._is_news, False
        if not lines and not is_news:
            return

        def work() -> None:
            try:
                self._work(lines, is_news=is_news)
                self.why = ""
            except Exception as error:  # Of the disk, and nothing of it may disturb the job.
                why = getattr(error, "strerror", None) or str(error)
                is_new, self.why = not self.why, why
                if is_new and loop is not None:
                    with suppress(RuntimeError):  # The loop has ended.
                        loop.call_soon_threadsafe(self._tell, self._config.observe.keep_in, why)

        self._thread = threading.Thread(target=work, name="rallypoint-kept", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread, self.why = None, str(error)

    def _work(self, lines: list[HistoryLine], *, is_news: bool) -> None:
        for line in lines:
            if isinstance(line, Begin):
                self._incarnation = self._incarnation or line.incarnation
        if not self._incarnation:
            return  # This node was no part of the job.
        run_id = self._config.rendezvous.run_id
        name = directory_name(run_id, self._incarnation)
        path = os.path.join(self._config.observe.keep_in, name)
        note = self._note() if is_news or not self.path else None
        if note is not None and self._life is None and not lines:
            former = kept_jobs.note_of(path, note.node)
            if former is not None and former.first_rank >= 0:
                return  # An agent of this node took part in a round: what it has kept says more.
        kept_jobs.make_directory(path)
        if note is not None:
            kept_jobs.write_note(path, note)
            self._has_end = bool(note.ended)
        self.path = path
        if lines:
            lost, self._lost = self._lost, 0
            kept_jobs.append(path, [*lines, LinesLost(lost)] if lost else lines)

    def _note(self) -> NodeNote:
        part, machine, rendezvous = self._part, socket.gethostname(), self._config.rendezvous
        assignment = None if self._life is None else self._life.assignment
        end, place, how = part.end, meeting_place(rendezvous), dict[str, Any]()
        if end is not None:
            how = {"outcome": end.outcome.value, "text": end.reason, "left": end.has_left}
            how |= {"ended": wall_time(0.0), "cause": first_cause(end.cause)}
        return NodeNote(
            job=rendezvous.run_id,
            node=part.node or machine,
            machine=machine,
            pid=os.getpid(),
            process=process_name(os.getpid()),
            incarnation=self._incarnation,
            endpoints=tuple(dict.fromkeys(filter(None, (place, part.peer)))),
            host=part.peer if rendezvous.register is not None else rendezvous.endpoint.host,
            is_host=part.is_host,
            history=self._history,
            log_dir=os.path.abspath(log_dir) if (log_dir := self._config.output.log_dir) else "",
            began=self._began or wall_time(0.0),
            round=self._life.number if self._life else end.round if end else 0,
            nodes=1 if assignment is None else assignment.group_world_size,
            first_rank=-1 if assignment is None else assignment.base_rank,
            workers=self._config.workers.count,
            exit_code=part.exit_code,
            output=part.output,
            **how,
        )
