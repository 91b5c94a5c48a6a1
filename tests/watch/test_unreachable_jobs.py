"""A job that runs on this machine and can't be reached from here: all commands say so alike."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.harness.cluster import free_port
from tests.harness.kept_notes import note
from tests.harness.limits import patience

from rallypoint.cli.commands import ROWS
from rallypoint.cli.parser import parse
from rallypoint.cli.watch import drain, events, logs, nodes, stacks, status, wishes
from rallypoint.cli.watch.asking import find, reach
from rallypoint.cli.watch.asking.reach import UnreachedHereError
from rallypoint.core.watch.kept_jobs import directory_name
from rallypoint.errors import RendezvousConnectionError, UsageError
from rallypoint.observe import kept_jobs
from rallypoint.process.scratch import LocalJob, Scratch, leave_note

AGAIN = "looking for a coordinator, for 0 s at most\n"
ONE_JOB = [
    (status.run, []),
    (events.run, []),
    (logs.run, []),
    (stacks.run, []),
    (nodes.run, []),
    (drain.run, ["node-3"]),
    (partial(wishes.run, ROWS["checkpoint"]), []),
    (partial(wishes.run, ROWS["cancel"]), ["--yes"]),
]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has the notes of agents in a temporary directory of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(find, "PLACES", ())
    monkeypatch.setattr(reach, "TAKEOVER_S", 0.0)
    monkeypatch.setattr(reach, "RETRY_S", 0.0)
    monkeypatch.setenv("RALLYPOINT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def starts(machine: Path, job: str) -> str:
    """An agent of this job, which is this process, runs; nobody listens at the address."""
    address = f"127.0.0.1:{free_port()}"
    note_of(agent_folder(machine, job), job, address)
    return address


def agent_folder(machine: Path, job: str) -> str:
    folder = Scratch(str(machine), job)
    folder.make()
    return folder.path


def note_of(folder: str, job: str, address: str) -> None:
    note = LocalJob(job, address, True, os.getpid(), b"")
    assert leave_note(folder, msgspec.json.encode(note))


def test_a_job_that_cant_be_reached_has_a_row_that_says_why(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {job: starts(machine, job) for job in ("train-7", "train-8")}
    assert status.run(["--json"]) == 0
    rows = {row["job"]: row for row in msgspec.json.decode(capsys.readouterr().out)}
    assert rows.keys() == places.keys()
    for job, address in places.items():
        why = f"can't reach the coordinator at {address}: connection refused"
        assert (rows[job]["state"], rows[job]["reason"]) == ("no answer", why)
    with pytest.raises(UsageError, match=r"several jobs run on this machine \(train-7, train-8\)"):
        events.run([])


def test_V6_a_job_whose_agent_looks_for_the_next_leader_meanwhile_keeps_its_row(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts(machine, "train-8")
    folder, elsewhere = agent_folder(machine, "train-7"), f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        note_of(folder, "train-7", f"127.0.0.1:{server.getsockname()[1]}")

        def die() -> None:
            connection, _ = server.accept()
            note_of(folder, "train-7", elsewhere)
            connection.close()

        leader = threading.Thread(target=die, daemon=True)
        leader.start()
        assert status.run(["--json"]) == 0
        leader.join(patience(10.0))
    rows = {row["job"]: row["state"] for row in msgspec.json.decode(capsys.readouterr().out)}
    assert rows == {"train-7": "no answer", "train-8": "no answer"}


@pytest.mark.parametrize(("ask", "words"), ONE_JOB)
def test_L5_all_commands_wait_for_another_leader_and_name_the_job_that_cant_be_reached(
    ask: Callable[[list[str]], int],
    words: list[str],
    machine: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = starts(machine, "train-7")
    why = f"can't reach the coordinator at {address}: connection refused"
    said = f"^job train-7 runs on this machine, and does not answer: {why}: it has just ended, or"
    with pytest.raises(UnreachedHereError, match=said):
        ask(words)
    err = capsys.readouterr().err
    assert err.endswith(f"rallypoint: job train-7: {why}: {AGAIN}")
    assert err.count(AGAIN) == 1


@pytest.mark.parametrize(
    ("run", "option"), [(status.run, "--watch"), (events.run, "-f"), (logs.run, "-f")]
)
def test_V6_who_begins_to_follow_just_as_the_leader_dies_waits_for_the_next_one(
    run: Callable[[list[str]], int],
    option: str,
    machine: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = starts(machine, "train-7")
    with pytest.raises(UnreachedHereError, match="job train-7 runs on this machine"):
        run([option])
    assert AGAIN in capsys.readouterr().err
    with pytest.raises(RendezvousConnectionError, match="the job has ended, or its host is lost"):
        run([option, address, "--job", "train-7", "--insecure"])
    assert capsys.readouterr().err == ""  # Nobody else can be found there.


async def nothing(asking: reach.Asking) -> None:
    """Ask it."""


def test_V6_who_follows_a_job_finds_the_next_leader_where_the_agent_here_has_found_it(
    machine: Path,
) -> None:
    folder = agent_folder(machine, "train-7")
    note_of(folder, "train-7", f"127.0.0.1:{free_port()}")
    (job,) = find.read_job(logs.LOGS, parse(logs.LOGS, [], {}), None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        leader = threading.Thread(target=lambda: server.accept()[0].close(), daemon=True)
        leader.start()
        note_of(folder, "train-7", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(UnreachedHereError, match="job train-7 runs on this machine"):
            asyncio.run(reach.converse(job, None, nothing))
        leader.join(patience(10.0))
        assert not leader.is_alive()  # It was dialled.


def test_the_end_of_an_earlier_job_of_that_name_is_not_taken_for_the_one_that_runs(
    machine: Path,
) -> None:
    starts(machine, "train-7")
    path = machine / "state" / "kept" / directory_name("train-7", 1)
    kept_jobs.make_directory(str(path))
    kept_jobs.write_note(str(path), note(0, incarnation=1))
    said = f"; the newest that is kept: rallypoint status {path}"
    with pytest.raises(RendezvousConnectionError, match=said):
        status.run([])


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["node-a:29400"], "drain NODE node-a:29400"),
        (["node-a:29400", "node-b"], "drain node-b node-a:29400"),
        (["/shared/jobs", "node-b"], "drain node-b /shared/jobs"),
    ],
)
def test_drain_of_an_endpoint_says_where_the_node_stands(words: list[str], instead: str) -> None:
    with pytest.raises(UsageError, match=f": an endpoint, and no node: write {instead}"):
        drain.run(words)


@pytest.mark.parametrize("node", ["rack-1/node-3", "10.0.0.7:8"])
def test_a_node_may_have_the_name_of_an_endpoint_where_the_job_is_named(node: str) -> None:
    where = f"127.0.0.1:{free_port()}"
    with pytest.raises(RendezvousConnectionError, match=f"can't reach the coordinator at {where}"):
        drain.run([node, "--rdzv-endpoint", where, "--insecure"])


def test_a_node_of_the_job_here_may_have_a_slash_in_its_name(machine: Path) -> None:
    starts(machine, "train-7")
    with pytest.raises(UnreachedHereError, match="job train-7 runs on this machine"):
        drain.run(["rack-1/node-3"])


def test_an_endpoint_with_a_port_is_not_taken_for_the_name_of_a_job(machine: Path) -> None:
    with pytest.raises(RendezvousConnectionError) as caught:
        status.run(["no-such-host.invalid:29400", "--insecure"])
    assert "is the name of the job" not in str(caught.value)


def test_a_word_in_the_place_of_the_endpoint_may_be_a_name(machine: Path) -> None:
    said = "if no-such-host.invalid is the name of the job, give --job no-such-host.invalid; if it "
    with pytest.raises(RendezvousConnectionError, match=said):
        status.run(["no-such-host.invalid", "--insecure"])
