"""The first cause of a round's end (behaviour A3), from what all nodes reported.

Reports are dated on one clock: a failure by when it was received less its age, a lost node by
when it was last heard. The order of blame:

1. A node that was lost outranks every failure received after it was last heard: its peers'
   connection errors are consequences.
2. A failure that only tells of a lost peer yields to any that does not, such as a fatal signal.
3. Then the earlier event.

Everything else is collateral.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rallypoint.core.model import Cause, NodeLoss, WorkerFailure
from rallypoint.core.wording import names, signal_name


class Report(Struct):
    """A failure as the coordinator received it."""

    node_id: str
    failure: WorkerFailure
    received_at: float

    @property
    def happened_at(self) -> float:
        """When the worker ended, on the coordinator's clock."""
        return self.received_at - self.failure.age_s


def first_cause(round_: int, reports: Sequence[Report], losses: Sequence[NodeLoss]) -> Cause | None:
    """Who is to blame, or None when neither a failure nor a loss was reported."""
    loss = min(losses, key=lambda loss: loss.last_heard_at, default=None)
    first = min(reports, key=lambda r: (r.failure.tells_of_lost_peer, r.happened_at), default=None)
    others = len(reports) + len(losses) - 1
    if loss is not None and (first is None or first.received_at > loss.last_heard_at):
        return Cause(loss.node_id, round_, loss=loss, collateral=others)
    if first is not None:
        return Cause(first.node_id, round_, failure=first.failure, collateral=others)
    return None


def how_it_ended(failure: WorkerFailure) -> str:
    """`was killed by SIGKILL`, `exited with code 3`, `was ended: timer 'step' expired`,
    `made no progress for 300 s: at step 17`."""
    if failure.exit_code is None and failure.signal is None and failure.reason:
        return f"made {failure.reason}"
    if failure.reason:
        return f"was ended: {failure.reason}"
    if failure.signal is not None:
        return f"was killed by {signal_name(failure.signal)}"
    return f"exited with code {failure.exit_code}"


def describe_failure(node_id: str, failure: WorkerFailure) -> str:
    """One clause that names the culprit: `rank 3 (node b, local rank 1) exited with code 1`."""
    who = f"rank {failure.rank} (node {node_id}, local rank {failure.local_rank})"
    return f"{who} {how_it_ended(failure)}"


def describe_losses(losses: Sequence[NodeLoss]) -> str:
    """One clause that names all nodes lost from a round, the first one first; at least one."""
    first, *others = sorted(losses, key=lambda loss: loss.last_heard_at)
    text = f"node {first.node_id} was lost ({first.reason})"
    more = names(tuple(loss.node_id for loss in others))
    return f"{text}, and with it {more}" if others else text


def describe(cause: Cause) -> str:
    """One clause that names the culprit, worker or node."""
    if cause.failure is not None:
        return describe_failure(cause.node_id, cause.failure)
    assert cause.loss is not None
    return f"node {cause.node_id} was lost ({cause.loss.reason})"
