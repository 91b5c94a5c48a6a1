"""`rallypoint.worker` in a worker of a stock torchrun."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compat.launches import TORCHRUN, plain_environ
from tests.harness.programs import said_by

PROGRAM = """
import dataclasses, json, os, sys
from rallypoint import worker
place = worker.context()
calls = [worker.drain_requested(), worker.should_restart_at_checkpoint(),
         worker.checkpoint_saved(1), worker.progress(1), worker.is_current()]
worker.store().set(f"from/{place.rank}", "x")
worker.barrier("both", 60)
assert worker.store().get(f"from/{1 - place.rank}") == b"x"
told = dataclasses.asdict(place) | {"calls": calls}
with open(f"{sys.argv[1]}/{place.rank}", "w") as file:
    json.dump(told, file)
"""


def test_under_torchrun_the_place_is_known_and_nothing_is_asked_for(
    tmp_path: Path, torch_python: str
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(PROGRAM)
    options = ["--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=job", "--role=trainer"]
    options += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command = [torch_python, *TORCHRUN, *options, str(script), str(tmp_path)]
    said_by(command, env=plain_environ(), timeout=300)
    for rank in (0, 1):
        told = json.loads((tmp_path / str(rank)).read_text())
        assert told["calls"] == [False, False, False, None, True]
        assert (told["rank"], told["local_rank"], told["world_size"]) == (rank, rank, 2)
        assert (told["local_world_size"], told["node_count"], told["node_rank"]) == (2, 1, 0)
        assert (told["run_id"], told["role"], told["launched"]) == ("job", "trainer", True)
        assert (told["restart_count"], told["max_restarts"], told["round"]) == (0, 3, 0)
        assert (told["node_id"], told["restart_reason"]) == ("", "")
