"""The text of a job's status: the culprit first, at most 24 lines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from textwrap import wrap

from rallypoint.cli.render import clock_text, duration_text
from rallypoint.cli.watch.goodput_text import share
from rallypoint.cli.watch.quoted_text import fitted
from rallypoint.core.fitness import HeldBack
from rallypoint.core.outcomes import Outcome, of_word
from rallypoint.core.round_record import FirstCause
from rallypoint.core.settings import UNNAMED_RUN_ID
from rallypoint.core.text import count, job_name
from rallypoint.core.watch.advice import NO_STEPS_S, Advice, advice, behind, silent
from rallypoint.core.watch.goodput import Spending
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.watch.job_view import JobLine, JobView, NodeView
from rallypoint.core.watch.names import fold_names
from rallypoint.observe.printing import Painted, Tint

LINES_MAX = 24
DETAIL_MAX = 6
"""The most lines that are shown of the last output of the worker that failed first."""
SILENT_LINES = 3
"""The most silent nodes of one kind that have a line each; more share one line."""
NAME_LEAST = 20
"""The least width in columns to which a job's name is cut in a table."""
PARTS_SHOWN = 5
_RUNS, _SUCCEEDED = "running", str(Outcome.SUCCEEDED.value)
_FAILED = frozenset(str(outcome.value) for outcome in Outcome if outcome is not Outcome.SUCCEEDED)
_LABEL = 12
_QUOTED = "| "
_FAULTS = frozenset({"failure", "loss", "infrastructure", "hang"})
"""The kinds of end of a round that count as faults."""
_UNASKED = frozenset({"no answer", "no access"})
_STANDS = frozenset({"no progress", "hang suspected"})
_TINTS = {
    "waits for": Tint.WARN,
    "behind": Tint.BAD,
    "silent": Tint.BAD,
    "log files": Tint.BAD,
    "held back": Tint.WARN,
}
_USEFUL = str(Spending.STEPS.value)
_UNKNOWN = str(Spending.UNKNOWN.value)


def status_lines(
    view: JobView,
    width: int = 80,
    most: int = LINES_MAX,
    where: str | None = None,
    clock: str = "",
    kept_ranks: Collection[int] = (),
) -> list[str]:
    """Return a job's status in at most `most` lines of at most `width` characters.

    A line with a long word of a command may be longer. If there are more lines, the last one says
    how many were left out. `where`: the words that name this job to a command, for commands to type
    next; None: it can't be asked. `clock`: the time of day at which this was so. `kept_ranks`: as
    of `advice`.
    """
    blocks = [
        ("because", _because(view)),
        ("waits for", _waits_for(view)),
        ("behind", _behind(view)),
        ("silent", _silent(view)),
        *_past(view, is_whole=most > LINES_MAX),
        ("log files", _log_files(view)),
        ("held back", _held_back(view)),
        ("progress", _progress(view)),
        ("goodput", _goodput(view.goodput)),
        ("budget", [_budget(view)]),
        ("nodes", _nodes(view)),
        ("unknown", _unknown(view)),
    ]
    following = {} if where is None else {a.about: a for a in advice(view, kept_ranks)}
    lines = _headlines(view, width, clock)
    if "" in following and where is not None:
        lines += next_lines(following[""], where, width)
    for label, texts in blocks:
        lines += labelled(label, texts, width, _tint(view, label))
        if (next_ := following.get(label.partition(" ")[0] if _is_round(label) else label)) and (
            texts and where is not None
        ):
            lines += next_lines(next_, where, width)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"  ... {len(lines) - most + 1} more lines: --all"]
    return lines


def next_lines(advice: Advice, where: str, width: int) -> list[str]:
    """Return the lines of a status that show this advice as the next step.

    `where` are the words that name the job in a command.
    """
    if not advice.command:
        return labelled("next", [advice.text], width, Tint.BOLD)
    room = max(width - 2 - _LABEL, 20)
    parts = command_lines(f"rallypoint {advice.command} {where}".rstrip(), room)
    heads = ["next", *[""] * (len(parts) - 1)]
    return [
        Painted((f"  {head.ljust(_LABEL)}", None), (part, Tint.BOLD))
        for head, part in zip(heads, parts, strict=True)
    ]


def command_lines(command: str, room: int) -> list[str]:
    """Return a command in lines of at most `room` columns, which can be typed or copied.

    No word is cut, even if it is longer, and a line that continues ends with a backslash.
    """
    lines = [""]
    for word in command.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > room:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _is_round(label: str) -> bool:
    return label.startswith("round ")


def _tint(view: JobView, label: str) -> Tint | None:
    if _is_round(label):
        return Tint.BAD if view.past[-1].end in _FAULTS else None
    return _TINTS.get(label)


def _unknown(view: JobView) -> list[str]:
    if view.known_since is None:
        return []
    since = clock_text(view.known_since)
    return [f"earlier events are kept only by the node that led before {since}, and by --history"]


def table_lines(
    jobs: Sequence[JobLine],
    width: int = 80,
    most: int = LINES_MAX,
    clock: str = "",
    whole_names: bool = False,
) -> list[str]:
    """Return the lines of several jobs, sorted by name.

    If they do not fit into `most` lines, jobs with a problem come first, and the rest is counted.
    `clock` is as for `status_lines`. `whole_names`: no name is cut.
    """
    shown = sorted(jobs, key=lambda job: job.job)
    rest: list[JobLine] = []
    if len(shown) >= most:
        shown.sort(key=_runs_well)
        room = max(most - 2, 0)
        shown, rest = shown[:room], shown[room:]
    heads = ["JOB", "STATE", "FOR", "ROUND", "NODES", "WORKERS", "STEP", "USEFUL"]
    rows: list[tuple[str, ...]] = [(*heads, f"({clock})" if clock else "")]
    for job in shown:
        step = "-" if job.step < 0 else str(job.step)
        step += f"/{job.total_steps}" if job.total_steps > 0 else ""
        share = "-" if job.useful_share is None else f"{100 * job.useful_share:.0f} %"
        name = "-" if job.job == UNNAMED_RUN_ID else job.job
        sizes = (str(job.round), str(job.nodes), str(job.workers), step, share)
        since = duration_text(job.since_s)
        if job.state in _UNASKED or not (job.round or job.nodes or job.since_s):
            since, sizes = "-", ("-", "-", "-", "-", "-")
        rows.append((name, state_word(job.state), since, *sizes, job.reason))
    widths = [max(len(row[column]) for row in rows) for column in range(8)]
    # What a job does is told also where its name would fill the line.
    if not whole_names:
        widths[0] = min(widths[0], max(width - sum(widths[1:]) - 2 * len(widths), NAME_LEAST))
    lines: list[str] = []
    for number, row in enumerate(rows):
        name = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
        texts = [cell.ljust(size) for cell, size in zip((name, *row[1:]), widths, strict=False)]
        line = "  ".join([*texts, row[-1]]).rstrip()
        line = line if len(line) <= width else line[: width - 1] + "…"
        at, end = widths[0] + 2, widths[0] + 2 + len(row[1])
        tint = state_tint(shown[number - 1].state) if number else Tint.BOLD
        lines.append(Painted((line[:at], None), (line[at:end], tint), (line[end:], None)))
    if rest:
        states = Counter(state_word(job.state) for job in rest).most_common()
        text = ", ".join(f"{number} {state}" for state, number in states)
        line = f"and {count(len(rest), 'more job')} (--all): {text}"
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    return lines


def has_ended(job: JobLine) -> bool:
    """Return whether this line of a table says that the job has ended."""
    return job.state == _SUCCEEDED or job.state in _FAILED


def _runs_well(job: JobLine) -> int:
    """Return the place of a job in the order of a table.

    After all others, which wait, start, stand still or do not answer, come those that have ended
    without success. Then come those that run, and those that have succeeded.
    """
    if job.state in _FAILED:
        return 1
    if job.state in (_RUNS, _SUCCEEDED):
        return 2 if job.state == _RUNS else 3
    return 0


def state_word(state: str) -> str:
    """Return a job's state as people read it.

    Only the outcome `infrastructure` is replaced by other words: it names a class of exit codes.
    """
    outcome = of_word(state)
    return state if outcome is None else outcome.row.state or state


def _headline(view: JobView) -> str:
    where = "" if view.round < 1 and not view.rounds else f", round {view.round}"
    since = duration_text(view.since_s)
    if view.verdict is not None:
        return f"{job_name(view.job)}: {state_word(view.state)} {since} ago{where}: {view.reason}"
    return f"{job_name(view.job)}: {view.state} for {since}{where}"


def _because(view: JobView) -> list[str]:
    """Return the reason of the present state, unless another line says it; none for round 1."""
    if view.verdict is not None or view.reason in ("", "the first round"):
        return []
    return [] if view.past and view.past[-1].end_text == view.reason else [view.reason]


def _waits_for(view: JobView) -> list[str]:
    if not view.waits_for:
        return []
    if view.waits_at_most_s is None:
        return [view.waits_for]
    return [view.waits_for, f"for {duration_text(view.waits_at_most_s)} more at most"]


def _behind(view: JobView) -> list[str]:
    """Return the line about the worker that seems to hold the others up; none: there is no such."""
    found = behind(view)
    if found is None:
        return []
    worst, since = found.node, duration_text(found.node.quiet_s or 0.0)
    if found.is_everybody:
        phases = {node.in_phase for node in view.nodes if node.in_phase}
        said = f" (phase {', '.join(sorted(phases))})" if phases else ""
        return [f"nobody: all workers have been at step {worst.step} for {since}{said}"]
    where = f"rank {worst.behind} (node {worst.node})"
    if found.others:
        where += f" and {_named(found.others)}"
    others = f", others at {view.step}" if view.step > worst.step else ""
    others += f" (in its phase {worst.in_phase})" if worst.in_phase else ""
    return [f"{where}: no progress for {since}, at step {worst.step}{others}"]


def _named(nodes: Sequence[str]) -> str:
    return f"{'nodes' if len(nodes) > 1 else 'node'} {fold_names(nodes)}"


def _silent(view: JobView) -> list[str]:
    """Return the lines about silent nodes, at most `SILENT_LINES` of a kind; more share one.

    Of one kind are the nodes without a connection, of the other those that are connected.
    """
    unheard = [node for node in silent(view) if node.is_connected]
    gone = [node for node in silent(view) if not node.is_connected]
    return [
        *_silence(gone, "its connection is gone for", "their connections are gone for"),
        *_silence(unheard, "nothing heard for", "nothing heard for"),
    ]


def _silence(nodes: Sequence[NodeView], one: str, several: str) -> list[str]:
    if len(nodes) <= SILENT_LINES:
        return [f"node {node.node}: {one} {duration_text(node.silent_s)}" for node in nodes]
    times = [node.silent_s for node in nodes]
    least, most = duration_text(min(times)), duration_text(max(times))
    span = least if least == most else f"{least} to {most}"
    return [f"{_named([node.node for node in nodes])}: {several} {span}"]


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
        head = f"workers ran {share(running, view.wall_s)} of {wall}"
        if running >= NO_STEPS_S:
            head += "; no steps were reported: --progress-pattern"
    else:
        head = f"{share(view.useful_s, view.wall_s)} of {wall} went into useful steps"
        if view.lost_steps:
            head += f"; {count(view.lost_steps, 'step')} lost"
    rest = [part for part in view.parts if part.spent not in (_USEFUL, _UNKNOWN)]
    shown = [
        f"{share(part.seconds, view.wall_s)} {part.spent} ({part.cause})"
        for part in rest[:PARTS_SHOWN]
        if part.seconds >= 0.001 * view.wall_s
    ]
    return [head, *(", ".join(shown[at : at + 2]) for at in range(0, len(shown), 2))]


def _budget(view: JobView) -> str:
    used = f"{view.restarts_used} of {count(view.max_restarts, 'restart')} used"
    if view.ends_in_s is not None:
        used += f"; the job ends in {duration_text(view.ends_in_s)} (--max-runtime)"
    faults = view.goodput.faults
    if not faults:
        return used
    between = duration_text(view.goodput.mean_s_between_faults or 0.0)
    return f"{used}; {count(faults, 'fault')}, one in {between}"


def _nodes(view: JobView) -> list[str]:
    wanted = str(view.max_nodes)
    if view.min_nodes != view.max_nodes:
        wanted = f"{view.min_nodes} to {view.max_nodes}"
    if view.verdict is not None:
        ran = view.past[-1] if view.past else None
        workers = count(ran.workers, "worker") if ran else ""
        return [f"{ran.nodes} of {wanted} in the last round, {workers}"] if ran else []
    head = f"{view.world_nodes} of {wanted} in the round, {count(view.world_workers, 'worker')}"
    states: dict[str, list[str]] = {}
    for node in view.nodes:
        states.setdefault(node.state, []).append(node.node)
    lines = [f"{state}: {fold_names(ids)}" for state, ids in sorted(states.items())]
    if view.nodes_left_out:
        lines.append(f"and {count(view.nodes_left_out, 'more node')}")
    return [head, *lines]


def _log_files(view: JobView) -> list[str]:
    """Return the lines about unwritable log files, with their nodes.

    Each node has its own directory: of nodes with the same fault the path of one is shown.
    """
    nodes_of: dict[str, list[NodeView]] = {}
    for node in view.nodes:
        if node.cant_log:
            nodes_of.setdefault(node.cant_log.partition(": ")[2], []).append(node)
    return [
        f"{_named([node.node for node in nodes])}: {nodes[0].cant_log}"
        for _, nodes in sorted(nodes_of.items())
    ]


def _held_back(view: JobView) -> list[str]:
    known = {held.node for held in view.held_back}
    lines = [_held_text(held) for held in view.held_back]
    return lines + [
        f"{node.node}: {node.held_back.removeprefix('held back ')}"
        for node in view.nodes
        if node.held_back and node.node not in known
    ]


def _held_text(held: HeldBack) -> str:
    if held.left_s is None:
        until = "until a person allows it"
    elif held.may_wait:
        until = "until the next round begins anyway"
    else:
        until = f"for {duration_text(held.left_s)} more"
    gone = "" if held.is_here else ", not in the job now"
    return f"{held.node}{gone}: {until}: {held.why}"


def _past(view: JobView, *, is_whole: bool) -> list[tuple[str, list[str]]]:
    """Return the label and the lines about the end of the last ended round, if there is one.

    They have the last output of its first failure. `is_whole`: also the slowest node in each phase.
    """
    if not view.past:
        return []
    newest = view.past[-1]
    told = [_QUOTED + line for line in cause_detail(newest.cause)]
    said = view.verdict is not None and newest.end_text == view.verdict.text
    ended = f"ended by {newest.end}" if said else f"ended by {newest.end}: {newest.end_text}"
    slowest = [
        f"{phase.replace('_', ' ')} {one.seconds:.3g} s (node {one.node})"
        for phase, one in sorted(newest.slowest.items())
        if one.node
    ]
    phases = [f"slowest: {', '.join(slowest)}"] if slowest and is_whole else []
    if said and newest.end not in _FAULTS:
        return [(f"round {newest.round}", phases)] if phases else []
    return [(f"round {newest.round}", [ended, *phases, *told])]


def cause_detail(cause: FirstCause | None) -> list[str]:
    """Return the last lines of the worker that failed first, after its error message.

    A message that is in these lines or in the text of the cause is not repeated.
    """
    if cause is None:
        return []
    detail = [line for line in cause.detail.splitlines() if line.strip()]
    shown = detail[-DETAIL_MAX:]
    if cause.message and not any(cause.message in line for line in (cause.text, *shown)):
        shown = [cause.message, *shown]
    return shown


def labelled(label: str, texts: Sequence[str], width: int, tint: Tint | None = None) -> list[str]:
    """Return the lines of these texts, with their label before the first one.

    Long texts are wrapped; each line of a worker's text (`| ...`) begins with that mark.
    """
    lines: list[str] = []
    room = max(width - 2 - _LABEL, 20)
    for text in texts:
        if text.startswith(_QUOTED):
            parts = [_QUOTED + part for part in fitted(text[len(_QUOTED) :], room - len(_QUOTED))]
        else:
            parts = wrap(text, room, break_on_hyphens=False)
        for part in parts:
            head = ("" if lines else label).ljust(_LABEL)
            lines.append(Painted(("  ", None), (head, None if lines else tint), (part, None)))
    return lines


def _headlines(view: JobView, width: int, clock: str) -> list[str]:
    """Return the first lines: the name and the state of the job, in colour."""
    text = _headline(view) + (f" ({clock})" if clock else "")
    margin = " " * (2 + _LABEL)
    first, *rest = wrap(text, width, subsequent_indent=margin, break_on_hyphens=False)
    word, start = state_word(view.state), f"{job_name(view.job)}: "
    if not first.startswith(start + word):
        return [first, *rest]
    end = len(start) + len(word)
    return [Painted((start, None), (word, state_tint(view.state)), (first[end:], None)), *rest]


def state_tint(state: str) -> Tint:
    """Return the colour of a job's state."""
    if state in (_RUNS, _SUCCEEDED):
        return Tint.GOOD
    return Tint.BAD if state in _FAILED or state in _STANDS else Tint.WARN
