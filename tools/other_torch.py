"""Compares with the torchrun of another torch than the tests have: `make compat TORCH=2.14.1`.

    python tools/other_torch.py VERSION [WORD OF PYTEST ...]

The version gets an environment of its own, .compat/VERSION, which is kept. A version that can't be
installed is said in one line, and leaves nothing; the exit code is 2 then, else that of the tests.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CANNOT_BE_HAD = 2
_VERSION = re.compile(r"\d+(\.\d+)+(\+\w+)?")
_TESTS = ("-m", "pytest", "--workers", "3", "-rsfE", "--torch=other", "tests/compat")


def environment(version: str, folder: Path, packages: Sequence[str]) -> str:
    """The Python of an environment that has this torch and the packages; it is made once.

    Raises LookupError, one line, where it can't be made.
    """
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    wanted = ["--disable-pip-version-check", f"torch=={version}", *packages]
    for command in (venv, [*pip, *wanted]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise LookupError(f"torch {version} can't be had here: {_last_error(done.stderr)}")
    ready.touch()
    return str(python)


def _last_error(text: str) -> str:
    """The last line that pip calls an error, without addresses."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["pip said nothing"]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return re.sub(r"\w+://\S+", "...", errors[-1].removeprefix("ERROR:")).strip()[:300]


def main(words: Sequence[str]) -> int:
    """The command; returns its exit code."""
    version = words[0] if words else ""
    if not _VERSION.fullmatch(version):
        print(f"{version!r}: needs a version of torch, for example make compat TORCH=2.14.1")
        return CANNOT_BE_HAD
    packages = ("numpy", "scikit-learn", "-e", ".[fast,unit]")
    try:
        python = environment(version, ROOT / ".compat" / version, packages)
    except LookupError as error:
        print(error)
        return CANNOT_BE_HAD
    command = [python, *_TESTS, *words[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
