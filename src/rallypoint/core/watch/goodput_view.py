"""The use of a job's time, for people and programs. Pure data."""

from __future__ import annotations

from msgspec import Struct


class TimePart(Struct, frozen=True):
    """The seconds of one kind of time, with one cause."""

    spent: str
    cause: str
    seconds: float


class GoodputView(Struct, frozen=True):
    """The use of a job's time."""

    wall_s: float
    useful_s: float | None
    """The seconds in which the job did steps for the first time; None: no steps are known."""
    parts: tuple[TimePart, ...]
    """The seconds by kind and cause, which add up to `wall_s`; the largest first."""
    furthest_step: int
    """The largest step that the job has done; -1: no steps are known."""
    lost_steps: int
    """The number of steps that were done, and had to be done again or still have to."""
    faults: int
    mean_s_between_faults: float | None
    spare_node_s: float
