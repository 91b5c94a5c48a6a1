"""A long run of real jobs under random events, with a check after each.

    python -m tests.fault.soak [--backend file|etcd|kubernetes] [--minutes N] [--seed N]
        [--ledger FILE] [--only EVENT,...] [--events N]

Checks that no job is ended that should not be, that there is never a wrong world, and that nothing
remains. One job runs at a time, of two to six small agents. Events come in cycles: in each, every
event happens once in a job with --max-restarts 0, with those of bad nodes, and once in a job with a
budget. The order is drawn by the seed.

Each event is one line of the ledger. Started again with the same ledger the soak goes on after the
last event, with the totals; the minutes are the sum. At the end, and on Ctrl-C, it prints a table.
Exit codes: 0 no rule was broken, 1 one was, 2 the soak can't run here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fault import network
from tests.fault.leader_runs import CLUSTERS
from tests.fault.soak import ledger
from tests.fault.soak.events import Skipped
from tests.fault.soak.job import RuleBroken, SoakJob
from tests.fault.soak.ledger import Broken, Entry, Ledger
from tests.fault.soak.plan import Plan, events_of, plan_of
from tests.harness.leftovers import kill_when_this_process_ends

PAUSE_S = (0.5, 3.0)
"""Between two events: a random time of this range."""


class Soak:
    """Events, one after another, and the job that they happen to."""

    def __init__(self, options: argparse.Namespace, told: Ledger, root: Path) -> None:
        """`root`: a directory for what the jobs write."""
        self._options, self._ledger, self._root = options, told, root
        self._job: SoakJob | None = None
        self._opened = contextlib.ExitStack()
        self._events = events_of(options.backend)
        self._jobs = max((entry.job for entry in told.entries), default=0)
        self._number = max((entry.number for entry in told.entries), default=-1) + 1
        """The number of the next event."""
        self._since = time.monotonic()
        self._folder, self._is_kept = root, False
        """The files that the job writes, and whether they are kept, since a rule was broken."""

    def run(self) -> None:
        """Until the time is over, or there were enough events."""
        first = self._number
        try:
            while self._is_due(first):
                self._one()
        except BaseException:
            self._drop_job()  # In the middle of an event nothing can be said of it.
            self._tidy()
            raise
        self._close_job("end_of_run")

    def _is_due(self, first: int) -> bool:
        options = self._options
        if options.events:
            return bool(self._number - first < options.events)
        return self._ledger.spent_s < 60 * float(options.minutes)

    def _one(self) -> None:
        """The next event."""
        options = self._options
        plan = plan_of(options.backend, options.seed, self._number, options.only)
        if self._job is not None and self._job.has_budget is not plan.has_budget:
            self._close_job("end_of_job")
        if self._job is None:
            self._open_job(plan)
        self._number += 1
        if (job := self._job) is None:
            return
        job.chance.seed(f"{options.seed} {self._number}")
        time.sleep(job.chance.uniform(*PAUSE_S))
        job.broken, job.notes, before = [], [], set(job.worlds())
        skipped, is_over = "", False
        job.mark()
        try:
            self._events[plan.event](job)
            job.settle()
            job.check()
        except Skipped as error:
            skipped = str(error)
        except RuleBroken as error:
            job.broken.append(error.broken)
            is_over = True
        except Exception as error:
            self._log(traceback.format_exc())
            job.broken.append(Broken(ledger.SETTLED, f"{type(error).__name__}: {error}"[:300]))
            is_over = True
        self._append(
            plan.event,
            settled_s=None if skipped else job.first_settled_s,
            rounds=len(job.worlds().keys() - before),
            skipped=skipped,
            notes=tuple(job.notes),
            broken=tuple(job.broken),
        )
        if is_over:
            self._drop_job()
        else:
            with self._dropping("refresh"):
                job.refresh()

    def _open_job(self, plan: Plan) -> None:
        """A new one, unless its first world breaks a rule."""
        options = self._options
        self._jobs += 1
        self._folder = self._root / f"job-{self._jobs}"
        self._folder.mkdir()
        self._is_kept = False
        log = self._opened.enter_context((self._folder / "log").open("w"))
        self._opened.enter_context(contextlib.redirect_stdout(log))
        chance = random.Random(f"{options.seed} {self._number}")
        job = SoakJob(self._folder, options.backend, has_budget=plan.has_budget, chance=chance)
        self._opened.enter_context(job)
        self._job = job
        with self._dropping("begin"):
            job.begin()

    @contextlib.contextmanager
    def _dropping(self, event: str) -> Iterator[None]:
        """Check the rules; a broken one ends the job."""
        try:
            yield
        except RuleBroken as error:
            self._append(event, broken=(error.broken,))
            self._drop_job()

    def _close_job(self, event: str) -> None:
        """End the job's workers well, and check that nothing is left."""
        if (job := self._job) is None:
            return
        job.broken, job.notes = [], []
        try:
            job.settle()
            job.end()
            self._job = None
            self._opened.close()
        except RuleBroken as error:
            job.broken.append(error.broken)
            self._drop_job()
        except AssertionError as error:
            job.broken.append(Broken(ledger.LEFT, _told(error)))
        self._append(event, broken=tuple(job.broken))
        self._tidy()

    def _drop_job(self) -> None:
        """Give the job up: kill whatever runs; leftovers prove nothing then."""
        if self._job is not None:
            self._job = None
            opened, self._opened = self._opened, contextlib.ExitStack()
            with contextlib.suppress(AssertionError, RuleBroken), opened:
                raise RuleBroken(ledger.ENDED, "")

    def _tidy(self) -> None:
        if not self._is_kept and self._folder != self._root:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _append(self, event: str, **more: object) -> None:
        now = time.monotonic()
        spent_s, self._since = now - self._since, now
        entry = Entry(
            seed=self._options.seed,
            number=self._number - 1,
            backend=self._options.backend,
            job=self._jobs,
            event=event,
            spent_s=round(spent_s, 2),
            **more,  # type: ignore[arg-type]
        )
        if not entry.is_ok:
            entry = replace(entry, folder=str(self._folder))
            self._is_kept = True
        self._ledger.append(entry)
        _tell(entry)

    def _log(self, text: str) -> None:
        with (self._folder / "log").open("a") as file:
            file.write(text)


def _told(error: AssertionError) -> str:
    """Where an assertion that says nothing was, too."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{at.line}: {error}"[:500]


def _tell(entry: Entry) -> None:
    """One line, for who looks on."""
    line = f"{entry.number:4} job {entry.job:2} {entry.event:34}"
    if entry.skipped:
        line += f" skipped: {entry.skipped}"
    else:
        line += f" {entry.spent_s:6.1f} s, {entry.rounds} rounds"
        line += "" if entry.settled_s is None else f", settled in {entry.settled_s:.1f} s"
    for one in entry.broken:
        line += f"\n     BROKEN {one.rule}: {one.text}"
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run it, and say what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.soak")
    parser.add_argument("--backend", choices=tuple(CLUSTERS), default="file")
    parser.add_argument("--minutes", type=float, default=30.0, help="of all runs by this ledger")
    parser.add_argument("--events", type=int, default=0, help="so many now, whatever the minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ledger", type=Path, help="soak-BACKEND-SEED.jsonl if it is left out")
    parser.add_argument("--only", default="", help="these events: names with commas")
    options = parser.parse_args()
    options.only = tuple(name for name in options.only.split(",") if name)
    if unknown := set(options.only) - events_of(options.backend).keys():
        parser.error(f"--only: there is no event {', '.join(sorted(unknown))}")
    if reason := network.why_impossible():
        print(f"the soak can't run: {reason}", file=sys.stderr)
        return 2
    network.remove_abandoned()
    path = options.ledger or Path(f"soak-{options.backend}-{options.seed}.jsonl")
    told = Ledger(path)
    root = Path(tempfile.mkdtemp(prefix="rallypoint-soak-"))
    kill_when_this_process_ends(root)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        Soak(options, told, root).run()
    except KeyboardInterrupt:
        print(f"stopped: the same command goes on with {path}", file=sys.stderr)
    except pytest.skip.Exception as error:
        print(f"the soak can't run: {error}", file=sys.stderr)
        return 2
    finally:
        with contextlib.suppress(OSError):  # What has broken a rule stays.
            root.rmdir()
    print(ledger.summary(told.entries))
    return 0 if ledger.is_ok(told.entries) else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
