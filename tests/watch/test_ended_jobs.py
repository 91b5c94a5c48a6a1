"""What is kept of a job of 64 nodes: the culprit, the next step, and no node that runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.harness.broken_jobs import CULPRIT, FULL, NAN, NODES, running
from tests.harness.cluster import free_port
from tests.harness.finder import culprit_of
from tests.harness.kept_notes import BEGAN_MS, ENDPOINT, note
from tests.harness.narrowed import known
from tests.harness.watched_cluster import WatchedCluster

from rallypoint.cli.commands import ROWS
from rallypoint.cli.parser import parse
from rallypoint.cli.watch import drain, events, logs, nodes, stacks, status, wishes
from rallypoint.cli.watch.asking.reach import JobEndedError
from rallypoint.cli.watch.kept import NO_END, Kept, answer_or_kept, read_kept, status_of
from rallypoint.cli.watch.status_text import LINES_MAX, status_lines
from rallypoint.core.model import SharedSettings
from rallypoint.core.watch.history_file import Begin, Recorded, compact
from rallypoint.core.watch.job_view import HowItEnded
from rallypoint.core.watch.kept_jobs import KeptLine, directory_name, ended_lines
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import RallypointError, UsageError
from rallypoint.machine_name import process_name
from rallypoint.observe import kept_jobs

DIR = "/kept/train-7-20300128-031258-6fcee5b6"


def recorded(job: WatchedCluster) -> Recorded:
    """As its history file has it."""
    found = Recorded([Begin("train-7", BEGAN_MS, 1e9)], rounds=list(job.history.rounds))
    return replace(found, status=compact(job.view, 1e9))


def failed(failure: WorkerExit) -> WatchedCluster:
    job = WatchedCluster(SharedSettings("train-7", NODES, NODES, max_restarts=0))
    job.nodes(NODES)
    job.run_workers()
    job.step(20, 5)
    job.fail_with(CULPRIT, failure)
    return job


def seen(kept: Kept, width: int = 100) -> list[str]:
    lines = status_of(kept, "the job has ended", width, LINES_MAX)
    assert len(lines) <= LINES_MAX
    return lines


ALL = [note(number) for number in range(NODES)]
OUTPUT = (KeptLine(171, 2, 1.0, "RuntimeError: loss is NaN\n"),)


@pytest.mark.parametrize(
    ("failure", "output", "step"),
    [
        (NAN, OUTPUT, f"rallypoint logs 171 {DIR}"),
        (NAN, (), f"rallypoint events {DIR}"),
        (FULL, OUTPUT, "free space on node-21: df -h, df -i"),
        (
            WorkerExit(None, 9, local_rank=3, pid=1),
            (),
            "look for 'Killed process' in the kernel log",
        ),
    ],
)
def test_V7_an_hour_after_the_end_the_culprit_and_the_next_step_are_in_the_first_lines(
    failure: WorkerExit, output: tuple[KeptLine, ...], step: str
) -> None:
    notes = [*ALL[:21], note(21, output=output), *ALL[22:]]
    cause = failed(failure).view.past[-1].cause
    told = [note(21, output=output, cause=cause)]
    # The disk of the history may have been full at the end, or it is on another machine.
    for history, own in (
        (recorded(failed(failure)), notes),
        (recorded(running()), told),
        (None, told),
    ):
        lines = seen(Kept(DIR, own, history))
        assert culprit_of(lines) == CULPRIT
        assert step in " ".join(" ".join(lines).split())
    assert seen(Kept(DIR, notes, recorded(failed(NAN))))[-1] == (
        "  ends        nodes node-[0-63] (ranks 0-511) ended with exit code 1"
    )


def test_a_job_that_has_ended_has_no_node_that_runs_or_is_silent() -> None:
    job = failed(NAN)
    said = "\n".join(job.status())
    assert "nodes       64 of 64 in the last round, 512 workers" in said
    for word in ("silent", "lease", "joined:", "running:"):
        assert word not in said


def test_a_job_that_was_cancelled_is_told_once() -> None:
    view = failed(NAN).view
    past = replace(view.past[-1], end="cancelled", end_text="a person did", cause=None)
    verdict = replace(known(view.verdict), outcome="cancelled", text="a person did")
    lines = status_lines(replace(view, past=(past,), verdict=verdict), 100)
    assert not any("ended by" in line for line in lines)


@pytest.mark.parametrize(
    ("outcome", "text", "step"),
    [
        ("timed out", "only 63 joined; missing: node-21", "start the missing agents"),
        (
            "infrastructure",
            "node-21 did not reach the round store of node node-0 (n0:29500)",
            "see why the connection to the node of rank 0 fails",
        ),
    ],
)
def test_V7_a_job_that_never_began_has_a_next_step_after_its_end(
    outcome: str, text: str, step: str
) -> None:
    job = WatchedCluster(SharedSettings("train-7", NODES, NODES))
    job.nodes(NODES, without=(21,))
    view = replace(job.view, state=outcome, reason=text, verdict=HowItEnded(outcome, text))
    history = Recorded([Begin("train-7", BEGAN_MS, 1e9)], status=compact(view, 1e9))
    own = note(1, outcome=outcome, text=text)
    for kept in (Kept(DIR, [own], history), Kept(DIR, [own])):
        lines = seen(kept)
        assert "node-21" in "".join(lines[1:3])
        assert any(line.startswith(f"  next        {step}") for line in lines[2:4]), lines


def test_where_all_agents_were_killed_their_names_and_the_next_step_are_there() -> None:
    lost = [replace(one, ended=0.0, exit_code=None, outcome="") for one in ALL]
    history = recorded(running())
    lines = seen(Kept(DIR, lost, history))
    assert lines[1].startswith("job train-7: no end is known; at ")
    assert "it was running, in round 0" in lines[1]
    ends = " ".join(" ".join(lines).split())
    assert "nodes node-[0-63] (ranks 0-511): no end is known: the agent was killed" in ends
    assert "look on m[0-63] for what killed them: dmesg -T" in ends
    view = known(Kept(DIR, lost, history).view)
    assert (view.state, view.nodes, view.world_nodes) == (NO_END, (), 0)


def test_where_the_host_is_lost_the_other_nodes_tell_of_the_end_and_the_host_comes_first() -> None:
    lost = {"outcome": "infrastructure", "text": "the coordinator was lost", "exit_code": 75}
    gone = {**lost, "left": True}
    notes = [note(0, ended=0.0, outcome="", exit_code=None)]
    notes += [note(number, **gone) for number in range(1, NODES)]
    lines = seen(Kept(DIR, notes, recorded(running())))
    assert lines[1].startswith("job train-7: failed (infrastructure) ")
    assert any(line.startswith("  last status at ") for line in lines)
    ends = lines[next(i for i, line in enumerate(lines) if line.startswith("  ends ")) :]
    assert "node node-0 (ranks 0-7): no end is known" in ends[0]
    assert any("nodes node-[1-63] (ranks 8-511) ended with exit code 75" in line for line in ends)
    view = known(Kept(DIR, notes, recorded(running())).view)
    assert (view.state, view.world_workers) == ("infrastructure", 0)


def test_a_node_that_left_does_not_tell_how_the_job_ended() -> None:
    left = note(3, outcome="preempted", text="this node left the job", exit_code=143)
    others = [replace(one, ended=0.0, outcome="", exit_code=None) for one in (ALL[0], ALL[1])]
    assert seen(Kept(DIR, [left, *others], recorded(running())))[1].startswith(
        "job train-7: no end is known; at "
    )
    assert not Kept(DIR, [left, *others]).has_ended


def test_a_node_that_lost_its_coordinator_does_not_say_that_the_job_has_ended() -> None:
    left = [note(number, nodes=2, left=True, outcome="infrastructure") for number in range(2)]
    assert not Kept(DIR, left[:1]).has_ended
    assert Kept(DIR, left).has_ended, "nobody is left"
    assert Kept(DIR, [left[0], note(1, nodes=2)]).has_ended


def test_ends_that_are_alike_are_one_line() -> None:
    assert ended_lines([ALL[0], ALL[2], note(5, exit_code=0), note(6, exit_code=0)]) == [
        "nodes node-[0,2] (ranks 0-7,16-23) ended with exit code 1",
        "nodes node-[5-6] (ranks 40-55) ended with exit code 0",
    ]
    assert ended_lines(ALL[:2], ["node-0", "node-1"])[0].startswith("nodes node-[0-1] (ranks 0-15)")


def test_V7_a_job_that_waited_in_vain_names_the_node_that_is_missing() -> None:
    job = WatchedCluster(SharedSettings("train-7", NODES, NODES, join_timeout_s=60.0))
    job.nodes(NODES, without=(21,))
    job.wait(61)
    assert job.view.state == "timed out"
    assert job.view.reason.endswith("; by the names of the others, missing: node-21")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory in which two jobs are kept."""
    monkeypatch.setenv("RALLYPOINT_STATE_DIR", str(tmp_path / "state"))
    log_dir = str(tmp_path / "logs")
    for age, own in enumerate(
        [note(0, job="old", log_dir=log_dir, output=OUTPUT), note(0, endpoints=("127.0.0.1:9",))]
    ):
        path = tmp_path / "state" / "kept" / directory_name(own.job, BEGAN_MS + age)
        kept_jobs.make_directory(str(path))
        kept_jobs.write_note(str(path), own)
    (tmp_path / "logs" / "old_x1").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("place", ["state", "state/kept"])
@pytest.mark.parametrize("width", [72, 200])
def test_status_lists_the_jobs_that_are_kept_in_a_directory(
    place: str,
    width: int,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "screen_size", lambda: (width, 40))
    assert status.run([str(home / place)]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].split()[:3] == ["JOB", "STATE", "FOR"]
    kept = {path.name for path in (home / "state" / "kept").glob("*-*")}
    assert {line.split()[0] for line in lines[1:]} == kept
    assert all("  failed  " in line for line in lines[1:])
    assert max(map(len, lines)) <= width
    assert told.err.endswith(f"one of them: rallypoint status {home}/state/kept/JOB\n")
    assert status.run([str(home / place), "--json"]) == 0
    assert {one["state"] for one in json.loads(capsys.readouterr().out)} == {"failed"}
    with pytest.raises(UsageError, match=r"2 jobs are kept there: rallypoint status .* lists them"):
        logs.run([str(home / place)])


def test_an_agent_that_was_killed_does_not_live_though_nobody_has_waited_for_it() -> None:
    child = subprocess.Popen(["sleep", "60"])
    assert process_name(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process_name(child.pid)
    child.wait()


def test_after_a_reboot_the_process_that_has_the_number_of_an_agent_is_not_taken_for_it(
    home: Path,
) -> None:
    (path,) = (home / "state" / "kept").glob("train-7-*")
    for process, living in ((process_name(os.getpid()), ["node-0"]), ("another boot 7", [])):
        kept_jobs.write_note(str(path), note(0, ended=0.0, pid=os.getpid(), process=process))
        assert read_kept(str(path)).living == living


def test_a_damaged_history_leaves_what_the_nodes_have_kept(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (home / "state" / "kept").glob("train-7-*")
    (path / "history.jsonl").write_bytes(b"\0" * 4096 + b"\n{}\n")
    assert status.run([str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "job train-7: failed " in told
    assert f" history {path}/history.jsonl: is damaged: line 1 " in told
    with pytest.raises(RallypointError, match=r"history\.jsonl: is damaged: line 1 "):
        events.run([str(path)])


@pytest.mark.parametrize("place", ["logs", "logs/old_x1"])
def test_a_log_directory_finds_the_end_of_its_job(
    place: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.run([str(home / place)]) == 0
    assert "job old: failed " in capsys.readouterr().out
    assert logs.run(["171", str(home / place)]) == 0
    assert "[171] RuntimeError: loss is NaN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (stacks.run, ["3"]),
        (drain.run, ["node-3"]),
        (nodes.run, ["exclude", "node-3"]),
        (nodes.run, []),
        (partial(wishes.run, ROWS["cancel"]), []),
        (partial(wishes.run, ROWS["checkpoint"]), []),
    ],
)
def test_a_command_that_needs_a_running_job_says_where_the_end_of_an_ended_one_is(
    ask: Callable[[list[str]], int],
    words: list[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RALLYPOINT_TOKEN", "7" * 64)
    port = free_port()
    (path,) = (home / "state" / "kept").glob("train-7-*")
    kept_jobs.write_note(str(path), note(0, endpoints=(f"127.0.0.1:{port}",)))
    with pytest.raises(RallypointError, match=f"its end is kept: rallypoint status {path}"):
        ask([*words, f"127.0.0.1:{port}", "--job", "train-7"])


@pytest.mark.parametrize(("leader", "is_elsewhere"), [("node-9", True), ("node-0", False)])
def test_V7_after_takeovers_status_names_the_node_that_led_last_and_keeps_the_end(
    leader: str, is_elsewhere: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RALLYPOINT_TOKEN", "7" * 64)
    (path,) = (home / "state" / "kept").glob("train-7-*")
    kept_jobs.write_note(str(path), note(0))

    heads: list[str] = []

    class Asked(status.Status):
        def show_kept(self, kept: Kept, head: str) -> int:
            heads.append(head)
            return 0

    def ask() -> int:
        raise JobEndedError("the job has ended: it failed", "failed", "it failed", leader)

    scanned = parse(status.STATUS, [ENDPOINT, "--job", "train-7"], {})
    assert answer_or_kept(Asked(scanned, Asked.read_words(scanned)), ask) == 0
    (head,) = heads
    told = f"the rest is on the machine of node {leader}, which led it last"
    assert (told in head) == is_elsewhere
    assert head.startswith("the job has ended: it failed; the rest") == is_elsewhere
    assert str(path) in head


def test_V7_a_history_that_ends_at_a_takeover_says_where_it_goes_on() -> None:
    known = note(1, host="10.0.0.9:29400", ended=0.0)
    shown = "\n".join(seen(Kept(DIR, [known], recorded(running()))))
    assert "kept where the job was hosted (10.0.0.9:29400)" in shown
    host = "\n".join(seen(Kept(DIR, [replace(known, is_host=True)], recorded(running()))))
    assert "elsewhere" not in host


def test_logs_of_an_ended_job_say_that_a_host_was_taken_for_a_node(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (home / "state" / "kept").glob("train-7-*")
    assert logs.run(["vm-7", str(path)]) == 0
    assert (
        "; vm-7 was read as a node: for the host of a job, write vm-7:PORT\n"
        in capsys.readouterr().err
    )
