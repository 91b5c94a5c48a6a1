"""The questions that a person may ask a job's coordinator. Pure data.

On a connection of their own: `Ask` instead of `Attach`, answered by `Answer`s.

An answer is one or several values of JSON, cut into pieces that fit into a frame: what people and
their programs read changes more often than what nodes say to each other, and is read by
`job_view.py`, which says what it means. A question that follows something is answered again
and again until the person hangs up or the job has ended.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

PIECE_BYTES = 48 * 1024


ALL_JOBS = "\0jobs"
"""The name for which a person proves the token who asks about all jobs of a coordinator. No job can
have it: so a job's token does not open it."""


DRAINED = "it was drained (rallypoint drain)"
"""Why a node leaves that a person wants to leave."""


class Subject(Enum):
    """The subject of a question."""

    STATUS = "status"
    """A `JobView`; with `follow` once more when the job has ended."""
    JOBS = "jobs"
    """`JobLine`s: of all jobs that the coordinator hosts."""
    EVENTS = "events"
    """`HistoryEntry`s after the number `after`, and with `follow` those that come."""
    CHECKPOINT = "checkpoint"
    """No question, as the next ones: that the workers save a checkpoint. Answered by sentences, the
    last one when it is done."""
    RESTART = "restart"
    """A request to end the round and begin another one, at no cost to the budget."""
    CANCEL = "cancel"
    """A request to end the job."""
    NODES = "nodes"
    """`HeldBack`s: the machines that are held back, and why."""
    EXCLUDE = "exclude"
    """A request: the machines of `nodes` take part in no round any more."""
    ALLOW = "allow"
    """A request: the machines of `nodes` are trusted again."""
    DRAIN = "drain"
    """A request: the first of `nodes` leaves. `DrainAnswer`s, the last one when it has left."""
    STACKS = "stacks"
    """The stacks of workers now: `Gathered`s of their nodes (`collection_messages.py`)."""
    LOGS = "logs"
    """The newest lines that workers wrote, and with `follow` those that come: `Gathered`s."""
    MORE = "more"
    """A value of what is gathered was taken, and another one may be sent. It has no answer."""


class Said(Struct, frozen=True):
    """The outcome of a person's request, in words."""

    text: str
    is_done: bool = True


class RankRange(Struct, frozen=True, array_like=True):
    """Ranks of workers, from the first to the last one."""

    first: int
    last: int

    def __contains__(self, rank: int) -> bool:
        return self.first <= rank <= self.last


class ReadTo(Struct, frozen=True, array_like=True):
    """The place up to which a worker's output was read."""

    rank: int
    stream: int
    """1 stdout, 2 stderr."""
    round: int
    position: int
    """Bytes since the beginning of the stream."""


READ_MAX = 800
"""The most of these that fit into a person's question."""


class Ask(Struct, frozen=True, array_like=True, tag=24):
    """A person asks this."""

    subject: Subject
    after: int = 0
    follow: bool = False
    ranks: tuple[RankRange, ...] = ()
    """Only of these workers and `nodes`; both empty: of all."""
    nodes: tuple[str, ...] = ()
    newest: int = 0
    """The number of the newest lines of each worker to begin with,."""
    read: tuple[ReadTo, ...] = ()
    """or what comes after these positions, if the round is still that one."""
    incarnation: int = 0
    """The life of the job that they are of, or in which `asked_in` is a round."""
    release: str = ""
    """The version of Rallypoint that asks; empty: it is older than this field."""
    asks: bool = False
    """If the job ends with the node, only say so (`DrainAnswer.ends_job`): a person decides."""
    asked_in: int | None = None
    """The round in which this request was made before, where the answer was lost: what was begun
    then is not done twice. None: it is made for the first time."""

    def means(self, node_id: str, first: int, workers: int) -> bool:
        """Return whether the question is about the workers of this node.

        `first` is the rank of the first of them.
        """
        last = first + workers - 1
        named = any(wanted.first <= last and wanted.last >= first for wanted in self.ranks)
        return named or node_id in self.nodes or not (self.ranks or self.nodes)

    @property
    def node(self) -> str:
        """The node of a request about one; empty: there is none."""
        return self.nodes[0] if self.nodes else ""

    @property
    def is_wish(self) -> bool:
        """Something is to be done."""
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
        """Whether the question is about all jobs."""
        return self.subject is Subject.JOBS


class Answer(Struct, frozen=True, array_like=True, tag=17):
    """A piece of an answer."""

    piece: bytes
    is_whole: bool
    """Whether this part ends a value."""
    is_last: bool
    """No other value follows."""
    refusal: str = ""
    """Instead of an answer: one sentence."""
    is_final: bool = True
    """False: of a coordinator that does not host the job, or not yet."""
    recovers: bool = False
    """The coordinator has taken the job over, and will know soon which workers run."""
