"""Files of `--history`, and answers of coordinators, with values that no honest coordinator has
written: one line says which file, which line and why."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.prepared import processes
from tests.harness.watched_cluster import WatchedCluster

from rallypoint.cli import job_verdict
from rallypoint.cli.watch import events, status
from rallypoint.cli.watch.asking import reach
from rallypoint.core.model import SharedSettings
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.history_file import Begin, HistoryLine, LinesLost, as_object, compact
from rallypoint.core.watch.job_view import JobView
from rallypoint.errors import UsageError
from rallypoint.observe.printing import json_text

ENTRY = HistoryEntry(1, 1e9, "restart", "WARNING", 0, "restart 1 of 2", "b", is_wrong=True)
DEEP = "[" * 100_000
MAD_TIMES = ["1e300", "-1e300", "-1", '"noon"', "null", "NaN", "-Infinity", "1e999", "9" * 5000]


def lines() -> dict[str, dict[str, Any]]:
    """One good line of each kind."""
    cluster = WatchedCluster(SharedSettings("job", 2, 2))
    cluster.nodes(2)
    cluster.run_workers()
    cluster.lose("node-1", "its connection was closed")
    past, view = cluster.history.rounds[0], compact(cluster.view, 1e9)
    made: list[HistoryLine] = [Begin("job", 1, 1e9), ENTRY, past, view, LinesLost(3)]
    return {line["kind"]: line for line in map(as_object, made)}


def with_value(line: dict[str, Any], path: str, value: str) -> str:
    """The line as JSON, with this JSON at a path in place of what is there."""
    copy = json.loads(json.dumps(line))
    inner = copy
    *parents, last = path.split(".")
    for name in parents:
        inner = inner[name]
    inner[last] = "@here@"
    return json.dumps(copy).replace('"@here@"', value)


def refusal(read: Callable[[list[str]], int], path: Path) -> str:
    """What a command says of a file that it refuses, on one line."""
    with pytest.raises(UsageError) as refused:
        read([str(path)])
    said = str(refused.value)
    assert "\n" not in said
    assert len(said) < 400 + len(str(path))
    return said


@pytest.mark.parametrize("read", [events.run, status.run])
@pytest.mark.parametrize("value", [*MAD_TIMES, DEEP])
@pytest.mark.parametrize(
    ("kind", "where"),
    [("begin", "time"), ("event", "time"), ("status", "time"), ("status", "view.known_since")],
)
def test_V2_a_mad_time_in_a_history_is_refused_with_file_line_and_reason(
    kind: str, where: str, value: str, read: Callable[[list[str]], int], tmp_path: Path
) -> None:
    if (where, value) == ("view.known_since", "null"):
        return
    good, path = lines(), tmp_path / "history.jsonl"
    before = [] if kind == "begin" else [json.dumps(good["begin"])]
    mad = with_value(good[kind], where, value)
    path.write_text("\n".join([*before, mad, json.dumps(good["event"]), ""]))
    said = refusal(read, path)
    assert said.startswith(f"{path}: is ")
    if kind != "begin":
        assert "is damaged: line 2 " in said


@pytest.mark.parametrize("read", [events.run, status.run])
@pytest.mark.parametrize(
    ("kind", "where", "value"),
    [
        ("event", "number", "1" * 30),
        ("event", "number", "1.5"),
        ("event", "text", r'"\ud800"'),
        ("round", "round", "9" * 25),
        ("round", "slowest", '{"a":[]}'),
        ("status", "view.step", "-" + "9" * 30),
        ("status", "view.nodes", "{}"),
        ("lost", "number", "-5"),
        ("lost", "number", '"x"'),
    ],
)
def test_V2_a_value_that_was_never_written_is_refused_with_its_line(
    kind: str, where: str, value: str, read: Callable[[list[str]], int], tmp_path: Path
) -> None:
    good, path = lines(), tmp_path / "history.jsonl"
    mad = with_value(good[kind], where, value)
    path.write_text("\n".join([json.dumps(good["begin"]), "", mad, json.dumps(good["event"]), ""]))
    assert refusal(read, path).startswith(f"{path}: is damaged: line 3 ")


def test_V2_the_reason_is_that_of_the_first_bad_line(tmp_path: Path) -> None:
    good, path = lines(), tmp_path / "history.jsonl"
    begin, event = json.dumps(good["begin"]), json.dumps(good["event"])
    for bad, why in {
        DEEP: "has more than 64 levels of brackets",
        "[1, 2]": "is not an object of JSON, but an array",
        '{"kind": "even': "is not JSON",
        '{"kind":"event","number":99999999999999999999}': "has a number of more than 64 bits",
    }.items():
        path.write_text(f"{begin}\n{event}\n{bad}\ngarbage\n{event}")
        assert refusal(events.run, path).startswith(f"{path}: is damaged: line 3 {why}")


def test_V2_a_history_without_mad_values_is_still_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(map(json.dumps, lines().values())))
    assert events.run([str(path)]) == status.run([str(path), "--all"]) == 0
    out = capsys.readouterr().out
    assert "restart 1 of 2 (node b)\n" in out
    assert "\njob job: " in out


@pytest.mark.parametrize("target", ["/dev/null", "/dev", "/dev/tty"])
def test_V2_a_device_is_not_read_as_a_history(target: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.symlink_to(target)
    kind = "a directory" if target == "/dev" else "a device"
    said = f"{path}: is no file that --history has written, but {kind}"
    assert refusal(events.run, path) == refusal(status.run, path) == said


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("moment", ["0001-01-01", "9999-12-31T23:59:59"])
def test_V2_a_moment_at_the_ends_of_the_calendar_is_no_traceback(
    moment: str, zone: str, tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(lines()["begin"]))
    line = [sys.executable, "-m", "rallypoint", "events", str(path), "--since", moment]
    done = processes.run(line, env=os.environ | {"TZ": zone}, capture_output=True, timeout=600.0)
    assert done.returncode in (0, 2)
    if done.returncode:
        assert done.stderr.startswith(f"rallypoint events: --since {moment}: needs an age like")


def test_V2_mad_times_of_a_coordinator_are_refused_too() -> None:
    """A node with the token may host the job, and say anything to who asks."""
    good = lines()
    event = {name: value for name, value in good["event"].items() if name != "kind"}
    for value in ("1e300", "-1", "9" * 25):
        with pytest.raises(UsageError, match="sends events in another format"):
            events._entry(with_value(event, "time", value).encode())
        view = with_value(good["status"]["view"], "known_since", value)
        with pytest.raises(UsageError, match="the coordinator answers in another form"):
            reach.decoded(view.encode(), JobView)
    with pytest.raises(UsageError, match="has a number of more than 64 bits"):
        reach.decoded(with_value(good["status"]["view"], "step", "9" * 30).encode(), JobView)


def test_V2_what_a_summary_says_of_an_exit_code_is_one() -> None:
    said = {"outcome": "failed", "exit_code": 1, "reason": "r", "node": "a", "schema": 1}
    assert job_verdict.read_said(msgspec.json.encode(said)).exit_code == 1
    for code in (-1, 256, 10**25):
        with pytest.raises(ValueError, match=r"has another form|64 bits"):
            job_verdict.read_said(json_text(said).replace(":1,", f":{code},", 1).encode())
