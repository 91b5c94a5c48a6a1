"""`rallypoint verdict WHERE`: how a job has ended, as a line and as this command's exit code.

For a batch script, where the exit codes of single nodes say little: a node that was lost has
failed, and the job that went on without it has not.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from rallypoint.cli import access
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Command, Scanned, paragraph, parse, with_hint
from rallypoint.cli.run_options.register import read_register
from rallypoint.cli.values import Given, place, word
from rallypoint.core.json_reader import UnreadableJsonError, read_as
from rallypoint.core.outcomes import CODES, SIGNALLED, Outcome, exit_codes_help
from rallypoint.core.settings import ENGINE_NAMES, FOR_DIRECTORIES, Setting
from rallypoint.core.text import names, shown
from rallypoint.errors import ExitClass, InfrastructureError, UsageError
from rallypoint.observe.printing import print_error, print_text

_SURE = [outcome.value for outcome in Outcome]

VERDICT = Command(
    "verdict",
    """\
usage: rallypoint verdict WHERE [options]

Print how a job ended, and exit with its exit code. WHERE is a file that
--json-summary has written, or a directory with one for each node. With --job,
WHERE is the --rdzv-endpoint of the job's nodes, where the job's record lies.

  rallypoint run --json-summary logs/ train.py; rallypoint verdict logs/
  rallypoint verdict /shared/jobs --job digits
""",
    (
        (
            "Options",
            (
                Setting("--job", "ID", "name of the job; WHERE is then the place of its record"),
                Setting("--rdzv-id", "ID", "the same as --job"),
                Setting(
                    "--rdzv-backend",
                    "|".join(ENGINE_NAMES),
                    "the backend of that record",
                    "engine",
                    default=ENGINE_NAMES[0],
                ),
                Setting("--rdzv-conf", "K=V,...", "that of the job's nodes: where the records are"),
                *access.token_options("the job runs with --insecure, without a token"),
            ),
        ),
    ),
    """\
"""
    + paragraph(exit_codes_help("it is worth starting again, or nothing says how it has ended")),
    ("WHERE",),
)


class SummaryRead(Struct):
    """The fields that are read of a node's summary of its job (`--json-summary`)."""

    outcome: str
    exit_code: Annotated[int, Meta(ge=0, le=255)]
    reason: str
    node: str
    schema: int


def run(argv: list[str]) -> int:
    """Print how the job ended, and return its exit code.

    Raises UsageError, InfrastructureError (also where nothing says how it ended), and
    HelpRequested.
    """
    scanned = with_hint(VERDICT, lambda: parse(VERDICT, argv, {}))
    (where,) = scanned.words
    if (job := scanned.get("--job") or scanned.get("--rdzv-id")) is not None:
        return _of_record(scanned, where, job)
    for flag in ("--rdzv-backend", "--rdzv-conf"):
        if (given := scanned.get(flag)) is not None:
            raise given.wrong("needs --job, the name of the job in those records")
    needs = "a file of --json-summary, or a directory of such"
    return _of_summaries(with_hint(VERDICT, lambda: place(word(where), needs)))


def _of_summaries(where: str) -> int:
    said, others = _read_directory(where) if os.path.isdir(where) else ([_read(where)], [])
    if others:
        has = "files that are" if len(others) > 1 else "a file that is"
        print_error("rallypoint verdict", f"ignored {has} no summary: {names(tuple(others))}")
    best = surest(said)
    if best is None:
        raise InfrastructureError(
            f"{shown(where)}: no summary of --json-summary is there: the job still runs, or all of"
            " its agents were killed"
        )
    of = f" ({len(said)} nodes have said how it ended)" if len(said) > 1 else ""
    print_text(f"the job {Outcome(best.outcome).row.verb}: {best.reason}{of}")
    return best.exit_code


def surest(said: Iterable[SummaryRead]) -> SummaryRead | None:
    """Return the summary that counts, of all that nodes have left.

    It is the one with the outcome that comes first in `Outcome`. None: none has a known outcome.
    """
    known = [each for each in said if each.outcome in _SURE]
    return min(known, key=lambda each: _SURE.index(each.outcome), default=None)


def read_said(text: bytes) -> SummaryRead:
    """Return the content of a file of --json-summary. Raises UnreadableJsonError."""
    return read_as(text, SummaryRead)


def _read_directory(where: str) -> tuple[list[SummaryRead], list[str]]:
    """Read the summaries in a directory.

    Returns them, and the names of other files that end in .json. Hidden files are skipped. Raises
    UsageError.
    """
    said, others = [], []
    try:
        found = sorted(name for name in os.listdir(where) if name.endswith(".json"))
    except OSError as error:
        raise UsageError(f"{shown(where)}: can't be read: {error.strerror}") from None
    for name in found:
        if name.startswith("."):
            continue
        try:
            said.append(_read(os.path.join(where, name)))
        except _NoSummaryError:
            others.append(shown(name))
    return said, others


class _NoSummaryError(UsageError):
    """The file is a directory, or has other content than a summary."""


def _read(path: str) -> SummaryRead:
    try:
        with open(path, "rb") as file:
            return read_said(file.read())
    except IsADirectoryError:
        raise _NoSummaryError(f"{shown(path)} is a directory") from None
    except OSError as error:
        raise UsageError(f"{shown(path)}: can't be read: {error.strerror}") from None
    except UnreadableJsonError:
        raise _NoSummaryError(f"{shown(path)} is no summary of --json-summary") from None


def _of_record(scanned: Scanned, where: str, job: Given) -> int:
    from rallypoint.register.engines import Use, make
    from rallypoint.register.record import decode

    backend = scanned.read(VERDICT, "--rdzv-backend", FOR_DIRECTORIES)
    endpoint = Given(where, f"--rdzv-endpoint {where}")
    asked = scanned.plus({"--rdzv-endpoint": endpoint, "--rdzv-id": job})
    register, _ = read_register(asked, backend, ThisHost())
    run_id = job.text
    token = access.read_access(scanned).find(create=False)
    engine = make(register, Use(run_id))
    found = engine.open(run_id, None if token is None else token.for_job(run_id)).get_state()
    record = None if found is None else decode(found[0], run_id).job
    if record is None:
        raise UsageError(f"{engine.where} has no record of job {shown(run_id)}")
    if record.verdict is None:
        raise InfrastructureError(f"job {shown(run_id)} has not ended")
    verdict = record.verdict
    print_text(f"the job {verdict.outcome.row.verb}: {verdict.text}")
    if verdict.signal:
        return SIGNALLED + verdict.signal
    return CODES.get(verdict.outcome.exit_class, ExitClass.INFRASTRUCTURE.value)
