"""Plants known bugs, one at a time, in a copy of the source.

Lists by which seed the simulator finds each. `python -m tools.planted_bugs [--list reader] [--seeds
A-B] [NAME ...]`; exits 1 if one was not found.

A seed that breaks a rule without the bug has not found it.

`--list moves` and `--list machines` take bugs that the tests find, and list by which
(`tools/planted_in_tests.py`); exits 1 if fewer are found than the list says.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.planted_before_moves import BUGS_BEFORE_MOVES
from tools.planted_bug_list import BUGS, Bug
from tools.planted_by_reader import BUGS_BY_A_READER
from tools.planted_in_machines import BUGS_IN_MACHINES

from tools import planted_in_tests

SOURCE = Path(__file__).resolve().parent.parent / "src"
PLANS = sorted((SOURCE.parent / "tests/simulated").glob("*.txt"))
CORE = "rallypoint/core"
LISTS = {"known": BUGS, "reader": BUGS_BY_A_READER}
FOR_TESTS = {"moves": BUGS_BEFORE_MOVES, "machines": BUGS_IN_MACHINES}


class Found(NamedTuple):
    """How the simulator came upon a bug."""

    seed: int
    """0: no seed did, but a plan that `make test` runs."""
    rule: str
    """The one that broke, with what broke it."""

    def __str__(self) -> str:
        return f"{f'seed {self.seed}' if self.seed else 'plan':<9} {self.rule[:100]}"


def plant(bug: Bug, source: Path, folder: Path) -> None:
    """Make a copy of the source with this bug. Raises ValueError where its place is not found."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / CORE / bug.module
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f"{bug.name}: its place occurs {text.count(bug.old)} times in {path.name}")
    path.write_text(text.replace(bug.old, bug.new))


def first_broken(source: Path, first: int, last: int) -> Found | None:
    """Return the first of these seeds that breaks a rule there.

    Raises RuntimeError if none can be run.
    """
    command = [sys.executable, "-m", "tests.simulator", "--first", "--brief"]
    done = subprocess.run(
        [*command, "--seeds", f"{first}-{last}"],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = re.search(r"^seed (\d+) broke a rule: (.*)", done.stdout, re.MULTILINE)
    if told is not None:
        return Found(int(told[1]), told[2])
    if done.returncode:
        raise RuntimeError(f"the simulator fails: {done.stderr.strip().splitlines()[-1][:100]}")
    return None


def broken_by(source: Path, plan: Path) -> Found | None:
    """If this plan breaks a rule there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulator", "--plan", str(plan)],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = re.search(r"^at [0-9.]+ s: (.*)", done.stdout, re.MULTILINE)
    return None if told is None else Found(0, f"{plan.stem}: {told[1]}")


def found(bug: Bug, source: Path, first: int, last: int) -> Found | None:
    """Return the first seed that breaks a rule with this bug, and none without it.

    If no seed does, a plan that broke a rule once.
    """
    with tempfile.TemporaryDirectory() as folder:
        planted = Path(folder) / "src"
        plant(bug, source, planted)
        while (how := first_broken(planted, first, last)) is not None:
            if first_broken(source, how.seed, how.seed) is None:
                return how
            first = how.seed + 1
        return next(filter(None, (broken_by(planted, plan) for plan in PLANS)), None)


def main() -> int:
    """Run the command. Returns 1 if a bug was not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="1-3000", metavar="A-B")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="for the suite, where tests find the bugs"
    )
    parser.add_argument(
        "--list", choices=(*LISTS, *FOR_TESTS), default="known", help="whose bugs (known)"
    )
    parser.add_argument("names", nargs="*", help="a part of a bug's name; all, if none is given")
    options = parser.parse_args()
    names = options.names or [""]
    if options.list in FOR_TESTS:
        bugs = [bug for bug in FOR_TESTS[options.list] if any(name in bug.name for name in names)]
        return planted_in_tests.report(bugs, options.jobs, options.minutes * 60)
    chosen = [bug for bug in LISTS[options.list] if any(name in bug.name for name in names)]
    first, _, last = options.seeds.partition("-")
    began, missed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        # What is edited meanwhile is not half of a bug.
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        for bug, how in zip(
            chosen,
            pool.map(lambda each: found(each, source, int(first), int(last)), chosen),
            strict=True,
        ):
            missed += how is None
            told = "NOT FOUND" if how is None else str(how)
            print(f"{bug.rule:<2} {bug.name:<75} {told}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found in {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
