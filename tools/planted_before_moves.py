"""Bugs of `core`, `coordinator` and `agent` that a developer could make while code is moved around,
and the tests that found each of them before the moves. `python -m tools.planted_bugs --list moves`.

After a move the place of a bug is found by its text, wherever that is now. Who changes that text
changes it here too. Each comment says what a user would notice.
"""

from __future__ import annotations

from typing import NamedTuple


class MovedBug(NamedTuple):
    """A change of one place that a test of the suite should notice."""

    name: str
    module: str
    """Its file, from `rallypoint` on, when the bug was written."""
    old: str
    """Occurs once in all of the package."""
    new: str
    first: tuple[str, ...] = ()
    """Tests that are tried before the suite, to save time. One that is not there is left out."""
    found_by: str = ""
    """The test that has found it; empty: none has. It may have another name or place by now."""


LEAST_FOUND = 0
"""So many were found before the moves."""

BUGS_BEFORE_MOVES = (
    # A node that was told to leave stays in the job when another leader takes over.
    MovedBug(
        "a new join forgets the drain that was told before it",
        "core/session.py",
        "            drain = self._lasting.get(m.Drain)\n"
        "            self._lasting = {} if drain is None else {m.Drain: drain}\n",
        "            self._lasting = {}\n",
        ("tests/unit/test_session_faults.py", "tests/unit/test_takeover_reports.py"),
    ),
    # The second checkpoint that a person asks for in a round is never answered.
    MovedBug(
        "the answer to the last checkpoint request counts for the next one",
        "core/checkpoint.py",
        "    state.request, state.told = request, None\n",
        "    state.request = request\n",
        ("tests/unit/test_checkpoint_request.py",),
    ),
    # A lost round store of one round is named as the cause of the end of a later one.
    MovedBug(
        "a lost store is remembered in the next round",
        "core/job_rounds.py",
        "job.reports, job.losses, job.breakdown, job.store_lost = [], [], None, None",
        "job.reports, job.losses, job.breakdown = [], [], None",
        ("tests/unit/test_lost_store.py", "tests/unit/test_job_blame.py"),
    ),
    # After a pause of the coordinator a healthy agent loses its place to one with the same id.
    MovedBug(
        "a pause of the coordinator counts as silence of an agent whose id is wanted",
        "core/liveness.py",
        "        self._wanted = OrderedDict.fromkeys(self._wanted, now)\n",
        "",
        ("tests/unit/test_liveness.py", "tests/unit/test_duplicates.py"),
    ),
    # The job names a worker that failed later as the first cause.
    MovedBug(
        "the details of a failure change when it happened",
        "core/cause.py",
        "replace(found, rank=known.rank, age_s=known.age_s)",
        "replace(found, rank=known.rank)",
        ("tests/unit/test_cause.py", "tests/unit/test_job_blame.py"),
    ),
    # Two workers that were promised cores of their own share one.
    MovedBug(
        "one exclusive share too many gets the core that is left over",
        "core/cpu_binding.py",
        "size + (slot < more)",
        "size + (slot <= more)",
        ("tests/unit/test_cpu_binding.py",),
    ),
    # From the second round on nothing is reported of how workers have ended.
    MovedBug(
        "the ends that were reported in a round count for the next one",
        "core/group.py",
        "state.exits, state.failed, state.ends_reported = {}, {}, set()",
        "state.exits, state.failed = {}, {}",
        ("tests/unit/test_group.py", "tests/unit/test_group_properties.py"),
    ),
    # A running round is ended for a node that can't take part in the next one either.
    MovedBug(
        "a round ends for newcomers that do not make a multiple of the workers",
        "core/late_nodes.py",
        "return is_time and (state.settings.world_multiple_of == 1 or _would_grow(state))",
        "return is_time",
        ("tests/unit/test_round_growth.py", "tests/unit/test_round_ranks.py"),
    ),
    # A person drains a node whose connection is broken, and the node never leaves.
    MovedBug(
        "a node that comes back is not asked again to leave",
        "core/sessions.py",
        "        if session.drain_why is not None:\n"
        "            effects.append("
        "SendTo(connection, m.DrainWanted(self._stamp, session.drain_why)))\n",
        "",
        ("tests/unit/test_drain_requests.py",),
    ),
    # After many failures a job with --restart-backoff stands still for days.
    MovedBug(
        "the pause before a restart grows without a limit",
        "core/restarts/ledger.py",
        "min(settings.restart_backoff_s * 2.0 ** min(used, 30), BACKOFF_MAX_S)",
        "settings.restart_backoff_s * 2.0 ** min(used, 30)",
        ("tests/unit/test_restart.py",),
    ),
    # A short message of a node waits in the kernel until more follows, and the node is lost.
    MovedBug(
        "the least number of bytes that wake the reader stays set for an accepted session",
        "coordinator/acceptor.py",
        "        self._unwatch(connection)\n"
        "        connection.setsockopt(SOL_SOCKET, SO_RCVLOWAT, 1)\n",
        "        self._unwatch(connection)\n",
        ("tests/integration/test_acceptor.py",),
    ),
    # Port scanners use up the places for connections, and nodes have to wait.
    MovedBug(
        "a stranger that was turned away keeps its place",
        "coordinator/acceptor.py",
        "        self._close(connection)\n        self.gone(number)\n\n    # Making room",
        "        self._close(connection)\n\n    # Making room",
        ("tests/integration/test_acceptor.py", "tests/integration/test_strangers.py"),
    ),
    # An agent that tries to reach a host that hangs runs out of descriptors.
    MovedBug(
        "a connection that was given up while it was made stays open",
        "coordinator/connection.py",
        "            connection.established.cancel()\n            connection.abort()\n",
        "            connection.established.cancel()\n",
        ("tests/integration/test_session.py", "tests/integration/test_redial.py"),
    ),
    # A node whose agent has died is noticed only when its lease is over.
    MovedBug(
        "the look for lost nodes is not moved to an earlier time",
        "coordinator/hosted_job.py",
        "            if self._check.when() <= now + delay_s:\n"
        "                return\n"
        "            self._check.cancel()\n",
        "            return\n",
        ("tests/unit/test_death_notice.py", "tests/integration/test_coordinator.py"),
    ),
    # Each node that comes has all others wait anew for the rest of the nodes.
    MovedBug(
        "a wait that runs begins anew when another one is wanted",
        "coordinator/hosted_job.py",
        "{t: ends.get(t, now + length_s) for t, length_s in wanted.items()}",
        "{t: now + length_s for t, length_s in wanted.items()}",
        ("tests/unit/test_job.py", "tests/integration/test_coordinator.py"),
    ),
    # `rallypoint logs` stops in the middle of long logs.
    MovedBug(
        "what a person has taken makes no room for more",
        "coordinator/gathering.py",
        "            gathering.untaken -= 1\n            gathering.credit += 1\n",
        "            gathering.untaken -= 1\n",
        ("tests/watch/test_following_output.py", "tests/unit/test_answering.py"),
    ),
    # A `serve` forgets a job too early whose nodes went away twice.
    MovedBug(
        "a job that has nodes again is still about to be forgotten",
        "coordinator/jobs.py",
        "        if (timer := self._forgetting.pop(run_id, None)) is not None:\n"
        "            timer.cancel()\n",
        "        self._forgetting.pop(run_id, None)\n",
        ("tests/unit/test_job_lives.py", "tests/integration/test_serve.py"),
    ),
    # A person reads that nothing can be recorded while all is well.
    MovedBug(
        "a record that was written does not end the wait for it",
        "coordinator/leadership.py",
        "            stall.ended()\n",
        "",
        ("tests/unit/test_leadership.py", "tests/integration/test_shared_directory.py"),
    ),
    # Thousands of agents that have lost their coordinator keep its machine busy with attempts.
    MovedBug(
        "the pause between attempts to connect does not grow",
        "coordinator/client.py",
        "            pause_s = min(pause_s * 2, longest_s)\n",
        "",
        ("tests/unit/test_reconnect.py", "tests/integration/test_redial.py"),
    ),
    # A node that leaves a job with a register on etcd hangs at its end.
    MovedBug(
        "who waits for a change of the register is not woken at the end",
        "coordinator/register_record.py",
        "            self._thread.close()\n            self._waking.stop_waiting()\n",
        "            self._thread.close()\n",
        ("tests/unit/test_candidates.py", "tests/unit/test_succession.py", "tests/etcd"),
    ),
    # With PYTHONUNBUFFERED asked for, what a Python worker prints comes late, or never.
    MovedBug(
        "workers are not told to write each line at once",
        "agent/environ.py",
        "            unbuffered=workers.unbuffered,\n",
        "",
        ("tests/unit/test_environ.py", "tests/integration/test_printed_progress.py"),
    ),
    # An agent with --preempt-notice cmd: runs out of descriptors after some hours.
    MovedBug(
        "each run of the command of a notice leaves a descriptor open",
        "agent/preempt_notice.py",
        "        finally:\n"
        "            os.close(nowhere)\n"
        "            await asyncio.shield(running.reap(KILL_TIMEOUT_S))\n",
        "        finally:\n            await asyncio.shield(running.reap(KILL_TIMEOUT_S))\n",
        ("tests/integration/test_preempt_notice.py",),
    ),
    # A worker hangs for ever whose timer ends after that of another one.
    MovedBug(
        "the alarm is not set again after a timer has ended",
        "agent/timers.py",
        "                self._on_expired(Expiry(local_rank, _reason(timer), signum))\n"
        "        self._set_alarm()\n",
        "                self._on_expired(Expiry(local_rank, _reason(timer), signum))\n",
        ("tests/integration/test_worker_timers.py", "tests/integration/test_timer_servers.py"),
    ),
    # A round ends as if its workers had just saved a checkpoint, and steps are lost.
    MovedBug(
        "an answer to a request that was withdrawn counts for the next one",
        "agent/worker_shm.py",
        "        self._kind = ShmRequest.NONE\n"
        "        self._write(at.REQUEST, layout.pack_request(self._number, ShmRequest.NONE))\n",
        "        self._write(at.REQUEST, layout.pack_request(self._number, ShmRequest.NONE))\n",
        ("tests/integration/test_worker_shm.py", "tests/integration/test_checkpoint_requests.py"),
    ),
    # A program is told that its job has failures, although the last round has ended well.
    MovedBug(
        "the failures of a round are kept for the next one",
        "agent/worker_rounds.py",
        "self._succeeded, self.failures, self.error_files = None, {}, {}",
        "self._succeeded, self.error_files = None, {}",
        ("tests/unit/test_worker_rounds.py", "tests/integration/test_agent_failures.py"),
    ),
    # A job reads that no worker has told a step, of a round that has ended already.
    MovedBug(
        "the look for workers that tell no step goes on after the round",
        "agent/hang.py",
        "(self._timer, self._collecting, self._unseen)",
        "(self._timer, self._collecting)",
        ("tests/integration/test_hang.py",),
    ),
    # An agent with log files runs out of descriptors after some hundreds of rounds.
    MovedBug(
        "the files of the workers stay open in the agent",
        "agent/workers.py",
        "                for output in self._opened:\n"
        "                    output.close()\n"
        "                if not self._workers.pids:\n",
        "                if not self._workers.pids:\n",
        ("tests/integration/test_process_workers.py", "tests/integration/test_workers.py"),
    ),
    # Workers of a killed agent run beside those of the node that has got its place.
    MovedBug(
        "an agent that was killed while it started workers is taken for one without any",
        "agent/former_agents.py",
        "if leaders is None or sessions.live_members(leaders):",
        "if leaders and sessions.live_members(leaders):",
        ("tests/integration/test_former_agents.py",),
    ),
    # The guard reports the death of an agent that has left in good order.
    MovedBug(
        "the notice of an agent's death is not taken back at its end",
        "agent/membership.py",
        '            self._setup.helpers.leave_notice(b"")\n',
        "            pass\n",
        ("tests/integration/test_agent_killed.py", "tests/unit/test_death_notice.py"),
    ),
    # Who follows the output of a job with --tail 1 misses lines of each later round.
    MovedBug(
        "of each later round only the newest lines are followed",
        "agent/answering.py",
        "                lines = ALL_LINES  # Of a later round all that is kept.\n",
        "",
        ("tests/unit/test_answering.py", "tests/watch/test_following_output.py"),
    ),
)
