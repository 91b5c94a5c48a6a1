"""A job of real agents on loopback whose workers step slowly, and `rallypoint status` of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.finder import culprit_of, text_of
from tests.harness.prepared import processes

from rallypoint.cli.watch.status_text import LINES_MAX

WORKER = """\
import os, sys, time
from rallypoint import worker
me = [os.environ[n] for n in ("RALLYPOINT_ROUND", "RALLYPOINT_NODE_ID", "RANK")]
orders, done, step, last = sys.argv[1], set(), 0, 10_000
while True:
    for name in sorted(os.listdir(orders)):
        to = name.split(",")[1:]
        if name in done or name.startswith("."): continue
        done.add(name)
        if all(want in ("_", mine) for want, mine in zip(to, me)):
            with open(os.path.join(orders, name)) as file: exec(file.read(), globals())
    if step < last:
        step += 1
        worker.progress(step, total=10_000)
    time.sleep(0.5)
"""


class LiveJob:
    """`nodes` agents, node-0 and so on, each with one worker, and a coordinator of its own.

    While all are there the job runs; without one of them it waits.
    """

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self.cluster, self.nodes = cluster, nodes
        cluster.script.write_text(WORKER)
        cluster.options |= {"nnodes": str(nodes), "max_restarts": 99, "lease": 60}
        cluster.options |= {"drain_deadline": 300}
        cluster.make_token()
        cluster.serve()

    def start(self, index: int, prefix: tuple[str, ...] = ()) -> AgentProcess:
        """Start node-`index`."""
        return self.cluster.agent(f"node-{index}", prefix=prefix)

    def agent(self, index: int) -> AgentProcess:
        """The newest of node-`index`."""
        name = f"node-{index}"
        return next(one for one in reversed(self.cluster.all_agents) if one.name == name)

    def status(self, *words: str) -> list[str]:
        """What `rallypoint status` prints, by the token; nothing while no agent has come, or where
        so many start at once that the coordinator does not answer in time."""
        endpoint = str(self.cluster.options["rdzv_endpoint"])
        line = [sys.executable, "-m", "rallypoint", "status", endpoint, "--job", "job", *words]
        done = processes.run(line, env=self.cluster.environ(), capture_output=True, timeout=600.0)
        assert done.returncode in (0, 75) or "does not host job" in done.stderr, done.stderr
        return str(done.stdout).splitlines()

    @property
    def view(self) -> dict[str, Any]:
        """The same for programs; empty as there."""
        found: dict[str, Any] = json.loads("\n".join(self.status("--json")) or "{}")
        return found

    def wait_culprit(self, index: int, reason: str) -> str:
        """Until a person who reads the first lines finds this node and this reason there. Returns
        what they read."""
        lines: list[str] = []

        def is_found() -> bool:
            lines[:] = self.status()[:LINES_MAX]
            return culprit_of(lines) == f"node-{index}" and reason in text_of(lines)

        try:
            wait_until(is_found, f"node-{index} and {reason!r} in the first lines")
        finally:
            print(*lines, "", sep="\n")
        return text_of(lines)

    def replace(self, index: int, prefix: tuple[str, ...] = ()) -> None:
        """Kill an agent, start another as the same node, and wait until that one takes part."""
        before = self.wait_steps()
        self.agent(index).kill()
        self.start(index, prefix)
        self.wait_steps(after=before)

    def wait_steps(self, after: int = -1) -> int:
        """Until all nodes take part and make steps, in a later round than `after`. Returns the
        number of the round."""

        def runs() -> bool:
            if not (view := self.view):
                return False
            steps = view["state"] in ("running", "catching up") and view["step"] > 0
            whole = view["world_nodes"] == self.nodes
            return steps and whole and bool(view["round"] > after)

        wait_until(runs, f"steps of {self.nodes} nodes")
        return int(self.view["round"])

    def fail(self, index: int, text: str) -> None:
        """Have the worker of this node, in this round, run a statement that fails."""
        round_ = self.wait_steps()
        self.cluster.order(text, round=round_, node=f"node-{index}")

    @property
    def folder(self) -> Path:
        """A place for files of the test."""
        return self.cluster.folder
