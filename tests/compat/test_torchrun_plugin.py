"""Stock torchrun that meets by our coordinator: real agents, real workers, real DDP.

The same is asked of torchrun's own c10d rendezvous, which fails (W1): its agents keep the address
of the first store they have met at, so a fresh one waits for it in vain, or gets another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.compat.launches import TORCHRUN
from tests.harness.limits import patience
from tests.harness.one_agent import MARK, free_port, marked

pytestmark = pytest.mark.frameworks

LIMIT_S = 60.0
REFERENCE_LIMIT_S = 10.0
"""By then torchrun's own agents would have trained together, if they did."""
ESTABLISHED = "01"
"""In /proc/net/tcp."""
TRAIN = Path(__file__).with_name("torchrun_train.py")
BACKENDS = [
    "rallypoint",
    pytest.param(
        "c10d",
        marks=pytest.mark.xfail(
            strict=True, raises=TimeoutError, reason="torchrun fails here, 2.14 too: W1, D14"
        ),
    ),
]
Seen = tuple[int, int, str]
"""Rank, world size, and where the workers met."""


class Job:
    """Agents of one job on this machine, one worker each."""

    def __init__(self, folder: Path, backend: str, nodes: str, python: str) -> None:
        self._folder, self._stop, self._said = folder, folder / "stop", folder / "said"
        self._said.touch()
        self._limit_s = LIMIT_S if backend == "rallypoint" else REFERENCE_LIMIT_S
        self._port = free_port()
        conf = f"last_call_timeout=1,join_timeout={patience(LIMIT_S):.0f}"
        self._command = [
            *(python, *TORCHRUN, "--nproc-per-node=1"),
            *(f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            *("--rdzv-id=job", f"--nnodes={nodes}", f"--rdzv-conf={conf}"),
            *("--local-addr=127.0.0.1", "--monitor-interval=0.1", "--max-restarts=2"),
            *(str(TRAIN), str(self._said), str(self._stop)),
        ]
        env = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        self._env = {**env, "RALLYPOINT_TOKEN": "ab" * 16, "PYTHON_EXEC": python}
        self._mark = uuid.uuid4().hex
        self._agents: list[subprocess.Popen[bytes]] = []
        self._read = 0

    def start(self) -> subprocess.Popen[bytes]:
        with open(self._folder / f"agent{len(self._agents)}", "wb") as out:
            agent = subprocess.Popen(
                self._command,
                env=self._env | {MARK: f"{self._mark}-{len(self._agents)}"},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._agents.append(agent)
        return agent

    def said(self, agent: subprocess.Popen[bytes]) -> str:
        return (self._folder / f"agent{self._agents.index(agent)}").read_text("utf-8", "replace")

    def wait_round(self, size: int, limit_s: float = LIMIT_S) -> list[Seen]:
        """The next round in which so many workers have made a step together, in rank order."""

        def complete() -> list[Seen]:
            lines = [line.split() for line in self._said.read_text().splitlines()[self._read :]]
            seen = [(int(rank), int(world), store) for rank, world, store in lines]
            return [one for one in seen if one[1] == size][:size]

        self._wait(lambda: len(complete()) == size, f"a round of {size}", limit_s)
        found = sorted(complete())
        self._read = len(self._said.read_text().splitlines())
        return found

    def wait_together(self, size: int) -> list[Seen]:
        """The same, with as much patience as the backend deserves."""
        return self.wait_round(size, self._limit_s)

    def wait_sessions(self, count: int) -> None:
        """Until so many agents have a connection to the coordinator."""
        end = f":{self._port:04X}"

        def connected() -> bool:
            lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
            rows = [line.split() for line in lines]
            return sum(r[2].endswith(end) and r[3] == ESTABLISHED for r in rows) >= count

        self._wait(connected, f"{count} agents at the coordinator", LIMIT_S)

    def end(self) -> list[int]:
        """Training is over: how the agents that were not killed have ended."""
        self._stop.touch()
        codes = [agent.wait(patience(LIMIT_S)) for agent in self._agents]
        return [code for code in codes if code != -signal.SIGKILL]

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        """And its workers, which a torchrun that is killed leaves behind."""
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
        for pid in marked(f"{self._mark}-{self._agents.index(agent)}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for agent in self._agents:
            self.kill(agent)

    def _wait(self, condition: Callable[[], bool], what: str, limit_s: float) -> None:
        limit_s = patience(limit_s)
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                told = "\n".join(self.said(agent)[-2000:] for agent in self._agents)
                raise TimeoutError(f"{what} did not come in {limit_s:g} s:\n{told}")
            time.sleep(0.05)


@contextmanager
def job(folder: Path, backend: str, nodes: str, python: str) -> Iterator[Job]:
    found = Job(folder, backend, nodes, python)
    try:
        yield found
    finally:
        found.close()


def stores(seen: list[Seen]) -> set[str]:
    return {store for _, _, store in seen}


@pytest.mark.parametrize("backend", BACKENDS)
def test_R3_W1a_D14_a_killed_node_of_torchrun_is_replaced(
    backend: str, tmp_path: Path, torch_python: str
) -> None:
    with job(tmp_path, backend, "2:2", torch_python) as agents:
        agents.start()
        victim = agents.start()
        first = agents.wait_round(2)
        assert [rank for rank, _, _ in first] == [0, 1]
        agents.kill(victim)
        agents.start()
        second = agents.wait_together(2)
        assert [rank for rank, _, _ in second] == [0, 1]
        assert len(stores(first)) == len(stores(second)) == 1
        assert stores(first) != stores(second)
        assert agents.end() == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_R2_W1a_torchrun_grows_from_one_node_to_two(
    backend: str, tmp_path: Path, torch_python: str
) -> None:
    with job(tmp_path, backend, "1:2", torch_python) as agents:
        agents.start()
        agents.wait_round(1)
        agents.start()
        assert len(stores(agents.wait_together(2))) == 1
        assert agents.end() == [0, 0]


def test_R2_W5_a_spare_of_torchrun_takes_over_and_one_that_is_not_needed_ends_well(
    tmp_path: Path, torch_python: str
) -> None:
    with job(tmp_path, "rallypoint", "1:1", torch_python) as agents:
        first = agents.start()
        before = agents.wait_round(1)
        agents.start()
        agents.kill(first)
        after = agents.wait_round(1)
        assert stores(before) != stores(after)
        spare = agents.start()
        agents.wait_sessions(2)
        assert agents.end() == [0, 0]
        assert "was not needed: the job has ended: succeeded" in agents.said(spare)
