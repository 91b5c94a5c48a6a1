"""Which claims of an agent are granted: node ids, fixed ranks, the settings of its job. Pure.

An id that a person gave belongs to the agent that joined with it last (behaviour R4). Other ids are
made from the host name and the smallest free ordinal. A fixed rank has one holder: a mistyped rank
must not evict a healthy node, so a rank whose holder is connected is refused to another node.

`settings_refused` and `join_refused` are asked when an agent attaches or joins: every value alone
is in its limits. Empty: nothing is wrong; else one sentence, which that node is told. An honest
node's command line has refused the same.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.job_state import JobState
from rallypoint.core.messages import Attach
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.core.ranks import id_of_rank
from rallypoint.core.watch.node_progress import NodeProgress


def settings_refused(settings: SharedSettings) -> str:
    """For the first agent of a job, whose settings become the job's."""
    least, most = settings.min_nodes, settings.max_nodes
    if least > most:
        return f"min_nodes={least} is more than max_nodes={most}"
    if settings.static and least != most:
        return f"fixed ranks need a fixed number of nodes, not {least} to {most}"
    return ""


def join_refused(settings: SharedSettings, candidate: Candidate) -> str:
    """For every join."""
    rank, most = candidate.node_rank, settings.max_nodes
    if not candidate.address:
        return "it has no address by which the others reach it"
    return f"its node_rank={rank} is not below max_nodes={most}" if rank >= most else ""


def own_progress(job: JobState, node_id: str, progress: NodeProgress) -> NodeProgress:
    """The same without a worker that is behind, if that is none of this node's newest round."""
    member, place = job.round.members.get(node_id), job.assigned.get(node_id)
    if member is not None and place is not None:
        first = place.base_rank
        if first <= progress.rank < first + member.candidate.workers:
            return progress
    return replace(progress, step=-1, rank=0, silent_s=None)


class Claimed(Struct, frozen=True):
    """What became of a claim of a fixed rank."""

    refused_by: NodeRef | None = None
    """Its holder, a healthy node: the claim is refused."""
    taken_from: NodeRef | None = None
    """Its former holder, another node."""


class NodeNames:
    """Those of one job."""

    def __init__(self) -> None:
        self._by_id: dict[str, NodeRef] = {}
        self._by_rank: dict[int, NodeRef] = {}
        self._ranks: dict[NodeRef, int] = {}
        self._ordinals: dict[str, int] = {}
        """All that are smaller are taken, by the names of hosts: thousands may have the same."""

    def give_id(self, hello: Attach) -> NodeRef:
        """For a new session: the id that it asks for, its former one, or a new one. An id that
        another agent holds stays with that one until this one joins."""
        ref = NodeRef(self._id_for(hello), hello.incarnation)
        self._by_id.setdefault(ref.node_id, ref)
        return ref

    def holder(self, node_id: str) -> NodeRef | None:
        """Who has this id."""
        return self._by_id.get(node_id)

    def take_id(self, ref: NodeRef) -> NodeRef | None:
        """This agent joins under its id. Returns who had it; None: nobody else."""
        former = self._by_id.get(ref.node_id)
        self._by_id[ref.node_id] = ref
        return None if former == ref else former

    def claim_rank(
        self, ref: NodeRef, rank: int, is_here: Callable[[NodeRef], bool], *, is_first: bool
    ) -> Claimed:
        """This agent joins with a fixed rank (-1: none). `is_here`: connected, and heard lately.
        `is_first`: it has never taken part before."""
        holder = self._by_rank.get(rank)
        if rank < 0 or holder == ref:
            return Claimed()
        taken_from = None
        if holder is not None:
            same_id = ref.node_id == holder.node_id
            if is_here(holder):
                if same_id and not is_first:
                    return Claimed()  # The round machine knows which of the two was superseded.
                if not same_id or ref.node_id == id_of_rank(rank):
                    return Claimed(refused_by=holder)
            self.yield_rank(holder)
            taken_from = None if same_id else holder
        self.yield_rank(ref)
        self._by_rank[rank], self._ranks[ref] = ref, rank
        return Claimed(taken_from=taken_from)

    def yield_rank(self, ref: NodeRef) -> None:
        """This agent needs its rank no more."""
        rank = self._ranks.pop(ref, None)
        if rank is not None:
            del self._by_rank[rank]

    def forget(self, ref: NodeRef) -> None:
        """This agent has left, or is lost."""
        self.yield_rank(ref)
        if self._by_id.get(ref.node_id) == ref:
            del self._by_id[ref.node_id]
            host, _, ordinal = ref.node_id.rpartition("-")
            if host in self._ordinals and ordinal.isdecimal():
                self._ordinals[host] = min(self._ordinals[host], int(ordinal))

    def _id_for(self, hello: Attach) -> str:
        if hello.node_id:
            return hello.node_id
        if hello.former_id and hello.former_id not in self._by_id:
            return hello.former_id
        host = hello.host_name
        ordinal = self._ordinals.get(host, 0)
        while f"{host}-{ordinal}" in self._by_id:
            ordinal += 1
        self._ordinals[host] = ordinal
        return f"{host}-{ordinal}"
