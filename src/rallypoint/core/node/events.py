"""The events of one node's workers, and the effects that their agent executes."""

from __future__ import annotations

from enum import Enum, StrEnum
from signal import SIGINT

from msgspec import Struct

from rallypoint.core.event_kinds import Record
from rallypoint.core.messages import HelperDied, Order, Prove, Report
from rallypoint.core.model import Assignment, Ending, EndReason, Lacking, Outcome, Stamp, Verdict
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.core.worker_signals import Received
from rallypoint.errors import RallypointError


class SessionOpened(Struct, frozen=True):
    """The agent has attached to a coordinator.

    `resumed`: the coordinator continues this node's session; else it does not know the node, which
    begins anew. `replaced`: it is another coordinator than the last time.
    """

    resumed: bool
    replaced: bool = False


class LeaseEnded(Struct, frozen=True):
    """The node's lease has ended, so the coordinator may have replaced the node (behaviour F2).

    `waits_for` is what the node does now, half a line; empty: it gives up.
    """

    waits_for: str = ""


class SessionGivenUp(Struct, frozen=True):
    """The coordinator could not be reached for too long, or has refused this agent for good."""

    text: str


class CoordinatorRefuses(Struct, frozen=True):
    """The connection broke, and the coordinator's host refuses new ones: nothing listens there."""


class EnrolmentDone(Struct, frozen=True):
    """The round store was reached, or not: then `error` says why."""

    stamp: Stamp
    error: str = ""


class WorkersStarted(Struct, frozen=True):
    """All workers of the round run. No earlier signal has reached all of them."""

    stamp: Stamp


class WorkersExited(Struct, frozen=True):
    """The event that workers of the round ended, as noticed together."""

    stamp: Stamp
    exits: tuple[WorkerExit, ...]


class SpawnFailed(Struct, frozen=True):
    """The round's workers could not be started, at once or later, and none runs."""

    stamp: Stamp
    error: RallypointError


class SourceFailed(Struct, frozen=True):
    """The prepared process or the workers' ports can't be had, so no round can start workers."""

    error: RallypointError


class Tried(Struct, frozen=True):
    """The result of the test whether workers can be started here (`TryToStart`)."""

    stamp: Stamp
    number: int
    unfit: str = ""
    """Why no worker can be started here, one sentence; empty: workers can be started."""
    lacking: Lacking | None = None
    """The resource that this machine lacks, so that it and not an option of this node is to blame;
    None: not known of any."""
    fix: str = ""
    """The fix for the user, if no worker can be started."""
    unreached: str = ""
    """Why the round's store was not reached, one sentence; empty: it was."""


class WorkersGone(Struct, frozen=True):
    """The event that no process of the round is left but those in `stuck`.

    Its failures have been reported.

    `stuck`: the pids of processes that SIGKILL did not end; `KillWorkers` tries those again.
    """

    stamp: Stamp
    stuck: tuple[int, ...] = ()


class SignalCaught(Struct, frozen=True):
    """The agent got a signal to leave the job, or to cancel it (SIGINT).

    A person or a scheduler sent it.
    """

    signal: int


class WitnessSignalled(Struct, frozen=True):
    """The witness, a process beside the agent, got a signal.

    Only a scheduler that signals all processes of the node sends it one.
    """

    signal: int


class DrainSignalWanted(Struct, frozen=True):
    """The workers have to be asked for a checkpoint by this signal (`--drain-signal`)."""

    signal: int


class LeaveWanted(Struct, frozen=True):
    """A person, or a notice of this node's end, told this agent to leave."""

    why: str


class Announced(Struct, frozen=True):
    """The coordinator has acknowledged the report that this node leaves, or cancels the job."""


class WaitKind(Enum):
    """The purpose of a wait of the agent."""

    GRACE = "grace"
    SUSPECT = "suspect"
    ANNOUNCE = "announce"
    CHECKPOINT = "checkpoint"
    DRAIN = "drain"
    TELL = "tell"
    REPEAT = "repeat"
    STUCK = "stuck"
    WITNESS = "witness"
    """The wait for a signal that may still reach the witness."""
    OWN_SIGNAL = "own signal"
    """The wait for a signal that has reached the witness and may still reach the agent."""


class WaitEnded(Struct, frozen=True):
    """A wait ran out. Void when its number is not the newest of its kind.

    Of the graces of one stop, however, the first one that runs out counts.
    """

    kind: WaitKind
    number: int


NodeEvent = (
    Order
    | SessionOpened
    | LeaseEnded
    | SessionGivenUp
    | CoordinatorRefuses
    | EnrolmentDone
    | WorkersStarted
    | WorkersExited
    | SpawnFailed
    | SourceFailed
    | HelperDied
    | Tried
    | WorkersGone
    | SignalCaught
    | WitnessSignalled
    | DrainSignalWanted
    | LeaveWanted
    | Announced
    | WaitEnded
)
"""The orders of the coordinator, and the events on this node, among them `HelperDied`."""


class JoinRound(Struct, frozen=True):
    """The effect to ask the coordinator for a place in a round; no workers run on this node."""


class ReportNow(Struct, frozen=True):
    """The effect to send this report to the coordinator.

    The driver adds facts of its own: to `Failed` the workers' messages, to `Drain` whether the
    coordinator lives here. `Drain` and `Cancel` are answered with `Announced`, `Drain` then with
    `LeaveNow`.
    """

    message: Report


class EnrolWithStore(Struct, frozen=True):
    """The effect to connect to the store of the round, and answer with `EnrolmentDone`."""

    stamp: Stamp
    assignment: Assignment


class SpawnWorkers(Struct, frozen=True):
    """The effect to start this node's workers for this round."""

    stamp: Stamp
    assignment: Assignment


class TryToStart(Struct, frozen=True):
    """The effect to try to start workers, and to reach the store of the active round.

    Answered with `Tried`.

    A later order makes this one void.
    """

    order: Prove


class AbandonRound(Struct, frozen=True):
    """The effect to drop what was prepared for a round that ended here before workers started."""


class RoundEnding(Struct, frozen=True):
    """The effect to show the user that the coordinator ends this node's round, and why."""

    stamp: Stamp
    reason: EndReason


class SignalWorkers(Struct, frozen=True):
    """The effect to signal every process group of the round; `WorkersGone` follows when all end.

    Processes that have `received` it already, because a scheduler or the agent sent it, get no
    other.
    """

    signal: int
    received: Received = Received.NOBODY


class NotifyWorkers(Struct, frozen=True):
    """The effect to signal the round's workers, but not the processes that they have started."""

    signal: int


class KillWorkers(Struct, frozen=True):
    """The effect to kill every process group of the round, and answer with `WorkersGone`."""


class NodeTimer(Struct, frozen=True):
    """The effect to wait for this time, and then answer with `WaitEnded`."""

    kind: WaitKind
    number: int
    length_s: float


SPAWN_FAILED = 127
"""The exit code of a worker that could not be started, the same as a shell's."""


class GiveUpNode(Struct, frozen=True):
    """The effect to end this agent by this error: no worker is to blame, and a retry would fail."""

    error: RallypointError


class EndState(StrEnum):
    """The end of a worker for observers, under torch's names."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """The worker's end was reported to the coordinator as a failure."""
    TERMINATED = "TERMINATED"
    """The worker was stopped, or ended while the round was being stopped."""


class WorkerEnded(Struct, frozen=True):
    """The effect to report this worker's end to observers, once for each worker of a round."""

    state: EndState
    exit: WorkerExit
    """The exit; it has neither a code nor a signal where no exit was noticed."""


class FinishKind(Enum):
    """The reason why an agent ends."""

    VERDICT = "verdict"
    SIGNAL = "signal"
    EXPELLED = "expelled"
    COORDINATOR_LOST = "coordinator lost"
    STUCK = "stuck"
    """Processes would not die: no other round may run here."""
    UNFIT = "unfit"
    """No worker can be started on this machine."""


class SkipWaits(Struct, frozen=True):
    """The effect to wait no longer, even after `Finish`, for other nodes or for a console."""


class Finish(Struct, frozen=True):
    """The effect to report that this node leaves, and end. The other fields depend on the kind."""

    kind: FinishKind
    verdict: Verdict | None = None
    signal: int = 0
    text: str = ""

    @property
    def outcome(self) -> Outcome:
        """The end of the job, as far as this node knows."""
        if self.kind is FinishKind.VERDICT and self.verdict is not None:
            return self.verdict.outcome
        if self.kind is not FinishKind.SIGNAL:
            return Outcome.INFRASTRUCTURE
        return Outcome.CANCELLED if self.signal == SIGINT else Outcome.PREEMPTED

    @property
    def ending(self) -> Ending:
        """The end of the job, as far as this node knows, with its reason."""
        verdict = self.verdict
        if self.kind is not FinishKind.VERDICT or verdict is None:
            return Ending(self.outcome, self.text, has_left=True)
        how = (verdict.outcome, verdict.text, verdict.cause, verdict.round, False)
        return Ending(*how, verdict.restarts_used, verdict.no_progress)


NodeEffect = (
    JoinRound
    | ReportNow
    | EnrolWithStore
    | SpawnWorkers
    | TryToStart
    | AbandonRound
    | RoundEnding
    | SignalWorkers
    | NotifyWorkers
    | KillWorkers
    | NodeTimer
    | GiveUpNode
    | WorkerEnded
    | SkipWaits
    | Finish
    | Record
)
