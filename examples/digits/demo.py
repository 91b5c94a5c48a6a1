"""Two agents train on digits; one worker is killed, then one whole agent; a new one joins.

Run by `make demo`. Everything happens on this machine, over loopback. What is told at the end comes
from the agents' own events (`--log-format json`) and from the first lines of the workers. Exits
with 0 only if the job healed each time, reached its accuracy and left no process behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 180
EXIT_S = 10
EPOCHS = 30
EPOCH_S = 0.2
QUIET_EPOCHS = 3
"""How long each world trains before something happens to it."""
ACCURACY = 0.95

TRAIN = Path(__file__).with_name("train.py")
FIRST_LINE = re.compile(r"rank (\d+) of (\d+): pid (\d+)")
EPOCH = re.compile(r"epoch (\d+)/\d+: (.*)")
RESULT = re.compile(r"\] accuracy ([01]\.\d+)$")
EXPLANATION = """\
Every column left of "first line" is Rallypoint's own time; the rest is the workers importing
PyTorch and scikit-learn. The guard of a killed agent kills its workers and reports its death."""
PHASES = ("detect", "stop", "rendezvous", "spawn", "first line")


class Broken(Exception):
    """The demo did not go as it should; the text is for a person."""


class Event(NamedTuple):
    """One event of an agent; `at` and `took_s` are seconds, `at` since the epoch."""

    at: float
    agent: str
    name: str
    round: int | None
    took_s: float
    message: str


class Line(NamedTuple):
    """One line of a worker and when it was read."""

    at: float
    agent: str
    text: str


class Incident(NamedTuple):
    """What was done to the job, and how long each phase of the recovery took. Seconds."""

    what: str
    phases: tuple[float, ...]


@dataclass
class Job:
    """All that was heard so far, and the agents that were started."""

    run_id: str
    port: int
    checkpoint: Path
    began_at: float = field(default_factory=time.time)
    agents: dict[str, Process] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    def tell(self, text: str) -> None:
        """One line of the story."""
        print(f"{time.time() - self.began_at:5.1f} s  {text}", flush=True)

    async def start(self, name: str, *, hosts: bool) -> None:
        """Start one agent with two workers."""
        rallypoint = Path(sys.executable).with_name("rallypoint")
        command = [
            str(rallypoint),
            "run",
            "--nnodes=1:2",
            "--nproc-per-node=2",
            "--max-restarts=3",
            f"--rdzv-id={self.run_id}",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            f"--rdzv-conf=is_host={int(hosts)}",
            f"--node-id={name}",
            "--min-growth-interval=0",
            "--join-settle=1",
            "--log-format=json",
            "--output=prefix",
            str(TRAIN),
            f"--checkpoint={self.checkpoint}",
            f"--epochs={EPOCHS}",
            f"--epoch-seconds={EPOCH_S}",
        ]
        agent = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        assert agent.stdout is not None
        assert agent.stderr is not None
        self.agents[name] = agent
        for stream, take in ((agent.stdout, self._take_line), (agent.stderr, self._take_event)):
            self.readers.append(asyncio.create_task(self._read(stream, name, take)))
        self.readers.append(asyncio.create_task(self._note_exit(agent)))

    async def _read(
        self, stream: asyncio.StreamReader, name: str, take: Callable[[str, str], None]
    ) -> None:
        while raw := await stream.readline():
            take(name, raw.decode(errors="replace").rstrip())
            async with self.heard:
                self.heard.notify_all()

    async def _note_exit(self, agent: Process) -> None:
        await agent.wait()
        async with self.heard:
            self.heard.notify_all()

    def _take_line(self, agent: str, text: str) -> None:
        self.lines.append(Line(time.time(), agent, text))

    def _take_event(self, agent: str, text: str) -> None:
        try:
            said = json.loads(text)
            at = datetime.fromisoformat(said["time"]).timestamp()
        except (ValueError, KeyError, TypeError):  # A traceback of a worker, or the verdict.
            self.other.append(f"{agent}: {text}")
            return
        took_s = float(said.get("took_s", 0.0))
        message = said["message"]
        self.events.append(Event(at, agent, said["event"], said["round"], took_s, message))

    async def wait_until(self, what: str, done: Callable[[], bool]) -> None:
        """Wait for what is heard. Raises Broken when the hosting agent ends before."""
        async with self.heard:
            while not done():
                if self.agents["A"].returncode is not None:
                    raise Broken(f"agent A ended (exit code {self.exit_code('A')}) before {what}")
                await self.heard.wait()

    async def wait_training(self, since: float, epochs: int) -> str:
        """Wait until so many epochs were trained since then; what the last one said."""
        found: list[str] = []

        def done() -> bool:
            found[:] = [x.text for x in self.lines if x.at > since and EPOCH.search(x.text)]
            return len(found) >= epochs

        await self.wait_until(f"{epochs} more epochs", done)
        return found[-1].partition("] ")[2]

    def first_lines(self, since: float, world_size: int) -> list[tuple[Line, re.Match[str]]]:
        """Of the workers that started since then in a world of this size."""
        matches = ((x, FIRST_LINE.search(x.text)) for x in self.lines if x.at > since)
        return [(x, m) for x, m in matches if m is not None and int(m[2]) == world_size]

    def round(self) -> int:
        """The newest one."""
        return max((x.round for x in self.events if x.round is not None), default=-1)

    def exit_code(self, name: str) -> int | None:
        """How that agent ended."""
        return self.agents[name].returncode


async def recovery(
    job: Job, what: str, since: float, old: int, world_size: int, survivors: str
) -> Incident:
    """Wait until the job trains again, and read from the events where the time went."""
    all_agents = "".join(job.agents)

    def told(name: str, number: int, agents: str = all_agents) -> list[Event]:
        return [x for x in job.events if (x.name, x.round) == (name, number) and x.agent in agents]

    await job.wait_until("it noticed", lambda: bool(told("round_ended", old)))
    job.tell(f"  {told('round_ended', old)[0].message}")
    await job.wait_until(
        f"{world_size} workers had started again",
        lambda: len(job.first_lines(since, world_size)) == world_size,
    )
    first = max(line.at for line, _ in job.first_lines(since, world_size))
    match = EPOCH.search(await job.wait_training(first, 1))
    assert match is not None
    job.tell(f"  {world_size} workers train as round {old + 1}; epoch {match[1]}: {match[2]}")
    # A worker's line comes by another pipe than its agent's events: these have long been read.
    started = told("workers_started", old + 1)
    detected = min(x.at for x in told("round_ended", old))
    stopped = max(x.at for x in told("workers_stopped", old, survivors))
    agreed, spawned = max(x.at - x.took_s for x in started), max(x.at for x in started)
    marks = (since, detected, stopped, agreed, spawned, first)
    return Incident(what, tuple(max(0.0, end - start) for start, end in pairwise(marks)))


async def play(job: Job) -> list[Incident]:
    """The story, in three incidents."""
    job.tell("agents A and B start, two workers each; A hosts the coordinator")
    await job.start("A", hosts=True)
    await job.start("B", hosts=False)
    await job.wait_until("4 workers had started", lambda: len(job.first_lines(0, 4)) == 4)
    job.tell("  4 workers train as round 0")
    job.tell("  " + await job.wait_training(0, QUIET_EPOCHS))

    line, victim = next(x for x in job.first_lines(0, 4) if x[0].agent == "B")
    job.tell(f"SIGKILL to a worker of agent {line.agent}: rank {victim[1]}, pid {victim[3]}")
    number, at = job.round(), time.time()
    os.kill(int(victim[3]), signal.SIGKILL)
    incidents = [await recovery(job, "worker killed", at, number, 4, "AB")]
    job.tell("  " + await job.wait_training(time.time(), QUIET_EPOCHS))

    job.tell(f"SIGKILL to the whole agent B, pid {job.agents['B'].pid}")
    number, at = job.round(), time.time()
    job.agents["B"].kill()
    incidents.append(await recovery(job, "agent killed", at, number, 2, "A"))
    job.tell("  " + await job.wait_training(time.time(), QUIET_EPOCHS))

    job.tell("agent C starts in its place")
    number, at = job.round(), time.time()
    await job.start("C", hosts=False)
    incidents.append(await recovery(job, "agent added", at, number, 4, "A"))
    return incidents


async def finish(job: Job) -> float:
    """Wait for the end; the accuracy."""
    await asyncio.gather(*job.readers)
    codes = {name: job.exit_code(name) for name in "AC"}
    if set(codes.values()) != {0}:
        raise Broken(f"the agents' exit codes should both be 0, but are {codes}")
    results = [m for x in job.lines if (m := RESULT.search(x.text))]
    if not results or float(results[-1][1]) < ACCURACY:
        told = [m[1] for m in results]
        raise Broken(f"an accuracy of {ACCURACY} or more should have been told, not {told}")
    job.tell(f"all {EPOCHS} epochs are done: both agents exited with code 0")
    return float(results[-1][1])


def left_over(run_id: str) -> list[int]:
    """Processes of the job that still live: agents, their helpers, workers. Zombies have gone."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            about = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if run_id.encode() in about:
            found.append(int(folder.name))
    return found


async def clean_up(job: Job) -> list[int]:
    """End what still runs; the processes that are left all the same."""
    running = [agent for agent in job.agents.values() if agent.returncode is None]
    for end in (Process.terminate, Process.kill):
        for agent in running:
            if agent.returncode is None:
                end(agent)
        waits = [asyncio.create_task(agent.wait()) for agent in running]
        if waits:
            await asyncio.wait(waits, timeout=EXIT_S)
    give_up_at = time.monotonic() + EXIT_S
    while (pids := left_over(job.run_id)) and time.monotonic() < give_up_at:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return pids


def table(incidents: list[Incident]) -> str:
    """How long each recovery took, by phases."""
    head = f"{'seconds':15}" + "".join(f"{name:>12}" for name in (*PHASES, "in all"))
    rows = [
        f"{x.what:15}" + "".join(f"{s:12.3f}" for s in (*x.phases, sum(x.phases)))
        for x in incidents
    ]
    return "\n".join([head, *rows])


def free_port() -> int:
    """One that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(folder: Path) -> int:
    """The whole demo; its exit code."""
    job = Job(f"digits-{secrets.token_hex(4)}", free_port(), folder / "digits.pt")
    broken, incidents, accuracy = "", list[Incident](), 0.0
    try:
        async with asyncio.timeout(LIMIT_S):
            incidents = await play(job)
            accuracy = await finish(job)
    except Broken as error:
        broken = str(error)
    except TimeoutError:
        broken = f"it was not done within {LIMIT_S} s"
    finally:
        pids = await clean_up(job)
    if not broken and pids:
        broken = f"these processes are left: {pids}"
    if broken:
        heard = [f"{x.agent}: {x.message}" for x in job.events[-10:]]
        heard += [f"{x.agent}: {x.text}" for x in job.lines[-10:]] + job.other[-20:]
        print("", *heard, f"demo: {broken}", sep="\n", file=sys.stderr)
        return 1
    job.tell("no process is left")
    print(f"\n{table(incidents)}\n\n{EXPLANATION}")
    restarts = sum(x.name == "restart" for x in job.events if x.agent == "A")
    times = "1 restart" if restarts == 1 else f"{restarts} restarts"
    print(f"\naccuracy {accuracy:.3f} after {times}, 1 lost node and 1 new one")
    return 0


def main() -> int:
    """Run the demo in a folder of its own, with a token of its own."""
    for name in [x for x in os.environ if x.startswith(("RALLYPOINT_", "PET_"))]:
        del os.environ[name]
    os.environ |= {
        "RALLYPOINT_TOKEN": secrets.token_hex(32),
        "OMP_NUM_THREADS": "1",
        "LOGLEVEL": "INFO",
    }
    try:
        with tempfile.TemporaryDirectory(prefix="rallypoint-demo-") as folder:
            return asyncio.run(run(Path(folder)))
    except KeyboardInterrupt:
        print("\ndemo: stopped; no process is left", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
