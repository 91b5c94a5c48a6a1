"""`init_method="tcp://..."` under the agent: whether it works depends on the workers' torch, as
docs/init-method.md says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.recordings import Recordings
from tests.harness.cluster import free_port
from tests.harness.limits import patience
from tests.harness.one_agent import agent

from rallypoint.torch_versions import is_later

pytestmark = pytest.mark.frameworks

WORKER = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist

where, rank, size = os.path.expandvars(sys.argv[1]), os.environ["RANK"], os.environ["WORLD_SIZE"]
if sys.argv[2:] == ["pop"]:
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
limit = timedelta(seconds=float(os.environ["LIMIT_S"]))
try:
    places = {"rank": int(rank), "world_size": int(size)}
    dist.init_process_group("gloo", init_method=where, timeout=limit, **places)
except RuntimeError as error:
    print("rank", rank, type(error).__name__, flush=True)
    os._exit(0)
sum_ = torch.ones(1)
dist.all_reduce(sum_)
print("rank", rank, "sum", int(sum_), flush=True)
os._exit(0)
"""
HANGS_S = 3.0
"""How long workers wait for a store that nobody opens."""


def printed(folder: Path, python: str, *words: str, limit_s: float) -> list[str]:
    script = folder / "worker.py"
    script.write_text(WORKER)
    env = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": python, "LIMIT_S": str(limit_s)}
    with agent(folder, "--nproc-per-node", "2", str(script), *words, env=env) as running:
        code = running.process.wait(patience(120.0))
        assert code == 0, running.err
        return sorted(line for line in running.out.splitlines() if "rank " in line)


def test_another_address_works_since_torch_2_14_and_before_that_nobody_opens_a_store_there(
    tmp_path: Path, torch_said: Recordings, torch_python: str
) -> None:
    hangs = is_later("2.14", torch_said.minor)
    limit_s = HANGS_S if hangs else patience(60.0)
    where = f"tcp://127.0.0.1:{free_port()}"
    said = printed(tmp_path, torch_python, where, limit_s=limit_s)
    end = "DistNetworkError" if hangs else "sum 2"
    assert [line.partition("rank ")[2] for line in said] == [f"0 {end}", f"1 {end}"]


@pytest.mark.parametrize("words", [["tcp://$MASTER_ADDR:$MASTER_PORT"], ["", "pop"]])
def test_the_agents_own_address_works_and_so_does_another_one_without_the_variable(
    words: list[str], tmp_path: Path, torch_python: str
) -> None:
    where = words[0] or f"tcp://127.0.0.1:{free_port()}"
    said = printed(tmp_path, torch_python, where, *words[1:], limit_s=patience(60.0))
    assert [line.partition("rank ")[2] for line in said] == ["0 sum 2", "1 sum 2"]
