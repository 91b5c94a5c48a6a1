"""The use of a job's time, in words, at its end. Pure."""

from __future__ import annotations

from rallypoint.cli.render import duration_text
from rallypoint.core.text import count
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.watch.segments import Spending

LONG_S = 60.0
"""The least duration in seconds of a job with steps, but no fault, for which the goodput line is
shown."""
VERY_LONG_S = 600.0
"""The least duration in seconds of a job without known steps for which the goodput line is
shown."""
LEAST_SHARE = 0.01
_MOST_SHOWN = 3
_AT_WORK = (str(Spending.STEPS.value), str(Spending.UNKNOWN.value))


def end_lines(view: GoodputView | None) -> tuple[str, ...]:
    """Return one line about goodput for the end of a job; none for a short one.

    `LONG_S` and `VERY_LONG_S` say which are short.
    """
    if view is None or not view.wall_s:
        return ()
    wall = duration_text(view.wall_s)
    if view.useful_s is None:
        if view.wall_s < VERY_LONG_S:
            return ()
        return (f"goodput: no steps were reported in these {wall} (--progress-pattern reads them)",)
    if view.wall_s < LONG_S and not view.faults:
        return ()
    told = [f"{share(view.useful_s, view.wall_s)} of {wall} went into useful steps"]
    done_again = f", {count(view.lost_steps, 'step')} done again" if view.lost_steps else ""
    if view.faults:
        told.append(count(view.faults, "fault") + done_again)
    losses: dict[str, float] = {}
    for part in view.parts:
        if part.spent not in _AT_WORK:
            losses[part.spent] = losses.get(part.spent, 0.0) + part.seconds
    largest = sorted(losses.items(), key=lambda loss: -loss[1])[:_MOST_SHOWN]
    shown = [
        f"{spent} {share(seconds, view.wall_s)}"
        for spent, seconds in largest
        if seconds >= LEAST_SHARE * view.wall_s
    ]
    if shown:
        told.append(f"lost to {', '.join(shown)}")
    return (f"goodput: {'; '.join(told)}",)


def share(seconds: float, wall_s: float) -> str:
    """Return the share of `seconds` in `wall_s` as a text in percent."""
    return f"{100 * seconds / wall_s:.1f} %"
