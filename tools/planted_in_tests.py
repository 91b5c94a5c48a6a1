"""Plants bugs in a copy of the repository, and finds out which test notices each of them.

Run by `python -m tools.planted_bugs --list moves` or `--list machines`.

First the test that has found a bug before is run with it alone. The bugs that are left are planted
together, and the suite is run as `make test` selects it. Each test that fails there is tried with
half of these bugs, and so on to one alone. When that shows which bug it has found, the suite goes
on without this bug. A test has found a bug if it fails again with it alone, and passes without it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.planted_before_moves import MovedBug

from tools import left_out as left_out_plugin

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/rallypoint"
FIRST_S = 300.0
"""Time limit of the test that has found a bug before."""
TEST_S = 180.0
"""Time limit of one test that is run again."""
_ENDED = re.compile(r"^(tests/\S+\.py::.+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b[^\]]*\[ *\d+%\]$")
_SUITE = re.compile(r"^unit:.*?-m pytest (.*?)$", re.MULTILINE | re.DOTALL)


def place_of(bug: MovedBug, root: Path) -> Path:
    """Return the file that holds the text of this bug now, wherever it was moved.

    Raises ValueError if it does not occur exactly once in the package.
    """
    files = sorted((root / PACKAGE).rglob("*.py"))
    counts = {file: number for file in files if (number := file.read_text().count(bug.old))}
    if sum(counts.values()) != 1:
        where = ", ".join(str(file.relative_to(root)) for file in counts) or "no file"
        raise ValueError(f"{bug.name}: its text has to occur once, and is in {where}")
    return next(iter(counts))


def suite_options(makefile: str) -> list[str]:
    """Return the options of pytest with which `make test` selects the tests."""
    from shlex import split

    found = _SUITE.search(makefile)
    assert found is not None, "the Makefile has no target `unit` that runs pytest"
    return split(found[1])


class Copies:
    """Copies of the repository, which end with `folder`.

    Their tests run with this interpreter, and import the package from the copy: see `check`.
    """

    def __init__(self, folder: Path) -> None:
        """Make the copy without a bug. Raises RuntimeError if a test would not run its code."""
        self._folder = folder
        self._numbers = 0
        self.sound = folder / "sound"
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.sound / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.sound / name)
        # Tests ask git for the names of files, and look for servers beside the interpreter.
        command = ["git", "rev-parse", "--absolute-git-dir"]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        (self.sound / ".git").write_text(f"gitdir: {told.stdout}")
        if (ROOT / ".venv").is_dir():
            (self.sound / ".venv").symlink_to(ROOT / ".venv")
        # Compiled once: files that are copied with their times need not be compiled again.
        compiling = [sys.executable, "-m", "compileall", "-q", "src", "tests"]
        environ = self._environ(self.sound)
        # Some programs of tests do not compile, and are not to.
        subprocess.run(
            compiling, cwd=self.sound, env=environ, stdout=subprocess.DEVNULL, check=False
        )
        self.check(self.sound)

    def check(self, copy: Path) -> None:
        """Check that no test in this copy, or what it starts, imports another source.

        Raises RuntimeError.
        """
        script = "import os, rallypoint; print(os.path.dirname(rallypoint.__file__))"
        for command in ([sys.executable, "-c", script], [sys.executable, "-P", "-c", script]):
            environ = self._environ(copy)
            done = subprocess.run(
                command, cwd="/", env=environ, capture_output=True, text=True, check=True
            )
            if done.stdout.strip() != str(copy / PACKAGE):
                raise RuntimeError(f"tests would import {done.stdout.strip()}, and not {copy}")

    def planted(self, bugs: Sequence[MovedBug]) -> Path:
        """Return a copy with all of these bugs. Raises ValueError as `place_of`."""
        self._numbers += 1
        copy = self._folder / f"planted{self._numbers}"
        shutil.copytree(self.sound, copy, symlinks=True)
        for bug in bugs:
            path = place_of(bug, copy)
            path.write_text(path.read_text().replace(bug.old, bug.new))
        return copy

    def remove(self, copy: Path) -> None:
        """When it is not needed any more."""
        shutil.rmtree(copy, ignore_errors=True)

    def outcomes(
        self, copy: Path, options: Sequence[str], limit_s: float, left_out: Sequence[str] = ()
    ) -> Generator[tuple[str, bool], None, None]:
        """Run tests there but those `left_out`, and tell of each whether it has failed.

        As soon as it has ended. A caller that stops asking ends the run. Ends also after `limit_s`.
        """
        names, environ = copy / ".left-out", self._environ(copy)
        names.write_text("\n".join(left_out))
        environ[left_out_plugin.VARIABLE] = str(names)
        command = [sys.executable, "-m", "pytest", "-p", left_out_plugin.__name__]
        command += ["-vv", "--tb=no", "--color=no", *options]
        with subprocess.Popen(
            command,
            cwd=copy,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        ) as running:
            assert running.stdout is not None
            with ThreadPoolExecutor(1) as pool:
                watching = pool.submit(_end_after, running, limit_s)
                try:
                    for line in running.stdout:
                        if (ended := _ENDED.match(line)) is not None:
                            yield ended[1], ended[2] in ("FAILED", "ERROR")
                finally:
                    _end(running)
                    watching.result()

    def first_failure(self, copy: Path, options: Sequence[str], limit_s: float) -> str:
        """Return the first test that fails there within this time; empty: none does."""
        with closing(self.outcomes(copy, options, limit_s)) as outcomes:
            return next((test for test, has_failed in outcomes if has_failed), "")

    def fails(self, copy: Path, test: str) -> bool:
        """Return whether this test fails there, and not because time is over."""
        return bool(self.first_failure(copy, [test], TEST_S))

    def has_found(self, test: str, planted: Path) -> bool:
        """Return whether this test, which has failed with a bug, fails by it.

        Again with the bug alone, and not without.
        """
        return self.fails(planted, test) and not self.fails(self.sound, test)

    def _environ(self, copy: Path) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(copy / "src"),
            "GIT_OPTIONAL_LOCKS": "0",  # The index is that of the repository.
        }


def found_first(copies: Copies, bug: MovedBug) -> str:
    """Return the test that has found this bug before, if it does so again; empty: it does not."""
    begins = f"def {bug.found_by}("
    files = (copies.sound / "tests").rglob("test_*.py") if bug.found_by else ()
    here = [file for file in files if begins in file.read_text()]
    if not here:
        return ""
    planted = copies.planted([bug])
    try:
        tests = [f"{file.relative_to(copies.sound)}::{bug.found_by}" for file in here]
        test = copies.first_failure(planted, ["-x", *tests], FIRST_S)
        return test if test and copies.has_found(test, planted) else ""
    finally:
        copies.remove(planted)


def found_by_suite(copies: Copies, bugs: Sequence[MovedBug], limit_s: float) -> dict[str, str]:
    """Return which test finds each of these bugs, by its name; those that none does are left out.

    The suite ends when all are found, and after `limit_s`.
    """
    suite = suite_options((ROOT / "Makefile").read_text())
    ends_at = time.monotonic() + limit_s
    found: dict[str, str] = {}
    left = list(bugs)
    over: list[str] = []
    """Tests that need not be run again."""
    while left and (left_s := ends_at - time.monotonic()) > 0:
        together = copies.planted(left)
        with closing(copies.outcomes(together, suite, left_s, over)) as outcomes:
            for test, has_failed in outcomes:
                finds = _found_by(copies, test, left) if has_failed else []
                if finds:
                    break
                over.append(test)
            else:
                return found
        for bug in finds:
            found[bug.name] = test
            left.remove(bug)
            print(f"{bug.name:<80} {test}", flush=True)
        copies.remove(together)
    return found


def _found_by(copies: Copies, test: str, bugs: Sequence[MovedBug]) -> list[MovedBug]:
    """Return the bugs that this test finds. It has failed with all of them."""
    if copies.fails(copies.sound, test):
        return []
    found: list[MovedBug] = []
    tried: list[Sequence[MovedBug]] = [bugs]
    while tried:
        some = tried.pop()
        planted = copies.planted(some)
        is_among_them = copies.fails(planted, test)
        copies.remove(planted)
        if is_among_them and len(some) > 1:
            half = len(some) // 2
            tried += [some[half:], some[:half]]
        elif is_among_them:
            found += some
    return found


def report(bugs: Sequence[MovedBug], jobs: int, limit_s: float) -> int:
    """Print which test finds each of these bugs. Returns 1 if fewer are found than were before."""
    began, number, least = time.monotonic(), 0, sum(bool(bug.found_by) for bug in bugs)
    with TemporaryDirectory(prefix="planted-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies = Copies(Path(folder).resolve())
        left: list[MovedBug] = []
        found = pool.map(lambda bug: found_first(copies, bug), bugs)
        for bug, test in zip(bugs, found, strict=True):
            if test:
                number += 1
                print(f"{bug.name:<80} {test}", flush=True)
            else:
                left.append(bug)
        if left:
            if limit_s > 0:
                print(f"the suite runs with the {len(left)} that are left", flush=True)
            by_suite = found_by_suite(copies, left, limit_s)
            number += len(by_suite)
            for bug in left:
                if bug.name not in by_suite:
                    print(f"{bug.name:<80} NOT FOUND")
    print(f"{number} of {len(bugs)} found in {time.monotonic() - began:.0f} s (needs {least})")
    return 1 if number < least else 0


def _end_after(running: subprocess.Popen[str], limit_s: float) -> None:
    try:
        running.wait(limit_s)
    except subprocess.TimeoutExpired:
        _end(running)


def _end(running: subprocess.Popen[str]) -> None:
    """End the run, and all processes that its tests have started (`tests/harness/leftovers.py`)."""
    if running.poll() is None:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(10.0)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
