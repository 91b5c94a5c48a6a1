"""Plants known bugs, one at a time, in a copy of the source, and lists which of them the simulator
finds. `python tools/planted_bugs.py [--seeds A-B] [NAME ...]`; exits 1 if one was not found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src"
CORE = "rallypoint/core"


class Bug(NamedTuple):
    """A change of one place that breaks a rule."""

    name: str
    module: str
    """From `core` on."""
    old: str
    """Occurs once."""
    new: str


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
        "a superseded life may come back",
        "round.py",
        "    state.departed[older.ref.incarnation] = NEVER_AGAIN\n",
        "",
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
        "one restart more than was allowed",
        "restart.py",
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
    ),
    Bug(
        "what is decided is done before it is recorded",
        "takeover/durable.py",
        "if self.is_recorded and is_sure and not self._kept:",
        "if is_sure:",
    ),
    Bug(
        "who takes over waits for ever for a node that does not come",
        "sessions.py",
        "return self._recovery.timers_wanted()",
        "return {}",
    ),
    Bug(
        "the hold counts from the confirmation",
        "../coordinator/leadership.py",
        "self.lead.confirmed(record, sent_at)",
        "self.lead.confirmed(record, self._runtime.clock())",
    ),
    Bug(
        "an attempt to renew the hold has the beat of the one before",
        "takeover/leading.py",
        "self._beat += 1",
        "self._beat = self.record.beat + 1",
    ),
    Bug(
        "who takes over does not know which round was judged",
        "takeover/record.py",
        "job.judged_round, job.backoff_s = record.judged_round, record.backoff_s",
        "job.judged_round, job.backoff_s = 0, record.backoff_s",
    ),
    Bug(
        "a beat amid a recovery forgets the world",
        "takeover/durable.py",
        "if (recovery := self.handover.recovery) is not None:",
        "if (recovery := self.handover.recovery) is not None and self._changed > 9:",
    ),
    Bug(
        "who would lead does not wait for the end of the hold",
        "takeover/leading.py",
        "still_s = with_margin(self._hold_s) + turn.delay_s",
        "still_s = self._hold_s / 4 + turn.delay_s",
    ),
    Bug(
        "an heir claims in spite of its promise",
        "takeover/leading.py",
        "            ends_at = max(ends_at, claimant.promised_until)\n",
        "            pass\n",
    ),
    Bug(
        "a promise counts from its receipt",
        "takeover/consent.py",
        "promised.since = answers[promise.answered]",
        "promised.since = now",
    ),
    Bug(
        "a leader acts by promises of some of its heirs",
        "takeover/consent.py",
        "return min((-inf if each is None else each.since for each in promised), default=-inf)",
        "return max((-inf if each is None else each.since for each in promised), default=-inf)",
    ),
    Bug(
        "a leading node has a lease of its own making",
        "session.py",
        "self._lease.renew(now, sent_at, self._rules.vouched_at())",
        "self._lease.renew(now, sent_at)",
    ),
    Bug(
        "the node of the last leader is not awaited",
        "takeover/handover.py",
        "return self.rank >= 0 and not self.is_dead and self.fenced_in_s <= 0",
        "return self.rank >= 0 and not self.is_dead",
    ),
    Bug(
        "a leader that goes is said to be dead",
        "takeover/leading.py",
        "beat=self._beat, job=job, is_vacant=is_vacant)",
        "beat=self._beat, job=job, is_vacant=is_vacant, is_dead=is_vacant)",
    ),
    Bug(
        "the guard of a dead leader marks the record of another one",
        "takeover/leading.py",
        "    if found.epoch != epoch or found.is_vacant:\n",
        "    if found.is_vacant:\n",
    ),
    Bug(
        "workers start when the lease is over",
        "session.py",
        "over = [LeaseOver(self._waits_for(now))] if self._lease.is_over else []",
        "over: list[AgentEffect] = []",
    ),
    Bug(
        "what an agent said before it began anew counts",
        "sessions.py",
        "            self._recovery.forget(hello.incarnation)\n",
        "            pass\n",
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
    ),
)


def plant(bug: Bug, folder: Path) -> None:
    """Make a copy of the source with this bug. Raises ValueError where its place is not found."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / CORE / bug.module
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f"{bug.name}: its place occurs {text.count(bug.old)} times in {path.name}")
    path.write_text(text.replace(bug.old, bug.new))


def found(bug: Bug, seeds: str) -> str:
    """The line that tells how it was found; empty: it was not."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        plant(bug, source)
        command = [sys.executable, "-m", "rallypoint.testing.simulator", "--first", "--brief"]
        environ = os.environ | {"PYTHONPATH": str(source)}
        done = subprocess.run(
            [*command, "--seeds", seeds], env=environ, capture_output=True, text=True, check=False
        )
        told = [line for line in done.stdout.splitlines() if " broke a rule: " in line]
        if done.returncode not in (0, 1):
            return f"the simulator fails: {done.stderr.splitlines()[-1][:100]}"
        return told[0] if told else ""


def main() -> int:
    """Returns 1 if a bug was not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="1-3000")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*", help="a part of a bug's name; all, if none is given")
    options = parser.parse_args()
    names = options.names
    chosen = [bug for bug in BUGS if not names or any(name in bug.name for name in names)]
    began, missed = time.monotonic(), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for bug, how in zip(
            chosen, pool.map(lambda b: found(b, options.seeds), chosen), strict=True
        ):
            missed += not how
            print(f"{'found    ' if how else 'NOT FOUND'} {bug.name:<60} {how[:110]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found in {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
