"""Runs the tests on every Python from 3.11 to 3.14 that this machine has.

    python tools/matrix.py [VERSION ...]

Looks for each version on the PATH and among pyenv's. Each one that is found gets an environment
under .matrix/, made by `make`. Where the packages of all tests can't be installed (torch has no
wheel for every Python, or there is no network), the tests in `UNIT_TESTS` run, which need fewer
packages. All test files are collected with these packages alone first: none may need more to be
imported, but those that are skipped for that. The last lines say what was run on which version, and
which version was not found. The exit code is 1 when a test failed, else 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
UNIT_TESTS = ("tests/core", "tests/wire", "tests/observe", "tests/simulator")
_PROBE = "import sys, venv; print('%d.%d' % sys.version_info[:2])"

Run = Callable[[Sequence[str]], int]


class Outcome(Enum):
    """What became of one version."""

    PASSED = "passed"
    UNIT_PASSED = "unit tests passed; the packages of the other tests can't be installed"
    FAILED = "failed"
    NOT_COLLECTED = "the tests can't be collected with the extra unit alone"
    UNIT_FAILED = "unit tests failed; the packages of the other tests can't be installed"
    NOT_RUN = "found, but not run: its packages can't be installed"
    NOT_FOUND = "not found"


def find_python(version: str, path: str, pyenv_root: Path) -> str | None:
    """Return the first interpreter of the version that starts: by the PATH, then pyenv's newest."""
    folders = [Path(folder) for folder in path.split(os.pathsep) if folder]
    installed = sorted(pyenv_root.glob(f"versions/{version}.*/bin"), key=_patch, reverse=True)
    for folder in [*folders, *installed]:
        candidate = folder / f"python{version}"
        if os.access(candidate, os.X_OK) and _says(candidate) == version:
            return str(candidate)
    return None


def _patch(folder: Path) -> int:
    number = folder.parent.name.rpartition(".")[2]
    return int(number) if number.isdecimal() else -1


def _says(python: Path) -> str:
    """Return a shim of pyenv's for a version that is not active exits with an error."""
    done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def run_tests(version: str, python: str, run: Run) -> Outcome:
    """Set up an environment for the version and runs what it can."""
    unit = f".matrix/{version}-unit"
    has_packages = run(["make", f"{unit}/.ready-unit", f"VENV={unit}", f"PYTHON={python}"]) == 0
    collect = [f"{unit}/bin/python", "-m", "pytest", "--collect-only", "-qq", "-m", "", "tests"]
    if has_packages and run(collect):
        return Outcome.NOT_COLLECTED
    names = [f"VENV=.matrix/{version}", f"PYTHON={python}"]
    if run(["make", f".matrix/{version}/.ready", *names]) == 0:
        return Outcome.FAILED if run(["make", "unit", *names]) else Outcome.PASSED
    if run(["make", f".matrix/{version}/.ready-unit", *names]) == 0:
        tests = [f".matrix/{version}/bin/python", "-m", "pytest", "--workers", "3", *UNIT_TESTS]
        return Outcome.UNIT_FAILED if run(tests) else Outcome.UNIT_PASSED
    return Outcome.NOT_RUN


def _run(command: Sequence[str]) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main(versions: Sequence[str]) -> int:
    """Return the command; returns its exit code."""
    pyenv_root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    outcomes = {}
    for version in versions or VERSIONS:
        python = find_python(version, os.environ.get("PATH", ""), pyenv_root)
        print(f"Python {version}: {python or 'not found'}", flush=True)
        outcomes[version] = run_tests(version, python, _run) if python else Outcome.NOT_FOUND
    print(
        *(f"Python {version}: {outcome.value}" for version, outcome in outcomes.items()), sep="\n"
    )
    failures = {Outcome.FAILED, Outcome.NOT_COLLECTED, Outcome.UNIT_FAILED}
    return int(bool(failures.intersection(outcomes.values())))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
