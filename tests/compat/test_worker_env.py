"""A worker is told the same by `torchrun`, by `rallypoint run` and by `worker_environ`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rallypoint.agent.environ import WorkerPlacement, worker_argv, worker_environ
from rallypoint.cli.options import parse_run

TOLD = Path(__file__).with_name("told.py")
ARGUMENTS = ("--nnodes", "7", "x${local_rank}", "--", "a b")

# Only torchrun sets it: the launcher's note to its own agent, which leaks.
TORCHRUN_ONLY = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
OURS_ONLY = {
    "RALLYPOINT_RUN_ID",
    "RALLYPOINT_INCARNATION",
    "RALLYPOINT_ROUND",
    "RALLYPOINT_NODE_ID",
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def plain_environ() -> dict[str, str]:
    """Ours, without what an outer launcher or an earlier test run may have left in it."""
    ours = re.compile(r"PET_|PYTEST_|TORCH|RALLYPOINT_|OMP_|RANK|MASTER_")
    return {name: value for name, value in os.environ.items() if not ours.match(name)}


def placement(rank: int, told: dict[str, str], *, role: str, max_restarts: int) -> WorkerPlacement:
    """Where `rank` of two workers on one node is; ports and ids as that run chose them."""
    return WorkerPlacement(
        local_rank=rank,
        rank=rank,
        role_rank=rank,
        role=role,
        group_rank=0,
        local_world_size=2,
        world_size=2,
        group_world_size=1,
        role_world_size=2,
        master_addr=told["MASTER_ADDR"],
        master_port=int(told["MASTER_PORT"]),
        restart_count=0,
        max_restarts=max_restarts,
        run_id=told["TORCHELASTIC_RUN_ID"],
        incarnation=1,
        round=1,
        node_id="n",
        error_file=told["TORCHELASTIC_ERROR_FILE"],
        omp_threads=None if "OMP_NUM_THREADS" in plain_environ() else 1,
    )


def comparable(env: dict[str, str], *, fixed: bool) -> dict[str, str]:
    """Without what belongs to one run; `fixed`: the command line said where to meet."""
    own = PER_RUN | TORCHRUN_ONLY | OURS_ONLY
    own |= set() if fixed else CHOSEN
    return {name: value for name, value in env.items() if name not in own}


@pytest.fixture(scope="module", params=["alone", "static"])
def case(request: pytest.FixtureRequest) -> tuple[list[str], str, int, bool]:
    """(options, role, restart budget, port and run id are fixed)."""
    if request.param == "alone":
        return ["--nproc-per-node", "2"], "default", 0, False
    options = ["--nproc_per_node=2", "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1"]
    options += [f"--master-port={free_port()}", "--role=trainer", "--max-restarts=3"]
    return options, "trainer", 3, True


@pytest.fixture(scope="module")
def torchrun_told(
    case: tuple[list[str], str, int, bool], tmp_path_factory: pytest.TempPathFactory
) -> list[Worker]:
    folder = tmp_path_factory.mktemp("torchrun") / "told"
    return launch(["-m", "torch.distributed.run", *case[0]], folder, plain_environ())


def test_worker_environ_says_what_torchrun_says(
    case: tuple[list[str], str, int, bool], torchrun_told: list[Worker]
) -> None:
    _, role, max_restarts, _ = case
    for rank, worker in enumerate(torchrun_told):
        where = placement(rank, worker.env, role=role, max_restarts=max_restarts)
        base = plain_environ() | {"TOLD_DIR": worker.env["TOLD_DIR"]}
        ours = worker_environ(where, base)
        assert set(worker.env) - set(ours) == TORCHRUN_ONLY
        assert set(ours) - set(worker.env) == OURS_ONLY
        assert {k: v for k, v in ours.items() if k not in OURS_ONLY} == {
            k: v for k, v in worker.env.items() if k not in TORCHRUN_ONLY
        }


def test_worker_argv_says_what_torchrun_says(
    case: tuple[list[str], str, int, bool], torchrun_told: list[Worker]
) -> None:
    argv = parse_run([*case[0], str(TOLD), *ARGUMENTS], plain_environ()).workers.argv
    for rank, worker in enumerate(torchrun_told):
        assert worker_argv(argv, rank)[3:] == list(worker.argv)


def test_rallypoint_run_tells_workers_what_torchrun_does(
    case: tuple[list[str], str, int, bool], torchrun_told: list[Worker], tmp_path: Path
) -> None:
    options, _, _, fixed = case
    base = plain_environ() | {"RALLYPOINT_TOKEN": "5ec2e7" * 8}
    ours = launch(["-m", "rallypoint", "run", *options], tmp_path / "told", base)
    for mine, theirs in zip(ours, torchrun_told, strict=True):
        assert (mine.argv, mine.path0) == (theirs.argv, theirs.path0)
        assert comparable(mine.env, fixed=fixed) == comparable(theirs.env, fixed=fixed)
        assert set(mine.env) >= OURS_ONLY
        assert mine.env["TORCHELASTIC_ERROR_FILE"].endswith("error.json")


def test_run_path_runs_the_script_where_rallypoint_is_not_installed(tmp_path: Path) -> None:
    """The template alone: with -I the interpreter sees the standard library only."""
    script = tmp_path / "s.py"
    script.write_text("import sys; print(__name__, __file__, sys.argv)")
    python, unbuffered, *rest = parse_run(["--run-path", str(script), "-a", "b"], {}).workers.argv
    said = subprocess.run(
        [python, "-I", "-S", unbuffered, *rest], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == f"__main__ {script} {[str(script), '-a', 'b']}"
