"""What is kept of jobs that have ended: which is meant, what must go, how much a node writes."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import msgspec
import pytest
from tests.harness.cluster import wait_until
from tests.harness.command_line import parse

from rallypoint.agent.environ import kept_jobs as state_of
from rallypoint.agent.telemetry import keeping
from rallypoint.cli.watch.kept import Kept, lines_of, status_of
from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import Ending, Outcome
from rallypoint.core.round_record import FirstCause
from rallypoint.core.watch.kept_jobs import (
    BYTES_MAX,
    JOBS_MAX,
    NODE_BYTES,
    WORLD_BYTES,
    KeptDir,
    KeptLine,
    NodeNote,
    cut_history,
    directory_name,
    ended_lines,
    fitted,
    is_kept_file,
    is_kept_name,
    is_meant,
    node_file,
    room_of,
    to_remove,
)
from rallypoint.observe import kept_jobs
from rallypoint.observe.records import AgentEvent

NOTE = NodeNote(
    job="digits",
    node="a",
    machine="m0",
    pid=7,
    incarnation=1_795_801_423_459,
    endpoints=("n0:29400", "10.0.0.1:29400"),
    host="n0",
    is_host=True,
    began=1.0,
    round=0,
    nodes=2,
    first_rank=0,
    workers=8,
)


@pytest.mark.parametrize("name", ["digits", "a/../b", "..", "", "é" * 200, "a b\n", "\udcff"])
def test_names_of_jobs_and_nodes_lead_nowhere_else(name: str) -> None:
    folder, file = directory_name(name, 1_795_801_423_459), node_file(name)
    assert is_kept_name(folder)
    assert is_kept_file(file)
    assert "/" not in folder + file
    assert directory_name(name, 1_795_801_423_460) != folder


def test_no_other_name_is_one_of_ours() -> None:
    assert not any(
        map(
            is_kept_name,
            (
                "",
                "..",
                "digits",
                "digits-20261127",
                "digits-20261127-031258-6fcee5bx",
                ".lock",
                "digits-deadbeef-abcdef-01234567",
            ),
        )
    )
    assert not any(
        map(
            is_kept_file,
            ("", "node-.json", "node-.json.txt", "node-a b.json", "id_rsa", "history.jsonl.bak"),
        )
    )


def test_the_oldest_go_first_and_never_the_own_one() -> None:
    found = [KeptDir(f"job{age}", 1000.0 - age, 10) for age in range(JOBS_MAX + 3)]
    assert to_remove(found, "job52") == ["job49", "job50", "job51"]
    assert to_remove(found[:JOBS_MAX], "job0") == []
    large = [KeptDir(str(age), 1000.0 - age, BYTES_MAX // 2) for age in range(4)]
    assert to_remove(large, "3") == ["1", "2"]


def test_all_nodes_of_a_large_job_together_write_no_more_than_one_home_can_take() -> None:
    assert room_of(1) == NODE_BYTES
    for nodes in (1, 1000, 10_000, 100_000):
        assert nodes * room_of(nodes) <= max(WORLD_BYTES, NODE_BYTES)


@pytest.mark.parametrize("nodes", [1, 10_000])
def test_a_note_fits_into_its_room_and_has_the_newest_lines_of_each_rank(nodes: int) -> None:
    lines = tuple(
        KeptLine(rank, 2, float(number), f'"{number}" \t of {rank}\n' * 3)
        for number in range(2000)
        for rank in range(8)
    )
    cause = FirstCause("a", "exited", 3, message="m" * 50_000, detail="d" * 50_000 + "end")
    note = msgspec.structs.replace(NOTE, output=lines, cause=cause, text="t" * 50_000)
    fit = fitted(note, room_of(nodes))
    assert len(msgspec.json.encode(fit)) <= room_of(nodes)
    assert fit.cause is not None
    assert fit.cause.detail.endswith("end")
    last = {line.rank: line.time for line in fit.output}
    assert last == dict.fromkeys(range(8), 1999.0)


def test_a_person_means_a_job_by_its_name_its_endpoint_or_both() -> None:
    assert is_meant(NOTE, None, None)
    assert is_meant(NOTE, "digits", "N0:29400")
    assert is_meant(NOTE, None, "10.0.0.1:29400")
    assert not is_meant(NOTE, "other", "n0:29400")
    assert not is_meant(NOTE, "digits", "n0:29401")
    here = msgspec.structs.replace(NOTE, endpoints=("localhost:29400",))
    assert is_meant(here, None, "127.0.0.1:29400")


def test_a_history_that_grows_keeps_its_header_and_its_newest_lines() -> None:
    data = b"begin\n" + b"".join(b"%06d\n" % number for number in range(1000))
    cut = cut_history(data, 1000)
    assert cut.startswith(b"begin\n")
    assert cut.endswith(b"000999\n")
    assert 400 < len(cut) <= 510
    assert all(len(line) == 6 for line in cut.split(b"\n")[1:-1])
    assert cut_history(cut, 1000) == cut


def test_the_worst_end_comes_first_and_who_is_silent_is_named() -> None:
    ended = msgspec.structs.replace(NOTE, ended=2.0, exit_code=0, node="b", first_rank=8)
    failed = msgspec.structs.replace(ended, exit_code=1, node="c", first_rank=16, workers=1)
    assert ended_lines([NOTE, ended, failed])[1] == "node c (rank 16) ended with exit code 1"
    assert ": no end is known: the agent was killed" in ended_lines([NOTE])[0]
    assert "still runs here" in ended_lines([NOTE], ["a"])[0]


def test_who_makes_a_directory_removes_old_ones_and_nothing_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "kept"
    monkeypatch.setattr(to_remove, "__defaults__", (2, BYTES_MAX))
    names = [directory_name("job", number) for number in range(1, 5)]
    for age, name in enumerate(names[:3]):
        kept_jobs.make_directory(str(root / name))
        kept_jobs.write_note(str(root / name), NOTE)
        os.utime(root / name / "node-a.json", (1000.0 + age, 1000.0 + age))
    (root / names[1] / "mine.txt").touch()
    (root / "mine").mkdir()
    (root / names[3]).symlink_to(tmp_path)
    kept_jobs.make_directory(str(root / directory_name("other", 1)))
    left = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    assert names[0] not in left
    assert {names[3], "mine"} <= left
    assert [path.name for path in (root / names[1]).iterdir()] == ["mine.txt"]


def test_where_a_disk_has_no_room_for_output_the_end_is_kept_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, write = 4000, kept_jobs._replace

    def write_little(path: str, data: bytes) -> None:
        if len(data) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(kept_jobs, "_replace", write_little)
    cause = FirstCause("a", "exited", 0, message="loss is NaN", detail="d" * 9000)
    output = (KeptLine(0, 2, 1.0, "x" * 1900),) * 10
    end = {"is_host": False, "ended": 5.0, "outcome": "failed", "text": "why", "cause": cause}
    note = msgspec.structs.replace(NOTE, **end)
    kept_jobs.write_note(str(tmp_path), msgspec.structs.replace(note, output=output))
    (found,) = kept_jobs.notes_in(str(tmp_path))
    assert (found.text, found.output) == ("why", ())
    assert found.cause is not None
    assert found.cause.message == "loss is NaN"
    said = status_of(Kept(str(tmp_path), [found]), "head", 80, 24)
    assert said[1].startswith("job digits: failed ")
    assert any(line.startswith("  elsewhere ") for line in said)


def test_a_disk_that_hangs_holds_the_end_up_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(keeping, "LAST_S", 0.05)
    monkeypatch.setattr(kept_jobs, "make_directory", lambda path: answers.wait())
    kept = keeping.Keeping(parse("train.py"), "")
    kept.joins(lambda: 1, lambda path, why: None)
    kept.ended(Ending(Outcome.FAILED, "why"))
    assert (kept.close(1), kept.why) == ("", "the disk does not answer")
    answers.set()


def end_of_a_node_without_a_round(root: Path, incarnation: int, text: str = "why") -> str:
    """Where it is kept; empty: nowhere."""
    config = parse("--nnodes 2 --rdzv-endpoint n0 --rdzv-id digits --node-id b train.py")
    observe = msgspec.structs.replace(config.observe, keep_in=str(root / "kept"))
    kept = keeping.Keeping(msgspec.structs.replace(config, observe=observe), "")
    kept.joins(lambda: incarnation, lambda path, why: None)
    kept.attached("10.0.0.1:29400", is_host=False)
    kept.event(AgentEvent(kinds.WAITING, "", 0.0, "b"))
    kept.ended(Ending(Outcome.TIMED_OUT, text, round=3))
    return kept.close(75)


def test_a_node_keeps_its_end_though_no_round_was_formed(tmp_path: Path) -> None:
    path = end_of_a_node_without_a_round(tmp_path, NOTE.incarnation)
    assert os.path.basename(path) == directory_name("digits", NOTE.incarnation)
    (note,) = kept_jobs.notes_in(path)
    assert (note.node, note.text, note.exit_code, note.round) == ("b", "why", 75, 3)
    again = end_of_a_node_without_a_round(tmp_path, NOTE.incarnation, "another")
    assert again == path
    (note,) = kept_jobs.notes_in(path)
    assert note.text == "another"


async def test_the_exit_code_is_kept_though_the_end_was_written_before(tmp_path: Path) -> None:
    config = parse("--nnodes 2 --rdzv-endpoint n0 --rdzv-id digits --node-id b train.py")
    observe = msgspec.structs.replace(config.observe, keep_in=str(tmp_path / "kept"))
    kept = keeping.Keeping(msgspec.structs.replace(config, observe=observe), "")
    kept.joins(lambda: NOTE.incarnation, lambda path, why: None)
    kept.event(AgentEvent(kinds.WAITING, "", 0.0, "b"))
    kept.ended(Ending(Outcome.CANCELLED, "why", round=0))
    kept._due()  # The timer of a line that was written before.
    notes = (tmp_path / "kept").rglob
    await asyncio.to_thread(wait_until, lambda: list(notes("node-*.json")), "the note")
    path = kept.close(130)
    (note,) = kept_jobs.notes_in(path)
    assert (note.outcome, note.exit_code) == ("cancelled", 130)


def test_a_draft_of_a_history_is_one_of_ours() -> None:
    assert is_kept_file("history.jsonl.new")


def test_a_spare_node_has_no_ranks_beside_those_of_others() -> None:
    ended = msgspec.structs.replace(NOTE, ended=10.0, exit_code=1)
    spare = msgspec.structs.replace(ended, node="0", first_rank=-1)
    for notes in ([ended, spare], [spare, ended]):
        (line,) = ended_lines(notes)
        assert line.endswith(" (ranks 0-7) ended with exit code 1")
    assert ended_lines([spare]) == ["node 0 ended with exit code 1"]


def test_a_spare_node_that_ends_last_does_not_say_how_large_the_job_was(tmp_path: Path) -> None:
    path = str(tmp_path / "kept" / directory_name("digits", NOTE.incarnation))
    kept_jobs.make_directory(path)
    ended = msgspec.structs.replace(NOTE, is_host=False, outcome="failed", ended=10.0, round=3)
    spare = msgspec.structs.replace(ended, node="spare", nodes=1, first_rank=-1, ended=11.0)
    for note in (ended, spare):
        kept_jobs.write_note(path, note)
    (line,) = lines_of([path])
    assert (line.state, line.nodes, line.workers) == ("failed", 2, 16)


def test_a_node_that_no_coordinator_has_attached_keeps_nothing(tmp_path: Path) -> None:
    assert end_of_a_node_without_a_round(tmp_path, 0) == ""
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_comes_after_the_end_leaves_what_its_node_has_kept(tmp_path: Path) -> None:
    path = end_of_a_node_without_a_round(tmp_path, NOTE.incarnation)
    kept_jobs.write_note(path, msgspec.structs.replace(NOTE, node="b", text="loss is NaN"))
    assert end_of_a_node_without_a_round(tmp_path, NOTE.incarnation) == ""
    (note,) = kept_jobs.notes_in(path)
    assert note.text == "loss is NaN"


def test_history_none_turns_it_off_and_the_state_directory_is_where_others_have_it() -> None:
    assert parse("train.py").observe.keep_in == "/state/kept"
    assert parse("--history x.jsonl train.py").observe.keep_in
    off = parse("--history none train.py").observe
    assert (off.keep_in, off.history) == ("", None)
    assert state_of({"RALLYPOINT_STATE_DIR": "/s"}) == "/s/kept"
    assert state_of({"XDG_STATE_HOME": "/x"}) == "/x/rallypoint/kept"
    assert state_of({}).endswith("/.local/state/rallypoint/kept")
