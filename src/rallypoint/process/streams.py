"""Where each worker's stdout and stderr go: a table without side effects.

    wanted                        stdout                       stderr
    --redirects names the stream  its file, nothing between    its file, nothing between
    --tee names the stream        relay: file + console        relay: file + console
    --output inherit              the agent's own stdout       relay, byte for byte, tail kept;
                                                               a terminal is handed on as it is
    --output prefix               relay, whole lines           relay, whole lines, tail kept

`auto` is `prefix` when a person watches (stdout and stderr are terminals) a world of more than
one worker, else `inherit`, which is what torchrun does. In `inherit` only stderr makes a detour,
because its last lines are what every node has to be told when the worker fails; a terminal is
exempt, since programs draw differently when their stderr is a pipe.

Tee wins over redirect. Without a log file (`--log-dir /dev/null`) a redirect discards, and a tee
only prints.
"""

from __future__ import annotations

from enum import Enum, IntFlag
from typing import TypeAlias

from msgspec import Struct

from rallypoint.config import OutputMode
from rallypoint.core.wording import count
from rallypoint.errors import UsageError

NULL_DEVICE = "/dev/null"

# Readable on light and dark backgrounds; red is left to errors.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Std(IntFlag):
    """A set of a worker's streams; the numbers are those of torchrun's `--redirects`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


class Console(Enum):
    """What of a relayed stream reaches the agent's own stdout or stderr."""

    NONE = "none"
    RAW = "raw"  # every byte as it came
    PREFIX = "prefix"  # whole lines behind `[role rank]`
    TEE = "tee"  # whole lines behind torchrun's `[role<local rank>]:`


class WorkerFiles(Struct, frozen=True):
    """The files of one worker in one round; all empty when the log directory is the null device."""

    stdout: str
    stderr: str
    error: str


class Inherit(Struct, frozen=True):
    """The worker writes to the agent's own descriptor."""


class ToFile(Struct, frozen=True):
    """The worker writes to this file; nobody stands between."""

    path: str


class ToRelay(Struct, frozen=True):
    """The worker writes to a pipe that the relay empties. `path` is empty without a file."""

    console: Console
    path: str
    keep_tail: bool


Route: TypeAlias = Inherit | ToFile | ToRelay


class WorkerStreams(Struct, frozen=True):
    """The routes of one worker's two streams."""

    stdout: Route
    stderr: Route

    @property
    def needs_relay(self) -> bool:
        return isinstance(self.stdout, ToRelay) or isinstance(self.stderr, ToRelay)


def resolve_mode(
    wanted: OutputMode, *, stdout_is_terminal: bool, stderr_is_terminal: bool, workers: int
) -> OutputMode:
    """Settle `auto`. `workers` counts those of the whole world that can be foreseen."""
    if wanted is not OutputMode.AUTO:
        return wanted
    watched = stdout_is_terminal and stderr_is_terminal
    return OutputMode.PREFIX if watched and workers > 1 else OutputMode.INHERIT


def plan_streams(
    *,
    mode: OutputMode,
    redirects: Std,
    tee: Std,
    stderr_is_terminal: bool,
    files: WorkerFiles,
) -> WorkerStreams:
    """The routes of one worker; `mode` is a settled one (see `resolve_mode`)."""
    if mode is OutputMode.AUTO:
        raise ValueError("the output mode must be settled before streams are planned")

    def route(stream: Std, path: str) -> Route:
        keep_tail = stream is Std.ERR
        if tee & stream:
            console = Console.PREFIX if mode is OutputMode.PREFIX else Console.TEE
            return ToRelay(console, path, keep_tail)
        if redirects & stream:
            return ToFile(path or NULL_DEVICE)
        if mode is OutputMode.PREFIX:
            return ToRelay(Console.PREFIX, "", keep_tail)
        if stream is Std.OUT or stderr_is_terminal:
            return Inherit()
        return ToRelay(Console.RAW, "", keep_tail)

    return WorkerStreams(route(Std.OUT, files.stdout), route(Std.ERR, files.stderr))


def parse_std_map(text: str, nproc: int, *, flag: str = "--redirects") -> tuple[Std, ...]:
    """One `Std` per local rank from `3` (all of them) or `0:1,10:3` (the rest: none).

    Raises UsageError naming `flag`, the offending part and what would be right.
    """
    if ":" not in text:
        return (_parse_std(text, text, flag),) * nproc
    chosen: dict[int, Std] = {}
    for item in text.split(","):
        rank_text, colon, std_text = item.partition(":")
        if not colon or not _is_number(rank_text):
            raise UsageError(
                f"{flag} {text}: {item!r} is not of the form <local rank>:<0|1|2|3>, as in 0:1,10:3"
            )
        rank = int(rank_text)
        if rank >= nproc:
            raise UsageError(
                f"{flag} {text}: there is no local rank {rank}: "
                f"this node runs {count(nproc, 'worker')}, local ranks count from 0"
            )
        if rank in chosen:
            raise UsageError(f"{flag} {text}: local rank {rank} is named twice")
        chosen[rank] = _parse_std(std_text, text, flag)
    return tuple(chosen.get(rank, Std.NONE) for rank in range(nproc))


def _parse_std(value: str, whole: str, flag: str) -> Std:
    if _is_number(value) and int(value) <= Std.ALL:
        return Std(int(value))
    raise UsageError(
        f"{flag} {whole}: {value!r} is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both); "
        f"to choose per local rank write <local rank>:<0|1|2|3>, as in 0:1,10:3"
    )


def _is_number(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit()


def colour_wanted(*, is_terminal: bool, no_color: str | None, term: str | None) -> bool:
    """Whether to colour; `no_color` and `term` are the variables NO_COLOR and TERM, if set."""
    return is_terminal and not no_color and term != "dumb"


def line_prefix(
    console: Console,
    *,
    role: str,
    local_rank: int,
    rank: int,
    colour: bool = False,
    template: str | None = None,
) -> bytes:
    """What stands before each line of a stream.

    `template` is TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, with the macros ${role_name},
    ${local_rank} and ${rank}; it replaces torchrun's default, so it touches tees only.
    """
    match console:
        case Console.NONE | Console.RAW:
            return b""
        case Console.TEE:
            text = f"[{role}{local_rank}]:"
            if template is not None:
                macros = {"role_name": role, "local_rank": str(local_rank), "rank": str(rank)}
                text = _fill(template, macros)
        case Console.PREFIX:
            text = f"[{role} {rank}]"
            if colour:
                text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
            text += " "
    return text.encode(errors="backslashreplace")


def _fill(template: str, macros: dict[str, str]) -> str:
    for name, value in macros.items():
        template = template.replace(f"${{{name}}}", value)
    return template
