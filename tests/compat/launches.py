"""The same worker under torchrun and under `rallypoint run`, and what it was told by each."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.harness.programs import said_by

TOLD = Path(__file__).with_name("told.py")
TORCHRUN = ("-m", "torch.distributed.run")
RALLYPOINT = (sys.executable, "-m", "rallypoint", "run")
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
    "RALLYPOINT_SHM",
    "RALLYPOINT_LOCAL_RANK",
}
PER_RUN = {"TORCHELASTIC_ERROR_FILE"}
# Chosen by the launcher unless the command line says where to meet. The address is this machine
# either way: torchrun's `localhost` may mean ::1 to a worker, so ours is a number.
CHOSEN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}


@dataclass(frozen=True, slots=True)
class Worker:
    """What one worker wrote down. `env`: what it has beside the launcher's own environment."""

    argv: tuple[str, ...]
    path0: str
    env: dict[str, str]


def launch(
    command: list[str], folder: Path, base: dict[str, str], token: dict[str, str] | None = None
) -> list[Worker]:
    """Run TOLD under a launcher; its two workers, by rank.

    `command`: a Python and its words. `token`: the launcher's, which no worker gets. Paths that
    another run would have elsewhere are cut short.
    """
    folder.mkdir()
    env = base | {"TOLD_DIR": str(folder)} | (token or {})
    said_by([*command, TOLD, *ARGUMENTS], env=env, timeout=300)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["0.json", "1.json"]
    workers = []
    for file in files:
        told = json.loads(file.read_text())
        assert base.keys() <= told["env"].keys()
        env = {n: value for n, value in told["env"].items() if base.get(n) != value}
        del env["TOLD_DIR"]
        place, name = os.path.split(told["path0"])
        assert Path(place) == TOLD.parent.parent
        error_file = Path(env["TORCHELASTIC_ERROR_FILE"])
        env["TORCHELASTIC_ERROR_FILE"] = str(Path(*error_file.parts[-3:]))
        workers.append(Worker(tuple(told["argv"]), name, env))
    return workers


def as_json(workers: list[Worker]) -> list[dict[str, object]]:
    return [asdict(worker) for worker in workers]


def of_json(said: list[dict[str, Any]]) -> list[Worker]:
    return [Worker(tuple(one["argv"]), one["path0"], one["env"]) for one in said]


def plain_environ() -> dict[str, str]:
    """Ours, without what an outer launcher or an earlier test run may have left in it."""
    ours = re.compile(r"PET_|PYTEST_|PYTHON|TORCH|RALLYPOINT_|OMP_|RANK|MASTER_|CUDA_|LC_|LANG")
    kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
    return kept | {"LANG": "C.UTF-8"}  # With another, Python may add LC_CTYPE.


def comparable(env: dict[str, str], *, fixed: bool) -> dict[str, str]:
    """Without what belongs to one run; `fixed`: the command line said where to meet."""
    own = PER_RUN | TORCHRUN_ONLY | OURS_ONLY
    own |= set() if fixed else CHOSEN
    return {name: value for name, value in env.items() if name not in own}
