"""Unexpected exceptions after which the process continues (docs/design/untrusted-input.md).

Each place in the code is reported once, with its callers, and at the end how often it occurred.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from rallypoint.observe.printing import visible

PLACES_SHOWN = 3
PLACES_REMEMBERED = 64
TEXT_CHARACTERS = 200


class Faults:
    """The unexpected exceptions of a process, reported and counted. Its methods never raise.

    `report` gets one line for each place in the code, and may raise.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._counts: dict[str, int] = {}

    @property
    def total(self) -> int:
        """The number of faults since the counts were reset by `tell_counts`."""
        return sum(self._counts.values())

    def note(self, what: str, error: BaseException) -> None:
        """Note that `error` ended `what`, while all else continues. Report it if it is new."""
        place = f"{type(error).__name__} at {_places(error.__traceback__, 1)}"
        if place not in self._counts and len(self._counts) >= PLACES_REMEMBERED:
            place = "other places"
        self._counts[place] = count = self._counts.get(place, 0) + 1
        if count == 1:
            with suppress(Exception):
                self._report(f"{what}: {describe_fault(error)}: this is a bug, please report it")

    def of_loop(self, loop: object, context: dict[str, object]) -> None:
        """Note an exception of a loop's callback. For the loop's `set_exception_handler`."""
        error = context.get("exception")
        unknown = RuntimeError(str(context["message"]))
        self.note("in the event loop", error if isinstance(error, BaseException) else unknown)

    def tell_counts(self) -> None:
        """Report how often each place failed, if more than once, and reset the counts."""
        counts, self._counts = self._counts, {}
        for place, count in counts.items():
            if count > 1:
                with suppress(Exception):
                    self._report(f"there were {count} unexpected errors of one kind: {place}")


def describe_fault(error: BaseException) -> str:
    """Return one line with the exception and the innermost three places of its traceback."""
    text = visible(str(error)[:TEXT_CHARACTERS])
    where = _places(error.__traceback__, PLACES_SHOWN)
    return f"unexpected {type(error).__name__} ({text}) at {where}"


def _places(trace: TracebackType | None, count: int) -> str:
    """Return the innermost `count` places, as paths within the package or names of other files."""
    found = []
    while trace is not None:
        _, ours, within = trace.tb_frame.f_code.co_filename.rpartition("/rallypoint/")
        found.append(f"{within if ours else within.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return ", called from ".join(found[: -count - 1 : -1]) or "an unknown place"
