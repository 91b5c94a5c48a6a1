"""The lines of many hosts as one output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rallypoint.cli.launch.output import OutputWriter

OF_A, OF_B = ("a", 2), ("b", 2)
LAST = b"rallypoint: job x failed: rank 0\n    error: boom\n      | line\n"


def shown(
    capfd: pytest.CaptureFixture[str],
    *given: tuple[str, int, bytes],
    names: tuple[str, ...] = ("a", "b"),
    mode: str = "prefix",
    then: Callable[[OutputWriter], None] = lambda output: None,
) -> tuple[str, str]:
    """What stdout and stderr get."""

    async def run() -> None:
        output = OutputWriter(names, mode)
        writing = asyncio.get_running_loop().create_task(output.run())
        for name, fd, data in given:
            await output.take(name, fd, data)
        for name in names:
            output.ended(name)
        then(output)
        output.close()
        await writing

    asyncio.run(run())
    captured = capfd.readouterr()
    return captured.out, captured.err


def test_lines_that_say_where_they_come_from_stay_as_they_are(
    capfd: pytest.CaptureFixture[str],
) -> None:
    out, err = shown(
        capfd,
        ("a", 1, b"[default 0] hel"),
        ("b", 1, b"[default 1] you\n"),
        ("a", 1, b"lo\n"),
        (*OF_A, b"rallypoint 12:00:00 a: round 0: node 0 of 2\n"),
        (*OF_B, b'{"event":"round_started","node":"b"}\n'),
    )
    assert out == "[default 1] you\n[default 0] hello\n"
    assert err == (
        'rallypoint 12:00:00 a: round 0: node 0 of 2\n{"event":"round_started","node":"b"}\n'
    )


def test_any_other_line_gets_the_name_of_its_host(capfd: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capfd, ("a", 1, b"one"), (*OF_B, b"two\nthree\n"))
    assert (out, err) == ("a: one\n", "b: two\nb: three\n")


def test_a_remark_that_all_make_is_shown_once_with_a_host(
    capfd: pytest.CaptureFixture[str],
) -> None:
    remark = b"rallypoint 12:00:0%d: OMP_NUM_THREADS is not set\n"
    other = b"rallypoint 12:00:03: this node hosts the coordinator\n"
    _, err = shown(capfd, (*OF_B, remark % 1), (*OF_A, remark % 2), (*OF_A, other))
    assert err == (
        "rallypoint 12:00:01 b: OMP_NUM_THREADS is not set\n"
        "rallypoint 12:00:03 a: this node hosts the coordinator\n"
    )


def test_the_last_lines_are_held_until_it_is_known_whose_count(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert shown(capfd, (*OF_A, LAST), (*OF_B, LAST)) == ("", "")
    given = ((*OF_A, LAST), (*OF_B, b"rallypoint: this node left\n"), (*OF_A, b"    a worker's\n"))

    def both(output: OutputWriter) -> None:
        assert output.last_size("a") > output.last_size("b")
        output.show_last("b", as_one_host=True)
        output.show_last("a", as_one_host=False)
        output.show_last("a", as_one_host=False)

    _, err = shown(capfd, *given, then=both)
    assert err.startswith("b: rallypoint: this node left\n" + LAST.decode())
    assert err.count("job x failed") == 1


def test_untouched_output_is_untouched(capfd: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capfd, ("a", 1, b"10%\r20%\r"), ("b", 1, b"x"), mode="inherit")
    assert out == "10%\r20%\rx"
    out, err = shown(capfd, ("a", 1, b"10%\r"), ("a", 2, LAST + b"?"), names=("a",))
    assert (out, err) == ("10%\r", LAST.decode() + "?")


def test_a_bar_that_is_drawn_is_a_line_in_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capfd, ("a", 1, b"[default 0] 10%\r[default 0] 20%\r"))
    assert out.splitlines()[-1].endswith("[default 0] 20%")
