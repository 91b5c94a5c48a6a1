"""A job whose workers may hang: asks all nodes what they do, then blames one worker (`hang.py`)."""

from __future__ import annotations

from rallypoint.core import event_kinds as kinds
from rallypoint.core import hang
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.job_state import JobEffect, JobState, stamp
from rallypoint.core.messages import CollectStacks, Failed, StacksCollected, ToNode
from rallypoint.core.model import EndKind, NodeRef
from rallypoint.core.round_state import MemberState, is_active

Blamed = tuple[NodeRef, Failed]
"""The failure of the worker that hangs, as if its node had reported it."""


def suspected(job: JobState, suspect: NodeRef, round_: int) -> list[JobEffect]:
    """Ask every node, unless that is under way, or the round is about to end anyway."""
    state, notice = job.round, job.notice
    if not state.settings.hang_timeout_s or not is_active(state, round_) or _inquiry(job):
        return []
    if notice is not None and notice.kind is EndKind.DRAIN:
        return []
    asked = [
        member.ref
        for member in state.members.values()
        if member.state is MemberState.RUNNING and not member.succeeded
    ]
    job.inquiries += 1
    awaited = {ref.node_id for ref in asked}
    job.inquiry = hang.Inquiry(job.inquiries, state.round, awaited)
    text = (
        f"a worker of node {suspect} makes no progress: collecting the steps and stacks of all "
        "workers"
    )
    record = kinds.HANG_SUSPECTED(text, node_id=suspect.node_id)
    question = CollectStacks(stamp(job), job.inquiries)
    return [record, *(ToNode(ref, question) for ref in asked)]


def collected(job: JobState, ref: NodeRef, report: StacksCollected) -> Blamed | Record | None:
    """One node has told; when all have, the failure to blame or why there is none."""
    inquiry = _inquiry(job)
    if inquiry is None or report.number != inquiry.number:
        return None
    node_id = ref.node_id
    if node_id not in inquiry.awaited:
        return None
    inquiry.awaited.discard(node_id)
    inquiry.found.append(hang.Found(node_id, report.behind, report.furthest))
    return None if inquiry.awaited else conclude(job)


def conclude(job: JobState) -> Blamed | Record | None:
    """All have told, or may not be waited for any longer."""
    inquiry, job.inquiry = _inquiry(job), None
    if inquiry is None:
        return None
    blamed = hang.blamed(inquiry.found)
    if blamed is None:
        return kinds.HANG_SUSPECTED("every worker has made progress since: no worker hangs")
    node_id, failure = blamed
    member = job.round.members.get(node_id)
    if member is None or member.state is not MemberState.RUNNING or member.succeeded:
        # The others may have waited for it; who hangs all the same is suspected again.
        text = f"the workers of node {node_id}, which were behind, have succeeded since: none hangs"
        return kinds.HANG_SUSPECTED(text)
    return member.ref, Failed(stamp(job, inquiry.round), (failure,))


def timers_wanted(job: JobState) -> dict[Timer, float]:
    """How long the nodes may take to tell."""
    inquiry = _inquiry(job)
    if inquiry is None:
        return {}
    return {Timer(TimerKind.STACKS, inquiry.round, str(inquiry.number)): hang.COLLECT_S}


def _inquiry(job: JobState) -> hang.Inquiry | None:
    """The one that is under way, in a round that is."""
    inquiry = job.inquiry
    return inquiry if inquiry is not None and is_active(job.round, inquiry.round) else None
