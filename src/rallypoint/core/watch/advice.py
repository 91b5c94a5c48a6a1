"""The advice for a person about each thing that holds a job up. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from rallypoint.core.model import Outcome
from rallypoint.core.round_record import FirstCause
from rallypoint.core.text import brief_seconds, count
from rallypoint.core.watch.job_view import JobView, NodeView
from rallypoint.core.watch.names import fold_names

QUIET_S = 10.0
"""The seconds without progress before which no worker is named as being behind."""
SILENT_S = 5.0
"""The seconds without a sign of life after which a node is named as silent."""
NO_STEPS_S = 60.0
"""The seconds for which workers have run without a known step, after which a status says so."""
NO_SPACE = "No space left on device"
_UNREACHED = (
    "see why the connection to the node of rank 0 fails: a firewall, a wrong address, or a network "
    "that they do not share (--local-addr)"
)
_NAMED = 4
"""The most nodes that an advised command names; of more it names none."""
_ALLOWED = 3
"""The value of `--max-no-progress` that the advice suggests."""


class StalledWorker(Struct, frozen=True):
    """The worker with the least progress, if it has made none for a while."""

    node: NodeView
    others: tuple[str, ...]
    """The other nodes with a worker at the same step."""
    is_everybody: bool
    """Whether all workers are at that step; False in a job of one worker."""


class Advice(Struct, frozen=True):
    """The next step for a person who looks at a job's status."""

    about: str
    """The label of the line of the status that the advice belongs to: `behind`, `waits for`,
    `silent`, `round`, `held back`, `log files`, `goodput`; empty: the first line."""
    command: str = ""
    """The command after `rallypoint`, without the words that name the job; empty: there is only the
    text."""
    text: str = ""


def behind(view: JobView) -> StalledWorker | None:
    """Return the worker with the least progress, if it has made none for a while; else None.

    A while is `QUIET_S`, or five times the usual duration of a step if that is longer. None as well
    if no steps are known, or after the job's end.
    """
    told = [node for node in view.nodes if node.step >= 0 and node.quiet_s is not None]
    if not told or view.verdict is not None:
        return None
    worst = min(told, key=lambda node: (node.step, -(node.quiet_s or 0.0)))
    usual_s = 5.0 / view.steps_per_s if view.steps_per_s else 0.0
    if (worst.quiet_s or 0.0) < max(QUIET_S, usual_s):
        return None
    same = (node.node for node in told if node.step == worst.step and node is not worst)
    return StalledWorker(worst, tuple(same), worst.step >= view.step and view.world_workers > 1)


def silent(view: JobView) -> list[NodeView]:
    """Return the nodes whose agents are silent or not connected; none after the job's end."""
    if view.verdict is not None:
        return []  # They have left, or are about to.
    return [one for one in view.nodes if not one.is_connected or one.silent_s >= SILENT_S]


def advice(view: JobView, kept_ranks: Collection[int] = ()) -> list[Advice]:
    """Return the advice about what holds the job up, at most one for each label.

    `kept_ranks` are the ranks of an ended job whose last lines are kept.
    """
    found = [_on_waiting(view), _on_behind(view), _on_silence(view)]
    found += [_on_failure(view, kept_ranks), _on_held_back(view), _on_unknown_steps(view)]
    found.append(_on_logs(view))
    return [one for one in found if one is not None]


def advice_after_the_end(
    outcome: str, text: str, cause: FirstCause | None, kept_ranks: Collection[int]
) -> Advice | None:
    """Return the next step, a command or a text, after the end of a job; None: none is known.

    `text` is the text of its verdict, `cause` what failed first.
    """
    if outcome == str(Outcome.TIMED_OUT.value):
        return Advice("", text="start the missing agents; with --nnodes MIN:MAX fewer suffice")
    if cause is None and is_about_routes(text):
        return Advice("", text=_UNREACHED)
    if cause is None or outcome == str(Outcome.SUCCEEDED.value):
        return None
    what = f"logs {cause.rank}" if cause.rank in kept_ranks else "events"
    return _on_cause(cause) or Advice("round", what)


def is_about_routes(text: str) -> bool:
    """Return whether this text says that nodes did not reach the round store.

    It is the text of the end of a round or of a job.
    """
    return "round store" in text and "reach" in text


def _on_waiting(view: JobView) -> Advice | None:
    if view.verdict is not None or not view.waits_for:
        return None
    if view.state in ("stopping", "saving a checkpoint"):
        few = view.awaited if len(view.awaited) <= _NAMED else ()
        return Advice("waits for", " ".join(("stacks", *few)))
    if view.awaited and "the store of rank 0" in view.waits_for:
        return Advice("waits for", text=_UNREACHED)
    here = sum(node.state == "joined" for node in view.nodes)
    missing = view.min_nodes - here
    if view.state != "waiting" or view.nodes_left_out or missing < 1 or not here:
        return None
    them, which = ("it", "agent") if missing == 1 else ("them", "agents")
    fewer = f"--nnodes {here}:{view.max_nodes}"
    return Advice(
        "waits for", text=f"start the missing {which}; a job with {fewer} runs without {them}"
    )


def _on_behind(view: JobView) -> Advice | None:
    found = behind(view)
    if found is None:
        return None
    return Advice("behind", "stacks" if found.is_everybody else f"stacks {found.node.behind}")


def _on_silence(view: JobView) -> Advice | None:
    nodes = silent(view)
    if not nodes or not view.lease_s:
        return None
    longest_s = max(node.silent_s for node in nodes)
    left_s = max(view.lease_s - longest_s, 0.0)
    which = f"node {nodes[0].node}" if len(nodes) == 1 else "these nodes"
    soon = f"lost in {left_s:.0f} s" if left_s >= 1 else "lost any moment"
    return Advice(
        "silent",
        text=f"see whether the machine of {which} runs and is reached; it counts as {soon} "
        f"(--lease {brief_seconds(view.lease_s)})",
    )


def _on_failure(view: JobView, kept_ranks: Collection[int]) -> Advice | None:
    """Return the advice about the end of the last round, or of the job; None: none."""
    cause = view.past[-1].cause if view.past else None
    is_full = cause is not None and NO_SPACE in cause.message
    if view.same_failures > 1 and view.verdict is None and not is_full:
        times = count(view.same_failures, "time")
        return Advice(
            "round",
            text=f"restarting has not helped {times}: repair the program; --max-no-progress "
            f"{_ALLOWED} ends a job that gets no further",
        )
    if (end := view.verdict) is not None:
        return advice_after_the_end(end.outcome, end.text, cause, kept_ranks)
    if cause is None and view.past and is_about_routes(view.past[-1].end_text):
        return Advice("round", text=_UNREACHED)
    if cause is None:
        return None
    found = _on_cause(cause)
    if found is not None or cause.rank is None:
        return found
    if view.state in ("stopping", "waiting", "restarting"):
        return Advice("round", f"logs {cause.rank}")
    return Advice("round", "events")


def _on_cause(cause: FirstCause) -> Advice | None:
    if NO_SPACE in cause.message:
        return Advice("round", text=f"free space on {cause.node}: df -h, df -i")
    if cause.rank is None:
        if "memory" in cause.text:
            return Advice("round", text=f"give the container of node {cause.node} more memory")
        text = f"see whether the machine of node {cause.node} runs and is reached"
        return Advice("round", text=text)
    if cause.signal == "SIGKILL":
        if "out of memory" in cause.message:
            return Advice("round", text="have the workers use less memory, or give them more")
        return Advice(
            "round",
            text="something outside the job killed it, most often for memory: look for 'Killed "
            f"process' in the kernel log of {cause.node} (dmesg -T)",
        )
    if cause.signal == "SIGBUS":
        text = (
            f"give the container on {cause.node} more shared memory: df -h /dev/shm shows its use"
        )
        return Advice("round", text=text)
    if cause.log_file:
        return Advice("round", text=f"read {cause.log_file} on {cause.node}")
    return None


def _on_logs(view: JobView) -> Advice | None:
    full = fold_names(node.node for node in view.nodes if NO_SPACE in node.cant_log)
    return Advice("log files", text=f"free space on {full}: df -h, df -i") if full else None


def _on_held_back(view: JobView) -> Advice | None:
    nodes = [held.node for held in view.held_back]
    return Advice("held back", f"nodes allow {nodes[0]}") if nodes else None


def _on_unknown_steps(view: JobView) -> Advice | None:
    """Return the advice about workers whose steps are unknown, so that a hang can't be seen."""
    ran_s = sum(part.seconds for part in view.goodput.parts if part.spent.startswith("running,"))
    if view.verdict is not None or view.goodput.useful_s is not None or view.state != "running":
        return None
    return Advice("goodput", "stacks") if ran_s >= NO_STEPS_S else None
