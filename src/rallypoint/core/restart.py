"""The job-wide restart ledger (behaviour A2): what a worker failure costs, and when it is enough.

Only worker failures are charged. Nodes that are lost, drained or join late never cost budget.
"""

from __future__ import annotations

from msgspec import Struct, field

from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.model import SharedSettings
from rallypoint.core.worker_exits import WorkerExit

BACKOFF_MAX_S = 60.0


class Restart(Struct, frozen=True):
    """Try again, after a pause."""

    delay_s: float
    reason: str


class GiveUp(Struct, frozen=True):
    """Do not try again."""

    reason: str


Decision = Restart | GiveUp


class Ledger(Struct):
    """What has been spent: `total` in the job's life, `entries` of those that still count."""

    total: int = 0
    entries: list[int] = field(default_factory=list)


def decide(ledger: Ledger, settings: SharedSettings, failure: WorkerExit) -> Decision:
    """What one more failure would lead to."""
    code, budget, used = failure.code, settings.max_restarts, len(ledger.entries)
    if code is not None and code in settings.no_restart_exit_codes:
        return GiveUp(f"exit code {code} is not to be retried")
    if used >= budget:
        if budget == 0:
            return GiveUp("no restarts were allowed (--max-restarts 0)")
        window = settings.restart_window_s
        within = f" within {window:g} s" if window else ""
        all_used = "the only restart was" if budget == 1 else f"all {budget} restarts were"
        return GiveUp(f"{all_used} used{within}")
    delay_s = 0.0
    if settings.restart_backoff_s:
        delay_s = min(settings.restart_backoff_s * 2.0 ** min(used, 30), BACKOFF_MAX_S)
    return Restart(delay_s, f"restart {used + 1} of {budget}")


def charge(ledger: Ledger, settings: SharedSettings, failure: WorkerExit) -> Decision:
    """Decide about one failure and, if the workers restart, book it."""
    decision = decide(ledger, settings, failure)
    if isinstance(decision, Restart):
        ledger.total += 1
        ledger.entries.append(ledger.total)
    return decision


def describe(decision: Restart, cause: str) -> str:
    """`restart 1 of 3 in 2 s: rank 0 (node a, local rank 0) exited with code 1`; without a cause
    that is known already."""
    pause = f" in {decision.delay_s:g} s" if decision.delay_s else ""
    return f"{decision.reason}{pause}: {cause}" if cause else f"{decision.reason}{pause}"


def timers_wanted(ledger: Ledger, settings: SharedSettings) -> dict[Timer, float]:
    """With a window, every entry is forgotten when it has passed."""
    if not settings.restart_window_s:
        return {}
    kind, length_s = TimerKind.CHARGE, settings.restart_window_s
    return {Timer(kind, id=str(entry)): length_s for entry in ledger.entries}


def forget(ledger: Ledger, entry_id: str) -> None:
    """An entry's window has passed. Safe to apply twice."""
    ledger.entries = [entry for entry in ledger.entries if str(entry) != entry_id]
