"""The lines of an agent about its state, and the reasons of its waits."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.config import AgentConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import Assignment, JobStatus
from rallypoint.core.node.machine import NodePhase, WorkersState
from rallypoint.core.settings import SharedSettings
from rallypoint.core.text import count
from rallypoint.observe.records import StatusView, event_now


def place_text(assignment: Assignment, workers: int) -> str:
    """Return `round 2: node 1 of 4, ranks 2-3 of 8 (why there is a new round)`."""
    first, last = assignment.base_rank, assignment.base_rank + workers - 1
    ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
    return (
        f"round {assignment.round}: node {assignment.group_rank} of "
        f"{assignment.group_world_size}, {ranks} of {assignment.world_size} ({assignment.why})"
    )


def anew_text(
    config: AgentConfig, *, replaced: bool, runs: bool, is_replaceable: bool = False
) -> str:
    """Return the line of a node that joins anew, since the coordinator does not know it any more.

    `replaced`: it is another coordinator; else the node's own has declared it lost. `runs`: the
    node's workers run. `is_replaceable`: another coordinator can take over from this or an earlier
    one, as in `Attached`.
    """
    then = "stopping the workers and joining again" if runs else "joining again"
    if not replaced:
        return f"the coordinator declared this node lost: {then}"
    if is_replaceable or config.rendezvous.register is not None:
        return f"another coordinator has taken over the job without this node: {then}"
    budget = config.rendezvous.max_restarts
    used = f"; the restart budget is reset (0 of {budget} used)" if budget else ""
    return (
        f"another coordinator answers at {config.rendezvous.endpoint}, because the previous one "
        f"was restarted or replaced, and it has no round: {then}{used}"
    )


def waiting_for(
    state: WorkersState,
    status: JobStatus | None,
    settings: SharedSettings,
    *,
    imports: bool = False,
) -> str:
    """Return what this agent waits for, in a few words; empty: it waits for nothing.

    It waits for nothing while its workers run, and at its end. `imports`: the prepared process has
    not imported all modules yet, and the workers wait for that.
    """
    match state.phase:
        case NodePhase.RUNNING if imports:
            return "the preloaded modules"
        case NodePhase.IDLE if state.leaving:
            return "the job to acknowledge that this node leaves"
        case NodePhase.RUNNING | NodePhase.DONE:
            return ""
        case NodePhase.STOPPING:
            return "the workers to stop"
        case NodePhase.ENROLLING:
            return "this node to be ready (the round store, preloaded modules)"
        case NodePhase.READY:
            return "every node to be ready (the round store, preloaded modules)"
        case NodePhase.FINISHED:
            return "the workers of the other nodes to finish"
        case NodePhase.IDLE:
            return _idle(state, status, settings)


def _idle(state: WorkersState, status: JobStatus | None, settings: SharedSettings) -> str:
    if status is None:
        return "the coordinator"
    if status.waits_for:
        return status.waits_for
    if status.awaits:
        return status.awaits
    if status.phase == "active" and state.stamp and status.round <= state.stamp.round:
        return "the next round"  # The one that the coordinator reported last has ended.
    if status.held_back:
        return f"the next round; this node is {status.held_back}"
    status = _with_this_node(status)
    match status.phase:
        case "active":
            return "the next round" if status.waiting else "a place (standing by)"
        case "last call":
            return f"more nodes (last call; {status.joined} joined)"
        case _ if status.stopping:
            return f"{count(status.stopping, 'node')} to stop ({status.joined} joined)"
        case _:
            missing = max(settings.min_nodes - status.joined, 0)
            if missing:
                here = f"{status.joined} of {settings.min_nodes} joined"
                return f"{count(missing, 'more node')} ({here})"
            if (multiple := settings.world_multiple_of) > 1:
                here = count(status.joined, "node")
                return f"enough nodes for a multiple of {multiple} workers ({here} joined)"
            return "the next round"


def _with_this_node(status: JobStatus) -> JobStatus:
    """Return the status with this node as joined, if it counts no node yet."""
    if status.phase == "active" or status.joined or status.waiting or status.standby:
        return status
    return replace(status, joined=1, stopping=max(status.stopping - 1, 0))


class StatusReporter:
    """The reporter of the job's state, and of the reason of this node's wait when it changes."""

    def __init__(
        self, config: AgentConfig, dispatcher: EventDispatcher, clock: Callable[[], float]
    ) -> None:
        self._config, self._dispatcher, self._clock = config, dispatcher, clock
        self._waiting_since = ("", clock())
        self.job: JobStatus | None = None
        """The status in the coordinator's last answer; None: there is none."""

    def show(self, state: WorkersState, node_id: str, *, imports: bool) -> None:
        """Report the present state to the observers; an idle node's new wait is an event.

        `imports` as for `waiting_for`.
        """
        what = waiting_for(state, self.job, self._config.rendezvous, imports=imports)
        if what != self._waiting_since[0]:
            self._waiting_since = (what, self._clock())
            if what and state.phase is NodePhase.IDLE and not state.leaving:
                self._dispatcher.event(event_now(kinds.WAITING(what=what), node_id))
        waited_s = self._clock() - self._waiting_since[1]
        self._dispatcher.status(status_view(self._config, state.assignment, what, waited_s))


def status_view(
    config: AgentConfig, assignment: Assignment | None, what: str, waited_s: float
) -> StatusView:
    """Return the view of the job's state, as this agent knows it.

    `what`: what the agent waits for; `waited_s`: for how many seconds it does.
    """
    return StatusView(
        round=assignment.round if assignment else 0,
        nodes=assignment.group_world_size if assignment else 0,
        max_nodes=config.rendezvous.max_nodes,
        workers=assignment.world_size if assignment else 0,
        restarts=assignment.restart_count if assignment else 0,
        max_restarts=config.rendezvous.max_restarts,
        waiting_for=what,
        for_s=waited_s,
    )
