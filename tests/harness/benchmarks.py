"""Benchmarks that measure once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def quick(folder: Path, name: str, *words: str | Path) -> str:
    """What a benchmark prints that measures once; it must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, *words, "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={
            "TMPDIR": str(folder),
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "RALLYPOINT_STATE_DIR": f"{folder}.state",
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
