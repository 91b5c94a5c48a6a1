"""Unmodified torch on our stores: what its workers compute is what they compute on its own.

And stock torchrun agents that meet in our stand-alone store, and heal a job through it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.limits import patience
from tests.harness.one_agent import agent, environment, marked
from tests.harness.store_process import RunningStore, store_process

pytestmark = pytest.mark.frameworks

WORKER = Path(__file__).with_name("collectives.py")
LIMIT_S = 59.0
SIZE = 4


class Started:
    """Processes of one test, each the leader of a group, and whatever they start in turn."""

    def __init__(self, folder: Path, python: str) -> None:
        self._folder, self._mark, self._python = folder, uuid.uuid4().hex, python
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str | Path, **env: str) -> None:
        more = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": self._python, **env}
        base = environment(self._folder, self._mark, **more)
        with (self._folder / f"{len(self._all)}.log").open("wb") as log:
            process = subprocess.Popen(
                [self._python, *words],
                env=base,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._all.append(process)

    def wait(self) -> list[int]:
        """The exit codes; nothing that was started may be left then."""
        give_up_at = time.monotonic() + patience(LIMIT_S)
        codes = [p.wait(max(0.0, give_up_at - time.monotonic())) for p in self._all]
        assert marked(self._mark) == []
        return codes

    def logs(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self._folder.glob("*.log"))

    def clear(self) -> None:
        for process in self._all:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in marked(self._mark):  # torchrun gives its workers groups of their own
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self._all:
            process.wait()


@pytest.fixture
def started(tmp_path: Path, torch_python: str) -> Iterator[Started]:
    started = Started(tmp_path, torch_python)
    try:
        yield started
    finally:
        started.clear()


@pytest.fixture
def store() -> Iterator[RunningStore]:
    with store_process() as running:
        yield running


def checked_restarts(folder: Path, *, size: int = SIZE) -> list[int]:
    """What each of the ranks has written is what such a job computes; their restart counts."""
    restarts = []
    everybody = [{"rank": rank, "name": "x" * rank} for rank in range(size)]
    for rank in range(size):
        is_end = rank in (0, size - 1)
        computed = json.loads((folder / f"{rank}.json").read_text())
        restarts.append(computed.pop("restarts"))
        assert computed == {
            "sum": size * (size + 1) / 2,
            "ends": 10.0 * (1 + size) if is_end else 10.0 * (rank + 1),
            "gathered": everybody,
            "told": repr({"from": size - 1, "blob": b"\0\xff" * 9}),
            "restored": [7.0 * (rank + 1)] * 3 + [7.0] * 2,
        }
    return restarts


def test_collectives_and_checkpoints_work_on_the_round_store(
    tmp_path: Path, torch_python: str
) -> None:
    words = ("--nproc-per-node", str(SIZE), str(WORKER), str(tmp_path))
    env = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": torch_python}
    with agent(tmp_path, *words, env=env) as running:
        code = running.process.wait(patience(LIMIT_S))
        assert code == 0, running.err
        assert checked_restarts(tmp_path) == [0] * SIZE


def test_a_job_on_the_round_store_computes_the_same_after_a_worker_was_killed(
    tmp_path: Path, torch_python: str
) -> None:
    words = ("--nproc-per-node", str(SIZE), "--max-restarts", "1", str(WORKER), str(tmp_path))
    env = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": torch_python}
    with agent(tmp_path, *words, "--die-once", "1", env=env) as running:
        code = running.process.wait(patience(LIMIT_S))
        assert code == 0, running.err
        assert (tmp_path / "died").exists()
        assert checked_restarts(tmp_path) == [1] * SIZE


@pytest.mark.parametrize("how", ["env", "client"])
def test_collectives_and_checkpoints_work_on_a_store_that_stands_alone(
    how: str, store: RunningStore, started: Started, tmp_path: Path
) -> None:
    """By the environment, as under an agent that hosts the store, or with torch's client object."""
    by_env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for rank in range(SIZE):
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(SIZE)}
        if how == "env":
            started.start(WORKER, tmp_path, **ranks, **by_env)
        else:
            started.start(WORKER, tmp_path, "--store", str(store.port), **ranks)
    assert started.wait() == [0] * SIZE, started.logs()
    assert checked_restarts(tmp_path) == [0] * SIZE


def test_stock_torchrun_agents_meet_in_our_store_and_heal_a_job(
    store: RunningStore, started: Started, tmp_path: Path
) -> None:
    """Its workers have a store of their own: the keys that a killed one has left in a shared store
    can lead the next ones to its address, on torch's server as on any other."""
    for _ in range(2):
        started.start(
            "-m",
            "torch.distributed.run",
            *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=2"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{store.port}"),
            *("--rdzv-conf=is_host=0", "--rdzv-id=stock", "--monitor-interval=0.1"),
            *("--local-addr=127.0.0.1",),
            WORKER,
            tmp_path,
            *("--die-once", "1"),
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )
    assert started.wait() == [0, 0], started.logs()
    assert (tmp_path / "died").exists()
    # An agent that only joins a restart of others does not count it.
    assert max(checked_restarts(tmp_path, size=2)) == 1
