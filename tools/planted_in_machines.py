"""Planted bugs in the machines of a coordinator, of candidates and of a launch, and their hosts.

There are three bugs in each machine and one in each host (`python -m tools.planted_bugs --list
machines`). They were chosen by a reader of the source who had not written it and did not know its
tests. The bugs of a launch, three in its machine and one in its host, are its author's. One
bug is in a session: seeds of the simulator found it until a place was told in a shorter form.

Each is found by a test of its own machine: in a file that imports the module, or the machine's
transcript. A change of a text here needs the same change in the source, as in
`planted_before_moves.py`.
"""

from __future__ import annotations

from tools.planted_before_moves import MovedBug

BUGS_IN_MACHINES = (
    # The next leader ignores a node that was stopped past its lease and has joined again.
    MovedBug(
        "a place that is told again answers a newer join",
        "core/session.py",
        "self._joined is not None and assigned.stamp != self.placed_in",
        "self._joined is not None",
        found_by="test_L5_a_place_that_is_told_again_does_not_answer_a_newer_join",
    ),
    # A person who reads a long answer slowly is cut off after a minute, though they read on.
    MovedBug(
        "what a person takes does not show that they still read",
        "core/watch/collection.py",
        "            state.untaken -= 1\n            state.taken_at = at\n",
        "            state.untaken -= 1\n",
        found_by="test_a_person_who_takes_a_value_has_another_minute",
    ),
    # Who follows the output of workers gets nothing more of a node whose connection broke once.
    MovedBug(
        "a node whose connection broke is not asked again",
        "core/watch/collection.py",
        "            state.asked[part.node_id] = _TO_BE_ASKED\n",
        "",
        found_by="test_who_follows_has_each_line_once_though_a_connection_breaks",
    ),
    # Behind a slow reader a healthy node is said not to answer.
    MovedBug(
        "a node that waited for its turn has no time for its piece",
        "core/watch/collection.py",
        "        state.parts[connection].since = at\n",
        "",
        found_by="test_a_node_has_five_seconds_for_each_piece_from_when_it_told_the_last_one",
    ),
    # A coordinator fails when it tells somebody who has gone.
    MovedBug(
        "a person who has hung up still waits for what they asked for",
        "core/job_requests.py",
        "            state.waiting.pop(connection, None)\n            return []\n",
        "            return []\n",
        found_by="test_who_hangs_up_is_told_nothing",
    ),
    # `rallypoint checkpoint` tells of the checkpoint before as if it were the one asked for.
    MovedBug(
        "the checkpoint before answers a request for another one",
        "core/job_requests.py",
        "job.save.number <= wanted.notices:",
        "job.save.number < wanted.notices:",
        found_by="test_an_older_checkpoint_does_not_answer_a_newer_request_that_was_never_asked_for",
    ),
    # A person whose connection broke asks again, and hears nothing of the checkpoint that is saved.
    MovedBug(
        "who asks again does not wait for the checkpoint that is under way",
        "core/job_requests.py",
        "asked_in, job.notices - saves, was_lost=True)",
        "asked_in, job.notices, was_lost=True)",
        found_by="test_V4_who_asks_again_while_a_checkpoint_is_saved_hears_what_has_come_of_it",
    ),
    # A running job is forgotten ten minutes after all its nodes were away for a moment.
    MovedBug(
        "agents that come back to a job do not keep it from being forgotten",
        "core/job_lives.py",
        "        if agents:\n            self._deserted.pop(run_id, None)\n        elif",
        "        if agents:\n            pass\n        elif",
        found_by="test_a_job_is_forgotten_so_long_after_its_last_agent_has_left_and_not_before",
    ),
    # Agents of the life before come again and again, and never hear how it ended.
    MovedBug(
        "a verdict counts as unrecorded after it was recorded",
        "core/job_lives.py",
        "        if hosted.is_recorded:\n            self._unrecorded.pop(run_id, None)\n",
        "",
        found_by="test_an_agent_is_to_come_again_until_the_end_of_its_life_is_recorded",
    ),
    # Workers of two lives of a job run at once.
    MovedBug(
        "a first round does not wait for nodes that have not heard of the end",
        "core/job_lives.py",
        "        return [] if held or run_id in self._unheard else [FormerGone(run_id)]",
        "        return [] if held else [FormerGone(run_id)]",
        found_by="test_L7_a_first_round_waits_for_the_agents_and_for_the_lease_of_the_life_before",
    ),
    # A standby that lost its leader once does not take part any more.
    MovedBug(
        "a standby whose connection ended does not dial again",
        "core/takeover/candidacy.py",
        "        self._is_dialled = False\n        if was_connected:",
        "        if was_connected:",
        found_by="test_L1_a_candidate_dials_again_when_its_connection_is_lost_but_not_at_once",
    ),
    # Two processes lead a job.
    MovedBug(
        "a standby claims in spite of what it promised during the read",
        "core/takeover/candidacy.py",
        "        if not judged.claims_in_s and may_claim and not has_promised:\n",
        "        if not judged.claims_in_s and may_claim:\n",
        found_by="test_L2_a_candidate_that_promises_while_it_reads_does_not_claim",
    ),
    # A standby reads the records of dead jobs for ever.
    MovedBug(
        "a standby does not note when a record has changed",
        "core/takeover/candidacy.py",
        "            self.record, self._changed_at = record, event.at\n",
        "            self.record = record\n",
        found_by="test_L1_a_candidate_gives_up_what_nobody_needs",
    ),
    # A leader hands over to a node that does not listen any more.
    MovedBug(
        "a node that listens no more still offers to lead",
        "core/takeover/leader_search.py",
        "            closing = [c.Close()] if self._offered else []\n"
        "            self._offered = ()\n",
        "            closing = [c.Close()] if self._offered else []\n",
        found_by="test_L2_an_heir_offers_to_lead_while_the_record_is_late_and_it_could_write_it",
    ),
    # A job that has ended here is led by a node that goes.
    MovedBug(
        "a node that was stopped during the read claims",
        "core/takeover/leader_search.py",
        "        if self._is_stopped:\n            return []\n        if has_promised",
        "        if has_promised",
        found_by="test_L1_a_node_that_stops_claims_no_more_but_carries_a_claim_through",
    ),
    # An agent waits for ever for a job that nobody leads, whatever its join timeout.
    MovedBug(
        "the wait for the first leader is extended again and again",
        "core/takeover/leader_search.py",
        "            self._is_extended = True\n",
        "",
        found_by="test_F2_a_node_whose_turn_is_put_off_meanwhile_does_not_wait_for_it_once_more",
    ),
    # A person is told that nothing is recorded, though all is well.
    MovedBug(
        "a record that is taken does not put off the alarm of a register that stands still",
        "core/takeover/duties.py",
        "        self._stalls_at, self._is_stalled, self._stall = "
        'at + self._stall_s, False, ""\n        if not',
        '        self._is_stalled, self._stall = False, ""\n        if not',
        found_by="test_a_transcript_says_what_happens",
    ),
    # A decision waits for seconds, until the hold is renewed.
    MovedBug(
        "a change while a record is under way is taken for recorded",
        "core/takeover/duties.py",
        "        self._writing = None\n        if record.is_vacant:\n",
        "        self._writing, self._is_changed = None, False\n        if record.is_vacant:\n",
        found_by="test_L3_what_changes_while_a_record_is_written_is_in_the_next_one",
    ),
    # Who comes late to the life before does not hear how it ended.
    MovedBug(
        "a life that begins after one without an end forgets the one before",
        "core/takeover/duties.py",
        "        over = None if job is None else job.former\n        if former is not None",
        "        over = None\n        if former is not None",
        found_by="test_L7_an_end_is_still_known_when_a_life_begins_after_one_that_nobody_has_ended",
    ),
    # `rallypoint stacks` waits for ever for a node that does not answer.
    MovedBug(
        "the time passes for answers only once",
        "coordinator/gathering.py",
        "        self.check_deadlines()\n        self._tick_later()\n",
        "        self.check_deadlines()\n",
        found_by="test_V6_nodes_that_do_not_answer_are_named_and_the_answer_ends",
    ),
    # `rallypoint logs -f` does not end with the job.
    MovedBug(
        "who follows the output of workers is not told of the end of the job",
        "coordinator/watching.py",
        "            if self._gatherings is not None:\n"
        "                self._gatherings.job_ended()\n",
        "",
        found_by="test_V6_the_answer_to_who_follows_ends_when_nodes_have_told_all_after_the_jobs_end",
    ),
    # The next life of a job waits for ever for one that all its agents have left.
    MovedBug(
        "nobody is told that the last agent of the life before has gone",
        "coordinator/jobs.py",
        "            self._do(self._lives.gone(run_id, len(self._ended_of(run_id))))\n",
        "",
        found_by="test_R5_a_failed_job_begins_anew_when_its_last_agents_have_left",
    ),
    # The others wait for the hold of a node that has gone while it claimed.
    MovedBug(
        "a node that stops leaves its claim half done",
        "coordinator/leading/leader_search.py",
        "        for _ in self._search.stops():\n            self._watcher.cancel()\n",
        "        self._search.stops()\n        self._watcher.cancel()\n",
        found_by="test_L1_a_node_that_ends_while_it_claims_leaves_the_job_to_others_at_once",
    ),
    # A standby whose connection broke stays off the leader's list.
    MovedBug(
        "a standby is not told that its connection ended",
        "coordinator/leading/candidates.py",
        "            self._standby.dialled(self.now, was_connected=True)\n",
        "",
        found_by="test_L1_a_candidate_whose_connection_to_the_leader_breaks_connects_again",
    ),
    # Nodes do not hear what a leader has recorded last, and ask the next one.
    MovedBug(
        "what a leader records as it goes is not done",
        "coordinator/leading/leadership.py",
        "                        self._apply(self.duties.written(self.now, last.record))\n",
        "                        pass\n",
        found_by="test_L6_a_leader_that_goes_writes_what_it_has_not_written_yet",
    ),
    # Hosts at the end of a long list are never reached when some of the first ones are down.
    MovedBug(
        "a host that can't be reached keeps its place among those that are being reached",
        "cli/launch/machine.py",
        "        case LinkEnded(name):\n            state.reaching.discard(name)\n",
        "        case LinkEnded(name):\n",
        found_by="test_no_more_hosts_are_reached_at_once_than_a_machine_between_takes",
    ),
    # The nodes connect at an address that leads each of them to itself, and the job times out.
    MovedBug(
        "the first host that answers hosts the job, though the others can't reach it",
        "cli/launch/machine.py",
        "    return (others or ready)[0]\n",
        "    return ready[0]\n",
        found_by="test_the_first_host_that_others_can_reach_hosts_the_job",
    ),
    # A job that a scheduler has ended by SIGTERM exits with 75, and is started again elsewhere.
    MovedBug(
        "hosts that leave since a person ends the job are missed",
        "cli/launch/machine.py",
        "    if state.caught or state.ending_code or not runs or left >= least:\n",
        "    if state.ending_code or not runs or left >= least:\n",
        found_by="test_a_job_that_a_person_ends_is_not_ended_for_want_of_hosts",
    ),
    # A host without the script is said to save a checkpoint, and the exit code says to try again.
    MovedBug(
        "a host that refuses the job once it was told to start is not heard",
        "cli/launch/machine.py",
        "        case wire.AgentRefused() if part in (HostPart.ASKED, HostPart.RUNS):\n",
        "        case wire.AgentRefused() if part is HostPart.ASKED:\n",
        found_by="test_an_agent_that_can_not_be_started_is_a_mistake_and_too_few_end_the_job",
    ),
    # A scheduler's SIGTERM right after Ctrl-C is lost, and nobody hurries.
    MovedBug(
        "another signal right after the first counts as the same one",
        "cli/launch/machine.py",
        "    if state.caught[-1:] == [number] and at - state.caught_at < APART_S:\n",
        "    if state.caught and at - state.caught_at < APART_S:\n",
        found_by="test_signals_of_two_kinds_are_two_however_close",
    ),
    # A launch that lacks a host which is only down exits with the code that is not tried again.
    MovedBug(
        "one host that refuses makes up for those that are down",
        "cli/launch/machine.py",
        "    is_mistake = state.mistakes == len(state.those(HostPart.GONE))\n",
        "    is_mistake = state.mistakes > 0\n",
        found_by="test_only_mistakes_are_wrong_usage",
    ),
    # Ctrl-C has no effect any more while the terminal is stopped by Ctrl-S.
    MovedBug(
        "the third signal does not end the wait for the console",
        "cli/launch/job.py",
        "                output.give_up()\n",
        "                pass\n",
        found_by="test_three_signals_before_the_start_wait_for_no_ssh_client_and_no_console",
    ),
)
