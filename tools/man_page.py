"""The man page of `rallypoint`, from the tables that its help is made from.

python -m tools.man_page > rallypoint.1        man ./rallypoint.1
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rallypoint import __version__
from rallypoint.cli.commands import ROWS
from rallypoint.cli.options import RUN
from rallypoint.core.outcomes import CODES, SIGNALLED, Outcome
from rallypoint.core.settings import Setting


def man_page() -> str:
    """Return the page in the language of man(7)."""
    return "\n".join([*_page(), ""])


def _page() -> Iterator[str]:
    yield f'.TH RALLYPOINT 1 "" "rallypoint {__version__}" "User Commands"'
    yield ".SH NAME"
    yield r"rallypoint \- launch, watch and heal distributed jobs"
    yield ".SH SYNOPSIS"
    yield r".B rallypoint run"
    yield r"[\fIOPTIONS\fR] \fISCRIPT\fR [\fIARGUMENTS\fR]"
    yield ".br"
    yield r".B rallypoint"
    yield r"\fICOMMAND\fR [\fIOPTIONS\fR]"
    yield ".SH DESCRIPTION"
    yield "Run the same command on every machine of a job. It starts the workers, agrees on ranks,"
    yield "notices what dies, and brings the job back. The options of"
    yield r"\fBtorchrun\fR mean what they mean there."
    yield ".SH COMMANDS"
    for row in ROWS.values():
        yield from _entry(rf"\fB{row.name}\fR", row.about)
    yield ".PP"
    yield r"Each has \fB\-\-help\fR."
    for title, rows in RUN.groups:
        yield f".SH OPTIONS OF RUN: {_text(title.upper())}"
        for setting in rows:
            yield from _entry(_head(setting), setting.about)
    yield ".SH ENVIRONMENT"
    yield from _entry(
        r"\fBRALLYPOINT_\fINAME\fR, \fBPET_\fINAME\fR",
        "The value of an option of run that is not given; PET_ is torchrun's.",
    )
    yield from _entry(r"\fBRALLYPOINT_TOKEN\fR", "The secret that the nodes of a job share.")
    yield ".SH EXIT STATUS"
    for name, code in CODES.items():
        verbs = [each.row.verb for each in Outcome if each.exit_class == name]
        yield from _entry(rf"\fB{code}\fR", f"The job {' or '.join(verbs)}.")
    yield from _entry(rf"\fB{SIGNALLED} + n\fR", "The job was ended by signal n, or preempted.")
    yield ".SH FILES"
    yield from _entry(r"\fI~/.config/rallypoint/token\fR", "The token, which the first node makes.")
    yield from _entry(r"\fI~/.local/state/rallypoint\fR", "What is kept of jobs that have ended.")
    yield ".SH SEE ALSO"
    yield r"\fBsrun\fR(1), \fBssh\fR(1)"


def _entry(head: str, about: str) -> Iterator[str]:
    yield ".TP"
    yield head
    yield _text(about)


def _head(setting: Setting) -> str:
    flags = [rf"\fB{_text(flag)}\fR" for flag in (setting.short, setting.flag) if flag]
    value = rf" \fI{_text(setting.metavar)}\fR" if setting.metavar else ""
    return ", ".join(flags) + value


def _text(text: str) -> str:
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(man_page())
