"""Real TensorFlow: a MultiWorkerMirroredStrategy by TF_CONFIG, through a kill and a restart."""

from __future__ import annotations

import pytest
from tests.harness.cluster import Cluster
from tests.harness.frameworks import framework

pytestmark = pytest.mark.frameworks

TRAIN = """
import os, signal
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, round_ = strategy.cluster_resolver.task_id, os.environ["RALLYPOINT_ROUND"]
def total():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(rank + 1.0))
size, sum_ = strategy.num_replicas_in_sync, float(strategy.run(total))
os.write(1, f"trained {round_} {rank} {size} {sum_:g}\\n".encode())
if (round_, rank) == ("0", 1):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_A14_tensorflow_finds_its_workers_through_a_kill(cluster: Cluster) -> None:
    cluster.script.write_text(TRAIN)
    cluster.env = {"PYTHON_EXEC": str(framework("tensorflow")), "CUDA_VISIBLE_DEVICES": ""}
    cluster.options |= {"nnodes": 2, "max_restarts": 1, "restart_grace": 1}
    script = [str(cluster.script)]
    nodes = cluster.agents("a", "b", script=script, env_style="tensorflow")
    assert [node.wait_exit() for node in nodes] == [0, 0]
    lines = [line for node in nodes for line in node.stdout_lines]
    for round_ in (0, 1):
        told = sorted(line for line in lines if line.startswith(f"trained {round_} "))
        assert told == [f"trained {round_} {rank} 2 3" for rank in (0, 1)]
