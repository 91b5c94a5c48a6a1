"""The types that the pure machines share: nodes, ends and their reasons.

All are data: immutable, typed, and small enough to travel in one message. Times are seconds on the
coordinator's monotonic clock unless a name says `wall`; a wall time is only ever shown to a person.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.core.outcomes import Outcome as Outcome
from rallypoint.core.settings import UNNAMED_RUN_ID as UNNAMED_RUN_ID
from rallypoint.core.settings import SharedSettings as SharedSettings
from rallypoint.core.worker_exits import WorkerExit


class NodeRef(Struct, frozen=True, array_like=True):
    """One agent process of a node: `incarnation` is random, and differs for each process."""

    node_id: str
    incarnation: str

    def __str__(self) -> str:
        return self.node_id


class Candidate(Struct, frozen=True, array_like=True):
    """The resources that a node brings to a round."""

    workers: int
    role: str
    address: str
    """The address by which peers reach the node."""
    store_port: int
    """The port of the round store if this node becomes rank 0."""
    topology: str = ""
    node_rank: int = -1
    """The group rank from a static command line; -1: none."""
    stop_grace_s: float = 5.0
    """The seconds that its workers may take to stop when a round ends."""
    machine: str = ""
    """The name of the node's machine, the same for every agent there, as a rule until the machine
    boots; empty: the node id stands for it."""
    proves: bool = False
    """Whether this node's agent answers `Prove`; an older one is assumed to be able to start
    workers."""
    ports: tuple[int, ...] = ()
    """Free ports of this node for programs of its workers in the next round: one for a coordinator,
    if this node is rank 0, and then one for each worker. Empty: none is needed."""
    enrols: bool = True
    """Whether other nodes can enrol with (reach and report to) this node's round store. They can't
    if a rendezvous handler provides it; only nodes of one version of Rallypoint meet by a
    handler."""


class Lacking(Struct, frozen=True, array_like=True):
    """The resource that a machine lacks, so that its node can't start workers."""

    stage: str
    """The step that failed: `open log files`, `fork`, `write to /tmp/x`."""
    errno: int
    """The error number of the system: ENOSPC, EMFILE, EAGAIN, ..."""


class WorldEntry(Struct, frozen=True, array_like=True):
    """One node of a world; a world lists them in rank order."""

    node_id: str
    incarnation: str
    workers: int
    role: str
    machine: str = ""
    """The `Candidate.machine` of this node; empty if it is not known."""


def world_entry(ref: NodeRef, candidate: Candidate) -> WorldEntry:
    """Return the entry of a world's list for this node."""
    own = candidate.machine
    return WorldEntry(ref.node_id, ref.incarnation, candidate.workers, candidate.role, own)


class EndKind(Enum):
    """The reason why a round ended."""

    FAILURE = "failure"
    LOSS = "loss"
    DRAIN = "drain"
    GROWTH = "growth"
    INFRASTRUCTURE = "infrastructure"
    """A process of Rallypoint that the workers need has died; no worker is to blame."""
    REQUEST = "request"
    """A person asked for it. Sent only to peers that use version 3 of the protocol or later."""

    @property
    def is_planned(self) -> bool:
        """Whether nothing has failed: nodes leave or join, or a person wants it."""
        return self in (EndKind.DRAIN, EndKind.GROWTH, EndKind.REQUEST)


PLANNED = frozenset(str(kind.value) for kind in EndKind if kind.is_planned)


class EndReason(Struct, frozen=True, array_like=True):
    """The reason why a round ended, as data and as a sentence that every node shows."""

    kind: EndKind
    text: str
    node_id: str = ""
    age_s: float | None = None
    """The seconds between the fault that ended the round and the end: from the worker's end, or the
    lost node's last message. None: there was no fault, or the time is not known."""


class NodeLoss(Struct, frozen=True, array_like=True):
    """A lost node, dated by its last message."""

    node_id: str
    last_heard_at: float
    reason: str
    wall_time: float = 0.0


class Cause(Struct, frozen=True, array_like=True):
    """The first cause of a round's end: exactly one of `failure` and `loss` is set."""

    node_id: str
    round: int
    failure: WorkerExit | None = None
    loss: NodeLoss | None = None
    collateral: int = 0
    """The number of other failures and lost nodes of the round, which count as consequences."""


class Verdict(Struct, frozen=True, array_like=True):
    """The end of a job, with the first cause. It is given once, and never changed."""

    outcome: Outcome
    text: str
    """The reason, one sentence."""
    round: int
    restarts_used: int = 0
    max_restarts: int = 0
    cause: Cause | None = None
    signal: int = 0
    """The signal that ended the job or, if its time was over, that its workers get; 0: none."""
    ended_s_ago: float | None = None
    """The seconds since the job's end, for a node that joins after it; None: for any other node."""
    no_progress: str = ""
    """The repeated failure, such as `the same failure 3 times at step 120`, that ended the job
    (`--max-no-progress`); the outcome is FAILED then."""


class Ending(Struct, frozen=True):
    """The end of a job, as far as one agent knows."""

    outcome: Outcome
    reason: str = ""
    """The reason, one sentence for a person."""
    cause: Cause | None = None
    round: int = 0
    has_left: bool = False
    """Whether this node has left the job, or lost its coordinator; the job may continue."""
    restarts: int = 0
    no_progress: str = ""
    """The repeated failure that ended the job (`--max-no-progress`)."""


class Stamp(Struct, frozen=True, array_like=True):
    """The identity of a round: the number of the job's life (run), and its number in that (F1)."""

    incarnation: int
    round: int


class DeadPlace(Struct, frozen=True, array_like=True):
    """A node's place in a world, of which neither the agent nor a worker lives."""

    stamp: Stamp
    group_rank: int
    node_id: str = ""
    """The node's id there, for display; empty: not known."""
    out_of_memory: bool = False
    """Whether the kernel has just killed a process of the agent's container for lack of memory."""


class Promise(Struct, frozen=True, array_like=True):
    """The promise of a node not to claim the job for half a lease (`takeover/consent.py`)."""

    answered: int
    """The number of this node's last heartbeat that was acknowledged, from which the time counts.
    0: there was none, so nothing is promised yet."""
    stamp: Stamp
    rank: int
    """The node's group rank in that round; a low one makes it an heir, among the first to claim the
    job."""
    candidate: int = 0
    """The number of a process that is not a node of the job but can lead it (a candidate); 0: it is
    a node. The heartbeat of a candidate is the first one on its connection, and has no round."""
    offers: tuple[str, ...] = ()
    """The addresses at which this process would lead the job. Set if the job's record does not
    change, and this process could write the record now."""


NONCE_BITS = 40
EPOCHS_MAX = 2**22 - 1


class Epoch(Struct, frozen=True, array_like=True):
    """One coordinator's term as the leader of a job.

    `number` grows with each takeover, and is 0 for a coordinator that no other one can take over
    from.
    """

    number: int
    nonce: int
    """A random number that tells two coordinators apart that have claimed the same `number`."""

    def as_int(self) -> int:
        """Return the epoch as one integer, as messages carry it: a later epoch is a larger one."""
        return self.number << NONCE_BITS | self.nonce


def epoch_number(epoch: int) -> int:
    """Return `Epoch.number` of an epoch that a message carries as one integer (`Epoch.as_int`)."""
    return epoch >> NONCE_BITS


class Assignment(Struct, frozen=True, array_like=True):
    """A node's own part of a world.

    Its size is constant, however large the world, except for `worker_addresses`.
    """

    round: int
    group_rank: int
    group_world_size: int
    base_rank: int
    """The global rank of this node's first worker; the others follow."""
    world_size: int
    base_role_rank: int
    role_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    why: str
    """Why there is a new round: the end of the one before it, or the first."""
    enrol: bool
    """Whether the node must enrol with (reach and report to) the round store, and wait for
    `StartNow`. Only in a round of several nodes."""
    after: EndKind | None = None
    """The kind of end of the round before; None: this is the first, or it was not told."""
    coordinator_port: int = 0
    """The port on the node of rank 0 for a coordinator of the workers' framework (as in JAX); 0:
    none is wanted."""
    worker_addresses: tuple[str, ...] = ()
    """The HOST:PORT of each worker, by rank, if the job's settings ask for them. Empty if there are
    more than `MAX_TOLD_WORKERS` and `MAX_TOLD_BYTES` allow."""


class JobStatus(Struct, frozen=True, array_like=True):
    """The job's status in the answer to a heartbeat, for a person who waits. Of constant size."""

    phase: str
    round: int
    joined: int
    stopping: int
    waiting: int
    standby: int
    world_nodes: int
    world_workers: int
    restarts_used: int
    held_back: str = ""
    """Why no round ends or begins for the node that gets this status, and for how long (behaviour
    R3). Empty: nothing holds it back."""
    waits_for: str = ""
    """The thing that the node that gets this status waits for, in words: a node id or a rank that
    another agent holds (behaviour R4). Empty: it waits for none."""
    awaits: str = ""
    """The nodes that a coordinator waits for during a takeover, how long and why; empty: none."""
