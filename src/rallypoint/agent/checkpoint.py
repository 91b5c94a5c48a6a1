"""A last call for a checkpoint on this node: asks the workers, and answers the coordinator.

When it may answer is decided in `core/checkpoint_request.py`; the workers are asked through
the shared memory of their round, or by a signal of the person's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.config import AgentConfig
from rallypoint.core import checkpoint_request as requests
from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.checkpoint_request import Request, RequestState
from rallypoint.core.event_kinds import Record
from rallypoint.core.group_events import Exit
from rallypoint.core.model import EndKind, Stamp
from rallypoint.core.text import brief_seconds, signal_name, signal_number
from rallypoint.wire.shm import ShmRequest

NO_HURRY_S = 10 * 365 * 86400.0
"""Until when a checkpoint that nothing waits for is asked for."""


class Checkpoints:
    """One agent's. `begin` with each round's workers, `end` when they have gone."""

    def __init__(
        self,
        config: AgentConfig,
        report: Callable[[m.Report], None],
        say: Callable[[Record], None],
    ) -> None:
        self._count = config.workers.count
        self._drain_signal = signal_number(config.stop.drain_signal)
        """Sent to the workers when the job is about to lose nodes; 0: none."""
        self._report, self._say = report, say
        self._state: RequestState | None = None
        self._shm: WorkerShm | None = None
        self._exits: Mapping[int, Exit] = {}
        self._notify: Callable[[int], None] = _nobody

    def begin(
        self,
        stamp: Stamp,
        shm: WorkerShm,
        exits: Mapping[int, Exit],
        notify: Callable[[int], None],
    ) -> None:
        """Workers of a round run; `exits` gets theirs, `notify` sends them a signal."""
        self._state = RequestState(stamp, self._count)
        self._shm, self._exits, self._notify = shm, exits, notify
        shm.watch(self.changed)

    def end(self) -> None:
        """They have gone."""
        self._state = self._shm = None
        self._notify = _nobody

    def wanted(self, message: m.CheckpointWanted) -> None:
        """The coordinator asks. Heard again it changes nothing."""
        request = Request(
            message.stamp, message.number, message.kind, message.reason, message.left_s
        )
        state = self._state
        if state is None:
            # Nothing runs here that could save one.
            answer = m.CheckpointAnswered(message.stamp, message.number, listens=False)
            self._report(answer)
            return
        if not requests.asked(state, request, by_signal=bool(self._drain_signal)):
            return
        if self._shm is not None:
            left_s = NO_HURRY_S if request.left_s is None else request.left_s
            self._shm.request(_KINDS[request.kind], left_s)
        if state.all_asked:
            self._notify(self._drain_signal)
        self.changed()
        if state.told is None:
            self._say(kinds.CHECKPOINT_WANTED(self._how_asked(request, state.all_asked)))

    def withdrawn(self, message: m.CheckpointNotWanted) -> None:
        """The coordinator does not wait any more."""
        state, shm = self._state, self._shm
        if state and shm and requests.withdrawn(state, message.number):
            shm.withdraw()

    def changed(self) -> None:
        """The workers may have said something, or ended: answer if all have."""
        state, shm = self._state, self._shm
        if state is None or state.request is None:
            return
        listeners, saved = (shm.listeners(), shm.answered()) if shm else (_NONE, _NONE)
        answer = requests.answer(state, listeners, saved, self._exits.values())
        if answer is None:
            return
        if answer.listens and not answer.failed:
            self._say(kinds.CHECKPOINT_SAVED())
        request = state.request
        self._report(
            m.CheckpointAnswered(request.stamp, request.number, answer.listens, answer.failed)
        )

    def _how_asked(self, request: Request, by_signal: bool) -> str:
        text = "asked the workers for a checkpoint"
        if by_signal:
            text += f" by {signal_name(self._drain_signal)}"
        if request.left_s is not None:
            text += f", {brief_seconds(request.left_s)} s left"
        return f"{text} ({request.reason})"


_KINDS = {EndKind.DRAIN: ShmRequest.DRAIN, EndKind.GROWTH: ShmRequest.GROWTH}
_NONE: frozenset[int] = frozenset()


def _nobody(number: int) -> None:
    """No workers run."""
