"""Preemption of a real job: digits, trained by DistributedDataParallel on three nodes (A4, A5)."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.limits import patience

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py"
EPOCHS = 12
LIMIT_S = 180.0


def found(agent: AgentProcess, pattern: str) -> list[int]:
    """The numbers that its workers have told, in order."""
    out = "\n".join(agent.stdout_lines)
    return [int(number) for number in re.findall(pattern, out, re.MULTILINE)]


@pytest.mark.frameworks
def test_A5_a_preempted_node_costs_no_step_and_no_restart(
    cluster: Cluster, digits_python: str
) -> None:
    """All ranks save the same epoch, the rest goes on from it, and no epoch is trained twice."""
    checkpoint = cluster.folder / "digits.pt"
    words = ["--epochs", str(EPOCHS), "--epoch-seconds", "0.3", "--checkpoint", str(checkpoint)]
    cluster.options |= {"nnodes": "2:3", "max_restarts": 0, "drain_deadline": 120}
    env = {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(cluster.folder / "cache"),
        "PYTHON_EXEC": digits_python,
    }
    a, b, c = cluster.agents("a", "b", "c", script=[str(TRAIN), *words], env=env)
    everybody = (a, b, c)
    wait_until(lambda: len(found(a, r"^epoch (\d+)/")) >= 2, "two epochs", LIMIT_S)
    b.signal(signal.SIGTERM)
    assert b.process.wait(patience(LIMIT_S)) == 143
    [last] = {step for agent in everybody for step in found(agent, r"stops after epoch (\d+)$")}
    assert [len(found(agent, r"stops after epoch (\d+)$")) for agent in everybody] == [1, 1, 1]
    assert [agent.process.wait(patience(LIMIT_S)) for agent in (a, c)] == [0, 0]
    assert found(a, r"^resumed after epoch (\d+)$") == [last]
    trained = [n for agent in everybody for n in found(agent, r"^epoch (\d+)/")]
    assert sorted(trained) == list(range(1, EPOCHS + 1)), "each epoch once"
    for agent in (a, c):
        assert agent.verdict["restarts"] == 0
        assert agent.verdict["outcome"] == "succeeded"
    assert [event.round for event in a.events if event.name == "workers_started"] == [0, 1]
