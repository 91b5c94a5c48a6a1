"""The account of a job's time, handed from one coordinator to the next (`carried.py`). Pure.

The time between the former coordinator's last report and the takeover is counted as the kind of
time before it, because workers continue meanwhile. The length of that gap is the difference of two
wall-clock times, because no other clock covers a coordinator that restarts an hour later. It is
only displayed, never used for a decision.
"""

from __future__ import annotations

from rallypoint.core.round_record import CarriedRound
from rallypoint.core.settings import MAX_WAIT_S
from rallypoint.core.watch import goodput
from rallypoint.core.watch.carried import PARTS_MAX, Carried
from rallypoint.core.watch.goodput import Goodput, RoundSteps
from rallypoint.core.watch.segments import Spending

_BY_NAME = {str(kind.value): kind for kind in Spending}


def carried(
    account: Goodput, at: float, wall_at: float, rounds: int, newest: CarriedRound | None
) -> Carried:
    """Return the history for the next coordinator: the kind of time now, its cause, and sums.

    `wall_at` is `at` in Unix seconds. `newest` is the round that runs, if one does.
    """
    sums = goodput.spent(account, at).items()
    largest = sorted(sums, key=lambda part: -part[1])[:PARTS_MAX]
    return Carried(
        at=wall_at,
        age_s=goodput.wall_s(account, at),
        now="" if account.now is None else str(account.now.value),
        cause=account.cause,
        parts=tuple((str(kind.value), why, seconds) for (kind, why), seconds in largest),
        furthest=account.furthest,
        redone=account.lost_steps if newest is None else account.redone,
        faults=account.faults,
        spare_node_s=goodput.spare_s(account, at),
        rounds=rounds,
        newest=newest,
        counts_anew=account.counts_anew,
    )


def gap_s(before: Carried, wall_at: float) -> float:
    """Return the age of the former coordinator's report in seconds, from 0 to a day."""
    return min(max(wall_at - before.at, 0.0), MAX_WAIT_S)


def carry_on(account: Goodput, before: Carried, ago_s: float, running: int = -1) -> None:
    """Continue in `account` the sums that another coordinator reported `ago_s` seconds ago.

    The time since that report is counted as the kind that the job spent then. `running` is the
    number of the active round; -1: there is none.
    """
    for kind, cause, seconds in before.parts:
        if kind in _BY_NAME:
            key = (_BY_NAME[kind], cause)
            account.folded[key] = account.folded.get(key, 0.0) + seconds
    account.cause = before.cause
    account.begun_at -= sum(account.folded.values()) + ago_s
    account.until -= ago_s
    account.now = _BY_NAME.get(before.now, Spending.WAITING)
    account.furthest, account.redone = before.furthest, before.redone
    account.counts_anew = before.counts_anew
    account.faults, account.spares.node_s = before.faults, before.spare_node_s
    if before.newest is not None:
        account.steps = steps = RoundSteps(
            account.until,
            cause=before.cause,
            furthest_before=before.newest.furthest_before,
            resumed=before.newest.resumed,
            step_carried=before.newest.step,
        )
        if before.newest.number != running:
            steps.over_at = account.until
