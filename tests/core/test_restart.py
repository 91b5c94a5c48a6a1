"""A2: one ledger for the whole job."""

from __future__ import annotations

import pytest

from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.model import SharedSettings
from rallypoint.core.restarts import (
    BACKOFF_MAX_S,
    GiveUpJob,
    Ledger,
    Restart,
    charge,
    forget,
    timers_wanted,
)
from rallypoint.core.worker_exits import WorkerExit

KILLED = WorkerExit(None, 9, role="default", pid=1)


def exited(code: int) -> WorkerExit:
    return WorkerExit(code, None, role="default", pid=1)


def rules(
    budget: int, *, window_s: float = 0.0, backoff_s: float = 0.0, final: tuple[int, ...] = ()
) -> SharedSettings:
    return SharedSettings(
        "job",
        1,
        1,
        max_restarts=budget,
        restart_window_s=window_s,
        restart_backoff_s=backoff_s,
        no_restart_exit_codes=final,
    )


def test_A2_the_budget_is_spent_once() -> None:
    ledger, settings = Ledger(), rules(2)
    assert charge(ledger, settings, KILLED) == Restart(0.0, "restart 1 of 2")
    assert charge(ledger, settings, exited(1)) == Restart(0.0, "restart 2 of 2")
    assert charge(ledger, settings, exited(1)) == GiveUpJob("all 2 restarts were used")
    assert ledger.total == 2


def test_A2_no_budget_is_said_as_such() -> None:
    ledger = Ledger()
    assert charge(ledger, rules(0), KILLED) == GiveUpJob(
        "no restarts were allowed (--max-restarts 0)"
    )
    assert charge(Ledger(1, [1]), rules(1), KILLED) == GiveUpJob("the only restart was used")
    assert ledger == Ledger()


def test_A2_with_a_window_old_restarts_are_forgotten() -> None:
    ledger, settings = Ledger(), rules(1, window_s=60.0)
    assert isinstance(charge(ledger, settings, KILLED), Restart)
    assert charge(ledger, settings, KILLED) == GiveUpJob("the only restart was used within 60 s")
    timer = Timer(TimerKind.CHARGE, id="1")
    assert timers_wanted(ledger, settings) == {timer: 60.0}
    forget(ledger, timer.id)
    forget(ledger, timer.id)
    assert timers_wanted(ledger, settings) == {}
    assert isinstance(charge(ledger, settings, KILLED), Restart)
    assert ledger.total == 2
    assert timers_wanted(ledger, settings) == {Timer(TimerKind.CHARGE, id="2"): 60.0}


def test_A2_without_a_window_nothing_is_forgotten() -> None:
    assert timers_wanted(Ledger(1, [1]), rules(1)) == {}


def test_A2_a_pause_doubles_up_to_a_minute() -> None:
    ledger, settings = Ledger(), rules(100, backoff_s=5.0)
    delays = []
    for _ in range(40):
        decision = charge(ledger, settings, KILLED)
        assert isinstance(decision, Restart)
        delays.append(decision.delay_s)
    assert delays[:5] == [5.0, 10.0, 20.0, 40.0, BACKOFF_MAX_S]
    assert set(delays[4:]) == {BACKOFF_MAX_S}


@pytest.mark.parametrize("code", [3, 77])
def test_A2_an_exit_code_that_is_final_ends_the_job_whatever_the_budget(code: int) -> None:
    ledger = Ledger()
    decision = charge(ledger, rules(9, final=(3, 77)), exited(code))
    assert decision == GiveUpJob(f"exit code {code} is not to be retried")
    assert ledger == Ledger()
    assert isinstance(charge(ledger, rules(9, final=(3, 77)), KILLED), Restart)
