"""The exit code of a command (behaviour A7). Pure.

Apart from `verdict.py`, which a job imports at its end.
"""

from __future__ import annotations

from signal import SIGINT

from rallypoint.config import AgentConfig
from rallypoint.core.model import Outcome
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.errors import ExitClass

SIGNALLED = 128
CLOCKS_DIFFER_S = 10.0
"""So much earlier than this node another one may find that its time is over, and end the job."""
ALREADY_SUCCEEDED = "already-succeeded"
"""Nothing was started, because the job has succeeded before. Like a success by default."""
NO_PROGRESS = "no-progress"
"""Restarting does not help (`--max-no-progress`). Like any other failure by default."""
CLASSES = (*(kind.name.lower() for kind in ExitClass), ALREADY_SUCCEEDED, NO_PROGRESS)
"""What `--exit-code` takes."""


def of_class(config: AgentConfig, kind: ExitClass) -> int:
    """The code of a class: the person's `--exit-code` (the last one), else its own."""
    return dict(config.stop.exit_codes).get(kind.name.lower(), kind.value)


def of_finish(config: AgentConfig, finish: Finish, elapsed_s: float) -> int:
    """128 + n for what a signal ended, else the code of the class. `elapsed_s`: since the start."""
    kind, verdict = _class(finish), finish.verdict
    leave_in_s = config.stop.leave_in_s
    is_due = leave_in_s is not None and elapsed_s > leave_in_s - CLOCKS_DIFFER_S
    if kind is None and is_due and finish.signal != SIGINT:
        kind = ExitClass.INFRASTRUCTURE
    if kind is ExitClass.SUCCESS and verdict is not None and verdict.ended_s_ago is not None:
        return dict(config.stop.exit_codes).get(ALREADY_SUCCEEDED, of_class(config, kind))
    if kind is ExitClass.FAILED and verdict is not None and verdict.no_progress:
        return dict(config.stop.exit_codes).get(NO_PROGRESS, of_class(config, kind))
    return SIGNALLED + finish.signal if kind is None else of_class(config, kind)


def _class(finish: Finish) -> ExitClass | None:
    match finish.kind:
        case FinishKind.SIGNAL:
            return None
        case (
            FinishKind.EXPELLED | FinishKind.COORDINATOR_LOST | FinishKind.STUCK | FinishKind.UNFIT
        ):
            return ExitClass.INFRASTRUCTURE
        case FinishKind.VERDICT:
            assert finish.verdict is not None
    match finish.verdict.outcome:
        case Outcome.SUCCEEDED:
            return ExitClass.SUCCESS
        case Outcome.FAILED:
            return ExitClass.FAILED
        case Outcome.TIMED_OUT | Outcome.INFRASTRUCTURE:
            return ExitClass.INFRASTRUCTURE
        case Outcome.CANCELLED | Outcome.PREEMPTED:
            return None
