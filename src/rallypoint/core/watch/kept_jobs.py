"""The files that are kept of a job that has ended: their names, sizes, and which are meant. Pure.

Each job has a directory of its own, the same for all nodes that share it:

    <state directory>/kept/<run id>-<when>-<short id>/
        history.jsonl       of the node that hosted the job (`history_file.py`)
        node-<name>.json    of each node that shares the directory (`NodeNote`)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from string import ascii_letters, digits
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from rallypoint.core.limits import MAX_WORLD
from rallypoint.core.round_record import FirstCause
from rallypoint.core.settings import MAX_WORKERS_PER_NODE
from rallypoint.core.watch.history import UnixTime
from rallypoint.core.watch.names import brief_ranks, fold_names
from rallypoint.hashes import blake2s

JOBS_MAX, BYTES_MAX = 50, 200_000_000
"""The limits of the kept jobs in one state directory: their number, and their bytes in all."""
NODE_BYTES, WORLD_BYTES = 64_000, 100_000_000
"""The limits in bytes of one node's note, and of all notes of a job, which may share one
directory."""
HISTORY_BYTES = 8_000_000
LINES = 200
"""The most lines, the newest ones, that are kept of each stream of a worker."""
HISTORY = "history.jsonl"
_LINE_CHARACTERS = 2000
_DETAIL_CHARACTERS = 8000
_PLAIN = frozenset(ascii_letters + digits + "._-")
_DIGITS = frozenset(digits)
_HEXADECIMAL = frozenset("0123456789abcdef")
_NAME_MAX = 80
_LOCAL = ("localhost", "127.0.0.1", "::1")


class KeptLine(Struct, frozen=True, array_like=True):
    """A piece of the output of a worker, as it is kept after the job's end."""

    rank: int
    stream: int
    """The stream: 1 for stdout, 2 for stderr."""
    time: float
    text: str
    """Lines that arrived at one time; the worker's last one may be unfinished."""


class NodeNote(Struct, frozen=True, kw_only=True):
    """A node's note about its part of a job: first that it has begun, then how it ended."""

    job: str
    node: str
    machine: str
    """The name of the node's machine."""
    pid: int
    """The pid of the agent."""
    process: str = ""
    """The identity of the agent's process, which no later process with its pid has
    (`machine_name.process_name`)."""
    incarnation: int
    endpoints: tuple[str, ...]
    """The places by which a person may name the job: its endpoint or register in the options, and
    the address that the agent has dialled."""
    host: str
    """The address of the coordinator, for display."""
    is_host: bool
    """Whether the coordinator was in this agent."""
    history: str = ""
    """The file of `--history`, if there is one."""
    log_dir: str = ""
    """The directory of `--log-dir`, if there is one."""
    began: UnixTime
    round: int
    nodes: int
    first_rank: Annotated[int, Meta(ge=-1, le=MAX_WORLD)]
    workers: Annotated[int, Meta(ge=0, le=MAX_WORKERS_PER_NODE)]
    ended: UnixTime = 0.0
    """The Unix time at which this node's part ended; 0: nothing is known of its end."""
    left: bool = False
    """Whether the job may continue, because this node left it or lost its coordinator."""
    outcome: str = ""
    text: str = ""
    exit_code: int | None = None
    cause: FirstCause | None = None
    output: tuple[KeptLine, ...] = ()
    schema: int = 1


class KeptDir(Struct, frozen=True):
    """The directory in which files of one job are kept."""

    name: str
    newest: float
    """The Unix time of the last change of its files; 0: it has none."""
    size: int


def directory_name(run_id: str, incarnation: int) -> str:
    """Return the name of the directory for a job's kept files.

    It is the same on all nodes of this life of the job.
    """
    short = _short_id(f"{incarnation}\0{run_id}")
    try:
        began = datetime.fromtimestamp(incarnation / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        began = datetime.fromtimestamp(0, UTC)
    name = _plain_name(run_id, also="+")[:_NAME_MAX]
    return f"{name}-{began:%Y%m%d-%H%M%S}-{short}"


def node_file(node: str) -> str:
    """Return the name of the file with this node's note."""
    name = _plain_name(node)
    if name != node or len(name) > _NAME_MAX:
        name = f"{name[:_NAME_MAX]}-{_short_id(node)}"
    return f"node-{name}.json"


def _plain_name(text: str, also: str = "") -> str:
    """Return the text with an underscore for each character unfit for a name of a file.

    The characters of `also` are kept.
    """
    return "".join(each if each in _PLAIN or each in also else "_" for each in text) or "_"


def _short_id(text: str) -> str:
    """Return a hash of the text as eight hexadecimal digits."""
    return blake2s(text.encode(errors="surrogateescape"), digest_size=4).hexdigest()


def is_kept_name(name: str) -> bool:
    """Return whether a directory of this name may be one with a job's kept files."""
    run_id, *numbers = name.rsplit("-", 3)
    *moment, short_id = numbers or [""]
    return (
        0 < len(run_id) <= _NAME_MAX
        and _PLAIN.issuperset(run_id.replace("+", ""))
        and [len(each) for each in numbers] == [8, 6, 8]
        and _DIGITS.issuperset("".join(moment))
        and _HEXADECIMAL.issuperset(short_id)
    )


def is_kept_file(name: str) -> bool:
    """Return whether a file of this name in a kept job's directory is Rallypoint's."""
    name = name.removesuffix(".new")
    if name == HISTORY:
        return True
    node = name.removeprefix("node-").removesuffix(".json")
    return node != "" and name == f"node-{node}.json" and _PLAIN.issuperset(node)


def to_remove(
    found: Sequence[KeptDir], own: str, jobs_max: int = JOBS_MAX, bytes_max: int = BYTES_MAX
) -> list[str]:
    """Return the directories to remove so that the rest is within the limits; never `own`.

    From the newest on, each of the `jobs_max` newest stays that fits into `bytes_max` beside those
    that stay already. An older small one may stay where a newer large one does not.
    """
    gone, size = [], 0
    newest_first = sorted(found, key=lambda one: (one.name == own, one.newest), reverse=True)
    for number, one in enumerate(newest_first, 1):
        size += one.size
        if one.name != own and (number > jobs_max or size > bytes_max):
            size -= one.size
            gone.append(one.name)
    return gone


def room_of(nodes: int) -> int:
    """Return the largest size in bytes of the note of a node, for a job of so many nodes."""
    return min(NODE_BYTES, WORLD_BYTES // max(nodes, 1))


def fitted(note: NodeNote, room: int) -> NodeNote:
    """Return the note with as much of the newest output as fits into `room` bytes.

    Each rank has an equal share. Of a long cause the beginning of the message and the end of the
    detail are kept.
    """
    cause = note.cause
    if cause is not None:
        most = min(_DETAIL_CHARACTERS, room // 4)
        cause = replace(cause, detail=cause.detail[-most:], message=cause.message[:most])
        room -= len(cause.detail.encode()) + len(cause.message.encode())
    text = note.text[:1000]
    room -= 1500 + len(text.encode())
    ranks = {line.rank for line in note.output}
    left = dict.fromkeys(ranks, max(room, 0) // max(len(ranks), 1))
    lines: list[KeptLine] = []
    for line in reversed(note.output):
        cut = replace(line, text=line.text[-_LINE_CHARACTERS:])
        # A line feed or a quote has two bytes in JSON, and a line its numbers.
        left[line.rank] -= len(cut.text.encode()) + len(cut.text.splitlines()) * 4 + 40
        if left[line.rank] > 0:
            lines.append(cut)
        else:
            left[line.rank] = 0
    return replace(note, cause=cause, text=text, output=tuple(reversed(lines)))


def is_meant(note: NodeNote, job: str | None, endpoint: str | None) -> bool:
    """Return whether the note is of the job with this name and endpoint.

    A name or an endpoint that is None stands for any.
    """
    if job is not None and note.job != job:
        return False
    return endpoint is None or any(_is_same(one, endpoint) for one in note.endpoints)


def is_logged_in(note: NodeNote, path: str) -> bool:
    """Return whether `path` is the `--log-dir` of the note, or a path of the job in it."""
    if not note.log_dir:
        return False
    return path == note.log_dir or path.startswith(f"{note.log_dir.rstrip('/')}/{note.job}")


def cut_history(data: bytes, most: int = HISTORY_BYTES) -> bytes:
    """Return a history file of at most `most` bytes: if it is longer, a part of its lines.

    Then it has the header, and the newest of the others, as many as fit into half of the space.
    """
    if len(data) <= most:
        return data
    head, _, rest = data.partition(b"\n")
    tail = rest[-most // 2 :]
    return head + b"\n" + tail[tail.find(b"\n") + 1 :]


def _is_same(one: str, other: str) -> bool:
    if one == other:
        return True
    host, _, port = one.lower().rpartition(":")
    other_host, _, other_port = other.lower().rpartition(":")
    host, other_host = host.strip("[]"), other_host.strip("[]")
    return port == other_port and (host == other_host or (host in _LOCAL and other_host in _LOCAL))


def ended_lines(notes: Iterable[NodeNote], living: Collection[str] = ()) -> list[str]:
    """Return how the parts of these nodes ended, the worst first; equal ends are one line.

    Nodes whose end is unknown come first, then those that still run, then those that failed.
    `living` are the nodes whose agents run.
    """
    alike: dict[tuple[int, int], list[NodeNote]] = {}
    for note in notes:
        how = (1, 0) if note.node in living else (0, 0)
        if note.ended:
            how = (3 if note.exit_code in (0, None) else 2, note.exit_code or 0)
        alike.setdefault(how, []).append(note)
    return [_how_they_ended(kind, found) for (kind, _), found in sorted(alike.items())]


def _how_they_ended(kind: int, notes: Sequence[NodeNote]) -> str:
    placed = [note for note in notes if note.first_rank >= 0]  # The others were spare.
    ranks = {note.first_rank + local for note in placed for local in range(note.workers)}
    code = notes[0].exit_code
    where = f"{'node' if len(notes) == 1 else 'nodes'} {fold_names(note.node for note in notes)}"
    if ranks:
        where += f" ({'rank' if len(ranks) == 1 else 'ranks'} {brief_ranks(ranks)})"
    if kind == 0:
        return f"{where}: no end is known: the agent was killed, or the machine is lost"
    if kind == 1:
        return f"{where}: the agent still runs here"
    return f"{where} ended" + (f" with exit code {code}" if code is not None else "")
