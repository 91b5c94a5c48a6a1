"""The messages between the nodes of a job and its coordinator. Pure data.

For the wire and for the machines that decide alike.

A report comes from a node (`FromNode`), an order goes to one (`ToNode`): the job's machine takes
the first and emits the second, the node's machine the other way round, so that one
struct has one name everywhere. `wire/codec.py` makes bytes of them: on the wire a message is a
MessagePack array that begins with its tag. Fields are only ever appended, with defaults, so that a
newer peer may say more than an older one understands; anything else is a new version of the
protocol (`wire/versions.py`), which the handshake agrees on.

An agent numbers its reports (`Numbered`), keeps each until it is acknowledged, and sends it again
on a new connection; the coordinator applies each number once. Heartbeats are not numbered: a lost
one is replaced by the next. Orders are not numbered either: on a new connection the coordinator
sends what holds then (`core/session.py`).
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.core.hang import Behind
from rallypoint.core.model import (
    Assignment,
    Candidate,
    DeadPlace,
    EndKind,
    EndReason,
    JobStatus,
    Lacking,
    NodeRef,
    Promise,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.round_record import ReportedRound
from rallypoint.core.settings import SETTINGS_UNCOUNTED
from rallypoint.core.takeover.told import Position
from rallypoint.core.watch.collection_messages import Collect as Collect
from rallypoint.core.watch.collection_messages import Collected as Collected
from rallypoint.core.watch.collection_messages import CollectMore as CollectMore
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.watch.questions import Answer as Answer
from rallypoint.core.watch.questions import Ask as Ask
from rallypoint.core.watch.questions import Subject
from rallypoint.core.worker_exits import WorkerExit


class Doing(Enum):
    """The activity of a node, as its state machine (`core/node/machine.py`) knows it."""

    IDLE = "idle"
    JOINED = "joined"
    ENROLLING = "enrolling"
    ENROLLED = "enrolled"
    RUNNING = "running"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    SUCCEEDED_WHEN_ASKED = "succeeded while a checkpoint was asked for"
    DRAINING = "draining"
    STOPPING = "stopping"


class Claim(Struct, frozen=True, array_like=True):
    """The state of an attaching agent's node, which the coordinator compares with what it knows."""

    doing: Doing = Doing.IDLE
    stamp: Stamp | None = None
    """The newest round that this node took part in; None: it was in none yet."""
    why: str = ""
    """The reason why it drains, or stops its workers; `LEASE_OVER` also once they have stopped."""
    signal: int = 0
    """The signal that told the node to drain (leave), or SIGTERM if something else did; 0: it does
    not drain."""
    age_s: float = 0.0
    """The seconds from when the node was told to drain (leave) until this was sent."""


class Join(Struct, frozen=True, array_like=True, tag=2):
    """A node's report that it is ready for a round: no process of an earlier round lives on it."""

    seq: int
    candidate: Candidate


class Place(Struct, frozen=True, array_like=True):
    """A node's part of a world, and the join that led to it."""

    joined: Join
    assignment: Assignment


class Attach(Struct, frozen=True, array_like=True, tag=1):
    """An agent's first message on a connection to its coordinator: who it is, under which rules."""

    node_id: str
    """The node id; empty: the coordinator makes one from the host name."""
    host_name: str
    incarnation: str
    generation: int
    """The number of this connection among those of the agent; frames of older ones are dropped."""
    settings: SharedSettings
    opened: int = 0
    """The generation of the connection by which the coordinator opened the agent's present session;
    0: none."""
    former_id: str = ""
    """The node id that a coordinator gave this agent before, kept unless another node has it now.
    It counts only if `node_id` is empty."""
    last_incarnation: int = 0
    """The number of the job's life (run) to which this agent was last attached; 0: it never was."""
    last_epoch: int = 0
    """The epoch (term) of the coordinator to which this agent was last attached; 0: it never
    was."""
    death_commitment: bytes = b""
    """A hash; who knows its preimage may report this agent's death (`wire/death_notice.py`) from
    now on. Empty: nobody may."""
    claim: Claim = Claim()
    place: Place | None = None
    """The node's place in the newest world. A coordinator that takes the job over learns that world
    from these places."""
    dead: tuple[DeadPlace, ...] = ()
    """Places of former agents on this machine: this agent has seen that no process of them lives. A
    coordinator that takes over the job does not wait for them."""
    told: Position | None = None
    """The newest position of the job's record in its register that a leader has told this agent;
    None: none has."""


class Failed(Struct, frozen=True, array_like=True, tag=3):
    """A report that workers of this node failed, in the order in which that was noted.

    The node stops its other workers.
    """

    stamp: Stamp
    failures: tuple[WorkerExit, ...]
    furthest: int = -1
    """The largest step that the node's workers have reported in this round; -1: none."""
    lacking: Lacking | None = None
    """The resource that the node's machine lacks, if no worker was started because of it."""


class Detailed(Struct, frozen=True, array_like=True, tag=4):
    """The failures of an earlier `Failed` again, with messages and the last lines of output.

    Sent before the next `Join`; and before that, once, while other workers of the node have not
    stopped yet.
    """

    stamp: Stamp
    failures: tuple[WorkerExit, ...]


class Finishing(Struct, frozen=True, array_like=True, tag=5):
    """A report that the first worker of this node ended well, that is with exit code 0."""

    stamp: Stamp


class Succeeded(Struct, frozen=True, array_like=True, tag=6):
    """A report that all workers of this node ended well, that is with exit code 0."""

    stamp: Stamp


class Enrolled(Struct, frozen=True, array_like=True, tag=7):
    """A report that this node has reached the round's key-value store, before the workers start."""

    stamp: Stamp


class NotEnrolled(Struct, frozen=True, array_like=True, tag=8):
    """A report that this node could not reach the round's key-value store; `text` says why."""

    stamp: Stamp
    text: str


class Drain(Struct, frozen=True, array_like=True, tag=9):
    """A report that the node was told to leave.

    Its workers go on until the job's workers have saved a checkpoint, or `notice_s` is over.
    """

    why: str
    signal: int
    hosts: bool = False
    """Whether the coordinator lives in this agent, and leaves with it."""
    notice_s: float = 0.0
    """The seconds that the job's workers have for a checkpoint before this node stops its own."""
    age_s: float = 0.0
    """The seconds since the node was told to leave, at the time of sending."""


class Cancel(Struct, frozen=True, array_like=True, tag=10):
    """A report that ends the job as cancelled: a user interrupted it, or a program closed it."""

    why: str
    signal: int


class Leave(Struct, frozen=True, array_like=True, tag=11):
    """A report that the node leaves for good.

    No process of the job runs here, and a verdict that was given has been read.
    """


class CheckpointAnswered(Struct, frozen=True, array_like=True, tag=12):
    """A node's answer to `CheckpointWanted`: workers that take requests have saved, or none will.

    It comes at once if no worker takes any, or when one fails.
    """

    stamp: Stamp
    number: int
    listens: bool
    """Whether any worker takes such requests. For nodes that want to join, or a person's request:
    whether any worker has saved the checkpoint."""
    failed: bool = False
    """Whether a worker has failed, so that no other answer will follow."""
    drains: bool = False
    """Whether the workers were asked because nodes leave or the job ends, not because nodes want to
    join."""
    goes_on: bool = False
    """Whether a person has asked for the checkpoint, and the round continues."""


class HangSuspected(Struct, frozen=True, array_like=True, tag=13):
    """A report that a worker of the node has shown no progress for too long (`--hang-timeout`)."""

    stamp: Stamp
    in_start: bool = False
    """Whether no worker of this node has reported a step, which may be by design if other nodes
    report them."""


class StacksCollected(Struct, frozen=True, array_like=True, tag=14):
    """The steps of this node's workers, and the stack of the one that is furthest behind.

    It answers `CollectStacks`.
    """

    stamp: Stamp
    number: int
    behind: Behind | None
    """The worker with the smallest step of those that have long been silent; None: none has, or
    none is watched for hangs."""
    furthest: int
    """The largest step; -1: none."""
    known: int = 0
    """The number of workers whose steps are known; 0 from an older agent."""
    is_waited_for: bool = False


class HelperDied(Struct, frozen=True, array_like=True, tag=15):
    """A report that a process of this agent that the round's workers need has died.

    It is the round store, or the relay of output; later failures of workers are a consequence.
    """

    stamp: Stamp
    text: str
    others_need_it: bool = True
    """Whether workers of other nodes need the process too."""
    age_s: float = 0.0
    """The seconds since its death, at the time of sending."""


class Proved(Struct, frozen=True, array_like=True, tag=16):
    """The answer to `Prove`: whether this node can start workers, and reaches the round's store."""

    stamp: Stamp
    number: int
    unfit: str = ""
    """Why the machine can't start workers, one sentence; the node leaves then. Empty: it can."""
    lacking: Lacking | None = None
    unreached: str = ""
    """Why the round's store was not reached, one sentence; empty: it was."""


Report = (
    Join
    | Failed
    | Detailed
    | Finishing
    | Succeeded
    | Enrolled
    | NotEnrolled
    | Drain
    | Cancel
    | Leave
    | CheckpointAnswered
    | HangSuspected
    | StacksCollected
    | HelperDied
    | Proved
)


class Numbered(Struct, frozen=True, array_like=True, tag=20):
    """A report that the agent keeps until it is acknowledged."""

    number: int
    report: Report


class Heartbeat(Struct, frozen=True, array_like=True, tag=21):
    """A node's sign of life, answered by `HeartbeatAck`; of a mere candidate to lead, by `Ack`."""

    number: int
    promise: Promise | None = None
    is_short_of_memory: bool = False
    """Whether the node's container has nearly reached its memory limit."""
    progress: NodeProgress | None = None
    """The progress of the node's workers; None: unchanged on this connection."""
    rounds: tuple[ReportedRound, ...] = ()
    """The node's newest rounds. Sent once on each connection to a coordinator that has not led all
    of them."""


class DrainNode(Struct, frozen=True, array_like=True, tag=22):
    """A person's wish that a node leaves, in versions 2 and 3 of the session protocol.

    Newer versions have `Ask` with `Subject.DRAIN`. Sent instead of `Attach`, and answered by
    `DrainAnswer`s.
    """

    node_id: str
    why: str
    release: str = ""
    """The version of Rallypoint of the command; empty: older than this field."""
    asks: bool = False
    """Whether to ask the person first if the job ends with the node (`DrainAnswer.ends_job`)."""

    @property
    def question(self) -> Ask:
        """The equivalent question of newer commands."""
        return Ask(Subject.DRAIN, nodes=(self.node_id,), release=self.release, asks=self.asks)


class AgentDied(Struct, frozen=True, array_like=True, tag=23):
    """The report of an agent's guard that the agent died, and its workers with it. Not answered.

    Sent instead of `Attach`, on a connection of its own.
    """

    incarnation: str
    generation: int
    secret: bytes
    out_of_memory: bool = False
    """Whether the kernel has just killed a process of the agent's container for lack of memory."""
    place: DeadPlace | None = None
    """The dead agent's place in the newest world that it knew. A coordinator that has taken over
    the job, and to which the agent never attached, does not wait for it then."""


ToCoordinator = Attach | Numbered | Heartbeat | DrainNode | AgentDied | Ask | Collected


class Attached(Struct, frozen=True, array_like=True, tag=1):
    """The answer to `Attach`: the session is open. The epoch tells which coordinator speaks."""

    node_id: str
    incarnation: int
    epoch: int
    resumed: bool
    """Whether the coordinator continues an earlier session of this agent. False: the session is
    new, and the agent must stop any workers that run."""
    is_replaceable: bool = False
    """Whether another coordinator can take over from this one."""
    beat_s: float = 0.0
    """The seconds between two heartbeats of this node; its own setting counts where that is longer
    (see `liveness.Pace`). Sent again when the job has grown."""
    spread_s: float = 0.0
    """The longest random wait, in seconds, of a node that finds the connection closed before it
    connects again."""
    told: Position | None = None
    """The position of the newest record of the job in its register; None: no record is known."""
    settings_known: int = SETTINGS_UNCOUNTED
    """The number of shared settings that this coordinator knows, in their order."""


class Refused(Struct, frozen=True, array_like=True, tag=2):
    """The coordinator refuses the session; `text` says why, one sentence for a person.

    As a rule the node's command line is to blame.
    """

    text: str
    is_fault: bool = False
    """Whether the coordinator is to blame instead: it could not handle what this node said."""


class Ack(Struct, frozen=True, array_like=True, tag=3):
    """The acknowledgement of all reports up to this number, which need not be sent again.

    To a candidate for the lead, which is no node of the job: the heartbeat of this number arrived.
    """

    number: int
    told: Position | None = None
    """The position of the newest record of the job in its register; None: no record is known."""


class HeartbeatAck(Struct, frozen=True, array_like=True, tag=4):
    """The answer to a heartbeat, with the job's present round and status."""

    number: int
    stamp: Stamp
    status: JobStatus
    told: Position | None = None
    """The position of the newest record of the job in its register; None: no record is known."""


class Assigned(Struct, frozen=True, array_like=True, tag=5):
    """An order to a node: take part in a new round, with these ranks and addresses."""

    stamp: Stamp
    assignment: Assignment
    told: Position | None = None
    """The position of the newest record of the job in its register; None: no record is known."""


class StartNow(Struct, frozen=True, array_like=True, tag=6):
    """An order to start the workers: every node of the round has reached the round's store."""

    stamp: Stamp
    told: Position | None = None
    """The position of the newest record of the job in its register; None: no record is known."""


class StopNow(Struct, frozen=True, array_like=True, tag=7):
    """An order to a node: the round has ended, so stop its workers and join again."""

    stamp: Stamp
    reason: EndReason
    told: Position | None = None
    """The position of the newest record of the job in its register; None: no record is known."""


class Ended(Struct, frozen=True, array_like=True, tag=8):
    """An order to a node: the job has ended with this verdict, so stop the workers and leave."""

    stamp: Stamp
    verdict: Verdict
    goodput: GoodputView | None = None
    """The use of the job's time; None: not known, or no workers were started."""


class Expelled(Struct, frozen=True, array_like=True, tag=9):
    """An order to a node that was removed from the job. `final`: it must not return."""

    stamp: Stamp
    why: str
    final: bool


class CheckpointWanted(Struct, frozen=True, array_like=True, tag=10):
    """An order to have the workers save a checkpoint, and to answer.

    `kind` says what follows: the round ends or, for `REQUEST` (a person asked), it continues.
    """

    stamp: Stamp
    number: int
    kind: EndKind
    reason: str
    left_s: float | None
    """The seconds that remain for the checkpoint; None: there is no deadline."""


class CheckpointNotWanted(Struct, frozen=True, array_like=True, tag=11):
    """An order that withdraws the request for a checkpoint with this number."""

    stamp: Stamp
    number: int


class LeaveNow(Struct, frozen=True, array_like=True, tag=12):
    """An order to a node that has announced that it leaves: stop the workers and leave now."""

    stamp: Stamp


class DrainWanted(Struct, frozen=True, array_like=True, tag=13):
    """An order to leave, because a person wants this node to, as if the node had got a signal."""

    stamp: Stamp
    why: str


class CollectStacks(Struct, frozen=True, array_like=True, tag=15):
    """An order to report the workers' progress and the slowest one's stack (`StacksCollected`)."""

    stamp: Stamp
    number: int


class Prove(Struct, frozen=True, array_like=True, tag=20):
    """The request to a node that joined during a round to try to start workers.

    No round ends to admit it before that.
    The node also tries to reach the round's store, and answers with `Proved`. Sent only to nodes
    whose `Candidate` has `proves`.
    """

    stamp: Stamp
    number: int
    """The number of the question; a later one makes it void."""
    master_addr: str
    """The address of the round's store."""
    master_port: int
    limit_s: float
    """How long to try to reach the store, in seconds."""


class DrainAnswer(Struct, frozen=True, array_like=True, tag=14):
    """The answer to a person who wants a node to leave; `done` marks the last such message.

    It is a value of an `Answer`; after `DrainNode` it is a message.
    """

    text: str
    done: bool
    found: bool = True
    """False: there is no such node, and `text` names those that there are."""
    gone: str = ""
    """Why the node is gone, if this coordinator or an earlier one has known it; else empty."""
    ends_job: bool = False
    """Whether the job would end with the node, so that nothing is done before the person agrees.
    Only an answer to a question with `Ask.asks`."""


class HandsOver(Struct, frozen=True, array_like=True, tag=16):
    """The coordinator tells its agents that it no longer leads the job.

    The next coordinator is to listen at these addresses.
    """

    addresses: tuple[str, ...]


WorkerRequest = CheckpointWanted | CheckpointNotWanted | CollectStacks
"""The requests to a node about its workers, and their withdrawals."""
Order = (
    Assigned
    | StartNow
    | StopNow
    | Ended
    | Expelled
    | LeaveNow
    | DrainWanted
    | Prove
    | WorkerRequest
)
"""The orders of a job's state machine, in its coordinator, to a node."""
Positioned = Attached | Ack | HeartbeatAck | Assigned | StartNow | StopNow
"""The messages with the position of the job's record, if there is a register."""
Collecting = Collect | CollectMore
"""The messages that pass a person's question about workers on to a node. The job's state machine
takes no part."""
ToAgent = (
    Attached | Refused | Ack | HeartbeatAck | Order | DrainAnswer | HandsOver | Answer | Collecting
)


class FromNode(Struct, frozen=True):
    """A report and the node that sent it: an input of the job's state machine (`job.py`)."""

    ref: NodeRef
    message: Report


class ToNode(Struct, frozen=True):
    """An order of the job's state machine (`job.py`), and the node to which it goes."""

    ref: NodeRef
    message: Order
