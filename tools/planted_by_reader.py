"""Bugs chosen by a reader of the documents and of `core` alone.

The reader knew neither what the simulator checks nor which bugs were planted before. `python -m
tools.planted_bugs --list reader`.
"""

from __future__ import annotations

from tools.planted_bug_list import Bug

BUGS_BY_A_READER = (
    # A job with --restart-window ends, though its last failures were hours ago.
    Bug(
        "restarts count for ever, whatever the window",
        "restarts.py",
        "settings.max_restarts, len(ledger.entries)",
        "settings.max_restarts, ledger.total",
    ),
    # A node that can't reach rank 0 ends one round after another, each after the shortest wait.
    Bug(
        "a round that starts makes all bad routes good",
        "fitness.py",
        "    for entry in state.world:\n        state.bad_routes.pop(entry.node_id, None)\n",
        "    state.bad_routes.clear()\n",
    ),
    # A flapping node comes and goes, and from then on the job does not grow by healthy nodes.
    Bug(
        "a quarantined node that goes is taken off those that may trigger a growth",
        "round_state.py",
        "    if member.is_eager:\n        member.is_eager = False\n",
        "    if member.state is MemberState.WAITING:\n        member.is_eager = False\n",
    ),
    # Workers are restarted for newcomers moments after they have started.
    Bug(
        "a round's minimum age counts for the first round only",
        "round.py",
        "    state.growth_allowed = state.settings.min_growth_interval_s == 0\n",
        "",
    ),
    # A place of the job stays empty for hours, while a node stands by for it.
    Bug(
        "a spare stays one when a node that waited for the place is lost",
        "round.py",
        "        late_nodes.no_longer_waits(state)\n    counts_as_loss",
        "        pass\n    counts_as_loss",
    ),
    # A healthy node whose connection broke at the wrong moment is expelled: "would not stop".
    Bug(
        "a node that missed the end of its round is told of the next one's",
        "job.py",
        "stop_order(job, job.round.round - 1, job.end_reason)",
        "stop_order(job, job.round.round, job.end_reason)",
    ),
    # A node is stopped for its drain without the last checkpoint, since it had saved one before.
    Bug(
        "the answer to an earlier checkpoint request counts for a drain",
        "job_departures.py",
        "if notice is None or (round_, answer.number) != (notice.round, notice.number):",
        "if notice is None or round_ != notice.round:",
    ),
    # Workers that exit after the checkpoint that they were asked for end the job as a success.
    Bug(
        "a growth is called off after a checkpoint was saved for it",
        "checkpoint.py",
        "return self.then.joins and not self.some_listen",
        "return self.then.joins",
    ),
    # What a preemption has killed is charged to the restart budget, if the network was away.
    Bug(
        "a drain that is told late counts from when it is told",
        "job_departures.py",
        "    began_at = at - drain.age_s\n",
        "    began_at = at\n",
    ),
    # Workers that the scheduler has ended with their node are a failure, and cost a restart.
    Bug(
        "a worker that the scheduler's signal has ended fails although its agent got that too",
        "node/state.py",
        "state.phase is not NodePhase.RUNNING or state.leaving or not _suspects(state)",
        "state.phase is not NodePhase.RUNNING or not _suspects(state)",
    ),
    # After one silence an agent drops each new connection at its first heartbeat, for ever. (What
    # the reader removed was one call. What it undoes is undone in two places since then.)
    Bug(
        "heartbeats of the last connection make the new one deaf",
        "liveness.py",
        "        self._beats_sent.clear()\n        self._answered_at = self._attached_at = -inf\n\n"
        "    def attached(self, now: float) -> None:\n"
        '        """The coordinator has attached this agent: it answers heartbeats from now on."""'
        "\n        self._attached_at = now\n",
        "\n    def attached(self, now: float) -> None:\n"
        '        """The coordinator has attached this agent: it answers heartbeats from now on."""'
        "\n",
    ),
    # A coordinator that was busy for a moment expels nodes whose heartbeats it has yet to read.
    Bug(
        "a node is lost at its deadline, before its socket was read again",
        "liveness.py",
        "        polled_since = [member for member in due if member in self._overdue]\n"
        "        self._overdue.update(due)\n",
        "        self._overdue.update(due)\n"
        "        polled_since = [member for member in due if member in self._overdue]\n",
    ),
    # `rallypoint drain` of a node that was not connected waits for ever: that node never hears it.
    Bug(
        "a node that comes back is not told that a person has drained it",
        "sessions.py",
        "        if session.drain_why is not None:\n"
        "            effects.append(SendTo(connection, "
        "m.DrainWanted(self._stamp, session.drain_why)))\n",
        "",
    ),
    # Two coordinators lead one job, and two rounds run at the same time on the same checkpoints.
    Bug(
        "an heir promises while its own claim is under way",
        "takeover/consent.py",
        "_order(record) > self._claims_after",
        "_order(record) >= self._claims_after",
    ),
    # After a takeover workers are not asked for their last checkpoint, and a drain takes all time.
    Bug(
        "a coordinator that takes over numbers its requests from 1 again",
        "takeover/record.py",
        "    job.notices = job.inquiries = job.proofs = epoch.number << NUMBERS_BITS\n",
        "",
    ),
    # A node is lost just before its leader: the errors of its peers cost a restart.
    Bug(
        "what failed because of a loss is blamed once another coordinator leads",
        "takeover/handover.py",
        "            job.ended_at = -inf  # What",
        "            pass  # What",
    ),
    # A job that fails at the same step again and again is restarted at once, and never ends.
    Bug(
        "a job that fails at the same step again has got further",
        "restarts.py",
        "return reach.step > loop.step if",
        "return reach.step >= loop.step if",
    ),
    # The last lines of a failed job show the traceback of a worker of another node.
    Bug(
        "a traceback is added to the same local rank of other nodes",
        "cause.py",
        "if found is not None and report.node_id == node_id:",
        "if found is not None:",
    ),
    # Scripts that order outputs by the incarnation overwrite newer ones with older ones.
    Bug(
        "the number of a new life may be lower than the one its agents know",
        "job_lives.py",
        "BeginLife(max(self.first(wall_ms), told + 1, *(n + 1 for n in earlier)))",
        "BeginLife(max([self.first(wall_ms), *(n + 1 for n in earlier)]))",
    ),
    # With a shared store a healthy node is thrown out by one that has read its counter long ago.
    Bug(
        "a node is removed though its counter has moved meanwhile",
        "../elastic/rendezvous/shared/round.py",
        "is_member(shared, suspect) or shared.beats.get(suspect.node_id, beat) != beat:",
        "is_member(shared, suspect):",
    ),
)
"""Above each: what a user would suffer."""
