"""The job-wide restart ledger (behaviour A2): what a worker failure costs, and when it is enough.

Only worker failures are charged. Nodes that are lost, drained or join late never cost budget.
What equal failures lead to, `crash_loop.py` says.
"""

from __future__ import annotations

from msgspec import Struct, field

from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.model import SharedSettings
from rallypoint.core.restarts import crash_loop
from rallypoint.core.restarts.crash_loop import NO_LOOP, CrashLoop
from rallypoint.core.text import UNGUARDED
from rallypoint.core.worker_exits import WorkerExit

BACKOFF_MAX_S = 60.0


class Restart(Struct, frozen=True):
    """Try again, after a pause."""

    delay_s: float
    reason: str
    repeats: str = ""
    """How often the same has happened; empty: it has not."""


class GiveUpJob(Struct, frozen=True):
    """Do not try again."""

    reason: str
    no_progress: str = ""
    """How often the same has happened, if that is why."""


RestartDecision = Restart | GiveUpJob


class Ledger(Struct):
    """What has been spent: `total` in the job's life, `entries` of those that still count."""

    total: int = 0
    entries: list[int] = field(default_factory=list)


def decide(
    ledger: Ledger, settings: SharedSettings, failure: WorkerExit, loop: CrashLoop = NO_LOOP
) -> RestartDecision:
    """What one more failure would lead to. `loop`: with it, how often the same has happened."""
    code, budget, used = failure.code, settings.max_restarts, len(ledger.entries)
    if failure.message.startswith(UNGUARDED):
        return GiveUpJob("a restart can't help")
    if code is not None and code in settings.no_restart_exit_codes:
        return GiveUpJob(f"exit code {code} is not to be retried")
    said, most = crash_loop.describe(loop), settings.max_no_progress
    if crash_loop.is_hopeless(loop, most):
        often = said or "it has failed once"
        return GiveUpJob(f"{often}, restarting does not help (--max-no-progress {most})", often)
    if used >= budget:
        if budget == 0:
            return GiveUpJob("no restarts were allowed (--max-restarts 0)")
        window = settings.restart_window_s
        within = f" within {window:g} s" if window else ""
        all_used = "the only restart was" if budget == 1 else f"all {budget} restarts were"
        return GiveUpJob(f"{all_used} used{within}")
    backoff_s = 0.0
    if settings.restart_backoff_s:
        backoff_s = min(settings.restart_backoff_s * 2.0 ** min(used, 30), BACKOFF_MAX_S)
    delay_s = max(backoff_s, crash_loop.pause_s(loop))
    return Restart(delay_s, f"restart {used + 1} of {budget}", said)


def charge(
    ledger: Ledger, settings: SharedSettings, failure: WorkerExit, loop: CrashLoop = NO_LOOP
) -> RestartDecision:
    """Decide about one failure and, if the workers restart, book it."""
    decision = decide(ledger, settings, failure, loop)
    if isinstance(decision, Restart):
        ledger.total += 1
        ledger.entries.append(ledger.total)
    return decision


def describe(decision: Restart, cause: str) -> str:
    """`restart 1 of 3 in 2 s: rank 0 (node a, local rank 0) exited with code 1`; without a cause
    that is known already. `restart 3 of 9 in 2 s: the same failure 3 times at step 120`."""
    pause = f" in {decision.delay_s:g} s" if decision.delay_s else ""
    why = "; ".join(filter(None, (cause, decision.repeats)))
    return f"{decision.reason}{pause}: {why}" if why else f"{decision.reason}{pause}"


def timers_wanted(ledger: Ledger, settings: SharedSettings) -> dict[Timer, float]:
    """With a window, every entry is forgotten when it has passed."""
    if not settings.restart_window_s:
        return {}
    kind, length_s = TimerKind.CHARGE, settings.restart_window_s
    return {Timer(kind, id=str(entry)): length_s for entry in ledger.entries}


def forget(ledger: Ledger, entry_id: str) -> None:
    """An entry's window has passed. Safe to apply twice."""
    ledger.entries = [entry for entry in ledger.entries if str(entry) != entry_id]
