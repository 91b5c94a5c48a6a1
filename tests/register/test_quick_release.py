"""L6: the guard of an agent that led a job marks the job's record. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.harness import hanging_directory
from tests.harness.limits import patience
from tests.harness.narrowed import known
from tests.harness.one_agent import eventually
from tests.harness.proc import is_alive, name_of
from tests.harness.register_contract import state_of, stored

from rallypoint.core.job_state import new_job
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.record import Leader, LeadRecord, Process, record_of
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.record import decode, encode

TOKEN = "a token that is shown to nobody"
LEADER = Leader(("10.0.0.1:29400",), Process("boot", 1, 10), has_workers=True)
JOB = record_of(new_job(SharedSettings("job", 1, 2), 5))
LED = LeadRecord(1, Epoch(3, 7), LEADER, 12, JOB)
MARKED = replace(LED, beat=13, is_vacant=True, is_dead=True)
ENDS_S = patience(15.0)
"""The guard kills for 1 s, and releases for 3 s; the rest is for a busy machine."""

# What an agent has and does that leads a job. Its orders: "forget" the notice, or "stop" the guard.
AGENT = """
import os, signal, sys
from rallypoint.agent.helper_processes import HelperProcesses
from rallypoint.agent.worker_source import WorkerSource
from rallypoint.config import RegisterConfig, WorkerConfig
from rallypoint.core.model import Epoch
from rallypoint.process.spawn import WorkerCommand, spawn_workers
from rallypoint.wire.death_notice import encode_release
directory, temporary, token, *argv = sys.argv[1:]
token = open(token, "rb").read()
helpers = HelperProcesses([temporary], WorkerSource(WorkerConfig(argv=("true",))), "")
helpers.leave_notice(encode_release(RegisterConfig("file", directory), "job", token, Epoch(3, 7)))
spawn_workers([WorkerCommand(argv, dict(os.environ))], helpers.guard)
print("agent", os.getpid(), "guard", helpers.guard.pid, flush=True)
for order in sys.stdin:
    if order == "forget\\n":
        helpers.leave_notice(b"")
    elif order == "stop\\n":
        helpers.guard.stop()
    print(order, end="", flush=True)
signal.pause()
"""
# With a child in a group apart, both of which ignore what can be ignored.
WORKER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
print("worker", os.getpid(), flush=True)
time.sleep(600)
"""
STUCK_WORKER = """
import os, sys
print("worker", os.getpid(), flush=True)
os.stat(sys.argv[1])
"""


class LeadingAgent:
    """A process like an agent that leads, with its guard and workers."""

    def __init__(self, process: subprocess.Popen[str], lines: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._said = process.stdin, process.stdout
        words = " ".join(self._said.readline() for _ in range(lines)).split()
        told = list(zip(words[::2], map(int, words[1::2]), strict=True))
        self.workers = [pid for role, pid in told if role == "worker"]
        self.pid, self.guard = dict(told)["agent"], dict(told)["guard"]

    def order(self, order: str) -> None:
        self._orders.write(f"{order}\n")
        self._orders.flush()
        assert self._said.readline() == f"{order}\n"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait_guard(self) -> None:
        eventually(lambda: not is_alive(self.guard), "the end of the guard", ENDS_S)


class Node:
    """Where an agent runs: the directory of its job's register, and of its temporary files."""

    def __init__(self, folder: Path) -> None:
        self.jobs, self.temporary = folder / "jobs", folder / "temporary"
        self.jobs.mkdir()
        self.temporary.mkdir()
        (self.temporary / "file").touch()
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self.store(LED)

    def store(self, record: LeadRecord) -> None:
        stored(DirectoryBackend(str(self.jobs), "job", TOKEN.encode()), encode(record))

    @property
    def record(self) -> LeadRecord:
        register = DirectoryBackend(str(self.jobs), "job", TOKEN.encode())
        return decode(known(state_of(register)))

    @contextmanager
    def agent(
        self,
        worker: Sequence[str] = (WORKER,),
        directory: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> Iterator[LeadingAgent]:
        """`worker`: its program and arguments. `directory`: of the register, another one than the
        job's. `prefix`: what to put before the command."""
        arguments = [str(directory or self.jobs), str(self.temporary), str(self._token)]
        arguments += [sys.executable, "-S", "-E", "-c", *worker]
        with subprocess.Popen(
            [*prefix, sys.executable, "-c", AGENT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            leading = LeadingAgent(process, 3 if worker == (WORKER,) else 2)
            try:
                yield leading
            finally:
                leading.kill()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_L6_the_record_of_a_killed_leader_is_marked_when_its_workers_are_dead(node: Node) -> None:
    with node.agent() as agent:
        assert len(agent.workers) == 2
        agent.kill()
        eventually(lambda: node.record.is_vacant, "the mark", ENDS_S)
        assert not any(map(is_alive, agent.workers))
        agent.wait_guard()
    assert node.record == MARKED
    assert not node.temporary.exists()


def test_L6_a_worker_that_survives_leaves_the_record_as_it_is(node: Node, tmp_path: Path) -> None:
    """Until it is dead its node may not be replaced, so others wait for its lease."""
    hanging = tmp_path / "hanging"
    prefix = hanging_directory.prefix(hanging)
    with node.agent((STUCK_WORKER, str(hanging / "file")), prefix=prefix) as agent:
        [worker] = agent.workers
        eventually(
            lambda: hanging_directory.was_asked(hanging), "a worker that waits for the file system"
        )
        agent.kill()
        agent.wait_guard()
        assert state(worker) == "D"
    assert node.record == LED
    assert not node.temporary.exists()


def test_L6_an_agent_that_leads_no_more_is_not_marked(node: Node) -> None:
    with node.agent() as agent:
        agent.order("forget")
        agent.kill()
        agent.wait_guard()
    assert node.record == LED


def test_L6_an_agent_that_lives_is_not_marked_when_its_guard_ends(node: Node) -> None:
    with node.agent() as agent:
        agent.order("stop")
        assert not is_alive(agent.guard)
        assert is_alive(agent.pid)
        assert not any(map(is_alive, agent.workers))
        assert node.record == LED


def test_L6_a_directory_that_is_gone_holds_the_guard_up_for_a_moment_only(node: Node) -> None:
    with node.agent(directory=node.jobs / "gone") as agent:
        agent.kill()
        agent.wait_guard()
    assert not node.temporary.exists()
    assert node.record == LED


def test_L6_a_directory_that_hangs_holds_the_guard_up_for_a_moment_only(
    node: Node, tmp_path: Path
) -> None:
    hanging = tmp_path / "hanging"
    prefix = hanging_directory.prefix(hanging)
    with node.agent(directory=hanging / "jobs", prefix=prefix) as agent:
        agent.kill()
        eventually(lambda: releasing(agent.guard), "a release under way")
        [helper] = releasing(agent.guard)
        for shown in ("cmdline", "environ"):
            assert TOKEN.encode() not in Path(f"/proc/{helper}/{shown}").read_bytes()
        agent.wait_guard()
        assert not node.temporary.exists()
        eventually(lambda: state(helper) == "D", "a release that can't even be killed")
    eventually(lambda: not is_alive(helper), "the end of the release")


def releasing(guard: int) -> list[int]:
    """The process that the guard has started for it."""
    try:
        children = Path(f"/proc/{guard}/task/{guard}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in children.split() if name_of(int(pid)) == "rallypoint-rel"]


def state(pid: int) -> str:
    """One letter, as `ps` shows it: D within a system call that no signal ends."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
