"""What a simulated job does: the states that things go wrong in."""

from __future__ import annotations

from rallypoint.core.job_state import JobState
from rallypoint.core.round_state import RoundPhase

STATES = (
    "forming",
    "last-call",
    "backoff",
    "enrolling",
    "running",
    "notice",
    "finishing",
    "ending",
)


def state_of(job: JobState) -> str:
    """One of `STATES`. "notice": workers are asked for a last checkpoint; "finishing": half of the
    nodes have succeeded, and others have not."""
    state = job.round
    if job.verdict is not None:
        return "ending"
    if state.phase is RoundPhase.LAST_CALL:
        return "last-call"
    if state.phase is not RoundPhase.ACTIVE:
        return "backoff" if state.held and job.backoff_s else "forming"
    if not job.started:
        return "enrolling"
    if job.notice is not None and job.notice.round == state.round:
        return "notice"
    return "finishing" if 2 * state.succeeded >= len(state.world) else "running"
