"""How long properties are tried out.

`make test` tries a third, and always the same: it shows that what has held still holds. With
`HYPOTHESIS_PROFILE=search` all are tried, each time others.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

IS_SEARCH = os.environ.get("HYPOTHESIS_PROFILE") == "search"


def examples(count: int) -> int:
    """How many of so many are tried now."""
    return count if IS_SEARCH else count // 3


def explore(machine: type[RuleBasedStateMachine], count: int, steps: int, **more: Any) -> None:
    """Have the machine take up to so many steps, so many times; `more` are settings."""
    bounded = settings(
        max_examples=examples(count),
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        **more,
    )
    run_state_machine_as_test(machine, settings=bounded)
