"""Numbers, names and signals in messages, and the names of settings in messages.

    f"choose another {named.log_dir}"  # --log-dir

Within a call of the library a setting has the name of that call's parameter, here `log_dir`; an
option that no call takes is named as that of the command, in backticks. A new thread begins without
a call: `carried` passes the call on.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

from rallypoint.core.settings import (
    BY_FIELD,
    ENGINE_NAMES,
    FLAGS,
    UNNAMED_RUN_ID,
    Differences,
    SharedSettings,
)
from rallypoint.core.watch.names import fold_words
from rallypoint.errors import SettingsConflictError

T = TypeVar("T")
ParameterNames = Mapping[str, str]
"""The names of a library call's parameters, by the flags of the same settings."""


_OTHERWISE: ParameterNames = {
    "--nnodes": "min_nodes and max_nodes",
    "--node-rank": "rank",
    "--numa-binding": "numa_options",
    "--rdzv-conf": "rendezvous parameter",
    "--rdzv-id": "run_id",
}
"""The names of parameters that differ from their flags."""
_names: ContextVar[ParameterNames | None] = ContextVar("names", default=None)
STACKS = "what it was doing:"
"""The first line of a detail that consists of stacks, not of an exception's traceback."""
LEFT = "this node left the job"
"""The beginning of an agent's reason if its node left while the job continued."""
CANT_START = "this node can't start workers"
"""The beginning of an agent's reason if a late node could not start workers."""
NOT_NEEDED = "this node was not needed"
"""The beginning of a node's verdict if its handler says that the job continues without it."""
UNGUARDED = "UnguardedLaunchError: "
"""The beginning of the message of a worker that would launch its job again."""
CANT_LOG = "can't write logs under"
"""The beginning of a message about a log file that can't be written."""
HOST_LEAVES = "which hosts the coordinator, is leaving"
"""A part of the reason of a job that ends because the node of its coordinator leaves."""
NAMES_MAX = 8
"""The most names, or folded ranges of names, of nodes or jobs in a sentence."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 node`, `4 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def brief_seconds(time_s: float) -> str:
    """Return a number of seconds for a sentence, rounded to what matters: `3.02` or `1800`."""
    return f"{time_s:.3g}" if time_s < 100 else f"{time_s:.0f}"


def shown(text: str) -> str:
    """Return foreign text for a sentence: as it is, or quoted.

    Quoted where it would break the line, or has blanks around it that a reader would not see.
    """
    return text if text.isprintable() and text == text.strip() else quoted(text)


def quoted(text: str) -> str:
    """Return a foreign text in quotes, in ASCII on one line; invalid UTF-8 as a shell writes it."""
    return ascii(text).replace("\\udc", "\\x")


def raised(error: BaseException) -> str:
    """Return a foreign exception as a part of a line: its class, and the first line of its text."""
    first = str(error).strip().partition("\n")[0].rstrip()
    return f"{type(error).__name__}: {shown(first)}" if first else type(error).__name__


def job_name(run_id: str) -> str:
    """Return the name of a job for a sentence: `job train-7`.

    A job that nobody named is `the job`; a name that begins with `job-`, as random ones do, is as
    it is.
    """
    if run_id == UNNAMED_RUN_ID:
        return "the job"
    return run_id if run_id.startswith("job-") else f"job {run_id}"


def quoted_job(run_id: str) -> str:
    """Return the quoted name of a job: `job 'train-7'`, or `a job without --rdzv-id`."""
    return f"a job without {named.rdzv_id}" if run_id == UNNAMED_RUN_ID else f"job {run_id!r}"


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGKILL` for 9; one without a name is `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_number(name: str) -> int:
    """Return the number of a signal: 9 for `SIGKILL`; 0 for an empty name. Raises KeyError."""
    return signal.Signals[name].value if name else 0


def part_of(run_id: str, node_id: str) -> str:
    """Return the node and job of an agent's helper process, as the end of its title.

    Empty if neither has a name.
    """
    job = "" if run_id == UNNAMED_RUN_ID else f" of job {run_id}"
    return job + (f" (node {node_id})" if node_id else "")


def names(node_ids: tuple[str, ...]) -> str:
    """Return node ids in few words: `a, node-[0-63]`, or `a, b and 5 more`. Empty for none."""
    words = fold_words(node_ids, NAMES_MAX)
    more = len(node_ids) - sum(number for _, number in words[:NAMES_MAX])
    return ", ".join(word for word, _ in words[:NAMES_MAX]) + (f" and {more} more" if more else "")


def names_of_jobs(run_ids: Iterable[str]) -> str:
    """Return names of jobs, in full because the user has to type one: `a, b and 5 more`."""
    known = sorted(run_ids)
    more = len(known) - NAMES_MAX
    return ", ".join(known[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def is_number(word: str) -> bool:
    """Return whether the word is a number, as Python's `float` reads it."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def spelled(flag: str) -> str:
    """Return a setting's name for a message: its flag or, in a library call, its parameter."""
    names = _names.get()
    if names is None:
        return flag
    if flag.startswith("--rdzv-conf "):
        return f"the rendezvous parameter {flag.removeprefix('--rdzv-conf ')}"
    if name := names.get(flag) or _OTHERWISE.get(flag):
        return name
    row = FLAGS.get(flag)
    if row is None or not row.key:
        return flag if row is None else f"`rallypoint run {flag}`"
    return row.name if row.metavar else f"{row.name}=True"


class _Named:
    """The names of settings as attributes: `named.log_dir` is `spelled("--log-dir")`."""

    def __getattr__(self, name: str) -> str:
        return spelled(f"--{name.replace('_', '-')}")


named = _Named()


def by_register() -> str:
    """Return the options by which any node may lead a job, in words: `--rdzv-backend file, ...`."""
    return f"{named.rdzv_backend} {', '.join(ENGINE_NAMES[:-1])} or {ENGINE_NAMES[-1]}"


def settings_conflict(differences: Differences) -> SettingsConflictError:
    """Return the error for a node whose settings are not the job's.

    `differences` lists the settings, with the job's value first.
    """
    flags = {}
    for name, _, _ in differences:
        row = BY_FIELD[name]
        said = spelled(row.spelled)
        flags[name] = said if row.name == name else f"{said} ({name})"
    return SettingsConflictError(differences, flags)


def settings_unknown(settings: SharedSettings, known: int) -> str:
    """Return why a coordinator that knows only the first `known` settings can't host this job.

    It would ignore a setting that was given. Empty: it can host the job.
    """
    usual = SharedSettings(settings.run_id)
    later = SharedSettings.__struct_fields__[known:]
    given = [name for name in later if getattr(settings, name) != getattr(usual, name)]
    if not given:
        return ""
    said = names(tuple(spelled(BY_FIELD[name].spelled) for name in given))
    return (
        f"the coordinator is of an older version of Rallypoint, which ignores {said}: leave it out,"
        " or have this version host the job"
    )


@contextmanager
def naming_parameters(own: ParameterNames | None = None) -> Iterator[None]:
    """Let messages that are made within name settings as parameters of a library call.

    A context manager, also a decorator. `own` are the parameters of the call, by flag.
    """
    token = _names.set(own or {})
    try:
        yield
    finally:
        _names.reset(token)


def carried(call: Callable[[], T]) -> Callable[[], T]:
    """Return the call for another thread, where messages name settings as in this thread."""
    return partial(copy_context().run, call)


def versions_text(oldest: int, newest: int) -> str:
    """Return these protocol versions in words: `version 3` or `versions 2 to 4`."""
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"
