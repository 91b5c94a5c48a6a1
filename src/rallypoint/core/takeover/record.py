"""A job's record in a register, with which another coordinator can take over.

Pure data.

It has the leader, and everything that must not be forgotten or done twice. The world is not in the
record, since the live agents bring it (`handover.py`). The names of the nodes of a small world are,
for messages about lost nodes; of any other world only nodes that are not trusted are named. So the
size of a record is bounded, whatever the number of nodes. A record has no clock reading either: a
wait that was under way begins anew with the next coordinator.

Fields are only ever appended, with defaults. A change that an older version can't ignore raises
`SCHEMA`, and the older version refuses the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core import job_state
from rallypoint.core import messages as m
from rallypoint.core.fitness_state import BadMachine, BadRoute, Failure, Fitness, Loss, relative
from rallypoint.core.job_state import JobState
from rallypoint.core.model import (
    EndKind,
    EndReason,
    Epoch,
    Lacking,
    SharedSettings,
    Verdict,
    WorldEntry,
)
from rallypoint.core.restarts import CrashLoop, Ledger
from rallypoint.core.round_state import MemberState, RoundPhase, RoundState, is_active
from rallypoint.core.settings import HOLD_S
from rallypoint.core.watch.carried import Carried
from rallypoint.core.worker_exits import WorkerExit

NAMED_MAX, NAMES_CHARS = 64, 1000
"""The most nodes of a small world, and the most characters of all their names together, the common
beginning counted once."""
LEFT_MAX, LEFT_CHARS = 8, 80
"""The most nodes that are remembered as the last that have left, and the most characters of the
name of each; one with a longer name is not remembered."""
NUMBERS_BITS = 20
LEAST_RAN_S = 0.001
"""The least runtime in seconds that the record of a job with `--max-runtime` has once workers have
started: 0 means that none have."""
SCHEMA = 1
"""The schema of records of this version of Rallypoint."""


class LifeLock(Struct, frozen=True, array_like=True):
    """A lock on one byte of a file; the kernel frees it when the process that holds it ends."""

    device: int
    inode: int
    place: int


class Process(Struct, frozen=True, array_like=True):
    """A process of one boot of one machine, uniquely identified."""

    where: str
    """The boot and the namespaces in which the pid and the start time are valid: of two containers
    on one machine neither sees the processes of the other."""
    pid: int
    started_at: int
    """The start time in clock ticks since the boot."""
    lock: LifeLock | None = None
    """The lock that shows processes in other containers whether the process lives; None: it holds
    no lock."""


class Leader(Struct, frozen=True, array_like=True):
    """The process that leads, and its addresses."""

    addresses: tuple[str, ...]
    process: Process
    has_workers: bool = False
    """Whether the leader is an agent. The guard of an agent, a helper process, marks the record
    when the agent and its workers are dead."""
    hold_s: float = HOLD_S
    """The seconds for which this leader may act after a swap. Other processes wait for this time,
    whatever their own hold."""
    versions: tuple[int, int] | None = None
    """The oldest and the newest version of the session protocol that it uses; None: written by an
    earlier version of Rallypoint."""


class FormerLife(Struct, frozen=True, array_like=True):
    """The life of a job before it was begun anew, and the verdict in which that life ended."""

    incarnation: int
    verdict: Verdict
    earlier: tuple[int, ...] = ()
    """The earlier numbers of this life, as in `JobRecord`."""


class Blamed(Struct, frozen=True, array_like=True):
    """A worker's failure that no node would report to another coordinator."""

    node_id: str
    failure: WorkerExit
    """The failure without its traceback."""
    lacking: Lacking | None = None
    """The resource that its machine lacks, so that the worker was not started; None: not known of
    any."""


class MachinesRecord(Struct, frozen=True, array_like=True):
    """The fitness of machines (`fitness_state.Fitness`), without the last losses.

    `JobRecord` has those. The times of quarantines are in seconds from when the record was made.
    """

    machines: dict[str, BadMachine] = field(default_factory=dict)
    holds: int = 0
    failures: tuple[Failure, ...] = ()
    failure_count: int = 0
    passed_round: int = -1
    reports_steps: bool = False
    trial: frozenset[str] = frozenset()
    lossy_machines: dict[int, str] = field(default_factory=dict)


class WorldNames(Struct, frozen=True, array_like=True):
    """The ids of the nodes of the newest world, by group rank; none of a world that is not small.

    Names of nodes mostly begin alike, and by default a record is written every two seconds.
    """

    start: str = ""
    """The common beginning of all names."""
    rests: tuple[str, ...] = ()

    @classmethod
    def of(cls, node_ids: Sequence[str]) -> WorldNames:
        """Return the names of these nodes; none if they are too many or too long."""
        if not 0 < len(node_ids) <= NAMED_MAX:
            return cls()
        first, last = min(node_ids), max(node_ids)
        alike = (at for at, letter in enumerate(first) if last[at : at + 1] != letter)
        at = next(alike, len(first))
        rests = tuple(node_id[at:] for node_id in node_ids)
        return cls(first[:at], rests) if at + sum(map(len, rests)) <= NAMES_CHARS else cls()

    @property
    def all(self) -> list[str]:
        """The ids, by group rank; empty: they are not known."""
        return [self.start + rest for rest in self.rests]


class JobRecord(Struct, frozen=True, array_like=True):
    """The part of a job's state that outlives its coordinator."""

    settings: SharedSettings
    incarnation: int
    round: int = 0
    """The active round, or the one that is to be formed."""
    is_active: bool = False
    is_started: bool = False
    """Whether workers of the newest round may have been started."""
    nodes: int = 0
    """The number of nodes of the newest world."""
    succeeded: bytes = b""
    """One bit for each node of the newest world, by group rank: whether it has succeeded."""
    judged_round: int = 0
    """The forming round for which the end of the round before it has been judged: the consequence
    of that end is decided."""
    restarts: int = 0
    restarts_counted: tuple[int, ...] = ()
    """The numbers of the restarts that still count against the budget; see `restarts.Ledger`."""
    backoff_s: float = 0.0
    end_reason: EndReason | None = None
    """The reason why the newest round has ended, for nodes that have not heard it; None: it has not
    ended, as far as is recorded."""
    loss_count: int = 0
    recent_losses: tuple[Loss, ...] = ()
    lossy_rounds: tuple[int, ...] = ()
    bad_routes: dict[str, BadRoute] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()
    largest_world: int = 0
    verdict: Verdict | None = None
    former: FormerLife | None = None
    leader_rank: int = -1
    """The group rank of the leader's own node in the newest world; -1: that world does not have
    it."""
    stopped: bytes = b""
    """One bit for each node of the newest world, by group rank: whether it is gone with its
    workers, because it has left or is dead."""
    leader_node: str = ""
    """The id of the leader's own node in the newest world; empty: that world does not have it."""
    is_heard: bool = False
    """Whether all live nodes have heard the verdict, so that a node that comes now begins the job
    anew."""
    stepped_down: int = 0
    """The number of leaders in a row that have stepped down before they knew the world."""
    blamed: Blamed | None = None
    """The first failure of the newest round on a node that is the leader's or is gone, until that
    round is judged. One that tells of a lost peer comes after all others."""
    crash_loop: CrashLoop = CrashLoop()
    """The equal failures in a row, without progress in between: their number, and what they have in
    common."""
    furthest_step: int = -1
    """The largest step that workers have reported; -1: none."""
    carried: Carried | None = None
    """The part of the job's history that the next coordinator continues."""
    last_end: EndReason | None = None
    """The reason of the end of the round before the newest one, as it was judged."""
    machines: MachinesRecord | None = None
    """The fitness of machines, such as those in quarantine; None: written by an older version."""
    leader_machine: str = ""
    """The name of the machine of the leader's own node; empty: the node id stands for it, or the
    newest world does not have that node."""
    names: WorldNames = WorldNames()
    """The names of the world's nodes, for messages about nodes that do not come to the next
    coordinator."""
    left: tuple[str, ...] = ()
    """The ids of the nodes that have left last, for people who wait for that."""
    earlier: tuple[int, ...] = ()
    """The last numbers that this life of the job had before `incarnation`, the newest last."""
    origin: int = 0
    """The first number of this life; 0: it did not change, or an older version wrote this."""
    ran_s: float = 0.0
    """The seconds that the job has run, if it has a `--max-runtime`; 0: it has none, or no workers
    have started yet."""

    @property
    def first_number(self) -> int:
        """The number that all records and positions of one life have in common."""
        return self.origin or (self.earlier[0] if self.earlier else self.incarnation)

    @property
    def newest_round(self) -> int | None:
        """The last round that was formed; None: there was none."""
        return self.round if self.is_active else self.round - 1 if self.round else None

    @property
    def successes(self) -> int:
        """The number of nodes of the newest world that have succeeded."""
        return int.from_bytes(self.succeeded, "little").bit_count()


class LeadRecord(Struct, frozen=True, array_like=True):
    """The whole content of a job's register: its leader and its state. One swap writes it."""

    schema: int
    epoch: Epoch
    leader: Leader
    beat: int
    """A number that is higher in each record of this epoch; if it does not change, the leader may
    be lost."""
    job: JobRecord | None
    """The state of the job; None: the job has no node yet."""
    is_vacant: bool = False
    """Whether the leader has gone, as it or its guard has recorded."""
    is_dead: bool = False
    """Whether the guard of the leader's agent wrote this: the agent is dead, and no worker of its
    node lives."""
    candidates: tuple[int, ...] = ()
    """The numbers of candidates, in the order in which they may claim. Candidates are processes
    that are not nodes of the job, can lead it, and promise as heirs do (`heirs.py`)."""


def has_succeeded(job: JobState) -> list[bool]:
    """Return whether each node of the newest world has succeeded, by group rank.

    Nodes that are gone since are included.
    """
    return [_has_succeeded(job, entry) for entry in job.round.world]


def _has_succeeded(job: JobState, entry: WorldEntry) -> bool:
    member = job.round.members.get(entry.node_id)
    is_same = member is not None and member.ref.incarnation == entry.incarnation
    if member is None or not is_same or member.state is not MemberState.RUNNING:
        return entry.node_id in job.succeeded_at  # It may be back, to take part in the next round.
    return member.succeeded


def _bits(flags: list[bool]) -> bytes:
    number = sum(1 << index for index, flag in enumerate(flags) if flag)
    return number.to_bytes((len(flags) + 7) // 8, "little")


def is_set(bits: bytes, index: int) -> bool:
    """Return whether the bit of the node with this rank is set in a field of a record."""
    return bool(int.from_bytes(bits, "little") >> index & 1)


def with_bit(bits: bytes, index: int, *, is_set: bool) -> bytes:
    """Return this field of a record, with the bit of the node with this rank changed."""
    number, bit = int.from_bytes(bits, "little"), 1 << index
    number = number | bit if is_set else number & ~bit
    return number.to_bytes(max(len(bits), index // 8 + 1), "little")


def record_of(job: JobState, former: FormerLife | None = None, own_agent: str = "") -> JobRecord:
    """Return the state of this job that another coordinator would need.

    `own_agent` is the incarnation of the agent that the coordinator lives in, if any.
    """
    state = job.round
    leader_rank = _rank_of(own_agent, state.world) if own_agent else -1
    return JobRecord(
        settings=state.settings,
        incarnation=job.incarnation,
        round=state.round,
        is_active=state.phase is RoundPhase.ACTIVE,
        is_started=job.started,
        nodes=len(state.world),
        succeeded=_bits(has_succeeded(job)) if state.succeeded else b"",
        judged_round=job.judged_round,
        restarts=job.ledger.total,
        restarts_counted=tuple(job.ledger.entries),
        backoff_s=job.backoff_s,
        end_reason=job.end_reason and recorded(job.end_reason),
        loss_count=state.fitness.loss_count,
        recent_losses=tuple(state.fitness.recent_losses),
        lossy_rounds=tuple(state.lossy_rounds),
        bad_routes={
            node_id: BadRoute(bad.host, bad.failures, relative(state.fitness, bad.hold))
            for node_id, bad in state.bad_routes.items()
        },
        passed_over=tuple(state.passed_over),
        largest_world=state.largest_world,
        verdict=job.verdict,
        former=former,
        leader_rank=leader_rank,
        stopped=_bits([each.incarnation in job.stopped for each in state.world])
        if job.stopped
        else b"",
        leader_node=state.world[leader_rank].node_id if leader_rank >= 0 else "",
        blamed=_blamed(job, own_agent),
        crash_loop=job.crash_loop,
        furthest_step=job.furthest_step,
        carried=job.carried,
        last_end=job.last_end,
        machines=_machines_record(state.fitness),
        leader_machine=state.world[leader_rank].machine if leader_rank >= 0 else "",
        names=WorldNames.of([each.node_id for each in state.world[: NAMED_MAX + 1]]),
        earlier=job.earlier_numbers,
        origin=job.origin,
        ran_s=_ran_s(job),
    )


def _ran_s(job: JobState) -> float:
    if not job.round.settings.max_runtime_s or job.ran_since is None:
        return job.ran_s
    return max(job_state.time_run_s(job, job.round.fitness.now), LEAST_RAN_S)


def _machines_record(known: Fitness) -> MachinesRecord:
    machines = {}
    for name, machine in known.machines.items():
        since = min(machine.excluded_since - known.now, 0.0) if machine.is_excluded else 0.0
        hold = relative(known, machine.hold)
        machines[name] = replace(machine, hold=hold, excluded_since=since)
    return MachinesRecord(
        machines=machines,
        holds=known.holds,
        failures=tuple(replace(each) for each in known.failures),
        failure_count=known.failure_count,
        passed_round=known.passed_round,
        reports_steps=known.reports_steps,
        trial=frozenset(known.trial),
        lossy_machines=dict(known.lossy_machines),
    )


def _fitness_of(record: JobRecord) -> Fitness:
    """Return the fitness of machines that this record has.

    The times of their quarantines still count from when the record was made
    (`fitness_state.begin`).
    """
    known = record.machines or MachinesRecord()
    return Fitness(
        machines={
            name: replace(each, hold=each.hold and replace(each.hold))
            for name, each in known.machines.items()
        },
        recent_losses=list(record.recent_losses),
        loss_count=record.loss_count,
        holds=known.holds,
        failures=[replace(each) for each in known.failures],
        failure_count=known.failure_count,
        passed_round=known.passed_round,
        reports_steps=known.reports_steps,
        trial=set(known.trial),
        lossy_machines=dict(known.lossy_machines),
    )


def _blamed(job: JobState, own_agent: str) -> Blamed | None:
    if not _is_to_be_judged(job):
        return None
    members = job.round.members
    untold = (
        report
        for report in job.reports
        if report.node_id not in members or members[report.node_id].ref.incarnation == own_agent
    )
    first = min(untold, key=lambda r: (r.failure.tells_of_lost_peer, r.happened_at), default=None)
    if first is None:
        return None
    lacking = job.lacking.get(first.node_id)
    return Blamed(first.node_id, replace(first.failure, detail=""), lacking)


def _is_to_be_judged(job: JobState) -> bool:
    """Return whether the last round ended with failures whose consequence is not decided yet."""
    state = job.round
    is_over = state.phase is not RoundPhase.ACTIVE and job.judged_round != state.round
    return bool(job.reports) and is_over


def _rank_of(incarnation: str, world: list[WorldEntry]) -> int:
    ranks = (rank for rank, entry in enumerate(world) if entry.incarnation == incarnation)
    return next(ranks, -1)


def recorded(reason: EndReason) -> EndReason:
    """Return the reason in a form that a coordinator of protocol version 2 can read."""
    if reason.kind is EndKind.REQUEST:
        return EndReason(EndKind.GROWTH, reason.text, reason.node_id, reason.age_s)
    return reason


def job_of(record: JobRecord, epoch: Epoch) -> JobState:
    """Return the state of this record's job, for the coordinator of this epoch.

    No node has joined, and its world is unknown.
    """
    if record.verdict is not None:
        ended = job_state.ended_job(record.settings, record.verdict, record.incarnation)
        ended.earlier_numbers = record.earlier
        return ended
    state = RoundState(record.settings, round=record.round)
    state.largest_world = record.largest_world
    state.fitness = _fitness_of(record)
    state.lossy_rounds = list(record.lossy_rounds)
    state.bad_routes = {
        node_id: BadRoute(bad.host, bad.failures, bad.hold and replace(bad.hold))
        for node_id, bad in record.bad_routes.items()
    }
    state.passed_over = list(record.passed_over)
    job = JobState(state, record.incarnation, record.earlier)
    job.origin = record.first_number if record.earlier else 0
    job.ledger = Ledger(record.restarts, list(record.restarts_counted))
    job.judged_round, job.backoff_s = record.judged_round, record.backoff_s
    job.end_reason, job.last_end = record.end_reason, record.last_end
    job.crash_loop, job.furthest_step = record.crash_loop, record.furthest_step
    job.carried, job.ran_s = record.carried, record.ran_s
    # Two coordinators never number what they ask of workers alike.
    job.notices = job.inquiries = job.proofs = epoch.number << NUMBERS_BITS
    return job


_UNPLACED = (MemberState.JOINED, MemberState.WAITING, MemberState.STANDBY)


def is_settled(job: JobState, node_id: str, report: m.Report) -> bool:
    """Return whether another coordinator would not need this report of a node any more.

    Its consequences are in the record, or its agent reports it again when it attaches.
    """
    if job.verdict is not None:
        return True
    match report:
        case m.Join():
            member = job.round.members.get(node_id)
            return member is None or member.state not in _UNPLACED
        case m.Failed(stamp) | m.Detailed(stamp) | m.HelperDied(stamp):
            judged = job.judged_round > stamp.round or stamp.round > job.round.round
            return judged or stamp.incarnation != job.incarnation
        case m.NotEnrolled(stamp):
            is_same = stamp.incarnation == job.incarnation
            return job.started or not is_same or not is_active(job.round, stamp.round)
        case _:
            return True


Mark = tuple[object, ...]


def mark_of(job: JobState) -> Mark:
    """Return a value that is equal while nothing has changed that must be recorded."""
    state = job.round
    return (
        job.incarnation,
        state.round,
        state.phase is RoundPhase.ACTIVE,
        job.started,
        job.judged_round,
        job.ledger.total,
        state.succeeded,
        state.fitness.loss_count,
        state.fitness.changes,
        len(state.lossy_rounds),
        job.backoff_s,
        job.verdict is not None,
        len(state.members) if _is_to_be_judged(job) else 0,  # Who has gone can't say it again,
        len(job.stopped) if job.verdict is None else 0,  # and would be awaited for a lease.
    )
