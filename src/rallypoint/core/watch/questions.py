"""The questions that a person may ask a job's coordinator.

Pure data.

Each has its own connection: `Ask` instead of `Attach`, answered by `Answer`s. An answer is one or
several JSON values, cut into pieces that fit into a frame. Their content changes more often than
the messages between nodes; `job_view.py` defines it. A question with `follow` is answered again and
again until the person hangs up or the job has ended.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

PIECE_BYTES = 48 * 1024


ALL_JOBS = "\0jobs"
"""The name that stands for a run id when a command proves its token to ask about all jobs of a
coordinator. No job can have it, so a job's token does not suffice."""


DRAINED = "it was drained (rallypoint drain)"
"""The reason that is shown for the leave of a node that a person drains."""


class Subject(Enum):
    """The subject of a person's question or request to a job's coordinator."""

    STATUS = "status"
    """The job's status, answered by a `JobView`; with `follow` once more when the job has ended."""
    JOBS = "jobs"
    """The list of jobs, answered by `JobLine`s: all that the coordinator hosts if it is asked as
    `ALL_JOBS`, else the one that was named."""
    EVENTS = "events"
    """The events after the number `after`, and with `follow` the later ones; answered by
    `HistoryEntry`s."""
    CHECKPOINT = "checkpoint"
    """A request that the workers save a checkpoint. Answered by sentences, the last one when it is
    done."""
    RESTART = "restart"
    """A request to end the round and begin another one, which costs no restart of the budget."""
    CANCEL = "cancel"
    """A request to end the job."""
    NODES = "nodes"
    """The machines and nodes that are held back from rounds, and why; answered by `HeldBack`s."""
    EXCLUDE = "exclude"
    """A request: the machine of the first of `nodes` takes part in no round any more, until a
    person allows it."""
    ALLOW = "allow"
    """A request: the machine of the first of `nodes`, which was held back or excluded, is trusted
    again."""
    DRAIN = "drain"
    """A request: the first of `nodes` leaves. Answered by `DrainAnswer`s, the last one when it has
    left."""
    STACKS = "stacks"
    """The present stacks of workers, answered by `Gathered`s of their nodes
    (`collection_messages.py`)."""
    LOGS = "logs"
    """The newest lines of workers' output, and with `follow` the later ones; answered by
    `Gathered`s."""
    MORE = "more"
    """The acknowledgement of a `Gathered` value, after which another one may be sent. It has no
    answer."""


class Said(Struct, frozen=True):
    """The outcome of a person's request, in words."""

    text: str
    is_done: bool = True


class RankRange(Struct, frozen=True, array_like=True):
    """A range of workers' ranks, both ends included."""

    first: int
    last: int

    def __contains__(self, rank: int) -> bool:
        return self.first <= rank <= self.last


class ReadTo(Struct, frozen=True, array_like=True):
    """The place up to which a worker's output was read."""

    rank: int
    stream: int
    """The stream: 1 for stdout, 2 for stderr."""
    round: int
    position: int
    """The number of bytes since the beginning of the stream."""


READ_MAX = 800
"""The most read positions that fit into a question."""


class Ask(Struct, frozen=True, array_like=True, tag=24):
    """A person's question or request to a job's coordinator."""

    subject: Subject
    after: int = 0
    follow: bool = False
    ranks: tuple[RankRange, ...] = ()
    """The workers that the question is about, besides those of `nodes`; both empty: all."""
    nodes: tuple[str, ...] = ()
    newest: int = 0
    """The number of the newest lines of each stream of a worker to begin with."""
    read: tuple[ReadTo, ...] = ()
    """The positions after which output is wanted, in place of the newest lines, if the round is
    still the same."""
    incarnation: int = 0
    """The life of the job that the positions, or `asked_in`, belong to."""
    release: str = ""
    """The version of Rallypoint of the person's command; empty: it is older than this field."""
    asks: bool = False
    """Whether a drain that would end the job is not carried out but reported
    (`DrainAnswer.ends_job`), so that the command asks the person first."""
    asked_in: int | None = None
    """The round in which this request was made before, if its answer was lost, so that it is not
    carried out twice. None: it is made for the first time."""

    def means(self, node_id: str, first: int, workers: int) -> bool:
        """Return whether the question is about any worker of this node.

        `first` is the rank of the first of its workers.
        """
        last = first + workers - 1
        named = any(wanted.first <= last and wanted.last >= first for wanted in self.ranks)
        return named or node_id in self.nodes or not (self.ranks or self.nodes)

    @property
    def node(self) -> str:
        """The first of `nodes`, which is the one that a request about a node means; empty: none."""
        return self.nodes[0] if self.nodes else ""

    @property
    def is_wish(self) -> bool:
        """Whether it is a request to change something."""
        return self.subject in (
            Subject.CHECKPOINT,
            Subject.RESTART,
            Subject.CANCEL,
            Subject.EXCLUDE,
            Subject.ALLOW,
            Subject.DRAIN,
        )

    @property
    def wants_all(self) -> bool:
        """Whether the question is about a list of jobs, which may be all of the coordinator."""
        return self.subject is Subject.JOBS


class Answer(Struct, frozen=True, array_like=True, tag=17):
    """A piece of the coordinator's answer to a person's question, or its refusal."""

    piece: bytes
    is_whole: bool
    """Whether this piece ends a JSON value."""
    is_last: bool
    """Whether nothing follows this piece."""
    refusal: str = ""
    """The reason of a refusal, one sentence, in place of an answer."""
    is_final: bool = True
    """Whether a refusal settles the question. False: this coordinator does not host the job, or not
    yet, so it is worth asking again or elsewhere."""
    recovers: bool = False
    """Whether a coordinator that refuses has just taken the job over, and will know soon which
    workers run."""
