"""What a soak has seen: a file with one JSON line for each event, and the totals of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

ENDED, WORLD, LEFT = "ended", "world", "left"
"""Rules: the job, or one of its nodes, ended and nobody asked for that; a world was wrong;
something was left."""
CHARGED, OUTCOME, DISTURBED, SETTLED = "charged", "outcome", "disturbed", "settled"
"""Rules: the restart budget is exact; the node or command ended as it should; the good nodes were
restarted no more than they should be; a new world was there in time."""
RULES = {
    ENDED: "jobs ended wrongly",
    WORLD: "wrong worlds",
    LEFT: "leftovers",
    CHARGED: "wrong charges",
    OUTCOME: "wrong outcomes",
    DISTURBED: "disturbed too often",
    SETTLED: "never settled",
}


class Broken(Struct, frozen=True):
    """One rule that was broken."""

    rule: str
    text: str


class Entry(Struct, frozen=True, omit_defaults=True):
    """One event. `spent_s`: since the end of the event before, so that the sum is the time of all
    runs."""

    seed: int
    number: int
    backend: str
    job: int
    event: str
    spent_s: float
    settled_s: float | None = None
    """From the event to the next settled world."""
    rounds: int = 0
    """How many worlds began."""
    skipped: str = ""
    """Why the event did not take place."""
    notes: tuple[str, ...] = ()
    broken: tuple[Broken, ...] = ()
    folder: str = ""
    """What the job has written, if a rule was broken."""

    @property
    def is_ok(self) -> bool:
        return not self.broken


class Ledger:
    """The entries of a file, which need not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        self.entries = [msgspec.json.decode(line, type=Entry) for line in whole]
        if path.exists():  # A killed run may have left half a line.
            path.write_bytes(b"".join(line + b"\n" for line in whole))

    @property
    def spent_s(self) -> float:
        return sum(entry.spent_s for entry in self.entries)

    def append(self, entry: Entry) -> None:
        line = {**msgspec.to_builtins(entry), "ok": entry.is_ok}
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.entries.append(entry)


def summary(entries: Sequence[Entry]) -> str:
    """A table of the events by kind, and how often each rule was broken."""
    rows = [f"{'event':34}{'count':>6}{'median':>9}{'min':>8}{'max':>8}  broken"]
    for event in sorted({entry.event for entry in entries}):
        own = [entry for entry in entries if entry.event == event]
        done = [entry for entry in own if not entry.skipped]
        times = [entry.settled_s for entry in done if entry.settled_s is not None]
        row = f"{event:34}{len(done):6}"
        if times:
            row += f"{median(times):7.1f} s{min(times):6.1f} s{max(times):6.1f} s"
        else:
            row += f"{'-':>9}{'-':>8}{'-':>8}"
        rows.append(f"{row}{sum(not entry.is_ok for entry in done):8}")
        reasons = Counter(entry.skipped for entry in own if entry.skipped)
        rows += [f"  skipped {count} times: {reason}" for reason, count in reasons.items()]
    found = Counter(one.rule for entry in entries for one in entry.broken)
    rows += ["", *(f"{what:22}{found[rule]:4}" for rule, what in RULES.items())]
    jobs = len({entry.job for entry in entries})
    spent_s = sum(entry.spent_s for entry in entries)
    rows.append(f"{len(entries)} events in {jobs} jobs, {spent_s / 60:.1f} minutes")
    for entry in entries:
        for one in entry.broken:
            rows.append(f"event {entry.number} ({entry.event}): {one.rule}: {one.text}")
    return "\n".join(rows)


def is_ok(entries: Sequence[Entry]) -> bool:
    """Whether no rule was broken."""
    return all(entry.is_ok for entry in entries)
