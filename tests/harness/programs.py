"""Programs that run to their end, each executed with an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness.limits import patience

LIMIT_S = 60.0


def run_program(words: Sequence[str | Path], **how: Any) -> subprocess.CompletedProcess[str]:
    """The end of a program, with what it wrote as text. `how` is as for `subprocess.run`."""
    usual = {"capture_output": True, "text": True, "timeout": patience(LIMIT_S)}
    return subprocess.run(words, **(usual | how))


def run_python(text: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """The end of this text as a program of Python."""
    return run_program([sys.executable, "-c", text, *arguments], **how)


def said_by(words: Sequence[str | Path], **how: Any) -> str:
    """What a program wrote on stdout that has ended well."""
    done = run_program(words, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout
