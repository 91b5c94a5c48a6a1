"""`rallypoint checkpoint`, `restart` and `cancel`: what a person wants of a job that runs."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import Struct

from rallypoint.cli import access, values
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.values import word
from rallypoint.cli.watch.kept import answer_or_kept
from rallypoint.cli.watch.reach import (
    HOW_TO_FIND,
    JobAt,
    answer_within,
    decoded,
    only_one,
    read_job,
    token_of,
)
from rallypoint.cli.watch.terminal import can_ask, says_yes
from rallypoint.core.settings import Setting
from rallypoint.core.text import job_name
from rallypoint.core.watch.questions import Ask, Said, Subject
from rallypoint.observe.printing import JsonLine, json_text, print_error, print_text

_NOT_DONE = 1
_EXIT_CODES = """\
Exit codes: 0 it is done, 1 it could not be done (the line says why) or you have
not answered y, 2 there is no such job there, nothing runs that it could be done
to, or wrong usage, 75 no coordinator answers, it went away, or --timeout is over.
"""
_OPTIONS = (
    "Options",
    (
        Setting("--yes", "", "do not ask whether the job is meant that was found here", "switch"),
        Setting("--timeout", "S", "wait for so long at most", "seconds", default="600"),
        Setting("--json", "", "print JSON", "switch"),
    ),
)


def _command(name: str, about: str, example: str) -> Command:
    top = f"usage: rallypoint {name} [ENDPOINT] [options]\n\n{about}\n  {example}\n"
    return Command(name, top, (_OPTIONS, HOW_TO_FIND), _EXIT_CODES, may_have=("ENDPOINT",))


CHECKPOINT = _command(
    "checkpoint",
    """\
Have the workers of a job save a checkpoint now, and wait until they have. The
job goes on. Workers take part that call rallypoint.worker.checkpoint_requested
in their loop. ENDPOINT is what the job's nodes have as --rdzv-endpoint; without
one, it is your job on this machine.
""",
    "rallypoint checkpoint node-0 --job digits",
)
RESTART = _command(
    "restart",
    """\
Stop the workers of a job and start them again in a new round, and wait until it
has begun. No restart is charged. ENDPOINT is what the job's nodes have as
--rdzv-endpoint; without one, it is the only job of yours on this machine, and
in a terminal you are asked whether you mean it.
""",
    "rallypoint checkpoint node-0 --job digits && rallypoint restart node-0 --job digits",
)
CANCEL = _command(
    "cancel",
    """\
End a job on all of its nodes, as Ctrl-C on one of them does; their exit code is
130. ENDPOINT is what the job's nodes have as --rdzv-endpoint; without one, it is
the only job of yours on this machine, and in a terminal you are asked whether
you mean it.
""",
    "rallypoint cancel node-0 --job digits",
)
_SUBJECTS = {
    CHECKPOINT.name: (CHECKPOINT, Subject.CHECKPOINT),
    RESTART.name: (RESTART, Subject.RESTART),
    CANCEL.name: (CANCEL, Subject.CANCEL),
}


class _Options(Struct, frozen=True):
    job: JobAt
    timeout_s: float
    as_json: bool
    is_found: bool
    """No word says which job is meant: it is the only one that was found."""
    asks: bool


def run_checkpoint(argv: list[str]) -> int:
    """As `run_named`."""
    return run_named("checkpoint", argv)


def run_restart(argv: list[str]) -> int:
    """As `run_named`."""
    return run_named("restart", argv)


def run_cancel(argv: list[str]) -> int:
    """As `run_named`."""
    return run_named("cancel", argv)


def run_named(name: str, argv: list[str]) -> int:
    """Returns 0 when it is done, 1 when it could not be. Blocks until then.

    Raises UsageError, AccessError, InfrastructureError, and HelpRequested.
    """
    command, subject = _SUBJECTS[name]
    options = with_hint(command, lambda: _parse(command, argv))
    if options.is_found:
        job = f"{job_name(options.job.name)} at {options.job.endpoint}"
        acts = f"{name} {job}, the only job of yours on this machine"
        if options.asks and command is not CHECKPOINT:
            if not says_yes(f"{acts}?"):
                return _NOT_DONE
        else:
            print_error("rallypoint", acts)
    token = token_of(options.job)
    access.keep_secrets()
    late = f"it was not done within {options.timeout_s:g} s (--timeout)"
    asked = partial(answer_within, options.job, token, Ask(subject), options.timeout_s, late)
    value = answer_or_kept(command, argv, lambda: asyncio.run(asked()))
    said = decoded(value, Said)
    print_text(JsonLine(json_text(said)) if options.as_json else said.text)
    return 0 if said.is_done else _NOT_DONE


def _parse(command: Command, argv: list[str]) -> _Options:
    scanned = parse(command, argv, {})
    where = word(scanned.words[0]) if scanned.words else None
    limit = scanned.get("--timeout")
    timeout_s = 600.0 if limit is None else values.seconds(limit, positive=True)
    job = only_one(read_job(command, scanned, where))
    as_json, is_named = scanned.on("--json"), scanned.get("--job") or scanned.get("--rdzv-id")
    asks = can_ask() and not (as_json or scanned.on("--yes"))
    return _Options(job, timeout_s, as_json, job.is_here and not is_named, asks)
