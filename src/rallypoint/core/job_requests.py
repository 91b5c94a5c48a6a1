"""The requests of people to a running job. Pure.

That it saves a checkpoint, begins another round, or ends (`rallypoint checkpoint`, `restart`,
`cancel`), that a machine is excluded from it or allowed again, or that a node leaves it (`drain`).
`step` decides whether that may be done, and tells people when it is done; `wants` is what the job's
machine does about it.

A checkpoint that a person asks for is not a notice (`checkpoint.py`): the round goes on. It is
asked for under the same numbers, so that the answer to an older question is void; a notice that is
opened meanwhile, or the end of the round, ends the wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core import event_kinds as kinds
from rallypoint.core.checkpoint import GO_ON, Save
from rallypoint.core.events import RoundOver
from rallypoint.core.fitness import held_back
from rallypoint.core.job_machines import allow, exclude
from rallypoint.core.job_rounds import run_round
from rallypoint.core.job_state import JobEffect, JobState, PersonWants, close, stamp
from rallypoint.core.messages import CheckpointAnswered, CheckpointWanted, DrainAnswer, ToNode
from rallypoint.core.model import EndKind, EndReason, NodeRef, Outcome, Verdict
from rallypoint.core.round_state import RoundPhase, working
from rallypoint.core.text import count, names
from rallypoint.core.watch.questions import Ask, Said, Subject

CANCELLED = "a person cancelled it (rallypoint cancel)"
RESTARTED = "a person asked for a restart (rallypoint restart)"
WANTED = "a person asks for a checkpoint (rallypoint checkpoint)"
UNATTENDED_MAX = 1000
"""The most nodes for which drain requests of disconnected people are kept, while the job's nodes
are not known after a takeover."""
AGAIN = "try again when rallypoint status shows that it runs"
_SIGINT = 2
_OF_WORKERS = (
    *(Subject.CHECKPOINT, Subject.RESTART, Subject.STACKS, Subject.LOGS),
    *(Subject.EXCLUDE, Subject.ALLOW),
)
_OF_MACHINES = (Subject.EXCLUDE, Subject.ALLOW)


class Request(Struct, frozen=True):
    """A person's request that waits for its result, and the state of the job when it was made."""

    subject: Subject
    node: str
    """The node whose machine is to be excluded or allowed; empty in other requests."""
    round: int
    """The number of the job's round when the request was made."""
    notices: int
    """The number of the job's last request for a checkpoint before this one."""
    was_lost: bool = False
    """Whether the request was sent again, because the answer to it was lost."""


class Requests(Struct):
    """The requests of people about one job that have no answer yet."""

    waiting: dict[int, Request] = field(default_factory=dict)
    """The requests without an answer, by the connections of the people."""


class Requested(Struct, frozen=True):
    """The event that a person, who waits on this connection, makes a request."""

    connection: int
    question: Ask
    waits_for: str
    """The thing for which a job without workers waits, in words."""
    is_ending: bool
    """Whether the job has a verdict that is not published yet; the verdict will be the answer."""
    older_node: str
    """A node of an older version that knows no checkpoint requests of people; empty: there is
    none."""


class AllRecorded(Struct, frozen=True):
    """The event that all decisions of the job are recorded: people may be told its state."""


class HungUp(Struct, frozen=True):
    """The event that a connection has ended, perhaps that of a waiting person."""

    connection: int


class Decline(Struct, frozen=True):
    """The effect to refuse a request: tell the person on this connection why, and close it."""

    connection: int
    text: str


class Tell(Struct, frozen=True):
    """The effect to send a request's result to the person on this connection: the last answer."""

    connection: int
    said: Said


RequestEvent = Requested | AllRecorded | HungUp
RequestEffect = PersonWants | Decline | Tell


def step(state: Requests, event: RequestEvent, job: JobState) -> list[RequestEffect]:
    """Apply one event of people's requests, and return the effects.

    The effect `PersonWants` is an event for the job's state machine.
    """
    match event:
        case Requested(connection, question):
            if (begun := _begun(job, question)) is not None:
                state.waiting[connection] = begun
                return []
            if text := _why_not(job, event):
                return [Decline(connection, text)]
            subject, node = question.subject, question.node
            state.waiting[connection] = Request(subject, node, job.round.round, job.notices)
            return [PersonWants(subject, node)]
        case AllRecorded():
            said = [(each, _outcome(wanted, job)) for each, wanted in state.waiting.items()]
            told = [Tell(connection, text) for connection, text in said if text is not None]
            for each in told:
                del state.waiting[each.connection]
            return [*told]
        case HungUp(connection):
            state.waiting.pop(connection, None)
            return []


def unknown(question: Ask, waits_for: str) -> str:
    """Return why this question can't be answered just after a takeover; empty: it can.

    Before the nodes have reported, the coordinator does not know which workers run. A question with
    `follow` waits for that.
    """
    if question.follow or question.subject not in _OF_WORKERS:
        return ""
    return f"the coordinator does not know yet what runs: the job waits for {waits_for}: {AGAIN}"


def _why_not(job: JobState, event: Requested) -> str:
    """Return why a request can't be done; empty: it can."""
    subject = event.question.subject
    if not event.is_ending and (text := refusal(job, subject, event.waits_for)):
        return text
    if subject is Subject.CHECKPOINT and event.older_node:
        node = event.older_node
        return f"node {node} runs an older version of Rallypoint, which does not know this command"
    if subject in _OF_MACHINES:
        return no_machine(job, subject, event.question.node)
    return ""


def _begun(job: JobState, question: Ask) -> Request | None:
    """Return the earlier request that this one repeats.

    None: it repeats none, or that has not begun.

    An earlier request has begun if its round has ended, workers are saving a checkpoint, or the job
    has ended.
    """
    asked_in, subject = question.asked_in, question.subject
    if asked_in is None:
        return None
    runs = job.round.phase is RoundPhase.ACTIVE and job.round.round == asked_in
    saves = job.save is not None and not job.save.is_over
    is_of_round = subject is Subject.RESTART and not runs
    is_saved = subject is Subject.CHECKPOINT and (saves or not runs)
    if job.verdict is None and not (is_of_round or is_saved):
        return None
    return Request(subject, question.node, asked_in, job.notices - saves, was_lost=True)


def _outcome(wanted: Request, job: JobState) -> Said | None:
    """Return the result of a request, for the person; None: there is none yet."""
    state, subject = job.round, wanted.subject
    if (verdict := job.verdict) is not None:
        text = f"the job {verdict.outcome.row.verb}: {verdict.text}"
        return Said(text, subject is Subject.CANCEL)
    if subject is Subject.EXCLUDE:
        again = f"rallypoint nodes allow {wanted.node} lets it in again"
        return Said(
            f"the machine of node {wanted.node} is excluded from all further rounds; {again}"
        )
    if subject is Subject.ALLOW:
        return Said(f"the machine of node {wanted.node} is trusted again")
    if subject is Subject.CHECKPOINT:
        if job.save is None or job.save.number <= wanted.notices:
            is_late = state.round != wanted.round
            if is_late and wanted.was_lost:
                return Said(
                    "the round has ended: it is unknown whether a checkpoint was saved before",
                    False,
                )
            return (
                Said("the round ended before the checkpoint was requested", False)
                if is_late
                else None
            )
        if not job.save.is_over:
            return None
        return Said(job.save.outcome, not job.save.cut_short and bool(job.save.saved))
    if state.round == wanted.round:
        return None
    if not state.members:
        return Said("the round has ended, and no node is there for the next one", False)
    if state.phase is not RoundPhase.ACTIVE or not job.started:
        return None
    nodes, workers = count(len(state.world), "node"), count(job.world_workers, "worker")
    return Said(f"round {state.round} has begun: {nodes}, {workers}")


class DrainRequest(Struct, frozen=True):
    """The request of a person that a node leaves the job.

    `connection` is that of the waiting person; None: the person has disconnected.
    """

    connection: int | None
    node_id: str
    why: str

    @property
    def people(self) -> list[int]:
        """The connections of the people who wait for the answer."""
        return [] if self.connection is None else [self.connection]


class Drains:
    """The requests of people that nodes leave a job.

    Some wait until a node has gone, others until the job's nodes are known.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, str] = {}
        """The random ids (incarnations) of the agents that are to leave, by the connections of the
        people who wait for it."""
        self._kept: dict[int, DrainRequest] = {}
        """The requests for nodes that are not known yet, by the connections of waiting people."""
        self._unattended: dict[str, DrainRequest] = {}
        """The requests for nodes that are not known yet, of people who have disconnected, by node
        id."""

    def wait(self, drain: DrainRequest, incarnation: str) -> None:
        """Note that the person of this request waits until this agent is gone."""
        for person in drain.people:
            self._waiting[person] = incarnation

    def gone(self, incarnation: str) -> list[int]:
        """Return the connections of the people who waited for this agent, which is gone.

        They are forgotten.
        """
        found = [number for number, whose in self._waiting.items() if whose == incarnation]
        for number in found:
            del self._waiting[number]
        return found

    def keep(self, drain: DrainRequest) -> None:
        """Keep a request for an unknown node, until the job's nodes are known after a takeover."""
        for person in drain.people:
            self._kept[person] = drain

    def take(self, is_known: Callable[[str], bool]) -> list[DrainRequest]:
        """Return the kept requests for nodes that are known now, and keep them no more."""
        people = [number for number, drain in self._kept.items() if is_known(drain.node_id)]
        nodes = [node_id for node_id in self._unattended if is_known(node_id)]
        found = [self._kept.pop(number) for number in people]
        return found + [self._unattended.pop(node_id) for node_id in nodes]

    def hung_up(self, connection: int) -> None:
        """Note that the person on this connection waits no more.

        The node has to leave nevertheless.

        For an unknown node the request is kept without the person, if there are not too many.
        """
        self._waiting.pop(connection, None)
        drain = self._kept.pop(connection, None)
        if drain is not None and len(self._unattended) < UNATTENDED_MAX:
            self._unattended.setdefault(drain.node_id, replace(drain, connection=None))


def no_such_node(
    node_id: str, known: Iterable[str], verdict: Verdict | None, gone: str
) -> DrainAnswer:
    """Return the answer for an unknown node, which names the nodes of the job.

    `gone` is why the node is gone, as far as it is known.
    """
    found = names(tuple(sorted(known)))
    ended = f"the job has ended: {verdict.text}" if verdict else ""
    there_are = f"there are {found}" if found else ended or "the job has no nodes"
    text = f"there is no node {node_id!r} in the job; {there_are}"
    return DrainAnswer(text, done=True, found=False, gone=gone)


def asked_to_leave(ref: NodeRef, *, leaves: bool, is_here: bool) -> str:
    """Return the answer about a node that a person wants to leave.

    `leaves`: it is leaving already. `is_here`: its agent is connected.
    """
    if leaves:
        return f"node {ref} is leaving already"
    if is_here:
        return f"node {ref} was asked to leave"
    return f"node {ref} is not connected now, and will be asked to leave when it is"


def refusal(job: JobState, subject: Subject, waits_for: str = "its next round") -> str:
    """Return why a request with this subject is refused now; empty: it is not.

    `waits_for` is what a job without workers waits for, in words.
    """
    if job.verdict is not None:
        return f"the job has ended: {job.verdict.text}"
    if subject is Subject.CANCEL or subject in _OF_MACHINES:
        return ""
    if job.round.phase is not RoundPhase.ACTIVE or not job.started:
        return f"no workers run now: the job waits for {waits_for}: {AGAIN}"
    if subject is Subject.CHECKPOINT and job.notice is not None:
        return f"a checkpoint was already requested: {job.notice.reason}"
    return ""


def of_other_life(job: JobState, request: Ask) -> str:
    """Return why a repeated request is refused; empty: it is not.

    It is refused if it was made in another life of the job. A takeover may change the number of a
    life, which does not count.
    """
    if request.asked_in is None or request.incarnation in job.numbers:
        return ""
    return "the job was started anew since this request, which is not applied to the new one"


def no_machine(job: JobState, subject: Subject, node_id: str) -> str:
    """Return why the machine of this node can't be excluded, or allowed again; empty: it can."""
    state = job.round
    held = {each.node: each.machine for each in held_back(state)}
    is_held = node_id in held or node_id in held.values()
    if subject is Subject.ALLOW:
        known = names(tuple(sorted(held)))
        if is_held:
            return ""
        return f"node {node_id!r} is not held back; {f'{known} is' if known else 'no node is'}"
    world = {entry.node_id for entry in state.world}
    if is_held or node_id in state.members or node_id in world:
        return ""
    return no_such_node(node_id, state.members, job.verdict, "").text


def wants(job: JobState, event: PersonWants, at: float) -> list[JobEffect]:
    """Carry out a person's request to cancel, restart, checkpoint, exclude or allow.

    Does nothing if `refusal` has a reason against it now.
    """
    if refusal(job, event.subject):
        return []
    match event.subject:
        case Subject.CANCEL:
            return close(job, Outcome.CANCELLED, CANCELLED, _SIGINT)
        case Subject.RESTART:
            return run_round(
                job, RoundOver(job.round.round, EndReason(EndKind.REQUEST, RESTARTED)), at
            )
        case Subject.CHECKPOINT:
            return _ask_to_save(job)
        case Subject.EXCLUDE:
            return exclude(job, event.node, at)
        case Subject.ALLOW:
            return allow(job, event.node, at)
        case _:
            return []


def _ask_to_save(job: JobState) -> list[JobEffect]:
    running = working(job.round)
    job.notices += 1
    awaited = {ref.node_id for ref in running}
    members = len(job.round.members)
    job.save = Save(job.notices, job.round.round, len(running), members, awaited)
    return [kinds.CHECKPOINT(WANTED), *(_order(job, job.save, ref) for ref in running)]


def ask_again(job: JobState, ref: NodeRef) -> list[JobEffect]:
    """Return a person's request for a checkpoint again, if this node has not answered it."""
    save = job.save
    if save is None or save.is_over or ref.node_id not in save.awaited:
        return []
    return [_order(job, save, ref)]


def _order(job: JobState, save: Save, ref: NodeRef) -> ToNode:
    named = stamp(job, save.round)
    return ToNode(ref, CheckpointWanted(named, save.number, GO_ON.kind, WANTED, None))


def saved(job: JobState, ref: NodeRef, answer: CheckpointAnswered) -> list[JobEffect]:
    """Note a node's answer, if it is one to a person's request for a checkpoint."""
    save = job.save
    if save is None or (save.round, save.number) != (answer.stamp.round, answer.number):
        return []
    if not save.is_over:
        save.awaited.discard(ref.node_id)
        if answer.failed:
            save.cut_short = f"a worker of node {ref} has failed"
        elif answer.listens:
            save.saved.add(ref.node_id)
    elif answer.listens and not answer.failed:
        save.saved.add(ref.node_id)  # Its workers began to listen late.
    return [kinds.CHECKPOINT(save.outcome)] if save.is_over else []


def keep_save(job: JobState) -> None:
    """Update the wait for a checkpoint that a person has requested, after each event.

    It ends when the round ends, or another checkpoint is awaited: nodes are to leave or join, or
    the job's time is over. Nodes that have gone are not awaited.
    """
    save = job.save
    if save is None or save.is_over:
        return
    state = job.round
    if state.phase is not RoundPhase.ACTIVE or state.round != save.round:
        save.cut_short = "the round has ended"
    elif job.notice is not None:
        save.cut_short = f"the job re-forms: {job.notice.reason}"
    elif len(state.members) != save.members:
        save.members = len(state.members)
        save.awaited &= state.members.keys()
