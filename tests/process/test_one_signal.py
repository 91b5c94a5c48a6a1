"""A5: each worker gets a signal once, whether a scheduler signals every process, a part of them, or
the agent alone; so a handler that saves a checkpoint is not interrupted by itself."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import pytest
from tests.harness.function_job import function_job
from tests.harness.one_agent import TELL, OneAgent, agent, eventually, free_port, started
from tests.harness.proc import is_alive, name_of, state_of

from rallypoint.process.guard import NAME

HELPERS = {NAME, "rallypoint-rly", "rallypoint-pre", "rally-store-0"}

# Each worker has a child with a handler of its own. Handlers save as slowly as for a large model.
SAVE = """
import os, signal, sys, time
def save(*_):
    tell("got", name)
    if name == "0" and "fails" in sys.argv:
        os._exit(1)
    with open(f"temporary{name}", "w") as file:
        for part in range(70):
            print(part, file=file)
            time.sleep(0.01)
    os.rename(f"temporary{name}", f"saved{name}")
    os._exit(0)
def stay():
    global name
    name = os.environ["RANK"]
    if os.fork() == 0:
        name += "-child"
    signal.signal(int(os.environ.get("NUMBER", "15")), save)
    tell("up", name)
    while True:
        time.sleep(0.05)
"""
COUNT = SAVE + "stay()\n"
PATIENT = """
from rallypoint.core import worker_signals
worker_signals.WITNESS_S = worker_signals.OWN_SIGNAL_S = 60.0
"""
"""An agent knows by time whether a scheduler has signalled all processes or a person has signalled
some. On a machine that is busy with tests a scheduler takes longer than on one with a job."""
NAMES = ["0", "0-child", "1", "1-child"]
Env = dict[str, str]


def patient_agent(
    home: Path, *options: str, program: str, arguments: Sequence[str] = (), env: Env | None = None
) -> AbstractContextManager[OneAgent]:
    """As `agent`, with `PATIENT`."""
    main, worker = home / "main.py", home / "worker.py"
    main.write_text(f"{PATIENT}from rallypoint.cli.main import main\nraise SystemExit(main())\n")
    worker.write_text(TELL + program)
    words = [sys.executable, str(main), "run", *options, str(worker), *arguments]
    return started(home, words, **(env or {}))


def agent_first(job: OneAgent) -> list[int]:
    """The agent, its helpers, the workers and their children."""
    return sorted(job.processes(), key=lambda pid: (pid != job.pid, name_of(pid) not in HELPERS))


def workers_first(job: OneAgent) -> list[int]:
    """The workers and their children, the helpers, the agent."""
    return agent_first(job)[::-1]


def helpers_last(job: OneAgent) -> list[int]:
    """The agent, the workers and their children, the helpers."""
    return sorted(agent_first(job), key=lambda pid: name_of(pid) in HELPERS)


def send(pids: Sequence[int], number: int = signal.SIGTERM) -> None:
    """One after the other, as a scheduler does. The first has had its signal before the others get
    theirs, and all have before the last. An agent that sleeps knows that its workers run."""
    for index, pid in enumerate(pids):
        if index in (0, 1, len(pids) - 1):
            eventually(lambda: not any(awaits(each, number) for each in pids), "the first signals")
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def awaits(pid: int, number: int) -> bool:
    """Whether the process lives and has yet to do what it does for a signal that was sent to it.
    When that is done it sleeps again."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        (waiting,) = re.findall(r"ShdPnd:\s*(\w+)", status)
        is_pending = int(waiting, 16) >> number - 1 & 1
        return is_alive(pid) and (bool(is_pending) or state_of(pid) != "S")
    return False


def has_saved(job: OneAgent, names: Iterable[str] = NAMES) -> None:
    """It has ended, each process was signalled once, and each has saved its checkpoint."""
    assert job.wait() == 143, job.err
    assert sorted(job.told("got")) == NAMES
    whole = "".join(f"{part}\n" for part in range(70))
    assert {name: (job.home / f"saved{name}").read_text() for name in names} == dict.fromkeys(
        names, whole
    )


@pytest.mark.parametrize("order", [agent_first, workers_first, helpers_last])
@pytest.mark.parametrize("options", [(), ("--preload=json",)], ids=["executed", "preloaded"])
def test_A5_a_scheduler_that_signals_every_process_lets_handlers_save(
    tmp_path: Path, options: tuple[str, ...], order: Callable[[OneAgent], list[int]]
) -> None:
    with patient_agent(tmp_path, "--nproc-per-node=2", *options, program=COUNT) as job:
        job.wait_told("up", 4)
        send(order(job))
        has_saved(job)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_A5_a_function_that_saves_is_signalled_once(tmp_path: Path, method: str) -> None:
    with function_job(tmp_path, SAVE + PATIENT, f"stay, method={method!r}") as job:
        job.wait_told("up", 4)
        send(agent_first(job))
        has_saved(job)


def agent_alone(job: OneAgent) -> list[int]:
    """Kubernetes, `KillMode=mixed`, a person."""
    return [job.pid]


def by_name(job: OneAgent) -> list[int]:
    """`pkill rallypoint`: the helpers are found by their names, and no worker."""
    return [pid for pid, name in job.processes().items() if "rally" in name or pid == job.pid]


def by_command_line(job: OneAgent) -> list[int]:
    """`pkill -f rallypoint`."""
    told = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.processes()}
    return [pid for pid, text in told.items() if b"rallypoint" in text]


@pytest.mark.parametrize("whom", [agent_alone, by_name, by_command_line])
def test_A5_workers_that_were_not_signalled_get_the_signal_from_their_agent(
    tmp_path: Path, whom: Callable[[OneAgent], list[int]]
) -> None:
    with agent(tmp_path, "--nproc-per-node=2", program=COUNT) as job:
        job.wait_told("up", 4)
        send(whom(job))
        has_saved(job)


def test_A5_a_signal_of_ones_choice_comes_once(tmp_path: Path) -> None:
    """As `sbatch --signal=USR1@120`."""
    option, number = "--signals-to-handle=SIGUSR1", signal.SIGUSR1
    environ = {"NUMBER": str(int(number))}
    with patient_agent(tmp_path, "--nproc-per-node=2", option, program=COUNT, env=environ) as job:
        job.wait_told("up", 4)
        send(helpers_last(job), number)
        assert job.wait() == 128 + number
        assert sorted(job.told("got")) == NAMES


def test_A5_ctrl_c_reaches_workers_by_their_agent(tmp_path: Path) -> None:
    """The terminal signals the group of the agent, in which no worker and no helper is."""
    environ = {"NUMBER": str(int(signal.SIGINT))}
    with agent(tmp_path, "--nproc-per-node=2", program=COUNT, env=environ) as job:
        job.wait_told("up", 4)
        group = os.getpgid(job.pid)
        send([pid for pid in job.processes() if os.getpgid(pid) == group], signal.SIGINT)
        assert job.wait() == 130
        assert sorted(job.told("got")) == NAMES


def test_A5_an_agent_whose_guard_was_killed_signals_its_workers(tmp_path: Path) -> None:
    with agent(tmp_path, "--nproc-per-node=2", program=COUNT) as job:
        job.wait_told("up", 4)
        os.kill(job.named(NAME)[0], signal.SIGKILL)
        job.wait_said("started another")
        send([job.pid])
        has_saved(job)


@pytest.mark.parametrize(
    ("start", "order"), [(patient_agent, agent_first), (agent, agent_alone)], ids=["all", "agent"]
)
def test_A5_a_drain_signal_is_not_followed_by_the_same_one(
    tmp_path: Path,
    start: Callable[..., AbstractContextManager[OneAgent]],
    order: Callable[[OneAgent], list[int]],
) -> None:
    """Rank 0 fails, so the others have no time for a checkpoint: they are stopped at once."""
    option = "--drain-signal=SIGTERM"
    with start(tmp_path, "--nproc-per-node=2", option, program=COUNT, arguments=["fails"]) as job:
        job.wait_told("up", 4)
        send(order(job))
        has_saved(job, NAMES[1:])


@pytest.mark.parametrize("first", ["a", "b"])
def test_A5_the_next_node_may_be_signalled_a_moment_later(tmp_path: Path, first: str) -> None:
    """Its agent hears that the first node leaves, or that the job ends, before its own signal."""
    where = "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job", "--insecure"
    jobs: dict[str, OneAgent] = {}
    with ExitStack() as stack:
        for name in "ab":
            (tmp_path / name).mkdir()
            hosts = f"--rdzv-conf=is_host={name == 'a':d}"
            node = patient_agent(tmp_path / name, *where, hosts, f"--node-id={name}", program=COUNT)
            jobs[name] = stack.enter_context(node)
        for job in jobs.values():
            job.wait_told("up", 2)
        orders = [agent_first(jobs[name]) for name in sorted(jobs, reverse=first == "b")]
        for order in orders:
            send(order)
        for job in jobs.values():
            assert job.wait() == 143, job.err
        assert sorted(name for job in jobs.values() for name in job.told("got")) == NAMES


QUICK = """
import os, signal, time
def save(*_):
    open("saved" + os.environ["RANK"], "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
tell("up", os.environ["RANK"])
while True:
    time.sleep(0.05)
"""


def test_A5_workers_that_save_and_exit_with_0_before_their_agent_is_signalled_are_no_success(
    tmp_path: Path,
) -> None:
    with patient_agent(tmp_path, "--nproc-per-node=2", program=QUICK) as job:
        job.wait_told("up", 2)
        guard = job.named(NAME)[0]
        workers = [pid for pid in job.processes() if pid != job.pid and name_of(pid) not in HELPERS]
        eventually(lambda: state_of(job.pid) == "S", "the agent to know that its workers run")
        send([guard, *workers])
        for rank in range(2):
            eventually((job.home / f"saved{rank}").exists, f"the checkpoint of rank {rank}")
        eventually(lambda: not set(workers) & job.processes().keys(), "the end of the workers")
        send([job.pid])
        assert job.wait() == 143, job.err
