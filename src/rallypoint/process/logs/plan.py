"""Where each worker's stdout and stderr go: a table without side effects.

    wanted                        stdout                       stderr
    --redirects names the stream  its file, nothing between    its file, nothing between
      with --log-max-bytes        relay: file                  relay: file
    --tee names the stream        relay: file + console        relay: file + console
    --local-ranks-filter hides    discarded                    relay: discarded, tail kept
    --output inherit              relay, byte for byte;        the same, tail kept
                                  a terminal is handed on
                                  as it is
    --progress-pattern, where     relay: its file, discarded   the same
      the relay had no part       or byte for byte; a terminal: whole lines
    --output prefix               relay, whole lines           relay, whole lines, tail kept

`auto` is `prefix` when a person watches (stdout and stderr are terminals) a world of more than
one worker, else `inherit`. There the streams make a detour, because the last lines of stderr are
what every node has to be told when the worker fails, and people may ask for the newest lines of
both; a terminal is exempt, since programs draw differently on a pipe.

Tee wins over redirect, and has torchrun's prefix in either mode. Without a log file (`--log-dir
/dev/null`) a redirect discards, and a tee only prints.

The grammar of `--redirects` and `--tee`:

    3               both streams of every worker
    0:1,10:3        by local rank: stdout of 0, both of 10, nothing of the others
    g12:3           by global rank: both streams of the job's worker 12, on any node

A global rank wins over a local one where both name a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, IntFlag
from typing import Any, TypeAlias

from msgspec import Struct

from rallypoint.config import OutputMode
from rallypoint.core.text import count, shown
from rallypoint.errors import UsageError

NULL_DEVICE = "/dev/null"

# Readable on light and dark backgrounds; red is left to errors.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class ConsoleRoute(Enum):
    """The form in which the relay writes a stream to the agent's own stdout or stderr."""

    NONE = "none"
    RAW = "raw"  # every byte as it came
    LINES = "lines"  # whole lines
    PREFIX = "prefix"  # whole lines behind `[role rank]`
    TEE = "tee"  # whole lines behind torchrun's `[role<local rank>]:`


class StreamWish(Struct, frozen=True):
    """The requested destinations of one stream of one worker."""

    path: str = ""
    """The file of the stream; empty: none."""
    tee: bool = False
    """Whether its lines go to the console too."""
    hidden: bool = False
    """Whether output without a file is discarded (`--local-ranks-filter`)."""
    max_bytes: int = 0
    """The size in bytes at which its file is rotated; 0: no limit."""
    copies: Copies | None = None
    """The second file for some of the lines of a teed stream."""
    is_read: bool = False
    """Whether the relay looks for the worker's progress in it."""


class Copies(Struct, frozen=True):
    """The copying to the file `path` of a teed stream's lines that contain one of `texts`."""

    path: str
    texts: tuple[str, ...]


class Inherit(Struct, frozen=True):
    """The route of a stream for which the worker inherits the agent's own descriptor."""


class ToFile(Struct, frozen=True):
    """The route of a stream that the worker writes to the file `path` directly."""

    path: str


class ToRelay(Struct, frozen=True):
    """The route of a stream that the worker writes to a pipe, which the relay reads.

    `path` is empty without a file. The file is rotated when it reaches `max_bytes`; 0: no limit.
    `keep_tail`: the relay remembers the stream's tracebacks for the report of a failure.
    """

    console: ConsoleRoute
    path: str
    keep_tail: bool
    max_bytes: int = 0
    copies: Copies | None = None


Route: TypeAlias = Inherit | ToFile | ToRelay


def resolve_mode(
    wanted: OutputMode, *, stdout_is_terminal: bool, stderr_is_terminal: bool, workers: int
) -> OutputMode:
    """Return the output mode for `auto`, and any other mode as it is.

    It is `prefix` if stdout and stderr are terminals and the job has several workers, else
    `inherit`. `workers` counts those of the whole job, as far as they are known beforehand.
    """
    if wanted is not OutputMode.AUTO:
        return wanted
    watched = stdout_is_terminal and stderr_is_terminal
    return OutputMode.PREFIX if watched and workers > 1 else OutputMode.INHERIT


def plan_stream(stream: Std, wish: StreamWish, *, mode: OutputMode, inherits: Std) -> Route:
    """Return the route of one stream; `mode` must not be `auto` (see `resolve_mode`).

    `inherits`: those streams of this process that workers may inherit, in an agent its terminals.
    Raises ValueError for `auto`.
    """
    if mode is OutputMode.AUTO:
        raise ValueError("the output mode must be settled before streams are planned")
    keep_tail = stream is Std.ERR
    path = "" if wish.path == NULL_DEVICE else wish.path
    if wish.tee:
        return ToRelay(ConsoleRoute.TEE, path, keep_tail, wish.max_bytes, wish.copies)
    if wish.path or wish.hidden:
        if (path and wish.max_bytes) or (keep_tail and not path) or wish.is_read:
            return ToRelay(ConsoleRoute.NONE, path, keep_tail, wish.max_bytes)
        return ToFile(path or NULL_DEVICE)
    if mode is OutputMode.PREFIX:
        return ToRelay(ConsoleRoute.PREFIX, "", keep_tail)
    if not wish.is_read and stream in inherits:
        return Inherit()
    # The bytes of two pipes, a bar and what is printed beside it, come in any order.
    console = ConsoleRoute.LINES if stream in inherits else ConsoleRoute.RAW
    return ToRelay(console, "", keep_tail)


def colour_wanted(*, is_terminal: bool, no_color: str | None, term: str | None) -> bool:
    """Return whether to use colours; the variables NO_COLOR and TERM are None if not set."""
    return is_terminal and not no_color and term != "dumb"


def drawing_wanted(*, term: str | None) -> bool:
    """Return whether a terminal can redraw lines: unless `term`, the variable TERM, is `dumb`."""
    return term != "dumb"


class LinePrefix(Struct, frozen=True):
    """The text before each line of a worker's streams.

    `template` is that of `--log-line-prefix-template`, with the macros ${role_name}, ${local_rank},
    ${rank} and ${hostname}, which is `host`. Unless it is empty it replaces torchrun's default, and
    so touches teed streams only. For these, `given` has whole prefixes by local rank, which replace
    the template. Only the prefixes of `--output prefix` are coloured.
    """

    role: str
    colour: bool = False
    template: str | None = None
    given: Mapping[int, str] = {}
    host: str = ""

    def text(self, console: ConsoleRoute, local_rank: int, rank: int) -> bytes:
        """Return the prefix of a worker's lines in this form of output; empty: it has none."""
        match console:
            case ConsoleRoute.NONE | ConsoleRoute.RAW | ConsoleRoute.LINES:
                return b""
            case ConsoleRoute.TEE:
                text = self.given.get(local_rank)
                if text is None:
                    text = self.template or "[${role_name}${local_rank}]:"
                    text = text.replace("${role_name}", self.role)
                    text = text.replace("${hostname}", self.host)
                    text = text.replace("${local_rank}", str(local_rank))
                    text = text.replace("${rank}", str(rank))
            case ConsoleRoute.PREFIX:
                text = f"[{self.role} {rank}]"
                if self.colour:
                    text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
                text += " "
        return text.encode(errors="backslashreplace")


_FORM = "needs 0 to 3, or RANK:0-3 with commas, as in 0:1,10:3 (g12:3: global rank 12)"


class Std(IntFlag):
    """A set of a worker's streams; the numbers are those of torchrun's `--redirects`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int | str, Std]:
        """Parse `3`, or a map such as `0:1,10:3,g12:2`; global ranks are keys such as `"g12"`.

        Returns a Std for all workers, or a dict by rank. Raises ValueError, one line with the text
        and the valid form.
        """
        if ":" not in vm:
            return _std(vm, vm)
        chosen: dict[int | str, Std] = {}
        for item in vm.split(","):
            rank_text, colon, std_text = item.partition(":")
            rank = rank_key(rank_text)
            if not colon or rank is None:
                raise ValueError(f"{vm}: {item!r} is wrong: {_FORM}")
            if rank in chosen:
                raise ValueError(f"{vm}: rank {rank} is named twice")
            chosen[rank] = _std(std_text, vm)
        return chosen


StdMap: TypeAlias = Std | Mapping[Any, Std]
"""The same streams for every worker; or by local rank (5) and global rank ("g12")."""


def rank_key(text: str) -> int | str | None:
    """Parse a rank: `5` is 5 (a local rank), `g12` is "g12" (a global one).

    None for other texts.
    """
    text = text.strip()
    digits = text.removeprefix("g")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        return None
    return int(digits) if digits == text else f"g{int(digits)}"


def streams_of(wanted: StdMap, local_rank: int, rank: int) -> Std:
    """Return the streams that `wanted` names for one worker.

    An entry for its global rank wins over one for its local rank.
    """
    if isinstance(wanted, Std):
        return wanted
    return Std(wanted.get(f"g{rank}", wanted.get(local_rank, Std.NONE)))


def is_named(ranks: Collection[int | str] | None, local_rank: int, rank: int) -> bool:
    """Return whether a filter includes this worker; None includes all."""
    return ranks is None or local_rank in ranks or f"g{rank}" in ranks


def to_map(val_or_map: StdMap, local_world_size: int) -> dict[int, Std]:
    """Return the streams of each local rank; Std.NONE for a rank that is not named.

    Entries for global ranks are ignored.
    """
    return {rank: streams_of(val_or_map, rank, -1) for rank in range(local_world_size)}


def names_any(wanted: StdMap) -> bool:
    """Return whether `wanted` names a stream of any worker."""
    return bool(wanted if isinstance(wanted, Std) else any(wanted.values()))


def parse_std_map(text: str, nproc: int, *, flag: str = "") -> StdMap:
    """Parse the text as `Std.from_str` does, for a node of `nproc` workers.

    Raises UsageError naming `flag`, the offending part and what would be right.
    """
    try:
        wanted = Std.from_str(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None
    if not isinstance(wanted, Std):
        check_ranks(wanted, nproc, f"{flag} {shown(text)}")
    return wanted


def check_ranks(ranks: Collection[int | str], nproc: int, origin: str) -> None:
    """Raise UsageError, beginning with `origin`, if a local rank does not exist on this node."""
    for rank in ranks:
        if isinstance(rank, int) and rank >= nproc:
            raise UsageError(
                f"{origin}: there is no local rank {rank}: "
                f"this node runs {count(nproc, 'worker')}, local ranks count from 0; "
                f"g{rank} is the global rank {rank}"
            )


def _std(value: str, whole: str) -> Std:
    value = value.strip()
    if len(value) != 1 or value not in "0123":
        raise ValueError(
            f"{whole}: {value!r} is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both): {_FORM}"
        )
    return Std(int(value))
