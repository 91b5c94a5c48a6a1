"""The first cause of a round's end (behaviour A3), from what all nodes reported.

Reports are dated on one clock: a failure by when it was received less its age, a lost node by
when it was last heard. The order of blame:

1. A node that was lost outranks every failure received after it was last heard: its peers'
   connection errors are consequences. Its own reports are signs of its life: none of them is a
   consequence of its loss.
2. A failure that only tells of a lost peer yields to any that does not, such as a fatal signal,
   and to the loss of another node.
3. A helper of Rallypoint's that has died outranks every failure since, and all that tell of a lost
   peer. Nobody is to blame then.
4. A worker that fails within two seconds after a node was told to go has failed because of that.
   So may have one that tells of a lost peer within two seconds before: the news of the drain may
   take longer than the news of the failure.
5. Then the earlier event.

Everything else is collateral.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.model import Cause, NodeLoss
from rallypoint.core.text import names
from rallypoint.core.worker_exits import OUT_OF_MEMORY, WorkerExit

_SIGKILL = 9

SIMULTANEOUS_S = 1.0
"""The seconds by which a worker's failure may precede the known death of the helper that caused it:
its node, and the coordinator, may hear of the worker's end first."""

COLLATERAL_S = 2.0
"""The most seconds from the start of a drain to a worker's failure that is blamed on the drain:
schedulers signal every process. A failure on another node that tells of a lost peer may come as
long before it."""


class Breakdown(Struct, frozen=True):
    """The death of a helper process that a node's workers need, as the node's agent reported it."""

    node_id: str
    text: str
    known_at: float


class NodeFailure(Struct):
    """A worker's failure as the coordinator received it."""

    node_id: str
    failure: WorkerExit
    received_at: float

    @property
    def happened_at(self) -> float:
        """When the worker ended, on the coordinator's clock."""
        return self.received_at - self.failure.age_s


def first_cause(
    round_: int,
    reports: Sequence[NodeFailure],
    losses: Sequence[NodeLoss],
    breakdown: Breakdown | None = None,
) -> Cause | None:
    """Return the worker's failure or the lost node that is to blame for the end of a round.

    None if neither is, as when `breakdown` has caused all failures. The module says who is blamed.
    """
    if breakdown is not None:
        reports = [r for r in reports if not _is_consequence(r, breakdown)]
    said_at: dict[str, float] = {}
    for report in reports:
        said_at[report.node_id] = max(report.received_at, said_at.get(report.node_id, 0.0))
    # When each node was heard for the last time, and when it had told of a failure: of nodes that
    # were lost together, one that had told of none is blamed.
    order: dict[str, tuple[float, float]] = {}
    for each in losses:
        said = said_at.get(each.node_id, 0.0)
        order[each.node_id] = max(each.last_heard_at, said), said
    loss = min(losses, key=lambda loss: order[loss.node_id], default=None)
    if loss is None:
        remaining = list(reports)
    else:
        lost_at, _ = order[loss.node_id]
        before = [r for r in reports if r.received_at <= lost_at]
        remaining = without_consequences(before, order)
    others = len(reports) + len(losses) - 1
    if remaining:
        first = min(remaining, key=lambda r: (r.failure.tells_of_lost_peer, r.happened_at))
        return Cause(first.node_id, round_, failure=first.failure, collateral=others)
    if loss is not None:
        return Cause(loss.node_id, round_, loss=loss, collateral=others)
    return None


def without_consequences(
    reports: Sequence[NodeFailure], gone: Collection[str]
) -> list[NodeFailure]:
    """Return the reports without failures that tell of a lost peer, where another node was lost.

    `gone` has the ids of the lost nodes.
    """

    def is_consequence(report: NodeFailure) -> bool:
        others = len(gone) - (report.node_id in gone)
        return report.failure.tells_of_lost_peer and others > 0

    return [report for report in reports if not is_consequence(report)]


def without_collateral_of_drains(
    reports: Sequence[NodeFailure], told_to_go: Mapping[str, float]
) -> list[NodeFailure]:
    """Return the reports without the failures that may be due to a drain.

    `told_to_go` is when each node was told to leave, on the coordinator's clock.
    """

    def is_collateral(report: NodeFailure) -> bool:
        happened_at, is_of_peer = report.happened_at, report.failure.tells_of_lost_peer
        return any(
            follows(began_at, happened_at)
            or (is_of_peer and report.node_id != node_id and follows(happened_at, began_at))
            for node_id, began_at in told_to_go.items()
        )

    return [report for report in reports if not is_collateral(report)]


def follows(earlier_at: float, later_at: float) -> bool:
    """Return whether the later event came at most `COLLATERAL_S` after the earlier one.

    It may be a consequence of it.
    """
    return 0 <= later_at - earlier_at <= COLLATERAL_S


def _is_consequence(report: NodeFailure, breakdown: Breakdown) -> bool:
    near = report.happened_at > breakdown.known_at - SIMULTANEOUS_S
    return near or report.failure.tells_of_lost_peer


def add_details(
    reports: Sequence[NodeFailure], node_id: str, failures: Sequence[WorkerExit]
) -> None:
    """Replace a node's failures in `reports` by those in `failures`, which came later.

    Those have details. They are matched by local rank. Ranks and times stay those of the first
    report.
    """
    detailed = {failure.local_rank: failure for failure in failures}
    for report in reports:
        found = detailed.get(report.failure.local_rank)
        if found is not None and report.node_id == node_id:
            known = report.failure
            report.failure = replace(found, rank=known.rank, age_s=known.age_s)


def describe_failure(node_id: str, failure: WorkerExit) -> str:
    """Return a clause that names the culprit: `rank 3 (node b, local rank 1) exited with 1`."""
    who = f"rank {failure.rank} (node {node_id}, local rank {failure.local_rank})"
    memory = failure.signal == _SIGKILL and OUT_OF_MEMORY in failure.message
    return f"{who} {failure.clause()}" + (f" ({OUT_OF_MEMORY})" if memory else "")


def describe_losses(losses: Sequence[NodeLoss]) -> str:
    """Return a clause about the nodes lost from a round, at least one.

    It names the one that was silent first, with the reason, and then the others, shortened if there
    are very many.
    """
    first, *others = sorted(losses, key=lambda loss: loss.last_heard_at)
    text = f"node {first.node_id} was lost ({first.reason})"
    more = names(tuple(loss.node_id for loss in others))
    return f"{text}, and with it {more}" if others else text


def describe(cause: Cause) -> str:
    """Return a clause that says which worker failed, or which node was lost, and how."""
    if cause.failure is not None:
        return describe_failure(cause.node_id, cause.failure)
    assert cause.loss is not None
    return f"node {cause.node_id} was lost ({cause.loss.reason})"
