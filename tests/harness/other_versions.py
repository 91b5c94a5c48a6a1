"""Other versions of Rallypoint, from the history of this repository: what a cluster has while it is
upgraded. A test is skipped where the history is not there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
V0_1_0 = "f4f2163"
"""The first version."""
FIRST_KEPT = "ef31a5e"
"""The first whose `rallypoint serve` keeps jobs in a directory."""
FIRST_CANDIDATE = "83b2bba"
"""One of the first whose nodes may lead, and `rallypoint serve --candidate` before them."""


LAST_OF_3 = "a47204f"
"""One of the last that speak no version 4 of the session protocol."""
BEFORE_PHASES = "c2f504c1"
"""One of the last whose workers name no phases."""
THIS = ""


@cache
def environ_of(version: str, folder: Path) -> dict[str, str]:
    """In which Python imports that version, which is put into this folder: a commit, or `2-3` for
    this one as if it spoke these versions of the protocol."""
    if version == THIS:
        return {}
    place = folder / version
    if "-" in version:
        oldest, newest = version.split("-")
        _copy_speaking(oldest, newest, place)
    else:
        _extract(version, place)
    environ = {"PYTHONPATH": str(place / "src")}
    imported = subprocess.run(
        [sys.executable, "-c", "import rallypoint; print(rallypoint.__file__)"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert imported.stdout.startswith(environ["PYTHONPATH"])
    return environ


def _extract(commit: str, folder: Path) -> None:
    archive = ["git", "-C", str(ROOT), "archive", commit, "src/rallypoint"]
    made = subprocess.run(archive, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"the history of this repository has no {commit}: {made.stderr.decode()}")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=made.stdout, check=True)


def _copy_speaking(oldest: str, newest: str, folder: Path) -> None:
    shutil.copytree(ROOT / "src", folder / "src")
    path = folder / "src/rallypoint/wire/versions.py"
    text, count = re.subn(
        r"^SPOKEN = .*$", f"SPOKEN = Versions({oldest}, {newest})", path.read_text(), flags=re.M
    )
    assert count == 1
    path.write_text(text)
