"""One job of a soak: its good nodes, what is expected of them, and whether it has settled.

    with SoakJob(folder, "file", has_budget=False, chance=random.Random(1)) as job:
        job.begin()
        job.add()
        job.settle()
        job.end()

Nodes run on the hosts of a `LeaderCluster`, each under an id that no other node had: a node that
was lost some times is held back, and would be missed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fault import network
from tests.fault.leader_runs import CLUSTERS
from tests.fault.leaders import RUN_ID, LeaderCluster
from tests.fault.soak import ledger, worlds
from tests.fault.soak.ledger import Broken
from tests.fault.soak.worlds import Reader, WorkerRecord, Worlds
from tests.harness.cluster import AgentProcess, Event, wait_until
from tests.harness.limits import patience
from tests.harness.proc import command_line, descendants, is_alive
from tests.harness.programs import run_program

from rallypoint.core.fitness import PROBATION_S
from rallypoint.process import guard

LEASE_S, HOLD_S = 8, 4
LEAST, FIRST, MOST = 2, 3, 5
"""Good nodes: those that the job needs, those that it begins with, and as many as there may be. The
job takes one more."""
HOSTS = "abcde"
BAD_HOST = "g"
FOREMOST, TOPOLOGY = "0", "1"
"""A node of the first topology has rank 0; all others have the second one."""
TIMES_LOST = 2
"""A node that was lost more often is held back from growing the job."""
SETTLE_S = 60.0
COMMAND_S = 60.0
PROGRAM = Path(__file__).with_name("worker.py")

PASSED_S = PROBATION_S + 4.0
"""A round that has lasted so long has passed its probation."""


class RuleBroken(Exception):
    """The job has not kept a rule, and can't go on."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.broken = Broken(rule, text)


class Node:
    """One life of a node."""

    def __init__(self, node_id: str, host: str, agent: AgentProcess, temp: Path) -> None:
        self.id, self.host, self.agent, self.temp = node_id, host, agent, temp
        self.times_lost = 0
        self.has_failed = False
        """A worker has failed here: a second failure within an hour would hold the machine back."""

    @property
    def exit_code(self) -> int | None:
        """None: it runs."""
        return self.agent.process.poll()

    def last_line(self) -> str:
        """What a person sees at its end: why the job ended for it, or what is wrong."""
        lines = [line for line in self.agent.lines if line]
        lines += [str(event.fields["reason"]) for event in self.agent.events if _is_verdict(event)]
        return lines[-1][:300] if lines else ""

    def children(self) -> list[int]:
        """All processes below the agent."""
        return descendants(self.agent.pid)

    def guards(self) -> list[int]:
        """Its guard, by the title."""
        return [pid for pid in self.children() if command_line(pid).startswith(guard.TITLE)]

    def left(self) -> list[str]:
        """The temporary files that it has."""
        return [path.name for path in self.temp.iterdir()]


class SoakJob:
    """For `with`. Raises RuleBroken where a rule is broken and the job is of no further use; what
    can wait for the end of an event is in `broken`."""

    cluster: LeaderCluster

    def __init__(
        self, folder: Path, backend: str, *, has_budget: bool, chance: random.Random
    ) -> None:
        self.folder, self.backend, self.chance = folder, backend, chance
        self.has_budget, self.charged = has_budget, 0
        self.good: dict[str, Node] = {}
        self.broken: list[Broken] = []
        self.notes: list[str] = []
        self.first_settled_s: float | None = None
        """Since the last mark."""
        self._marked_at = time.monotonic()
        self._started = 0
        self._has_passed = False
        for name in ("workers", "nodes"):
            (folder / name).mkdir()
        self._reader = Reader(folder / "workers")
        self.cluster = CLUSTERS[backend](
            folder,
            *HOSTS,
            BAD_HOST,
            nnodes=f"{LEAST}:{MOST + 1}",
            lease=LEASE_S,
            max_restarts=10_000 if has_budget else 0,
            max_node_losses=1_000_000,
            drain_deadline=5,
            restart_grace=3,
            topology=TOPOLOGY,
            shutdown_timeout=5,
        )

    def __enter__(self) -> SoakJob:
        self.cluster.__enter__()
        conf = f"{self.cluster.conf}last_call_timeout=3,hold={HOLD_S},join_timeout=120"
        self.cluster.options["rdzv_conf"] = conf
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self.cluster.__exit__(kind, error, at)
        if kind is None and network.left():
            raise AssertionError(f"network namespaces were left behind: {network.left()}")

    # What the driver does

    def begin(self) -> None:
        """All first nodes run."""
        for _ in range(FIRST):
            self.add()
        self.settle()

    def add(self, **options: Any) -> Node:
        """A good node starts, on a host that has none."""
        used = {node.host for node in self.good.values()}
        node = self.start(next(host for host in HOSTS if host not in used), **options)
        self.good[node.id] = node
        return node

    def start(
        self,
        host: str,
        node_id: str = "",
        *,
        words: Sequence[object] = (),
        script: Sequence[str] | None = None,
        within: Sequence[str] = (),
        **options: Any,
    ) -> Node:
        """A node, good or bad. `words`: further ones for the worker. `within`: what to put before
        its command, where TEMP is its directory for temporary files. `options`: of `rallypoint
        run`."""
        self._started += 1
        node_id = node_id or f"n{self._started}"
        temp = self.folder / "nodes" / f"{self._started}-{node_id}"
        temp.mkdir()
        self.cluster.within[host] = [word.replace("TEMP", str(temp)) for word in within]
        agent = self.cluster.agent(
            host,
            self.chance.choice((1, 1, 2)),
            script=script or [str(PROGRAM), str(self.folder), *map(str, words)],
            env={"TMPDIR": str(temp)},
            node_id=node_id,
            machine_id=node_id,
            **options,
        )
        return Node(node_id, host, agent, temp)

    def part(self, node: Node, code: int | None) -> None:
        """This good node has been told to go, and goes, with this code."""
        del self.good[node.id]
        try:
            found = node.agent.process.wait(patience(SETTLE_S))
        except subprocess.TimeoutExpired:
            raise RuleBroken(ledger.ENDED, f"node {node.id} did not leave") from None
        if code is not None and found != code:
            told = f"node {node.id} left with {found}, not {code}: {node.last_line()}"
            raise RuleBroken(ledger.ENDED, told)
        if found != -signal.SIGKILL and node.left():
            self.note_broken(ledger.LEFT, f"temporary files of node {node.id}: {node.left()}")

    def kill(self, *nodes: Node, with_guards: bool = False) -> None:
        """SIGKILL, at once."""
        pids = [node.agent.pid for node in nodes]
        if with_guards:
            pids += [pid for node in nodes for pid in node.guards()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for node in nodes:
            self.part(node, -signal.SIGKILL)

    def command(self, name: str, *words: str) -> str:
        """`rallypoint NAME` of this job, which ends well; what it printed."""
        options = self.cluster.options
        host = next(iter(self.good.values())).host
        command = [*self.cluster.views[host].prefix, sys.executable, "-m", "rallypoint", name]
        command += [*words, str(options["rdzv_endpoint"]), "--job", RUN_ID]
        command += ["--rdzv-backend", str(options["rdzv_backend"])]
        command += ["--rdzv-conf", self.cluster.conf.rstrip(",")] if self.cluster.conf else []
        ends_at = time.monotonic() + patience(COMMAND_S)
        while True:
            try:
                done = run_program(command, env=self.cluster.environ())
            except subprocess.TimeoutExpired:
                raise RuleBroken(ledger.OUTCOME, f"`rallypoint {name}` did not end") from None
            if not done.returncode:
                return done.stdout
            said = "".join((done.stderr or done.stdout).strip().splitlines()[-1:])
            if "try again when" not in said or time.monotonic() > ends_at:
                told = f"`rallypoint {name}` ended with {done.returncode}: {said}"
                self.note_broken(ledger.OUTCOME, told)
                return done.stdout
            time.sleep(0.5)  # A node that led has just lost the job: a person would try again.

    # What holds

    def workers(self) -> list[WorkerRecord]:
        return self._reader.read()

    def worlds(self) -> Worlds:
        return worlds.by_world(self.workers())

    def newest(self) -> list[WorkerRecord]:
        """The workers of the newest world."""
        return next(reversed(self.worlds().values()), [])

    def good_worlds(self) -> int:
        """In how many worlds a good node that lives has had workers."""
        return sum(
            any(worker.node in self.good for worker in workers)
            for workers in self.worlds().values()
        )

    def check_alive(self) -> None:
        """No good node has ended."""
        for node in self.good.values():
            if node.exit_code is not None:
                told = f"node {node.id} ended with {node.exit_code}: {node.last_line()}"
                raise RuleBroken(ledger.ENDED, told)

    def is_settled(self) -> bool:
        """Exactly the good nodes have a world, and make steps in it."""
        newest = self.newest()
        return (
            worlds.is_complete(newest)
            and {worker.node for worker in newest} == set(self.good)
            and all(is_alive(worker.pid) for worker in newest)
        )

    def settle(self) -> None:
        """Wait for that."""

        def find() -> bool:
            self.check_alive()
            return self.is_settled()

        try:
            wait_until(find, f"a world of {', '.join(self.good)}", SETTLE_S)
        except AssertionError as error:
            names = sorted({worker.node for worker in self.newest()})
            told = f"{error}; the newest world is of {', '.join(names)}"
            raise RuleBroken(ledger.SETTLED, told) from None
        if self.first_settled_s is None:
            self.first_settled_s = time.monotonic() - self._marked_at

    def pass_probation(self) -> None:
        """Let a round go on until the job has run well without a newcomer, once for each job."""
        if not self._has_passed:
            time.sleep(PASSED_S)
            self.settle()
        self._has_passed = True

    def mark(self) -> None:
        """From now on it is measured how long it takes to settle."""
        self._marked_at, self.first_settled_s = time.monotonic(), None

    def refresh(self) -> None:
        """Good nodes that were lost too often are replaced, so that they are not held back."""
        for node in [node for node in self.good.values() if node.times_lost >= TIMES_LOST]:
            node.agent.signal(signal.SIGTERM)
            self.part(node, 128 + signal.SIGTERM)
            self.settle()
            self.add()
            self.settle()

    def check(self) -> None:
        """The rules that hold of a job that has settled."""
        for line in worlds.broken_rules(self.workers()):
            self.note_broken(ledger.WORLD, line)
        record = self.cluster.record()
        restarts = record.job.restarts if record and record.job else None
        if restarts is not None and restarts != self.charged:
            told = f"{restarts} restarts were charged, not {self.charged}"
            self.note_broken(ledger.CHARGED, told)
            self.charged = restarts

    def end(self, within_s: float = 20.0) -> None:
        """All workers are told to end well; nothing is left then, within these seconds."""
        (self.folder / "end").touch()
        for node in list(self.good.values()):
            self.part(node, 0)
            outcome = node.agent.verdict
            if outcome["outcome"] != "succeeded" or outcome["restarts"] != self.charged:
                told = f"the verdict of node {node.id}: {dict(outcome)}"
                self.note_broken(ledger.ENDED, told)
        for line in worlds.broken_rules(self.workers()):
            self.note_broken(ledger.WORLD, line)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.cluster.processes(), "the last process to go", within_s)
        if left := self.cluster.processes():
            self.note_broken(ledger.LEFT, f"processes: {left}")
        try:
            self.cluster.check_left()
        except AssertionError as error:
            self.note_broken(ledger.LEFT, f"in the register: {error}")

    def note_broken(self, rule: str, text: str) -> None:
        """Each is said once for a job."""
        if (broken := Broken(rule, text)) not in self.broken:
            self.broken.append(broken)

    # Who is who

    def leader(self) -> Node:
        """The good node that leads."""

        def find() -> Node | None:
            self.check_alive()
            host = self.cluster.leading()
            return next((node for node in self.good.values() if node.host == host), None)

        found = wait_until(find, "a good node to lead")
        assert found is not None
        return found

    def node_of(self, agent: AgentProcess) -> Node:
        """The good node that runs as this agent."""
        return next(node for node in self.good.values() if node.agent is agent)

    def some(self, *but: Node) -> Node:
        """Any other good node."""
        return self.chance.choice([node for node in self.good.values() if node not in but])

    def rank_0(self) -> Node:
        """The good node whose workers' store the world uses."""
        return self.good[next(worker.node for worker in self.newest() if worker.rank == 0)]


def _is_verdict(event: Event) -> bool:
    return event.name == "verdict" and bool(event.fields.get("reason"))
