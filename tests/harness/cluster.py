"""A small cluster on loopback: real agents, their workers, and a look at what must not remain.

    with Cluster(tmp_path, nnodes=2) as cluster:
        a, b = cluster.running("a", "b")
        b.kill()
        a.wait_event("round_ended", "node b was lost")
        cluster.order("sys.exit(0)")
        assert a.wait_exit() == 0

Every node has a name and the same home directory, hence the same token. Workers tell their
environment in one line of JSON on stdout, then wait for orders: files of Python text. On leaving,
whatever still runs is killed; every process that descends from the cluster must then be gone.
"""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from tests.harness.limits import load, patience
from tests.harness.prepared import processes
from tests.harness.proc import is_alive

LIMIT_S = 60.0
LAZINESS = 3
"""How many times as long as a condition takes to find out it is left alone."""
MARK = "RALLYPOINT_TEST_CLUSTER"
Option = str | float | bool | None

WORKER = """\
import _signal as signal, os, sys, time  # The modules that Python itself is made of start fastest.
from _json import encode_basestring_ascii as quoted
me = [os.environ[n] for n in ("RALLYPOINT_ROUND", "RALLYPOINT_NODE_ID", "RANK")]
def tell(**more):
    env = ", ".join(f"{quoted(name)}: {quoted(text)}" for name, text in os.environ.items())
    line = f'{{"pid": {os.getpid()}, "env": {{{env}}}'
    for name, value in more.items():
        import json
        line += f", {quoted(name)}: {json.dumps(value)}"
    os.write(1, (line + "}\\n").encode())
def fork(body):
    if os.fork() == 0:
        exec(body)
        while True: time.sleep(1)
def obey():
    for name in sorted(os.listdir(orders)):
        if name in done or name.startswith("."): continue
        to = name.split(",")[1:]
        done.add(name)
        if all(want in ("_", mine) for want, mine in zip(to, me)):
            with open(os.path.join(orders, name)) as file: exec(file.read(), globals())
orders, done = sys.argv[1], set()
obey()
tell()
while True:
    obey()
    time.sleep(0.02)
"""

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], what: str, limit_s: float = LIMIT_S) -> _T:
    """The first true answer of `condition`; AssertionError when none came."""
    began_at = asked_at = time.monotonic()
    while not (found := condition()):
        now = time.monotonic()
        assert now - began_at < patience(limit_s), f"waited {now - began_at:.0f} s for {what}"
        time.sleep(max(0.01, LAZINESS * (now - asked_at)))
        asked_at = time.monotonic()
    return found


def free_port() -> int:
    """A port that nothing listens on, from below those that the kernel gives to clients."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass(frozen=True)
class Event:
    """One of an agent's lines; `fields` has everything else that it said."""

    name: str
    message: str
    node: str
    round: int | None
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Worker:
    """A worker as it presented itself."""

    pid: int
    env: Mapping[str, str]

    @property
    def rank(self) -> int:
        return int(self.env["RANK"])

    @property
    def round(self) -> int:
        return int(self.env["RALLYPOINT_ROUND"])

    @property
    def node(self) -> str:
        return self.env["RALLYPOINT_NODE_ID"]

    @property
    def store(self) -> str:
        return f"{self.env['MASTER_ADDR']}:{self.env['MASTER_PORT']}"

    @property
    def is_alive(self) -> bool:
        return is_alive(self.pid)


class AgentProcess:
    """One `rallypoint run`. What it and its workers write goes to files."""

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> None:
        self.name, self.argv = name, list(argv)
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = processes.start(
                self.argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self.pid = self.process.pid

    @property
    def stdout_lines(self) -> list[str]:
        return _whole_lines(self._out)

    @property
    def stderr_lines(self) -> list[str]:
        return _whole_lines(self._err)

    @property
    def events(self) -> list[Event]:
        records = [parsed(line) for line in self.stderr_lines if line.startswith('{"')]
        return [
            Event(r["event"], r.get("message", ""), r.get("node", ""), r.get("round"), r)
            for r in records
        ]

    @property
    def lines(self) -> list[str]:
        """What a person would read, without the events: errors before a job and after it."""
        return [line for line in self.stderr_lines if not line.startswith('{"')]

    @property
    def verdict(self) -> Mapping[str, Any]:
        return next(e.fields for e in reversed(self.events) if e.name == "verdict")

    @property
    def said(self) -> str:
        """All messages, one per line."""
        return "\n".join(event.message for event in self.events)

    def workers(self, round: int | None = None) -> list[Worker]:
        told = [parsed(line) for line in self.stdout_lines if line.startswith('{"pid"')]
        found = [Worker(t["pid"], t["env"]) for t in told]
        return [worker for worker in found if round in (None, worker.round)]

    def wait_event(self, name: str, text: str = "", *, round: int | None = None) -> Event:
        """The first event of this name (and text, and round), which may have come already."""

        def find() -> Event | None:
            gone = self.process.poll() is not None
            found = (
                e
                for e in self.events
                if e.name == name and text in e.message and round in (None, e.round)
            )
            event = next(found, None)
            assert event or not gone, f"{self.name} ended without {name} {text!r}"
            return event

        event = wait_until(find, f"{name} {text!r} (round {round}) of {self.name}")
        assert event is not None
        return event

    def wait_exit(self) -> int:
        try:
            return self.process.wait(patience(LIMIT_S))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {LIMIT_S:g} s") from None

    def wait_only_line(self, code: int) -> str:
        """The line of an agent that ends with this exit code and has said nothing else."""
        assert self.wait_exit() == code
        (line,) = self.lines
        return line

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.process.wait()

    def signal_again(self, number: int) -> None:
        """Until it counts as another: an equal signal within a second is the same one. Not once
        more: an agent that has ended its job handles no signals."""
        deadline = time.monotonic() + patience(LIMIT_S)
        while self.process.poll() is None and time.monotonic() < deadline:
            if not any(" again: " in event.message for event in self.events):
                self.signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


@lru_cache(4096)
def parsed(line: str) -> dict[str, Any]:
    """A line of JSON, which is read again whenever its file is."""
    found: dict[str, Any] = json.loads(line)
    return found


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text(errors="replace")
    return text[: text.rfind("\n") + 1].splitlines()


class Cluster:
    """Options are those of `rallypoint run`: `max_restarts=2` is `--max-restarts 2`."""

    python = sys.executable
    """The interpreter of its agents."""

    def __init__(self, folder: Path, **options: Option) -> None:
        self.folder = folder
        self.port = free_port()
        self.home, self.temp, self._orders = folder / "home", folder / "temp", folder / "orders"
        for made in (self.home, self.temp, self._orders):
            made.mkdir()
        self.script = folder / "worker.py"
        self.script.write_text(WORKER)
        self.env: dict[str, str] = {}
        self.all_agents: list[AgentProcess] = []
        self._orders_given = 0
        self._mark = f"{folder}.{os.getpid()}"
        self.options: dict[str, Option] = {
            "rdzv_endpoint": f"127.0.0.1:{self.port}",
            "rdzv_id": "job",
            "nnodes": "1:2",
            "lease": 5,
            "join_settle": 0,
            "min_growth_interval": 0,
            "rdzv_conf": f"last_call_timeout={0.8 * load():.1f}",  # two agents begin at once
            "log_format": "json",
            **options,
        }

    def agent(
        self,
        name: str,
        nproc: int = 1,
        *,
        script: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        hosts: bool | None = None,
        **options: Option,
    ) -> AgentProcess:
        """Start a node. An option that is None is left out; True is a switch."""
        words = [*prefix, self.python, "-m", "rallypoint", "run"]
        own: dict[str, Option] = {"node_id": name, "nproc_per_node": nproc}
        if hosts is not None:
            own["rdzv_conf"] = f"{self.options['rdzv_conf']},is_host={hosts:d}"
        for option, value in (self.options | own | options).items():
            if value is not None and value is not False:
                words.append("--" + option.replace("_", "-"))
                words += [] if value is True else [str(value)]
        words += script or [str(self.script), str(self._orders)]
        told = [a.name for a in self.all_agents].count(name)
        file_name = f"{name}.{told + 1}" if told else name
        agent = AgentProcess(file_name, words, self.environ() | dict(env or {}), self.folder)
        agent.name = name
        self.all_agents.append(agent)
        return agent

    def agents(self, *names: str, hosts: bool | None = True, **options: Any) -> list[AgentProcess]:
        """Start nodes at once, which share the first round if none comes later than the last call.

        The first hosts the coordinator, or, with `hosts=None`, whichever can.
        """
        return [self.agent(name, hosts=hosts and name == names[0], **options) for name in names]

    def running(
        self, *names: str, nproc: int = 1, round: int | None = 0, **options: Any
    ) -> list[AgentProcess]:
        """Start the first nodes at once, as `agents` does, and wait until their workers run."""
        started = self.agents(*names, nproc=nproc, **options)
        self.wait_workers(len(names) * nproc, round=round)
        return started

    def serve(self, *options: str, port: int = 0, prefix: Sequence[str] = ()) -> AgentProcess:
        """A coordinator of its own at the endpoint (or this port), up when this returns."""
        words = [*prefix, self.python, "-m", "rallypoint", "serve", "--host", "127.0.0.1"]
        words += ["--port", str(port or self.port), "--log-format", "json", *options]
        told = sum(agent.name.startswith("serve") for agent in self.all_agents)
        name = f"serve.{told + 1}" if told else "serve"
        server = AgentProcess(name, words, self.environ(), self.folder)
        self.all_agents.append(server)
        wait_until(lambda: is_listening(port or self.port), "the coordinator to listen")
        return server

    def environ(self) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("RALLYPOINT_", "PET_"))}
        mine.pop("XDG_CONFIG_HOME", None)
        mine.pop("XDG_STATE_HOME", None)
        mine |= {"HOME": str(self.home), "TMPDIR": str(self.temp), MARK: self._mark}
        return mine | self.env

    def order(
        self, text: str, *, round: int | str = "_", node: str = "_", rank: int | str = "_"
    ) -> None:
        """Have workers, also of later rounds, run a line of Python."""
        self._orders_given += 1
        name = f"{self._orders_given:03},{round},{node},{rank}"
        draft = self._orders / f".{name}"
        draft.write_text(text)
        draft.rename(self._orders / name)

    def make_token(self) -> str:
        """What the first node does; for nodes that never meet one."""
        text = os.urandom(32).hex()
        path = self.home / ".config" / "rallypoint" / "token"
        path.parent.mkdir(parents=True)
        path.touch(0o600)
        path.write_text(text)
        return text

    def end_well(self, *agents: AgentProcess) -> None:
        """Every worker exits with code 0, and so do these agents."""
        self.order("sys.exit(0)")
        assert [agent.wait_exit() for agent in agents] == [0] * len(agents)

    def workers(self, round: int | None = None) -> list[Worker]:
        """All that have presented themselves, in rank order."""
        found = [worker for agent in self.all_agents for worker in agent.workers(round)]
        return sorted(found, key=lambda worker: (worker.round, worker.rank))

    def wait_workers(self, count: int, *, round: int | None = None) -> list[Worker]:
        """Exactly so many workers of the round (default: the newest that is complete)."""

        def find() -> list[Worker]:
            workers = self.workers(round)
            newest = workers[-1].round if workers else 0
            found = [worker for worker in workers if worker.round == newest]
            # Without a round the one that is meant may not have begun.
            told = f"{len(found)} workers in round {newest}, not {count}"
            assert round is None or len(found) <= count, told
            runs = any(agent.process.poll() is None for agent in self.all_agents)
            assert runs or len(found) == count, "every agent has ended"
            return found if len(found) == count else []

        return wait_until(find, f"{count} workers in round {round}")

    def processes(self) -> dict[int, str]:
        """Every process that descends from the cluster and runs: pid -> command line. Agents show
        their environment to root only, but have the cluster's folder in their command lines; their
        helpers are found by root alone."""
        mark, found = f"{MARK}={self._mark}".encode(), {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    try:
                        ours = mark in (folder / "environ").read_bytes().split(b"\0")
                    except PermissionError:
                        ours = os.fsencode(self.folder) in command
                    if ours:
                        found[int(folder.name)] = command.decode(errors="replace")
                except OSError:
                    continue
        return found

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        for agent in self.all_agents:
            agent.resume()
            agent.kill()
            print(f"--- {agent.name}: exit code {agent.process.returncode}", *agent.argv)
            print(*agent.stderr_lines, sep="\n")
        try:
            wait_until(lambda: not self.processes(), "the last process to go", 20.0)
        except AssertionError:
            left = self.processes()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            if error is None:
                raise AssertionError(f"processes were left behind: {left}") from None
        if error is None:
            self._assert_clean()

    def _assert_clean(self) -> None:
        assert not is_listening(self.port), f"something still listens on {self.port}"
        if all(agent.process.returncode == 0 for agent in self.all_agents):
            assert list(self.temp.iterdir()) == []
        for agent in self.all_agents:
            ours = [line for line in agent.lines if 'File "' in line and "/rallypoint/" in line]
            assert not ours, f"a traceback of {agent.name}: {ours}"


def is_listening(port: int) -> bool:
    """Whether a TCP socket of this machine listens on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def at_a_terminal(cluster: Cluster, line: list[str], answer: bytes) -> tuple[int, str]:
    """The exit code of a command whose question gets this answer, and what a person sees."""
    ours, theirs = pty.openpty()
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    asking = processes.start(line, env=cluster.environ(), **ends)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
            if b"[y/N] " in data:
                os.write(ours, answer)
    except OSError:
        pass  # The other end has been closed.
    os.close(ours)
    return asking.wait(timeout=60), seen.decode()
