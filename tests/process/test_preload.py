"""Workers that are forked from a process which has imported what takes long (`--preload`)."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from tests.harness.one_agent import OneAgent, agent, ended, eventually, free_port
from tests.harness.proc import children_of, is_alive, parent_of, state_of

from rallypoint.errors import Shortage
from rallypoint.process.guard import Guard
from rallypoint.process.prepared.handle import (
    Preparation,
    PreparedProcess,
    adopt_orphans,
    release_orphans,
)
from rallypoint.process.spawn import WorkerCommand, WorkerForkError

SLOW = """
import os, sys
os.write(2, b"slow is imported\\n")
PID, SEEN = os.getpid(), os.environ.get("LOCAL_RANK")
ARGV = list(sys.argv)
"""
STAY = """
import os, signal, subprocess, time
import slow
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
tell("up", os.getpid(), os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"])
time.sleep(600)
"""
LATE = """
import time
time.sleep(1.5)  # A large package.
raise ValueError("after all")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a module beside the script."""
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def prepared_pid(running: OneAgent) -> int:
    """The process that workers are forked from; one that forks them for it leads no session."""
    [pid] = [pid for pid in running.named("rallypoint-pre") if os.getsid(pid) == pid]
    return pid


def assert_cancelled(job: OneAgent, sends: int = 1) -> None:
    """Send SIGINT to the agent: once to stop its workers, twice to end what ignores that."""
    for _ in range(sends):
        job.send(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT


@pytest.mark.executed
def test_modules_are_imported_once_and_before_any_worker(home: Path) -> None:
    program = """
import os, slow
assert slow.PID != os.getpid()
tell("rank", os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], slow.SEEN)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise SystemExit(7)
"""
    options = "--nproc-per-node=3", "--max-restarts=1", "--preload=slow"
    job = ended(agent(home, *options, program=program), 0)
    assert job.err.count("slow is imported") == 1
    assert sorted(job.told("rank"))[3:] == ["1 1 None", "2 0 None", "2 1 None"]


def test_a_worker_has_what_an_execd_one_has(home: Path) -> None:
    program = """
import json, os, signal, sys, resource
OTHER = "SHM", "PORT", "INCARNATION", "RUN_ID", "TEST", "FILE"  # In each job another.
names = [name for name in os.environ if not name.endswith(OTHER)]
print(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv[1:], "file": __file__, "path": sys.path,
    "name": __name__,
    "environ": sorted((n, os.environ[n]) for n in names),
    "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) < 20),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "buffered": sys.stdout.line_buffering or not sys.stdout.write_through,
    "hooks": sys.excepthook is sys.__excepthook__ or "ours",
}))
"""
    said = []
    for options in ((), ("--preload=json",)):
        under = "bash", "-c", 'ulimit -S -n 600; exec "$@"', "bash"
        words = "-x", "${local_rank}"
        env = {"PYTHONPATH": str(home / "lib"), "PYTHONWARNINGS": "error::UserWarning"}
        job = ended(
            agent(home, *options, program=program, arguments=words, env=env, under=under), 0
        )
        said.append(json.loads(job.out))
    by_exec, by_fork = said
    assert by_exec.pop("hooks") is True
    assert by_fork.pop("hooks") in (True, "ours")
    assert by_fork == by_exec


@pytest.mark.parametrize("how", [("-m", "thing"), ("--run-path", "thing.py"), ("thing.py",)])
def test_scripts_modules_and_paths_can_be_preloaded(how: tuple[str, ...], home: Path) -> None:
    (home / "thing.py").write_text("import slow, sys\nprint(__name__, slow.SEEN, sys.argv[1:])\n")
    job = ended(agent(home, "--preload", "slow", *how, "a", "${local_rank}"), 0)
    assert job.out == "__main__ None ['a', '0']\n"


@pytest.mark.parametrize("module", ["package", "json.none", "none.at.all"])
def test_a_module_that_is_not_found_is_one_line_as_from_python(module: str, home: Path) -> None:
    (home / "package").mkdir()
    (home / "package" / "__init__.py").touch()
    said = []
    for preload in (("--preload", "slow"), ()):
        job = ended(agent(home, *preload, "-m", module), 1)
        said += [[line for line in job.err.splitlines() if line.startswith(sys.executable)]]
        assert "Traceback" not in job.err
    assert len(said[0]) == 1
    assert said[0] == said[1]


@pytest.mark.parametrize("module", ["broken", "package.inner"])
def test_a_module_that_is_found_has_its_own_traceback(module: str, home: Path) -> None:
    (home / "package").mkdir()
    for name in ("broken.py", "package/__init__.py"):
        (home / name).write_text("import not_there\n")
    job = ended(agent(home, "--preload", "slow", "-m", module), 1)
    assert "ModuleNotFoundError: No module named 'not_there'" in job.err
    assert "Traceback" in job.err


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_run_path_has_a_start_method(method: str, home: Path) -> None:
    (home / "thing.py").write_text("import os, sys\nprint(sys.argv, os.environ['RANK'])\n")
    job = ended(agent(home, f"--start-method={method}", "--run-path", "thing.py", "a"), 0)
    assert job.out == "['thing.py', 'a'] 0\n"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise SystemExit(4)", (4, None), "exited with code 4"),
        ("sys.exit('no data here')", (1, None), "no data here"),
        ("os._exit(3)", (3, None), "exited with code 3"),
        ("1 / 0", (1, None), "ZeroDivisionError: division by zero"),
        ("os.kill(os.getpid(), signal.SIGINT)", (None, "SIGINT"), "KeyboardInterrupt"),
        ("os.abort()", (None, "SIGABRT"), "SIGABRT"),
        ("import atexit; atexit.register(tell, 'bye'); sys.exit(9)", (9, None), "code 9"),
    ],
)
def test_A7_a_forked_worker_ends_as_an_execd_one(
    body: str, code: tuple[int | None, str | None], said: str, home: Path
) -> None:
    ends = []
    for options in ((), ("--preload=slow",)):
        program = f"import os, signal, sys\ndef main():\n    {body}\nmain()\n"
        job = ended(agent(home, *options, "--json-summary=end.json", program=program), 1)
        cause = json.loads((home / "end.json").read_text())["cause"]
        assert (cause["exit_code"], cause["signal"]) == code
        assert said in job.err
        told = [line for line in [*cause["detail"], *job.err.splitlines()] if "  File" in line]
        if "Fatal Python error" in job.err:
            told = [line for line in told if "worker.py" in line]  # It shows every frame.
        ends.append((cause["message"], job.out, told))
    assert ends[0] == ends[1]


def test_A6_nothing_is_left_of_a_killed_agent(home: Path) -> None:
    options = "--nproc-per-node=2", "--preload=slow"
    with agent(home, *options, program=STAY) as job:
        job.wait_told("up", 2)
        # The agent, guard, relay, prepared process, and two of each worker: one of these
        # may be between its fork and its exec, where /proc shows no environment.
        eventually(lambda: len(job.processes()) == 8, "all of the job to be seen")
        job.kill()


def test_A6_nothing_is_left_of_an_agent_that_is_killed_while_it_prepares(home: Path) -> None:
    (home / "slow.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    with agent(home, "--preload=slow", program="") as job:
        eventually(lambda: "begun" in job.out, "the import has begun")
        job.kill()


def test_A5_a_signal_while_it_prepares_ends_the_agent(home: Path) -> None:
    (home / "slow.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    with agent(home, "--preload=slow", program="") as job:
        eventually(lambda: "begun" in job.out, "the import has begun")
        job.send(signal.SIGTERM)
        # The agent may not have its handlers yet.
        assert job.wait() in (128 + signal.SIGTERM, -signal.SIGTERM), job.err


def test_a_killed_prepared_process_is_replaced_and_its_workers_live_on(home: Path) -> None:
    options = "--nproc-per-node=2", "--preload=slow", "--max-restarts=1", "--restart-grace=0"
    with agent(home, *options, program=STAY) as job:
        workers = [int(line.split()[0]) for line in job.wait_told("up", 2)]
        first = prepared_pid(job)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: job.err.count("slow is imported") == 2, "another is prepared")
        assert all(map(is_alive, workers))
        assert not is_alive(first)
        assert prepared_pid(job) != first
        os.kill(workers[0], signal.SIGKILL)
        lines = job.wait_told("up", 4)[2:]
        assert sorted(line.split()[1:] for line in lines) == [["0", "1"], ["1", "1"]]
        assert not any(map(is_alive, workers))
        assert_cancelled(job, sends=2)


def test_a_prepared_process_that_hangs_is_replaced(home: Path) -> None:
    with agent(home, "--preload=slow", "--max-restarts=1", program=STAY) as job:
        worker = int(job.wait_told("up")[0].split()[0])
        first = prepared_pid(job)
        os.kill(first, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        assert job.wait_told("up", 2)[1].split()[1:] == ["0", "1"]
        assert not is_alive(first)
        assert_cancelled(job, sends=2)


def test_a_person_is_told_why_nothing_starts(home: Path) -> None:
    (home / "slow.py").write_text("import time\ntime.sleep(600)\n")
    with agent(home, "--preload=slow,json", program="") as job:
        job.wait_said("still importing slow, json: the workers start after that")
        assert_cancelled(job)


def test_it_survives_what_a_terminal_or_a_scheduler_sends_to_everybody(home: Path) -> None:
    with agent(home, "--preload=slow", "--max-restarts=1", program=STAY) as job:
        worker = int(job.wait_told("up")[0].split()[0])
        prepared = prepared_pid(job)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(prepared, number)
        os.kill(worker, signal.SIGKILL)
        job.wait_told("up", 2)
        assert is_alive(prepared)
        assert prepared_pid(job) == prepared
        job.kill()


def test_W15_the_number_of_a_forked_worker_stays_its_own_until_its_children_are_gone(
    home: Path,
) -> None:
    program = """
import os, subprocess, sys, time
if os.environ["RANK"] == "0":
    tell("child", subprocess.Popen(["sleep", "600"]).pid)
    tell("left", os.getpid())
    sys.exit(0)
tell("up", os.getpid())
time.sleep(600)
"""
    options = "--nproc-per-node=2", "--preload=slow", "--shutdown-timeout=1"
    with agent(home, *options, program=program) as job:
        left, child = int(job.wait_told("left")[0]), int(job.wait_told("child")[0])
        eventually(lambda: state_of(left) == "Z", "a zombie")
        assert parent_of(left) == job.pid
        assert_cancelled(job)
        assert not is_alive(child)
        assert not state_of(left)


def test_a_node_that_cannot_prepare_starts_no_worker_anywhere(home: Path) -> None:
    meet = f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=x", "--insecure"
    options = "--nnodes=2", *meet, "--rdzv-conf=join_timeout=2"
    other = home / "other"
    other.mkdir()
    (other / "late.py").write_text(LATE)
    program = "tell('up')"
    with (
        agent(home, *options, "--preload=slow", program=program) as good,
        agent(other, *options, "--preload=late", program=program) as bad,
    ):
        bad.wait_said("round 0: node")
        assert bad.wait() == 2
        assert good.wait() == 75, good.err
        assert good.out + bad.out == ""


def test_orphans_of_workers_are_reaped(home: Path) -> None:
    program = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
tell("up", os.getpid())
time.sleep(600)
"""
    with agent(home, "--preload=slow", program=program) as job:
        job.wait_told("up")
        eventually(lambda: len(children_of(job.pid)) == 4, "only those that live are left")
        assert_cancelled(job)


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("nosuch", "", "ModuleNotFoundError: No module named 'nosuch'): install it for "),
        ("bad", "raise ValueError('not\\ntoday')", "can't be imported (ValueError: not): "),
        ("bad", "raise SystemExit(3)", "can't be imported (SystemExit: 3): "),
        (
            "bad",
            "from threading import *\nThread(target=Event().wait, name='pump', daemon=1).start()",
            "it has started a Python thread (pump), ",
        ),
        (
            "torch",
            "class cuda:\n    is_initialized = staticmethod(lambda: True)",
            "it has initialised CUDA, which can't be used after a fork: ",
        ),
        (
            "bad",
            "import _thread, threading\n_thread.start_new_thread(threading.Event().wait, ())",
            "it has started a Python thread (a thread without a name), ",
        ),
    ],
)
def test_what_cannot_be_preloaded_is_one_line(
    module: str, text: str, said: str, home: Path
) -> None:
    if text:
        (home / f"{module}.py").write_text(text)
    job = ended(agent(home, f"--preload=json,{module}", program="tell('up')"), 2)
    lines = job.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"rallypoint: --preload {module}: ")
    assert said in lines[0]
    assert job.out == ""


def test_native_threads_are_named_in_a_warning(home: Path) -> None:
    (home / "pool.py").write_text(
        "import ctypes\n"
        "START = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)\n"
        "lib = ctypes.CDLL(None)\n"
        "thread = ctypes.c_ulong()\n"
        "pause = ctypes.cast(lib.pause, ctypes.c_void_p)\n"
        "assert lib.pthread_create(ctypes.byref(thread), None, pause, None) == 0\n"
    )
    job = ended(agent(home, "--preload=json,pool", program="import pool\ntell('up')"), 0)
    assert job.told("up") == [""] or job.out == "up\n"
    assert "--preload pool: it has started 1 native threads" in job.err


def test_modules_may_change_signals_and_directory_and_fork(home: Path) -> None:
    (home / "bad.py").write_text(
        "import os, signal\n"
        "os.chdir('/')\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "os.fork()\n"
    )
    program = "import os\ntell('up', os.getcwd(), os.path.abspath(__file__))\n"
    job = ended(agent(home, "--preload=bad", program=program), 0)
    assert job.told("up") == [f"{home} {home / 'worker.py'}"]
    assert "was lost" not in job.err


def test_any_number_of_workers_can_be_forked_however_slowly(home: Path) -> None:
    (home / "slow.py").write_text(
        "import os, time\nos.register_at_fork(before=lambda: time.sleep(0.4))\n"
    )
    job = ended(agent(home, "--preload=slow", "--nproc-per-node=20", program="tell('up')"), 0)
    assert "was lost" not in job.err


@pytest.mark.parametrize(
    "body",
    [
        "os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGKILL))",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
    ids=["when it forks", "when it is imported"],
)
def test_a_module_that_kills_its_process_ends_the_job(body: str, home: Path) -> None:
    (home / "bad.py").write_text(f"import os, signal\n{body}\n")
    job = ended(agent(home, "--preload=bad", program=""), 75)
    assert "the process that imports bad for the workers died 3 times" in job.err


THREADS = """
import os, time
import numpy
a = numpy.random.rand(700, 700)
a @ a
if torch:
    b = torch.rand(700, 700)
    b @ b
    tell("torch has", torch.get_num_threads())
tell("has", len(os.listdir("/proc/self/task")))
tell("drew", numpy.random.rand())
"""


@pytest.mark.parametrize(
    ("env", "torch"),
    [
        pytest.param({}, True, marks=pytest.mark.frameworks),
        ({"OMP_NUM_THREADS": "1"}, False),
        ({"OPENBLAS_NUM_THREADS": "1"}, False),
    ],
)
def test_a_worker_has_the_threads_that_its_environment_asks_for(
    env: dict[str, str], torch: bool, home: Path, request: pytest.FixtureRequest
) -> None:
    """Torch, whose import takes long, has part in all of them with `--torch=real`."""
    said, drawn = [], set()
    torch = torch or request.config.getoption("--torch") in ("real", "other")
    program = ("import torch" if torch else "torch = None") + THREADS
    preload = "--preload=numpy,torch" if torch else "--preload=numpy"
    for options in ((), (preload,)):
        job = ended(agent(home, *options, program=program, env=env), 0)
        assert "native threads" not in job.err
        said.append((job.told("has"), job.told("torch has")))
        drawn |= {*job.told("drew")}
    assert said[0] == said[1]
    assert len(drawn) == 2


def test_each_worker_draws_its_own_numbers(home: Path) -> None:
    program = "import numpy, random\ntell('drew', numpy.random.rand(), random.random())"
    job = ended(
        agent(home, "--preload=numpy.random,random", "--nproc-per-node=2", program=program), 0
    )
    first, second = (line.split() for line in job.told("drew"))
    assert first[0] != second[0]
    assert first[1] != second[1]


TRAIN = """
import os, signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, again = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
for step in range(30):
    if step == 10 and rank == 1 and not again:
        os.kill(os.getpid(), signal.SIGKILL)
    data = torch.randn(16, 8)
    loss = (model(data) - data.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = [torch.zeros(8) for _ in range(2)]
dist.all_gather(weights, model.module.weight.data.flatten())
assert torch.equal(*weights)
tell("trained", rank, again)
dist.destroy_process_group()
"""


@pytest.mark.frameworks
def test_workers_of_a_preloaded_torch_train_after_one_was_killed(home: Path) -> None:
    options = "--nproc-per-node=2", "--max-restarts=1", "--preload=torch,torch._dynamo"
    env = {"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}  # Torch's own, and left by it.
    job = ended(agent(home, *options, program=TRAIN, env=env), 0)
    assert sorted(job.told("trained")) == ["0 True", "1 True"]


def test_the_interpreter_of_the_workers_needs_none_of_our_packages(home: Path) -> None:
    bare = home / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    program = """
import sys
assert not any("site-packages" in path for path in sys.path), sys.path
tell("up", "msgspec" in sys.modules)
"""
    env = {"PYTHON_EXEC": str(bare)}
    job = ended(agent(home, "--preload=json", program=program, env=env), 0)
    assert job.told("up") == ["False"]


def test_A10_a_prepared_process_that_can_t_fork_says_why_and_lives(tmp_path: Path) -> None:
    environ = dict(os.environ)
    where, script = tmp_path / "ran", tmp_path / "worker.py"
    script.write_text(f"open({str(where)!r}, 'w')")
    touch = WorkerCommand((sys.executable, str(script)), environ)
    guard = Guard.start()
    owner = object()
    adopt_orphans(owner)
    try:
        preparation = Preparation((sys.executable,), ("json",), tuple(touch.argv))
        prepared = PreparedProcess.start(preparation, environ, guard, "prepared")
        eventually(prepared.readiness, "it to be ready")
        before = resource.prlimit(prepared.pid, resource.RLIMIT_NOFILE)
        # What it is sent fits: its own pipe does not.
        files = len(os.listdir(f"/proc/{prepared.pid}/fd")) + 2
        resource.prlimit(prepared.pid, resource.RLIMIT_NOFILE, (files, before[1]))
        with pytest.raises(
            WorkerForkError, match=r"Too many open files: raise ulimit -n"
        ) as failed:
            prepared.fork([touch], guard)
        assert failed.value.shortage == Shortage("fork", errno.EMFILE)
        resource.prlimit(prepared.pid, resource.RLIMIT_NOFILE, before)
        [worker] = prepared.fork([touch], guard)
        assert os.waitpid(worker.pid, 0)[1] == 0
        assert where.exists()
        prepared.stop()
    finally:
        release_orphans(owner)
        guard.stop()
