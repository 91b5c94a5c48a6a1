"""A job's status as a person reads it: the culprit first, at most 24 lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rallypoint.cli.render import duration_text
from rallypoint.core.model import Cause
from rallypoint.core.settings import UNNAMED_RUN_ID
from rallypoint.core.text import count, job_name
from rallypoint.core.watch.goodput import Spending
from rallypoint.core.watch.history import PastRound
from rallypoint.core.watch.job_view import GoodputView, JobLine, JobView, NodeView

LINES_MAX = 24
DETAIL_MAX = 6
"""Lines of what a worker wrote last."""
QUIET_S = 10.0
"""A worker without progress for so long is named."""
SILENT_S = 5.0
"""A node whose agent was not heard for so long is named."""
PARTS_SHOWN = 5
_LABEL = 12
_USEFUL = str(Spending.STEPS.value)
_UNKNOWN = str(Spending.UNKNOWN.value)
_NUMBERED = re.compile(r"(.*?)(\d+)")


def status_lines(view: JobView, width: int = 80, most: int = LINES_MAX) -> list[str]:
    """At most `most` lines of at most `width` characters; the last one says what was left out."""
    lines = [_headline(view)]
    lines += _labelled("waits for", [view.waits_for] if view.waits_for else [])
    lines += _labelled("behind", _behind(view))
    lines += _labelled("silent", _silent(view))
    lines += _labelled("progress", _progress(view))
    lines += _labelled("goodput", _goodput(view.goodput))
    lines += _labelled("budget", [_budget(view)])
    lines += _labelled("nodes", _nodes(view))
    lines += _labelled("held back", _held_back(view))
    lines += _labelled("unknown", [view.gap] if view.gap else [])
    lines += _past(view)
    cut = [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
    if len(cut) > most:
        cut = [*cut[: most - 1], f"  ... {len(cut) - most + 1} more lines: --all"]
    return cut


def table_lines(jobs: Sequence[JobLine], width: int = 80) -> list[str]:
    """Several jobs, one line each."""
    rows = [("JOB", "STATE", "FOR", "ROUND", "NODES", "WORKERS", "STEP", "USEFUL", "")]
    for job in jobs:
        step = "-" if job.step < 0 else str(job.step)
        step += f"/{job.total_steps}" if job.total_steps > 0 else ""
        share = "-" if job.useful_share is None else f"{100 * job.useful_share:.0f} %"
        name = "-" if job.job == UNNAMED_RUN_ID else job.job
        sizes = (str(job.round), str(job.nodes), str(job.workers), step, share)
        rows.append((name, job.state, duration_text(job.since_s), *sizes, job.reason))
    widths = [max(len(row[column]) for row in rows) for column in range(8)]
    lines = []
    for row in rows:
        cells = [cell.ljust(size) for cell, size in zip(row, widths, strict=False)]
        line = "  ".join([*cells, row[-1]]).rstrip()
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    return lines


def fold_names(node_ids: Iterable[str]) -> str:
    """`gpu-[0-3,7], login`: names that differ by a number at the end are one word."""
    stems: dict[str, list[tuple[int, str]]] = {}
    others: list[str] = []
    for node_id in node_ids:
        found = _NUMBERED.fullmatch(node_id)
        if found is None:
            others.append(node_id)
        else:
            stems.setdefault(found[1], []).append((int(found[2]), found[2]))
    words = []
    for stem, numbers in sorted(stems.items()):
        numbers.sort()
        if len(numbers) == 1:
            words.append(f"{stem}{numbers[0][1]}")
        else:
            words.append(f"{stem}[{','.join(_ranges(numbers))}]")
    return ", ".join([*words, *sorted(others)])


def _ranges(numbers: Sequence[tuple[int, str]]) -> list[str]:
    found: list[list[tuple[int, str]]] = []
    for number in numbers:
        if found and number[0] == found[-1][-1][0] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [run[0][1] if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in found]


def _headline(view: JobView) -> str:
    where = "" if view.round < 1 and not view.rounds else f", round {view.round}"
    since = duration_text(view.since_s)
    if view.verdict is not None:
        return f"{job_name(view.job)}: {view.state} {since} ago{where}: {view.reason}"
    reason = f" ({view.reason})" if view.reason and view.reason != "the first round" else ""
    return f"{job_name(view.job)}: {view.state} for {since}{where}{reason}"


def _behind(view: JobView) -> list[str]:
    """The worker that holds the others up, if one seems to."""
    told = [node for node in view.nodes if node.step >= 0 and node.quiet_s is not None]
    if not told or view.verdict is not None:
        return []
    worst = min(told, key=lambda node: (node.step, -(node.quiet_s or 0.0)))
    quiet_s = worst.quiet_s or 0.0
    usual_s = 5.0 / view.steps_per_s if view.steps_per_s else 0.0
    if quiet_s < max(QUIET_S, usual_s):
        return []
    others = f", others at {view.step}" if view.step > worst.step else ""
    where = f"rank {worst.behind} (node {worst.node})"
    text = f"{where}: no progress for {duration_text(quiet_s)}, at step {worst.step}{others}"
    return [text]


def _silent(view: JobView) -> list[str]:
    found = []
    for node in view.nodes:
        if not node.is_connected:
            gone = f"its connection is gone for {duration_text(node.silent_s)}"
            found.append(f"node {node.node}: {gone}")
        elif node.silent_s >= SILENT_S:
            found.append(f"node {node.node}: nothing heard for {duration_text(node.silent_s)}")
    more = len(found) - 3
    return found if more <= 0 else [*found[:3], f"and {count(more, 'more node')}"]


def _progress(view: JobView) -> list[str]:
    if view.step < 0 and view.furthest_step < 0:
        return []
    step = f"step {view.step}" if view.step >= 0 else f"none yet, step {view.furthest_step} before"
    if view.total_steps > 0:
        step += f" of {view.total_steps}"
    parts = [step]
    if view.steps_per_s:
        parts.append(f"{view.steps_per_s:.3g} steps/s")
    if view.left_s is not None:
        parts.append(f"{duration_text(view.left_s)} left")
    if view.loss is not None:
        parts.append(f"loss {view.loss:.5g}")
    if view.saved_step >= 0:
        parts.append(f"checkpoint at step {view.saved_step}")
    return [", ".join(parts)]


def _goodput(view: GoodputView) -> list[str]:
    if not view.wall_s:
        return []
    wall = duration_text(view.wall_s)
    if view.useful_s is None:
        running = sum(part.seconds for part in view.parts if part.spent == _UNKNOWN)
        share = f"workers ran {_share(running, view.wall_s)} of {wall}"
        head = f"{share}; no steps are known: --progress-pattern"
    else:
        head = f"{_share(view.useful_s, view.wall_s)} of {wall} went into useful steps"
        if view.lost_steps:
            head += f"; {count(view.lost_steps, 'step')} lost"
    rest = [part for part in view.parts if part.spent not in (_USEFUL, _UNKNOWN)]
    shown = [
        f"{_share(part.seconds, view.wall_s)} {part.spent} ({part.cause})"
        for part in rest[:PARTS_SHOWN]
        if part.seconds >= 0.001 * view.wall_s
    ]
    return [head, *(", ".join(shown[at : at + 2]) for at in range(0, len(shown), 2))]


def _share(seconds: float, wall_s: float) -> str:
    return f"{100 * seconds / wall_s:.1f} %"


def _budget(view: JobView) -> str:
    used = f"{view.restarts_used} of {count(view.max_restarts, 'restart')} used"
    faults = view.goodput.faults
    if not faults:
        return used
    between = duration_text(view.goodput.mean_s_between_faults or 0.0)
    return f"{used}; {count(faults, 'fault')}, one in {between}"


def _nodes(view: JobView) -> list[str]:
    wanted = str(view.max_nodes)
    if view.min_nodes != view.max_nodes:
        wanted = f"{view.min_nodes} to {view.max_nodes}"
    head = f"{view.world_nodes} of {wanted} in the round, {count(view.world_workers, 'worker')}"
    states: dict[str, list[str]] = {}
    for node in view.nodes:
        states.setdefault(node.state, []).append(node.node)
    lines = [f"{state}: {fold_names(ids)}" for state, ids in sorted(states.items())]
    if view.nodes_left_out:
        lines.append(f"and {count(view.nodes_left_out, 'more node')}")
    return [head, *lines]


def _held_back(view: JobView) -> list[str]:
    return [f"{node.node}: {node.held_back}" for node in view.nodes if node.held_back]


def _past(view: JobView) -> list[str]:
    """The end of the last round that has ended, and what its first failure said."""
    if not view.past:
        return []
    newest = view.past[-1]
    lines = _labelled(f"round {newest.round}", [f"ended by {newest.end}: {newest.end_text}"])
    return lines + [f"    | {line}" for line in cause_detail(newest.cause)]


def cause_detail(cause: Cause | None) -> list[str]:
    """The last lines of the worker that failed first."""
    if cause is None or cause.failure is None:
        return []
    failure = cause.failure
    detail = [line for line in failure.detail.splitlines() if line.strip()]
    shown = detail[-DETAIL_MAX:]
    if failure.message and not any(failure.message in line for line in shown):
        shown = [failure.message, *shown]
    return shown


def round_line(past: PastRound) -> str:
    """A round in one line."""
    return f"round {past.round}: {count(past.nodes, 'node')}: {past.end_text or 'runs'}"


def _labelled(label: str, texts: Sequence[str]) -> list[str]:
    heads = [label, *[""] * (len(texts) - 1)]
    return [f"  {head.ljust(_LABEL)}{text}" for head, text in zip(heads, texts, strict=False)]


def is_odd(node: NodeView) -> bool:
    """It is not as most are."""
    return not node.is_connected or bool(node.held_back) or node.silent_s >= SILENT_S
