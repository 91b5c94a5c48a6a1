"""The claims of agents to node ids, fixed ranks and settings: one is granted or refused. Pure.

An id or a fixed rank has one holder, the first agent that came with it: a mistyped one must not
evict a healthy node (behaviour R4). Another agent that joins with it waits (`Contest`). The
newcomer is refused after a message of the holder has come, and it joins when the holder is gone.
A silent holder is lost a lease after that join at the latest (`Liveness.wanted`). Ids that no
person gave are made from the host name and the smallest free ordinal.

`settings_refused` and `join_refused` are asked when an agent attaches or joins: every value alone
is in its limits. Empty: nothing is wrong; else one sentence, which that node is told. An honest
node's command line has refused the same.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.job_state import JobState
from rallypoint.core.messages import Attach, Join
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.core.text import named, quoted
from rallypoint.core.watch.node_progress import NodeProgress


def settings_refused(settings: SharedSettings) -> str:
    """Return why the settings that a job's first agent brings are impossible; else empty."""
    least, most = settings.min_nodes, settings.max_nodes
    if least > most:
        return f"min_nodes={least} is more than max_nodes={most}"
    if settings.static and least != most:
        return f"fixed ranks need a fixed number of nodes, not {least} to {most}"
    return ""


def join_refused(settings: SharedSettings, candidate: Candidate) -> str:
    """Return why a node with this address and fixed rank can't join the job; empty: it can."""
    rank, most = candidate.node_rank, settings.max_nodes
    if not candidate.address:
        return "it has no address by which the others reach it"
    return f"its node_rank={rank} is not below max_nodes={most}" if rank >= most else ""


def own_progress(job: JobState, node_id: str, progress: NodeProgress) -> NodeProgress:
    """Return the node's reported progress.

    If the reported rank is not one of the node's in its newest round, the result has no step (-1),
    no silence (None), and rank 0.
    """
    member, place = job.round.members.get(node_id), job.assigned.get(node_id)
    if member is not None and place is not None:
        first = place.base_rank
        if first <= progress.rank < first + member.candidate.workers:
            return progress
    return replace(progress, step=-1, rank=0, silent_s=None)


class Contest(Struct):
    """The conflict of an agent that joins with a node id or a fixed rank that another holds."""

    newcomer: NodeRef
    join: Join
    holder: NodeRef
    is_of_rank: bool
    """Whether the agents want the same fixed rank; False: the same node id."""
    is_heard: bool = False
    """Whether the holder has sent something since the contest began, on a connection that still
    exists."""

    def refusal(self, holder_at: str, newcomer_at: str) -> str:
        """Return the sentence that refuses the newcomer, with the addresses of both agents."""
        if self.is_of_rank:
            holder = f"(node {self.holder.node_id}) at {holder_at}"
            return (
                f"node rank {self.join.candidate.node_rank} is used by another running agent "
                f"{holder}; this one is at {newcomer_at}: give each node its own {named.node_rank}"
            )
        return (
            f"node id {quoted(self.newcomer.node_id)} is used by another running agent at "
            f"{holder_at}; this one is at {newcomer_at}: give each machine its own "
            f"{named.node_id}, or none"
        )

    def waits_for(self, holder_at: str, silent_s: float) -> str:
        """Return a clause that says what the newcomer waits for, and who holds it."""
        wanted = f"node id {quoted(self.newcomer.node_id)}"
        if self.is_of_rank:
            wanted = f"node rank {self.join.candidate.node_rank}"
        silent = f", which has not been heard for {silent_s:g} s" if silent_s else ""
        return f"{wanted}: it is held by an agent at {holder_at}{silent}"


class Contests:
    """The open conflicts of one job.

    In each an agent waits for a node id or a fixed rank that another agent holds.
    """

    def __init__(self) -> None:
        self._by_newcomer: dict[str, Contest] = {}
        self._by_holder: dict[str, list[Contest]] = {}

    def begin(self, contest: Contest) -> None:
        """Note that an agent waits for the id or the rank of another one.

        An earlier contest of the same newcomer ends.
        """
        self.end(contest.newcomer)
        self._by_newcomer[contest.newcomer.incarnation] = contest
        self._by_holder.setdefault(contest.holder.incarnation, []).append(contest)

    def of(self, newcomer: NodeRef) -> Contest | None:
        """Return the contest of this agent with one that holds its id or rank, if any."""
        return self._by_newcomer.get(newcomer.incarnation)

    def heard(self, holder: str, *, yes: bool) -> bool:
        """Note a message of an agent, or (not `yes`) the end of its connection.

        `holder` is the agent's random id (incarnation). Returns whether another agent waits for its
        id or rank.
        """
        waiting = self._by_holder.get(holder, ())
        for contest in waiting:
            contest.is_heard = yes
        return bool(waiting)

    def end(self, newcomer: NodeRef) -> None:
        """End the wait of this agent for the id or the rank of another one, if it waits."""
        contest = self._by_newcomer.pop(newcomer.incarnation, None)
        if contest is not None:
            holder = contest.holder.incarnation
            self._by_holder[holder].remove(contest)
            if not self._by_holder[holder]:
                del self._by_holder[holder]

    def take_free(self, names: NodeNames, *, all_of_them: bool = False) -> list[Contest]:
        """End the contests whose holder has lost the id or the rank, and return them, oldest first.

        `all_of_them`: end and return all contests.
        """
        free = [
            contest
            for contest in self._by_newcomer.values()
            if all_of_them or not names.has(contest)
        ]
        for contest in free:
            self.end(contest.newcomer)
        return free


class NodeNames:
    """The node ids and the fixed ranks of one job, and the agents that hold them."""

    def __init__(self) -> None:
        self._by_id: dict[str, NodeRef] = {}
        self._by_rank: dict[int, NodeRef] = {}
        self._ranks: dict[NodeRef, int] = {}
        self._ordinals: dict[str, int] = {}
        """The lowest ordinal that may be free, by host name: thousands of nodes may share one host
        name."""

    def give_id(self, hello: Attach) -> NodeRef:
        """Return the node id of an agent that attaches, with the agent's random incarnation.

        The node id is the one that it asks for; else its former one, if that is free; else a new
        one. The agent becomes the holder of this id, unless another agent holds it.
        """
        ref = NodeRef(self._id_for(hello), hello.incarnation)
        self._by_id.setdefault(ref.node_id, ref)
        return ref

    def holder(self, node_id: str) -> NodeRef | None:
        """Return the agent that holds this node id; None: there is none."""
        return self._by_id.get(node_id)

    def meant(self, name: str) -> str:
        """Return the node id that a user's word means.

        It is the word itself, unless that is the name of a host on which a single node has got its
        id from the host's name.
        """
        ids = [] if name in self._by_id or name not in self._ordinals else self._by_id
        parts = (node_id.rpartition("-") for node_id in ids)
        found = ["".join(each) for each in parts if each[0] == name and each[2].isdecimal()]
        return found[0] if len(found) == 1 else name

    def contest(self, ref: NodeRef, join: Join) -> Contest | None:
        """Return the contest of this agent with another one that holds its id or its fixed rank.

        None: there is no such other agent.
        """
        holder = self._by_rank.get(join.candidate.node_rank)
        if holder is not None and holder != ref:
            return Contest(ref, join, holder, is_of_rank=True)
        holder = self._by_id.get(ref.node_id)
        if holder is not None and holder != ref:
            return Contest(ref, join, holder, is_of_rank=False)
        return None

    def has(self, contest: Contest) -> bool:
        """Return whether the holder in this contest still has the id or the rank in question."""
        if contest.is_of_rank:
            return self._by_rank.get(contest.join.candidate.node_rank) == contest.holder
        return self._by_id.get(contest.holder.node_id) == contest.holder

    def take(self, ref: NodeRef, rank: int) -> None:
        """Make this agent the holder of its node id and of this fixed rank (-1: none).

        Former holders lose them.
        """
        self._by_id[ref.node_id] = ref
        if rank < 0 or self._by_rank.get(rank) == ref:
            return
        self.yield_rank(ref)
        if (former := self._by_rank.get(rank)) is not None:
            self.yield_rank(former)
        self._by_rank[rank], self._ranks[ref] = ref, rank

    def yield_rank(self, ref: NodeRef) -> None:
        """Free the fixed rank of this agent, if it has one."""
        rank = self._ranks.pop(ref, None)
        if rank is not None:
            del self._by_rank[rank]

    def forget(self, ref: NodeRef) -> None:
        """Free the node id and the rank of an agent that has left or was lost."""
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
