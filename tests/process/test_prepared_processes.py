"""A process that is forked for a test is what an exec would have made of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.one_agent import eventually
from tests.harness.prepared import processes
from tests.harness.prepared.processes import ForkedProcess, run, start
from tests.harness.proc import is_alive, state_of

SHOWS = """
import ctypes, gc, json, multiprocessing, os, resource, signal, sys, threading

import rallypoint.elastic.launcher

def read(name):
    with open(f"/proc/self/{name}") as file:
        return file.read()

libc = ctypes.CDLL(None)

def asked(option):
    number = ctypes.c_int()
    libc.prctl(option, ctypes.byref(number))
    return number.value

main = sys.modules["__main__"]
print(json.dumps({
    "pid": os.getpid(),
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags),
    "warnings": sys.warnoptions,
    "main": [main.__dict__ is globals(), main is sys.modules["__mp_main__"], __name__, __file__],
    "loaded": [str(__spec__), __cached__],
    "shown": [read("cmdline"), read("environ"), read("comm")],
    "environ": dict(os.environ), "of C": libc.getenv(b"MARK") != 0,
    "folder": os.getcwd(), "umask": os.umask(0),
    "group": [os.getsid(0), os.getpgrp()],
    "signals": [[n, str(signal.getsignal(n))] for n in sorted(signal.valid_signals())],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "of the kernel": [line for line in read("status").splitlines() if line[:4] in
                      ("SigB", "SigI", "SigC", "CapE")],
    "dumpable": libc.prctl(3), "dies with its parent": asked(2), "reaps orphans": asked(37),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) < 20),
    "limits": [resource.getrlimit(n) for n in range(16)],
    "oom": read("oom_score_adj"), "niceness": os.nice(0), "cpus": sorted(os.sched_getaffinity(0)),
    "threads": [thread.name for thread in threading.enumerate()],
    "gc": [gc.isenabled(), gc.get_threshold()],
    "streams": [[s.encoding, s.errors, s.line_buffering, s.isatty()] for s in
                (sys.stdin, sys.stdout, sys.stderr)],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.stdin.read()],
}))
"""
START = Callable[..., "subprocess.Popen[Any]"]
ENV = {"MARK": "1", "PATH": os.environ["PATH"]}
"""Less than this process has; what Python reads at its start is the same, which is nothing."""


def ran(begin: START, folder: Path, *words: str, **how: Any) -> tuple[int, str, str]:
    command = [sys.executable, *words]
    pipe = subprocess.PIPE
    env = {name: os.environ[name] for name in os.environ if name in ("LANG", "PYTHONPATH")}
    env |= ENV | how.pop("env", {})
    with begin(
        command, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **how
    ) as process:
        out, err = process.communicate("typed", 60)
        assert isinstance(process, ForkedProcess) == (begin is start and processes.forks)
        return process.returncode, out.replace(f'"pid": {process.pid},', ""), err


def ran_as_after_an_exec(folder: Path, *words: str, **how: Any) -> tuple[int, str, str]:
    """What both ways to start this program have in common: all of its end."""
    expected = ran(subprocess.Popen, folder, *words, **how)
    assert ran(start, folder, *words, **how) == expected
    return expected


def test_a_program_finds_itself_as_after_an_exec(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHOWS)
    assert ran_as_after_an_exec(tmp_path, "program.py", "x", "-y")[0] == 0


@pytest.mark.skipif("PYTHONPATH" in os.environ, reason="another PYTHONPATH takes an exec")
def test_what_PYTHONPATH_names_is_found_in_the_same_order(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import own, sys; print(own.__file__, sys.path)")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").touch()
    places = [str(tmp_path / "first"), os.fspath(processes.PACKAGE.parent), "", os.__file__[:-6]]
    env = {"PYTHONPATH": os.pathsep.join([*places, str(tmp_path / "second"), *places])}
    assert "first/own.py" in ran_as_after_an_exec(tmp_path, "program.py", env=env)[1]


def test_a_session_of_its_own_is_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os; print(os.getpid() == os.getsid(0))")
    assert ran(start, tmp_path, "program.py", start_new_session=True)[1] == "True\n"


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(7)",
        "import sys; sys.exit('no data')",
        "def fail(): 1 / 0\nfail()",
        "1 +",
        "import os; os._exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.abort()",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'at exit'); raise KeyboardInterrupt",
        "import threading, time; threading.Timer(0.1, print, ['late']).start()",
        "import os; print('unflushed', end=''); os.close(1)",
        "import warnings; warnings.warn('once')",
        # Processes of multiprocessing import the main program.
        (
            "import multiprocessing as m\n"
            "def work(n): print(n, __name__, flush=True)\n"
            "if __name__ == '__main__':\n"
            "    for method in ('fork', 'spawn', 'forkserver'):\n"
            "        process = m.get_context(method).Process(target=work, args=(method,))\n"
            "        process.start(); process.join(); print(process.exitcode, flush=True)\n"
        ),
    ],
)
def test_a_program_ends_as_after_an_exec(tmp_path: Path, program: str) -> None:
    (tmp_path / "program.py").write_text(program)
    ran_as_after_an_exec(tmp_path, "program.py")


@pytest.mark.parametrize(
    "words",
    [
        *("--version", "", "runn", "run", "run missing.py", "serve", "store --x"),
        "run --history=none -- w.py",  # Where the end is kept is told only if the disk is quick.
    ],
)
def test_a_command_answers_as_after_an_exec(tmp_path: Path, words: str) -> None:
    (tmp_path / "w.py").write_text("import sys; print(sys.argv, sys.path[0]); 1 / 0")
    command = ["-m", "rallypoint", *words.split()]
    expected, found = (ran(begin, tmp_path, *command) for begin in (subprocess.Popen, start))
    differ = re.compile(r"job-[\w-]+|in \d+\.\d+ s|pid \d+|\d\d:\d\d:\d\d(\.\d+)?")
    assert [differ.sub("", str(part)) for part in found] == [
        differ.sub("", str(part)) for part in expected
    ]


def test_it_is_waited_for_and_signalled_as_a_child_is(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    with start([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.terminate()
        eventually(lambda: state_of(process.pid) == "Z", "a zombie")
        process.kill()
        assert process.wait(60) == process.poll() == -signal.SIGTERM
    eventually(lambda: not state_of(process.pid), "its number to be free")


def test_what_an_interpreter_reads_at_its_start_takes_an_exec(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print(sys.flags.optimize)")
    command = [sys.executable, str(tmp_path / "program.py")]
    done = run(command, env=os.environ | {"PYTHONOPTIMIZE": "1"}, capture_output=True)
    assert done.stdout == "1\n"


@pytest.mark.executed
def test_a_test_may_have_its_agents_executed(tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    with start([sys.executable, tmp_path / "program.py"]) as process:
        assert not isinstance(process, ForkedProcess)


def test_the_process_that_forks_ends_with_the_test_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os; print(os.getppid(), flush=True)")
    text = (
        "import sys, time\n"
        "from tests.harness.prepared.processes import run\n"
        f"run([sys.executable, {str(tmp_path / 'program.py')!r}])\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        assert is_alive(server)
        process.kill()
    eventually(lambda: not is_alive(server), "it to end")
