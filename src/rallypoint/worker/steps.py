"""How far this worker has got."""

from __future__ import annotations

import os
from time import monotonic_ns

from rallypoint.wire import shm_words as at
from rallypoint.worker.shm import own_shm

_STEP, _PROGRESS_AT = at.STEP, at.PROGRESS_AT
_slot: memoryview | None = None
"""This worker's slot, once the agent knows that it tells of its progress."""


def progress(step: int) -> None:
    """Tell that this worker has made a step. Cheap enough for every one of them.

    With `--hang-timeout` this is what the job watches: call it where the script would not get to
    if it hung. The first call also lets the agent ask this process for the stacks of its threads.
    """
    slot = _slot
    if slot is None:
        _begin(step)
        return
    try:
        slot[_STEP] = step
    except (TypeError, ValueError):
        slot[_STEP] = _whole(step)
    slot[_PROGRESS_AT] = monotonic_ns()


def _begin(step: int) -> None:
    global _slot
    found = own_shm()
    if found is None or found.slot is None:
        return
    found.offer_stacks()
    found.slot[_STEP] = _whole(step)
    found.slot[_PROGRESS_AT] = monotonic_ns()
    _slot = found.slot
    found.notify("progress")


def _whole(step: float) -> int:
    """What fits into a word: any number that a script may count by must do."""
    return max(min(int(step), at.MAX_WORD), -at.MAX_WORD)


def _forget() -> None:
    global _slot
    _slot = None


os.register_at_fork(after_in_child=_forget)
