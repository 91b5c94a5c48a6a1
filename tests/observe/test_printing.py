"""What Rallypoint prints is safe for a terminal, whatever is in it and whoever has said it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from rallypoint.agent.run import JobEnd
from rallypoint.cli import render
from rallypoint.cli import verdict as verdicts
from rallypoint.cli import verdict_json as json_verdicts
from rallypoint.cli.verdict import verdict_view
from rallypoint.core.model import Cause, Outcome, Verdict
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.elastic.multiprocessing.errors import ProcessFailure
from rallypoint.observe.event import Event, EventSource
from rallypoint.observe.printing import (
    LINE_MAX,
    REPORT_MAX,
    JsonLine,
    answer,
    json_line,
    json_text,
    print_error,
    printed,
    visible,
)
from rallypoint.observe.prometheus import Family, Sample, prometheus_text
from rallypoint.observe.records import AgentEvent

HOSTILE = st.text(
    st.one_of(
        st.sampled_from("\x1b\x00\x07\r\n\t\x7f\x85\x9b\u061c\u200f\u202e\u2028\u2029\u2066\udcff"),
        st.sampled_from('\x1b[2J é\xa0\U000e0001{}"\\%'),
        st.characters(),
    ),
    max_size=80,
)


def is_safe(text: str) -> bool:
    """Nothing in it but what is seen, and line feeds."""
    return all(c in "\n\xa0\u2009\u202f\u3000" or c.isprintable() for c in text)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\nb\r\n\x1b[2Jc\u2028d\x9b\n", r"a | b | \x1b[2Jc | d\x9b"),
        ("pay \u202egnp.exe\u202c \u0645", "pay \\u202egnp.exe\\u202c \u0645"),
        ("loss\r0.1\x7f\x00", r"loss\x0d0.1\x7f\x00"),
        ("\u2066a\u2069\u200f", r"\u2066a\u2069\u200f"),
        ("/logs/\udcff", r"/logs/\xff"),
        ("\ud800 \U000e0041", r"\ud800 \U000e0041"),
        ("\tcafé\xa0du 節", "    café\xa0du 節"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, seen: str) -> None:
    assert visible(text) == seen
    assert visible(seen) == seen


@given(st.lists(HOSTILE, max_size=4))
def test_each_text_is_one_safe_line(texts: list[str]) -> None:
    text = printed(*texts)
    assert is_safe(text)
    assert text.count("\n") == len(texts)


def test_a_line_and_a_report_have_an_end() -> None:
    assert len(visible("x" * 10 * LINE_MAX)) == LINE_MAX
    assert len(visible("\x1b" * 10 * LINE_MAX)) == LINE_MAX
    lines = printed(*(["\x1b" * LINE_MAX] * 100)).splitlines()
    assert sum(map(len, lines)) < REPORT_MAX + LINE_MAX
    assert lines[-1] == f"... and {101 - len(lines)} more lines"


@given(st.recursive(HOSTILE, lambda of: st.lists(of) | st.dictionaries(HOSTILE, of)))
def test_json_is_one_safe_line_that_says_the_same(value: object) -> None:
    line = json_line(value)
    assert line.isprintable()
    assert json.loads(line) == json.loads(json.dumps(value))
    assert printed(line) == f"{line}\n" == f"{json_text(value)}\n"


def test_json_is_cut_in_its_texts_and_stays_json() -> None:
    lines = ["\x1b" * 1000] * 1000
    line = json_line({"event": "verdict", "detail": lines, "log_file": "/logs"})
    assert len(json.loads(line)["detail"]) < 100
    assert json.loads(line)["log_file"] == ""
    assert printed(line) == f"{line}\n"


# Everything that is printed of a job, found by what shows it: a new field of it, or a new way to
# show it, is covered at once.


@cache
def anything_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of this type, with any text in it."""
    origin, of = get_origin(kind), get_args(kind)
    if kind is str:
        return HOSTILE
    if kind in (int, float):  # within what a peer may say
        return st.integers(0, 4_000_000_000)
    if origin in (Union, UnionType):
        return st.one_of(*map(anything_of, of))
    if origin is tuple and of[1:] == (...,):
        return st.lists(anything_of(of[0]), max_size=5).map(tuple)
    if origin is tuple:
        return st.tuples(*map(anything_of, of))
    if origin is dict:
        return st.dictionaries(*map(anything_of, of), max_size=2)
    if isinstance(kind, type) and issubclass(kind, Struct):
        # A launch imports this class only when a worker has failed.
        hints = get_type_hints(kind, localns={"ProcessFailure": ProcessFailure})
        fields = {name: anything_of(hints[name]) for name in kind.__struct_fields__}
        return st.fixed_dictionaries(fields).map(lambda found: kind(**found))
    if isinstance(kind, type) and issubclass(kind, (bool, Enum)):
        return st.sampled_from(list(kind) if issubclass(kind, Enum) else [True, False])
    return st.none()


def shows() -> Iterator[Any]:
    """Each public function that makes lines of a struct, and that struct."""
    for module in (render, verdicts, json_verdicts):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            kinds = get_type_hints(function)
            made, first = kinds.pop("return"), next(iter(kinds.values()), None)
            shows_struct = isinstance(first, type) and issubclass(first, Struct)
            makes_lines = made in (str, JsonLine, tuple[str, ...])
            is_public = function.__module__ == module.__name__ and not name.startswith("_")
            if is_public and shows_struct and makes_lines:
                rest: dict[str, object] = {}
                rest |= {one: "\x1b[2J" for one, kind in list(kinds.items())[1:] if kind is str}
                rest |= {"width": 80} if "width" in kinds else {}
                yield pytest.param(partial(function, **rest), first, id=name)


def printed_of(show: Callable[[Any], Any], value: Struct) -> str:
    shown = show(value)
    return printed(*shown) if isinstance(shown, tuple) else printed(shown)


@pytest.mark.parametrize(("show", "kind"), list(shows()))
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_field_of_what_is_shown_reaches_a_terminal_raw(
    show: Callable[[Any], Any], kind: type[Struct], data: st.DataObject
) -> None:
    assert is_safe(printed_of(show, data.draw(anything_of(kind))))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(end=anything_of(JobEnd))
def test_nothing_that_a_peer_says_of_the_end_reaches_a_terminal_raw(end: JobEnd) -> None:
    cause = end.finish.verdict.cause if end.finish.verdict else None
    assume(cause is None or cause.failure or cause.loss)
    view = verdict_view(end)
    assert is_safe(printed(*verdicts.verdict_lines(view)))
    assert json_verdicts.verdict_json(view).isprintable()


def test_a_log_file_is_shown_like_any_other_text() -> None:
    failure = WorkerExit(
        1, None, rank=1, role="default", pid=7, wall_time=1.7e9, log_file="/x\x1b]0;owned\x07"
    )
    cause = Cause("node", 1, failure)
    verdict = Verdict(Outcome.FAILED, "why", 1, cause=cause)
    end = JobEnd(Finish(FinishKind.VERDICT, verdict=verdict), "job", 1, 1.0)
    text = printed(*verdicts.verdict_lines(verdict_view(end)))
    assert "    log: /x\\x1b]0;owned\\x07 (on node)\n" in text


@given(anything_of(AgentEvent), HOSTILE)
def test_an_event_for_programs_is_one_safe_line(event: AgentEvent, text: str) -> None:
    made = Event(event.name, EventSource.AGENT, 0, {"reason": event.message, text: event.node})
    assert made.serialize().isprintable()
    assert made.line().isprintable()
    assert Event.deserialize(made.serialize()) == made


@given(HOSTILE)
def test_a_label_of_a_metric_is_one_safe_line(text: str) -> None:
    family = Family("a", "gauge", "of a", (Sample(1, (("node", text),)),))
    assert is_safe(prometheus_text([family]))


def test_a_mistake_of_several_lines_can_forge_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("rallypoint", "no such file: \x1b[2Ja\nrallypoint: job a succeeded\n  or so\n")
    assert capsys.readouterr().err == (
        "rallypoint: no such file: \\x1b[2Ja\n  rallypoint: job a succeeded\n    or so\n"
    )


def test_a_stream_that_lacks_a_letter_gets_an_escape(capfd: pytest.CaptureFixture[str]) -> None:
    with open(1, "w", encoding="ascii", closefd=False) as ascii_only:
        stdout, sys.stdout = sys.stdout, ascii_only
        try:
            answer("café")
        finally:
            sys.stdout = stdout
    assert capfd.readouterr().out == "caf\\xe9\n"
