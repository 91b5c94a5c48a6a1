"""Compares with the torchrun of another torch than the tests have: `make compat TORCH=2.14.1`.

    python tools/other_torch.py VERSION [WORD OF PYTEST ...]

The version gets an environment of its own, .compat/VERSION, which is kept. A version that can't be
installed is said in one line, and leaves nothing. The exit code is 69 then, and for what is no
version: nothing was compared. Else it is pytest's, at most 5. (`make` itself ends with 2 for all.)
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTHING_COMPARED = 69
"""No exit code of pytest."""
CONSTRAINT = "(constraint) "
_VERSION = re.compile(r"\d+(\.\d+)+(\+\w+)?")
_TESTS = ("-m", "pytest", "--workers", "3", "-rsfxE", "--torch=other", "tests/compat")


def environment(version: str, folder: Path, packages: Sequence[str]) -> str:
    """Return the Python of an environment that has this torch and the packages; it is made once.

    Raises LookupError, one line, where it can't be made.
    """
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    wanted = ["--disable-pip-version-check", f"torch=={version}", *packages]
    for command in (venv, [*pip, *wanted]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise LookupError(f"torch {version} can't be had here: {why(done.stdout, done.stderr)}")
    ready.touch()
    return str(python)


def why(out: str, errors: str) -> str:
    """Return in one line, from what pip wrote, why the version can't be had.

    What keeps it out, or its last error, without addresses.
    """
    conflict = out.partition("The conflict is caused by:\n")[2].partition("\n\n")[0]
    causes = [line.strip() for line in conflict.splitlines()]
    constraints = [cause.partition(CONSTRAINT)[2] for cause in causes if CONSTRAINT in cause]
    if constraints:
        return (
            f"a constraint of pip allows {', '.join(constraints)} only; "
            "`pip config list` says where it is"
        )
    if causes:
        return f"these exclude each other: {'; '.join(causes)}"[:300]
    return _last_error(errors)


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["pip said nothing"]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return re.sub(r"\w+://\S+", "...", errors[-1].removeprefix("ERROR:")).strip()[:300]


def main(words: Sequence[str]) -> int:
    """Return the command; returns its exit code."""
    version = words[0] if words else ""
    if not _VERSION.fullmatch(version):
        print(f"{version!r}: needs a version of torch, for example make compat TORCH=2.14.1")
        return NOTHING_COMPARED
    packages = ("numpy", "scikit-learn", "-e", ".[fast,unit]")
    try:
        python = environment(version, ROOT / ".compat" / version, packages)
    except LookupError as error:
        print(error)
        return NOTHING_COMPARED
    command = [python, *_TESTS, *words[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
