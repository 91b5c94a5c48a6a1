"""The same worker under torchrun and under `rallypoint run`, and what it was told by each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOLD = Path(__file__).with_name("told.py")
ARGUMENTS = ("--nnodes", "7", "x${local_rank}", "--", "a b")

# Only torchrun sets it: the launcher's note to its own agent, which leaks.
TORCHRUN_ONLY = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
# PYTHONFAULTHANDLER: so that a crash of native code tells where it was.
OURS_ONLY = {
    "PYTHONFAULTHANDLER",
    "RALLYPOINT_RUN_ID",
    "RALLYPOINT_INCARNATION",
    "RALLYPOINT_ROUND",
    "RALLYPOINT_NODE_ID",
    "RALLYPOINT_RESTART_REASON",
    "RALLYPOINT_BOARD",
    "RALLYPOINT_LOCAL_RANK",
}
PER_RUN = {"TORCHELASTIC_ERROR_FILE", "TOLD_DIR"}
# Chosen by the launcher unless the command line says where to meet. The address is this machine
# either way: torchrun's `localhost` may mean ::1 to a worker, so ours is a number.
CHOSEN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}


@dataclass(frozen=True, slots=True)
class Worker:
    """What one worker wrote down."""

    argv: tuple[str, ...]
    path0: str
    env: dict[str, str]


def launch(command: list[str], folder: Path, base: dict[str, str]) -> list[Worker]:
    """Run TOLD under a launcher; its two workers, by rank."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *command, str(TOLD), *ARGUMENTS],
        env=base | {"TOLD_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["0.json", "1.json"]
    told = [json.loads(file.read_text()) for file in files]
    return [Worker(tuple(t["argv"]), t["path0"], t["env"]) for t in told]


def plain_environ() -> dict[str, str]:
    """Ours, without what an outer launcher or an earlier test run may have left in it."""
    ours = re.compile(r"PET_|PYTEST_|PYTHONFAULTHANDLER|TORCH|RALLYPOINT_|OMP_|RANK|MASTER_")
    return {name: value for name, value in os.environ.items() if not ours.match(name)}


def comparable(env: dict[str, str], *, fixed: bool) -> dict[str, str]:
    """Without what belongs to one run; `fixed`: the command line said where to meet."""
    own = PER_RUN | TORCHRUN_ONLY | OURS_ONLY
    own |= set() if fixed else CHOSEN
    return {name: value for name, value in env.items() if name not in own}
