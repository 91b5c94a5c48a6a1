"""Numbers, signals and the ends of jobs, in words for a person."""

from __future__ import annotations

import signal

from rallypoint.core.events import JoinTimedOut, StopDelayed
from rallypoint.core.model import UNNAMED_RUN_ID, NodeRef, Outcome, SharedSettings, Verdict

STACKS = "what it was doing:"
"""The first line of a detail that is no traceback of an exception, but stacks."""
LEFT = "this node left the job"
"""How the reason of an agent begins whose node left while the job went on, for all it knows."""
NAMES_MAX = 8
"""So many nodes are named; thousands would hide the sentence."""


def count(number: int, noun: str) -> str:
    """`1 node`, `4 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def brief_seconds(time_s: float) -> str:
    """`3.02` or `1800`: what matters of a time in seconds, without an exponent."""
    return f"{time_s:.3g}" if time_s < 100 else f"{time_s:.0f}"


def shown(text: str) -> str:
    """Foreign text within a sentence: as it is, or quoted where it would break the line."""
    return text if text.isprintable() else quoted(text)


def quoted(text: str) -> str:
    """Foreign text in quotes, on one line; bytes that are no UTF-8 as a shell writes them."""
    return ascii(text).replace("\\udc", "\\x")


def raised(error: BaseException) -> str:
    """An exception of somebody's code within a line: its class, and the first line of its text."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {shown(first)}" if first else type(error).__name__


def job_name(run_id: str) -> str:
    """`job train-7`; also for a job that nobody named, or that got a random name (`job-7k2m`)."""
    if run_id == UNNAMED_RUN_ID:
        return "the job"
    return run_id if run_id.startswith("job-") else f"job {run_id}"


def quoted_job(run_id: str) -> str:
    """The same to tell one job from another: `job 'train-7'`."""
    return "a job without --rdzv-id" if run_id == UNNAMED_RUN_ID else f"job {run_id!r}"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time and unknown ones as `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_number(name: str) -> int:
    """9 for `SIGKILL`; 0 for an empty name. Raises KeyError."""
    return signal.Signals[name].value if name else 0


def part_of(run_id: str, node_id: str) -> str:
    """What a helper of an agent belongs to, as the end of its title; empty where nothing has a
    name."""
    job = "" if run_id == UNNAMED_RUN_ID else f" of job {run_id}"
    return job + (f" (node {node_id})" if node_id else "")


def nobody_came(settings: SharedSettings, timeout: JoinTimedOut) -> str:
    """Who was missing, and how long was waited."""
    waited = f"waited {settings.join_timeout_s:g} s for {count(settings.min_nodes, 'node')}"
    here = f"only {len(timeout.joined)} joined: {names(timeout.joined) or 'none'}"
    missing = f"; missing: {names(timeout.missing)}" if timeout.missing else ""
    held_back = ""
    if timeout.held_back:
        held_back = f"; did not reach the round store: {names(timeout.held_back)}"
    return f"{waited}, {here}{missing}{held_back}"


def nothing_was_started(run_id: str, verdict: Verdict) -> str:
    """For a node that has come after the end of its job."""
    has_succeeded = verdict.outcome is Outcome.SUCCEEDED
    ago = f"{brief_seconds(verdict.ended_s_ago or 0)} s ago on this coordinator"
    how = "succeeded" if has_succeeded else f"ended ({verdict.outcome.value})"
    again = ": give another run_id to run it again" if has_succeeded else ""
    return f"nothing was started: job {shown(run_id)} {how} {ago}{again}"


def too_many_lost(rounds: int, settings: SharedSettings) -> str:
    """The job only burns its nodes."""
    limit = settings.max_node_losses_per_hour
    ended = f"{count(rounds, 'round')} ended within an hour"
    why = "by the loss of nodes or of Rallypoint's own processes"
    return f"{ended} {why} (--max-node-losses {limit})"


def many_are_slow_to_stop(delayed: StopDelayed, settings: SharedSettings) -> str:
    """Why a round is not formed yet."""
    late = f"{delayed.late} of {delayed.nodes} nodes have not stopped after {delayed.after_s:g} s"
    return f"{late}: waiting up to {settings.stop_patience_s:g} s more (--stop-patience)"


def rank_taken(node_rank: int, holder: NodeRef, host: str) -> str:
    """Two nodes were given the same fixed rank."""
    return (
        f"node rank {node_rank} is taken by node {holder} ({host}): give each node its own "
        "--node-rank"
    )


def host_leaves(ref: NodeRef, why: str, *, alone: bool) -> str:
    """The coordinator goes with its node, and what would have helped the others."""
    if alone:
        return why
    return (
        f"node {ref}, which hosts the coordinator, is leaving: {why} (to let the other nodes "
        "continue, run the coordinator separately: `rallypoint serve`)"
    )


def names(node_ids: tuple[str, ...]) -> str:
    """`a, b`, or `a, b and 5 more` when there are very many; empty for none."""
    more = len(node_ids) - NAMES_MAX
    return ", ".join(node_ids[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
