"""The activity of an agent as events: torch's names and keys, and Rallypoint's own beside them."""

from __future__ import annotations

import os.path
import socket
import time
from collections.abc import Callable, Sequence

from rallypoint.agent.status import place_text
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.config import AgentConfig, WorkerConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import EventKind, ReportedBy
from rallypoint.core.model import Verdict
from rallypoint.core.node.events import EndState
from rallypoint.core.node.timeline import Milestone, RoundLife
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.observe.event import Event, EventMetadataValue, EventSource, milliseconds_now
from rallypoint.observe.printing import json_text
from rallypoint.observe.records import AgentEvent, Observer

STATUS = "torchelastic.worker.status."
"""The beginning of torch's names of events, which end with a state such as `FAILED`."""
OWN = "rallypoint."
"""The beginning of the names of Rallypoint's own events, such as that of the end of a phase."""


class EventEmitter(Observer):
    """The maker of one agent's events, torch's and Rallypoint's own.

    `put` gets each, and must not block.
    """

    def __init__(
        self, config: AgentConfig, dispatcher: EventDispatcher, put: Callable[[Event], None]
    ) -> None:
        self._config, self._dispatcher, self._put = config, dispatcher, put
        self._host = socket.gethostname()
        self._entry_point = _entry_point(config.workers)

    def round_began(self, life: RoundLife, before: RoundLife | None, joined_s: float) -> None:
        self._agent("RENDEZVOUS", life, life.assignment.why, duration_ms=_ms(joined_s))

    def phase_ended(self, life: RoundLife, phase: Milestone) -> None:
        if phase.name == "rendezvous":
            took_s = time.monotonic() - life.began_at
            place = place_text(life.assignment, self._config.workers.count)
            self._agent("ASSIGN_WORKER_RANKS", life, place, duration_ms=_ms(took_s))
        text = kinds.PHASE(phase=phase.name, took_s=phase.took_s).text
        took_ms = _ms(phase.took_s)
        more: dict[str, EventMetadataValue] = {"phase": phase.name, "duration_ms": took_ms}
        self._own(kinds.PHASE, text, phase.round, more)

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        for local_rank, pid in enumerate(pids):
            now = milliseconds_now() / 1000
            runs = WorkerExit(None, None, local_rank=local_rank, pid=pid, wall_time=now)
            self._worker(life, "START", runs, life.assignment.why)

    def worker_ended(self, life: RoundLife, state: EndState, exit_: WorkerExit) -> None:
        self._worker(life, state, exit_, _why(life, state, exit_))

    def event(self, event: AgentEvent) -> None:
        if event.kind.reported_by is ReportedBy.CONSOLE:
            return
        self._own(event.kind, event.message, event.round, dict(event.fields), at=event.at)

    def finished(self, succeeded: bool, reason: str, verdict: Verdict | None) -> None:
        self._agent(
            "SUCCEEDED" if succeeded else "FAILED", self._dispatcher.timeline.newest, reason
        )

    def _agent(
        self,
        state: str,
        life: RoundLife | None,
        reason: str,
        duration_ms: float | None = None,
    ) -> None:
        metadata = self._status(state, life, reason, self._nested(life))
        metadata["duration_ms"] = duration_ms
        self._put(Event(STATUS + state, EventSource.AGENT, metadata=metadata))

    def _worker(self, life: RoundLife, state: str, worker: WorkerExit, reason: str) -> None:
        assignment = life.assignment
        nested = self._nested(life) | {
            "local_rank": worker.local_rank,
            "role_rank": assignment.base_role_rank + worker.local_rank,
            "role_world_size": assignment.role_world_size,
            "exit_code": worker.returncode,
            "worker_pid": worker.pid or None,
        }
        metadata = self._status(state, life, reason, nested)
        metadata["global_rank"] = assignment.base_rank + worker.local_rank
        metadata["worker_id"] = str(worker.pid) if worker.pid else None
        if state is EndState.FAILED:
            from rallypoint.process.causes.told import error_record

            metadata["raw_error"] = json_text({"message": error_record(worker)})
        timestamp = int(worker.wall_time * 1000)
        self._put(Event(STATUS + state, EventSource.WORKER, timestamp, metadata))

    def _status(
        self,
        state: str,
        life: RoundLife | None,
        reason: str,
        nested: dict[str, EventMetadataValue],
    ) -> dict[str, EventMetadataValue]:
        rendezvous = self._config.rendezvous
        backend = "static" if rendezvous.static else "tcp"
        if rendezvous.handler is not None:
            backend = rendezvous.handler.backend
        elif rendezvous.register is not None:
            backend = rendezvous.register.engine
        return {
            "run_id": rendezvous.run_id,
            "global_rank": None,
            "group_rank": life.assignment.group_rank if life else None,
            "worker_id": None,
            "role": self._config.workers.role,
            "hostname": self._host,
            "state": state,
            "total_run_time": int(time.monotonic() - self._dispatcher.began_at),
            "rdzv_backend": backend,
            "raw_error": None,
            "metadata": json_text(nested),
            "agent_restarts": life.assignment.restart_count if life else 0,
            "duration_ms": None,
            "node": self._dispatcher.node,
            "round": life.number if life else None,
            "reason": reason,
        }

    def _nested(self, life: RoundLife | None) -> dict[str, EventMetadataValue]:
        return {
            "group_world_size": life.assignment.group_world_size if life else None,
            "entry_point": self._entry_point,
        }

    def _own(
        self,
        kind: EventKind,
        text: str,
        round_: int | None,
        more: dict[str, EventMetadataValue],
        at: float | None = None,
    ) -> None:
        metadata: dict[str, EventMetadataValue] = {
            "run_id": self._config.rendezvous.run_id,
            "role": self._config.workers.role,
            "hostname": self._host,
            "node": self._dispatcher.node,
            "round": round_,
            "reason": text,
        }
        timestamp = milliseconds_now() if at is None else int(at * 1000)
        self._put(Event(OWN + kind.name, EventSource.AGENT, timestamp, {**more, **metadata}))


def _entry_point(workers: WorkerConfig) -> str:
    """Return the name of the program or the function that the workers run."""
    if workers.function is not None:
        return workers.function.name
    name = os.path.basename(workers.argv[0]) if workers.argv else ""
    return name.encode("utf-8", "backslashreplace").decode()


def _why(life: RoundLife, state: EndState, exit_: WorkerExit) -> str:
    if state is EndState.TERMINATED:
        return life.end.text if life.end is not None else "stopped by the agent"
    return exit_.message or exit_.clause()


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
