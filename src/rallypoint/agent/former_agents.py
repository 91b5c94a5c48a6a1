"""Former agents of a job on this machine, which are dead with their workers (behaviour L4).

The next agent of the job knows by their notes. Their guards would have told, and died with them.

An agent notes its place in the newest world in its own directory (`scratch.py`), and before and
after it starts workers which sessions these lead. The next agent of that user, under the same
kernel and in the same namespace of processes, believes that nothing of that place runs if all of
this holds:

* The directory is not locked any more, and no process of that number and start time exists.
* No process is in one of those sessions. While workers were being started it is not known which
  these are, and nothing is said.

Of another boot, and of another container, nothing is said: a directory may be seen by other
machines, and numbers of processes mean nothing there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from rallypoint.core.model import DeadPlace
from rallypoint.machine_name import process_space, started_at
from rallypoint.process import scratch, sessions

PLACE_NOTE, SESSIONS_NOTE = "place", "sessions"
_NOTE_MAX = 65536


class AgentNote(Struct, frozen=True, array_like=True):
    """An agent's note for the next one: its job, its process, and its place in the newest world."""

    run_id: str
    where: str
    pid: int
    started_at: int
    """The start time of the process, in clock ticks since the boot."""
    place: DeadPlace


_decode = msgspec.msgpack.Decoder(AgentNote).decode
_decode_sessions = msgspec.msgpack.Decoder(tuple[int, ...] | None).decode


def note_place(directory: str, run_id: str, place: DeadPlace) -> None:
    """Note in the directory that this process is an agent of the job, and has this place.

    Never raises.

    Without the note, other nodes wait for a lease after this agent and its workers have died.
    """
    pid = os.getpid()
    try:
        noted = AgentNote(run_id, process_space(), pid, started_at(pid), place)
    except OSError:
        return
    scratch.leave_note(directory, msgspec.msgpack.encode(noted), PLACE_NOTE)


def note_sessions(directory: str, leaders: Sequence[int] | None) -> None:
    """Note the ids of the sessions (see setsid) that this agent's workers lead.

    `leaders` None: workers are about to be started. Nothing is noted for an agent without a note of
    its place; that note is removed if this one can't be written. Never raises.
    """
    if not directory or not os.path.exists(os.path.join(directory, PLACE_NOTE)):
        return
    note = msgspec.msgpack.encode(leaders)
    if not scratch.leave_note(directory, note, SESSIONS_NOTE):
        try:
            os.unlink(os.path.join(directory, PLACE_NOTE))
        except OSError:
            return


def dead_places(directories: Iterable[str], run_id: str) -> tuple[DeadPlace, ...]:
    """Return the places of this job's former agents that are dead with their workers.

    They are found by the notes in these directories. Blocks on the file system; never raises
    OSError.
    """
    found: dict[DeadPlace, None] = {}
    try:
        where = process_space()
    except OSError:
        return ()
    for path in scratch.ours(directories):
        try:
            place = _read(path, run_id, where)
        except (OSError, msgspec.MsgspecError, RecursionError):
            continue
        if place is not None:
            found[place] = None
    return tuple(found)


def _read(path: str, run_id: str, where: str) -> DeadPlace | None:
    """Return the place of the agent that made this directory, if it is dead with its workers.

    None if it or one of its workers may live. None also if it belongs to another job, or ran on
    another machine, before a reboot or in another pid namespace.
    """
    note = _decode(_content(path, PLACE_NOTE))
    if (note.run_id, note.where) != (run_id, where) or _lives(note):
        return None
    os.close(scratch.lock_dir(path, fcntl.LOCK_EX))
    # Read again: by now it can't change.
    note = _decode(_content(path, PLACE_NOTE))
    try:
        leaders = _decode_sessions(_content(path, SESSIONS_NOTE))
    except FileNotFoundError:
        leaders = ()  # It has started none.
    if leaders is None or sessions.live_members(leaders):
        return None
    return note.place


def _content(path: str, name: str) -> bytes:
    with open(os.path.join(path, name), "rb") as file:
        return file.read(_NOTE_MAX)


def _lives(note: AgentNote) -> bool:
    """Return whether the process of this note may still run."""
    try:
        return started_at(note.pid) == note.started_at
    except (FileNotFoundError, ProcessLookupError):
        return False
