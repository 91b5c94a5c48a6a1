"""What number the command ends with (behaviour A7): a table without side effects."""

from __future__ import annotations

from rallypoint.config import AgentConfig
from rallypoint.core.group_events import Finish, FinishKind
from rallypoint.core.model import Outcome
from rallypoint.errors import ExitClass

SIGNALLED = 128


def of_class(config: AgentConfig, kind: ExitClass) -> int:
    """The code of a class: the person's `--exit-code` (the last one), else its own."""
    return dict(config.stop.exit_codes).get(kind.name.lower(), kind.value)


def of_finish(config: AgentConfig, finish: Finish) -> int:
    """128 + n for what a signal ended, else the code of the class."""
    kind = _class(finish)
    return SIGNALLED + finish.signal if kind is None else of_class(config, kind)


def _class(finish: Finish) -> ExitClass | None:
    match finish.kind:
        case FinishKind.SIGNAL:
            return None
        case FinishKind.EXPELLED | FinishKind.COORDINATOR_LOST | FinishKind.STUCK:
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
