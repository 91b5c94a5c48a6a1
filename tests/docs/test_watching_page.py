"""docs/watching.md shows what the code prints."""

from __future__ import annotations

import re
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from msgspec import structs
from tests.harness.broken_jobs import BROKEN, NAN, NODES, running
from tests.harness.commands import WISHES
from tests.harness.watched_cluster import NOON

from rallypoint.cli.verdict import VerdictView, verdict_lines
from rallypoint.cli.watch import wishes
from rallypoint.cli.watch.asking import find
from rallypoint.cli.watch.events import event_line
from rallypoint.cli.watch.stacks import stacks_lines
from rallypoint.cli.watch.status_text import status_lines
from rallypoint.core.model import Outcome
from rallypoint.core.watch import history_file, job_view
from rallypoint.core.watch.goodput_view import GoodputView, TimePart
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.line_groups import WorkerLine, fold_lines, log_lines
from rallypoint.core.watch.segments import Spending

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"
WHERE = "node-0:29400 --job train-7"
AT_NIGHT = timezone(timedelta(hours=14, minutes=41))
"""By the clocks there."""
TRAIN, FOLDER = "/srv/train/train.py", "/opt/venv/lib/python3.11/site-packages/torch/distributed"


def shows(command: str, lines: list[str]) -> bool:
    """The page has these lines after this command."""
    return "\n".join([f"$ rallypoint {command}", *lines, ""]) in PAGE.read_text()


def section(title: str) -> str:
    """From one heading to the next one."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[str]:
    """The first cells of the tables there."""
    found = re.findall(r"^\| (.*?) \|", text, re.M)
    return [cell for cell in found if not set(cell) <= set("- ")]


def test_the_sample_of_status_is_real_output() -> None:
    make, _ = BROKEN["one rank hangs"]
    job = make()
    sample = "\n".join(status_lines(job.view, 100, where=WHERE, clock="03:12:58"))
    command = f"$ rallypoint status {WHERE}\n"
    assert f"```\n{command}{sample}\n```\n" in PAGE.read_text()


@pytest.mark.parametrize("state", sorted({*job_view._STATES.values(), "no progress"}))
def test_each_state_has_a_row(state: str) -> None:
    assert f"\n| {state} | " in section("Why is my job slow, or down?")


@pytest.mark.parametrize("outcome", Outcome)
def test_each_way_to_end_has_a_row(outcome: Outcome) -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith("| succeeded")]
    said = outcome.value in row.split("|")[1].replace(",", " ").strip()
    assert said or f"\n| failed ({outcome.value}) |" in PAGE.read_text()


def test_the_sample_of_logs_is_real_output() -> None:
    lines = [WorkerLine(1.0, rank, "epoch 2 done") for rank in range(64)]
    lines.append(WorkerLine(2.0, 17, "UserWarning: loss is 61.2, far from the mean of the others"))
    lines += [WorkerLine(9.0, rank, "epoch 3 done") for rank in range(64)]
    command = f"logs {WHERE}"
    assert shows(command, log_lines(fold_lines(lines)))


def stack(*frames: tuple[str, int, str]) -> str:
    """As Python's faulthandler writes it."""
    lines = [f'  File "{path}", line {line} in {name}' for path, line, name in frames]
    return "\n".join(["Current thread 0x7f (most recent call first):", *lines])


def test_the_sample_of_stacks_is_real_output() -> None:
    start = (TRAIN, 54, "<module>")
    reduces = (f"{FOLDER}/distributed_c10d.py", 2501, "all_reduce")
    waits = stack(reduces, (TRAIN, 33, "train"), start)
    stacks = dict.fromkeys(range(8 * NODES), waits)
    stacks[169] = stack(("/srv/train/data.py", 88, "load_batch"), (TRAIN, 31, "train"), start)
    nodes = {rank: f"node-{rank // 8}" for rank in stacks}
    command = f"stacks {WHERE}"
    assert shows(command, stacks_lines(stacks, nodes, width=100))


def test_the_sample_of_events_is_real_output() -> None:
    job = running(nodes_min=NODES - 4)
    began_at = job.timers.now_s
    job.lose("node-21", "its connection was closed")
    job.wait(8)
    job.run_workers()
    job.wait(21)
    job.fail_with("node-1", NAN)
    lines = [
        event_line(entry, NOON, AT_NIGHT)
        for entry in job.history.entries
        if entry.time >= NOON + began_at
    ]
    assert shows(f"events {WHERE} --since 22:00", lines), "\n".join(lines)


def test_the_sample_of_a_jobs_last_line_is_real_output() -> None:
    wall_s = 7500.0
    shares = {Spending.STEPS: 87, Spending.DETECT: 6, Spending.STOP: 5}
    parts = [
        TimePart(str(kind.value), "work", wall_s * part / 100) for kind, part in shares.items()
    ]
    goodput = GoodputView(wall_s, 0.87 * wall_s, tuple(parts), 5000, 318, 12, 600.0, 0.0)
    view = VerdictView(
        Outcome.SUCCEEDED,
        round=9,
        restarts=9,
        run_id="digits",
        elapsed_s=wall_s,
        max_restarts=9,
        goodput=goodput,
    )
    assert "```\n{}\n```".format("\n".join(verdict_lines(view))) in PAGE.read_text()


@pytest.mark.parametrize("wish", ["checkpoint", "restart"])
def test_what_is_said_when_it_is_done(wish: str) -> None:
    """As the command prints it, but for the numbers."""
    quoted = re.findall(r"`([^`]*)`", section("Save a checkpoint now, restart, end"))
    said = [re.sub(r"\d+ (node|worker)s", r"1 \1", " ".join(text.split())) for text in quoted]
    assert any(re.match(WISHES[wish], re.sub(r"round \d+", "round 1", text)) for text in said)


def test_each_kind_of_time_has_a_row() -> None:
    head, *kinds = rows(section("How much of the time was useful?"))
    assert head == "spent on"
    assert sorted(kinds) == sorted(str(kind.value) for kind in Spending)


def test_each_kind_of_line_of_the_history_file_has_a_row_with_its_fields() -> None:
    text = section("Keep the history in a file")
    head, *kinds = rows(text)
    assert head == "`kind`"
    assert sorted(kinds) == sorted(f"`{kind}`" for kind in history_file._KINDS.values())
    told = {kind: next(row for row in text.splitlines() if f"| {kind} |" in row) for kind in kinds}
    for record, kind in history_file._KINDS.items():
        for one in structs.fields(record):
            if record is not HistoryEntry and one.name != "time":
                assert f"`{one.name}`" in told[f"`{kind}`"], (kind, one.name)
    for field in HistoryEntry.__struct_fields__:
        assert f"`{field}`" in section("What happened last night?")


def test_each_exit_code_has_a_row_where_the_command_names_it() -> None:
    for title, said, others in (
        ("Exit codes", find.EXIT_CODES, {"130"}),
        ("Save a checkpoint now, restart, end", wishes.EXIT_CODES, set()),
    ):
        codes = set(re.findall(r"\b\d+\b", said)) | others
        assert {row for row in rows(section(title)) if row.isdecimal()} == codes
