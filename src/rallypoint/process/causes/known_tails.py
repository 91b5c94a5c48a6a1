"""Recognise output that may follow the traceback that ended a program. Pure.

Progress bars, messages of libraries during shutdown, native frames, hints.

Any other row shows that the program continued, so it handled the exception before that row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from rallypoint.process.causes.rows import is_gap
from rallypoint.process.causes.tracebacks import Traceback

_BARS = (
    r".*\d+(\.\d+)?% ?\|",
    r".*\d+(\.\d+)?(it|s|[kMG]?B|batch|batches|step|steps|samples|ba|examples)/(s|it|\w+)\b",
    r".*\d+it \[",
    r".*[━█▏▎▍▌▋▊▉▓▒░╸╺#=]{4,}.*\d",
    r".*\d+(\.\d+)? ?%.*[━█▓▒░╸╺#=.>-]{3,}",
)
_BARS_MAX = 10
"""The most rows of progress bars that may follow the exception, because bars are redrawn when they
are closed. More rows show that the program continued."""
_OF_A_TEXT = (
    r"CUDA kernel errors might be|For debugging consider passing|Compile with `TORCH_USE_CUDA",
    r"Device-side assertion|Search for `cuda|CUDA error: ",
    r"nccl\w+(Error|Usage|Argument): |Last error:",
    r"Set TORCH|Set TORCHDYNAMO|You can suppress this exception|from user code:|To (fix|execute)",
    r"If reserved but unallocated memory|See documentation for Memory Management",
    r"For further information visit https?:",
)
"""The patterns of later rows in the texts of well-known exceptions."""
_KNOWN = (
    # Python's own end.
    r"Exception ignored (in|on|while|from)\b",
    r"Error in atexit\._run_exitfuncs:",
    r"Error in sys\.excepthook:|Original exception was:",
    r"--- Logging error ---|Call stack:$|Message: |Arguments: ",
    r"\S+:\d+: \w*Warning: |\w*Warning: ",
    r"sys:\d+: ",
    r".*resource_tracker",
    r"Task (exception was never retrieved|was destroyed but it is pending)|(task|future): <",
    r"Unclosed (client session|connector|connection)|(client_session|connector|connections): ",
    r"Fatal Python error: |(Current thread|Thread) 0x|Extension modules: |Stack \(most recent call",
    r"Python runtime state: |<no Python frame>",
    r"object (address|refcount|type|type name|repr) *: ",
    # Native frames, and those who print them.
    r"frame #\d+: |#\d+:? +(0x|\w)|\s*@ +0x|.*\(most recent call (first|last)\):",
    r"Exception raised from ",
    r"C\+\+ CapturedTraceback:|\*\*\* .* \*\*\*",
    r"\[[^\]]*:\d+\] \*\*\* ",
    r"terminate called (without|recursively)|Aborted\b|Segmentation fault|Bus error|Killed$",
    r"\[\S+:\d+\] (\*\*\*|\[ ?\d+\])",
    # torch and NCCL.
    r"\S+ NCCL (WARN|INFO)|.*\bNCCL\b.*\b(WARN|abort)",
    r"(\[rank\d+\]: ?)?\[?[WIEF]\d{4}\b",
    r".*destroy_process_group",
    # Trackers, and services that a program sends its last words to.
    r"(wandb|mlflow|comet\w*|neptune|clearml|aim|swanlab|tensorboard|dvc|trackio|sentry)\b ?[:|\[]",
    r"\[(neptune|comet|swanlab|clearml|wandb)\]|(COMET|NEPTUNE|ClearML|CLEARML) ",
    r"(sync|syncing|synced)\b",
    r"[🏃🧪🚀⭐💡📈🔗]|View (run|experiment|project|the run)\b|You can (sync|find|view)",
    r"Sentry is attempting|Waiting up to \d|Press Ctrl-",
    r"Run (history|summary):|Find logs at:",
    # Launchers and shells around the program.
    r"Set the environment variable HYDRA_FULL_ERROR",
    r"srun: |slurmstepd: |make(\[\d+\])?: \*\*\*|mpirun |MPI_ABORT |NOTE: invoking MPI_ABORT",
    r"Primary job +terminated|a non-zero exit code|.*\bKilling subprocess \d",
    r"-{3,}$|={3,}$|_{3,}$|\*{3,}$",
    # Runners of tests.
    r"Ran \d+ tests? in|FAILED \((errors|failures)=|FAILED\b|ERROR \S+::|=+ .* =+$|!+ .* !+$",
    r"\d+ (failed|passed|error)\b",
    r"(E|F|\.)+( +\[ *\d+%\])?$",
    r"\d+ items? had failures:|\d+ of +\d+ in \S+$|\*\*\*Test Failed\*\*\*",
)


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return these patterns as one compiled pattern.

    They are compiled at their first use, because most failures do not need them.
    """
    return re.compile("|".join(f"(?:{one})" for one in patterns))


def _is_bar(row: str) -> bool:
    return _any_of(_BARS).match(row.strip()) is not None


def is_known_tail(row: str) -> bool:
    """Return whether a row may follow the exception that ended the program.

    Examples are progress bars, messages of libraries at the end, blank rows and gaps.
    """
    bare = row.strip()
    if not bare or is_gap(row):
        return True
    return _any_of(_KNOWN).match(bare) is not None or _is_bar(row)


def is_rule(row: str) -> bool:
    """Return whether a row is a rule: three or more of one of the characters `-=_*`."""
    return re.fullmatch(r"([-=_*])\1{2,}", row.strip()) is not None


def is_of_a_text(row: str) -> bool:
    """Return whether a row looks like a later row in the text of a well-known exception."""
    return _any_of(_OF_A_TEXT).match(row.lstrip()) is not None


def only_known_tails(rows: Sequence[str], after: int, others: Sequence[Traceback]) -> bool:
    """Return whether only known tails follow row number `after`, the first of an exception.

    Known tails are rows that may follow the end of a program. `others`: tracebacks of exceptions
    that Python ignored, which may follow.

    An indented row belongs to the row above it. Before the first known tail, a row directly above
    an indented one belongs to the text of the exception. Many bars, or bars after a gap, show that
    the program continued.
    """
    ignored = {each.begin: each.last.error_at for each in others}
    index, in_text, bars, has_gap = after + 1, True, 0, False
    while index < len(rows):
        if index in ignored:
            index = ignored[index] + 1
            continue
        row = rows[index]
        if not row.strip():
            index += 1
            continue
        has_gap = has_gap or is_gap(row)
        if _is_bar(row):
            bars += 1
            if has_gap or bars > _BARS_MAX:
                return False
        if is_of_a_text(row):
            pass
        elif is_known_tail(row):
            in_text = in_text and is_gap(row)
        elif not row[0].isspace() and not (in_text and _is_indented(rows, index + 1)):
            return False
        index += 1
    return True


def are_known_tails(rows: Sequence[str]) -> bool:
    """Return whether all of these rows may follow the end of a program (are known tails).

    Indented rows below the first one may, too.
    """
    return all(
        is_known_tail(row) or (index > 0 and row[0].isspace()) for index, row in enumerate(rows)
    )


def _is_indented(rows: Sequence[str], index: int) -> bool:
    return index < len(rows) and bool(rows[index].strip()) and rows[index][0].isspace()
