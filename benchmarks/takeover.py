"""How soon a job goes on whose coordinator was killed and started again.

benchmarks/takeover.py [--quick] [-n TIMES]

Prints Markdown. Two nodes with two workers each use a coordinator of its own, which keeps what it
knows in a directory: `rallypoint serve --data-dir`. It gets SIGKILL and is started again at once.
torchrun's job has a store of its own at its endpoint, which is treated the same. `leaders.py` has
jobs that any of their nodes may lead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from measure import Stage, free_port, has_torchrun, prepare, rallypoint, stage, torchrun
from tables import interleaved, markdown, spread

LIMIT_S = 60.0
TORCHRUN_LIMIT_S = 180.0
NODES, WORKERS = 2, 2
STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
time.sleep(3600)
"""
RESUMED = b'"event":"session_resumed"'


def main() -> int:
    """Measure everything and print a table, and what becomes of torchrun's job."""
    times = prepare("Taking over")
    found = interleaved(times, {"resumed": resumed, "restarted": restarted})
    names = {
        "resumed": "all agents are attached again, and no worker has noticed",
        "restarted": "the last worker of the next round begins, as one was killed meanwhile",
    }
    rows = [[names[name], spread(values), str(times)] for name, values in found.items()]
    title = "The coordinator is killed and started again at once (seconds from SIGKILL)"
    print(markdown(title, ("until", "rallypoint", "n"), rows), flush=True)
    if has_torchrun():
        print(f"torchrun, once, with its store killed and started again: {torchruns_job()}\n")
    return 0


class Job:
    """Two agents, at rest, and what they meet at."""

    def __init__(self, at: Stage, host: Sequence[str], agent: Sequence[str], port: int) -> None:
        """`host` is a command that listens on the port."""
        self._at, self._host, self._port = at, host, port
        self._said = at.folder("said") / "stderr"
        self._serving = self._begin()
        with self._said.open("ab") as said:
            command = [*agent, *at.worker("stay")]
            self.agents = [at.start(command, said.fileno()) for _ in range(NODES)]
        self.workers = at.lines(NODES * WORKERS)
        time.sleep(0.3)  # Agents are at rest.

    def restart(self) -> float:
        """Kill what they meet at, and start it again; the moment of its death."""
        killed_at = time.monotonic()
        self._serving.kill()
        self._serving.wait()
        self._serving = self._begin()
        return killed_at

    def wait_resumed(self) -> None:
        """Until all agents have said so."""
        end = time.monotonic() + LIMIT_S
        while self._said.read_bytes().count(RESUMED) < NODES:
            if time.monotonic() > end:
                raise SystemExit(f"the agents were not attached again within {LIMIT_S:g} s")
            time.sleep(0.002)

    def _begin(self) -> subprocess.Popen[bytes]:
        serving = self._at.start(self._host)
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                return serving
            time.sleep(0.002)
        raise SystemExit(f"nothing listened on port {self._port} within {LIMIT_S:g} s")


def resumed() -> float:
    """Until both agents are attached again. Seconds."""

    def measure(job: Job, _: Stage) -> float:
        killed_at = job.restart()
        job.wait_resumed()
        return time.monotonic() - killed_at

    return of_serve(measure)


def restarted() -> float:
    """Until the last worker of the next round has begun. Seconds."""

    def measure(job: Job, at: Stage) -> float:
        os.kill(job.workers[0].pid, signal.SIGKILL)
        killed_at = job.restart()
        return max(line.at for line in at.lines(NODES * WORKERS)) - killed_at

    return of_serve(measure)


def of_serve(measure: Callable[[Job, Stage], float]) -> float:
    """Of a job with a coordinator of its own."""
    port = free_port()
    options = f"--nnodes={NODES}", f"--nproc-per-node={WORKERS}", "--max-restarts=1"
    place = f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=takeover", "--rdzv-conf=is_host=0"
    agent = [*rallypoint(*options, *place), "--log-format=json"]
    with stage() as at:
        directory = str(at.folder("register"))
        serve = [agent[0], "serve", "--host=127.0.0.1", f"--port={port}"]
        return measure(Job(at, [*serve, f"--data-dir={directory}"], agent, port), at)


def torchruns_job() -> str:
    """What becomes of it, when a worker fails after its store was killed and started again."""
    port = free_port()
    options = f"--nnodes={NODES}", f"--nproc-per-node={WORKERS}", "--max-restarts=1"
    place = f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=takeover"
    c10d = "--rdzv-backend=c10d", "--rdzv-conf=is_host=0"
    with stage() as at:
        store = [sys.executable, "-c", STORE, str(port)]
        job = Job(at, store, torchrun(*options, *place, *c10d), port)
        killed_at = job.restart()
        with contextlib.suppress(ProcessLookupError):  # its agents may have stopped it already
            os.kill(job.workers[0].pid, signal.SIGKILL)
        try:
            for agent in job.agents:
                agent.wait(max(0.0, killed_at + TORCHRUN_LIMIT_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"its agents had not ended after {TORCHRUN_LIMIT_S:g} s."
        took_s = time.monotonic() - killed_at
    codes = " and ".join(str(agent.returncode) for agent in job.agents)
    return f"its agents ended within {took_s:.1f} s, with exit codes {codes}."


if __name__ == "__main__":
    sys.exit(main())
