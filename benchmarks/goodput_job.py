"""A job that faults befall, for goodput.py: its agents, and what happens to them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from goodput_notes import Notes

WORKER = Path(__file__).with_name("goodput_worker.py")
KINDS = ("exception", "worker killed", "agent killed", "hang", "drain", "silent node")
LEASE_S = 3.0
HANG_S = 3.0
NODES = 2
WORKERS = 2
LIMIT_S = 180.0


class Fault(NamedTuple):
    """What was done, in which round, and when."""

    kind: str
    round: int
    at: float


class Look(NamedTuple):
    """What the coordinator told of the job while its newest round did new steps."""

    round: int
    account: dict[str, Any]


class FaultyJob:
    """Two nodes take part, and a third one stands by: the first one hosts and is never harmed."""

    def __init__(self, folder: Path, step_s: float, *, looks: bool = False) -> None:
        """`looks`: asks the coordinator twice in each round, before the fault."""
        self._folder, self._step_s, self._looks = folder, step_s, looks
        self.looks: list[Look] = []
        (folder / "notes").mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._env = os.environ | {"HOME": str(folder), "TMPDIR": str(folder)}
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 0
        self.faults: list[Fault] = []
        self.notes = Notes(folder / "notes")
        self.set_up_at = self.began_at = self.ended_at = 0.0

    def start(self) -> None:
        """All nodes."""
        self.set_up_at = time.monotonic()
        self._agent()
        wait_until(self._is_hosted, "the first agent to host the job")
        self.began_at = time.monotonic()
        for _ in range(NODES):
            self._agent()

    def befall(self, kind: str) -> None:
        """Once the job does new steps; waits until it does new ones again."""
        self._wait_new_steps()
        round_ = self.notes.newest
        self._look_twice(round_)
        victim = next(node for node in self.notes.nodes(round_) if node != "n0")
        agent = self._agents[victim]
        self.faults.append(Fault(kind, round_, time.monotonic()))
        match kind:
            case "exception" | "hang":
                order = self._folder / f"fault {round_} {self.notes.rank_on(round_, victim)}"
                order.with_suffix(".new").write_text(kind)
                order.with_suffix(".new").rename(order)
            case "worker killed":
                os.kill(self.notes.pids_on(round_, victim)[0], signal.SIGKILL)
            case "agent killed":
                agent.kill()
            case "silent node":
                for pid in [agent.pid, *self.notes.pids_on(round_, victim)]:
                    os.kill(pid, signal.SIGSTOP)
            case "drain":
                self._rallypoint("drain", victim, *self._where)
        wait_until(lambda: self.notes.newest > round_, f"another round after: {kind}")
        if kind in ("agent killed", "silent node", "drain"):
            agent.kill()
            agent.wait()
            self._agent()
        self._wait_new_steps()

    def end(self) -> dict[str, Any]:
        """The workers end well. Returns the summary of the node that hosts."""
        round_ = self.notes.newest
        self._look_twice(round_)
        (self._folder / "end.new").write_text(str(self.notes.furthest + 5))
        (self._folder / "end.new").rename(self._folder / f"end {round_}")
        code = self._agents["n0"].wait(LIMIT_S)
        self.ended_at = time.monotonic()
        if code != 0:
            raise SystemExit(f"the job ended with {code}: {self.log}")
        told: dict[str, Any] = json.loads((self._folder / "n0.json").read_text())
        return told

    @property
    def log(self) -> str:
        """The last lines of the node that hosts."""
        return (self._folder / "n0.log").read_text()[-2000:]

    def close(self) -> None:
        """Nothing of it runs on."""
        for agent in self._agents.values():
            if agent.poll() is None:
                agent.kill()
                agent.wait()

    def _look_twice(self, round_: int) -> None:
        """Once the coordinator has heard of new steps, too."""
        before = max((look.account["furthest_step"] for look in self.looks), default=-1)
        found: list[Look] = []

        def has_both() -> bool:
            account = json.loads(self._rallypoint("status", *self._where, "--json"))["goodput"]
            if account["furthest_step"] > max(before, self.notes.furthest_before(round_)):
                found.append(Look(round_, account))
            return len(found) == 2

        if self._looks:
            wait_until(has_both, "the coordinator to hear of new steps")
            self.looks += found

    def _wait_new_steps(self) -> None:
        wait_until(self._does_new_steps, "new steps")

    def _does_new_steps(self) -> bool:
        self.notes.read()
        return self.notes.does_new_steps

    def _is_hosted(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _agent(self) -> None:
        name = f"n{self._number}"
        self._number += 1
        hosts = "is_host=1" if name == "n0" else "is_host=0"
        command = [
            *(sys.executable, "-m", "rallypoint", "run", f"--nnodes={NODES}", "--rdzv-id=goodput"),
            f"--nproc-per-node={WORKERS}",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            f"--rdzv-conf={hosts},join_timeout={LIMIT_S:g}",
            *(f"--node-id={name}", f"--lease={LEASE_S:g}", f"--hang-timeout={HANG_S:g}"),
            *("--max-restarts=1000", "--max-node-losses=1000"),
            f"--json-summary={self._folder / name}.json",
            *(str(WORKER), str(self._folder), f"{self._step_s}"),
        ]
        with open(self._folder / f"{name}.log", "wb") as log:
            null = subprocess.DEVNULL
            self._agents[name] = subprocess.Popen(
                command, stdin=null, stdout=log, stderr=log, env=self._env
            )

    @property
    def _where(self) -> tuple[str, ...]:
        return ("--rdzv-endpoint", f"127.0.0.1:{self._port}", "--job", "goodput")

    def _rallypoint(self, *words: str) -> bytes:
        command = [sys.executable, "-m", "rallypoint", *words]
        done = subprocess.run(
            command, check=True, capture_output=True, env=self._env, timeout=LIMIT_S
        )
        return done.stdout


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Looks often. Raises SystemExit."""
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"waited {LIMIT_S:g} s for {what}")
        time.sleep(0.02)
