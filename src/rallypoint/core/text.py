"""Numbers, names and signals, as a person reads them."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from rallypoint.core.settings import UNNAMED_RUN_ID
from rallypoint.core.watch.names import fold_words

STACKS = "what it was doing:"
"""The first line of a detail that is no traceback of an exception, but stacks."""
LEFT = "this node left the job"
"""How the reason of an agent begins whose node left while the job went on, for all it knows."""
CANT_START = "this node can't start workers"
"""How the reason of an agent begins that has tried to start some before a round ended for it."""
NOT_NEEDED = "this node was not needed"
"""How the verdict of a node begins whose handler says that the job goes on without it."""
UNGUARDED = "UnguardedLaunchError: "
"""How the message of a worker begins that would launch its job again."""
CANT_LOG = "can't write logs under"
"""How a message about a log file begins that can't be written."""
HOST_LEAVES = "which hosts the coordinator, is leaving"
"""Part of the reason of a job that ends since the node of its coordinator goes."""
NAMES_MAX = 8
"""The most words that name nodes; thousands would hide the sentence."""


def count(number: int, noun: str) -> str:
    """`1 node`, `4 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def brief_seconds(time_s: float) -> str:
    """`3.02` or `1800`: what matters of a time in seconds, without an exponent."""
    return f"{time_s:.3g}" if time_s < 100 else f"{time_s:.0f}"


def shown(text: str) -> str:
    """Foreign text within a sentence: as it is, or quoted where it would break the line, or has
    blanks around it that nobody would see."""
    return text if text.isprintable() and text == text.strip() else quoted(text)


def quoted(text: str) -> str:
    """Foreign text in quotes, on one line; bytes that are no UTF-8 as a shell writes them."""
    return ascii(text).replace("\\udc", "\\x")


def raised(error: BaseException) -> str:
    """An exception of somebody's code within a line: its class, and the first line of its text."""
    first = str(error).strip().partition("\n")[0].rstrip()
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


def names(node_ids: tuple[str, ...]) -> str:
    """`a, node-[0-63]`, or `a, b and 5 more` where there are very many; empty for none."""
    words = fold_words(node_ids, NAMES_MAX)
    more = len(node_ids) - sum(number for _, number in words[:NAMES_MAX])
    return ", ".join(word for word, _ in words[:NAMES_MAX]) + (f" and {more} more" if more else "")


def names_of_jobs(run_ids: Iterable[str]) -> str:
    """The same for jobs. None of them is folded: one is to be typed."""
    known = sorted(run_ids)
    more = len(known) - NAMES_MAX
    return ", ".join(known[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def is_number(word: str) -> bool:
    """Whether this is a number, as Python writes them."""
    try:
        float(word)
    except ValueError:
        return False
    return True
