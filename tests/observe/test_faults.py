"""What is told of exceptions that nobody expected."""

from __future__ import annotations

from rallypoint.observe.faults import PLACES_REMEMBERED, TEXT_CHARACTERS, Faults, describe_fault


def fail(text: str) -> None:
    raise KeyError(text)


def fail_elsewhere() -> None:
    fail("elsewhere")


FAILS = f"test_faults.py:{fail.__code__.co_firstlineno + 1}"
CALLS = f"test_faults.py:{fail_elsewhere.__code__.co_firstlineno + 1}"


def fault(text: str = "a") -> Exception:
    try:
        fail(text)
    except KeyError as error:
        return error
    raise AssertionError


def test_each_place_is_told_once_with_where_it_came_from_and_counted() -> None:
    told: list[str] = []
    faults = Faults(told.append)
    for number in range(1000):
        faults.note("node a sent a message that can't be handled", fault(str(number)))
    (line,) = told
    assert line.startswith(
        "node a sent a message that can't be handled: unexpected KeyError ('0') at "
    )
    assert f"at {FAILS}, called from test_faults.py:" in line
    faults.note("a timer", ValueError("another"))
    assert len(told) == 2
    assert faults.total == 1001
    faults.tell_counts()
    assert len(told) == 3
    assert told[2].startswith("there were 1000 unexpected errors of one kind: KeyError at ")
    assert faults.total == 0


def test_where_it_came_from_is_the_innermost_place() -> None:
    try:
        fail_elsewhere()
    except KeyError as error:
        text = describe_fault(error)
    assert f"at {FAILS}, called from {CALLS}, called from " in text


def test_what_a_stranger_wrote_is_one_short_printable_line() -> None:
    told: list[str] = []
    Faults(told.append).note("x", fault("\x1b[2J\n" * 1000))
    assert told[0].isprintable()
    assert len(told[0]) < TEXT_CHARACTERS + 400


def test_faults_without_end_are_kept_in_bounded_memory_and_lines() -> None:
    told: list[str] = []
    faults = Faults(told.append)
    for number in range(10 * PLACES_REMEMBERED):
        kind = type(f"Error{number}", (Exception,), {})
        faults.note("x", kind())
    assert len(told) == PLACES_REMEMBERED + 1
    assert faults.total == 10 * PLACES_REMEMBERED


def test_who_can_not_be_told_does_no_harm() -> None:
    def tell(line: str) -> None:
        raise OSError

    Faults(tell).note("x", fault())
