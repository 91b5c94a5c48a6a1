"""The plan of a worker's streams, the `--redirects` grammar, prefixes."""

from __future__ import annotations

import pytest

from rallypoint.config import OutputMode
from rallypoint.errors import UsageError
from rallypoint.process.streams import (
    Console,
    Inherit,
    Std,
    ToFile,
    ToRelay,
    WorkerFiles,
    WorkerStreams,
    colour_wanted,
    line_prefix,
    parse_std_map,
    plan_streams,
    resolve_mode,
)

FILES = WorkerFiles("/l/stdout.log", "/l/stderr.log", "/l/error.json")
NO_FILES = WorkerFiles("", "", "")
INHERIT, PREFIX = OutputMode.INHERIT, OutputMode.PREFIX
OUT_LINES = ToRelay(Console.PREFIX, "", keep_tail=False)
ERR_LINES = ToRelay(Console.PREFIX, "", keep_tail=True)
ERR_RAW = ToRelay(Console.RAW, "", keep_tail=True)


@pytest.mark.parametrize(
    ("mode", "redirects", "tee", "terminal", "stdout", "stderr"),
    [
        (INHERIT, 0, 0, False, Inherit(), ERR_RAW),
        (INHERIT, 0, 0, True, Inherit(), Inherit()),
        (PREFIX, 0, 0, True, OUT_LINES, ERR_LINES),
        (PREFIX, 0, 0, False, OUT_LINES, ERR_LINES),
        (INHERIT, 1, 0, False, ToFile("/l/stdout.log"), ERR_RAW),
        (INHERIT, 2, 0, True, Inherit(), ToFile("/l/stderr.log")),
        (PREFIX, 3, 0, True, ToFile("/l/stdout.log"), ToFile("/l/stderr.log")),
        (INHERIT, 0, 1, False, ToRelay(Console.TEE, "/l/stdout.log", False), ERR_RAW),
        (INHERIT, 3, 2, True, ToFile("/l/stdout.log"), ToRelay(Console.TEE, FILES.stderr, True)),
        (PREFIX, 0, 1, True, ToRelay(Console.PREFIX, "/l/stdout.log", False), ERR_LINES),
    ],
)
def test_plan(
    mode: OutputMode,
    redirects: int,
    tee: int,
    terminal: bool,
    stdout: Inherit | ToFile | ToRelay,
    stderr: Inherit | ToFile | ToRelay,
) -> None:
    plan = plan_streams(
        mode=mode,
        redirects=Std(redirects),
        tee=Std(tee),
        stderr_is_terminal=terminal,
        files=FILES,
    )
    assert plan == WorkerStreams(stdout, stderr)


def test_null_log_dir_discards_redirects_and_tees_to_the_console_only() -> None:
    plan = plan_streams(
        mode=INHERIT, redirects=Std.ALL, tee=Std.ERR, stderr_is_terminal=False, files=NO_FILES
    )
    assert plan == WorkerStreams(ToFile("/dev/null"), ToRelay(Console.TEE, "", keep_tail=True))


def test_auto_needs_a_person_and_company() -> None:
    def auto(out: bool, err: bool, workers: int) -> OutputMode:
        return resolve_mode(
            OutputMode.AUTO, stdout_is_terminal=out, stderr_is_terminal=err, workers=workers
        )

    assert auto(True, True, 2) is PREFIX
    assert [auto(True, True, 1), auto(True, False, 2), auto(False, True, 2)] == [INHERIT] * 3
    forced = resolve_mode(PREFIX, stdout_is_terminal=False, stderr_is_terminal=False, workers=1)
    assert forced is PREFIX


def test_std_map() -> None:
    assert parse_std_map("3", 2) == (Std.ALL, Std.ALL)
    assert parse_std_map("0", 1) == (Std.NONE,)
    # Local ranks of several digits: torchrun refuses them (W17).
    chosen = parse_std_map("0:1,10:3", 12)
    assert (chosen[0], chosen[10]) == (Std.OUT, Std.ALL)
    assert all(std is Std.NONE for rank, std in enumerate(chosen) if rank not in (0, 10))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4", "'4' is none of 0 (none)"),
        ("", "'' is none of"),
        ("-1", "'-1' is none of"),
        ("out", "'out' is none of"),
        ("0:1,", "'' is not of the form"),
        ("0:1;1:2", "'1;1:2' is none of"),
        ("x:1", "'x:1' is not of the form"),
        ("0:7", "'7' is none of"),
        ("0:1,3", "'3' is not of the form"),
        ("0:1,0:2", "local rank 0 is named twice"),
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
    def prefix(console: Console, *, colour: bool = False, template: str | None = None) -> bytes:
        return line_prefix(
            console, role="default", local_rank=0, rank=8, colour=colour, template=template
        )

    assert prefix(Console.TEE) == b"[default0]:"
    assert prefix(Console.TEE, colour=True) == b"[default0]:"
    assert (
        prefix(Console.TEE, template="<${rank}/${local_rank} ${role_name}> ") == b"<8/0 default> "
    )
    assert prefix(Console.PREFIX) == b"[default 8] "
    assert prefix(Console.PREFIX, template="no") == b"[default 8] "
    assert prefix(Console.RAW) == prefix(Console.NONE) == b""
    coloured = prefix(Console.PREFIX, colour=True)
    assert coloured.startswith(b"\x1b[")
    assert coloured.endswith(b"m[default 8]\x1b[0m ")
    neighbours = {
        line_prefix(Console.PREFIX, role="r", local_rank=0, rank=rank, colour=True)[:5]
        for rank in range(8)
    }
    assert len(neighbours) == 8


def test_colour_needs_a_terminal_that_wants_it() -> None:
    assert colour_wanted(is_terminal=True, no_color=None, term="xterm")
    assert colour_wanted(is_terminal=True, no_color="", term=None)
    assert not colour_wanted(is_terminal=False, no_color=None, term="xterm")
    assert not colour_wanted(is_terminal=True, no_color="1", term="xterm")
    assert not colour_wanted(is_terminal=True, no_color=None, term="dumb")
