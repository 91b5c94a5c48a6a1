"""A3: a process of Rallypoint that workers need is killed. Nobody is to blame, and nobody pays."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial

import pytest
from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.proc import name_of, parent_of

# Whoever loses the store, or can't write, fails at once.
NEEDS_THE_STORE = """
from rallypoint import worker
shared = worker.store()
os.write(1, b"busy\\n")
try:
    while True: shared.set("k", b"v")
except ConnectionError:
    os._exit(3)
"""
NEEDS_THE_RELAY = """
os.write(1, b"busy\\n")
while True: os.write(2, b"a line of a worker\\n"); time.sleep(0.001)
"""


def is_busy(agent: AgentProcess) -> bool:
    return agent.stdout_lines.count("busy") == 2


@pytest.mark.parametrize(
    ("helper", "program", "why"),
    [
        ("rally-store-0", NEEDS_THE_STORE, "the process of the round store was killed by SIGKILL"),
        ("rallypoint-rly", NEEDS_THE_RELAY, "the relay of the workers' output was killed"),
    ],
    ids=["store", "relay"],
)
def test_A3_a_helper_that_is_killed_ends_the_round_and_no_rank_is_blamed(
    cluster: Cluster, helper: str, program: str, why: str
) -> None:
    a, b = cluster.agents("a", "b", nproc=2, nnodes=2, max_restarts=0)
    first = cluster.wait_workers(4, round=0)
    cluster.order(program, round=0)
    for agent in (a, b):
        wait_until(partial(is_busy, agent), "busy workers")
    [wanted] = [
        pid for pid in cluster.processes() if name_of(pid) == helper and parent_of(pid) == a.pid
    ]
    os.kill(wanted, signal.SIGKILL)
    second = cluster.wait_workers(4, round=1)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in second} == {"0"}
    assert {worker.env["RALLYPOINT_RESTART_REASON"] for worker in second} == {f"{why} on node a"}
    assert not any(worker.is_alive for worker in first)
    for agent in (a, b):
        agent.wait_event("round_ended", round=0)
    cluster.end_well(a, b)


def test_a_relay_that_is_killed_again_and_again_is_not_replaced_without_end(
    cluster: Cluster,
) -> None:
    [agent] = cluster.running("a", round=None, nnodes=1)

    def is_done_without() -> bool:
        for pid in cluster.processes():
            if name_of(pid) == "rallypoint-rly":
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        told = [event.message for event in agent.events if event.name == "relay_replaced"]
        return any("output goes to the agent's stdout and stderr" in message for message in told)

    wait_until(is_done_without, "no other relay")
    assert not [pid for pid in cluster.processes() if name_of(pid) == "rallypoint-rly"]
    cluster.end_well(agent)
