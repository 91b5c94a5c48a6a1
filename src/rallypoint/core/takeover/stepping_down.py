"""The rules by which a leader steps down so that another node may lead (section L2). Pure.

* It has been unsure for a lease. No agent has had an answer for so long: all look for another
  leader, or have stopped their workers. The register can't be told.
* It is sure, but more than half of the nodes of the newest world have been silent for a third of
  the lease: as a rule the leader is cut off from them, and another node would reach them. Then the
  leader says in the record that it goes, and lets others claim first.

* It is sure, but no world runs and no other node has joined for a lease: a firewall may keep them
  from it, though all of them read the register.

More than half: of two nodes that do not reach each other neither is the better leader. Nodes that
have succeeded, have left, or are dead as their guard says have a reason to be silent. A new leader
waits for half a lease longer: so long agents may take to notice that the last one is gone.

If most nodes have really died at once no other leader is better, and each change of the leader
would begin the wait for the missing nodes anew, so that it would never be over. So a node steps
down once in a round, or before the first one: if the job comes back to it, nobody else has led it
with more success. When it has heard the world run since, no wait is under way, and it may step down
again. It lets others claim first for half a lease, since a node that does not hear its leader looks
for another after that time. And of a hundred nodes not one after the other does so: when two in a
row have, the third one waits.

A coordinator of its own (`rallypoint serve`) never steps down: nodes know no other address. Unless
it is a candidate: then nodes lead after it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from msgspec import Struct

from rallypoint.core.job_state import JobState
from rallypoint.core.liveness import DEAF_SHARE, pace_of
from rallypoint.core.model import Stamp
from rallypoint.core.round_state import RoundPhase
from rallypoint.core.takeover.handover import Recovery
from rallypoint.core.takeover.leading import Lead
from rallypoint.core.takeover.record import JobRecord, has_succeeded

CHECK_S = 0.5
"""The interval in seconds at which a leader checks whether to step down."""
SILENT_SHARE = 1 / 3
"""The share of the lease after which a node counts as silent, unless `SILENT_BEATS` or
`SILENT_MIN_S` is longer."""
SILENT_BEATS = 3
"""The fewest missing heartbeats after which a node counts as silent."""
IN_A_ROW_MAX = 2
"""The most leaders in a row that step down before one of them knows the world."""
GAP_S = 4 * CHECK_S
"""The seconds between two checks whether to step down which show that the leader's process was
stopped meanwhile, and heard no node."""
LOOK_S = 3.0
"""The time in seconds in which nodes without a leader notice that there is none; a leader without
other nodes lets them claim first for so long."""
SILENT_MIN_S = 3.0
"""The least silence in seconds that counts; longer than a short pause of the leader."""

IsSilent = Callable[[str, float], bool]
"""Returns whether the agent of an incarnation was silent for so many seconds, for no known reason;
with 0, whether it has no connection now."""


class Silence(Struct, frozen=True):
    """The number of nodes of the newest world, and how many of them the leader does not hear."""

    silent: int = 0
    nodes: int = 0
    is_alone: bool = False
    """Whether no world is active, and no other node has joined."""

    @property
    def is_too_much(self) -> bool:
        """Whether the leader does not hear most of the nodes: another one probably hears more."""
        return 2 * self.silent > self.nodes


class Deference:
    """The time for which a node that has stepped down lets others claim first.

    It outlives the node's term as leader.
    """

    def __init__(self) -> None:
        self.until = -inf
        """The time until which this node, which has stepped down, lets others claim the job
        first."""
        self._stamp: Stamp | None = None

    def has_been(self, job: JobRecord) -> bool:
        """Return whether the node has stepped down in the newest round of this record."""
        return self._stamp == _newest(job)

    def begin(self, job: JobRecord, until: float) -> None:
        """Let others claim first until this time, and note in which round that was decided."""
        self._stamp, self.until = _newest(job), until

    def forget(self) -> None:
        """Allow the node to step down again in this round: it leads, and hears the active world."""
        self._stamp = None


class SteppingDown:
    """The decision whether one leader steps down."""

    def __init__(self, deference: Deference) -> None:
        self._deference = deference
        self._hears_since: float | None = None
        """The time since when a silence of nodes counts: half a lease after the first check, or the
        end of a later pause. None: it was never checked."""
        self._asked_at, self._sure_at = 0.0, -inf
        self._alone_since: float | None = None

    def why(self, lead: Lead, silence: Callable[[float], Silence], now: float) -> str:
        """Return why this leader steps down, as a part of a sentence; empty: it leads on.

        To be asked every `CHECK_S`. `silence` returns how many nodes are silent for so many
        seconds. If it steps down because of other nodes, the deference begins.
        """
        job = lead.record.job
        if job is None:
            return ""
        lease_s = job.settings.lease_s
        if self._hears_since is None:
            self._hears_since = now + DEAF_SHARE * lease_s
        elif now - self._asked_at > GAP_S:
            self._hears_since = max(self._hears_since, now)
        self._asked_at = now
        if now < lead.sure_until:
            self._sure_at = now
        # What it decides may end a consent at once, and with it the time that it was sure of.
        unsure_s = now - max(lead.sure_until, self._sure_at)
        if unsure_s >= 0:
            return f"its register did not answer for {lease_s:g} s" if unsure_s >= lease_s else ""
        beat_s, _ = pace_of(job.settings, max(job.nodes, job.settings.min_nodes))
        silent_s = max(SILENT_SHARE * lease_s, SILENT_BEATS * beat_s, SILENT_MIN_S)
        if now - self._hears_since < silent_s:
            return ""
        found = silence(silent_s)
        if found.nodes and not found.is_too_much and job.is_active:
            self._deference.forget()
        if self._deference.has_been(job) or job.stepped_down >= IN_A_ROW_MAX:
            return ""
        if not found.is_alone:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= lease_s:
            self._deference.begin(job, now + LOOK_S)
            return f"no other node has joined for {lease_s:g} s, and other nodes may reach each "
            "other"
        if not found.is_too_much:
            return ""
        self._deference.begin(job, now + DEAF_SHARE * lease_s)
        return f"it does not hear {found.silent} of {found.nodes} nodes, and another may"


def silence_of(
    job: JobState, recovery: Recovery | None, is_silent: IsSilent, seconds: float
) -> Silence:
    """Return how many nodes of the newest world are silent, if it is or may be active.

    If it is not active, returns whether no other node has joined.
    """
    if recovery is not None:
        here = {node.ref.incarnation for node in recovery.returned.values()}
        silent = sum(is_silent(each, seconds) for each in here)
        # Agents that were started again since: this leader hears them well.
        anew = {incarnation for incarnation, *_ in recovery.reports} - here
        return Silence(max(0, recovery.awaited + silent - len(anew)), recovery.record.nodes)
    if job.verdict is not None:
        return Silence()
    if job.round.phase is not RoundPhase.ACTIVE:
        members = job.round.members.values()
        is_alone = all(member.ref.incarnation == job.own_agent for member in members)
        return Silence(is_alone=is_alone and job.round.settings.max_nodes > 1)
    silent = 0
    for entry, has_done in zip(job.round.world, has_succeeded(job), strict=True):
        may_run = not has_done and entry.incarnation not in job.stopped
        silent += may_run and is_silent(entry.incarnation, seconds)
    return Silence(silent, len(job.round.world))


def _newest(job: JobRecord) -> Stamp:
    if job.newest_round is None:
        return Stamp(0, -1)  # Each leader before the first round gives the job another number.
    return Stamp(job.incarnation, job.newest_round)
