"""How joining a shared job ends when it does not end in a world, as errors."""

from __future__ import annotations

from rallypoint.core.shared_member import Closed, Pending
from rallypoint.core.wording import quoted_job
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)


def closed_error(run_id: str, outlook: Closed) -> RendezvousClosedError:
    """The job is over; for a node that stood by, this is no failure."""
    text = f"{quoted_job(run_id)} is over: {outlook.why}"
    return RendezvousClosedError(text) if outlook.was_needed else RendezvousGracefulExitError(text)


def silence_error(backend: str, timeout_s: float) -> RendezvousTimeoutError:
    """The store does not answer, or does not store what it is told to."""
    return RendezvousTimeoutError(
        f"the rendezvous backend {backend!r} has done nothing of what it was asked for "
        f"{timeout_s:g} s: check that it can be reached, and that it stores what it is given"
    )


def timeout_error(run_id: str, outlook: Pending, timeout_s: float) -> RendezvousTimeoutError:
    """Too few came; names those who were here before."""
    missing = ", ".join(outlook.missing) or "nobody who was here before"
    return RendezvousTimeoutError(
        f"waited {timeout_s:g} s for {outlook.min_nodes} nodes of {quoted_job(run_id)}, "
        f"and {outlook.joined} came; missing: {missing}"
    )
