"""Where each worker's stdout and stderr go: a table without side effects.

    wanted                        stdout                       stderr
    --redirects names the stream  its file, nothing between    its file, nothing between
      with --log-max-bytes        relay: file                  relay: file
    --tee names the stream        relay: file + console        relay: file + console
    --local-ranks-filter hides    discarded                    relay: discarded, tail kept
    --output inherit              the agent's own stdout       relay, byte for byte, tail kept;
                                                               a terminal is handed on as it is
    --output prefix               relay, whole lines           relay, whole lines, tail kept

`auto` is `prefix` when a person watches (stdout and stderr are terminals) a world of more than
one worker, else `inherit`, which is what torchrun does. In `inherit` only stderr makes a detour,
because its last lines are what every node has to be told when the worker fails; a terminal is
exempt, since programs draw differently when their stderr is a pipe.

Tee wins over redirect, and has torchrun's prefix in either mode. Without a log file (`--log-dir
/dev/null`) a redirect discards, and a tee only prints.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from rallypoint.config import OutputMode
from rallypoint.process.std_map import Std

NULL_DEVICE = "/dev/null"

# Readable on light and dark backgrounds; red is left to errors.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Console(Enum):
    """What of a relayed stream reaches the agent's own stdout or stderr."""

    NONE = "none"
    RAW = "raw"  # every byte as it came
    PREFIX = "prefix"  # whole lines behind `[role rank]`
    TEE = "tee"  # whole lines behind torchrun's `[role<local rank>]:`


class Wish(Struct, frozen=True):
    """What was asked for one stream of one worker."""

    path: str = ""
    """Its file; empty: none."""
    tee: bool = False
    """Its lines go to the console too."""
    hidden: bool = False
    """Whatever is not written to a file is discarded (`--local-ranks-filter`)."""


class Copies(Struct, frozen=True):
    """The shown lines in which one of `texts` is found also go to the file `path`."""

    path: str
    texts: tuple[str, ...]


class Inherit(Struct, frozen=True):
    """The worker writes to the agent's own descriptor."""


class ToFile(Struct, frozen=True):
    """The worker writes to this file; nobody stands between."""

    path: str


class ToRelay(Struct, frozen=True):
    """The worker writes to a pipe that the relay empties. `path` is empty without a file, which is
    rotated when it reaches `max_bytes`; 0: it grows."""

    console: Console
    path: str
    keep_tail: bool
    max_bytes: int = 0
    copies: Copies | None = None


Route: TypeAlias = Inherit | ToFile | ToRelay


def resolve_mode(
    wanted: OutputMode, *, stdout_is_terminal: bool, stderr_is_terminal: bool, workers: int
) -> OutputMode:
    """Settle `auto`. `workers` counts those of the whole world that can be foreseen."""
    if wanted is not OutputMode.AUTO:
        return wanted
    watched = stdout_is_terminal and stderr_is_terminal
    return OutputMode.PREFIX if watched and workers > 1 else OutputMode.INHERIT


def plan_stream(
    stream: Std,
    wish: Wish,
    *,
    mode: OutputMode,
    stderr_is_terminal: bool,
    max_bytes: int = 0,
    copies: Copies | None = None,
) -> Route:
    """The route of one stream; `mode` is a settled one (see `resolve_mode`)."""
    if mode is OutputMode.AUTO:
        raise ValueError("the output mode must be settled before streams are planned")
    keep_tail = stream is Std.ERR
    path = "" if wish.path == NULL_DEVICE else wish.path
    if wish.tee:
        return ToRelay(Console.TEE, path, keep_tail, max_bytes, copies)
    if wish.path or wish.hidden:
        if (path and max_bytes) or (keep_tail and not path):
            return ToRelay(Console.NONE, path, keep_tail, max_bytes)
        return ToFile(path or NULL_DEVICE)
    if mode is OutputMode.PREFIX:
        return ToRelay(Console.PREFIX, "", keep_tail)
    if stream is Std.OUT or stderr_is_terminal:
        return Inherit()
    return ToRelay(Console.RAW, "", keep_tail)


def colour_wanted(*, is_terminal: bool, no_color: str | None, term: str | None) -> bool:
    """Whether to colour; `no_color` and `term` are the variables NO_COLOR and TERM, if set."""
    return is_terminal and not no_color and term != "dumb"


def drawing_wanted(*, term: str | None) -> bool:
    """Whether a terminal can redraw what stands there already; `term` is TERM, if set."""
    return term != "dumb"


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
