"""The requests of the job to this node's workers: checkpoints, and stacks of hanging workers.

`core/checkpoint.py` decides when a checkpoint may be answered; the workers are asked through the
shared memory of their round, or by a signal that the user chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rallypoint.agent.node_workers import AgentActions, RunningRound
from rallypoint.config import AgentConfig
from rallypoint.core import checkpoint
from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.checkpoint import RequestState, SaveRequest
from rallypoint.core.model import EndKind
from rallypoint.core.node.events import DrainSignalWanted
from rallypoint.core.text import brief_seconds, signal_name, signal_number
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.wire.shm import ShmRequest

if TYPE_CHECKING:
    from rallypoint.agent.hang import HangWatch, StacksFiles

NO_HURRY_S = 10 * 365 * 86400.0
"""The deadline in seconds of a checkpoint for which nothing waits."""
_KINDS = {
    EndKind.DRAIN: ShmRequest.DRAIN,
    EndKind.GROWTH: ShmRequest.GROWTH,
    EndKind.REQUEST: ShmRequest.SAVE,
}


class WorkerRequests:
    """The job's requests to the workers of one agent: for checkpoints, and for their stacks.

    Call `begin` with each round's workers, `end` when they have gone.
    """

    def __init__(self, config: AgentConfig, actions: AgentActions) -> None:
        self._config, self._actions = config, actions
        self._round: RunningRound | None = None
        self._checkpoints: Checkpoints | None = None
        self._stacks: StacksFiles | None = None
        self._hangs: HangWatch | None = None

    def begin(self, round_: RunningRound) -> None:
        """Begin to pass requests to the workers of this round, which have been started.

        They are watched for hangs if there is a hang timeout.
        """
        self.end()
        self._round = round_
        self._checkpoints = Checkpoints(self._config, self._actions, round_)
        if self._config.rendezvous.hang_timeout_s:
            self._hang_watch(round_)

    def end(self) -> None:
        """Forget the workers, which have gone, and stop watching them for hangs."""
        if self._hangs is not None:
            self._hangs.close()
        self._round = self._checkpoints = self._hangs = None

    def exited(self, exits: Sequence[WorkerExit]) -> None:
        """Note exits of workers: what they owed is no longer waited for."""
        if self._checkpoints is not None:
            self._checkpoints.changed(exits)

    def pushed(self, message: m.WorkerRequest) -> None:
        """Handle the coordinator's order for a checkpoint or for stacks, or its withdrawal."""
        checkpoints, round_ = self._checkpoints, self._round
        match message:
            case m.CheckpointWanted(stamp, number) if checkpoints is None:
                # Nothing runs here that could save one.
                self._actions.report(m.CheckpointAnswered(stamp, number, listens=False))
            case m.CheckpointWanted() if checkpoints:
                checkpoints.wanted(message)
            case m.CheckpointNotWanted(_, number) if checkpoints:
                checkpoints.withdrawn(number)
            case m.CollectStacks(stamp, number) if round_ is None:
                self._actions.report(m.StacksCollected(stamp, number, None, -1))
            case m.CollectStacks() if round_:
                self._hang_watch(round_).collect(message)

    def _hang_watch(self, round_: RunningRound) -> HangWatch:
        """Return the hang watch of this round, made at first use, as few jobs have one."""
        if self._hangs is None:
            from rallypoint.agent.hang import HangWatch, StacksFiles

            self._stacks = self._stacks or StacksFiles(self._config, self._actions.say)
            self._hangs = HangWatch(self._config, self._actions, round_, self._stacks)
        return self._hangs


class Checkpoints:
    """The requests for checkpoints to one round's workers, and the answers to them."""

    def __init__(self, config: AgentConfig, actions: AgentActions, round_: RunningRound) -> None:
        self._drain_signal = signal_number(config.stop.drain_signal)
        """The signal that asks workers for a checkpoint when nodes are about to leave; 0: none."""
        self._actions, self._round = actions, round_
        self._state = RequestState(round_.stamp, config.workers.count)
        round_.workers.shm.watch(self.changed)

    def wanted(self, message: m.CheckpointWanted) -> None:
        """Ask the workers for the checkpoint that the coordinator wants.

        It takes the place of an earlier request. Does nothing if this request, or a newer one, was
        made already, or if it is for another round.
        """
        state, workers = self._state, self._round.workers
        then = checkpoint.THEN[message.kind]
        request = SaveRequest(message.stamp, message.number, then, message.reason, message.left_s)
        if not checkpoint.asked(state, request, by_signal=bool(self._drain_signal)):
            return
        left_s = NO_HURRY_S if request.left_s is None else request.left_s
        workers.shm.request(_KINDS[request.then.kind], left_s)
        if state.all_asked:
            self._actions.step(DrainSignalWanted(self._drain_signal))
        self.changed()
        if state.told is None:
            text = self._how_asked(request, state.all_asked)
            self._actions.say(kinds.CHECKPOINT_WANTED(text))

    def withdrawn(self, number: int) -> None:
        """Withdraw the request with this number, for which the coordinator no longer waits.

        It stays if a worker has saved a checkpoint for it already.
        """
        shm = self._round.workers.shm
        if checkpoint.withdrawn(self._state, number, shm.answered()):
            shm.withdraw()

    def changed(self, fresh: Sequence[WorkerExit] = ()) -> None:
        """Answer the coordinator if no worker still owes a checkpoint, or if one has failed.

        Not again what was answered before. A worker owes one if it looks for requests or a signal
        has asked it, until it has saved one or has ended well. `fresh` has exits that the round
        does not show yet.
        """
        state, shm = self._state, self._round.workers.shm
        exits = {exit_.local_rank: exit_ for exit_ in fresh} | dict(self._round.exits)
        request = state.request
        if request is None:
            return
        # Workers that only ask whether the job re-forms never save for a person.
        then = request.then
        listeners = shm.wish_takers() if then.goes_on else shm.listeners()
        answer = checkpoint.answer(state, listeners, shm.answered(), exits.values())
        if answer is None:
            return
        if answer.listens and not answer.failed:
            self._actions.say(kinds.CHECKPOINT_SAVED())
        self._actions.report(
            m.CheckpointAnswered(
                request.stamp,
                request.number,
                answer.listens,
                answer.failed,
                then.leaves,
                then.goes_on,
            )
        )
        if then.goes_on and not answer.listens:
            shm.withdraw()  # The person knows that nobody saves: nobody is to save later for that.

    def _how_asked(self, request: SaveRequest, by_signal: bool) -> str:
        text = "asked the workers for a checkpoint"
        if by_signal:
            text += f" by {signal_name(self._drain_signal)}"
        if request.left_s is not None:
            text += f", {brief_seconds(request.left_s)} s left"
        return f"{text} ({request.reason})"
