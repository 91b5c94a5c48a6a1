"""Bugs that a developer could make while code is moved around.

In `core`, `coordinator` and `agent`, and the tests that find each of them. `python -m
tools.planted_bugs --list moves`.

After a move the place of a bug is found by its text, wherever that is now. Who changes that text
changes it here too. Each comment says what a user would notice.
"""

from __future__ import annotations

from typing import NamedTuple


class MovedBug(NamedTuple):
    """A change of one place that a test of the suite should notice."""

    name: str
    module: str
    """The path of the file, below src, when the bug was written."""
    old: str
    """Occurs once in all of the package."""
    new: str
    found_by: str = ""
    """The test that has found it, which is tried first, wherever that is now; empty: none has."""


BUGS_BEFORE_MOVES = (
    # A node that was told to leave stays in the job when another leader takes over.
    MovedBug(
        "a new join forgets the drain that was told before it",
        "core/session.py",
        "            drain = self._lasting.get(m.Drain)\n"
        "            self._lasting = {} if drain is None else {m.Drain: drain}\n",
        "            self._lasting = {}\n",
        found_by="test_A5_a_node_that_was_told_to_leave_says_so_to_the_next_leader_though_it_joined_since",
    ),
    # The second checkpoint that a person asks for in a round is never answered.
    MovedBug(
        "the answer to the last checkpoint request counts for the next one",
        "core/checkpoint.py",
        "    state.request, state.told = request, None\n",
        "    state.request = request\n",
        found_by="test_V4_a_second_checkpoint_that_a_person_wants_in_a_round_is_answered_as_the_first",
    ),
    # A lost round store of one round is named as the cause of the end of a later one.
    MovedBug(
        "a lost store is remembered in the next round",
        "core/job_rounds.py",
        "job.reports, job.losses, job.breakdown, job.store_lost = [], [], None, None",
        "job.reports, job.losses, job.breakdown = [], [], None",
        found_by="test_A3_what_fails_after_the_store_is_lost_is_a_consequence_of_that",
    ),
    # After a pause of the coordinator a healthy agent loses its place to one with the same id.
    MovedBug(
        "a pause of the coordinator counts as silence of an agent whose id is wanted",
        "core/liveness.py",
        "        self._wanted = OrderedDict.fromkeys(self._wanted, now)\n",
        "",
        found_by="test_R4_a_pause_of_the_coordinator_does_not_count_for_an_agent_that_waits",
    ),
    # The job names a worker that failed later as the first cause.
    MovedBug(
        "the details of a failure change when it happened",
        "core/cause.py",
        "replace(found, rank=known.rank, age_s=known.age_s)",
        "replace(found, rank=known.rank)",
        found_by="test_A3_a_traceback_is_added_to_the_failure_of_its_own_node_alone",
    ),
    # Two workers that were promised cores of their own share one.
    MovedBug(
        "one exclusive share too many gets the core that is left over",
        "core/cpu_binding.py",
        "size + (slot < more)",
        "size + (slot <= more)",
        found_by="test_exclusive_is_a_share_of_whole_cores",
    ),
    # From the second round on nothing is reported of how workers have ended.
    MovedBug(
        "the ends that were reported in a round count for the next one",
        "core/group.py",
        "state.exits, state.failed, state.ends_reported = {}, {}, set()",
        "state.exits, state.failed = {}, {}",
        found_by="test_the_ends_of_a_round_do_not_count_for_the_next",
    ),
    # A running round is ended for a node that can't take part in the next one either.
    MovedBug(
        "a round ends for newcomers that do not make a multiple of the workers",
        "core/late_nodes.py",
        "return is_time and (state.settings.world_multiple_of == 1 or _would_grow(state))",
        "return is_time",
        found_by="test_R2_a_newcomer_is_admitted_when_the_workers_of_more_nodes_fit",
    ),
    # A person drains a node whose connection is broken, and the node never leaves.
    MovedBug(
        "a node that comes back is not asked again to leave",
        "core/sessions.py",
        "        if session.drain_why is not None:\n"
        "            effects.append("
        "SendTo(connection, m.DrainWanted(self._stamp, session.drain_why)))\n",
        "",
        found_by="test_A5_a_node_that_is_away_is_asked_when_it_attaches_again",
    ),
    # After many failures a job with --restart-backoff stands still for days.
    MovedBug(
        "the pause before a restart grows without a limit",
        "core/restarts.py",
        "min(settings.restart_backoff_s * 2.0 ** min(used, 30), BACKOFF_MAX_S)",
        "settings.restart_backoff_s * 2.0 ** min(used, 30)",
        found_by="test_A2_a_pause_doubles_up_to_a_minute",
    ),
    # A job waits longer for a node whose agent has died than for one whose network is away.
    MovedBug(
        "a connection that the peer has ended counts as one that was reset",
        "coordinator/hosted_job.py",
        "now, reset = self._loop.time(), not connection.ended_by_peer",
        "now, reset = self._loop.time(), connection.ended_by_peer",
        found_by="test_every_rule_holds_whatever_goes_wrong",
    ),
    # Port scanners use up the places for connections, and nodes have to wait.
    MovedBug(
        "a stranger that was turned away keeps its place",
        "coordinator/acceptor.py",
        "        self._close(connection)\n        self.gone(number)\n\n    # Making room",
        "        self._close(connection)\n\n    # Making room",
        found_by="test_who_only_looks_whether_somebody_listens_is_no_news",
    ),
    # An agent that tries to reach a host that hangs runs out of descriptors.
    MovedBug(
        "a connection that was given up while it was made stays open",
        "coordinator/connection.py",
        "            connection.established.cancel()\n            connection.abort()\n",
        "            connection.established.cancel()\n",
        found_by="test_a_host_that_accepts_a_connection_and_says_nothing_is_hung_up_on",
    ),
    # A node whose agent has died is noticed only when its lease is over.
    MovedBug(
        "the look for lost nodes is not moved to an earlier time",
        "coordinator/hosted_job.py",
        "        if self._handle is None or at < self.at:\n",
        "        if self._handle is None:\n",
        found_by="test_F2_a_connection_that_does_not_come_back_is_a_loss",
    ),
    # Each node that comes has all others wait anew for the rest of the nodes.
    MovedBug(
        "a wait that runs begins anew when another one is wanted",
        "clocks.py",
        "{t: ends.get(t, now + length_s) for t, length_s in wanted.items()}",
        "{t: now + length_s for t, length_s in wanted.items()}",
        found_by="test_every_rule_holds_whatever_goes_wrong",
    ),
    # `rallypoint logs` stops in the middle of long logs.
    MovedBug(
        "what a person has taken makes no room for more",
        "core/watch/collection.py",
        "            state.untaken -= 1\n            state.taken_at = at\n",
        "            state.taken_at = at\n",
        found_by="test_V6_so_many_pieces_are_under_way_and_no_more_until_the_person_has_taken_one",
    ),
    # A `serve` forgets a job too early whose nodes went away twice.
    MovedBug(
        "a job that has nodes again is still about to be forgotten",
        "core/job_lives.py",
        "        if agents:\n            self._deserted.pop(run_id, None)\n",
        "        if agents:\n            pass\n",
        found_by="test_a_job_whose_nodes_have_left_twice_is_remembered_from_the_second_time_on",
    ),
    # A person reads that nothing can be recorded while all is well.
    MovedBug(
        "a record that was written does not end the wait for it",
        "core/takeover/duties.py",
        '        self._stalls_at, self._is_stalled, self._stall = at + self._stall_s, False, ""\n',
        "",
        found_by="test_L8_that_nothing_can_be_recorded_is_told_while_it_is_so_and_not_else",
    ),
    # Thousands of agents that have lost their coordinator keep its machine busy with attempts.
    MovedBug(
        "the pause between attempts to connect does not grow",
        "coordinator/client/session.py",
        "            pause_s = min(pause_s * 2, longest_s)\n",
        "",
        found_by="test_F2_an_agent_that_has_lost_its_coordinator_tries_more_and_more_seldom",
    ),
    # When 64 people have followed a job and gone, nobody else can follow it.
    MovedBug(
        "who followed the events of a job and has gone is still counted",
        "coordinator/watching.py",
        "        self._followers.pop(connection, None)\n",
        "",
        found_by="test_V2_people_who_have_followed_a_job_and_gone_keep_nobody_out",
    ),
    # With --progress-pattern the steps that a Python program prints are seen late, or never.
    MovedBug(
        "workers are not told to write each line at once",
        "agent/environ.py",
        "    if workers.unbuffered:\n",
        "    if False:\n",
        found_by="test_V5_a_script_that_only_prints_tells_its_progress",
    ),
    # An agent with --preempt-notice cmd: runs out of descriptors after some hours.
    MovedBug(
        "each run of the command of a notice leaves a descriptor open",
        "agent/preempt_notice.py",
        "        finally:\n"
        "            os.close(nowhere)\n"
        "            await asyncio.shield(running.reap(KILL_TIMEOUT_S))\n",
        "        finally:\n            await asyncio.shield(running.reap(KILL_TIMEOUT_S))\n",
        found_by="test_A6_a_command_that_has_given_its_notice_leaves_no_descriptor_and_no_process",
    ),
    # A worker that hangs in a timed block is never ended, if an earlier block was over in time.
    MovedBug(
        "the alarm for timers is not set again when it has rung",
        "agent/timers.py",
        "                self._on_expired(Expiry(local_rank, _reason(timer), signum))\n"
        "        self._set_alarm()\n",
        "                self._on_expired(Expiry(local_rank, _reason(timer), signum))\n",
        found_by="test_W6_a_worker_that_hangs_is_ended_though_an_earlier_block_of_it_was_over_in_time",
    ),
    # A round ends as if its workers had just saved a checkpoint, and steps are lost.
    MovedBug(
        "an answer to a request that was withdrawn counts for the next one",
        "agent/worker_shm.py",
        "        self._kind = ShmRequest.NONE\n"
        "        self._write(at.REQUEST, layout.pack_request(self._number, ShmRequest.NONE))\n",
        "        self._write(at.REQUEST, layout.pack_request(self._number, ShmRequest.NONE))\n",
        found_by="test_a_request_is_seen_and_answered",
    ),
    # A program that launched a job is told of failures of earlier rounds as of the last one.
    MovedBug(
        "the failures of a round are kept for the next one",
        "agent/worker_rounds.py",
        "self._succeeded, self.failures, self.error_files = None, {}, {}",
        "self._succeeded, self.error_files = None, {}",
        found_by="test_A3_the_failures_of_a_round_are_not_told_as_those_of_the_next",
    ),
    # A job hangs for ever whose workers went on by themselves after the first suspicion.
    MovedBug(
        "the stacks of the workers are collected once in a round",
        "agent/hang.py",
        "        if self._collecting is None or self._collecting.done():\n",
        "        if self._collecting is None:\n",
        found_by="test_A7_stacks_are_told_again_when_the_job_hangs_again_in_the_same_round",
    ),
    # An agent with log files runs out of descriptors after some hundreds of rounds.
    MovedBug(
        "the files of the workers stay open in the agent",
        "agent/workers.py",
        "                for output in self._opened:\n"
        "                    output.close()\n"
        "                if not self._workers.pids:\n",
        "                if not self._workers.pids:\n",
        found_by="test_A6_a_handler_of_the_program_may_raise_and_leaves_nothing",
    ),
    # Workers of a killed agent run beside those of the node that has got its place.
    MovedBug(
        "an agent that was killed while it started workers is taken for one without any",
        "agent/former_agents.py",
        "if leaders is None or sessions.live_members(leaders):",
        "if leaders and sessions.live_members(leaders):",
        found_by="test_L4_nothing_is_said_of_an_agent_that_was_just_starting_workers",
    ),
    # The guard reports the death of an agent that has left in good order.
    MovedBug(
        "the notice of an agent's death is not taken back at its end",
        "agent/notices.py",
        '            self._tell_guard(b"")\n',
        "            pass\n",
        found_by="test_F2_of_an_agent_that_has_left_its_job_the_guard_reports_no_death",
    ),
    # Who follows the newest lines of a job misses the first ones of each later round.
    MovedBug(
        "of each later round only the newest lines are followed",
        "agent/answering.py",
        "                lines = ALL_LINES  # Of a later round all that is kept.\n",
        "",
        found_by="test_V6_who_follows_the_newest_lines_gets_all_of_each_later_round",
    ),
)
