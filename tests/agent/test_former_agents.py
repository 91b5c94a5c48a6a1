"""L4: what the next agent on a machine knows of the one before it. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.harness.one_agent import eventually
from tests.harness.proc import is_alive

from rallypoint.agent import former_agents
from rallypoint.agent.former_agents import PLACE_NOTE, SESSIONS_NOTE, dead_places
from rallypoint.core.model import DeadPlace, Stamp
from rallypoint.machine_name import kernel_id
from rallypoint.process import sessions

PLACE = DeadPlace(Stamp(5, 2), 3, "a")
# An agent that has a place. Its orders: "starting" workers, or it has "started" one, that leads a
# session and has a child in a group of its own.
AGENT = """
import os, signal, sys, time
from rallypoint.core.model import DeadPlace, Stamp
from rallypoint.agent.former_agents import note_place, note_sessions
from rallypoint.process.scratch import Scratch
scratch = Scratch(sys.argv[1], "job")
scratch.make()
note_place(scratch.path, "job", DeadPlace(Stamp(5, 2), 3, "a"))
print(scratch.path, flush=True)
for order in sys.stdin:
    if order == "starting\\n":
        note_sessions(scratch.path, None)
    else:
        worker = os.fork()
        if worker == 0:
            os.setsid()
            os.closerange(0, 2)
            if os.fork() == 0:
                os.setpgid(0, 0)
            time.sleep(600)
        note_sessions(scratch.path, (worker,))
        time.sleep(0.1)
    print(worker if order == "started\\n" else "", flush=True)
"""


@contextmanager
def agent(place: Path, orders: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """With the directory that it has made; the session of its worker is killed in the end."""
    command = [sys.executable, "-c", AGENT, str(place)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    path, worker = Path(process.stdout.readline().strip()), 0
    try:
        for order in orders:
            print(order, file=process.stdin, flush=True)
            worker = int(process.stdout.readline().strip() or 0)
        yield process, path
    finally:
        process.kill()
        process.communicate()
        if worker:
            end_session(worker)


def end_session(leader: int) -> None:
    for member in sessions.live_members([leader]):
        sessions.kill_member(member)


def seen(place: Path, run_id: str = "job") -> tuple[DeadPlace, ...]:
    return dead_places([str(place)], run_id)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_L4_a_former_agent_is_dead_when_its_process_and_its_workers_are(tmp_path: Path) -> None:
    with agent(tmp_path, ["starting", "started"]) as (process, path):
        assert seen(tmp_path) == (), "it lives"
        kill(process)
        workers = former_agents._decode_sessions((path / SESSIONS_NOTE).read_bytes())
        assert workers
        assert seen(tmp_path) == (), "its worker lives"
        os.kill(workers[0], signal.SIGKILL)
        eventually(lambda: not is_alive(workers[0]), "the end of the worker")
        assert seen(tmp_path) == (), "a child of its worker lives"
        end_session(workers[0])
        eventually(lambda: seen(tmp_path) == (PLACE,), "the end of its session")
        assert seen(tmp_path, "another job") == ()


def test_L4_a_former_agent_that_has_started_no_worker_is_dead_with_its_process(
    tmp_path: Path,
) -> None:
    with agent(tmp_path) as (process, _):
        kill(process)
        assert seen(tmp_path) == (PLACE,)


def test_L4_nothing_is_said_of_an_agent_that_was_just_starting_workers(tmp_path: Path) -> None:
    """Nothing else tells of them: those that run hold no lock of its directory."""
    with agent(tmp_path, ["starting"]) as (process, path):
        kill(process)
        workers = former_agents._decode_sessions((path / SESSIONS_NOTE).read_bytes())
        assert workers is None
        assert seen(tmp_path) == ()


@pytest.mark.parametrize("where", ["another boot", "another container"])
def test_L4_nothing_is_said_of_another_boot_or_container(tmp_path: Path, where: str) -> None:
    with agent(tmp_path) as (process, path):
        kill(process)
        note = path / PLACE_NOTE
        found = former_agents._decode(note.read_bytes())
        if where == "another boot":
            path.rename(path.with_name(path.name.replace(kernel_id(), "0" * 16)))
        else:
            other = found.where.replace("pid:[", "pid:[1")
            assert other != found.where
            note.write_bytes(msgspec.msgpack.encode(replace(found, where=other)))
        assert seen(tmp_path) == ()


def test_L4_what_can_not_be_read_says_nothing(tmp_path: Path) -> None:
    with agent(tmp_path) as (process, path):
        kill(process)
        (path / SESSIONS_NOTE).write_bytes(b"no number")
        assert seen(tmp_path) == ()
        (path / SESSIONS_NOTE).unlink()
        (path / PLACE_NOTE).write_bytes(b"")
        assert seen(tmp_path) == ()
