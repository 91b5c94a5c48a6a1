"""Bugs that the simulator must find, each a change of one place that breaks a rule."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A change of one place that breaks a rule."""

    name: str
    module: str
    """From `core` on."""
    old: str
    """Occurs once."""
    new: str
    rule: str = ""
    """Of leading and taking over (L0 to L8), if it breaks one of these."""


BUGS = (
    Bug(
        "budget charged at each settle",
        "job_rounds.py",
        "    if job.judged_round == round_:\n        return []\n",
        "",
    ),
    Bug(
        "lease counted from receipt instead of sending",
        "session.py",
        "self._renewed(now, self._lease.answered(number))",
        "self._renewed(now, now)",
    ),
    Bug(
        "an agent that was replaced takes its place back",
        "round.py",
        "    if was_replaced(state, ref):\n",
        "    if event.seq < 0:\n",
    ),
    Bug(
        "an agent takes the place of one that runs, by its id",
        "sessions.py",
        "            if (contest := self._names.contest(ref, join)) is not None:",
        "            if not ref and (contest := self._names.contest(ref, join)) is not None:",
    ),
    Bug(
        "an agent is refused for the sake of one that is not heard",
        "sessions.py",
        "return contest.is_heard and not is_dead",
        "return not is_dead",
    ),
    Bug(
        "an agent waits for the id of one that is gone",
        "claims.py",
        "if all_of_them or not names.has(contest)",
        "if all_of_them",
    ),
    Bug(
        "reports are not sent again on a new connection",
        "session.py",
        "            for numbered, made_at in self._unacknowledged\n        ]",
        "            for numbered, made_at in []\n        ]",
    ),
    Bug(
        "an acknowledgement covers one report too many",
        "session.py",
        "self._unacknowledged[0][0].number <= number",
        "self._unacknowledged[0][0].number <= number + 1",
    ),
    Bug(
        "the agent does not look at its lease when it wakes up",
        "session.py",
        "        if not self._lease.has_ended(now) or self.is_closed:",
        "        if now or not self._lease.has_ended(now) or self.is_closed:",
    ),
    Bug(
        "a round is judged while nodes still stop",
        "round.py",
        "if forming and state.held and not state.counts[MemberState.STOPPING]:",
        "if forming and state.held:",
    ),
    Bug(
        "a node that comes back without its workers ends no round",
        "round.py",
        '    if member.state is MemberState.RUNNING:\n        text = f"node {member.ref} came back',
        '    if False:\n        text = f"node {member.ref} came back',
    ),
    Bug(
        "a round number is used again",
        "round.py",
        "state.phase, state.round, state.held = Phase.FORMING, ended + 1, True",
        "state.phase, state.round, state.held = Phase.FORMING, ended, True",
    ),
    Bug(
        "a node is lost at half of its lease",
        "liveness.py",
        "            if now < heard_at + self._lease_s + LEASE_SLACK_S:",
        "            if now < heard_at + self._lease_s / 2:",
    ),
    Bug(
        "the guard does not fence a stopped agent",
        "liveness.py",
        "    if not held_until_ns or now_ns < held_until_ns + AGENT_FIRST_NS:",
        "    if now_ns or not held_until_ns or now_ns < held_until_ns + AGENT_FIRST_NS:",
    ),
    Bug(
        "the end of the lease kills nothing",
        "group.py",
        "    return [kinds.FENCED(said), *abort(state, Desired.JOIN, None)]",
        "    return [kinds.FENCED(said)]",
    ),
    Bug(
        "a lost session is resumed",
        "sessions.py",
        "            resumed = session.opened == hello.opened\n",
        "            resumed = True\n",
    ),
    Bug(
        "a node that was away for the stop is not told again",
        "job.py",
        "if member.state is MemberState.STOPPING and job.end_reason is not None:",
        "if False and job.end_reason is not None:",
    ),
    Bug(
        "a node that was away for the start is not told again",
        "job.py",
        "        if job.started:\n            effects.append(ToNode(ref, StartNow(named)))\n",
        "",
    ),
    Bug(
        "only participants hear the verdict",
        "job_state.py",
        "verdict_to(job, member.ref) for member in state.members.values()]",
        "verdict_to(job, member.ref) for member in state.members.values() if member.succeeded]",
    ),
    Bug(
        "a takeover forgets how often the same has failed",
        "takeover/record.py",
        "    job.crash_loop, job.furthest_step = record.crash_loop, record.furthest_step\n",
        "",
        rule="L3",
    ),
    Bug(
        "one restart more than was allowed",
        "restarts/ledger.py",
        "if used >= budget:",
        "if used > budget:",
    ),
    Bug(
        "the last failure is the first cause",
        "cause.py",
        "first = min(remaining,",
        "first = max(remaining,",
    ),
    Bug(
        "what workers do after they were told to stop is a failure",
        "group_state.py",
        "    if state.phase is not Phase.RUNNING:\n        killed",
        "    if state.phase is Phase.FINISHED:\n        killed",
    ),
    Bug(
        "a connection that breaks has no grace",
        "liveness.py",
        "                if now < at + grace_s:",
        "                if now < at:",
    ),
    Bug(
        "a report is acknowledged before another coordinator can do without it",
        "takeover/record.py",
        "    if job.verdict is not None:\n        return True\n    match report:",
        "    if report:\n        return True\n    match report:",
        "L3",
    ),
    Bug(
        "what is decided is done before it is recorded",
        "takeover/durable.py",
        "if self.is_recorded and is_sure and not self._kept:",
        "if is_sure:",
        "L3",
    ),
    Bug(
        "who takes over waits for ever for a node that does not come",
        "sessions.py",
        "return self._recovery.timers_wanted()",
        "return {}",
        "L5",
    ),
    Bug(
        "the hold counts from the confirmation",
        "../coordinator/leadership.py",
        "self.lead.confirmed(record, sent_at)",
        "self.lead.confirmed(record, self._runtime.clock())",
        "L2",
    ),
    Bug(
        "an attempt to renew the hold has the beat of the one before",
        "takeover/leading.py",
        "self._beat += 1",
        "self._beat = self.record.beat + 1",
        "L2",
    ),
    Bug(
        "who takes over does not know which round was judged",
        "takeover/record.py",
        "job.judged_round, job.backoff_s = record.judged_round, record.backoff_s",
        "job.judged_round, job.backoff_s = 0, record.backoff_s",
        "L3",
    ),
    Bug(
        "a beat amid a recovery forgets the world",
        "takeover/durable.py",
        "if (recovery := self.handover.recovery) is not None:",
        "if (recovery := self.handover.recovery) is not None and self._changed > 9:",
        "L5",
    ),
    Bug(
        "who would lead does not wait for the end of the hold",
        "takeover/leading.py",
        "still_s = with_margin(self._hold_s) + turn.delay_s",
        "still_s = self._hold_s / 4 + turn.delay_s",
        "L1",
    ),
    Bug(
        "an heir claims in spite of its promise",
        "takeover/leading.py",
        "            ends_at = max(ends_at, claimant.promised_until)\n",
        "            pass\n",
        "L1",
    ),
    Bug(
        "a promise counts from its receipt",
        "takeover/consent.py",
        "promised.since = answers[promise.answered]",
        "promised.since = now",
        "L2",
    ),
    Bug(
        "a leader acts by promises of some of its heirs",
        "takeover/consent.py",
        "return min((-inf if each is None else each.since for each in promised), default=-inf)",
        "return max((-inf if each is None else each.since for each in promised), default=-inf)",
        "L2",
    ),
    Bug(
        "a leading node has a lease of its own making",
        "session.py",
        "self._lease.renew(now, sent_at, self._rules.vouched_at())",
        "self._lease.renew(now, sent_at)",
        "L4",
    ),
    Bug(
        "the node of the last leader is not awaited",
        "takeover/recovery.py",
        "return self.rank >= 0 and not self.is_dead and self.fenced_in_s <= 0",
        "return self.rank >= 0 and not self.is_dead",
        "L4",
    ),
    Bug(
        "a leader that goes is said to be dead",
        "takeover/leading.py",
        "beat=self._beat, job=job, is_vacant=is_vacant)",
        "beat=self._beat, job=job, is_vacant=is_vacant, is_dead=is_vacant)",
        "L6",
    ),
    Bug(
        "the guard of a dead leader marks the record of another one",
        "takeover/leading.py",
        "    if found.epoch != epoch or found.is_vacant:\n",
        "    if found.is_vacant:\n",
        "L6",
    ),
    Bug(
        "workers start when the lease is over",
        "session.py",
        "over = [LeaseOver(self._waits_for(now))] if self._lease.is_over else []",
        "over: list[AgentEffect] = []",
        "L4",
    ),
    Bug(
        "what an agent said before it began anew counts",
        "sessions.py",
        "            self._recovery.forget(hello.incarnation)\n",
        "            pass\n",
        "L5",
    ),
    Bug(
        "a place that is told again answers a newer join",
        "session.py",
        "self._joined is not None and assigned.stamp != self._placed_in",
        "self._joined is not None",
    ),
    Bug(
        "a success is forgotten when its node is back",
        "takeover/record.py",
        "    if member is None or not is_same or member.state is not MemberState.RUNNING:\n",
        "    if member is None or not is_same:\n",
        "L3",
    ),
    Bug(
        "an agent takes another leader's word for the loss of its session",
        "session.py",
        "Opened(message.resumed, replaced)",
        "Opened(message.resumed and not replaced, replaced)",
        "L0",
    ),
    Bug(
        "who has lost the race for a claim leads all the same",
        "../coordinator/leadership.py",
        "self._record.swap(record):\n            return False\n        self._lead",
        "self._record.swap(record):\n            pass\n        self._lead",
        "L1",
    ),
    Bug(
        "a leader answers when its hold is over",
        "takeover/leading.py",
        "        return now < self.sure_until\n",
        "        return True\n",
        "L2",
    ),
    Bug(
        "a success is acknowledged before it is recorded",
        "takeover/record.py",
        "        state.succeeded,\n        state.fitness.loss_count,",
        "        state.fitness.loss_count,",
        "L3",
    ),
    Bug(
        "a leader without its register tells any verdict",
        "../coordinator/led_job.py",
        "job.verdict is None or job.verdict.outcome is not Outcome.CANCELLED:",
        "job.verdict is None or job.verdict.outcome is Outcome.INFRASTRUCTURE:",
        "L3",
    ),
    Bug(
        "who takes over does not wait until those who are missing are fenced",
        "takeover/recovery.py",
        "return with_margin(record.settings.lease_s) if record.is_started else NOT_STARTED_S",
        "return NOT_STARTED_S",
        "L4",
    ),
    Bug(
        "who takes over ends the round of which all nodes have come",
        "takeover/handover.py",
        "    missing = missing_ranks(found)\n",
        "    missing = missing_ranks(found) or [0]\n",
        "L5",
    ),
    Bug(
        "a node that was away at the end begins the job anew",
        "job_lives.py",
        "            return HearVerdict(known.incarnation, found.life.verdict)\n        if known",
        "            return None\n        if known",
        "L7",
    ),
    Bug(
        "a leader has nothing but its hold when its register is away",
        "takeover/leading.py",
        "return max(self._held_until, min(by_consent, latest))",
        "return max(self._held_until, min(by_consent, self._held_until))",
        "L8",
    ),
    Bug(
        "who takes over begins with an empty ledger",
        "takeover/record.py",
        "    job.ledger = Ledger(record.restarts, list(record.restarts_counted))\n",
        "",
        "L8",
    ),
    Bug(
        "a round ends for a newcomer that has not proved itself",
        "round.py",
        "    member.is_proven = not (late and event.candidate.proves)\n",
        "",
    ),
    Bug(
        "what is held back is forgotten at a takeover",
        "takeover/record.py",
        "        machines=_machines_record(state.fitness),\n",
        "",
    ),
    Bug(
        "a quarantine restarts whole at each takeover, and is over at once",
        "fitness_state.py",
        "            hold.since, hold.until = hold.since + at, hold.until + at\n",
        "            pass\n",
    ),
    Bug(
        "a failure on probation is charged",
        "fitness.py",
        "    if machine in fitness.trial:\n",
        "    if False:\n",
    ),
    Bug(
        "the loss of the machine that led is not counted for it",
        "takeover/handover.py",
        "    return fitness.count_loss(job.round, machine, led.node_id)\n",
        "    return fitness.count_round(job.round)\n",
    ),
    Bug(
        "a machine that can't start workers is charged and stays",
        "job_rounds.py",
        "    for member, lacking in job_fitness.leaving(job):\n",
        "    for member, lacking in []:\n",
    ),
    Bug(
        "failures never hold a machine back",
        "fitness.py",
        "    if count < after:\n",
        "    if True:\n",
    ),
    Bug(
        "a machine that is held back takes part in the next round",
        "round.py",
        "                if fitness.may_take_part(state, member):\n",
        "                if True:\n",
    ),
    Bug(
        "each loss of one machine counts for the limit",
        "fitness.py",
        "    if machine in fitness.lossy_machines.values() and minimum_remains(state, machine):\n",
        "    if False:\n",
    ),
    Bug(
        "what two machines do alike in one round is taken for one machine's fault",
        "job_fitness.py",
        "    return fitness.judge(state, found, cause.node_id, is_everywhere=everywhere)\n",
        "    return fitness.judge(state, found, cause.node_id)\n",
    ),
)
