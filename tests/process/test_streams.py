"""The plan of a worker's streams, the `--redirects` grammar, prefixes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.config import OutputMode
from rallypoint.errors import UsageError
from rallypoint.process.logs.plan import (
    ConsoleRoute,
    Copies,
    Inherit,
    LinePrefix,
    Route,
    Std,
    StreamWish,
    ToFile,
    ToRelay,
    colour_wanted,
    is_named,
    parse_std_map,
    plan_stream,
    resolve_mode,
    streams_of,
    to_map,
)

INHERIT, PREFIX = OutputMode.INHERIT, OutputMode.PREFIX
OUT_LINES = ToRelay(ConsoleRoute.PREFIX, "", keep_tail=False)
ERR_LINES = ToRelay(ConsoleRoute.PREFIX, "", keep_tail=True)
OUT_RAW = ToRelay(ConsoleRoute.RAW, "", keep_tail=False)
ERR_RAW = ToRelay(ConsoleRoute.RAW, "", keep_tail=True)


OUT, ERR, FILE = Std.OUT, Std.ERR, "/l/file.log"
TEE, SILENT = ConsoleRoute.TEE, ConsoleRoute.NONE


@pytest.mark.parametrize(
    ("stream", "wish", "mode", "route"),
    [
        (OUT, StreamWish(), INHERIT, OUT_RAW),
        (ERR, StreamWish(), INHERIT, ERR_RAW),
        (OUT, StreamWish(), PREFIX, OUT_LINES),
        (ERR, StreamWish(), PREFIX, ERR_LINES),
        (OUT, StreamWish(FILE), INHERIT, ToFile(FILE)),
        (ERR, StreamWish(FILE), PREFIX, ToFile(FILE)),
        (OUT, StreamWish(FILE, tee=True), INHERIT, ToRelay(TEE, FILE, False)),
        (ERR, StreamWish(FILE, tee=True), PREFIX, ToRelay(TEE, FILE, True)),
        # Hidden on the console: files are written, the rest is discarded, its last lines are kept.
        (OUT, StreamWish(FILE, hidden=True), INHERIT, ToFile(FILE)),
        (OUT, StreamWish(hidden=True), PREFIX, ToFile("/dev/null")),
        (ERR, StreamWish(hidden=True), INHERIT, ToRelay(SILENT, "", True)),
        # The null device as log directory.
        (OUT, StreamWish("/dev/null"), INHERIT, ToFile("/dev/null")),
        (ERR, StreamWish("/dev/null"), INHERIT, ToRelay(SILENT, "", True)),
        (ERR, StreamWish("/dev/null", tee=True), INHERIT, ToRelay(TEE, "", True)),
    ],
)
def test_plan(stream: Std, wish: StreamWish, mode: OutputMode, route: Route) -> None:
    assert plan_stream(stream, wish, mode=mode, inherits=Std.NONE) == route
    assert plan_stream(stream, wish, mode=mode, inherits=Std.ALL ^ stream) == route
    on_terminal = Inherit() if route in (OUT_RAW, ERR_RAW) else route
    assert plan_stream(stream, wish, mode=mode, inherits=stream) == on_terminal


def test_what_is_rotated_or_copied_goes_through_the_relay() -> None:
    def plan(wish: StreamWish) -> Route:
        wish = replace(wish, max_bytes=7, copies=copies)
        return plan_stream(OUT, wish, mode=INHERIT, inherits=Std.NONE)

    copies = Copies("/l/copies.log", ("loss",))
    assert plan(StreamWish(FILE)) == ToRelay(SILENT, FILE, False, 7)
    assert plan(StreamWish(FILE, tee=True)) == ToRelay(TEE, FILE, False, 7, copies)
    assert plan(StreamWish("/dev/null")) == ToFile("/dev/null")
    assert plan(StreamWish()) == OUT_RAW


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_is_read_for_progress_goes_through_the_relay_and_where_it_would_go(
    is_terminal: bool,
) -> None:
    def plan(stream: Std, wish: StreamWish, mode: OutputMode = INHERIT) -> Route:
        wish = replace(wish, is_read=True)
        return plan_stream(stream, wish, mode=mode, inherits=Std.ALL if is_terminal else Std.NONE)

    for stream, tail in ((OUT, False), (ERR, True)):
        console = ConsoleRoute.LINES if is_terminal else ConsoleRoute.RAW
        assert plan(stream, StreamWish()) == ToRelay(console, "", tail)
        assert plan(stream, StreamWish(), PREFIX) == ToRelay(ConsoleRoute.PREFIX, "", tail)
        assert plan(stream, StreamWish(FILE)) == ToRelay(SILENT, FILE, tail)
        assert plan(stream, StreamWish(FILE, tee=True)) == ToRelay(TEE, FILE, tail)
        assert plan(stream, StreamWish(hidden=True)) == ToRelay(SILENT, "", tail)


def test_auto_needs_a_person_and_company() -> None:
    def auto(out: bool, err: bool, workers: int) -> OutputMode:
        return resolve_mode(
            OutputMode.AUTO, stdout_is_terminal=out, stderr_is_terminal=err, workers=workers
        )

    assert auto(True, True, 2) is PREFIX
    assert [auto(True, True, 1), auto(True, False, 2), auto(False, True, 2)] == [INHERIT] * 3
    forced = resolve_mode(PREFIX, stdout_is_terminal=False, stderr_is_terminal=False, workers=1)
    assert forced is PREFIX


def test_W17_a_map_names_ranks_of_any_number_of_digits() -> None:
    """torchrun takes one digit."""
    assert Std.from_str("3") is Std.ALL
    assert Std.from_str("0:1,10:3") == {0: Std.OUT, 10: Std.ALL}
    assert Std.from_str("g0128:2,1:1") == {"g128": Std.ERR, 1: Std.OUT}
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert to_map({1: Std.OUT}, 2) == {0: Std.NONE, 1: Std.OUT}


def test_a_map_by_local_and_global_rank() -> None:
    wanted = parse_std_map("0:1,10:3,g12:2", 11)
    assert streams_of(wanted, local_rank=0, rank=24) is Std.OUT
    assert streams_of(wanted, local_rank=10, rank=34) is Std.ALL
    assert streams_of(wanted, local_rank=1, rank=12) is Std.ERR
    assert streams_of(wanted, local_rank=0, rank=12) is Std.ERR  # a global rank says more
    assert streams_of(wanted, local_rank=2, rank=2) is Std.NONE
    assert streams_of(Std.ALL, local_rank=2, rank=2) is Std.ALL
    assert [is_named(("g12", 1), *ranks) for ranks in ((0, 12), (1, 3), (0, 1), (0, 121))] == [
        True,
        True,
        False,
        False,
    ]
    assert is_named(None, 5, 5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4", "'4' is none of 0 (none)"),
        ("", "'' is none of"),
        ("-1", "'-1' is none of"),
        ("out", "'out' is none of"),
        ("0:1,", "'' is wrong: needs 0 to 3, or RANK:0-3"),
        ("0:1;1:2", "'1;1:2' is none of"),
        ("x:1", "'x:1' is wrong"),
        ("gg1:1", "'gg1:1' is wrong"),
        ("g:1", "'g:1' is wrong"),
        ("0:7", "'7' is none of"),
        ("0:1,3", "'3' is wrong"),
        ("0:1,0:2", "rank 0 is named twice"),
        ("g7:1,g07:2", "rank g7 is named twice"),
        ("4:1", "there is no local rank 4: this node runs 4 workers"),
        ("²", "'²' is none of"),
    ],
)
def test_bad_std_map_is_one_line_that_names_the_flag(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_std_map(text, 4, flag="--tee")
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"--tee {text}:")
    assert "\n" not in str(caught.value)


def test_prefixes() -> None:
    def prefix(
        console: ConsoleRoute, *, colour: bool = False, template: str | None = None
    ) -> bytes:
        made = LinePrefix("default", colour, template, host="node-a")
        return made.text(console, local_rank=0, rank=8)

    assert prefix(ConsoleRoute.TEE) == b"[default0]:"
    assert prefix(ConsoleRoute.TEE, colour=True) == b"[default0]:"
    assert (
        prefix(ConsoleRoute.TEE, template="<${rank}/${local_rank} ${role_name}> ")
        == b"<8/0 default> "
    )
    assert prefix(ConsoleRoute.TEE, template="${hostname} $hostname ") == b"node-a $hostname "
    assert prefix(ConsoleRoute.TEE, template="") == b"[default0]:"
    assert prefix(ConsoleRoute.PREFIX) == b"[default 8] "
    assert prefix(ConsoleRoute.PREFIX, template="no") == b"[default 8] "
    assert prefix(ConsoleRoute.RAW) == prefix(ConsoleRoute.NONE) == b""
    coloured = prefix(ConsoleRoute.PREFIX, colour=True)
    assert coloured.startswith(b"\x1b[")
    assert coloured.endswith(b"m[default 8]\x1b[0m ")
    neighbours = {
        LinePrefix("r", colour=True).text(ConsoleRoute.PREFIX, local_rank=0, rank=rank)[:5]
        for rank in range(8)
    }
    assert len(neighbours) == 8


def test_colour_needs_a_terminal_that_wants_it() -> None:
    assert colour_wanted(is_terminal=True, no_color=None, term="xterm")
    assert colour_wanted(is_terminal=True, no_color="", term=None)
    assert not colour_wanted(is_terminal=False, no_color=None, term="xterm")
    assert not colour_wanted(is_terminal=True, no_color="1", term="xterm")
    assert not colour_wanted(is_terminal=True, no_color=None, term="dumb")
