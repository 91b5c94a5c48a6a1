"""Python functions as workers: what they are given, what they return, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.harness.function_job import function_job
from tests.harness.one_agent import ended

NEEDS_PICKLE = ["spawn", "forkserver"]
without_fork = pytest.mark.parametrize("method", NEEDS_PICKLE, indirect=True)
End = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=[*NEEDS_PICKLE, "fork"])
def method(request: pytest.FixtureRequest) -> str:
    """Each start method."""
    return str(request.param)


@pytest.fixture
def end(tmp_path: Path, method: str) -> End:
    """Run a function to its end by this method: exit code, stdout, stderr."""
    return partial(run_to_end, tmp_path, method=method)


def run_to_end(home: Path, functions: str, launch: str, method: str) -> tuple[int, str, str]:
    with function_job(home, functions, f"{launch}, method={method!r}") as job:
        return job.wait(), job.out, job.err


@pytest.mark.executed
def test_what_a_function_returns_comes_back_by_global_rank(end: End) -> None:
    functions = """
def double(a, b):
    return int(os.environ["RANK"]), a, b
"""
    code, out, err = end(functions, "double, 'x', [1]")
    assert (code, out) == (0, "returned {0: (0, 'x', [1]), 1: (1, 'x', [1])}\n"), err


@pytest.mark.parametrize(
    ("method", "size"),
    [
        pytest.param("spawn", 100_000_000, marks=pytest.mark.fault),
        *((method, 10_000_000) for method in ("spawn", "forkserver", "fork")),
    ],
)
def test_P3_large_results_of_four_workers_come_back(end: End, size: int) -> None:
    functions = f"""
class Long(bytes):
    def __repr__(self):
        return f"{{len(self)}} times {{self[0]}}"

def many():
    return Long(bytes([65 + int(os.environ["RANK"])]) * {size})
"""
    code, out, err = end(functions, "many, count=4")
    each = ", ".join(f"{rank}: {size} times {65 + rank}" for rank in range(4))
    assert (code, out) == (0, f"returned {{{each}}}\n"), err


def test_the_environment_is_there_when_the_users_modules_are_imported(
    end: End, method: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("import os\nSEEN = os.environ.get('LOCAL_RANK')\n")
    functions = """
SEEN = os.environ.get("LOCAL_RANK")

def look():
    import mine
    return SEEN, mine.SEEN
"""
    code, out, err = end(functions, "look")
    # A fork has its main module from before it was one.
    own = [None, None] if method == "fork" else ["0", "1"]
    expected = {rank: (own[rank], str(rank)) for rank in (0, 1)}
    assert (code, out) == (0, f"returned {expected}\n"), err


def test_what_a_function_raises_is_told_with_its_cause(end: End) -> None:
    functions = """
def fail():
    try:
        {}["batch"]
    except KeyError as error:
        raise ValueError("bad loss") from error
"""
    code, out, err = end(functions, "fail, count=1")
    assert (code, out) == (1, "returned {}\n")
    verdict = err[err.index("\nrallypoint: job") :]
    assert "ValueError: bad loss" in verdict
    blocks = err.count("KeyError: 'batch'"), err.count("direct cause of the following exception")
    assert blocks == (2, 2), f"once by the worker, once by the agent:\n{err}"
    assert "bootstrap.py" not in err, "a person looks for their own frames"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, "exited with code 7"),
        ("sys.exit('no data here')", 1, "no data here"),
        ("os._exit(3)", 3, "exited with code 3"),
        ("os.kill(os.getpid(), 11)", -11, "SIGSEGV"),
    ],
)
def test_A7_how_a_function_ends_its_process_is_what_is_told(
    end: End, body: str, code: int, said: str
) -> None:
    functions = f"def leave():\n    {body}\n"
    got, out, err = end(functions, "leave, count=1")
    if code == 0:
        assert (got, out) == (0, "returned {0: None}\n"), err
    else:
        assert (got, out) == (1, "returned {}\n"), err
        assert said in err


def test_a_result_that_cannot_be_pickled_fails_the_worker(end: End) -> None:
    functions = "def give():\n    return open(__file__)\n"
    code, out, err = end(functions, "give, count=1")
    assert (code, out) == (1, "returned {}\n")
    assert "the result of give (TextIOWrapper) can't be pickled" in err
    assert "return plain data" in err


@without_fork
@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ("lambda: 3", "the function <lambda> can't be given to a worker: "),
        ("print, open(__file__)", "the arguments of print for local rank 0 can't be given to a "),
    ],
)
def test_what_cannot_be_pickled_is_one_line(end: End, method: str, launch: str, said: str) -> None:
    code, out, err = end("", f"{launch}")
    assert (code, out) == (1, "")
    assert err.startswith(f"UsageError: {said}")
    assert err.count("\n") == 1
    assert "use the start method fork" in err


@without_fork
def test_arguments_that_all_workers_have_in_common_are_kept_once(end: End) -> None:
    functions = """
def give(data):
    def calls():
        for fd in os.listdir(f"/proc/{os.getppid()}/fd"):
            path = f"/proc/{os.getppid()}/fd/{fd}"
            try:
                if "rallypoint-call" in os.readlink(path):
                    yield os.stat(path).st_ino
            except FileNotFoundError:
                pass
    return len(data), len(set(calls()))
"""
    code, out, err = end(functions, "give, b'x' * 2_000_000")
    each = (2_000_000, 1)
    assert (code, out) == (0, f"returned { {0: each, 1: each} }\n"), err


def test_a_pipe_among_the_arguments_reaches_the_worker(end: End) -> None:
    functions = """
def talk(pipe):
    pipe.send(os.environ["RANK"])

def ends():
    import atexit
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    atexit.register(lambda: tell("heard", *sorted([ours.recv(), ours.recv()])))
    return theirs
"""
    code, out, err = end(functions, "talk, ends()")
    assert (code, out.splitlines()[-1]) == (0, "heard 0 1"), err


def test_A6_nothing_is_left_of_a_killed_agent(method: str, tmp_path: Path) -> None:
    functions = """
def stay():
    import subprocess, time
    subprocess.Popen(["sleep", "600"])
    tell("up", os.getpid())
    time.sleep(600)
"""
    with function_job(tmp_path, functions, f"stay, method={method!r}") as job:
        job.wait_told("up", 2)
        job.kill()


def test_a_function_may_run_a_loop_and_start_processes(end: End) -> None:
    functions = """
async def say(word):
    return word

def work():
    import asyncio, multiprocessing, subprocess
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        number = pool.apply(abs, (-4,))
    word = subprocess.run(["echo", "x"], capture_output=True, text=True).stdout
    return asyncio.run(say("done")), number, word
"""
    code, out, err = end(functions, "work, count=1")
    assert (code, out) == (0, "returned {0: ('done', 4, 'x\\n')}\n"), err


def test_the_main_module_may_be_imported_beforehand(tmp_path: Path) -> None:
    functions = """
BORN = os.getpid()

def again():
    import json
    tell("born", BORN, os.getpid(), os.getppid())
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(1)
"""
    launch = "again, max_restarts=1, preload=('__main__', 'json')"
    job = ended(function_job(tmp_path, functions, launch), 0)
    lines = [list(map(int, line.split())) for line in job.told("born")[-2:]]
    assert len({born for born, _, _ in lines}) == 1, "in one process for both"
    assert all(parent == job.pid for _, _, parent in lines)
    assert job.pid not in {born for born, _, _ in lines}


def test_a_preload_that_cannot_be_imported_is_an_error_of_the_call(tmp_path: Path) -> None:
    code, out, err = run_to_end(tmp_path, "", "print, preload=('nosuch',)", "")
    assert (code, out) == (1, "")
    assert err.startswith("UsageError: --preload nosuch: can't be imported (ModuleNotFoundError")
    assert err.count("\n") == 1


def test_a_job_may_be_launched_by_another_thread(method: str, tmp_path: Path) -> None:
    functions = """
def child():
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("up", os.environ["RANK"])
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(1)
    return os.environ["RANK"]

def start():
    import threading
    from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
    config = LaunchConfig(1, 1, 2, max_restarts=1, start_method=METHOD)
    got = []
    thread = threading.Thread(target=lambda: got.append(elastic_launch(config, child)()))
    thread.start()
    thread.join(60)
    tell("got", got)
    return lambda: None
"""
    functions = functions.replace("METHOD", repr(method))
    job = ended(function_job(tmp_path, functions, "start(), method='fork', count=1"), 0)
    assert job.told("got") == ["[{0: '0', 1: '1'}]"], job.err


def test_what_a_function_raises_is_told_without_its_stderr(end: End) -> None:
    functions = """
def fail():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise ValueError("unseen")
"""
    code, _, err = end(functions, "fail, count=1")
    assert code == 1
    assert "error: ValueError: unseen" in err


def test_a_fork_has_the_callers_descriptors_and_none_of_the_agents(tmp_path: Path) -> None:
    functions = """
ours = os.pipe()

def look():
    links = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            links[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
    rest = [link for fd, link in links.items() if fd > 2 and fd not in ours]
    return set(ours) <= set(links), [link for link in rest if not link.startswith("/")]
"""
    code, out, err = run_to_end(tmp_path, functions, "look, count=1", "fork")
    assert (code, out) == (0, "returned {0: (True, [])}\n"), err


def test_the_callers_own_children_are_left_alone_and_no_orphan_stays(tmp_path: Path) -> None:
    functions = """
def orphaner():
    for _ in range(3):
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.wait()

def adopts():
    import ctypes
    answer = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(answer), 0, 0, 0)
    return answer.value

def start():
    import subprocess
    from rallypoint.elastic.launcher import LaunchConfig, elastic_launch

    mine = subprocess.Popen(["sh", "-c", "exit 5"])
    orphaned = elastic_launch(LaunchConfig(1, 1, 2), orphaner)()
    tell("got", orphaned, mine.wait(), adopts())
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        tell("clean")
    return print
"""
    job = ended(function_job(tmp_path, functions, "start(), method='spawn', count=1"), 0)
    assert job.told("got") == ["{0: None, 1: None} 5 0"]
    assert "clean" in job.out.splitlines()


def test_what_a_function_registers_for_its_exit_is_run(end: End) -> None:
    functions = """
def leave():
    import atexit
    atexit.register(tell, "bye")
    sys.exit(0)

def launcher():
    import atexit
    atexit.register(tell, "end")
    return leave
"""
    code, out, err = end(functions, "launcher(), count=1")
    assert (code, out.splitlines()) == (0, ["bye", "returned {0: None}", "end"]), err


def test_what_a_fork_of_a_worker_returns_is_not_the_workers_result(end: End) -> None:
    functions = """
def fork():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return "worker" if pid else "its child"
"""
    code, out, err = end(functions, "fork, count=1")
    assert (code, out) == (0, "returned {0: 'worker'}\n"), err


def test_a_result_that_cannot_be_handed_over_is_named(end: End) -> None:
    functions = """
def give():
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    return "x" * 100_000
"""
    code, out, err = end(functions, "give, count=1")
    assert (code, out) == (1, "returned {}\n")
    assert "the result of give (str) can't be handed over: [Errno 27] File too large" in err


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("KeyboardInterrupt", "was killed by SIGINT"),
        ("GeneratorExit", "exited with code 1"),
        ("BaseExceptionGroup('two', [KeyboardInterrupt()])", "exited with code 1"),
    ],
)
def test_A7_an_end_by_no_exception_is_that_of_a_python_program(
    end: End, raised: str, told: str
) -> None:
    functions = f"def leave():\n    raise {raised}\n"
    code, out, err = end(functions, "leave, count=1")
    assert (code, out) == (1, "returned {}\n")
    assert told in err
    assert "Process ForkProcess" not in err
    assert "bootstrap.py" not in err, "a person looks for their own frames"


def test_a_function_reads_what_its_launcher_would(end: End) -> None:
    functions = """
def read():
    return sys.stdin.read()

def given():
    with open("input", "w") as file:
        file.write("two\\nlines\\n")
    os.dup2(os.open("input", os.O_RDONLY), 0)
    return read
"""
    code, out, err = end(functions, "given(), count=1")
    assert (code, out) == (0, "returned {0: 'two\\nlines\\n'}\n"), err
