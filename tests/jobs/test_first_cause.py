"""Four nodes, one failure on any rank, and no decorator: every node names the same culprit (A3).

Another worker has failed before, because the culprit was gone: its agent looks away meanwhile, so
that what comes first is not what was noticed first.
"""

from __future__ import annotations

import json
import os
import random
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.harness.cluster import AgentProcess, Cluster, Worker, wait_until
from tests.harness.memory_cgroup import inside, memory_cgroup

NAMES, WORKERS_PER_NODE = ("a", "b", "c", "d"), 2
LOST_PEER = "raise ConnectionResetError('Connection reset by peer')"
LIMIT_BYTES = 400 << 20
NO_CGROUP = "import signal; os.kill(os.getpid(), signal.SIGKILL)"


@dataclass(frozen=True)
class Case:
    """What a worker is told to do, and what is said of it."""

    order: str
    how: str
    details: tuple[str, ...]


CASES = {
    "exception": Case(
        "raise ValueError('the batch is empty')",
        "exited with code 1",
        ("error: ValueError: the batch is empty", "its traceback:", '  File "'),
    ),
    "SIGSEGV": Case(
        "import ctypes; ctypes.string_at(0)",
        "was killed by SIGSEGV",
        ("Fatal Python error: Segmentation fault", "Current thread 0x", "in string_at"),
    ),
    "out of memory": Case(
        f"x = b'x' * {LIMIT_BYTES * 4}",
        "was killed by SIGKILL",
        ("error: out of memory (the kernel", "what to do: have the workers use less memory"),
    ),
    "os._exit": Case("os._exit(3)", "exited with code 3", ()),
    "sys.exit": Case(
        "sys.exit('no such data set')",
        "exited with code 1",
        ("its last lines on stderr:", "  | no such data set"),
    ),
}


@pytest.fixture
def seed() -> int:
    """Another one every time, unless RALLYPOINT_SEED names it."""
    return int(os.environ.get("RALLYPOINT_SEED") or random.randrange(1 << 32))


@pytest.mark.parametrize("kind", CASES)
def test_A3_A7_every_node_names_the_same_culprit(tmp_path: Path, kind: str, seed: int) -> None:
    print(f"again with RALLYPOINT_SEED={seed}")
    case, chosen = CASES[kind], random.Random(seed)
    rank, other = chosen.sample(range(len(NAMES) * WORKERS_PER_NODE), 2)
    with ExitStack() as stack:
        prefix: dict[str, tuple[str, ...]] = {}
        if kind == "out of memory":
            group = stack.enter_context(memory_cgroup(LIMIT_BYTES))
            if group is None:
                case = Case(NO_CGROUP, case.how, ())
            else:
                prefix[NAMES[rank // WORKERS_PER_NODE]] = inside(group)
        cluster = stack.enter_context(Cluster(tmp_path, nnodes=4, log_format="text"))
        cluster.options |= {"lease": 60, "log_dir": str(tmp_path / "logs"), "redirects": 2}
        agents = [
            cluster.agent(
                name,
                WORKERS_PER_NODE,
                hosts=name == "a",
                prefix=prefix.get(name, ()),
                json_summary=str(tmp_path / f"{name}.json"),
            )
            for name in NAMES
        ]
        workers = cluster.wait_workers(len(NAMES) * WORKERS_PER_NODE)
        culprit = fail_behind_its_agents_back(cluster, workers, case.order, rank, other)
        assert [agent.wait_exit() for agent in agents] == [1] * len(agents)
        told = [last_lines(agent) for agent in agents]
        for lines in told:
            names_the_culprit(lines, culprit, case)
        assert told.count(told[0]) == len(told), told
        for name in NAMES:
            summary_agrees(tmp_path / f"{name}.json", culprit, told[0])


def fail_behind_its_agents_back(
    cluster: Cluster, workers: list[Worker], order: str, rank: int, other: int
) -> Worker:
    """First `other` fails, as one does whose peer is gone; both are noticed later, together."""
    culprit, victim = workers[rank], workers[other]
    paused = {a.name: a for a in cluster.all_agents if a.name in (culprit.node, victim.node)}
    for agent in paused.values():
        agent.pause()
    cluster.order(LOST_PEER, rank=other)
    wait_until(lambda: not victim.is_alive, "the victim to fail")
    cluster.order(order, rank=rank)
    wait_until(lambda: not culprit.is_alive, "the culprit to fail")
    # The victim's is the first report, and the culprit's agent is told to stop before it looks.
    first, last = paused[victim.node], paused[culprit.node]
    first.resume()
    hosts = cluster.all_agents[0]
    if hosts is not last:
        wait_until(lambda: "round 0 ended" in "\n".join(hosts.lines), "the round to end")
    last.resume()
    return culprit


def last_lines(agent: AgentProcess) -> list[str]:
    starts = [n for n, line in enumerate(agent.lines) if line.startswith("rallypoint: job ")]
    assert len(starts) == 1, agent.lines
    return agent.lines[starts[0] :]


def summary_agrees(file: Path, culprit: Worker, lines: list[str]) -> None:
    """What a program reads is what a person reads."""
    told = json.loads(file.read_text())
    cause = told["cause"]
    assert (told["outcome"], told["exit_code"], told["collateral"]) == ("failed", 1, 1)
    assert (cause["rank"], cause["node"], cause["pid"]) == (culprit.rank, culprit.node, culprit.pid)
    how = f"killed by {cause['signal']}" if cause["signal"] else f"code {cause['exit_code']}"
    assert f"{how} at " in lines[0]
    assert f"    log: {cause['log_file']} (on {culprit.node})" in lines
    assert [f"      | {line}".rstrip() for line in cause["detail"]] == [
        line for line in lines if line.startswith("      |")
    ]


def names_the_culprit(lines: list[str], culprit: Worker, case: Case) -> None:
    """Node, rank, local rank, pid, how, when, the message, the log, and how many followed."""
    local_rank = culprit.rank % WORKERS_PER_NODE
    who = f"rank {culprit.rank} (node {culprit.node}, local rank {local_rank}, pid {culprit.pid})"
    assert re.fullmatch(
        rf"rallypoint: job job failed: {re.escape(who)} {case.how} at \d\d:\d\d:\d\d\.\d\d\d "
        r"in round 0",
        lines[0],
    ), lines[0]
    text = "\n".join(lines)
    for detail in case.details:
        assert detail in text
    assert re.search(
        rf"^    log: \S+/attempt_0/{local_rank}/stderr\.log \(on {culprit.node}\)$", text, re.M
    )
    assert "    1 other worker failed because of it" in lines
