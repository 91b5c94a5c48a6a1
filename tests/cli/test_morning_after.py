"""What is left to ask of a job that has ended: by default its host keeps the history, and each node
its own end."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, free_port, wait_until
from tests.harness.commands import rallypoint
from tests.harness.dead_disk import dead_disk
from tests.harness.one_agent import agent, ended
from tests.harness.small_disk import small_disk

from rallypoint.cli.commands import ROWS
from rallypoint.cli.watch import kept as kept_commands
from rallypoint.cli.watch import logs, status, wishes
from rallypoint.core.watch.history_file import read
from rallypoint.core.watch.kept_jobs import HISTORY
from rallypoint.errors import RendezvousConnectionError

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
LIMIT_S = 60.0


def command(cluster: Cluster, state: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """As a person who sees only this state directory."""
    return rallypoint(cluster, *words, RALLYPOINT_STATE_DIR=str(state))


def kept_in(state: Path) -> list[Path]:
    """The directories of jobs there."""
    return [path for path in (state / "kept").glob("*") if path.is_dir()]


def test_V7_a_job_that_has_failed_is_asked_on_each_of_its_nodes(
    cluster: Cluster, tmp_path: Path
) -> None:
    places = {name: tmp_path / f"state-{name}" for name in "ab"}
    envs = {name: {"RALLYPOINT_STATE_DIR": str(place)} for name, place in places.items()}
    a = cluster.agent("a", nnodes="2", hosts=True, env=envs["a"])
    b = cluster.agent("b", nnodes="2", hosts=False, env=envs["b"])
    cluster.wait_workers(2)
    cluster.order("print('epoch 3', flush=True); raise RuntimeError('loss is NaN')", node="b")
    assert (a.wait_exit(), b.wait_exit()) == (1, 1)
    where = f"127.0.0.1:{cluster.port}"
    # On the node that hosted it.
    told = command(cluster, places["a"], "status", where, "--job", "job")
    assert told.returncode == 0, told.stderr
    head, first, *more = told.stdout.splitlines()
    (kept,) = kept_in(places["a"])
    assert head == f"the job has ended; this is kept of it on this machine: {kept}"
    assert first.startswith("job job: failed ")
    assert "rank 1 (node b, local rank 1) exited with code 1" not in first  # It is local rank 0.
    assert "rank 1 (node b, local rank 0) exited with code 1" in first
    assert any("RuntimeError: loss is NaN" in line for line in more)
    assert not any("running:" in line for line in more)
    events = command(cluster, places["a"], "events", where)
    assert "round 0 ended: rank 1 (node b" in events.stdout
    # On the other one.
    told = command(cluster, places["b"], "status", where)
    assert told.stdout.splitlines()[1].startswith("job job: failed ")
    assert "RuntimeError: loss is NaN" in told.stdout
    assert "the whole history is kept where the job was hosted (127.0.0.1)" in told.stdout
    assert "node b (rank 1) ended with exit code 1" in told.stdout
    logs = command(cluster, places["b"], "logs", "1", "--rdzv-endpoint", where)
    assert "[1] epoch 3\n" in logs.stdout
    assert "[1] RuntimeError: loss is NaN\n" in logs.stdout
    events = command(cluster, places["b"], "events", where)
    assert (events.returncode, events.stdout) == (75, "")
    assert "(127.0.0.1)" in events.stderr
    # Anywhere, with a copy.
    told = command(cluster, tmp_path / "none", "status", kept_in(places["b"])[0])
    assert "RuntimeError: loss is NaN" in told.stdout
    # Nowhere.
    told = command(cluster, tmp_path / "none", "status", where)
    assert (told.returncode, told.stdout) == (75, "")
    assert "connection refused: the job has ended, or its host is lost" in told.stderr
    assert told.stderr.endswith("; nothing of it is kept on this machine\n")


def test_V7_all_agents_were_killed_and_a_home_that_is_shared_knows_them(cluster: Cluster) -> None:
    state = cluster.home / ".local" / "state" / "rallypoint"
    agents = cluster.running("a", "b", nnodes="2", round=None)
    wait_until(
        lambda: [len(list(one.glob("node-*.json"))) for one in kept_in(state)] == [2],
        "both nodes to say that they have begun",
    )
    (kept,) = kept_in(state)
    wait_until(lambda: (kept / HISTORY).exists(), "the history")
    unnamed = command(cluster, state, "events", f"127.0.0.1:{cluster.port}")
    assert "round 0: 2 nodes, 2 workers\n" in unnamed.stdout, unnamed.stderr
    agents[0].kill()
    told = command(cluster, state, "status", f"127.0.0.1:{cluster.port}")
    assert told.returncode == 75
    assert (
        "; agents on this machine look for the coordinator (b): rallypoint status ~/" in told.stderr
    )
    agents[1].kill()
    told = command(cluster, state, "status", f"127.0.0.1:{cluster.port}")
    assert told.returncode == 0, told.stderr
    head, first, *_ = told.stdout.splitlines()
    assert head == (
        "the host of the job is lost, or all of its agents were killed; this is kept of it on this "
        f"machine: ~/{kept.relative_to(cluster.home)}"
    )
    assert first.startswith("job job: no end is known; at ")
    assert "nodes a, b (ranks 0-1): no end is known: the agent was killed" in told.stdout
    assert "running:" not in told.stdout


def test_V7_agents_that_were_killed_while_a_round_ended_have_kept_its_cause(
    cluster: Cluster,
) -> None:
    state = cluster.home / ".local" / "state" / "rallypoint"
    cluster.options |= {"restart_grace": 600}
    cluster.order(DEAF, node="b", round=0)
    agents = cluster.running("a", "b", nnodes="2", max_restarts=3, round=None)
    cluster.order("raise RuntimeError('loss is NaN')", node="a", round=0)

    def told() -> str:
        kept = kept_in(state)
        return command(cluster, state, "status", kept[0]).stdout if kept else ""

    wait_until(lambda: "RuntimeError: loss is NaN" in told(), "the cause to be kept")
    for one in agents:
        one.kill()
    said = command(cluster, state, "status", f"127.0.0.1:{cluster.port}").stdout
    assert "round 0     ended by failure: rank 0 (node a, local rank 0) exited with code 1" in said
    assert "| RuntimeError: loss is NaN" in said


def test_what_is_kept_is_for_its_user_alone_and_history_none_keeps_nothing(tmp_path: Path) -> None:
    state = tmp_path / ".local" / "state" / "rallypoint"
    run = ended(agent(tmp_path, "--history", "none", program="raise SystemExit(3)"), 1)
    assert not state.exists()
    assert "its end is kept" not in run.err
    run = ended(agent(tmp_path, program="raise SystemExit(3)"), 1)
    (kept,) = kept_in(state)
    where = f"~/{kept.relative_to(tmp_path)}"
    assert run.err.endswith(f"    its end is kept: rallypoint status {where}\n")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (kept, *kept.iterdir())}
    assert [mode for path, mode in modes.items() if path.is_dir()] == [0o700]
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    recorded = read((kept / HISTORY).read_bytes().split(b"\n"))
    assert recorded.status is not None
    assert recorded.status.view.verdict is not None
    (note,) = map(json.loads, (path.read_text() for path in kept.glob("node-*.json")))
    assert (note["exit_code"], note["outcome"], note["cause"]["exit_code"]) == (1, "failed", 3)


def test_a_state_directory_that_cant_be_used_disturbs_no_job_and_no_link_is_followed(
    tmp_path: Path,
) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    state.mkdir()
    other.mkdir()
    (state / "kept").symlink_to(other)
    env = {"RALLYPOINT_STATE_DIR": str(state), "LOGLEVEL": "DEBUG"}
    program = "import time\ntime.sleep(1.5)\nraise SystemExit(3)"
    run = ended(agent(tmp_path, program=program, env=env), 1)
    why = f"{state}/kept is no directory of this user"
    assert f"nothing of this job is kept in {state}/kept: {why}" in run.err
    assert "its end is kept" not in run.err
    assert not os.listdir(other)


def test_a_job_that_was_cancelled_says_where_its_end_is(tmp_path: Path) -> None:
    with agent(tmp_path, program="tell('up')\nimport time\ntime.sleep(60)") as run:
        run.wait_told("up")
        run.send(signal.SIGINT)
        assert run.wait() == 130
    (kept,) = kept_in(tmp_path / ".local" / "state" / "rallypoint")
    (note,) = map(json.loads, (path.read_text() for path in kept.glob("node-*.json")))
    assert (note["exit_code"], note["outcome"]) == (130, "cancelled")


def test_V7_the_end_is_kept_in_a_home_that_is_full_by_then(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state") as state:
        env = {"RALLYPOINT_STATE_DIR": state}
        program = f"""
import glob, time
while not glob.glob({state!r} + '/kept/*/node-*.json'): time.sleep(0.05)
with open({state!r} + '/checkpoint.pt', 'wb', buffering=0) as file:
    for _ in range(64):
        file.write(bytes(4096))
"""
        run = ended(
            agent(tmp_path, "--history", str(tmp_path / "h.jsonl"), program=program, env=env), 1
        )
        assert "its end is kept: rallypoint status " in run.err
        (kept,) = kept_in(Path(state))
        (note,) = map(json.loads, (path.read_text() for path in kept.glob("node-*.json")))
        assert (note["exit_code"], note["outcome"]) == (1, "failed")
        assert "No space left on device" in note["cause"]["message"]


def test_a_file_server_that_is_gone_delays_neither_the_job_nor_its_end(tmp_path: Path) -> None:
    with dead_disk(tmp_path / "state") as state:
        env = {"RALLYPOINT_STATE_DIR": str(state)}
        program = "import time\ntime.sleep(1.5)\nraise SystemExit(3)"
        run = ended(agent(tmp_path, "--max-restarts", "1", program=program, env=env), 1)
        assert "the only restart was used" in run.err or "restarts: 1 of 1 used" in run.err
        assert "its end is kept" not in run.err
        assert "Traceback" not in run.err


@pytest.mark.parametrize("ask", [status.run, logs.run, partial(wishes.run, ROWS["cancel"])])
def test_a_command_does_not_wait_for_ever_for_a_file_server_that_is_gone(
    ask: Callable[[list[str]], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_commands, "READ_S", 0.1)
    monkeypatch.setenv("RALLYPOINT_TOKEN", "7" * 64)
    with dead_disk(tmp_path / "state") as state:
        monkeypatch.setenv("RALLYPOINT_STATE_DIR", str(state))
        said = "the job has ended, or its host is lost, .*/state/kept does not answer"
        with pytest.raises(RendezvousConnectionError, match=said):
            ask([f"127.0.0.1:{free_port()}", "--job", "job"])
