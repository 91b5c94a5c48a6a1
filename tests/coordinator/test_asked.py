"""The history of a job says from which host, and with which version, somebody has read what its
workers do or wanted something of it (F8)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.harness.cluster import AgentProcess, Cluster
from tests.harness.commands import ask

from rallypoint import __version__
from rallypoint.core.watch.askers import WINDOW_S


def told(command: str) -> str:
    return f"somebody at 127.0.0.1 used rallypoint {command} (version {__version__})"


def in_log(host: AgentProcess) -> list[str]:
    """The events on the console of the process that hosts the job."""
    found = [event.message for event in host.events if event.name == "asked"]
    return [text.removeprefix("job job: ") for text in found]


@pytest.mark.parametrize("serves", [False, True], ids=["embedded", "serve"])
def test_F8_the_history_says_where_somebody_has_read_or_wanted_something(
    cluster: Cluster, tmp_path: Path, serves: bool
) -> None:
    kept = tmp_path / "history.jsonl"
    if serves:
        (folder := tmp_path / "kept").mkdir()
        host = cluster.serve("--history", f"{folder}/")
        a, b = cluster.agents("a", "b", hosts=None)
    else:
        a, b = cluster.agents("a", "b", history=str(kept))
        host = a
    cluster.wait_workers(2, round=0)
    began = time.monotonic()
    for _ in range(10):
        assert ask(cluster, "logs").returncode == 0
    lasted_s = time.monotonic() - began
    assert ask(cluster, "status").returncode == 0
    assert ask(cluster, "stacks").returncode == 0
    assert ask(cluster, "checkpoint").returncode == 1, "no worker asks for it"
    assert ask(cluster, "restart").returncode == 0
    cluster.wait_workers(2, round=1)
    assert ask(cluster, "drain", "b").returncode == 0
    b.wait_exit()
    events = ask(cluster, "events", "--json")
    asked = [one for one in map(json.loads, events.stdout.splitlines()) if one["event"] == "asked"]
    reads = [one["text"] for one in asked if told("logs") in one["text"]]
    assert reads[0] == told("logs")
    assert len(reads) <= 1 + lasted_s // WINDOW_S
    wanted = ["stacks", "checkpoint", "restart", "drain b"]
    assert [one["text"] for one in asked[len(reads) :]] == [told(one) for one in wanted]
    assert {one["level"] for one in asked} == {"INFO"}
    assert ask(cluster, "cancel").returncode == 0
    assert a.wait_exit() == 130
    assert in_log(host) == [*(one["text"] for one in asked), told("cancel")]
    (path,) = folder.iterdir() if serves else [kept]
    lines = map(json.loads, path.read_text().splitlines())
    assert [one["text"] for one in lines if one.get("event") == "asked"] == in_log(host)
