"""Which share of a job's time is useful although twelve faults of six kinds befall it, and which
share Rallypoint itself costs.

benchmarks/goodput.py [--seconds S] [--quick] [--kinds N] [--json] [--looks]

Takes ten minutes; `--quick` half a minute. The account of the job's coordinator is compared with a
ledger that is made of what the workers noted themselves. `--json` prints both for programs, with
`--looks` also what the coordinator told of each round while it ran.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from goodput_job import KINDS, LEASE_S, FaultyJob
from goodput_notes import Rank
from tables import markdown

SECONDS = 600.0
STEP_S = 0.1
QUICK_STEP_S = 0.04
OWN = ("detecting", "stopping", "rendezvous", "spawn")
GROUPS = {
    "useful steps": ("useful steps",),
    "steps done twice": ("steps done twice",),
    "start-up": ("start-up",),
    "detecting": ("detecting",),
    "hang": ("hang",),
    "checkpoint": ("checkpoint",),
    "from a stop to the next start": (
        *("stopping", "waiting for nodes", "rendezvous", "spawn", "standing still"),
    ),
}
"""What a ledger can tell apart, and what the account calls it."""


def main() -> int:
    """Run the job, and print where its time went."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="so many kinds of faults")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--looks", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rallypoint-bench-"))
    try:
        job = FaultyJob(folder, QUICK_STEP_S if options.quick else STEP_S, looks=options.looks)
        found = measured(job, options.seconds, KINDS[: options.kinds], is_quick=options.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found) if options.json else table(found), flush=True)
    return 0


def measured(
    job: FaultyJob, seconds: float, kinds: tuple[str, ...], *, is_quick: bool
) -> dict[str, Any]:
    """The account, the ledger, and what has happened."""
    faults = kinds if is_quick and len(kinds) < len(KINDS) else (*kinds, *kinds)
    try:
        job.start()
        for number, kind in enumerate(faults):
            if not is_quick:
                due_at = job.began_at + (number + 1) * seconds / (len(faults) + 1)
                time.sleep(max(due_at - time.monotonic(), 0.0))
            job.befall(kind)
        if not is_quick:
            time.sleep(max(job.began_at + seconds - time.monotonic(), 0.0))
        account = job.end()["goodput"]
    finally:
        job.close()
    job.notes.read()
    return {
        "account": account,
        "ledger": ledger(job),
        "redone": redone(job),
        "faults": [fault.kind for fault in job.faults],
        "wall_s": job.ended_at - job.began_at,
        "looks": [look._asdict() for look in job.looks],
        "moments": moments(job),
        "furthest": job.notes.furthest,
        "lease_s": LEASE_S * sum(fault.kind == "silent node" for fault in job.faults),
    }


def ledger(job: FaultyJob) -> dict[str, float]:
    """Seconds of each group, by the workers' own clocks."""
    sums = dict.fromkeys(GROUPS, 0.0)
    faults = {fault.round: fault for fault in job.faults}
    stopped_at, before = job.began_at, -1
    for number, ranks in sorted(job.notes.rounds.items()):
        started_at = max(rank.moments["start"] for rank in ranks)
        steps = first_done(ranks)
        first_at, last_at = min(steps.values()), max(steps.values())
        sums["from a stop to the next start"] += started_at - stopped_at
        sums["start-up"] += first_at - started_at
        stops = [rank.moments[what] for rank in ranks for what in rank.moments if what == "stop"]
        exits = [rank.moments[what] for rank in ranks for what in rank.moments if what == "exit"]
        stopped_at = min([*stops, *exits])
        works_until, group = stopped_at, ""
        if (fault := faults.get(number)) is not None:
            works_until, group = fault.at, "detecting"
            if fault.kind == "exception":
                works_until = next(r.moments["fault"] for r in ranks if "fault" in r.moments)
            elif fault.kind in ("hang", "drain"):
                works_until = last_at
                group = "hang" if fault.kind == "hang" else "checkpoint"
            works_until = max(works_until, last_at)
            sums[group] += max(stopped_at - works_until, 0.0)
        passed_at = min((at for step, at in steps.items() if step > before), default=works_until)
        sums["steps done twice"] += max(passed_at - first_at, 0.0)
        sums["useful steps"] += max(works_until - max(passed_at, first_at), 0.0)
        before = max(before, *steps)
    return sums


def moments(job: FaultyJob) -> dict[str, Any]:
    """When the job was set up and had ended, and of each round when its first worker had started,
    its first step was done, and something was noted last."""
    rounds = [
        {
            "started_at": min(rank.moments["start"] for rank in ranks),
            "first_step_at": min(first_done(ranks).values()),
            "last_at": max(max([*rank.moments.values(), *rank.steps.values()]) for rank in ranks),
        }
        for _, ranks in sorted(job.notes.rounds.items())
    ]
    return {"set_up_at": job.set_up_at, "ended_at": job.ended_at, "rounds": rounds}


def redone(job: FaultyJob) -> int:
    """Steps that a round before had done, too."""
    count, before = 0, -1
    for _, ranks in sorted(job.notes.rounds.items()):
        steps = first_done(ranks)
        count += sum(step <= before for step in steps)
        before = max(before, *steps)
    return count


def first_done(ranks: list[Rank]) -> dict[int, float]:
    """When the first rank had done each step."""
    found: dict[int, float] = {}
    for rank in ranks:
        for step, at in rank.steps.items():
            found[step] = min(at, found.get(step, at))
    return found


def by_group(account: dict[str, Any]) -> dict[str, float]:
    """The account's seconds in the groups of the ledger."""
    sums = dict.fromkeys(GROUPS, 0.0)
    for part in account["parts"]:
        group = next(name for name, kinds in GROUPS.items() if part["spent"] in kinds)
        sums[group] += part["seconds"]
    return sums


def table(found: dict[str, Any]) -> str:
    """For a person."""
    account, wall_s = found["account"], found["account"]["wall_s"]
    theirs = found["ledger"]
    rows = [
        [name, f"{seconds:.2f}", f"{theirs[name]:.2f}", f"{100 * seconds / wall_s:.2f} %"]
        for name, seconds in by_group(account).items()
    ]
    total_s = sum(part["seconds"] for part in account["parts"])
    rows.append(["together", f"{total_s:.2f}", f"{sum(theirs.values()):.2f}", f"of {wall_s:.2f} s"])
    faults = f"{len(found['faults'])} faults of {len(set(found['faults']))} kinds"
    own_s = own_loss_s(account) - found["lease_s"]
    done_again = f"{account['lost_steps']} ({found['redone']} by the ledger)"
    long_s = max(wall_s, SECONDS)  # A quick run has as many faults in less time.
    is_met = "met" if own_s < 0.01 * long_s else "missed"
    lines = [
        markdown(f"Goodput with {faults} (seconds)", ("", "account", "ledger", "share"), rows),
        f"Steps done again: {done_again} of {account['furthest_step'] + 1}.",
        f"Detecting, stopping, rendezvous and spawn, less leases of {found['lease_s']:g} s:",
        f"{own_s:.2f} s, {100 * own_s / long_s:.2f} % of {long_s:.0f} s ({is_met}: 1 %).",
        "",
    ]
    return "\n".join(lines)


def own_loss_s(account: dict[str, Any]) -> float:
    """What detecting, stopping, the rendezvous and spawning took after faults."""
    return float(
        sum(
            part["seconds"]
            for part in account["parts"]
            if part["spent"] in OWN and part["cause"] != "start"
        )
    )


if __name__ == "__main__":
    sys.exit(main())
